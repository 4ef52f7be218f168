#!/usr/bin/env python3
"""What the recipes make of small inputs, as hashes: taken before code moves, held against afterwards.

    python -m benchmarks.pipeline.locked_results take FILE [--crawl FOLDER]
    python -m benchmarks.pipeline.locked_results hold FILE [--crawl FOLDER]

Runs the demo, every shipped recipe without judges on text and pages of the demo's crawl, a recipe of the stages that
those leave out, and, where FOLDER is given, the demo's recipe on the crawl in it. Every file of `write/`, `shards/` and `rejects/`
counts by its bytes, `run.json` by its counts. Commands alone are used.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SHOWN = ("write", "shards", "stages/*/rejects")
TEXTS = 400
# Fingerprints, checksums of what holds fingerprints, dates, and the lines that import the loader.
DECIDED_BY_CODE = rb"[0-9a-f]{32,64}|\.[0-9a-f]{8}(?=\.arrow)|\d{4}-\d\d-\d\d[T0-9:.+Z]*|(?m:(?:^from .* import .*\n)+)"
ALL_ELSE = """
name: all_else
sources:
  crawl: {warc: {path: CRAWL}}
  texts: {jsonl: {path: TEXTS}}
stages:
  - extract: {engine: resiliparse}
  - repair
  - language
  - boilerplate
  - text_signals: {units: uax29}
  - difficulty
  - few_replacement_characters
  - exact_dedup
  - simhash_dedup
  - substring_dedup: {tokens: 40}
  - bloom_dedup
  - sample: {rate: 0.9}
  - tokenize: {tokenizer: train, vocab_size: 600}
  - order
  - pack: {row_length: 512}
  - write
"""


def gristmill(*arguments: str) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "gristmill"), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"gristmill {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def hashes(out: Path) -> dict[str, str]:
    files = [
        path
        for name in SHOWN
        for folder in sorted(out.glob(name))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    prints = {str(path.relative_to(out)): hashlib.sha256(stable(path)).hexdigest()[:16] for path in files}
    counts = [
        [stage["stage"], stage.get("in"), stage.get("out")]
        for stage in json.loads((out / "run.json").read_text())["stages"]
    ]
    return prints | {"run.json counts": hashlib.sha256(json.dumps(counts).encode()).hexdigest()[:16]}


def without_fingerprints(files: dict[str, str]) -> dict[str, str]:
    """Files have fingerprints of code in their names."""
    return {re.sub(r"\.[0-9a-f]{8}(?=\.)", "", path): content for path, content in files.items()}


def stable(path: Path) -> bytes:
    """A file's bytes; what a rejects table holds, and not its metadata; text without fingerprints and dates, which code
    decides."""
    if path.suffix == ".parquet" and "rejects" in path.parts:
        return json.dumps(pq.read_table(path).to_pylist(), default=str, sort_keys=True).encode()
    raw = path.read_bytes()
    return re.sub(DECIDED_BY_CODE, b"*", raw) if path.suffix in (".json", ".md") else raw


def inputs(folder: Path) -> tuple[Path, list[str]]:
    """A crawl, and texts: of its pages, as the demo has them."""
    gristmill("demo", "--out", str(folder / "demo"))
    crawl = next(path.parent for path in sorted((folder / "demo").rglob("*.warc.gz")))
    recipe = folder / "texts.yaml"
    recipe.write_text(f"name: texts\nsources:\n  crawl: {{warc: {{path: {crawl}}}}}\nstages:\n  - extract\n  - write\n")
    gristmill("run", str(recipe), "--out", str(folder / "texts"), "--workers", "2")
    texts = [
        text
        for path in sorted((folder / "texts" / "write").rglob("*.parquet"))
        for text in pq.read_table(path)["text"].to_pylist()
    ]
    return crawl, sorted(texts)[:TEXTS]


def own(texts: list[str], name: str) -> list[str]:
    """The same words in an order of this source's own, line by line, so that no source repeats another."""
    chance = random.Random(name)
    return [
        "\n".join(" ".join(chance.sample(words, len(words))) for words in map(str.split, text.split("\n")))
        for text in texts
    ]


def write_texts(folder: Path, texts: list[str], kind: str) -> Path:
    folder.mkdir(parents=True)
    if kind == "jsonl":
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return folder
    records = []
    for number, text in enumerate(texts):
        body = text.encode()
        head = f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a.example/{number}\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
        head += (
            f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        records.append(gzip.compress(head.encode() + body + b"\r\n\r\n", mtime=0))
    (folder / "a.warc.wet.gz").write_bytes(b"".join(records))
    return folder


def on_small_inputs(recipe: Path, crawl: Path, texts: list[str], folder: Path) -> Path:
    """The recipe with sources of ours, small tokenizers and budgets."""
    plan: dict[str, Any] = yaml.safe_load(recipe.read_text())
    for name, source in plan["sources"].items():
        kind = next(key for key in source if key != "stages")
        path = crawl if kind == "warc" else write_texts(folder / recipe.stem / name, own(texts, name), kind)
        source[kind]["path"] = str(path)
    for step in plan["stages"]:
        for name, settings in step.items() if isinstance(step, dict) else ():
            settings.update(
                {
                    "mix": {"budget": 60_000, "max_epochs": 1000},
                    "tokenize": {"vocab_size": 600},
                    "pack": {"row_length": 512},
                }.get(name, {})
            )
            if "thresholds_file" in settings:
                settings["thresholds_file"] = str(RECIPES / settings["thresholds_file"])
    made = folder / f"{recipe.stem}.yaml"
    made.write_text(yaml.safe_dump(plan, sort_keys=False))
    return made


def take(folder: Path, crawl: Path | None) -> dict[str, dict[str, str]]:
    pages, texts = inputs(folder)
    # Not those that ask for judges, which somebody has to train first.
    shipped = [recipe for recipe in sorted(RECIPES.glob("*.yaml")) if "\n  - judge:" not in recipe.read_text()]
    made = [on_small_inputs(recipe, pages, texts, folder) for recipe in shipped]
    write_texts(folder / "others", texts, "jsonl")
    made.append(folder / "all_else.yaml")
    made[-1].write_text(ALL_ELSE.replace("CRAWL", str(pages)).replace("TEXTS", str(folder / "others")))
    if crawl:
        plan = yaml.safe_load((RECIPES / "fineweb.yaml").read_text())
        plan["sources"]["crawl"]["warc"]["path"] = str(crawl.resolve())
        made.append(folder / "crawl.yaml")
        made[-1].write_text(yaml.safe_dump(plan, sort_keys=False))
    out = {"demo": hashes(next(path.parent for path in sorted((folder / "demo").rglob("run.json"))))}
    for recipe in made:
        gristmill("run", str(recipe), "--out", str(folder / "runs" / recipe.stem), "--workers", "2")
        out[recipe.stem] = hashes(folder / "runs" / recipe.stem)
    return out


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["take", "hold"])
    options.add_argument("file", type=Path)
    options.add_argument("--crawl", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results = take(Path(name), asked.crawl)
    if asked.what == "take":
        asked.file.write_text(json.dumps(results, indent=1))
    before = {recipe: without_fingerprints(files) for recipe, files in json.loads(asked.file.read_text()).items()}
    results = {recipe: without_fingerprints(files) for recipe, files in results.items()}
    others = [
        f"{recipe}: {path}: {before.get(recipe, {}).get(path)} before, {results.get(recipe, {}).get(path)} now"
        for recipe in sorted(before | results)
        for path in sorted(before.get(recipe, {}) | results.get(recipe, {}))
        if before.get(recipe, {}).get(path) != results.get(recipe, {}).get(path)
    ]
    print(
        json.dumps(
            {
                "what": "locked_results",
                "recipes": len(results),
                "files": sum(map(len, results.values())),
                "differ": len(others),
            }
        )
    )
    print("\n".join(others[:50]))
    sys.exit(bool(others))


if __name__ == "__main__":
    main()
