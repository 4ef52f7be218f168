"""A run beside what its publisher reports: figures far off are found and named, figures near by are not, chance is no
alarm, and nothing is compared that is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.funnel import READ, Funnel, Volume
from gristmill.pipeline.look.published import Beside, alarms_of_published, beside_published
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.store.run_records import RunRecord
from tests.pipeline.runs import go, save


def stage(name: str, kind: str, docs_in: int, kept: int, text: int) -> dict[str, Any]:
    counts = {
        "docs_in": docs_in,
        "kept": kept,
        "dropped": {"gone": docs_in - kept},
        "quarantined": 0,
        "text_bytes": text,
    }
    return {"name": name, "stage": name, "kind": kind, **counts, "sources": {"crawl": counts}}


def found(published: dict[str, Any], *stages: dict[str, Any]) -> list[Beside]:
    record = {"recipe": {"published": {"source": "a paper", **published}}, "stages": list(stages)}
    text = {entry["name"]: entry["text_bytes"] for entry in stages}
    volumes = {
        READ if name == "crawl" else name: {"crawl": Volume(size, size // 4, True)} for name, size in text.items()
    }
    run = RunRecord.from_json(record)
    return beside_published(run, Funnel.counted(run, volumes))


def far(published: dict[str, Any], *stages: dict[str, Any]) -> list[str]:
    return [f"{each.what}, {each.measure}" for each in found(published, *stages) if each.far]


CRAWL = stage("crawl", "read", 10_000, 10_000, 40_000_000)


def rule(docs_in: int, kept: int) -> dict[str, Any]:
    return stage("rule", "rule", docs_in, kept, kept * 4000)


@pytest.mark.parametrize(
    ("theirs", "docs_in", "kept", "is_far"),
    [
        (0.50, 10_000, 4_900, False),  # 51 %
        (0.50, 10_000, 3_400, True),  # 66 %
        (0.50, 10_000, 3_600, False),  # 64 %: within 15 points
        (0.98, 10_000, 10, True),  # 99.9 % where 98 % is published: a twentieth stays
        (0.98, 10_000, 100, False),  # 99 %: half stays
        (0.00, 10_000, 8_000, True),
        (0.50, 8, 2, False),  # 75 % of eight documents is chance
        (0.98, 50, 0, False),  # none of fifty, where one was to stay
    ],
)
def test_a_share_is_far_off_by_points_or_by_what_stays_and_never_by_chance(
    theirs: float, docs_in: int, kept: int, is_far: bool
) -> None:
    assert (
        far({"steps": {"rule": {"dropped": theirs}}}, CRAWL, rule(docs_in, kept))
        == ["rule, dropped, documents"] * is_far
    )


def test_a_publisher_whose_pipeline_gives_a_thousandth_is_noticed() -> None:
    published = {"documents": 10_000_000, "input_share": 1.0, "of": "rus_Cyrl"}
    lost, kept = rule(10_000_000, 10_000), rule(10_000_000, 9_000_000)
    assert far(published, CRAWL, lost) == ["rus_Cyrl, documents, of 1 of the input"]
    assert far(published, CRAWL, kept) == []
    (alarm,) = alarms_of_published(found(published, CRAWL, lost))
    assert alarm.startswith(
        "rus_Cyrl: documents, of 1 of the input: 10,000, where its publisher reports 10,000,000 (a paper)"
    )
    assert far({**published, "input_share": 0.001}, CRAWL, rule(10_000, 9_900)) == []


def test_sizes_in_all_are_compared_only_where_the_share_of_the_input_is_told() -> None:
    seen = found({"documents": 10_000_000, "tokens": 9_000_000_000}, CRAWL, rule(10_000, 9_000))
    assert [(each.measure, each.published, each.ours, each.far) for each in seen if "input" in each.measure] == [
        ("documents, of the whole input", 10_000_000, 9_000, False),
        ("tokens, of the whole input", 9_000_000_000, 9_000_000, False),
    ]
    (length,) = [each for each in seen if each.measure == "tokens a document"]
    assert (length.published, length.ours, length.far) == (900.0, 1000.0, False)
    assert far({"documents": 1_000, "tokens": 400_000}, CRAWL, rule(10_000, 9_000)) == ["in all, tokens a document"]


def test_of_a_step_that_nobody_published_nothing_is_told() -> None:
    assert found({}, CRAWL, rule(10_000, 4_000)) == []
    assert beside_published(RunRecord(), Funnel.of(RunRecord(), {})) == []


RECIPE = """
name: told
published:
  source: "a paper, table 3"
  steps: {{{step}: {{dropped: {share}}}}}
sources: {{a: {{jsonl: {{path: a.jsonl}}}}}}
stages: [exact_dedup, write]
"""


def test_a_run_raises_the_alarm_and_shows_both_figures(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"Text {i % 100}."}) + "\n" for i in range(200)))
    recipe = save(tmp_path / "r.yaml", RECIPE.format(step="exact_dedup", share=0.9))
    summary, anew = go(recipe, tmp_path / "out")
    (alarm,) = [line for line in summary.alarms if "publisher" in line]
    assert "exact_dedup: dropped, documents: 50.0%, where its publisher reports 90.0% (a paper, table 3)" in alarm
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Beside the published pipeline" in page and page.count(">far off<") == 1 and "90.0%" in page
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "out")]).output
    assert "Published" in shown and "far off" in shown
    told = json.loads(CliRunner().invoke(app, ["inspect", str(tmp_path / "out"), "--json"]).stdout)["published"]
    assert [(row["what"], row["published"], row["ours"]) for row in told] == [("exact_dedup", 0.9, 0.5)]
    assert sum(anew.values()) > 0
    summary, anew = go(save(recipe, RECIPE.format(step="exact_dedup", share=0.45)), tmp_path / "out")
    assert not anew and not [line for line in summary.alarms if "publisher" in line]
    assert ">far off<" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("step", "share", "said"),
    [
        (
            "exact_dedupe",
            0.5,
            "published.steps.exact_dedupe: no stage is called exact_dedupe; did you mean exact_dedup?",
        ),
        ("exact_dedup", 1.5, "dropped"),
    ],
)
def test_a_figure_of_no_stage_or_no_share_is_a_mistake(tmp_path: Path, step: str, share: float, said: str) -> None:
    with pytest.raises(RecipeError, match=said.replace(".", r"\.").replace("?", r"\?")):
        recipes.load(save(tmp_path / "r.yaml", RECIPE.format(step=step, share=share)))
