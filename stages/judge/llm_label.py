"""Labels of a language model as signals, by a taxonomy: one that comes with the package, or the user's own."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from gristmill.kernels.common.paths import PathRole
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.judge.figures import score_figures
from gristmill.stages.judge.label import UNKNOWN, FewestWords, long_enough
from gristmill.stages.judge.llm_score import AsksModel, asked_figures

if TYPE_CHECKING:
    from gristmill.classifiers.rating.taxonomy import ByTaxonomy

SHIPPED = ("topic", "format")


class LlmLabel(AsksModel):
    """Have a language model say which label of a taxonomy fits each document: the taxonomy's name is a string signal,
    and the name with `_chance` the probability, which reasoned answers do not have (null).

    `unknown` are texts that are too short, of which the model says that no label fits, whose label is not likely
    enough, or of which the answer cannot be read. Answers are asked for once; too many unreadable ones stop the run.
    """

    taxonomy: Annotated[
        str,
        PathRole(words=SHIPPED),
        Field(description="`topic` or `format` (24 labels each), or a YAML file of your own (chapter Labels)"),
    ]
    signal: Annotated[
        str,
        Field(
            description="the name of the signal; the taxonomy's, where none is given", pattern=r"^([a-z][a-z0-9_]*)?$"
        ),
    ] = ""
    least_chance: Annotated[
        float, Field(description="at once: a text whose likeliest label is less likely is `unknown`", ge=0, le=1)
    ] = 0.3
    fewest_words: FewestWords = 20

    costly: ClassVar[bool] = True

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        return (*super().unreached(pdf), "gristmill.classifiers.judge")

    @model_validator(mode="after")
    def _has_a_taxonomy(self) -> Self:
        self.asking()
        return self

    @property
    def added(self) -> tuple[str, ...]:
        name = self.signal or self.asking().taxonomy.name
        return (name, f"{name}_chance")

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return self.added

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "scores" not in report:
            return None
        return StageFigures("Labels", [*score_figures(report), *asked_figures(report)])

    def asking(self) -> ByTaxonomy:
        from gristmill.classifiers.rating.taxonomy import ByTaxonomy, taxonomy_of

        return ByTaxonomy(taxonomy_of(self.taxonomy), self.reading, self.max_tokens)

    def marks(self, batch: pa.RecordBatch, noted: Counter[str]) -> dict[str, pa.Array]:
        asking = self.asking()
        rows = np.flatnonzero(long_enough(batch, self.fewest_words))
        asked = batch.take(pa.array(rows))
        answers = self.answers(asked.column("text").to_pylist(), noted)
        read = [asking.read(answer) for answer in answers]
        self.gate(asked, [each.failure for each in read], answers, noted)
        labels, chances = [UNKNOWN] * len(batch), np.full(len(batch), np.nan, np.float32)
        for row, each in zip(rows.tolist(), read, strict=True):
            chances[row] = each.chance
            if each.label is not None and not each.chance < self.least_chance:
                labels[row] = each.label
        name, chance = self.added
        return {name: pa.array(labels, pa.string()), chance: pa.array(chances, mask=np.isnan(chances))}
