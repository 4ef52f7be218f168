"""Two views of a page from one parse: a document each, that know of each other, and one that stays after the filters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.stage_view import stage_view
from gristmill.stages import Extract, OneView
from gristmill.stages.extract.choices import other_uids
from gristmill.stages.extract.engines import extract
from gristmill.stages.stage import CannotRun, ContractBroken
from tests.pipeline.runs import go, lines, save, written
from tests.stages.extract.test_comments import REMARK, SENTENCE

BOTH = ["full", "precise"]


def page(beside: int) -> bytes:
    """A text, and beside it so many paragraphs that may be text too."""
    text = "".join(f"<p>{number}. {SENTENCE * 2}</p>" for number in range(6))
    more = "".join(f"<p>{number}. {REMARK}</p>" for number in range(beside))
    return (
        "<html><head><title>The mill</title></head><body><nav><a href=/>Home</a></nav>"
        f'<article><h1>The mill</h1>{text}</article><div class="footer">{more}</div></body></html>'
    ).encode()


def pages(count: int) -> pa.Table:
    html = [None if n % 7 == 3 else page(6 if n % 2 else 0) for n in range(count)]
    text = ["a text without a page" if each is None else None for each in html]
    return pa.table(
        {
            "uid": pa.array(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)),
            "html": pa.array(html, pa.binary()),
            "text": pa.array(text, pa.string()),
            **{name: pa.nulls(count, pa.string()) for name in ("charset", "url", "meta")},
        }
    )


def test_the_full_view_has_all_of_the_precise_one_and_more() -> None:
    both = extract(page(6), views=BOTH)
    assert both.text == extract(page(6)).text and both.precise == extract(page(6), views=["precise"]).text
    assert both == extract(page(6), views=BOTH[::-1])
    assert both.precise is not None and len(both.text) > 1.1 * len(both.precise)
    assert set(both.precise.split("\n")) < set(both.text.split("\n"))
    assert "grandfather" in both.text and "grandfather" not in both.precise
    assert extract(page(0), views=BOTH).precise is None  # all of it is sure


def test_a_page_becomes_two_documents_that_stand_together_whatever_the_batches() -> None:
    table, stage = pages(20), Extract(views=BOTH)
    whole = stage(table)
    views = whole["view"].to_pylist()
    assert views.count("precise") == 8 and views.count("full") == 17 and views.count(None) == 3
    uids = whole["uid"].to_numpy()
    precise = np.flatnonzero(np.array(views) == "precise")
    assert len(set(uids.tolist())) == 28 and (other_uids(uids[precise]) == uids[precise - 1]).all()
    for rows in (1, 3, 20):
        parts = [stage(table.slice(begin, rows)) for begin in range(0, 20, rows)]
        assert pa.concat_tables(parts).combine_chunks() == whole.combine_chunks()
    assert Extract()(table)["text"].to_pylist() == [
        row["text"] for row in whole.to_pylist() if row["view"] != "precise"
    ]  # the other view changes nothing


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "plain", "views": BOTH}, "the engine plain has one"),
        ({"views": ["full", "full"]}, "named once"),
        ({"views": []}, "at least 1 item"),
    ],
)
def test_views_that_cannot_be_had(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Extract(**settings)
    if "engine" in settings:
        with pytest.raises(ValueError, match=words):
            extract(page(1), **settings)


def test_documents_without_uids_have_no_views() -> None:
    with pytest.raises(CannotRun, match="have no `uid`"):
        Extract(views=BOTH)(pages(3).drop_columns(["uid"]))


def test_one_view_stays_by_preference() -> None:
    uids = np.array([7, 8, 9], np.uint64)
    table = pa.table(
        {
            "uid": pa.array(np.concatenate([uids, other_uids(uids[:2]), np.array([1], np.uint64)])),
            "text": ["f7", "f8", "f9", "p7", "p8", "no page"],
            "view": ["full"] * 3 + ["precise"] * 2 + [None],
        }
    )
    for stage, kept in (
        (OneView(), ["f7", "f8", "f9", "no page"]),
        (OneView(prefer=["precise", "full"]), ["f9", "no page", "p7", "p8"]),
    ):
        done = stage(table)
        assert sorted(done["text"].to_pylist()) == kept
        left = dict(zip(done["text"].to_pylist(), done["views_left"].to_pylist(), strict=True))
        assert [left[text] for text in kept] == [None if text in ("f9", "no page") else 2 for text in kept]


def crawl(folder: Path) -> None:
    rows = [{"html": page(6 if n % 2 else 0).decode(), "text": None, "id": str(n)} for n in range(10)]
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


RECIPE = """\
name: r
sources:
  a: {{jsonl: {{path: in, html: html}}}}
stages:
  - extract: {{views: [precise, full]}}
  - text_signals
  - keep_where: {{{rule}}}
  - one_view
  - write
"""


@pytest.mark.parametrize(
    ("rule", "with_more", "dropped"),
    [
        ("signal: words, at_least: 10", 5, 5),
        ("signal: words, at_most: 260", 0, 0),
    ],
)
def test_a_run_counts_what_was_made_and_keeps_the_view_that_passes(
    tmp_path: Path, rule: str, with_more: int, dropped: int
) -> None:
    crawl(tmp_path / "in")
    summary, _ = go(save(tmp_path / "r.yaml", RECIPE.format(rule=rule)), tmp_path / "out")
    stages = {stage["name"]: stage for stage in summary.record.to_json()["stages"]}
    counts = stages["extract"]
    assert (counts["docs_in"], counts["made"], counts["kept"]) == (10, 5, 15)
    assert stage_view(RunFolder(tmp_path / "out"), "extract").stage.count.made == 5
    assert stages["one_view"]["dropped"] == ({"other_view": dropped} if dropped else {})
    texts = [text for _, text in written(tmp_path / "out")]
    assert len(texts) == stages["write"]["kept"] == 10
    assert sum("grandfather" in text for text in texts) == with_more


def test_one_view_without_views_is_told_before_any_work(tmp_path: Path) -> None:
    crawl(tmp_path / "in")
    recipe = save(
        tmp_path / "r.yaml", RECIPE.format(rule="signal: words, at_least: 10").replace(": {views: [precise, full]}", "")
    )
    with pytest.raises(RecipeError, match="one_view needs the signal view"):
        go(recipe, tmp_path / "out")


MAKES = """
import pyarrow as pa
from gristmill.stages.stage import Applied, Made, Rewrite, Verdict


class Doubles(Rewrite):
    def rewrite(self, batch):
        rows = list(range(len(batch)))
        return Applied(batch, Verdict.keep(len(batch)), made=Made(batch, rows))
"""


def test_documents_that_a_stage_makes_are_new(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one text", "another"])
    save(tmp_path / "s.py", MAKES)
    recipe = save(
        tmp_path / "r.yaml", "name: r\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - s.py:Doubles\n  - write\n"
    )
    with pytest.raises((RunFailed, ContractBroken), match="a new document has a `uid` of its own"):
        go(recipe, tmp_path / "out")


def test_two_views_of_which_nobody_chooses_one_are_an_error(tmp_path: Path) -> None:
    crawl(tmp_path / "in")
    recipe = RECIPE.format(rule="signal: words, at_least: 10").replace("  - one_view\n", "")
    with pytest.raises(RecipeError, match=r"two views of a page would both stay; put `one_view` after the filters"):
        go(save(tmp_path / "r.yaml", recipe), tmp_path / "out")
