"""Runs inside the test's own process, with a watcher that counts tasks; and small inputs whose duplicates lie in
different files."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.run import Summary, run

WORDS = (
    "the", "a", "cat", "dog", "king", "queen", "sees", "loves", "finds", "old", "red", "small", "house", "tree", "river", "and", "but", "then", "slowly",
    "home", "again",
)  # fmt: skip


class Counting(Quiet):
    """How many tasks were done, by node and kind; of map tasks each phase counts, by its segment and "stages" or "rules"."""

    def __init__(self) -> None:
        self.anew: Counter[tuple[str, str]] = Counter()

    def finished(self, task: Any, result: Any, anew: bool) -> None:
        if anew and task.kind == "partition":
            for phase in task.phases:
                self.anew[phase.segment, "rules" if phase.rules else "stages"] += 1
        elif anew:
            self.anew[task.node, task.kind] += 1


def lines(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


def sentences(chance: random.Random, count: int, longest: int) -> list[str]:
    """Made of `WORDS`, 5 or more of them."""
    return [" ".join(chance.choices(WORDS, k=chance.randint(5, longest))).capitalize() + "." for _ in range(count)]


def shared_texts(folder: Path, files: int = 6, own: int = 5, shared: int = 3) -> Path:
    """Files with texts of their own and texts that all share; `files * own + shared` are different."""
    for f in range(files):
        lines(
            folder / f"f{f}.jsonl",
            [f"own {f} {i} words" for i in range(own)] + [f"shared {i} words" for i in range(shared)],
        )
    return folder


def save(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def go(recipe: Path, out: Path | str, workers: int = 1) -> tuple[Summary, Counter[tuple[str, str]]]:
    face = Counting()
    summary = run(recipes.load(recipe), str(out), Where(workers), face)
    return summary, face.anew


def written(out: Path, folder: str = "write") -> list[tuple[int, str]]:
    rows: list[tuple[int, str]] = []
    for path in (out / folder).rglob("*.parquet"):
        table = pq.read_table(path, columns=["uid", "text"])
        rows += zip(table["uid"].to_pylist(), table["text"].to_pylist(), strict=True)
    return sorted(rows)


def tree(out: Path, *tops: str) -> dict[str, bytes]:
    files = [p for top in tops or ("write", "partitions", "stages") for p in (out / top).rglob("*") if p.is_file()]
    return {str(p.relative_to(out)): p.read_bytes() for p in files}
