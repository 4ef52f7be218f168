"""Two runs that end with a mix, side by side: a rule's losses are told apart from the draw's; and how the page looks in
a browser and on paper."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_compare import hostile, texts
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.compare import join
from gristmill.pipeline.compare.compare import compare, plain
from gristmill.pipeline.compare.sections import funnel, page_of
from gristmill.pipeline.formatting import as_bytes, as_tokens
from gristmill.pipeline.look.run_folder import RunFolder
from tests.pipeline.explore.chromium_pages import WIDTHS, opened
from tests.pipeline.runs import go, save

MIXED = """
name: m
sources:
  crawl: {jsonl: {path: crawl.jsonl}}
  books: {jsonl: {path: books.jsonl}, stages: [repair]}
stages:
  - gopher_quality: {min_words: 20, min_stop_words: 0}
  - exact_dedup
  - write
  - tokenize: {vocab_size: 300}
  - mix: {method: {temperature: {temperature: 2}}, budget: 5000, max_epochs: 4}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    texts(folder)
    outs = (folder / "a", folder / "b")
    for recipe, out in zip((MIXED, MIXED.replace("min_words: 20", "min_words: 40")), outs, strict=True):
        go(save(folder / f"{out.name}.yaml", recipe), out)
    return outs


def test_before_a_mix_a_document_is_on_the_side_on_which_it_came_to_it(mixed: tuple[Path, Path]) -> None:
    fates = [rejected_of(out) for out in mixed]
    found = compare(*map(RunFolder, mixed))
    assert found.documents is not None and found.unlike == [] and found.documents.before_mix
    before = found.documents.sides[-1]
    dropped = [{uid for uid, (stage, _) in its.items() if stage != "mix"} for its in fates]
    assert all(any(stage == "mix" for stage, _ in its.values()) for its in fates)
    both = read_of(mixed[0]) - dropped[0] - dropped[1]
    assert (before.only_a, before.only_b) == (
        len(dropped[1] - dropped[0]),
        len(dropped[0] - dropped[1]),
    ) and before.only_a > 20
    assert before.both_kept == len(both) and found.runs[0].overview.totals.kept < before.both_kept + before.only_a
    way = found.documents.ways[0]
    assert (way.a, way.b, way.documents, way.dropped_by) == (
        "reached the mix",
        "gopher_quality: too_few_words",
        before.only_a,
        "B",
    )
    assert way.examples and all(fates[1][int(one.uid, 16)][1] == "too_few_words" and one.text for one in way.examples)
    smallest = sorted(uid for uid in dropped[1] - dropped[0] if fates[1][uid][1] == "too_few_words")
    assert [int(one.uid, 16) for one in way.examples] == smallest[: join.SAMPLES]
    html = page_of(found)
    assert html.index("changed sides before the mix") < html.index('id="funnel"')
    said = CliRunner().invoke(app, ["report", *map(str, mixed)], env={"COLUMNS": "200"}).output
    assert f"{before.changed} documents changed sides before the mix" in said


def rejected_of(out: Path) -> dict[int, tuple[str, str]]:
    rows = [
        row
        for path in out.glob("stages/*/rejects/*.parquet")
        for row in pq.read_table(path).to_pylist()
        if row["uid"] is not None
    ]
    return {row["uid"]: (row["stage"], row["reason"]) for row in rows}


def read_of(out: Path) -> set[int]:
    return {
        uid
        for path in out.glob("partitions/*/*.documents.parquet")
        for uid in pq.read_table(path, columns=["uid"])["uid"].to_pylist()
    }


def test_the_funnel_has_text_and_tokens(mixed: tuple[Path, Path]) -> None:
    """Of all sources together, as each run's own overview has them."""
    found = compare(*map(RunFolder, mixed))
    text, tokens, _ = ({row[0]: row[1:] for row in table.rows} for table in funnel(found).folded)
    assert "~" in funnel(found).folded[1].note
    for side, seen in enumerate(run.overview for run in found.runs):
        assert text["mix"][side] == as_bytes(seen.totals.text_bytes)
        assert tokens["mix"][side] == as_tokens(seen.totals.tokens, True) != "–"
        levels = [level for level in seen.funnel.levels if level.stage == "gopher_quality"]
        assert len(levels) == 2
        assert text["gopher_quality"][side] == as_bytes(sum(level.text_bytes or 0 for level in levels))
        assert tokens["gopher_quality"][side].startswith("~")
        until = [level.stage for level in seen.funnel.levels].index("repair")  # which books alone pass
        crawl = [level for level in seen.funnel.levels[:until] if level.source == "crawl"][-1]
        assert text["repair"][side] == as_bytes((crawl.text_bytes or 0) + (seen.funnel.levels[until].text_bytes or 0))
    b = plain(found)["b"]
    drawn = sum(level["tokens"] for level in b["funnel"] if level["stage"] == "mix")
    assert drawn == b["totals"]["tokens"] == found.runs[1].overview.totals.tokens


@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_it_without_a_word(tmp_path: Path, mixed: tuple[Path, Path], width: int) -> None:
    for name, found_runs in (("hostile", hostile(tmp_path)), ("mixed", mixed)):
        page = tmp_path / f"{name}.html"
        page.write_text(page_of(compare(*map(RunFolder, found_runs))), encoding="utf-8")
        with opened(page, width) as found:
            assert found.said == [] and found.dialogs == [] and found.asked == [page.as_uri()] and found.overflow() <= 0
            assert found.page.locator("script").count() == 0 and found.page.locator("h2").count() >= 5
        with opened(page, width, "dark", strict=False) as found:
            assert found.serious_faults() == []


def test_a_phone_shows_every_number_without_scrolling(tmp_path: Path, mixed: tuple[Path, Path]) -> None:
    page = tmp_path / "compare.html"
    page.write_text(page_of(compare(*map(RunFolder, mixed))), encoding="utf-8")
    with opened(page, 390) as found:
        found.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        assert found.page.evaluate(BEYOND) == [] and found.page.locator(".stacked td.n").count() > 100


BEYOND = """[...document.querySelectorAll('.scroll')].filter(its => its.scrollWidth > its.clientWidth).map(its => its.getAttribute('aria-label'))"""
