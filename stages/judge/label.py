"""Labels without an order (topics, formats) as signals, by a judge that learned them, and a rule on labels.

What a judge did not learn it does not name: a text too short, or in a language that its training texts had no share of,
is `unknown`, and so is one of which no label is likely enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array, Mask
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.words.tokens import shingle_column
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.judge.figures import score_figures
from gristmill.stages.judge.judge import (
    ASKS_NO_JUDGE,
    SHOWN_OF_CARD,
    card_at,
    kind_of,
    label_heads_of,
    loaded,
    takes_a_gpu,
    unreached_by,
)
from gristmill.stages.rules.language import plain_language
from gristmill.stages.stage import Annotate, CannotRun, Rule, Signals, Verdict
from gristmill.stages.text.language import Language

UNKNOWN = "unknown"
LEARNED = 0.01  # of a judge's training texts: a language with a smaller share was not learned

FewestWords = Annotated[
    int,
    Field(description="a text of fewer words is `unknown`; letters of scripts without spaces count one by one", ge=0),
]


class Label(Annotate):
    """Label texts with a judge of unordered labels that `gristmill judge train` saved: its head's name is a string
    signal, and the name with `_chance` the probability.

    `unknown` are texts whose likeliest label is not likely enough, and, without a chance (null), those that are too
    short or in a language that the judge did not learn. The language is the signal `language`, or found out here.
    """

    judge_path: Annotated[RecipePath, Field(description="the judge's folder; what it holds counts, not where it lies")]
    least_chance: Annotated[
        float, Field(description="a text whose likeliest label is less likely is `unknown`", ge=0, le=1)
    ] = 0.3
    fewest_words: FewestWords = 20
    any_language: Annotated[bool, Field(description="label texts in languages that the judge did not learn too")] = (
        False
    )
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(description="of a neural judge; auto: a GPU if there is one", json_schema_extra={"placement": True}),
    ] = "auto"

    needs: ClassVar[tuple[str, ...]] = ("text", "language")  # of these, language may be missing
    costly: ClassVar[bool] = True

    @model_validator(mode="after")
    def _is_a_judge_of_labels(self) -> Self:
        try:
            heads = label_heads_of(self.judge_path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"judge_path: {self.judge_path} is no folder of a judge ({error})") from error
        if not heads:
            raise ValueError(f"judge_path: {self.judge_path} gives scores, no labels; use the stage `judge`")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(name for head in label_heads_of(self.judge_path) for name in (head, f"{head}_chance"))

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return self.added

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        return StageFigures("Labels", score_figures(report)) if "scores" in report else None

    def model_card(self) -> dict[str, Any] | None:
        """What the judge says of itself."""
        try:
            card = card_at(self.judge_path)
        except (OSError, ValueError):  # gone, or changed since: the labels stay what they are
            return None
        return {name: value for name, value in card.as_json().items() if name in SHOWN_OF_CARD}

    @property
    def gpu(self) -> bool:
        return self.device != "cpu" and takes_a_gpu(self.judge_path)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return unreached_by(kind_of(self.judge_path))

    def prepare(self) -> None:
        if not takes_a_gpu(self.judge_path):  # torch leaves threads behind
            loaded(self.judge_path, "cpu")

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        try:
            judge = loaded(self.judge_path, on_device(self.device))
        except Exception as error:  # whatever keeps a judge from being loaded, no document is to be blamed
            raise CannotRun(f"the judge cannot be loaded: {error}") from error
        known = long_enough(batch, self.fewest_words)
        learned = None if self.any_language else learned_languages(judge.card.training)
        if learned is not None:
            known &= in_languages(batch, known, learned)
        rows = pa.array(np.flatnonzero(known))
        chances = judge.outputs(batch.column("text").take(rows))
        signals: dict[str, pa.Array] = {}
        for head in judge.card.heads:
            if head.kind == "labels":
                of_text = chances[head.name]
                best, chance = of_text.argmax(axis=1), of_text.max(axis=1, initial=0)
                which = np.full(len(batch), len(head.labels))
                which[known] = np.where(chance >= np.float32(self.least_chance), best, len(head.labels))
                signals[head.name] = pa.array([*head.labels, UNKNOWN], pa.string()).take(pa.array(which))
                values = np.zeros(len(batch), np.float32)
                values[known] = chance
                signals[f"{head.name}_chance"] = pa.array(values, mask=~known)
        return signals


class KeepLabels(Rule):
    """Keep documents by a label, such as a topic: those with some labels, or all but those.

    A document without the signal (null) goes where labels are kept, and stays where labels are dropped.
    """

    signal: Annotated[str, Field(description="its name")]
    keep: Annotated[list[str], Field(description="labels that stay; all others go")] = []  # noqa: RUF012
    drop: Annotated[list[str], Field(description="labels that go; all others stay")] = []  # noqa: RUF012

    expect_drops: ClassVar[float] = 0.95

    @model_validator(mode="after")
    def _names_labels(self) -> Self:
        if bool(self.keep) == bool(self.drop):
            raise ValueError("give one of `keep` and `drop`, with labels")
        return self

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.signal,)

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return ASKS_NO_JUDGE

    def verdict(self, signals: Signals) -> Verdict:
        column = signals.column(self.signal)
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            raise CannotRun(f"{self.signal} holds numbers ({kind}), no labels; keep_where is for numbers")
        labels = column.cast(pa.string())
        named = pc.is_in(labels, value_set=pa.array(self.keep or self.drop, pa.string()))
        gone = named.to_numpy(zero_copy_only=False) ^ bool(self.keep)
        missing = labels.is_null().to_numpy(zero_copy_only=False) & gone
        return (
            Verdict.keep(len(signals))
            .drop(missing, f"no_{self.signal}")
            .drop(gone & ~missing, f"{'other' if self.keep else 'dropped'}_{self.signal}", labels.to_pylist())
        )


def learned_languages(training: Mapping[str, Any]) -> frozenset[str] | None:
    """Languages that a judge's training texts had a share of, as ISO codes; None where its card does not say."""
    counts = training.get("languages")
    if not isinstance(counts, dict):
        return None
    numbers = {str(name): count for name, count in counts.items() if isinstance(count, int) and count > 0}
    whole = sum(numbers.values())
    return frozenset(plain_language(name) for name, count in numbers.items() if count >= LEARNED * whole)


def long_enough(batch: pa.RecordBatch, fewest: int) -> Mask:
    _, first = shingle_column(text_column(batch.column("text")), 1)
    return np.asarray(np.diff(first) >= fewest)


def in_languages(batch: pa.RecordBatch, rows: Mask, languages: frozenset[str]) -> Mask:
    """The rows whose language is among some; where no stage before has found it out, of the given rows alone."""
    there = np.zeros(len(batch), np.bool_)
    if "language" in batch.schema.names:
        where, column = np.ones(len(batch), np.bool_), batch.column("language").cast(pa.string())
    else:
        where = rows
        texts = batch.column("text").take(pa.array(np.flatnonzero(rows)))
        column = Language().annotate(pa.RecordBatch.from_arrays([texts], ["text"]))["language"].cast(pa.string())
    coded = pc.dictionary_encode(column)
    names = coded.dictionary.to_pylist()
    right: Array = np.array([*(plain_language(name or UNKNOWN) in languages for name in names), False])
    there[where] = right[pc.fill_null(coded.indices, len(names)).to_numpy(zero_copy_only=False)]
    return there
