"""What commands say of a run: `plan`, `inspect`, `tune`, `report`, `export`, `maintain verify`, `init`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.pipeline.locked.inputs import crawl, documents, texts, write_source
from benchmarks.pipeline.locked.lock import Lock
from benchmarks.pipeline.locked.values import stable, without_hashes

RECIPE = """
name: looks
parts: {files: 1}
sources:
  crawl: {warc: {path: CRAWL}, stages: [extract]}
  more: {jsonl: {path: HERE/more}}
stages:
  - language
  - gopher_repetition
  - gopher_quality: {min_words: 40}
  - exact_dedup
  - minhash_dedup
  - write
  - tokenize: {vocab_size: 500}
  - pack: {row_length: 256}
"""
OF_SHARDS = ("megatron", "mds", "datatrove", "trl", "torchtune", "hf")
OF_DOCUMENTS = ("dolma", "webdataset", "datasketch", "datatrove-minhash")


def take(lock: Lock) -> None:
    given = texts(lock.folder)
    write_source(lock.folder / "more", documents(list(given[:90]), 3), "jsonl", 3)
    recipe = lock.recipe("looks", RECIPE.replace("CRAWL", str(crawl(lock.folder))))
    planned(lock, "plan before", recipe)
    out = lock.run("run", recipe, lock.folder / "out/looks")
    planned(lock, "plan after", recipe)
    inspected(lock, out)
    tuned(lock, out)
    found(lock, out, given[30])
    told(lock, out)
    exported(lock, out)
    other = lock.recipe("other", recipe.read_text().replace("min_words: 40", "min_words: 80"))
    planned(lock, "plan of a change", other, out)
    lock.run("other run", other, lock.folder / "out/other")
    lock.command("report of two", "report", str(out), str(lock.folder / "out/other"), "--json")
    lock.command("init", "init", str(lock.folder / "more"), "--recipe", str(lock.folder / "made.yaml"))
    lock.note("init/recipe", (lock.folder / "made.yaml").read_text())


def planned(lock: Lock, name: str, recipe: Path, out: Path | None = None) -> None:
    """The stages in their order, whatever nodes they are in, and whether there is work."""
    where = str(out or lock.folder / "out/looks")
    nodes = json.loads(lock.command(name, "plan", str(recipe), "--out", where, "--json", says=False))
    lock.note(f"{name}/stages", [stage for node in nodes for stage in node["stages"]])
    lock.note(f"{name}/up to date", all(node["why"] == "up to date" for node in nodes))


def inspected(lock: Lock, out: Path) -> None:
    lock.command("inspect", "inspect", str(out), "--json")
    for stage in ("crawl", "extract", "gopher_quality", "minhash_dedup", "pack"):
        lock.command(f"inspect {stage}", "inspect", str(out), stage, "--json")
    lock.command(
        "inspect a reason", "inspect", str(out), "gopher_quality", "--reason", "too_few_stop_words", "--limit", "3"
    )
    for name, which in (("id", "3-7"), ("url", "https://docs.example/library/166/the-shelve-module")):
        story = json.loads(
            lock.command(f"inspect --{name}", "inspect", str(out), f"--{name}", which, "--json", says=False)
        )
        for part in ("passages", "read_from", "written"):
            story.pop(part, None)
        lock.note(f"inspect --{name}/story", story)


def tuned(lock: Lock, out: Path) -> None:
    for name, settings in (
        ("tune", ["gopher_quality.min_words=80"]),
        ("tune two", ["gopher_quality.min_words=20", "gopher_repetition.max_top_2gram_share=0.1", "--samples", "5"]),
        ("tune some", ["gopher_quality.min_words=80", "--where", "language=en"]),
    ):
        lock.command(name, "tune", str(out), *settings, "--json")
    lock.command("tune, shown", "tune", str(out), "gopher_quality.min_words=80")


def found(lock: Lock, out: Path, text: str) -> None:
    passage = text[: min(80, len(text))]
    lock.command("find", "inspect", str(out), "--text", passage, "--json")
    lock.command("find again", "inspect", str(out), "--text", passage)
    lock.command("find nothing", "inspect", str(out), "--text", "no page of all of them says this at all", expected=1)


def told(lock: Lock, out: Path) -> None:
    lock.command("summary", "report", str(out), "--for", "eu", "--json", "--synthetic", "more")
    for path in sorted((out / "summary").iterdir()):
        lock.note(f"summary/{path.name}", stable(path, lock.folder).decode())
    lock.command("verify", "maintain", "verify", str(out), says=False)
    lock.command("verify shards", "maintain", "verify", str(out / "shards/256"))


def exported(lock: Lock, out: Path) -> None:
    for to in (*OF_SHARDS, *OF_DOCUMENTS):
        place, source = lock.folder / "exports" / to, out / "shards/256" if to in OF_SHARDS else out
        lock.command(f"export {to}", "export", str(source), str(place), "--to", to, says=False)
        files = Counter[str]()
        contents: list[Any] = []
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            files[without_hashes(str(path.relative_to(place)))] += 1
            contents.append([without_hashes(str(path.relative_to(place))), stable(path, lock.folder)])
        lock.note(f"export {to}/files", files)
        lock.note(f"export {to}/contents", contents)
