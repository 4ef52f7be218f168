#!/usr/bin/env python3
"""One bit of one file of a run is flipped, or the file is cut; the next run must come out as if nothing had happened.

    python benchmarks/flips.py [--cases 200] [--first 0] [--seed 0] [--work FOLDER]

Half of the cases damage a finished run, half one that broke off in the middle. Files are drawn by the square root of their size, so that small ones get
their share. What must be equal afterwards: every file under write/, legs/, stages/, flow/, shards/ and the saved index, byte for byte, and run.json but
for its times. Prints one JSON line: cases by kind of file, how many were noticed (something was done anew), and what differed; exit code 1 if anything did.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pipeline import recipe as recipes
from pipeline.cluster import Where
from pipeline.leg import Result, Task
from pipeline.progress import Quiet
from pipeline.record import without_times
from pipeline.run import run

RESULTS = ("write", "legs", "stages", "flow", "shards", "index")
EXEMPT = ("out/logs/", "out/report.html", "out/.lock")
WORDS = [
    "mill",
    "stone",
    "grain",
    "water",
    "wheel",
    "flour",
    "bread",
    "sack",
    "rope",
    "cart",
    "river",
    "sluice",
    "miller",
    "beam",
    "tooth",
    "gear",
    "oak",
    "iron",
    "hopper",
    "dust",
]
RECIPE = """\
name: flips
parts: {files: 1, small_file: 0}
sources:
  pages: {jsonl: {path: "in/*.jsonl"}}
stages:
  - gopher_quality: {min_words: 20, min_stop_words: 0}
  - exact_dedup
  - minhash_dedup: {save_index: index}
  - write
  - tokenize: {vocab_size: 300}
  - pack: {row_length: 64}
"""


@dataclass(frozen=True)
class Damage:
    """One bit flipped, or all from some byte on cut away."""

    path: str
    at: int
    bit: int | None

    def do(self, folder: Path) -> None:
        file = folder / self.path
        content = bytearray(file.read_bytes())
        if self.bit is None:
            del content[self.at :]
        else:
            content[self.at] ^= 1 << self.bit
        file.write_bytes(content)


class Quieter(Quiet):
    """Remembers what the run said."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def make_inputs(folder: Path) -> None:
    rng = random.Random(1)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(10, 90))) for _ in range(40)]
    texts += texts[:6] + [f"{text} again" for text in texts[6:12]]
    folder.mkdir(parents=True)
    for number in range(3):
        lines = [json.dumps({"text": text, "url": f"https://mill.example/{number}/{i}"}) for i, text in enumerate(texts[number::3])]
        (folder / f"pages-{number}.jsonl").write_text("\n".join(lines) + "\n")


class BreaksOff(Quieter):
    """Ends the run where some parts of the sink are written and others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        self.written += task["node"] == "write"
        if self.written == 2:
            raise KeyboardInterrupt


def work(folder: Path, face: Quieter) -> Quieter:
    """The recipe in a folder, to its end or where it is broken off."""
    with contextlib.suppress(KeyboardInterrupt):
        run(recipes.load(folder / "flips.yaml"), str(folder / "out"), Where(1), face)
    return face


def make(folder: Path) -> tuple[Path, Path]:
    """A finished run, and one that broke off in the middle of its sink."""
    whole, half = folder / "whole", folder / "half"
    make_inputs(whole / "in")
    (whole / "flips.yaml").write_text(RECIPE)
    shutil.copytree(whole, half)
    work(whole, Quieter())
    work(half, BreaksOff())
    if not (half / "out/.write.new").is_dir() or (half / "out/write").exists():
        raise RuntimeError("the run was not broken off in the middle of its sink")
    return whole, half


def draw(rng: random.Random, folder: Path) -> Damage:
    files = [p for top in ("out", "index") for p in (folder / top).rglob("*") if p.is_file() and p.stat().st_size]
    names = sorted(name for p in files if not (name := str(p.relative_to(folder))).startswith(EXEMPT))
    sizes = [(folder / name).stat().st_size for name in names]
    [number] = rng.choices(range(len(names)), weights=[size**0.5 for size in sizes])
    at = rng.randrange(sizes[number])
    return Damage(names[number], at, None if rng.random() < 0.2 else rng.randrange(8))


def contents(folder: Path) -> dict[str, str]:
    """Path -> hash of every file that the run stands for; of the record what is not a time."""
    tops = [folder / "index", *(folder / "out" / top for top in RESULTS)]
    there = {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for top in tops for p in top.rglob("*") if p.is_file()}
    cards = [path for path in there if path.endswith("shards/README.md")]  # has the time of the run
    record = without_times(json.loads((folder / "out/run.json").read_text()))
    return {path: hash_ for path, hash_ in there.items() if path not in cards} | {"run.json": json.dumps(record, sort_keys=True)}


def case(number: int, seed: int, made: tuple[Path, Path], expected: dict[str, str], scratch: Path) -> tuple[Damage, bool, list[str]]:
    """Damage a copy, run again; what differs from an undisturbed run."""
    rng = random.Random(f"{seed}/{number}")
    folder = scratch / f"case-{number}"
    shutil.copytree(made[number % 2], folder)
    damage = draw(rng, folder)
    damage.do(folder)
    try:
        face = work(folder, Quieter())
        actual = contents(folder)
    except Exception as error:
        return damage, True, [f"{type(error).__name__}: {error}"]
    names = sorted(path for path in expected.keys() | actual.keys() if expected.get(path) != actual.get(path))
    shutil.rmtree(folder)
    return damage, bool(face.notes), names


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--cases", type=int, default=200)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--work", type=Path)
    asked = options.parse_args()
    failures, kinds, noticed = 0, Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(dir=asked.work) as work_folder:
        scratch = Path(work_folder)
        made = make(scratch)
        expected = contents(made[0])
        assert len(expected) > 20
        for number in range(asked.first, asked.first + asked.cases):
            damage, said, wrong = case(number, asked.seed, made, expected, scratch)
            kind = damage.path.split("/")[1] + ("" if damage.bit is not None else " cut")
            kinds[kind] += 1
            noticed[kind] += said
            if wrong:
                failures += 1
                print(f"case {number} of seed {asked.seed}: {damage}: {wrong[:3]}", file=sys.stderr, flush=True)
    print(
        json.dumps(
            {
                "what": "flips",
                "seed": asked.seed,
                "first": asked.first,
                "cases": asked.cases,
                "failures": failures,
                "by_kind": kinds,
                "noticed": noticed,
            }
        )
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
