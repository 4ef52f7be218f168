"""Stages and recipes on tables of other libraries: what comes in comes out, and what is missing is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow as pa
import pytest

import gristmill
from gristmill.stages import (
    ExactDedup,
    Extract,
    GopherQuality,
    MinhashDedup,
    Repair,
    SiteBoilerplate,
    TextSignals,
    UrlDedup,
)
from gristmill.stages.contract import NoSuchSignal
from gristmill.stages.stage import Annotate
from tests.stages.extract.test_views import page

pytestmark = pytest.mark.usefixtures("here")

TEXTS = ["the same text", "the same text", "another one", "a third"]


def test_rows_of_a_frame_keep_their_labels() -> None:
    frame = pandas.DataFrame({"text": TEXTS, "n": [0, 1, 2, 3]})
    kept = ExactDedup()(frame)
    assert sorted(kept["n"]) == kept["n"].tolist() and len(kept) == 3
    assert kept.index.tolist() == kept["n"].tolist()
    assert frame.loc[kept.index, "text"].tolist() == kept["text"].tolist()
    named = TextSignals()(frame.set_index(pandas.Index(["a", "b", "c", "d"], name="key")))
    assert named.index.tolist() == ["a", "b", "c", "d"] and named.index.name == "key"
    two = ExactDedup()(frame.set_index([["x", "x", "y", "y"], ["a", "b", "c", "d"]]))
    assert two.index.tolist() == [(("x", "y")[n // 2], "abcd"[n]) for n in two["n"]]
    assert [*kept.columns] == ["text", "n", "exact_cluster_size"]


def test_a_stage_sees_the_columns_of_the_frame_alone() -> None:
    seen = []

    class Look(Annotate):
        def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
            seen.extend(batch.schema.names)
            return {}

    frame = pandas.DataFrame({"text": TEXTS, "__row__": [4, 5, 6, 7]}, index=["a", "b", "c", "d"])
    assert Look()(frame[["text"]]).index.tolist() == ["a", "b", "c", "d"] and seen == ["text"]
    assert ExactDedup()(frame)["__row__"].isin([4, 5, 6, 7]).tolist() == [True] * 3


def test_pages_of_a_frame_whose_texts_are_all_missing_become_views_with_their_labels() -> None:
    frame = pandas.DataFrame(
        {
            "html": [page(6)] * 2,
            "url": "http://a.org/",
            "uid": numpy.array([7, 8], "uint64"),
            "text": None,
            "meta": None,
        }
    )
    views = Extract(views=["full", "precise"])(frame.set_index([["a", "b"]]))
    assert list(zip(views.index, views["view"], strict=True)) == [
        ("a", "full"), ("a", "precise"), ("b", "full"), ("b", "precise"),
    ]  # fmt: skip
    assert "__row__" not in views and views["text"].notna().all()


class Half(Annotate):
    """A stage of a user's own, which does not name what it needs."""

    adds = ("half",)

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        return {"half": batch.column("halves")}


@pytest.mark.parametrize("make", [pandas.DataFrame, pa.table, lambda columns: pa.table(columns).to_pylist()])
@pytest.mark.parametrize(
    ("stage", "lacks"),
    [
        (ExactDedup(), "text"), (MinhashDedup(), "text"), (UrlDedup(), "url"), (SiteBoilerplate(), "text"),
        (TextSignals(), "text"), (Repair(), "text"), (Half(), "halves"),
    ],
)  # fmt: skip
def test_a_stage_without_its_column_says_so(make: Any, stage: Any, lacks: str) -> None:
    with pytest.raises((TypeError, NoSuchSignal), match=f"^{stage.called}.*[`']{lacks}[`'].*; there are txt, n$"):
        stage(make({"txt": TEXTS, "n": [0, 1, 2, 3]}))


def test_a_null_text_that_a_stage_of_ones_own_does_not_take_is_named_in_one_line() -> None:
    class Lines(Annotate):
        adds = ("lines",)

        def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
            return {"lines": pa.array([len(text.splitlines()) for text in batch.column("text").to_pylist()])}

    frame = pandas.DataFrame({"text": ["one\ntwo", None, "three"]})
    with pytest.raises(
        ValueError, match=r"^lines: `text` is null in 1 of 3 rows .first: row 1.*never null.*drop them"
    ) as told:
        Lines()(frame)
    assert isinstance(told.value.__cause__, AttributeError) and "\n" not in str(told.value)
    assert Lines()(frame.dropna())["lines"].tolist() == [2, 1]


def test_columns_that_a_message_lists_are_those_of_the_table() -> None:
    with pytest.raises(NoSuchSignal, match=r"^gopher_quality: no signal 'words' here; there are text\. Measure"):
        GopherQuality()(pandas.DataFrame({"text": TEXTS}))


def test_a_named_index_is_a_column_of_a_recipe(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": TEXTS}, index=pandas.Index([f"https://a.org/{i}" for i in range(4)], name="url"))
    run = gristmill.Recipe(frame, ["write"], name="small").run(tmp_path / "out", workers=1)
    assert sorted(document["url"] for document in run.kept()) == frame.index.tolist()
