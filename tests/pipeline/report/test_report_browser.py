"""The report in a real browser: no request, no error, hostile text stays text, sliders say what `tune` says, axe finds
nothing serious."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.report import build_report
from gristmill.pipeline.report_data import survey as survey_module
from gristmill.pipeline.report_data.histograms import SignalCounts
from gristmill.pipeline.report_data.survey import survey_segments
from gristmill.pipeline.store.storage import Store
from tests.pipeline.explore.chromium_pages import axe_core, chromium
from tests.pipeline.report import surveyed

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return surveyed.make(tmp_path_factory.mktemp("browsed"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


class Opened:
    """The report in a tab that notes all that a page may not do."""

    def __init__(self, browser: Any, out: Path, width: int = 1200, **how: Any) -> None:
        self.wrong: list[str] = []
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **how)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.on(
            "request",
            lambda request: self.wrong.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
        )
        self.page.goto((out / "report.html").as_uri())

    def move(self, segment: int, k: int, stop: int) -> None:
        """The slider, to one of its stops."""
        self.page.locator(f"#cut-{segment}-{k}").evaluate(
            "(e, at) => { e.value = at; e.dispatchEvent(new Event('input', {bubbles: true})); }", stop
        )

    def type(self, segment: int, k: int, value: object) -> str:
        """A number into the field beside the slider; what stands there then."""
        field = self.page.locator(f".slider:has(#cut-{segment}-{k}) [type=number]")
        field.evaluate(
            "(e, value) => { e.value = value; e.dispatchEvent(new Event('change', {bubbles: true})); }", str(value)
        )
        return str(field.input_value())

    def says(self, segment: int, k: int) -> str:
        return str(self.page.locator(f".slider:has(#cut-{segment}-{k}) .says").text_content())

    def totals(self) -> dict[str, int]:
        """The panel's first table: documents and words that would stay."""
        return {
            row.locator("th").inner_text(): int(row.locator("[data-then]").get_attribute("data-then"))
            for row in self.page.locator("#answer .total tbody tr").all()
        }

    def then(self) -> dict[str, list[int]]:
        """For each source what would stay, documents and words."""
        return {
            row.locator("th").inner_text(): [
                int(cell.get_attribute("data-then")) for cell in row.locator("[data-then]").all()
            ]
            for row in self.page.locator("#answer .sources tbody tr").all()
        }


def stop_of(survey: dict[str, Any], k: int, at: int) -> int:
    cut = survey["cuts"][k]
    return SignalCounts(**survey["signals"][cut["signal"]]).place(at, cut["side"])


@pytest.fixture
def opened(browser: Any, out: Path) -> Iterator[Opened]:
    found = Opened(browser, out)
    yield found
    found.context.close()
    assert found.wrong == []


def test_every_part_is_there_and_nothing_that_a_page_said_acts(opened: Opened) -> None:
    headings = opened.page.locator("h2").all_inner_texts()
    assert [h for h in headings if "alarm" not in h] == [
        "Overview", "Documents left after each stage", "Time and memory", "Sources", "What if", "Stage by stage", "Languages",
    ]  # fmt: skip
    assert opened.page.title() == "surveyed – Gristmill report"
    assert opened.page.locator("img").count() == 0 and opened.page.locator("script").count() == 2
    assert surveyed.HOSTILE_TITLE.split("=")[0] in opened.page.locator("main").text_content()
    for link in opened.page.locator("a[href^='#']").all():
        assert opened.page.locator(link.get_attribute("href")).count() == 1


def test_a_slider_says_what_tune_says(opened: Opened, out: Path) -> None:
    survey = surveyed.survey_of(out)
    for k in range(0, len(survey["cuts"]), 5):
        cut, edges = survey["cuts"][k], surveyed.edges(survey, survey["cuts"][k])
        at = next(at for at in range(len(edges) // 3, len(edges)) if at != cut["at"] and edges[at] >= 0)
        opened.move(0, k, stop_of(survey, k, at))
        value = int(edges[at]) if edges[at].is_integer() else edges[at]
        answer = tune(RunFolder(out), [f"{cut['stage']}.{cut['field']}={value}"])
        shown = opened.then()
        assert {name: its[0] for name, its in shown.items()} == {
            name: its.after for name, its in answer.sources.items()
        }
        assert opened.totals()["documents"] == answer.total.after and shown == surveyed.exact(survey, k, at)
        taken = sum(cut["reached"][: at + 1] if cut["side"] == "low" else cut["reached"][at + 1 :])
        assert opened.says(0, k).startswith(
            f"takes {'below' if cut['side'] == 'low' else 'above'} {value:,}: {taken:,} ("
        )
        lines = opened.page.locator("#answer pre").inner_text()
        last = cut["field"].rpartition(".")[2]
        assert (
            lines.startswith(f"- {cut['stage']}: {{")
            and f"{last}" in lines
            and f"gristmill tune {out} {cut['stage']}.{cut['field']}={value}" in lines
        )
        opened.page.locator("#answer button").click()
        assert opened.page.locator("#answer").is_hidden()


def test_several_sliders_agree_with_tune_where_the_sample_is_all(opened: Opened, out: Path) -> None:
    survey = surveyed.survey_of(out)
    place = {(cut["stage"], cut["field"]): k for k, cut in enumerate(survey["cuts"])}
    settings = []
    for stage, field, wanted in (
        ("gopher_quality", "min_words", 60),
        ("gopher_repetition", "max_top_2gram_share", 0.1),
    ):
        k = place[stage, field]
        edges = surveyed.edges(survey, survey["cuts"][k])
        at = min(range(len(edges)), key=lambda at: abs(edges[at] - wanted))
        opened.move(0, k, stop_of(survey, k, at))
        settings.append(f"{stage}.{field}={edges[at]:g}")
    answer = tune(RunFolder(out), settings)
    assert opened.totals()["documents"] == answer.total.after != answer.total.before
    words = opened.page.locator("#answer").inner_text()
    assert "2 thresholds moved, all 400 documents counted. Counted after dolma_gopher." in words and "±" not in words


def test_a_sample_that_is_not_all_is_off_by_no_more_than_its_error_allows(
    browser: Any, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "SAMPLE", 150)
    shutil.copytree(out, tmp_path / "out")
    survey_segments(Store(str(tmp_path / "out")))
    (tmp_path / "out/report.html").write_text(build_report(RunFolder(tmp_path / "out")))
    survey, found = surveyed.survey_of(tmp_path / "out"), Opened(browser, tmp_path / "out")
    settings = []
    for k, cut in enumerate(survey["cuts"]):
        if cut["field"] in ("min_words", "min_mean_word_length"):
            edges = surveyed.edges(survey, cut)
            at = min(
                range(len(edges)),
                key=lambda at: abs(edges[at] - {"min_words": 60, "min_mean_word_length": 3.5}[cut["field"]]),
            )
            found.move(0, k, stop_of(survey, k, at))
            settings.append(f"{cut['stage']}.{cut['field']}={edges[at]:g}")
    answer, cells = (
        tune(RunFolder(out), settings),
        found.page.locator("#answer .total tbody tr").first.locator("td").all_inner_texts(),
    )
    then, _, error = cells[1].partition(" ± ")
    assert "estimated from 150 of 400 documents" in found.page.locator("#answer").inner_text()
    assert sum(survey["sample"]["groups"]) == 150 and 0 < int(error) < 60
    assert abs(int(then) - answer.total.after) <= 4 * int(error) and answer.total.after != answer.total.before
    found.context.close()
    assert found.wrong == []


def test_the_keyboard_moves_a_slider_and_the_skip_link_comes_first(opened: Opened) -> None:
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.className") == "skip"
    slider = opened.page.locator("input[data-cut]").first
    slider.focus()
    before = slider.get_attribute("aria-valuetext")
    opened.page.keyboard.press("ArrowRight")
    after = slider.get_attribute("aria-valuetext")
    assert after != before and opened.page.locator("#answer").is_visible()
    opened.page.keyboard.press("Home")
    assert int(slider.input_value()) <= 2


def test_the_readme_s_own_number_can_be_typed_and_what_is_not_counted_goes_to_the_nearest(
    opened: Opened, out: Path
) -> None:
    k = next(
        k
        for k, cut in enumerate(surveyed.survey_of(out)["cuts"])
        if (cut["stage"], cut["field"]) == ("gopher_quality", "min_words")
    )
    assert (
        opened.type(0, k, 80) == "80"
        and opened.totals()["documents"] == tune(RunFolder(out), ["gopher_quality.min_words=80"]).total.after
    )
    assert opened.says(0, k).startswith("takes below 80: ")
    moved = opened.page.locator(f".slider:has(#cut-0-{k}) .moved")
    assert opened.type(0, k, 80.4) == "80" and "80.4 was not counted, the nearest is 80" in moved.text_content()
    assert opened.type(0, k, "") != "" and "not counted" not in moved.text_content()


@pytest.mark.parametrize("width", [390, 1200])
def test_the_thumb_stands_under_the_line_of_its_threshold(browser: Any, out: Path, width: int) -> None:
    found = Opened(browser, out, width)
    found.page.evaluate("document.querySelectorAll('details').forEach(its => { its.open = true; })")
    for k, value in ((0, 0.5), (14, 80)):
        found.type(0, k, value)
        thumb, line = found.page.evaluate(
            """k => {
              const box = document.querySelector(`.slider:has(#cut-0-${k})`), range = box.querySelector('[type=range]'), at = range.getBoundingClientRect();
              const figure = box.closest('figure'), order = [...figure.querySelectorAll('.slider')].indexOf(box);
              const line = figure.querySelector(`[data-threshold="${order}"] line`).getBoundingClientRect();
              return [at.left + 8 + (at.width - 16) * range.value / range.max, line.left + line.width / 2];
            }""",
            k,
        )
        assert abs(thumb - line) < 1, (k, thumb, line)
    found.context.close()
    assert found.wrong == []


def test_on_a_phone_no_table_hides_a_column_and_the_panel_leaves_most_of_the_screen(browser: Any, out: Path) -> None:
    found = Opened(browser, out, 390)
    found.page.evaluate("document.querySelectorAll('details').forEach(its => { its.open = true; })")
    hidden = "[...document.querySelectorAll('.scroll')].filter(its => its.scrollWidth > its.clientWidth + 1).map(its => its.ariaLabel)"
    assert found.page.evaluate(hidden) == [] and found.page.locator(".stacked table").count() > 5
    found.type(0, 14, 80)
    panel = found.page.locator("#answer")
    assert (
        panel.bounding_box()["height"] < 300
        and panel.locator("pre").is_hidden()
        and panel.locator(".total").is_visible()
    )
    assert panel.evaluate("its => its.scrollWidth <= its.clientWidth")
    found.context.close()
    assert found.wrong == []


@pytest.mark.parametrize("width", [320, 390, 820, 1440])
def test_nothing_is_wider_than_the_screen(browser: Any, out: Path, width: int) -> None:
    found = Opened(browser, out, width)
    found.page.evaluate("document.querySelectorAll('details').forEach(its => { its.open = true; })")
    found.move(0, 0, 4)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    found.context.close()
    assert found.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(browser: Any, out: Path, scheme: str) -> None:
    found = Opened(browser, out, bypass_csp=True, color_scheme=scheme)
    found.page.evaluate("document.querySelectorAll('details').forEach(its => { its.open = true; })")
    found.move(0, 0, 4)
    found.page.evaluate(axe_core())
    faults = found.page.evaluate("axe.run()")["violations"]
    found.context.close()
    assert [(its["impact"], its["id"], its["nodes"][0]["html"]) for its in faults] == []
