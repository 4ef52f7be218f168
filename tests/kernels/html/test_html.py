"""A page's elements and blocks: what the HTML standard says text is, equal to the reference on anything, linear on
hostile pages."""

import html.entities
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.html import names
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.open_elements import DEEPEST
from gristmill.kernels.html.segment import segment
from tests.reference.html_plain import segment_plain

PAGES = Path(__file__).parents[3] / ".." / "shared" / "data" / "pages.parquet"

VALUES = st.sampled_from(
    ["", "x", "nav-item b", "side bar", "ADS", "katex-html", "cookie&amp;consent", "display : none", "a>b", "é", "application/ld+json",
    "display",
     "math/tex; mode=display", "MATH/TEX", "application/x-tex", " application/x-tex ;q", "true", "block", "&nGt;x", "&not=1", "&copy2",
     " x\ry ", " 7", "-12", "+3px", "1234567890"]
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "class",
        "CLASS",
        "id",
        "role",
        "style",
        "hidden",
        "aria-hidden",
        "href",
        "type",
        "encoding",
        "alttext",
        "display",
        "open",
        "shadowrootmode",
        "value",
        "=",
        "data-x",
    ]
)
attribute = st.one_of(
    KEYS,
    st.builds("{}={}".format, KEYS, VALUES),
    st.builds('{}="{}"'.format, KEYS, VALUES),
    st.builds("{} = '{}'".format, KEYS, VALUES),
)
NAMES = st.one_of(
    st.sampled_from(TAGS[1:]),
    st.sampled_from(
        [
            "p",
            "li",
            "ul",
            "a",
            "table",
            "tr",
            "td",
            "pre",
            "br",
            "math",
            "annotation",
            "svg",
            "script",
            "title",
            "h2",
            "span",
            "DIV",
            "x-y",
            "mi",
            "xmp",
            "form",
        ]
    ),
)
start = st.builds(
    "<{}{}{}>".format,
    NAMES,
    st.lists(attribute, max_size=3).map(lambda a: "".join(" " + x for x in a)),
    st.sampled_from(["", "", "/", " "]),
)
end = st.builds("</{}{}>".format, NAMES, st.sampled_from(["", "", " ", "/", " x=1"]))
words = st.sampled_from(
    ["1", "10<sup>", "$2<sup>99", "12</sup>/", "\u2212", "-3</SUP>&frasl;", "€1,0", "£", "語", "日\n 本", "ー\r", "！", "Ã", "\x80", "\x9f&nbsp;",
     "word", "a" * 31 + " b ", "The wheel turns, and the stones grind on all day. ", "Über den Fluss;  ☺ und 語 \u00a0 weiter und weiter &amp; weiter",
     " ", "  ", "\n", "\r\n", "\r", "\t", "a b", "\u00a0", "\u3000", "\u200b", "\u00ad", "\x00", "\x85", "\x0b", "é", "😀", "&",
    "&amp;", "&amp", "&notit;",
     "&nGt;", "&bne", "&bne;", "&#x80;", "&#0;", "&#55296", "&#1114112;", "&#", "&#x", "&#9;", "&#13;", "&#160;", "&shy;", "&unknown;",
     "&ThickSpace;",
     "x &lt; y", "$", "<", "</", "< p>", "<!", "<?", "</ p>", "<!-->", "<!--->", "<!--", "-->", "--!>", "<!-- a --!>", "<!-- - -- > -->",
     "<!doctype html>",
     "<![CDATA[", "]]>", "</script", "<script ", "</title>", "</svg>", "</math>", "</p>", "</br>", "<br>", "<br><br>", '"', "'", ">",
     "=", "/"]
)  # fmt: skip
markup = st.lists(st.one_of(words, start, end, st.text(max_size=3)), max_size=40).map("".join)


def page_of(source):
    return segment(np.frombuffer(source if isinstance(source, bytes) else source.encode(), np.uint8))


def texts(page):
    return [page.text[a:b].tobytes().decode() for a, b in zip(page.start[:-1], page.start[1:], strict=True)]


def shown(source):
    return texts(page_of(source))


def assert_equal(page, reference):
    assert texts(page) == texts(reference)
    for name, ours, theirs in zip(page._fields, page, reference, strict=True):
        assert ours.dtype == theirs.dtype, name
        assert ours.tolist() == theirs.tolist(), name


@settings(max_examples=1500)
@given(markup)
def test_the_twin_makes_the_same_page(source):
    data = source.encode("utf-8", "ignore")
    assert_equal(page_of(data), segment_plain(data))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # references
        ("&amp;&lt;&gt;&quot;&apos;", ["&<>\"'"]),
        ("I'm &notit; I tell you, &notin; you", ["I'm ¬it; I tell you, ∉ you"]),
        ("&amp no semicolon, &ampx, &hellip none", ["& no semicolon, &x, &hellip none"]),
        ("&nGt;&bne;&NotEqualTilde;", ["≫⃒=⃥≂̸"]),
        ("&#65;&#x41;&#X41;&#65x", ["AAAAx"]),
        ("&#128;&#x9F;&#150;", ["€Ÿ–"]),
        ("a&#0;&#x110000;&#xD800;&#99999999999999999999;", ["a\ufffd\ufffd\ufffd\ufffd"]),
        ("&#;&#x;&#xg;&;& &", ["&#;&#x;&#xg;&;& &"]),
        ("&CounterClockwiseContourIntegral;&CounterClockwiseContourIntegra;", ["∳&CounterClockwiseContourIntegra;"]),
        ("a&nbsp;b&#160;&ensp;c&zwnj;d&shy;e&ZeroWidthSpace;f", ["a b c\u200cdef"]),
        # white space
        (" \t\n a \r\n b \f ", ["a b"]),
        ("a <b> b </b> c", ["a b c"]),
        ("a<b>b</b>c", ["abc"]),
        ("a<br>b<br/> c</br>d", ["a\nb\nc\nd"]),
        ("a<br><br>b<br> <br>c", ["a", "b", "c"]),
        ("<pre>\n\n  a\r\n\tb\rc  \n\n</pre>", ["  a\n\tb\nc"]),
        ("<pre>a<br>b&nbsp;&nbsp;c</pre>", ["a\nb  c"]),
        ("\ufeffa\u200bb\u00ad\u2060c\u200f", ["abc"]),
        # NUL and controls
        ("a\0b\x01c<p\0>d&#1;e", ["abcde"]),
        # raw text
        ("<script>a<b></script>c<style>d</style >e<STYLE>f</sTyLe/>g", ["ceg"]),
        ("<script><!--<script></script>--></script>a", ["a"]),
        ("<script><!--</script>a", ["a"]),
        ("<script><!--><script></script>a", ["a"]),
        ("<script><!--<script></script></script>a", ["a"]),
        ("<script><!--<script>-></script>a</script>b", ["b"]),
        ("<script></scriptx></script>a", ["a"]),
        ("<textarea><p>a</textarea>b<title>c &amp; d</title>e", ["b", "e"]),
        ("<xmp>\n <b>&amp;</xmp>a", [" <b>&amp;", "a"]),
        ("a<plaintext></plaintext>&amp;", ["a", "</plaintext>&amp;"]),
        ("<noscript>a</noscript><iframe>b</iframe><noembed>c</noembed><noframes>d</noframes>e", ["a", "e"]),
        ("<noscript><!-- a</noscript>b<!-- c -->d", ["bd"]),  # who runs scripts reads no markup in it
        ("<noscript><iframe></noscript>a</iframe>b", ["ab"]),
        ("<noscript><img alt='></noscript>a", ["a"]),
        ("<noscript><style>a</noscript><noscript>b<script></NOSCRIPT >c", ["b", "c"]),
        ("<noscript>a<noscript>b</noscript><!-- c", ["a", "b"]),
        ("<noscript><p>a<!-- b --><p>c", ["a", "c"]),
        ("a<script>b", ["a"]),
        # comments, declarations
        ("a<!-->b<!--->c<!---->d<!----->e", ["abcde"]),
        ("a<!-- - -- > --!>b<!-- --!x -->c", ["abc"]),
        ("a<!--b", ["a"]),
        ("a<!doctype html \"x>b\">c", ["ab\">c"]),
        ("a<?xml b?>c<!x>d</ x>e</>f", ["acdef"]),
        ("a<![CDATA[b]]>c", ["ac"]),
        ("<math><mi><![CDATA[<b>&amp;]]></mi></math>", ["<b>&amp;"]),
        # tags
        ("a < b <3 <- <", ["a < b <3 <- <"]),
        ("a</", ["a</"]),
        ("a<b", ["a"]),
        ("a<p title='x", ["a"]),
        ("a<p title='>'b=\"<p>\" c=d>e", ["a", "e"]),
        ("<P CLASS=x>a<DIV>b</dIv>", ["a", "b"]),
        ("<p/>a<span/>b", ["ab"]),
        # what bounds a block
        ("<p>a<p>b</p>c</p>d", ["a", "b", "c", "d"]),
        ("<ul><li>a<li>b<ul><li>c</ul>d</ul>", ["a", "b", "c", "d"]),
        ("<table><tr><td>a<td>b<tr><th>c</table>", ["a", "b", "c"]),
        ("<dl><dt>a<dd>b<dt>c</dl>", ["a", "b", "c"]),
        ("a<!-- x -->b<span>c</span><unknown>d</unknown>", ["abcd"]),
        # what is not shown
        ("a<svg><title>b</title><text>c</text></svg>d", ["ad"]),
        ("a<svg><path><p>b", ["a", "b"]),
        ("<div>a<svg></div>b", ["a", "b"]),
        ("a<select><option>b<option>c</select>d", ["ad"]),
        ("a<template><p>b</template>c<template shadowrootmode=open>d</template>", ["acd"]),
        ("<ruby>漢<rp>(</rp><rt>kan</rt><rp>)</rp></ruby>", ["漢"]),
        ("<div hidden>a</div><p style='display:none'>b", ["a", "b"]),  # marked, not left out
        # formulas
        ('<math alttext="a&not=b &copyx &notin; &amp;&lt">', ["$a&not=b &copyx ∉ &<$"]),  # in an attribute
        ('a <math alttext="x^2 &lt; y"><mi>x</mi></math> b', ["a $x^2 < y$ b"]),
        ('<math display="block"><mi>x</mi><annotation encoding="application/x-tex"> \\sum_i </annotation><mi>z</mi></math>', ["$$\\sum_i$$"]),
        ("<math><mi>x</mi><mo>+</mo><mn>1</mn></math>", ["x+1"]),
        ('a <script type="math/tex">x<y</script> <script type="math/tex; mode=display">z</script>', ["a $x<y$ $$z$$"]),
        ('<p>a <span style="display:none"><math alttext="x"></math></span><span class="katex-html">x</span> b', ["a $x$ b"]),
        (r"\(a\) $$b$$", [r"\(a\) $$b$$"]),
        ("", []),
        (" \u200b&nbsp;", []),
        ("שלום <b>עולם</b> 😀👩‍👩‍👧", ["שלום עולם 😀👩‍👩‍👧"]),
    ],
)  # fmt: skip
def test_text(source, expected):
    assert shown(source) == expected
    assert texts(segment_plain(source.encode())) == expected


def path(page, element):
    found = []
    while element >= 0:
        found.append(TAGS[page.tag[element]])
        element = page.parent[element]
    return " ".join(reversed(found))


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("<html><head><title>x</title><body><p>a", ["html body p"]),
        ("<p>a<div>b</p>c</div>", ["html p", "html div", "html div"]),
        ("<table><td>a<p>b<td>c</table>", ["html table tr td", "html table tr td p", "html table tr td"]),
        (
            "<table><tbody><tr><td>a<table><tr><td>b</table><tr><td>c",
            ["html table tbody tr td", "html table tbody tr td table tr td", "html table tbody tr td"],
        ),
        ("<p>a<table><td></p>b</table>c", ["html p", "html table tr td", "html"]),
        ("<h1>a<h2>b</h1>c", ["html h1", "html h2", "html"]),
        ("<a href=x><div>a</a>b</div>c", ["html div", "html"]),
        ("<p><span class=price>a</span></p><p><span>b</span>", ["html p span", "html p"]),
        ("<p><span class=price>a</span><span class=price>b</span>", ["html p"]),
        ("<ul><li><div><ul><li>a</ul></div><li>b", ["html ul li div ul li", "html ul li"]),
        ("</div></table></p>a<tr><td>b</td>", ["html", "html"]),
    ],
)
def test_the_element_of_a_block(source, paths):
    page = page_of(source)
    assert [path(page, element) for element in page.element] == paths


def test_words_of_classes_and_hidden_attributes_are_bits():
    page = page_of(
        '<nav><div class="site-Nav main_menu"></div><p id=cookieBanner><p style="color:red;Display : none"><p hidden><p aria-hidden=true>'
        "<p aria-hidden=false><dialog></dialog><dialog open></dialog><p class='shadowy upload-thread'>"
    )
    bits = page.bits[1:]
    assert bits[0] == 0
    assert bits[1] & names.NAVIGATION
    assert bits[2] & names.CONSENT
    assert bits[3:9].tolist() == [names.HIDDEN, names.HIDDEN, names.HIDDEN, 0, names.HIDDEN, 0]
    assert bits[9] == names.FORUM


CLASSES = [
    "nav",
    "navigation",
    "site-navigation",
    "cookie-consent",
    "a",
    "main-content-area",
    "item-1234",
    "forum-posts",
    "\n",
]


@given(st.lists(st.lists(st.sampled_from(CLASSES), max_size=5).map(" ".join), min_size=1, max_size=12))
def test_a_value_says_the_same_wherever_it_stands_on_a_page(values):
    """A page's values are looked up in a table by a hash, so one may meet another of its length and its end."""
    tags = [f'<div class="{value}"></div>' for value in values + values]
    together = segment(np.frombuffer("".join(tags).encode(), np.uint8))
    alone = [segment(np.frombuffer(tag.encode(), np.uint8)) for tag in tags]
    assert len(together.bits) == len(tags) + 1
    assert together.bits[1:].tolist() == [int(page.bits[1]) for page in alone]
    assert together.alike[1:].tolist() == [int(page.alike[1]) for page in alone]


def test_elements_alike_have_the_same_tag_and_first_class():
    page = page_of('<li class="a b"><li class=" a c" id=x><li class=b><p class=a><x-y class=a><x-z class=a>')
    alike = page.alike[1:].tolist()
    assert alike[0] == alike[1]
    assert len(set(alike)) == 5


def test_characters_in_links_are_counted():
    page = page_of("<p>ab <a href=x>c é</a> d<p><a href=>e <b>f</b></a><p><a name=x>g</a>")
    assert list(zip(page.linked.tolist(), page.characters.tolist(), strict=True)) == [(4, 8), (3, 3), (0, 1)]


def test_tags_of_metadata_are_found():
    source = (
        '<html lang=en><title>a</title><meta name=b content="c>"><link rel=d><base href=e><time datetime=f>g</time>'
        '<script type="application/ld+json; x">{}</script>'
    )
    page = page_of(source)
    spans = [source[a:b] for a, b in zip(page.head_start, page.head_end, strict=True)]
    assert spans == [
        "<html lang=en>",
        "a",
        '<meta name=b content="c>">',
        "<link rel=d>",
        "<base href=e>",
        "<time datetime=f>",
        "{}",
    ]
    kinds = [
        names.HEAD_HTML,
        names.HEAD_TITLE,
        names.HEAD_META,
        names.HEAD_LINK,
        names.HEAD_BASE,
        names.HEAD_TIME,
        names.HEAD_JSON,
    ]
    assert page.head_kind.tolist() == kinds
    assert page_of("<svg><title>a</title></svg><template><title>b</title></template>").head_kind.size == 0


def test_each_list_with_numbers_has_its_tag():
    source = "<p><span class=katex-html><ol start=3><li>a</span><ol class=x START=4></ol><template><ol></ol></template><ul><li><ol>"
    page = page_of(source)
    lists = np.flatnonzero(page.head_kind == names.HEAD_LIST)
    assert [source[page.head_start[k] : page.head_end[k]] for k in lists][-2:] == ["<ol class=x START=4>", "<ol>"]
    assert len(lists) == np.count_nonzero(page.tag == TAGS.index("ol"))


def test_bytes_of_a_misread_encoding_stay_as_they_are():
    assert shown("<p>we\u00e2\x80\x99re d\u00c3\u00a0 l\u00c3&nbsp; don\x92t wait\x85") == [
        "we\u00e2\x80\x99re d\u00c3\u00a0 l\u00c3\u00a0 don\x92t wait\x85"
    ]
    assert shown("<p>caf\u00e9\u00a0! \u00c3\u00a0\u00a0x \x7f\u00ad") == ["caf\u00e9 ! \u00c3\u00a0 x"]


def test_a_line_of_the_source_that_ends_between_han_or_kana_is_no_space():
    assert shown("<p>日本\r\n  語。\n「か\nな」\nabc\n語 語\u3000\n語 한\n국 é\né") == [
        "日本語。「かな」 abc 語 語 語 한 국 é é"
    ]
    assert shown("<p>\n語\n<b>語</b>\n語\n</p><pre>語\n語</pre>") == ["語 語 語", "語\n語"]


def test_raised_numbers_do_not_run_into_the_number_before_them():
    assert shown(
        "<p>10<sup>15</sup> 10<sup>-3</sup> 10<sup>−6</sup> 1<sup>st</sup> m<sup>2</sup> 7 <sup>8</sup>, 68<sup class=a>2</sup>"
    ) == ["10^15 10^-3 10^−6 1st m2 7 8, 68^2"]
    assert shown("<p>5<sup>1</sup>/<sub>2</sub> 1<sup>1</sup>&frasl;<sub>4</sub> <sup>1</sup>/<sub>2</sub>") == [
        "5 1/2 1 1⁄4 1/2"
    ]
    assert shown("<p>$1,549<sup>00</sup> £9<sup>99</sup> €9<sup>9</sup> ガ9<sup>99</sup> $") == [
        "$1,549.00 £9.99 €9^9 ガ9^99 $"
    ]


def test_a_reference_is_never_shorter_than_five_sixths_of_its_text():
    assert all(5 * len(text.encode()) <= 6 * (len(name) + 1) for name, text in html.entities.html5.items())
    assert shown("&nGt;" * 1000) == ["≫⃒" * 1000]


N = 200_000
HOSTILE = {
    "nested": "<div>" * N, "nested and closed": "<div>" * N + "x" + "</div>" * N,
    "nested inline": "<b>" * N + "x", "nested lists": "<ul><li>x" * N,
    "attributes": "<p " + "a=b " * N + ">x", "one attribute": "<p a='" + "x" * N,
    "classes": "<p class='" + "nav " * N + "'>", "tables": "<table>" * N,
    "cells": "<table>" + "<td>x" * N, "open comments": "<!--" * N, "comments": "<!-->" * N, "declarations": "<!" * N,
    "open scripts": "<script>" * N,
    "doubly escaped": "<script><!--" + "<script></script " * N, "less-than": "<" * N, "ampersands": "&" * N,
    "long references": "&CounterClockwiseContourIntegra" * N,
    "a long number": "&#" + "1" * N, "open quotes": "<p a='" * N, "svg": "<svg>" * N, "svg left open": "<svg><p>" * N,
    "formulas": "<math>" * N,
    "formulas said twice": "<math>x<annotation encoding=application/x-tex>y" * N, "line breaks": "x<br>" * N,
    "blank code": "<pre>" + "\n " * N + "x" + " \n" * N,
    "end tags out of scope": "<p><table><td>" + "<b>" * 500 + "</p>" * N, "end tags of nothing": "<x>" * 512 + "</y>" * N,
    "raw ends": "<style>" + "</styl" * N,
    "links": "<a href=x>" * N, "a link in each": "<a href=x><div>" * N, "sections of data": "<math>" + "<![CDATA[" * N,
    "a name": "<" + "a" * N, "one word": "word " * N,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear(name):
    data = np.frombuffer(HOSTILE[name].encode(), np.uint8)
    segment(data[:100])
    begun = time.process_time()
    page = segment(data)
    assert time.process_time() - begun < 2e-6 * len(data) + 0.1
    depth = np.zeros(len(page.tag), np.int64)
    for element, parent in enumerate(page.parent.tolist()):
        if element:
            assert parent < element
            depth[element] = depth[parent] + 1
    assert depth.max() <= DEEPEST + 1


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_bounded(name):
    data = np.frombuffer(HOSTILE[name].encode(), np.uint8)
    segment(data[:100])
    tracemalloc.start()
    segment(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.5 * len(data) + 140 * HOSTILE[name].count("<") + 100_000


@pytest.mark.parametrize(
    "name", ["nested and closed", "nested lists", "a link in each", "cells", "end tags out of scope"]
)
def test_pages_deeper_than_the_stack_equal_the_twin(name):
    data = HOSTILE[name].replace("<b>" * 500, "<b>" * 50).encode()[:6000]
    assert_equal(page_of(data), segment_plain(data))


@pytest.mark.skipif(not PAGES.exists(), reason="needs ../shared/data/pages.parquet")
def test_real_pages_equal_the_twin():
    sources = pq.read_table(PAGES, columns=["html"]).column(0).slice(0, 600).to_pylist()
    small = [source.decode("utf-8", "replace").encode() for source in sources if len(source) < 120_000][:200:20]
    assert len(small) == 10
    for data in small:
        page = page_of(data)
        assert len(page.text) > 100
        assert_equal(page, segment_plain(data))


def test_any_bytes_of_a_page_can_be_broken():
    source = bytearray(
        b"<div class='nav x'>a&amp;<b>caf\xc3\xa9\xe2\x80\x8b\xef\xbb\xbf</b><!-- x --><script>y</script>"
        b"<pre> z\n</pre><math alttext=q></math>" * 3
    )
    random = np.random.default_rng(0)
    for _ in range(3000):
        broken = source[: random.integers(1, len(source))]
        for _ in range(random.integers(0, 5)):
            broken[random.integers(0, len(broken))] = random.integers(0, 256)
        page = page_of(bytes(broken))
        assert page.start[-1] == len(page.text) <= len(broken) * 6 // 5 + 1
        assert (page.linked <= page.characters).all()
        assert (page.element < len(page.tag)).all()
