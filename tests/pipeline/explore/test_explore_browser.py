"""In a real browser: nothing that was crawled runs, asks for anything or leads away, and the pages are without fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gristmill.pipeline.explore.server import Server
from tests.pipeline.explore.chromium_pages import axe_core, chromium
from tests.pipeline.explore.explore_runs import EVIL_URL, Asker, finished, served
from tests.pipeline.look.outfolder import FIRST, QUARANTINED, make

pytestmark = pytest.mark.run


class Watched:
    """A page, and what it did that a person would not see."""

    def __init__(self, page: Any, server: Server) -> None:
        self.page = page
        self.faults: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda said: self.faults.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("popup", lambda popup: self.faults.append(f"popup: {popup.url}"))
        page.on("download", lambda file: self.faults.append(f"download: {file.url}"))
        page.on("request", lambda request: self.asked.append(request.url))
        self.home = f"http://127.0.0.1:{server.port}"
        page.goto(server.address)
        assert page.url == f"{self.home}/"

    def open(self, target: str) -> Any:
        answer = self.page.goto(self.home + target, wait_until="networkidle")
        assert answer.status == 200, target
        return self.page

    def is_clean(self) -> None:
        assert self.faults == []
        strangers = [url for url in self.asked if not url.startswith((f"{self.home}/", "data:"))]
        assert strangers == [] and len(self.asked) > 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(finished(tmp_path_factory.mktemp("browsed"))) as serving:
        yield serving


@pytest.fixture
def watched(browser: Any, server: Server) -> Iterator[Watched]:
    context = browser.new_context()
    yield Watched(context.new_page(), server)
    context.close()


def test_a_person_finds_a_document_and_its_original(watched: Watched) -> None:
    page = watched.open("/")
    page.get_by_role("link", name="Documents").click()
    page.get_by_label("words in the text").fill("miller planted")
    page.get_by_role("button", name="Search").click()
    page.wait_for_url("**/documents?*")
    assert page.locator(".hits li").count() == 1
    page.locator(".hits a").first.click()
    page.get_by_role("link", name="The page as it was crawled").click()
    frame = page.frame_locator("iframe")
    assert "Hostile" in frame.locator("h1").inner_text()
    assert "Send" in frame.locator("x-button").inner_text()
    frame.locator("#away").click()
    page.wait_for_timeout(300)
    assert "Hostile" in frame.locator("h1").inner_text() and page.url.startswith(watched.home)
    watched.is_clean()


def test_hostile_markup_does_nothing_even_where_it_is_opened_by_itself(watched: Watched, server: Server) -> None:
    link = Asker(server).uid_of(EVIL_URL)
    page = watched.open(link.replace("?", "/frame?"))
    page.wait_for_timeout(500)
    assert page.url.startswith(watched.home) and "Hostile" in page.locator("h1").inner_text()
    assert page.evaluate("window.origin") == "null"
    watched.is_clean()


def test_hostile_names_and_texts_stay_text(browser: Any, tmp_path: Path) -> None:
    with served(make(tmp_path)) as server:
        context = browser.new_context()
        watched = Watched(context.new_page(), server)
        for target in (
            "/",
            "/documents",
            "/rejects",
            f"/document/{FIRST:016x}",
            f"/document/{QUARANTINED:016x}",
        ):
            page = watched.open(target)
            assert page.locator("script").count() == 0
            assert (
                page.locator("body *").evaluate_all(
                    "all => all.filter(one => [...one.attributes].some(a => a.name.startsWith('on'))).length"
                )
                == 0
            )
        assert page.title() and "<script>" in watched.open("/").locator("header").inner_text()
        watched.is_clean()
        context.close()


def test_the_report_runs_in_an_origin_of_its_own(watched: Watched) -> None:
    page = watched.open("/report")
    assert page.evaluate("window.origin") == "null" and page.locator("h1").count() == 1
    watched.is_clean()


@pytest.mark.parametrize("width", [390, 820, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_have_no_serious_fault(browser: Any, server: Server, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    watched = Watched(context.new_page(), server)
    asker = Asker(server)
    link = asker.uid_of("two.example")
    targets = ["/", "/documents", "/documents?words=miller", "/rejects", link, link.replace("?", "/original?")]
    for target in [*targets, "/documents?words=absent"]:
        page = watched.open(target)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (target, width)
    axe = axe_core()
    for target in targets:
        page = watched.open(target)
        page.evaluate(axe)
        found = page.evaluate("axe.run({iframes: false})")["violations"]
        faults = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert faults == [], target
    watched.is_clean()
    context.close()


def test_on_a_phone_the_history_comes_first_and_nothing_is_off_screen(browser: Any, server: Server) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    watched = Watched(context.new_page(), server)
    asker = Asker(server)
    [link] = asker.links("/documents?words=%22those+who%22&url=long.example", "^/document/")
    page = watched.open(link.split("#")[0])
    tops = [page.locator(f"#{name}").bounding_box()["y"] for name in ("fate", "text", "signals")]
    assert tops == sorted(tops) and tops[0] < 800
    page = watched.open("/") and watched.open(link)
    assert 0 < page.locator("#match").bounding_box()["y"] < 800 and page.evaluate("scrollY") > 0
    page = watched.open("/")
    rows = page.locator(".stacked tbody tr")
    for row in rows.all():
        cells = [cell.bounding_box() for cell in row.locator("th:visible, td:visible").all()]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in cells)
        assert row.bounding_box()["height"] < 180
    assert rows.count() > 5 and page.locator(".stacked td a:visible").count() >= 3
    watched.is_clean()
    context.close()
