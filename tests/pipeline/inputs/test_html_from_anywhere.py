"""HTML in rows, in files, in a WACZ; text/plain beside it; and texts that are markup, which are never written as they
are without a word."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.cli.init import start_recipe
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.recipe.recipe import load
from gristmill.pipeline.run.alarms import alarms
from gristmill.pipeline.store.counts import Counts, RunAccount
from tests.pipeline.runs import go, save, written


def page(name: str) -> str:
    return (
        f"<!DOCTYPE html><html><title>{name}</title><body><p>"
        + f"What the page {name} says in a sentence of its own. " * 6
        + "</p></body></html>"
    )


def response(url: str, body: str, kind: str = "text/html") -> bytes:
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}; charset=utf-8\r\n\r\n{body}".encode()
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nContent-Type: application/http\r\nContent-Length: {len(http)}\r\n\r\n"
    return head.encode() + http + b"\r\n\r\n"


def inputs(folder: Path) -> None:
    """Three pages in rows, four in files (one of which is broken), three in a WACZ, and two texts beside these."""
    rows = [{"doc": {"html": page(f"row{n}")}, "url": f"https://rows.example/{n}"} for n in range(3)] + [
        {"doc": {}, "url": "https://rows.example/3"}
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    site = folder / "site" / "www.example.org" / "docs"
    site.mkdir(parents=True)
    (site / "a.html").write_text(page("file0"))
    (site / "b.HTM").write_text(page("file1"))
    (site / "c.xhtml.gz").write_bytes(gzip.compress(page("file2").encode()))
    (site / "d.html.gz").write_bytes(gzip.compress(page("broken").encode())[:-30])
    (site / "e.html").write_bytes(b"")
    (site / "style.css").write_text("p {}")
    records = [response(f"https://wacz.example/{n}", page(f"wacz{n}")) for n in range(3)]
    records += [response(f"https://wacz.example/{n}.txt", f"Plain words {n}", "text/plain") for n in range(2)]
    with zipfile.ZipFile(folder / "crawl.wacz", "w") as file:
        file.writestr("datapackage.json", "{}")
        file.writestr("archive/data.warc.gz", b"".join(gzip.compress(record) for record in records))


RECIPE = """
name: anywhere
sources:
  rows: {jsonl: {path: rows.jsonl, html: doc.html}}
  files: {html: {path: site}}
  crawl: {warc: {path: crawl.wacz, keep_plain_text: true}}
stages: [extract, exact_dedup, write]
"""


def test_pages_of_every_kind_become_text(tmp_path: Path) -> None:
    inputs(tmp_path)
    summary, _ = go(save(tmp_path / "r.yaml", RECIPE), tmp_path / "out")
    texts = [text for _, text in written(tmp_path / "out")]
    names = [f"row{n}" for n in range(3)] + [f"file{n}" for n in range(3)] + [f"wacz{n}" for n in range(3)]
    assert sorted(text.split(" ")[3] for text in texts if "sentence" in text) == sorted(names) and len(texts) == 11
    assert [text for text in sorted(texts) if "sentence" not in text] == ["Plain words 0", "Plain words 1"]
    assert not any("<" in text for text in texts)
    account = {entry["name"]: entry for entry in summary.record.to_json()["stages"]}
    assert {
        name: (account[name]["docs_in"], account[name]["kept"]) for name in ("rows", "files", "crawl", "extract")
    } == {
        "rows": (4, 3),
        "files": (5, 3),
        "crawl": (5, 5),
        "extract": (11, 11),
    }
    assert (account["rows"]["dropped"], account["files"]["dropped"], account["files"]["quarantined"]) == (
        {"no_html": 1},
        {"empty_page": 1},
        1,
    )
    urls = {
        url for file in (tmp_path / "out" / "write").glob("*.parquet") for url in pq.read_table(file)["url"].to_pylist()
    }
    assert {"https://rows.example/0", "https://www.example.org/docs/c.xhtml", "https://wacz.example/1.txt"} < urls
    assert len(summary.alarms) == 1 and "www.example.org/docs/d.html.gz (the whole file: " in summary.alarms[0]


def test_texts_that_are_markup_are_extracted_or_alarmed_about(tmp_path: Path) -> None:
    """The same rows, of which the recipe takes the field of pages for text."""
    inputs(tmp_path)
    (tmp_path / "plain.jsonl").write_text('{"text": "only words"}\n')
    (tmp_path / "late.jsonl").write_bytes((tmp_path / "rows.jsonl").read_bytes())
    recipe = "name: raw\nsources:\n  rows: {jsonl: {path: rows.jsonl, text: doc.html}}\n  late: {jsonl: {path: late.jsonl, text: doc.html}, join: write}\n"
    recipe += "  words: {jsonl: {path: plain.jsonl}}\nstages: [extract, write]\n"
    summary, _ = go(save(tmp_path / "r.yaml", recipe), tmp_path / "out")
    texts = [text for _, text in written(tmp_path / "out")]
    assert (
        len(texts) == 7
        and sum(text.startswith("<!DOCTYPE") for text in texts) == 3
        and sum(text.startswith("What the page") for text in texts) == 3
    )
    idle, extracted, raw = sorted(summary.alarms)
    assert idle.startswith(
        "extract had no page to extract from words (1 document without HTML); a field of pages is named with `html:`"
    )
    assert extracted.startswith(
        "extract: 3 of 3 texts of rows were markup, and their text was extracted; name the field with `html:`"
    )
    assert (
        raw.startswith("late: 3 of 3 texts are markup; name the field with `html:` in its reader")
        and "put `extract` first" in raw
    )
    extract = next(entry for entry in summary.record.to_json()["stages"] if entry["name"] == "extract")
    assert extract["noted"] == {"markup": 3}


@pytest.mark.parametrize(("markup", "told"), [(0, 0), (1, 0), (2, 1)])
def test_a_few_texts_that_begin_with_a_tag_raise_no_alarm(tmp_path: Path, markup: int, told: int) -> None:
    recipe = load(save(tmp_path / "r.yaml", "name: r\nsources: {s: {jsonl: {path: x}}}\nstages: [write]\n"))
    account = RunAccount()
    account.add("s", {"s": Counts(docs_in=100, kept=100, noted=Counter(markup=markup))})
    assert len([alarm for alarm in alarms(make_plan(recipe), account, ended=True) if "are markup" in alarm]) == told


@pytest.mark.parametrize(
    ("reader", "instead"),
    [
        ("{jsonl: {path: x, html: page}}", "a field that holds text already is named with `text:`, not `html:`"),
        ("{html: {path: x}}", "files that hold text already are read by `plain`, not `html`"),
        ("{warc: {path: x}}", "files that hold text already are read by `wet`, not `warc`"),
    ],
)
def test_pages_whose_text_is_read_before_there_is_any_are_refused(tmp_path: Path, reader: str, instead: str) -> None:
    recipe = load(save(tmp_path / "r.yaml", f"name: r\nsources:\n  s: {reader}\nstages: [write]\n"))
    with pytest.raises(RecipeError, match="write reads text, but s gives pages") as error:
        make_plan(recipe)
    assert str(error.value).endswith(instead)


def test_text_and_html_of_one_source_are_refused_with_their_line(tmp_path: Path) -> None:
    text = "name: r\nsources:\n  s:\n    parquet: {path: x, text: a, html: b}\nstages: [extract]\n"
    with pytest.raises(RecipeError, match=r"r\.yaml:4: .*text \(a\) and html \(b\) exclude each other"):
        load(save(tmp_path / "r.yaml", text))


def test_a_recipe_for_a_folder_of_pages(tmp_path: Path) -> None:
    inputs(tmp_path)
    for folder, files, stages in (("site", "2 .html, 1 .htm, 1 .xhtml.gz, 1 .html.gz", 1), (".", "1 .wacz", 2)):
        assert files in start_recipe(tmp_path / folder, tmp_path / f"{stages}.yaml")
        recipe = load(tmp_path / f"{stages}.yaml")
        make_plan(recipe)  # nothing reads text before there is any
        assert [step.called for step in recipe.steps] == ["extract", "exact_dedup", "write"][stages - 1 :]
    (crawl,) = load(tmp_path / "1.yaml").sources
    assert (crawl.name, crawl.reader.address, crawl.steps) == ("crawl", "html", ())
    own = {source.reader.address: [step.called for step in source.steps] for source in recipe.sources}
    assert own == {"html": ["extract_html_files"], "jsonl": [], "warc": ["extract_warc_files"]}
