"""Benchmarks in the training data: how much of which item a document holds, the rule that drops it, and the cut that
removes the place.

GPT-3 (Brown et al. 2020, appendix C) cut every run of 13 words that a benchmark has; DataTrove drops the document for
one run of 12; Tulu 3 (Lambert et al. 2024) and Llama 3 (2024) ask which share of an item is there. All three are
settings here. What others do and where this differs: docs/decontamination.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import TextColumn, text_array, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.duplicates.cuts import Spans, cut, widened
from gristmill.kernels.duplicates.ngrams import (
    NgramScratch,
    Overlaps,
    hits_of,
    index_of,
    overlaps_of,
    scratch_for,
    spans_of,
)
from gristmill.kernels.words.tokens import Tokens, token_column
from gristmill.stages.dedup.benchmark_index import BenchmarkAccount, BenchmarkIndex, WantedIndex, benchmark_index
from gristmill.stages.dedup.benchmarks import Benchmark, files_of
from gristmill.stages.stage import Annotate, Applied, Map, Rewrite, Rule, Signals, Verdict, with_columns
from gristmill.stages.text.signals import slices

Share = Annotated[float, Field(gt=0, le=1)] | Literal["any"]


class WithBenchmarks(Map):
    """What seeks benchmark texts: which, and by which n-grams. Words are compared without case and punctuation."""

    benchmarks_path: Annotated[
        RecipePath, Field(description="the folder that benchmarks lie in; all in it counts for the fingerprint")
    ]
    benchmarks: Annotated[
        tuple[Benchmark, ...],
        Field(description="each `{name: gsm8k, path: gsm8k/test-*.parquet, fields: [question]}`", min_length=1),
    ]
    ngram: Annotated[
        int, Field(description="words of a run; GPT-3 has 13, DataTrove 12, Llama 3 and Tulu 3 8", ge=1, le=64)
    ] = 13
    shortest: Annotated[
        int, Field(description="a text of fewer words is not sought; up to `ngram` it is sought as a whole", ge=1)
    ] = 8
    most_texts: Annotated[
        int,
        Field(
            description="an n-gram that more texts of the benchmarks share is template, and not sought", ge=1, le=10_000
        ),
    ] = 50
    common_phrases_file: Annotated[
        RecipePath | None,
        Field(
            description="texts, one a line, whose n-grams are no sign of a benchmark: proverbs, licenses, quotations"
        ),
    ] = None

    needs: ClassVar[tuple[str, ...]] = ("text",)

    @model_validator(mode="after")
    def _files_are_there(self) -> WithBenchmarks:
        if not Path(self.benchmarks_path).is_dir():
            raise ValueError(f"benchmarks_path: there is no folder {self.benchmarks_path}")
        if self.common_phrases_file and not Path(self.common_phrases_file).is_file():
            raise ValueError(f"common_phrases_file: there is no file {self.common_phrases_file}")
        names = [benchmark.name for benchmark in self.benchmarks]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"benchmarks: two are called {name}")
        for benchmark in self.benchmarks:
            files_of(Path(self.benchmarks_path), benchmark)
        return self

    def sought(self) -> BenchmarkIndex:
        wanted = (
            self.benchmarks_path,
            self.benchmarks,
            self.ngram,
            self.shortest,
            self.most_texts,
            self.common_phrases_file,
        )
        return benchmark_index(WantedIndex(*wanted))

    def account(self) -> tuple[BenchmarkAccount, ...]:
        """How many texts of each benchmark are sought, and why others are not."""
        return self.sought().accounts

    def prepare(self) -> None:
        """Build the index, and compile what a match needs."""
        self.sought()
        column = text_column(pa.array(["one two three"]))
        tokens = token_column(column)
        index = index_of(tokens, np.zeros(1, np.bool_), 2, 1, 1, tokens._replace(first=np.zeros(1, np.int64)))
        hits, scratch = hits_of(tokens, index), scratch_for(index)
        overlaps_of(tokens, column.offsets, hits, index, scratch, 0)
        cut(column, widened(column, tokens, spans_of(tokens, hits, index, 0.0, scratch, 1), 0), 0)


class BenchmarkOverlap(WithBenchmarks, Annotate):
    """Measure how much of a benchmark stands in each document.

    `contamination` is the largest share of a text's distinct n-grams that the document has, `contaminated_by` that text
    (benchmark/item/field; of equal shares that of more n-grams, then the first), `contaminated_ngrams` how many they
    are; the longest stretch they cover goes from byte `contamination_start` to `contamination_end`. Without a match all
    are 0 and empty.
    """

    adds: ClassVar[tuple[str, ...]] = (
        "contamination", "contaminated_by", "contaminated_ngrams", "contamination_start", "contamination_end",
    )  # fmt: skip

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        sought = self.sought()
        best = overlaps(text_column(Signals(batch).column("text")), sought)
        values = (
            pa.array(best.share),
            sought.label_of(best.text),
            pa.array(best.runs),
            pa.array(best.start),
            pa.array(best.end),
        )
        return dict(zip(self.adds, values, strict=True))


class Decontaminate(Rule):
    """Drop documents that hold a benchmark's text: so much of one text, or `any` n-gram of it as GPT-3 and DataTrove
    have it.

    It decides on the text of which the document has the largest share.
    """

    at_least: Annotated[
        Share, Field(description="the share of a text's n-grams that drops a document, or `any`; Tulu 3 has 0.5")
    ] = 0.5
    min_ngrams: Annotated[
        int,
        Field(description="and at least so many different ones; with 2, texts shorter than `ngram` never count", ge=1),
    ] = 1

    needs: ClassVar[tuple[str, ...]] = BenchmarkOverlap.adds
    expect_drops: ClassVar[float] = 0.05

    def verdict(self, signals: Signals) -> Verdict:
        goes = (signals.contamination >= least(self.at_least)) & (signals.contaminated_ngrams >= self.min_ngrams)
        details = [""] * len(signals)
        for row in np.flatnonzero(goes).tolist():
            share, text, count, start, end = (signals.column(name)[row].as_py() for name in self.needs)
            details[row] = f"{text}: {share:.0%} ({count} n-gram{'s' * (count != 1)}), bytes {start}-{end}"
        return Verdict.keep(len(signals)).drop(goes, "contaminated", details)


class CutContamination(WithBenchmarks, Rewrite):
    """Cut benchmark texts out of documents, with 200 characters on each side (Brown et al. 2020, appendix C).

    Pieces that are left and too short go; the others stay, an empty line between them. A document in too many pieces is
    dropped, as is one of which no piece stays. `contamination_cuts` counts the stretches cut, `contamination_cut_bytes`
    what the text lost, `contamination_cut_by` names the text (benchmark/item/field) of which the document had the
    largest share.
    """

    at_least: Annotated[
        Share, Field(description="cut the n-grams of texts of which the document has such a share, or of `any`")
    ] = "any"
    margin: Annotated[
        int, Field(description="characters that go with a match on each side; no word is cut in two", ge=0, le=10_000)
    ] = 200
    shortest_piece: Annotated[int, Field(description="a piece of fewer characters goes", ge=0)] = 200
    max_pieces: Annotated[
        int, Field(description="a document that falls into more pieces, short ones too, is dropped", ge=1)
    ] = 10

    adds: ClassVar[tuple[str, ...]] = ("contamination_cuts", "contamination_cut_bytes", "contamination_cut_by")
    expect_drops: ClassVar[float] = 0.05

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        given, sought = Signals(batch).column("text"), self.sought()
        column = text_column(given)
        spans, texts = contaminated_spans(column, sought, least(self.at_least), self.margin)
        cuts = np.bincount(spans[0], minlength=len(batch))
        labels = sought.label_of(np.where(cuts > 0, texts, -1))
        verdict, lengths = Verdict.keep(len(batch)), np.diff(column.offsets)
        if len(spans[0]):
            data, offsets, pieces = cut(column, spans, self.shortest_piece)
            details = labels.to_pylist()
            verdict.drop(pieces > self.max_pieces, "too_many_pieces", details)
            verdict.drop((cuts > 0) & (np.diff(offsets) == 0), "nothing_left", details)
            if not verdict.kept.all():  # the reject shows what was in it
                stay = verdict.kept[spans[0]]
                data, offsets, _ = cut(column, (spans[0][stay], spans[1][stay], spans[2][stay]), self.shortest_piece)
            given, lengths = text_array(data, offsets, given), lengths - np.diff(offsets)
        else:
            lengths = np.zeros(len(batch), np.int64)
        signals = dict(zip(self.adds, (pa.array(cuts.astype(np.int64)), pa.array(lengths), labels), strict=True))
        return Applied(with_columns(batch, {"text": given, **signals}), verdict)


def least(share: Share) -> float:
    """One n-gram is more than no share."""
    return 0.0 if share == "any" else share


def overlaps(column: TextColumn, sought: BenchmarkIndex) -> Overlaps:
    """For each document the benchmark text it holds most of."""
    index, n = sought.runs, len(column)
    best = Overlaps(
        np.full(n, -1, np.int32), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    )
    scratch = NgramScratch(*(np.empty(0, np.int64),) * 3)
    for start, stop, piece, tokens in pieces_of(column):
        hits = hits_of(tokens, index)
        if len(hits.runs):
            scratch = scratch if len(scratch.run_seen) else scratch_for(index)
            for whole, part in zip(best, overlaps_of(tokens, piece.offsets, hits, index, scratch, start), strict=True):
                whole[start:stop] = part
    return best


def contaminated_spans(column: TextColumn, sought: BenchmarkIndex, at_least: float, margin: int) -> tuple[Spans, Array]:
    """Stretches to cut, in bytes of the column's data; and the text that each document holds most of."""
    index, texts = sought.runs, np.full(len(column), -1, np.int32)
    spans: list[Spans] = [(np.zeros(0, np.int64),) * 3]
    scratch = NgramScratch(*(np.empty(0, np.int64),) * 3)
    for start, stop, piece, tokens in pieces_of(column):
        hits = hits_of(tokens, index)
        if len(hits.runs):
            scratch = scratch if len(scratch.run_seen) else scratch_for(index)
            texts[start:stop] = overlaps_of(tokens, piece.offsets, hits, index, scratch, 2 * start).text
            documents, begins, ends = widened(
                piece, tokens, spans_of(tokens, hits, index, at_least, scratch, 2 * start + len(piece)), margin
            )
            spans.append((documents + start, begins, ends))
    documents, begins, ends = (np.concatenate(parts) for parts in zip(*spans, strict=True))
    return (documents, begins, ends), texts


def pieces_of(column: TextColumn) -> Iterator[tuple[int, int, TextColumn, Tokens]]:
    """The column in slices that stay in cache, with their tokens."""
    for start, stop in slices(column.offsets):
        piece = TextColumn(column.data, column.offsets[start : stop + 1])
        yield start, stop, piece, token_column(piece)
