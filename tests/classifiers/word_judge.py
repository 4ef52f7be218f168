"""A whole kind of judge, as one that is added: texts with one of the words that only good texts had."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.classifiers.card import Head, HeadKind, JudgeCard
from gristmill.classifiers.judge import Judge, KindSettings, Log, Scores, Train
from gristmill.classifiers.training_sets import LabelledTexts

FILE = "words.json"


class Words(KindSettings):
    """Words that only good texts have."""

    most: Annotated[int, Field(ge=1, description="words that are kept")] = 20


@dataclass(frozen=True)
class WordJudge(Judge):
    card: JudgeCard  # type: ignore[misc]
    words: frozenset[str]

    needs: ClassVar[tuple[str, ...]] = (FILE,)
    settings: ClassVar[type[KindSettings] | None] = Words
    heads_learnt: ClassVar[tuple[HeadKind, ...]] = ("probability",)
    seeded: ClassVar[bool] = False

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        shares = [len(self.words & {*(text or "").split()}) / len(self.words) for text in texts.to_pylist()]
        return {self.card.heads[0].name: np.array(shares, np.float32)}

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(sorted(self.words)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        return cls(card, frozenset(json.loads((folder / FILE).read_text(encoding="utf-8"))))

    @classmethod
    def trainer(cls, settings: Words, head: Head, seed: int, log: Log) -> Train:
        def train(labelled: LabelledTexts) -> WordJudge:
            rows = list(zip(labelled.texts.to_pylist(), labelled.labels.to_pylist(), strict=True))
            bad = {word for text, label in rows if label == head.labels[0] for word in text.split()}
            good = {word for text, label in rows if label == head.labels[1] for word in text.split()} - bad
            log(f"{len(good):,} words")
            card = JudgeCard("words", (head,), {"words": "between spaces"}, training=labelled.as_json())
            return cls(card, frozenset(sorted(good)[: settings.most]))

        return train
