"""Scores of a judge for one text, or for files of texts, a few thousand at a time: written beside where each text
stands, summed up by quantiles, with the best and the worst, and on demand with the words that moved them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.card import Head, JudgeError, NotExplained
from gristmill.classifiers.judge import Judge, load_judge, scores_of
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.files import whole_file
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.inputs.columns import as_words, texts_in
from gristmill.pipeline.json_types import JSONObject
from gristmill.stages.inputs import InputFile
from gristmill.stages.judge.judge import takes_a_gpu

Scores = npt.NDArray[np.float32]

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)  # in percent
KEPT_TEXT = 20_000  # characters of an example
EXCERPT = 200  # of them are shown
WORDS = 10  # that moved a score most
NAMES = ("uid", "id", "url", "source", "language")  # carried over to the scores, where they are there


@dataclass(frozen=True)
class ScoredText:
    score: float
    where: str
    text: str
    words: Sequence[tuple[str, float]] | None = None  # that moved its score, where asked for

    @property
    def start(self) -> str:
        return one_line(self.text[: 4 * EXCERPT])[:EXCERPT]

    def as_json(self) -> JSONObject:
        return {"where": self.where, "start": self.start, "score": self.score, "words": self.words}


@dataclass
class HeadScores:
    """Of one head: all scores, and the examples at both ends."""

    head: Head
    scores: list[Scores] = field(default_factory=list)
    best: list[ScoredText] = field(default_factory=list)  # the best first
    worst: list[ScoredText] = field(default_factory=list)  # the worst first
    # of labels without an order: texts by the likeliest of each, the commonest first; of one text the probabilities
    labels: dict[str, float] = field(default_factory=dict)

    def all(self) -> Scores:
        return np.concatenate(self.scores) if self.scores else np.empty(0, np.float32)

    @property
    def texts(self) -> int:
        return sum(map(len, self.scores))

    @property
    def mean(self) -> float:
        return float(self.all().astype(float).mean())

    def as_json(self) -> JSONObject:
        return {
            "texts": self.texts,
            "mean": self.mean,
            "quantiles": {f"{share}%": value for share, value in self.quantiles()},
            "best": [each.as_json() for each in self.best],
            "worst": [each.as_json() for each in self.worst],
            **({"labels": self.labels} if self.labels else {}),
        }

    def quantiles(self) -> list[tuple[int, float]]:
        scores = self.all()
        return (
            [(share, float(np.quantile(scores, share / 100, method="inverted_cdf"))) for share in QUANTILES]
            if len(scores)
            else []
        )


@contextlib.contextmanager
def judge_errors() -> Iterator[None]:
    """What a judge complains of is wrong with what was asked."""
    try:
        yield
    except JudgeError as error:
        raise RecipeError(str(error)) from error


@judge_errors()
def judge_at(folder: str, device: str = "cpu") -> Judge:
    """The judge in a folder; torch is asked for a GPU only where the judge takes one. RecipeError says why there is
    none."""
    try:
        try:
            place = on_device(device) if takes_a_gpu(folder) else "cpu"
        except (KeyError, TypeError, ValueError):  # loading says what is wrong
            place = "cpu"
        return load_judge(folder, place)
    except (KeyError, FileNotFoundError, NotADirectoryError) as error:
        raise RecipeError(f"{folder}: no folder of a judge (there is no judge.json that says what it is)") from error


@judge_errors()
def score_files(
    judge: Judge, files: Sequence[InputFile], text: str, out: str | None, shown: int, seen: Callable[[int], None]
) -> list[HeadScores]:
    """By head. `out` appears when all is scored, or not at all."""
    by_head = {head.name: HeadScores(head) for head in judge.card.heads}
    counts: dict[str, Counter[str]] = {head.name: Counter() for head in judge.card.heads if head.kind == "labels"}
    with _ScoresFile(out) as scored:
        number = 0
        for file, row, table in texts_in(files, text, NAMES, "--text"):
            texts = table[text]
            outputs = judge.outputs(texts)
            scores = scores_of(judge.card, outputs)
            likeliest = {
                name: pa.array(by_head[name].head.labels, pa.string()).take(pa.array(outputs[name].argmax(axis=1)))
                for name in counts
            }
            for name, of_head in by_head.items():
                of_head.scores.append(scores[name])
                counts.get(name, Counter()).update(likeliest[name].to_pylist() if name in likeliest else ())
                _note(of_head, scores[name], file, row, table, text, shown)
            scored.write(_row_table(file, row, table, scores, likeliest))
            number += len(table)
            seen(number)
    if not number:
        raise RecipeError("no texts: the files hold none")
    for name, of_head in by_head.items():
        of_head.labels = dict(counts[name].most_common()) if name in counts else {}
    return list(by_head.values())


def as_json(found: Sequence[HeadScores], unexplained: str) -> JSONObject:
    heads: JSONObject = {of_head.head.name: of_head.as_json() for of_head in found}
    return {"heads": heads} | ({"unexplained": unexplained} if unexplained else {})


@judge_errors()
def score_text(judge: Judge, text: str) -> list[HeadScores]:
    """Of one text, by head."""
    outputs = judge.outputs(pa.array([text], pa.large_string()))
    scores, found = scores_of(judge.card, outputs), []
    for head in judge.card.heads:
        chances = zip(head.labels, outputs[head.name][0].tolist(), strict=True) if head.kind == "labels" else ()
        labels = dict(sorted(chances, key=lambda pair: (-pair[1], pair[0])))
        shown = ScoredText(float(scores[head.name][0]), "standard input", text)
        found.append(HeadScores(head, [scores[head.name]], [shown], labels=labels))
    return found


@judge_errors()
def explain(judge: Judge, found: Sequence[HeadScores]) -> str:
    """Add the words that moved scores to the texts that are shown; why not, of a judge that cannot."""
    try:
        for of_head in found:
            for shown in (of_head.best, of_head.worst):
                shown[:] = [replace(each, words=judge.explain(each.text, of_head.head.name, WORDS)) for each in shown]
    except NotExplained as error:
        return str(error)
    return ""


def _note(
    of_head: HeadScores, scores: Scores, file: InputFile, row: int, table: pa.Table, text: str, most: int
) -> None:
    """Keep the best and the worst so far; of equal scores the earlier text. Only rows that can be among them are looked
    at."""
    for name, sign in (("best", -1), ("worst", 1)):
        first = np.argsort(sign * scores, kind="stable")[:most].tolist()
        shown = [*getattr(of_head, name), *(_example(float(scores[at]), file, row, at, table, text) for at in first)]
        setattr(of_head, name, sorted(shown, key=lambda each: sign * each.score)[:most])


def _example(score: float, file: InputFile, row: int, at: int, table: pa.Table, text: str) -> ScoredText:
    url = table["url"][at].as_py() if "url" in table.column_names else None
    is_whole_file = len(table) == 1 and not row
    where = str(url) if url else file.path if is_whole_file else f"{file.path}, row {row + at:,}"
    return ScoredText(score, where, (table[text][at].as_py() or "")[:KEPT_TEXT])


def _row_table(
    file: InputFile, row: int, table: pa.Table, scores: dict[str, Scores], likeliest: dict[str, pa.Array]
) -> pa.Table:
    """Of labels without an order the likeliest, and its probability as NAME_chance, as the stage `label` has them."""
    rows = np.arange(row, row + len(table), dtype=np.int64)
    columns: dict[str, pa.Array | npt.NDArray[np.int64]] = {
        "file": pa.array([file.path]).take(pa.array(np.zeros(len(rows), np.int64))),
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
