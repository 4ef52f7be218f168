"""One bit of one file of a run is flipped, or the file is cut; the next run must come out as if nothing had happened.

Half of the cases damage a finished run, half one that broke off in the middle of its sink. Files are drawn by the
square root of their size, so that small ones get their share. What must be equal afterwards: every file under write/,
partitions/, stages/, shuffle/ and shards/ and the saved index, byte for byte, and run.json but for its times. Logs and
report.html are left out. One case in ten has workers of its own; the others do the work in this process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.record import without_times
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.records import Result, Task

SLICE = 10
RESULTS = ("write", "partitions", "stages", "shuffle", "shards", "index")
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
        lines = [
            json.dumps({"text": text, "url": f"https://mill.example/{number}/{i}"})
            for i, text in enumerate(texts[number::3])
        ]
        (folder / f"pages-{number}.jsonl").write_text("\n".join(lines) + "\n")


class BreaksOff(Quieter):
    """Ends the run where some parts of the sink are written and others are not."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        self.written += any(phase.segment == "write" for phase in getattr(task, "phases", ()))
        if self.written == 2:
            raise KeyboardInterrupt


def work(folder: Path, face: Quieter, with_workers: bool = True) -> Quieter:
    """The recipe in a folder, to its end or where it is broken off."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        run(recipes.load(folder / "flips.yaml"), str(folder / "out"), Where(1 if with_workers else 0), face)
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
    there = {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for top in tops
        for p in top.rglob("*")
        if p.is_file()
    }
    cards = [path for path in there if path.endswith("shards/README.md")]  # has the time of the run
    record = without_times(json.loads((folder / "out/run.json").read_text()))
    return {path: hash_ for path, hash_ in there.items() if path not in cards} | {
        "run.json": json.dumps(record, sort_keys=True)
    }


@functools.cache
def undisturbed(folder: Path) -> tuple[tuple[Path, Path], dict[str, str]]:
    """The two runs to damage, and what each must come to."""
    runs = make(folder)
    expected = contents(runs[0])
    if len(expected) < 60:
        raise RuntimeError(f"the run left only {len(expected)} files to compare")
    return runs, expected


def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
    runs, expected = undisturbed(folder.parent / "shared")
    shutil.copytree(runs[number % 2], folder, dirs_exist_ok=True)
    damage = draw(rng, folder)
    damage.do(folder)
    face = work(folder, Quieter(), with_workers=number % 10 == 0)
    actual = contents(folder)
    names = sorted(path for path in expected.keys() | actual.keys() if expected.get(path) != actual.get(path))
    if names:
        raise AssertionError(f"{damage}: {len(names)} files are not as they were: {names[:5]}")
    kind = damage.path.split("/")[1] if damage.path.startswith("out/") else "index"
    return {
        kind: 1,
        "cut" if damage.bit is None else "flipped": 1,
        "told": bool(face.notes),
        "files_compared": len(expected),
    }
