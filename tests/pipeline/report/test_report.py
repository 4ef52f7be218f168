"""The report shows every count, and nothing that a crawled page says can act in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fsspec
import pytest

from gristmill.pipeline.formatting import as_moment
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.report import build_report
from gristmill.pipeline.report.build import SECTIONS, report_of
from gristmill.pipeline.report.page import Section, fragment, is_web, ticked
from gristmill.pipeline.report.run_sections import ReportData
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.tables import as_html
from gristmill.stages.figures import count_bars
from tests.pipeline.look.outfolder import WEB_URL, counts, entries, entry, make, run

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += f" {data.strip()}" if data.strip() else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_report(RunFolder(make(tmp_path_factory.mktemp("out"))))


def test_hostile_text_never_becomes_markup(html: str) -> None:
    page = Page(html)
    assert page.open == []
    assert html.count("&lt;script&gt;alert") >= 9  # title, name, alarm, recipe, reason, source, detail, text
    scripts = page.all("script")
    assert scripts == [{"type": "application/json", "id": "what-if-data"}, {}] and html.lower().count("<script") == 2
    assert "{{ 7*7 }}" in page.text and "49 " not in page.text.split("Samples")[0][:200]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "src"]


def test_only_web_addresses_are_links_and_leave_no_referrer(html: str) -> None:
    page = Page(html)
    outside = [link for link in page.all("a") if not (link["href"] or "").startswith("#")]
    assert [link["href"] for link in outside] == [WEB_URL]
    assert "noreferrer" in (outside[0]["rel"] or "")
    assert page.text.count("javascript:alert(document.domain)") == 2
    targets = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {(link["href"] or "")[1:] for link in page.all("a") if link not in outside} <= targets


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        " https://a.b",
        "https://a\n.b",
        "data:text/html,x",
        "//a.b",
        "http://",
        "JaVaScRiPt:1",
        "http://[x",
    ],
)
def test_what_is_no_link(url: str) -> None:
    assert not is_web(url) and is_web("https://a.b/c")


def test_the_policy_allows_style_and_one_script_by_its_hash(html: str) -> None:
    policy = next(meta for meta in Page(html).all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    script = html.split("<script>")[1].split("</script>")[0]
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["content"] == (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    )


def test_every_stage_and_count_is_there(html: str) -> None:
    page = Page(html)
    assert len([attributes for attributes in page.all("details") if attributes.get("class") == "stage"]) == 7
    assert len([attributes for attributes in page.all("details") if attributes.get("class") == "samples"]) == 4
    assert html.index('id="alarms"') < html.index('id="overview"')
    for words in (
        "too_few_words",
        "exact_duplicate 2 22.2%",
        "records read 14",
        "documents kept 6",
        "kept of read 42.9%",
        "2026-11-21 10:00:00 UTC",
    ):
        assert words in page.text, words
    assert re.search(r"books 4 2 50\.0% 2 0 gopher_quality: too_few_words", page.text)
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th")) and len(page.all("th")) > 50
    assert {tag for tag, _ in page.tags} >= {"header", "main", "footer", "caption"}


def page_from(record: dict[str, Any]) -> str:
    return report_of(ReportData(RunRecord.from_json(record), {}))


def test_a_section_is_a_function_and_its_place_in_the_list(tmp_path: Path) -> None:
    """Two files: the one that it stands in, and `build.SECTIONS`. Navigation, heading and escaping come with it."""

    def reasons(data: ReportData) -> Section | None:
        names = sorted({reason for stage in data.run.stages for reason in stage.drops})
        html = fragment("<p>{{ names | length }} reasons, {{ hostile }}</p>", {"names": names, "hostile": "<i>"})
        return Section("reasons", "Reasons <b>", html) if names else None

    folder = RunFolder(make(tmp_path))
    html = build_report(folder, (*SECTIONS, reasons))
    assert html.count('<li><a href="#reasons">Reasons &lt;b&gt;</a></li>') == 1
    assert re.search(r'<h2 id="reasons">Reasons &lt;b&gt;</h2>\s*<p>\d reasons, &lt;i&gt;</p>', html)
    assert html.index('id="stages"') < html.index('id="reasons"') and 'id="reasons"' not in build_report(folder)


def test_a_run_that_failed_before_it_did_anything_has_a_page() -> None:
    found = {"name": "x", "status": "failed", "stages": []}
    assert "failed" in Page(page_from(found)).text
    started = run(entries()[:1]) | {"status": "interrupted", "seconds": None, "finished": None}
    assert Page(page_from(json.loads(json.dumps(started)))).text.count("not_found") == 2


def test_what_went_wrong_comes_first_with_the_stages_so_far() -> None:
    error = "extract: <b>no space</b> left\non the device"
    html = page_from(run(entries()[:4]) | {"status": "failed", "error": error, "seconds": None, "finished": None})
    text = Page(html).text
    assert (
        html.index('id="failure"') < html.index('id="alarms"') < html.index('id="overview"')
        and '<a href="#failure">' in html
    )
    assert "The run failed extract: <b>no space</b> left\non the device" in text and "<b>no" not in html
    assert '<span class="status wrong">failed</span>' in html and html.count('class="stage"') == 4
    assert "The run was interrupted" in page_from(
        {"name": "x", "status": "interrupted", "error": "by hand", "stages": []}
    )
    going = page_from(run(entries()[:1]) | {"status": "running"})
    assert '<span class="status">running</span>' in going and 'id="failure"' not in going


def test_each_of_many_sources_has_its_row_and_its_part() -> None:
    readers = [entry(f"source {k}", "read", "", {f"source {k}": counts(10 + k, {"not_found": 1})}) for k in range(40)]
    html = page_from(run([*readers, *entries()[2:]]))
    assert re.findall(r'<li><a href="#(stage-[^"]*)">', html) == [f"stage-{k}" for k in range(45)]
    assert "source 7 17 16 1 0" in Page(html).text


def test_names_between_ticks_are_code_and_all_else_is_text() -> None:
    assert ticked("Fills `text`, <b> and `a<b`.") == "Fills <code>text</code>, &lt;b&gt; and <code>a&lt;b</code>."
    assert ticked("one ` alone <i>") == "one ` alone &lt;i&gt;"


def test_a_bar_of_next_to_nothing_does_not_look_full() -> None:
    one = as_html(count_bars("Dropped", "reason", [("a", 1)], 1000))
    assert 'width="2.00%"' in one
    many = as_html(count_bars("Dropped", "reason", [("a", 400), ("b", 100)], 1000))
    assert 'width="100.00%"' in many and 'width="25.00%"' in many


def test_a_folder_anywhere(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(make(tmp_path)), "/report-test", recursive=True)
    there, here = build_report(RunFolder("memory://report-test")), build_report(RunFolder(tmp_path))
    assert (
        there.replace('"memory://report-test"', "FOLDER") == here.replace(json.dumps(str(tmp_path)), "FOLDER")
        and "FOLDER" not in here
    )
    with pytest.raises(NotFound, match=r"is .*nothing the output folder of a run"):
        build_report(RunFolder(tmp_path / "nothing"))


def test_a_moment() -> None:
    assert (
        as_moment("2026-01-31T12:00:00.5Z") == "2026-01-31 12:00:00 UTC"
        and as_moment("2026-01-31T12:00:00+02:00") == "2026-01-31 12:00:00 +02:00"
    )
