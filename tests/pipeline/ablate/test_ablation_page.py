"""ablation.html says what ablation.json says: verdicts first, in words; names stay text; what was not measured is not
made up."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.formatting import as_energy
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation import (
    LOSS,
    ON_THE_WAY,
    POINTS,
    beside,
    build_page,
    curve_of,
    forests,
    look,
    metrics_of,
    page_of,
    top_of,
)
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.report.charts import Curve, Curves, ForestPlot, IntervalEstimate, forest, lines
from tests.pipeline.ablate.ablation_example import write_example
from tests.pipeline.explore.chromium_pages import WIDTHS, opened
from tests.pipeline.look import outfolder
from tests.pipeline.report.test_report import Page

HOSTILE = "<script>alert('x')</script>\x1b[31m\u202e{{ 7*7 }}\"'</style>"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("example")
    return folder / "out", write_example(folder)


def test_an_ablation_ends_with_its_page_and_report_writes_it_anew(example: tuple[Path, dict[str, Any]]) -> None:
    out, _ = example
    page = (out / "ablation.html").read_text("utf-8")
    assert page == build_page(RunFolder(out))
    (out / "ablation.html").unlink()
    said = CliRunner().invoke(app, ["report", str(out)])
    assert said.exit_code == 0 and (out / "ablation.html").read_text("utf-8") == page
    assert said.output.replace("\n", "").endswith("ablation.html")


def test_verdicts_stand_first_in_words(example: tuple[Path, dict[str, Any]]) -> None:
    out, record = example
    html = build_page(RunFolder(out))
    words = re.findall(r'class="verdict ([a-z-]+)"', html)
    assert words == ["adopt", "reject", "failed"]
    assert (
        html.index('id="verdicts"')
        < html.index('id="warnings"')
        < html.index('id="failures"')
        < html.index('id="differences"')
    )
    target = record["arms"][0]["differences"][0]
    assert (
        f"−{abs(target['difference']):.4f} bits per byte" in html
        and f"−{abs(target['low']):.4f} to −{abs(target['high']):.4f}" in html
    )
    text = Page(html).text
    assert (
        "out of GPU memory" in text
        and "torn, seeds 0, 1, 2, 3, 4" in text
        and text.count("above 4 repeats are worth less than new data") == 7
    )
    assert as_energy(record["cost"]["joules"]) in text


def test_two_seeds_and_no_meter(tmp_path: Path) -> None:
    record = write_example(tmp_path, seeds=2, joules=False)
    html = build_page(RunFolder(tmp_path / "out"))
    seeds = next(
        arm["verdict"]["seeds_needed"]
        for arm in record["arms"]
        if arm["verdict"] and arm["verdict"]["word"] == "inconclusive"
    )
    assert f"{seeds:,} seeds would settle it" in html and "(now 2)" in html
    assert "kWh" not in html and html.count("not measured") >= 5


def test_one_seed_says_that_nothing_can_be_said(example: tuple[Path, dict[str, Any]]) -> None:
    _, record = example
    one: dict[str, Any] = copy.deepcopy(record) | {"status": "failed", "measures": [], "seeds": [0]}
    for arm in one["arms"]:
        arm |= {
            "status": "failed",
            "error": "only one seed was finished by it and the control",
            "verdict": None,
            "guard": None,
        }
        arm |= {"differences": [], "seeds": [], "p": None, "p_holm": None}
    one["jobs"] = [job for job in one["jobs"] if job["seed"] == 0]
    html = page_of(one, {})
    assert (
        html.count('class="verdict failed"') == 3
        and "Differences to the control" not in html
        and "only one seed" in html
    )


def reported(
    name: str, difference: float, half: float, better: str = "lower", domain: str | None = None
) -> dict[str, Any]:
    return {
        "set": name, "role": "reported", "domain": domain, "task": name, "difference": difference, "low": difference - half, "high": difference + half,
        "relative": {"difference": difference / 2, "low": None, "high": None}, "better": better, "unit": "bits per byte", "p": 0.5, "by_seed": {},
        "seeds_error": 0.01, "items_error": 0.01, "detectable": 0.02,
    }  # fmt: skip


def test_a_loss_beside_a_verdict_is_named_in_its_box(example: tuple[Path, dict[str, Any]]) -> None:
    """Of reported sets whose interval holds no zero, losses first; the word of the verdict stays."""
    _, record = example
    told = copy.deepcopy(record)
    sets = [
        reported("gain", -0.1, 0.02),
        reported("loss", 0.161, 0.03),
        reported("unsure", 0.161, 0.2),
        reported("score", -0.3, 0.1, "higher"),
    ]
    told["arms"][0]["differences"] += [*sets, reported("part", 0.9, 0.1, domain="a part")]
    assert [what.partition(",")[0] for _, what in beside(told["arms"][0])] == [
        "worse on loss",
        "worse on score",
        "better on gain",
    ]
    box = page_of(told, {}).split("<article")[1].split("</article>")[0]
    assert (
        'class="verdict adopt"' in box
        and "▼ beside it: worse on loss, +0.1610 bits per byte (+8.05%)" in Page(box).text
    )
    assert (
        "better on gain, −0.1000" in box
        and "unsure" not in box
        and "part" not in box
        and 'class="beside-it"' not in page_of(record, {})
    )


def test_the_head_counts_verdicts_in_a_sentence(example: tuple[Path, dict[str, Any]]) -> None:
    _, record = example
    assert "1 arm to adopt, 1 to reject, 1 failed" in page_of(record, {})


def test_without_losses_there_is_no_drawing(example: tuple[Path, dict[str, Any]]) -> None:
    page = page_of(example[1], {})
    assert 'href="#curves"' in page and "No run left losses." in page and "<polyline" not in page


def test_paper_shows_what_is_folded_and_a_phone_all_columns(
    example: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    page = tmp_path / "ablation.html"
    page.write_text(build_page(RunFolder(example[0])), encoding="utf-8")
    with opened(page, 390) as found:
        folded = found.page.locator("details:not([open]) table").first
        assert not folded.is_visible()
        found.page.evaluate("for (const fold of document.querySelectorAll('.fold')) fold.open = true")
        wide = (
            "[...document.querySelectorAll('.stacked .scroll')].filter(its => its.scrollWidth > its.clientWidth).length"
        )
        assert found.page.evaluate(wide) == 0 and found.page.locator(".stacked td.n").count() > 50
        found.page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = false")
        found.page.emulate_media(media="print")
        assert folded.bounding_box()["height"] > 50


def test_a_base_that_failed_and_arms_that_were_not_run(example: tuple[Path, dict[str, Any]]) -> None:
    _, record = example
    empty: dict[str, Any] = copy.deepcopy(record) | {"status": "failed", "measures": [], "warnings": []}
    for job in empty["jobs"]:
        job |= dict.fromkeys(job.keys() - {"arm", "seed", "folder", "metrics"}) | {"status": "not run"}
    empty["base"] |= {"status": "failed", "error": "the loss is no number"}
    for arm in empty["arms"]:
        arm |= {
            "status": "not run",
            "error": None,
            "verdict": None,
            "guard": None,
            "differences": [],
            "seeds": [],
            "epochs": None,
        }
    empty["cost"] |= {"jobs": 0, "tokens": 0, "seconds": 0, "joules": None}
    text = Page(page_of(empty, {})).text
    assert "the loss is no number" in text and "3 not run" in text and "0 of 21" in text


def test_hostile_names_stay_text(example: tuple[Path, dict[str, Any]]) -> None:
    out, record = example
    told = json.loads(
        json.dumps(record).replace('"clean"', json.dumps(HOSTILE)).replace('"prose"', json.dumps(HOSTILE + "p"))
    )
    told |= {"name": HOSTILE, "description": HOSTILE}
    told["arms"][2]["error"] = told["warnings"][0] = HOSTILE
    html = page_of(
        told, {str(job["folder"]): metrics_of(RunFolder(str(out)), str(job["metrics"])) for job in told["jobs"]}
    )
    page = Page(html)
    assert (
        page.open == []
        and not page.all("script")
        and html.lower().count("<script") == 0
        and html.count("</style>") == 1
    )
    assert html.count("&lt;script&gt;alert") > 20 and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "src"]


def test_metrics_outside_the_folder_are_not_read(example: tuple[Path, dict[str, Any]]) -> None:
    out, _ = example
    folder = RunFolder(str(out))
    (out.parent / "outside.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    assert (
        metrics_of(folder, "../outside.jsonl")[LOSS] == {}
        and metrics_of(folder, str(out.parent / "outside.jsonl"))[LOSS] == {}
    )
    assert metrics_of(folder, "jobs/clean/seed-0/none.jsonl")[LOSS] == {}
    assert len(metrics_of(folder, "jobs/clean/seed-0/metrics.jsonl")[LOSS]) == 78


def test_lines_that_are_no_metrics_are_left_out(tmp_path: Path) -> None:
    rows = ['{"step": 1, "loss": 2.0}', "[1]", '{"step": true, "loss": 9}', '{"step": 2, "loss": null}']
    rows += ['{"step": 3, "loss": 1.5}', f'{{"step": 3, "{ON_THE_WAY}": 1.25}}', '{"step": 4, "lo']
    (tmp_path / "m.jsonl").write_bytes("\n".join(rows).encode() + b"\xff")
    found = metrics_of(RunFolder(str(tmp_path)), "m.jsonl")
    assert found == {LOSS: {1: 2.0, 3: 1.5}, ON_THE_WAY: {3: 1.25}}


RUNS = st.lists(st.dictionaries(st.integers(1, 5000), st.floats(-1e6, 1e6), max_size=700), min_size=1, max_size=4)


@given(RUNS)
def test_a_curve_is_thin_and_holds_all_seeds(runs: list[dict[int, float]]) -> None:
    curve = curve_of("arm", runs)
    if not any(runs):
        assert curve is None
        return
    assert curve is not None and 1 <= len(curve) <= POINTS and list(curve.at) == sorted(set(curve.at))
    steps = sorted({step for run in runs for step in run})
    assert curve.at[0] == steps[0] and set(curve.at) <= set(steps)
    assert all(
        low <= mean * (1 + 1e-9) + 1e-3 and mean <= high + abs(high) * 1e-9 + 1e-3
        for low, mean, high in zip(curve.low, curve.mean, curve.high, strict=True)
    )
    if len(steps) <= POINTS:
        at = steps.index(steps[-1])
        values = [run[steps[-1]] for run in runs if steps[-1] in run]
        assert (
            curve.low[at] == min(values)
            and curve.high[at] == max(values)
            and np.isclose(curve.mean[at], np.mean(values))
        )


def test_a_long_run_becomes_three_hundred_points() -> None:
    curve = curve_of("arm", [{step: 1 / step for step in range(1, 5001)}, {step: 2 / step for step in range(1, 4001)}])
    assert curve is not None and len(curve) == POINTS == 300 and curve.at[0] == 1 and curve.at[-1] == 5000
    assert curve.low[-1] == curve.high[-1] == 1 / 5000  # one run alone went so far


def test_an_interval_that_holds_the_line_is_unsure() -> None:
    assert [look(high, low, 0.0) for high, low in ((-1.0, -2.0), (1.0, -2.0), (2.0, 1.0), (None, -1.0), (1.0, None), (None, 1.0))] == [
        "better", "unsure", "worse", "unsure", "unsure", "worse",
    ]  # fmt: skip


def test_the_drawing_leaves_out_the_first_tenth_where_that_is_high() -> None:
    curve = Curve("arm", [1, 10, 50, 100], [9.0, 3.0, 2.0, 1.0], [9.0, 3.0, 2.0, 1.0], [9.0, 3.0, 2.0, 1.0])
    assert top_of([curve]) == 3.0 and top_of([]) is None
    drawn = lines(Curves("t", "", "updates", [curve], 3.0))
    last = float(re.findall(r'class="line-1" points="[^"]*,([-0-9.]+)"', drawn)[0])
    assert 200 < last <= 220 and "<polygon" not in drawn and "9 " not in drawn.split("<details")[0]


def test_a_forest_has_its_budget_and_unbounded_ends() -> None:
    rows = [
        IntervalEstimate("a", 0.01, None, 0.02, [0.0, 0.02], "unsure"),
        IntervalEstimate("b", -0.01, -0.02, -0.001, [], "better"),
    ]
    drawn = forest(ForestPlot("Guard", "", "of the control's", "lower", rows, budget=0.005, percent=True))
    assert (
        drawn.count('class="threshold"') == 2
        and 'x1="0%"' in drawn
        and "unbounded to +2.00%" in drawn
        and "budget +0.50%" in drawn
    )
    assert drawn.count('class="seed"') == 2 and "−0.10%" in drawn


def test_better_is_where_the_measure_says(example: tuple[Path, dict[str, Any]]) -> None:
    _, record = example
    order = [arm["name"] for arm in record["arms"]]
    looks = {one.title: [row.look for row in one.estimates] for one in forests(record, order)}
    assert looks == {"Target: prose": ["better"] * 3 + ["worse"] * 3, "Guard: general": ["better", "better"]}
    turned = json.loads(json.dumps(record).replace('"lower"', '"higher"'))
    assert [row.look for row in forests(turned, order)[0].estimates] == ["worse"] * 3 + ["better"] * 3


@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_it_without_a_word(example: tuple[Path, dict[str, Any]], width: int) -> None:
    page = example[0] / "ablation.html"
    page.write_text(build_page(RunFolder(example[0])), encoding="utf-8")
    with opened(page, width) as found:
        assert found.said == [] and found.dialogs == [] and found.asked == [page.as_uri()] and found.overflow() <= 0
        assert found.page.locator("polyline").count() == 6 and found.page.locator("polygon").count() == 6
        assert found.page.locator(".forest circle").count() == 8
    with opened(page, width, "dark", strict=False) as found:
        assert found.serious_faults() == []


def test_a_run_shows_the_ablations_in_its_folder(example: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Verdicts with the way to each page; one that is torn says so; names are anyone's."""
    run = outfolder.make(tmp_path / "run")
    assert 'id="ablations"' not in build_report(RunFolder(run))
    for name in ("one <b>", "two"):
        (run / "ablations" / name).mkdir(parents=True)
    record = example[1]
    (run / "ablations/one <b>/ablation.json").write_text(json.dumps(record | {"name": f"ours {outfolder.HOSTILE}"}))
    (run / "ablations/two/ablation.json").write_text('{"name": "torn", "ar')
    page = build_report(RunFolder(run))
    assert (
        'href="ablations/one%20%3Cb%3E/ablation.html"' in page and "ablations/two/ablation.json cannot be read" in page
    )
    shown = page[page.index('id="ablations"') :]
    assert (
        all(arm["name"] in shown and (arm["verdict"] or {"word": "failed"})["word"] in shown for arm in record["arms"])
        and record["arms"]
    )
    assert "<script>alert" not in page and "&lt;script&gt;alert" in shown
