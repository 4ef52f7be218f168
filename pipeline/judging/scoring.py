"""Scores of a judge for files of texts, a few thousand at a time: written beside where each text stands, summed up by
quantiles, with the best and the worst."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.card import Head
from gristmill.classifiers.judge import Judge, scores_of
from gristmill.kernels.common.files import whole_file
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import as_words, texts_in
from gristmill.stages.inputs import InputFile

Scores = npt.NDArray[np.float32]

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)  # in percent
KEPT_TEXT = 20_000  # characters of an example
NAMES = ("uid", "id", "url", "source", "language")  # carried over to the scores, where they are there


@dataclass(frozen=True, order=True)
class ScoredText:
    score: float
    order: int  # the number of the text, below 0: of equal scores the earlier one counts as higher
    where: str = field(compare=False)
    text: str = field(compare=False)


@dataclass
class HeadScores:
    """Of one head: all scores, and the examples at both ends."""

    head: Head
    scores: list[Scores] = field(default_factory=list)
    best: list[ScoredText] = field(default_factory=list)  # heaps while texts come, sorted at the end
    worst: list[ScoredText] = field(default_factory=list)  # the worst first; until then their scores are turned round
    labels: Counter[str] = field(default_factory=Counter)  # of labels without an order: the likeliest of each text

    def all(self) -> Scores:
        return np.concatenate(self.scores) if self.scores else np.empty(0, np.float32)

    def quantiles(self) -> list[tuple[int, float]]:
        scores = self.all()
        return (
            [(share, float(np.quantile(scores, share / 100, method="inverted_cdf"))) for share in QUANTILES]
            if len(scores)
            else []
        )


def score_files(
    judge: Judge,
    files: Sequence[InputFile],
    text: str,
    out: str | None,
    shown: int,
    seen: Callable[[int], None] = lambda texts: None,
) -> list[HeadScores]:
    """By head. `out` appears when all is scored, or not at all."""
    by_head = {head.name: HeadScores(head) for head in judge.card.heads}
    with _ScoresFile(out) as scored:
        number = 0
        for file, row, table in texts_in(files, text, NAMES, "--text"):
            place = _Place(file, row)
            texts = table[text]
            outputs = judge.outputs(texts)
            scores = scores_of(judge.card, outputs)
            likeliest = {
                head.name: pa.array(head.labels, pa.string()).take(pa.array(outputs[head.name].argmax(axis=1)))
                for head in judge.card.heads
                if head.kind == "labels"
            }
            for name, of_head in by_head.items():
                of_head.scores.append(scores[name])
                of_head.labels.update(likeliest[name].to_pylist() if name in likeliest else ())
                _note(of_head, scores[name], number, place, table, text, shown)
            scored.write(_row_table(place, table, scores, likeliest))
            number += len(table)
            seen(number)
    if not number:
        raise RecipeError("no texts: the files hold none")
    for of_head in by_head.values():
        of_head.best.sort(reverse=True)
        of_head.worst = [replace(example, score=-example.score) for example in sorted(of_head.worst, reverse=True)]
    return list(by_head.values())


@dataclass(frozen=True)
class _Place:
    file: InputFile
    row: int


def _note(
    of_head: HeadScores, scores: Scores, number: int, place: _Place, table: pa.Table, text: str, shown: int
) -> None:
    """Only rows that can be among the shown are looked at."""
    if not shown:
        return
    for heap, keys in ((of_head.best, scores), (of_head.worst, -scores)):
        for row in np.argsort(-keys, kind="stable")[:shown].tolist():
            _keep(heap, _example(float(keys[row]), -(number + row), place, row, table, text), shown)


def _keep(heap: list[ScoredText], example: ScoredText, shown: int) -> None:
    if len(heap) < shown:
        heapq.heappush(heap, example)
    elif heap[0] < example:
        heapq.heapreplace(heap, example)


def _example(score: float, order: int, place: _Place, row: int, table: pa.Table, text: str) -> ScoredText:
    url = table["url"][row].as_py() if "url" in table.column_names else None
    where = (
        str(url)
        if url
        else place.file.path
        if len(table) == 1 and not place.row
        else f"{place.file.path}, row {place.row + row:,}"
    )
    return ScoredText(score, order, where, (table[text][row].as_py() or "")[:KEPT_TEXT])


def _row_table(place: _Place, table: pa.Table, scores: dict[str, Scores], likeliest: dict[str, pa.Array]) -> pa.Table:
    """Of labels without an order the likeliest, and its probability as NAME_chance, as the stage `label` has them."""
    rows = np.arange(place.row, place.row + len(table), dtype=np.int64)
    columns: dict[str, pa.Array | npt.NDArray[np.int64]] = {
        "file": pa.array([place.file.path]).take(pa.array(np.zeros(len(rows), np.int64))),
        "row": rows,
    }
    for name in NAMES:
        there = name in table.column_names
        if name == "uid":
            uids = there and pa.types.is_uint64(table[name].type)
            columns[name] = table[name] if uids else pa.nulls(len(rows), pa.uint64())
        else:
            columns[name] = as_words(table[name]) if there else pa.nulls(len(rows), pa.string())
    named = {f"{name}_chance" if name in likeliest else name: pa.array(values) for name, values in scores.items()}
    return pa.table(columns | likeliest | named)


class _ScoresFile(contextlib.ExitStack):
    """Writes pieces to a file that gets its name at the end; no pieces, no file."""

    def __init__(self, out: str | None) -> None:
        super().__init__()
        self.out = Path(out) if out else None
        self.writer: pq.ParquetWriter | None = None
        if self.out is not None and not self.out.parent.is_dir():
            raise RecipeError(f"--out: there is no folder {self.out.parent}")

    def write(self, table: pa.Table) -> None:
        if self.out is None:
            return
        if self.writer is None:
            file = self.enter_context(whole_file(self.out))
            self.writer = self.enter_context(pq.ParquetWriter(file, table.schema, compression="zstd"))
        self.writer.write_table(table)
