"""The book: built without a warning, every link and anchor inside it leads somewhere, nothing in it asks a server, the
reference has all there is, and the tour's stops are in the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from gristmill.pipeline.recipe import registry
from gristmill.stages.stage import Limit, Rule
from tests.docs.pages import ROOT, read

pytestmark = pytest.mark.run

pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")
STOP = re.compile(r"^## (\d+)\. .*?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)")


class Page(HTMLParser):
    """Where a page links to, what it loads, and the places in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = {name: value or "" for name, value in attrs}
        self.places |= {facts[name] for name in ("id", "name") if name in facts}
        if tag == "a" and "href" in facts:
            self.links.append(facts["href"])
        if tag in ("script", "img", "iframe") and "src" in facts:
            self.loads.append(facts["src"])
        if tag == "link" and facts.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(facts.get("href", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("book")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "WARNING" not in done.stdout + done.stderr, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in site.rglob("*.html")}


def dangling(pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links:
            place, _, anchor = link.partition("#")
            if re.match(r"\w+:", link) or path.name == "404.html":
                continue
            target = (path.parent / unquote(place)).resolve() if place else path
            if not target.is_file():
                yield f"{path.name}: {link}: no such file"
            elif anchor and target in pages and unquote(anchor) not in pages[target].places:
                yield f"{path.name}: {link}: no such place"


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert len(pages) > 60 and sum(len(page.links) for page in pages.values()) > 3_000
    assert sorted(set(dangling(pages)))[:20] == []


def test_no_page_asks_a_server(site: Path, pages: dict[Path, Page]) -> None:
    loads = {load for page in pages.values() for load in page.loads}
    assert len(loads) > 5 and [load for load in loads if load.startswith(("http:", "https:", "//"))] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\((?!['\"]?data:)['\"]?(?:https?:)?//", styles) == []
    assert (site / "search" / "search_index.js").stat().st_size > 100_000  # what makes search work from disk


def limits_of(rule: type[Rule]) -> tuple[Limit, ...]:
    """Limits that a rule declares; those of others depend on settings."""
    return rule.limits if isinstance(rule.limits, tuple) else ()


def test_the_reference_has_every_stage_and_the_reasons_of_rules(site: Path, pages: dict[Path, Page]) -> None:
    stages = pages[(site / "reference" / "stages.html").resolve()].places
    readers = pages[(site / "reference" / "readers.html").resolve()].places
    assert len(registry.names()) > 60 and set(registry.names()) <= stages | readers
    reasons = (site / "reference" / "reasons.html").read_text(encoding="utf-8")
    kinds = [registry.find(name) for name in registry.names()]
    given = {limit.reason for kind in kinds if issubclass(kind, Rule) for limit in limits_of(kind)}
    assert len(given) >= 20 and [name for name in given if f"<code>{name}</code>" not in reasons] == []


def test_the_reference_shows_no_markup_and_no_types_of_python(site: Path) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html")]
    text = "\n".join(pages)
    assert "<code>&lt;email&gt;</code>" in text and "<td><code>RecipePath</code></td>" in text
    assert [word for word in ("&amp;lt;", "Runtime representation", "to: Any") if word in text] == []


def test_a_link_to_a_function_goes_to_its_line(site: Path) -> None:
    links = re.findall(
        r'href="(code/[^"#]+)#__codelineno-0-(\d+)"><code>([\w.]+)</code>', (site / "tour.html").read_text()
    )
    assert len(links) >= 30
    for place, line, name in links:
        source = (ROOT / place.removeprefix("code/").removesuffix(".html")).read_text().split("\n")[int(line) - 1]
        assert re.match(rf"\s*(?:def|class) {name.split('.')[-1]}\b", source), (name, source)


def names_in(path: Path) -> set[str]:
    """Functions, classes and methods (`Warc.read`) of a module."""
    names: set[str] = set()

    def visit(node: ast.AST, before: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                names.add(f"{before}{child.name}")
                visit(child, f"{before}{child.name}.")

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return names


def test_the_tour_has_twelve_stops_and_each_is_in_the_code() -> None:
    stops = STOP.findall(read("docs/tour.md"))
    assert [int(number) for number, _ in stops] == [*range(1, 13)]
    for _, text in stops:
        links = NAMED.findall(text)
        assert len(links) >= 1 and text.count("\n- ") == 3
        for name, path in links:
            assert name in names_in(ROOT / path), f"{path} has no {name}"


def test_links_to_code_name_what_is_there() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for name, path in re.findall(r"\[`([\w.]+)`\]\((?:\.\./)+([\w/]+\.py)\)", page.read_text(encoding="utf-8")):
            assert name in names_in(ROOT / path), f"{page.name}: {path} has no {name}"
