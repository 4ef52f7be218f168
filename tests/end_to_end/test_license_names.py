"""A license has one name for each who states it: `license_stated` of a page, `license_source` of a source. Any other
name is refused, with the one that is meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gristmill
from gristmill.pipeline.errors import RecipeError
from gristmill.shards.card import dataset_card
from tests.pipeline.engine.here import work_here

BY = '<a rel="license" href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>'


def recipe(folder: Path, *stages: str) -> Path:
    (folder / "in").mkdir(exist_ok=True)
    rows = [
        {"html": f"<html><body><p>A mill {n} by the river.</p>{BY * (n % 2)}", "license": "odc-by"} for n in range(4)
    ]
    (folder / "in/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "r.yaml"
    lines = "".join(f"  - {stage}\n" for stage in stages)
    path.write_text(f"name: r\nsources: {{a: {{jsonl: {{path: in, html: html}}}}}}\nstages:\n{lines}")
    return path


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        (("extract", "keep_licences: {}", "write"), "no such stage 'keep_licences'; did you mean keep_licenses?"),
        (("extract", "keep_licenses: {licences: [CC0-1.0]}", "write"), "licences: no such field; did you mean licenses?"),
        (("extract", "keep_where: {signal: licence, at_least: 1}", "write"), "did you mean license_stated?"),
        (("extract", "keep_where: {signal: licence_source, at_least: 1}", "write"), "did you mean license_stated_in?"),
        (("extract", "keep_where: {signal: license, at_least: 1}", "write"), "did you mean license_source?"),
        (("extract", "from_meta: {texts: [license]}", "write"), "what a source declares is license_source"),
        (("extract", "from_meta: {texts: {licence: license}}", "write"), "the license that a page states is license_stated"),
        (("page_terms: {only: [licence]}", "extract", "write"), "there are reservations, license_stated, license_stated_in"),
        (("extract", "write: {without: [licence]}"), "no signal is called licence"),
        (("extract", "mix: {by: [licence], budget: 100}", "write"), "did you mean license_stated?"),
    ],
)  # fmt: skip
def test_an_old_name_is_refused_with_the_new_one(tmp_path: Path, stages: tuple[str, ...], says: str) -> None:
    with pytest.raises(RecipeError) as error:
        gristmill.run(recipe(tmp_path, *stages), tmp_path / "out")
    assert says in str(error.value)
    assert not [*tmp_path.glob("out/write/*")]


def test_what_pages_state_and_what_sources_declare_stand_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_here(monkeypatch)
    path = recipe(
        tmp_path, "page_terms", "extract", "from_meta: {texts: {license_source: license}}", "keep_licenses", "write"
    )
    run = gristmill.run(path, tmp_path / "out")
    assert [(row["license_stated"], row["license_source"]) for row in run.kept()] == [("CC-BY-4.0", "odc-by")] * 2
    assert {row["reason"] for row in run.dropped("keep_licenses")} == {"no_license"}
    card = dataset_card({"sources": [{"name": "a", "license_source": "odc-by", "license_stated": {"CC-BY-4.0": 2}}]})
    assert "odc-by" in card and "CC-BY-4.0 2 (100.00%)" in card
