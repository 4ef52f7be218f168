"""A report shows some pages as extracted beside all that they show; what pages say stays text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.stage_view import stage_view
from tests.pipeline.runs import go, save

RECIPE = "name: p\nsources:\n  crawl: {warc: {path: '*.warc.gz'}}\nstages:\n  - extract\n  - write\n"


def test_extracted_and_visible_text_of_a_few_pages(tmp_path: Path) -> None:
    truth = write_crawl(tmp_path)
    out = tmp_path / "out"
    go(save(tmp_path / "p.yaml", RECIPE), out)
    pages = json.loads((out / "stages/extract/report.json").read_text())["pages"]
    assert len(pages) == 3
    for page in pages:
        assert page["url"] in truth.documents
        assert page["extracted"] and page["visible_characters"] > page["extracted_characters"]
        assert any(phrase in page["visible"] for phrase in truth.navigation)
        if page["url"] not in truth.spam:  # a farm of links is all navigation
            assert not any(phrase in page["extracted"] for phrase in truth.navigation)
    assert sum(page["url"] not in truth.spam for page in pages) >= 1
    html = (out / "report.html").read_text()
    assert "Pages, extracted and whole" in html and html.count('class="beside"') == 3
    assert [asdict(page) for page in stage_view(RunFolder(out), "extract").pages] == pages
    before = (out / "stages/extract/report.json").read_bytes()
    go(save(tmp_path / "p.yaml", RECIPE), out)
    assert (out / "stages/extract/report.json").read_bytes() == before
