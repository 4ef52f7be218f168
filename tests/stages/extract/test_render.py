"""Chosen blocks as text: lists, tables, code and quotes keep their shape, in both forms."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.html.paragraphs import places_of
from gristmill.kernels.html.segment import segment
from gristmill.stages.extract.render import _joined, _marked_items, _units, numbered, render


def rendered(source, form, without=()):
    page = segment(np.frombuffer(source.encode(), np.uint8))
    texts = [page.text[a:b].tobytes().decode() for a, b in zip(page.start[:-1], page.start[1:], strict=True)]
    return render(
        page, np.array([text not in without for text in texts], np.bool_), form, numbered(source.encode(), page)
    )


@pytest.mark.parametrize(
    ("source", "text", "markdown"),
    [
        ("<h2>A<br>b</h2><p>c<p>d<br>e", "A\nb\n\nc\n\nd\ne", "## A b\n\nc\n\nd\ne"),
        ("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>e", "- a\n- b\n  - c\n- d\n\ne", "- a\n- b\n  - c\n- d\n\ne"),
        ("<ol><li>a<li>b<p>c</ol>", "1. a\n2. b\n   c", "1. a\n2. b\n   c"),
        (
            "<ol><li>a</ol><p>b</p><ol class=x START='2'><li>c<li>d</ol>",
            "1. a\n\nb\n\n2. c\n3. d",
            "1. a\n\nb\n\n2. c\n3. d",
        ),
        ("<ol start=9><li>a<br>b<li>c</ol>", "9. a\n   b\n10. c", "9. a\n   b\n10. c"),
        (
            "<ol reversed><li>a<li hidden>b<li>c<ol><li>d</ol></ol>",
            "3. a\n2. b\n1. c\n   1. d",
            "3. a\n2. b\n1. c\n   1. d",
        ),
        ("<ol data-start=7 start=x><li>a</ol><ol start=99999999999><li>b</ol>", "1. a\n1. b", "1. a\n\n1) b"),
        ("<pre><ol start=4><li>a<li>  b</ol></pre>", "a\n  b", "```\na\n  b\n```"),
        ("<ul><li><h3>a</h3><p>b<li><h3>c</h3></ul>", "a\n\nb\n\nc", "### a\n\nb\n\n### c"),
        ("<blockquote><p>a<p>b</blockquote>c", "a\n\nb\n\nc", "> a\n>\n> b\n\nc"),
        ("<pre>a\n  b</pre>c", "a\n  b\n\nc", "```\na\n  b\n```\n\nc"),
        ("<pre><div>a</div><div>  b ```</div></pre>", "a\n  b ```", "````\na\n  b ```\n````"),
        ("<table><tr><th>a<th>b<tr><td>1<td>2|3</table>", "a | b\n1 | 2|3", "| a | b |\n| --- | --- |\n| 1 | 2\\|3 |"),
        (
            "<table><tr><td>a<td><td>b<tr><td>c<td>d<td></table>",
            "a |  | b\nc | d",
            "| a |  | b |\n| --- | --- | --- |\n| c | d |  |",
        ),
        ("<table><tr><td><p>a<p>b<td>c</table>", "a\n\nb\n\nc", "a\n\nb\n\nc"),  # a table for layout
        ("<table><tr><td>a<td><table><tr><td>b<td>c</table></table>", "a\n\nb | c", "a\n\n| b | c |\n| --- | --- |"),
        (
            "<table><tr><td><pre>1\n2</pre><td><pre>x\n y</pre></table>",
            "1\n2\n\nx\n y",
            "```\n1\n2\n```\n\n```\nx\n y\n```",
        ),
        ("<ol><li>a<li value=7>b<li>c<li value=-1>d<li value=x>e</ol>", *["1. a\n7. b\n8. c\n-1. d\n0. e"] * 2),
        ("<ol reversed start=9><li>a<li value=' +3px'>b<li>c</ol>", *["9. a\n3. b\n2. c"] * 2),
        ("<ol><li>a<li value=9999999999>b</ol><ul><li value=4>c</ul>", "1. a\n2. b\n- c", "1. a\n2. b\n\n- c"),
        # lists that follow each other
        ("<ul><li>a<li>b</ul><ul><li>c</ul>", "- a\n- b\n- c", "- a\n- b\n\n* c"),
        ("<ol><li>a</ol><div><ol><li>b<li>c</ol></div>", "1. a\n1. b\n2. c", "1. a\n\n1) b\n2) c"),
        ("<ul><li>a</ul><ul><li>b</ul><ul><li>c</ul>", "- a\n- b\n- c", "- a\n\n* b\n\n- c"),
        ("<ul><li>a</ul><ol><li>b</ol><p>c<ul><li>d</ul>", "- a\n1. b\n\nc\n\n- d", "- a\n\n1. b\n\nc\n\n- d"),
        (
            "<ul><li>a<ul><li>b</ul><ul><li>c</ul><li>d</ul>",
            "- a\n  - b\n  - c\n- d",
            "- a\n  - b\n\n  * c\n- d",
        ),
        ("<ul><li>a</li><ul><li>b</li></ul><li>c</ul>", *["- a\n- b\n- c"] * 2),  # one list, wrongly nested
        (
            "<table><tr><th>a<th>b<tr><td>c<td><ul><li>d<li>e.<li>f</ul>g</table>",
            "a | b\nc | d; e. f g",
            "| a | b |\n| --- | --- |\n| c | d; e. f g |",
        ),
        (
            "<table>x<tr><th>a<th>b<tr>y<td>c<td>d</table>",
            "x\n\na | b\ny\n\nc\n\nd",
            "x\n\n| a | b |\n| --- | --- |\n\ny\n\nc\n\nd",
        ),
        ("<dl><dt>a<dd>b<dd>c<dt>d<dd>e</dl>", "a\nb\nc\n\nd\ne", "a\n: b\n: c\n\nd\n: e"),
        ("", "", ""),
    ],
)
def test_shapes(source, text, markdown):
    assert rendered(source, "text") == text
    assert rendered(source, "markdown") == markdown


def test_numbers_count_items_that_were_not_chosen():
    assert rendered("<ol><li>a<li>b<li>c</ol>", "text", without={"b"}) == "1. a\n3. c"


def test_an_item_inside_one_that_was_not_chosen_is_not_indented():
    assert rendered("<ul><li>a<ul><li>b</ul></ul>", "markdown", without={"a"}) == "- b"


def test_a_row_of_which_one_cell_was_chosen_is_a_line():
    assert rendered("<table><tr><td>a<td>b<tr><td>c<td>d</table>", "text", without={"b", "d"}) == "a\nc"


def test_deep_quotes_and_long_fences_are_bounded():
    deep = rendered("<blockquote>a" * 3000, "markdown").splitlines()
    assert len(deep) == 5999 and max(map(len, deep)) == len("> " * 16 + "a")
    fence = rendered(f"<pre>{'`' * 300_000}</pre>", "markdown").split("\n")[0]
    assert fence == "`" * 300_001


pieces = st.sampled_from(
    [
        "<p>",
        "<ul>",
        "<ol>",
        "<li>",
        "</ul>",
        "</ol>",
        "<table>",
        "<tr>",
        "<td>",
        "<th>",
        "</table>",
        "<pre>",
        "</pre>",
        "<blockquote>",
        "</blockquote>",
        "<h1>",
        "</h1>",
        "<dl>",
        "<dt>",
        "<dd>",
        "<br>",
        "<div>",
        "</div>",
        "word",
        "a|b",
    ]
)


@given(st.lists(pieces, max_size=40), st.sampled_from(["text", "markdown"]), st.randoms())
def test_every_chosen_block_is_there_in_order(pieces, form, random):
    numbered = "".join(f" w{i} " if piece == "word" else piece for i, piece in enumerate(pieces))
    page = segment(np.frombuffer(numbered.encode(), np.uint8))
    chosen = np.array([random.random() < 0.7 for _ in page.element], np.bool_)
    expected = [
        word
        for a, b, keep in zip(page.start[:-1], page.start[1:], chosen, strict=True)
        if keep
        for word in page.text[a:b].tobytes().decode().split()
        if word[0] == "w"
    ]
    assert [word for word in render(page, chosen, form).split() if word[0] == "w"] == expected


def test_many_lists_that_count_down_are_counted_once():
    source = "<ol reversed><li>a<li>b</ol>" * 3000
    assert rendered(source, "text").split() == ["2.", "a", "1.", "b"] * 3000


ITEMS = ["<ul>", "</ul>", "<ol>", "<ol start=-3>", "<ol reversed>", "</ol>", "<li>", "<li>", "</li>", "<h3>", "</h3>"]
ITEMS += ["<li value=7>", "</ul><ul>", "</ol><ol><li>", "</ul><ol><li>"]
OTHERS = ["<blockquote>", "</blockquote>", "<dl><dt>", "<dd>", "</dl>", "<table>", "<tr>", "<td>", "</table>", "<p>"]
WORDS = [" a", "<br>b ", "c<br>d<br>e", "żółw &amp; 水", "<p>"]


@pytest.mark.parametrize("form", ["text", "markdown"])
@given(st.lists(st.sampled_from(ITEMS + OTHERS + WORDS * 3), max_size=40), st.randoms(use_true_random=False))
def test_the_kernel_writes_paragraphs_and_lists_as_the_plain_code_does(form, pieces, random):
    source = "".join(pieces).encode()
    page = segment(np.frombuffer(source, np.uint8))
    chosen = np.array([random.random() < 0.8 for _ in page.element], np.bool_)
    blocks = np.flatnonzero(chosen)
    places = places_of(page.tag, page.parent, page.element[blocks])
    around = places.rows[page.element[blocks]]
    units = _units(page, blocks.tolist(), form, places, around, {})
    plain = _joined(units, _marked_items(page, units, numbered(source, page), form), form, {})
    with patch("gristmill.stages.extract.render.table_rows", lambda *_: {}):
        assert render(page, chosen, form, numbered(source, page)) == plain
