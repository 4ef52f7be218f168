"""Drawings of the design pages: as their module draws them, one on each page, with words that fit, and no request."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.docs.pages import ROOT, read

PAGES = ["docs/design.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "design").glob("*.md"))]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    source = importlib.util.spec_from_file_location("drawings", ROOT / "docs" / "site" / "drawings.py")
    assert source is not None and source.loader is not None
    sys.modules["drawings"] = made = importlib.util.module_from_spec(source)  # dataclasses look for it there
    source.loader.exec_module(made)
    return made


def test_files_are_what_the_module_draws(module: ModuleType) -> None:
    drawn = {name: drawing.svg() for name, drawing in module.drawings().items()}
    assert len(drawn) == len(PAGES) > 10
    assert {path.stem: path.read_text(encoding="utf-8") for path in module.FOLDER.glob("*.svg")} == drawn


def test_words_fit_and_stay_inside(module: ModuleType) -> None:
    for name, drawing in module.drawings().items():
        assert [words for shape in drawing.shapes for words in shape.too_wide()] == [], name
        boxes = [shape for shape in drawing.shapes if isinstance(shape, module.Box)]
        assert boxes and all(b.x >= 0 and b.x + b.wide <= module.WIDE and b.y + b.high <= drawing.high for b in boxes)


def test_a_drawing_has_text_and_a_name_and_asks_for_nothing(module: ModuleType) -> None:
    for name, drawing in module.drawings().items():
        root = ElementTree.fromstring(drawing.svg())
        texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
        assert root.get("aria-label") and len(texts) > 5, name
        assert "prefers-color-scheme:dark" in drawing.svg()
        assert not re.search(r"(?:href|src|url\()", drawing.svg())


@pytest.mark.parametrize("page", PAGES)
def test_each_page_has_one_drawing_with_its_words(page: str) -> None:
    [(words, place)] = re.findall(r"!\[([^\]]+)\]\((?:\.\./)?(pictures/design/\w+\.svg)\)", read(page))
    assert len(words) > 40 and (ROOT / "docs" / place).is_file()
