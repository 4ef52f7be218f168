"""What stays of a run for each `keep`, what another threshold and another measure make of it, and runs on a part of the
inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.pipeline.locked.inputs import crawl, documents, own, texts, write_source
from benchmarks.pipeline.locked.lock import Lock

RECIPE: dict[str, Any] = {
    "name": "keeps",
    "parts": {"files": 1},
    "stages": [
        {"keep_languages": {"languages": ["en"], "at_least": 0.3}},
        "gopher_repetition",
        {"gopher_quality": {"min_words": 40}},
        "exact_dedup",
        {"minhash_dedup": {"threshold": 0.75}},
        "c4_lines",
        {"fineweb_quality": {"min_terminal_line_share": 0.01}},
        "write",
        {"tokenize": {"vocab_size": 500}},
        {"pack": {"row_length": 256}},
    ],
}


def take(lock: Lock) -> None:
    rows = documents(own(texts(lock.folder)[:150], "more"), 8)
    more = str(write_source(lock.folder / "more", rows, "jsonl", 3))
    for keep in ("all", "signals", "nothing"):
        out = lock.run(keep, recipe(lock, keep, more))
        lock.run(f"{keep}, another threshold", recipe(lock, keep, more, min_words=80), out)
        lock.run(f"{keep}, another measure", recipe(lock, keep, more, min_words=80, measure="difficulty"), out)
    whole = str(recipe(lock, "all", more))
    for name, portion in (("limit", ("--limit", "40")), ("sample", ("--sample", "40%"))):
        out = lock.folder / f"out/{name}"
        arguments = ["run", whole, "--out", str(out), "--workers", str(lock.workers), *portion]
        lock.command(name, *arguments, says=False)
        lock.look(name, Path(f"{out}-sample"))


def recipe(lock: Lock, keep: str, more: str, min_words: int = 40, measure: str = "") -> Path:
    stages = [
        {"gopher_quality": {"min_words": min_words}} if isinstance(each, dict) and "gopher_quality" in each else each
        for each in RECIPE["stages"]
    ]
    if measure:
        stages.insert(2, measure)
    sources = {
        "crawl": {"warc": {"path": str(crawl(lock.folder))}, "stages": ["extract"]},
        "more": {"jsonl": {"path": more}},
    }
    return lock.recipe(f"{keep}-{min_words}-{measure}", {**RECIPE, "keep": keep, "sources": sources, "stages": stages})
