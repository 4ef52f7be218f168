"""Judges that are scikit-learn pipelines, from text to probabilities or to a number, in the files of skops.

A skops file is data and a list of types. Only types that skops trusts by itself are loaded: scikit-learn's, numpy's and
scipy's own. A file that names any other (a class of your own, a function) is refused with the list of them, here and
wherever the folder is loaded, so a judge from elsewhere runs no code but theirs. Pickle and joblib files are not read.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from gristmill.classifiers.card import Head, JudgeCard, JudgeError
from gristmill.classifiers.judge import Judge, Scores
from gristmill.kernels.common.extras import install

FILE = "pipeline.skops"
INSTALL = install("sklearn")


@dataclass(frozen=True)
class SklearnJudge(Judge):
    """One head: of a classifier a probability, classes or labels, of a regressor its value."""

    card: JudgeCard  # type: ignore[misc]
    pipeline: Any
    content: bytes  # of its file

    needs: ClassVar[tuple[str, ...]] = (FILE,)
    packages: ClassVar[frozenset[str]] = frozenset({"sklearn", "skops"})

    def __post_init__(self) -> None:
        if len(self.card.heads) != 1:
            raise JudgeError(f"a sklearn judge has one head, not {len(self.card.heads)}")
        labels = labels_of(self.pipeline)
        if (self.head.kind == "regression") != (labels is None):
            raise JudgeError(f"head {self.head.name} is {self.head.kind}, and the pipeline {what_it_is(labels)}")
        if labels is not None and set(self.head.labels) != set(labels):
            raise JudgeError(
                f"head {self.head.name} has the labels {', '.join(self.head.labels)}, and the pipeline "
                f"{', '.join(labels[:20])}"
            )

    @property
    def head(self) -> Head:
        return self.card.heads[0]

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        rows = [text or "" for text in texts.to_pylist()]
        labels = labels_of(self.pipeline)
        shape = (len(rows),) if labels is None else (len(rows), len(labels))
        values = np.zeros(shape, np.float32)
        if rows:
            try:
                given = self.pipeline.predict(rows) if labels is None else self.pipeline.predict_proba(rows)
                values = np.asarray(given, np.float32).reshape(shape)
            except (ValueError, TypeError, AttributeError) as error:
                raise JudgeError(f"the pipeline cannot score a list of texts: {error}") from error
        if labels is None:
            return {self.head.name: values.clip(self.head.low, self.head.high)}
        in_order = values[:, [labels.index(label) for label in self.head.labels]].clip(0, 1)
        return {self.head.name: np.ascontiguousarray(in_order[:, 1]) if self.head.kind == "probability" else in_order}

    def write(self, folder: Path) -> None:
        (folder / FILE).write_bytes(self.content)

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        content = (folder / FILE).read_bytes()
        return cls(card, loaded(content, FILE), content)


def judge_of_skops(path: Path, head: Head, attribution: tuple[str, ...] = ()) -> SklearnJudge:
    """A pipeline that `skops.io.dump` wrote, as a judge."""
    content = path.read_bytes()
    pipeline = loaded(content, str(path))
    versions = {"scikit-learn": version("scikit-learn"), "skops": version("skops")}
    facts = {"steps": [type(step).__name__ for _, step in getattr(pipeline, "steps", [("", pipeline)])]}
    card = JudgeCard(
        "sklearn", (head,), facts, {"made_by": "not trained here"}, versions=versions, attribution=attribution
    )
    return SklearnJudge(card, pipeline, content)


def loaded(content: bytes, name: str) -> Any:
    """The pipeline of a file, if all its types are trusted."""
    try:
        from skops.io import get_untrusted_types, loads  # type: ignore[import-untyped]
    except ImportError as error:
        raise JudgeError(f"a sklearn judge needs scikit-learn and skops: {INSTALL}") from error
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise JudgeError(f"{name}: no file of skops; write one with skops.io.dump (pickle and joblib are never loaded)")
    try:
        strange = get_untrusted_types(data=content)
        if strange:
            raise JudgeError(
                f"{name}: refused, for it needs types that skops does not trust: {', '.join(map(str, strange))}. "
                "Build the pipeline of scikit-learn's own classes, without functions, or write a stage of your own"
            )
        return loads(content)
    except JudgeError:
        raise
    except Exception as error:  # whatever a damaged or hostile file comes to in another's reader
        raise JudgeError(f"{name}: skops cannot load it ({type(error).__name__}: {error})") from error


def labels_of(pipeline: Any) -> list[str] | None:
    """The labels of a classifier, as text; None of a regressor."""
    try:
        from sklearn.base import is_classifier, is_regressor  # type: ignore[import-untyped]
    except ImportError as error:
        raise JudgeError(f"a sklearn judge needs scikit-learn and skops: {INSTALL}") from error
    if is_regressor(pipeline):
        return None
    if not is_classifier(pipeline) or not hasattr(pipeline, "predict_proba"):
        raise JudgeError(
            f"{type(pipeline).__name__} gives no probabilities: it must end in a classifier with `predict_proba` "
            "or a regressor"
        )
    return [str(label) for label in pipeline.classes_]


def what_it_is(labels: list[str] | None) -> str:
    return "is a regressor" if labels is None else "is a classifier"
