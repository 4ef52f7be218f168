"""What our engine promises: the main text, what a page says of itself, a reason for pages that are none, and no page
that harms it."""

from __future__ import annotations

import json
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.blocks.model import SHIPPED, BlockModelError, choose_blocks, load, save
from gristmill.kernels.html.names import KIND_OF, KNOWN, META_NAMES
from gristmill.stages.documents import Collector
from gristmill.stages.extract import metadata
from gristmill.stages.extract.choices import REASONS
from gristmill.stages.extract.engines import extract, extract_blocks
from gristmill.stages.extract.gristmill import is_utf8, look_at, no_page, utf8
from gristmill.stages.extract.stage import Extract

PAGES = Path(__file__).parents[4] / "shared" / "data" / "pages.parquet"
SENTENCE = "Die Mühle mahlt langsam, aber sie mahlt vortrefflich klein; niemand hat sie je eilen sehen. "
ARTICLE = f"""<!doctype html><html lang=de><head><meta charset=utf-8><title>Die Mühle - Blatt</title></head><body>
<nav><ul><li><a href=/>Start</a><li><a href=/a>Politik</a><li><a href=/b>Sport</a></ul></nav>
<main><article><h1>Die Mühle</h1><p>{SENTENCE * 3}</p><p>{SENTENCE * 4}</p><p>{SENTENCE * 3}</p></article></main>
<footer><p><a href=/impressum>Impressum</a> <a href=/datenschutz>Datenschutz</a></p></footer></body></html>"""


def test_main_text_stays_and_the_rest_goes():
    page = extract(ARTICLE)
    assert page.text.count("vortrefflich") == 10 and "Die Mühle" in page.text
    assert "Impressum" not in page.text and "Sport" not in page.text and page.no_page is None


def test_bytes_text_and_charsets_give_the_same():
    latin = ARTICLE.replace("charset=utf-8", "charset=iso-8859-1").encode("latin-1")
    expected = extract(ARTICLE)
    assert extract(ARTICLE.encode()) == extract(b"\xef\xbb\xbf" + ARTICLE.encode()) == expected
    assert extract(latin) == expected and extract(ARTICLE.encode("utf-16"), charset="utf-16").text == expected.text


def test_blocks_say_what_was_made_of_them():
    blocks = extract_blocks(ARTICLE)
    assert [b.text[:9] for b in blocks if b.kept] == ["Die Mühle"] * 3
    assert {b.tag for b in blocks if b.kept} == {"p"} and not next(b for b in blocks if b.tag == "h1").kept, (
        "the headline is the title"
    )
    assert not next(b for b in blocks if b.text == "Sport").kept
    assert all(0 <= b.probability <= 1 for b in blocks)


def test_json_ld_speaks_first():
    said = {"@graph": [
        {"@type": "Organization", "name": "Blatt"},
        {"@type": ["NewsArticle"], "headline": "Mahlen &amp; mehr", "author": [{"name": "Ann M"}, {"name": "Bo"}], "datePublished": "2024-05-06T07:00"},
    ]}  # fmt: skip
    head = f'<script type="application/ld+json">{json.dumps(said)}</script><link rel=canonical href="/x?a=1&amp;b=2"><meta name=author content=Zoe>'
    page = extract(ARTICLE.replace("</head>", head + "</head>"), "http://a.org/y")
    assert (page.title, page.author, page.date, page.kind) == (
        "Mahlen & mehr",
        "Ann M, Bo",
        "2024-05-06T07:00",
        "article",
    )
    assert (page.language, page.canonical) == ("de", "http://a.org/x?a=1&b=2")


def test_a_title_is_freed_of_the_name_of_the_site():
    assert extract(ARTICLE).title == "Die Mühle"
    assert extract("<title>A - b - C d</title><meta property=og:site_name content='c D'>").title == "A - b"
    assert extract("<title>A - b</title>").title == "A - b"


def test_a_page_with_little_in_its_markup_gives_the_text_of_its_head():
    said = {
        "@type": "Product",
        "name": "Mug",
        "description": "A mug of stoneware, <b>thrown</b> by hand and glazed twice. " * 5,
    }
    page = extract(f'<script type="application/ld+json">{json.dumps(said)}</script><body><div id=app></div><p>Menu</p>')
    assert page.text.startswith("A mug of stoneware, thrown by hand") and page.kind == "product"


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<frameset><frame src=a.html><frame src=b.html></frameset>", "frames"),
        ("<meta http-equiv=refresh content='0; url=/new'><p>This page has moved.</p>", "redirect"),
        ("<html><head><script>window.location.href='/new'</script></head><body></body></html>", "redirect"),
        ("<title>Seite nicht gefunden</title><h1>404</h1><p>Die Seite gibt es nicht. <a href=/>Startseite</a></p>", "not_found_page"),
        ("<title>ページが見つかりません</title><p>お探しのページは見つかりません</p>", "not_found_page"),
        ("<h1>Log in</h1><form><input name=user><input type=password name=p><button>Go</button></form>", "login_wall"),
        ("<h1>Connexion</h1><form><input name=user><input name=p type='password'></form>", "login_wall"),
        ("<body><noscript>You need to enable JavaScript to run this app.</noscript><div id=root></div><script src=a.js></script>", "needs_script"),
        ("<body><div id=root></div><script>" + "a();" * 600 + "</script>", "needs_script"),
        (ARTICLE, None),
        (ARTICLE.replace("<head>", "<head><meta http-equiv=refresh content='300;url=/'>"), None),
        (ARTICLE.replace("Die Mühle - Blatt", "404 not found: a log in story") + "<input type=password>", None),
        ("<p>hello", None),
        ("", None),
    ],
)  # fmt: skip
def test_pages_that_are_no_pages(page, reason):
    assert extract(page).no_page == reason
    collector = Collector("web", "a.warc", pages=True)
    collector.add(0, html=page.encode(), charset="utf-8")
    assert Extract().apply(collector.take().documents).verdict.reason(0) == (reason or (None if page else "no_text"))


def test_no_reviewed_page_is_called_none():
    if not PAGES.exists():
        pytest.skip(f"{PAGES} is not here")
    import pyarrow.parquet as pq

    table = pq.read_table(PAGES, columns=["html", "main_content"]).slice(0, 300)
    found = [no_page(look_at(utf8(row["html"]))) for row in table.to_pylist() if row["main_content"]]
    assert len(found) > 250 and set(found) == {None}


@given(st.text("<>/!-='\" ab&;pdivscrtmonlhx\n\0é中", max_size=300))
@settings(max_examples=300)
def test_any_markup_comes_out_as_text(page):
    text = extract(page).text
    assert "\0" not in text and text == text.strip()
    text.encode()


@pytest.mark.parametrize(
    "page",
    [
        b"<div>" * 2_000_000, b"<p>a" * 500_000, b"a" * 10_000_000, bytes(range(256)) * 20_000, b"<!-- " * 500_000, b"<p " + b"a=b " * 500_000 + b">x</p>",
        b'<meta name="description" content="x y z">' * 50_000, b"<meta " + b"a" * 1_000_000,
        b'<script type="application/ld+json">{"@type":"Article","a":' + b"[" * 200_000 + b"</script><p>x", b"<meta content='" * 100_000,
    ],
    ids=["div", "p", "word", "binary", "comments", "attributes", "metas", "long meta", "deep json", "open quotes"],
)  # fmt: skip
def test_time_is_bounded(page):
    extract(ARTICLE)
    started = time.process_time()
    extract(page)
    assert time.process_time() - started < 10


def test_utf8_is_known_without_decoding():
    assert is_utf8("é中😀".encode()) and is_utf8(b"") and not is_utf8(b"caf\xff") and not is_utf8(b"\xed\xa0\x80")
    data = ARTICLE.encode()
    assert utf8(data) == data and utf8(b"a\0b") == b"ab" and utf8("a\ud800") == b"a?"


def test_the_shipped_model_is_small_and_saves_as_it_loads(tmp_path):
    assert SHIPPED.stat().st_size < 2 << 20
    save(load(), tmp_path / "again.npz")
    again = load(tmp_path / "again.npz")
    for forest in ("first", "second"):
        for one, other in zip(getattr(load(), forest), getattr(again, forest), strict=True):
            assert np.array_equal(one, other)


def test_a_file_that_is_no_model_is_named(tmp_path):
    broken = tmp_path / "a.npz"
    broken.write_bytes(b"no model")
    with pytest.raises(BlockModelError, match=r"a\.npz: the model cannot be read"):
        load(broken)
    np.savez(broken, features=np.array(["x"]))
    with pytest.raises(BlockModelError, match="trained for other features"):
        load(broken)


def test_the_choice_promises_the_highest_f1():
    assert choose_blocks(np.array([0.9, 0.2, 0.8], np.float32), np.array([10, 50, 10], np.int32), 1.0).tolist() == [
        True,
        False,
        True,
    ]
    assert choose_blocks(np.array([0.5, 0.5], np.float32), np.array([10, 10], np.int32), 1.0).all()
    assert choose_blocks(np.array([0.01], np.float32), np.array([10], np.int32), 1.0).tolist() == [True], (
        "the best there is"
    )


def test_markdown_is_ours_alone():
    with pytest.raises(ValueError, match="resiliparse writes text alone"):
        Extract(engine="resiliparse", form="markdown")


@pytest.mark.parametrize("comments", ["keep", "apart"])
def test_comments_are_told_apart_by_ours_alone(comments):
    with pytest.raises(ValueError, match="resiliparse cannot tell readers' comments"):
        Extract(engine="resiliparse", comments=comments)
    with pytest.raises(ValueError, match="plain cannot tell readers' comments"):
        extract(b"<p>a b c</p>", engine="plain", comments=comments)


def test_an_empty_batch_and_reasons():
    assert len(Extract()(pa.Table.from_batches([Collector("web", "a", pages=True).take().documents]))) == 0
    assert len(REASONS) == 6


def test_a_page_of_too_many_blocks_goes_with_a_reason():
    page = extract(b"<p>x" * 200_001)
    assert page.text == "" and page.no_page == "too_many_blocks"
    assert extract(b"<p>some words in it" * 1000).no_page is None


NAMES = ["og:title", "description", "Author", "citation_author", "og:type", "product:price", "x", "keywords"]
QUOTE = st.sampled_from(['"', "'", ""])
TAGS_OF_META = st.builds(
    "<meta{}{}={}{}{} content={}{}{}{}".format,
    st.sampled_from([" ", "\n", "  "]),
    st.sampled_from(["name", "PROPERTY", "itemprop", "http-equiv"]),
    QUOTE,
    st.sampled_from([*NAMES, "a b", " title ", "näme"]),
    QUOTE,
    QUOTE,
    st.sampled_from(["", "product", "a &amp; b", "  two\n words ", "' name=title", "x=1 name=title", "<b"]),
    QUOTE,
    st.sampled_from([">", " />", " name=title>", ' content="other">']),
)


class MetaTags(HTMLParser):
    """The meta tags of a page, as Python's own parser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.meta: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(reversed(attrs))
        content = " ".join((values.get("content") or "").split())
        for key in ("property", "name", "itemprop") if tag == "meta" and content else ():
            name = " ".join((values.get(key) or "").lower().split())
            if name and name in META_NAMES:
                self.meta.setdefault(name, content)


def balanced(tags: list[str]) -> bool:
    """Whether no quote is open at the end of a tag: Python's parser gives such a page up."""
    return all(tag.count('"') % 2 == tag.count("'") % 2 == 0 for tag in tags)


@given(st.lists(TAGS_OF_META, min_size=1, max_size=4).filter(balanced))
def test_meta_tags_are_read_as_by_a_parser(tags: list[str]) -> None:
    expected = MetaTags()
    expected.feed("".join(tags))
    head = look_at("".join(tags).encode()).head
    assert {name: head.meta(name) for name in head.named} == expected.meta
    assert head.says("product") >= (expected.meta.get("og:type") == "product")


def test_names_of_meta_tags_that_are_asked_for_are_cut() -> None:
    asked = {*metadata.TITLES, *metadata.AUTHORS, *metadata.ONE_TAG_EACH, *metadata.DATES}
    assert len(asked) == 34 and asked <= set(META_NAMES) and set(KIND_OF) == set(KNOWN)
