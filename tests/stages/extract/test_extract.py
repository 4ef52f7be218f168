"""What extraction promises: text of a page, a reason where there is none, and no page that stops the mill."""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa
import pytest

from gristmill.stages.documents import Collector
from gristmill.stages.extract.engines import Extracted, absolute, extract, trafilatura
from gristmill.stages.extract.metadata import unescaped
from gristmill.stages.extract.nesting import nests_deeper
from gristmill.stages.extract.stage import Extract
from gristmill.stages.text.repair import Repair

BODY = "<p>" + "The mill grinds slowly but it grinds exceedingly fine. " * 5 + "</p>"
PAGE = f"""<!doctype html><html lang="en-GB"><head><title> A  mill </title><meta name="author" content="Ann Miller">
<meta property="article:published_time" content="2024-02-03"><meta property="og:type" content="article">
<link rel="canonical" href="/mill"></head><body><nav><a href="/">Home</a></nav><main>{BODY}</main></body></html>""".encode()


def batch_of(*pages: bytes | None, text: str | None = None) -> pa.RecordBatch:
    collector = Collector("web", "a.warc", pages=True)
    for place, page in enumerate(pages):
        collector.add(place, html=page, charset="utf-8", url="http://a.org/x", text=text, meta={"ip": "1.2.3.4"})
    return collector.take().documents


def test_a_page_on_its_own():
    page = extract(PAGE, "http://a.org/x")
    assert page.text.count("exceedingly fine") == 5 and "Home" not in page.text
    assert page == Extracted(page.text, "A mill", "Ann Miller", "2024-02-03", "en-GB", "http://a.org/mill", "article")


def test_plain_keeps_all_that_is_visible():
    assert "Home" in extract(PAGE, engine="plain").text


def test_an_unknown_engine_is_named():
    with pytest.raises(ValueError, match="no engine 'x'; there are gristmill, resiliparse, trafilatura, plain"):
        extract(PAGE, engine="x")  # type: ignore[arg-type]


def test_the_stage_fills_text_and_meta_and_removes_the_page():
    done = Extract().apply(batch_of(PAGE, PAGE))
    assert done.verdict.kept.tolist() == [True, True]
    assert done.batch.schema.names == ["uid", "source", "id", "url", "date", "text", "meta"]
    assert done.batch["text"].to_pylist() == [extract(PAGE).text] * 2
    assert json.loads(done.batch["meta"][0].as_py()) == {
        "ip": "1.2.3.4", "title": "A mill", "author": "Ann Miller", "published": "2024-02-03", "language": "en-GB",
        "canonical": "http://a.org/mill", "kind": "article",
    }  # fmt: skip


def test_pages_without_text_go_with_a_reason():
    deep = b"<div>" * 200_000 + b"hello"
    started = time.monotonic()
    done = Extract(engine="resiliparse").apply(batch_of(PAGE, b"", b"<html><script>x()</script>", None, deep))
    assert time.monotonic() - started < 5
    reasons = [done.verdict.reason(row) for row in range(5)]
    assert reasons == [None, "no_text", "no_text", "no_text_in_source", "nested_too_deep"]
    done = Extract().apply(batch_of(PAGE, b"", b"<html><script>x()</script>", None, deep))
    assert [done.verdict.reason(row) for row in range(5)] == [None, "no_text", "no_text", "no_text_in_source", None], (
        "depth costs ours nothing"
    )
    assert done.batch["text"][4].as_py() == "hello"


def test_rows_with_text_and_no_page_pass_untouched():
    batch = batch_of(None, None, text="as it was")
    done = Extract().apply(batch)
    assert done.verdict.kept.all() and len(done.batch) == 2
    assert done.batch.equals(batch.drop_columns(["html", "charset"]))


def test_markup_shown_as_text_stays_text():
    page = (
        b"<p>Write <code>&lt;script&gt;alert(1)&lt;/script&gt;</code> and see what it does</p><script>evil()</script>"
    )
    for engine in ("resiliparse", "plain"):
        assert "<script>alert(1)</script>" in extract(page, engine=engine).text
        assert "evil" not in extract(page, engine=engine).text


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b"<html><body><p>" + b"a" * 20_000_000, "a" * 20_000_000),
        (b"<html><body><p>caf\xff bar</p>", None),
        (b"<html><body><p>a\0b\0c&#0;</p>" + b"\0" * 1000, None),
        ("<html><body><p>a\ud800b</p>", "a?b"),
        ("<html><body>" + "<p>word" * 20_000, "\n\n".join(["word"] * 20_000)),
        ("<html><body>" + "<p><b>word" * 20_000, "\n\n".join(["word"] * 20_000)),
        ("<html><body>" + "<span>word " * 20_000, " ".join(["word"] * 20_000)),
    ],
    ids=["one long word", "invalid utf-8", "NUL", "lone surrogate", "open p", "open b", "open span"],
)
def test_hostile_pages_come_out_as_text(page, expected):
    started = time.monotonic()
    text = extract(page).text
    assert time.monotonic() - started < 5
    assert text and "\0" not in text and (expected is None or text == expected)
    text.encode()


def test_depth_counts_only_what_costs():
    assert nests_deeper("<div>" * 11, 10) and not nests_deeper("<div>" * 10, 10)
    assert not nests_deeper("<div></div>" * 100, 10)
    assert nests_deeper("<DIV></p>" * 11, 10), "a closing tag closes only its own name"
    assert not nests_deeper("<b>" * 100, 10), "alike formatting is opened anew three times at most"
    assert nests_deeper("".join(f"<font size={n}>" for n in range(11)), 10)
    assert not nests_deeper("<p>" * 100 + "<li>" * 100 + "<br>" * 100, 10)


def test_a_broken_canonical_link_is_none():
    assert absolute("http://[", "http://a.org") is None
    assert absolute(" b ", "http://a.org/x/") == "http://a.org/x/b"


@pytest.mark.parametrize("engine", ["gristmill", "resiliparse"])
@pytest.mark.parametrize("link", ["javascript:alert(1)", "data:text/html,x", "mailto:a@b.example", " JavaScript:x"])
def test_a_canonical_link_that_leads_to_no_page_is_none(engine, link):
    page = f"<head><link rel=canonical href='{link}'></head><body><p>Some words</p>"
    assert extract(page, "http://a.example/", engine).canonical is None
    assert extract(page.replace(link, "x?y"), "http://a.example/", engine).canonical == "http://a.example/x?y"


def test_the_text_of_a_head_can_be_written():
    said = '{"@type": "Article", "articleBody": "' + "broken \\ud800 off " * 30 + '"}'
    assert extract(f'<script type="application/ld+json">{said}</script><p>hi').text.encode().startswith(b"broken ? off")


def test_a_missing_engine_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[trafilatura\]'"):
        Extract(engine="trafilatura")
    with pytest.raises(ImportError, match=r"pip install '\.\[trafilatura\]'"):
        trafilatura("<p>x", None)


def test_trafilatura():
    try:
        import trafilatura  # noqa: F401
    except ImportError as error:
        pytest.skip(f"trafilatura cannot be loaded here: {error}")
    page = extract(PAGE, "http://a.org/x", engine="trafilatura")
    assert "exceedingly fine" in page.text and "Home" not in page.text and page.title == "A mill"
    assert extract(PAGE, "http://a.org/x", engine="trafilatura") == page, "earlier pages are not remembered"


@pytest.mark.parametrize(
    ("head", "author"),
    [
        ("<meta name=twitter:label1 content='Est. reading time'><meta name=twitter:data1 content='34 minutes'>", None),
        ("<meta name=twitter:label1 content='Written by'><meta name=twitter:data1 content='Ann Miller'>", "Ann Miller"),
        (
            "<meta name=twitter:label2 content='Verfasst von:'><meta name=twitter:data2 content='Ann Miller'>",
            "Ann Miller",
        ),
        ("<meta name=twitter:data1 content='$12'>", None),
        ("<meta name=author content=undefined><meta name=dc.creator content='Ann Miller'>", "Ann Miller"),
        ("<meta name=author content=262588213843476>", None),
        (
            "<meta name=citation_author content='Ann Miller'><meta name=citation_author content='Bo Stone'>",
            "Ann Miller, Bo Stone",
        ),
        (
            "<meta name=DC.creator content='Miller, Ann'><meta name=DC.creator content='Stone, Bo'>",
            "Miller, Ann; Stone, Bo",
        ),
        (
            '<script type="application/ld+json">{"@graph": [{"@type": "Article", "author": {"@id": "#ann"}}, {"@type": "Person", "@id": "#ann"},'
            '{"@type": "Person", "@id": "#ann", "name": "Ann Miller"}]}</script><meta name=author content=mill-admin>',
            "Ann Miller",
        ),
        (
            '<script type="application/ld+json">{"@type": "Article", "author": [{"@id": "#a"}, {"name": "Bo Stone"}]}</script>',
            "Bo Stone",
        ),
        ("<meta name=author content='宮沢賢治'>", "宮沢賢治"),
    ],
)
def test_an_author_is_a_name(head, author):
    assert extract(f"<head>{head}</head><p>A mill that turns.".encode()).author == author


def test_what_repair_needs_comes_through_extraction():
    page = "<p>" + "When youâ\x80\x99re opening a mill, the stone of voilÃ\xa0 matters. " * 9
    text = pa.record_batch({"text": pa.array([extract(page).text])})
    assert Repair().rewrite(text).batch["text"].to_pylist() == [
        ("When you’re opening a mill, the stone of voilà matters. " * 9).strip()
    ]


def test_references_of_thousands_of_digits_spare_the_page():
    assert unescaped("a&#0000000000066;&#x00000000043; &#" + "0" * 5000 + "68;") == "aBC \ufffd"
    long = "1" * 5000
    page = (
        f'<html><head><title>a&#{long};b</title><meta name="description" content="c&#x{long};d">'
        f'<script type="application/ld+json">{{"@type": "Article", "headline": "e&#{long}"}}</script></head>'
        f"<body><article><p>{'A page of many words. ' * 30}</p></article></body></html>"
    )
    (row,) = Extract()(pa.Table.from_batches([batch_of(page.encode())])).to_pylist()
    assert "A page of many words." in row["text"] and json.loads(row["meta"])["title"] == "e\ufffd"


def texts_of(*texts: str | None) -> pa.RecordBatch:
    collector = Collector("rows", "a.jsonl")
    for place, text in enumerate(texts):
        collector.add(place, text=text, url="http://a.org/x")
    return collector.take().documents


@pytest.mark.parametrize(
    "before",
    [
        "",
        "\ufeff",
        "\n \t",
        "<?xml version='1.0' encoding='utf-8'?>\n",
        "<!-- saved -->\n<!-- twice -->",
        "\ufeff\n<!--[if IE]><![endif]-->",
    ],
)
def test_a_text_that_is_a_page_is_extracted_and_counted(before):
    page = PAGE.decode()
    prose = ["a < b and <p> is a tag", "<3 hearts", "< html is no tag", "<!-- a comment alone -->"]
    applied = Extract().apply(texts_of(before + page, *prose, before + "<p>" + "Grüße. " * 40))
    assert applied.batch["text"].to_pylist() == [extract(PAGE).text, *prose, ("Grüße. " * 40).strip()]
    assert json.loads(applied.batch["meta"][0].as_py())["title"] == "A mill" and applied.verdict.kept.all()
    assert applied.noted == {"markup": 2} and applied.batch.schema.names == texts_of().schema.names


def test_a_declaration_of_another_charset_is_no_matter_to_a_text():
    declared = "<!doctype html><meta charset=koi8-r><p>" + "Привет, мир. " * 30
    assert Extract().apply(texts_of(declared)).batch["text"].to_pylist() == [("Привет, мир. " * 30).strip()]


def test_a_page_beside_its_text_is_extracted_once():
    applied = Extract().apply(batch_of(PAGE, text="<html>old"))
    assert applied.batch["text"].to_pylist() == [extract(PAGE).text] and applied.noted == {"pages": 1}


def test_what_is_wrong_with_encodings_is_counted():
    russian = ("Старая мельница у реки мелет медленно, но верно. " * 8).encode("cp1251")
    lost = BODY.replace("slowly", "slow\ufffdly").encode()
    done = Extract().apply(batch_of(PAGE, b"<p>" + russian, b"<html></html>", lost, None, text="as \ufffd it was"))
    assert done.verdict.kept.tolist() == [True, True, False, True, True]
    assert done.noted == {"charset_overruled": 1, "replacement_characters": 1, "pages": 4}, (
        "texts that were no pages are the reader's to count"
    )
    undeclared = batch_of(b"<p>" + russian, PAGE)
    undeclared = undeclared.set_column(
        undeclared.schema.get_field_index("charset"), "charset", pa.nulls(2, pa.string())
    )
    assert Extract(engine="resiliparse").apply(undeclared).noted == {"charset_detected": 1, "pages": 2}


@pytest.mark.parametrize("page", [None, 7, ["<p>"]])
def test_what_is_no_page_is_refused_in_words(page):
    with pytest.raises(TypeError, match="a page as bytes or str was expected"):
        extract(page)
