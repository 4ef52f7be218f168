"""What readers wrote is told from the text, and left out, kept or put apart; and what the model of blocks learns from."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from gristmill.classifiers.blocks.training import words_of
from gristmill.stages import Extract
from gristmill.stages.extract.engines import extract
from gristmill.stages.extract.gristmill import look_at, visible_text
from gristmill.stages.extract.training_pages import KnownPage, book, mark_snippets, recipe_lines, variant

SENTENCE = "The mill stood still that summer, since the river ran low, and the village bought its flour elsewhere. "
REMARK = "My grandfather worked there until the flood, and he told us of the wheel whenever it rained for a week. "
PAGE = (
    "<html><head><title>The mill</title>{head}</head><body><article><h1>The mill</h1>{text}"
    '<div class="{box}">{remarks}</div></article></body></html>'
)


def page(box: str = "comments", paragraphs: int = 10, head: str = "") -> bytes:
    text = "".join(f"<p>{number}. {SENTENCE * 2}</p>" for number in range(paragraphs))
    remarks = "".join(f"<p>{number}. {REMARK * 3}</p>" for number in range(6))
    return PAGE.format(text=text, remarks=remarks, box=box, head=head).encode()


def test_comments_are_left_out_kept_or_put_apart() -> None:
    kept = extract(page(), comments="keep")
    assert "grandfather" in kept.text and kept.comments is None
    left_out = extract(page())
    assert "grandfather" not in left_out.text and "summer" in left_out.text and left_out.comments is None
    apart = extract(page(), comments="apart")
    assert apart.text == left_out.text
    assert apart.comments is not None and apart.comments.count("grandfather") == kept.text.count("grandfather") > 0


@pytest.mark.parametrize(
    "html",
    [
        page(box="text"),
        page(paragraphs=1),  # the remarks are the text
        page(head='<script type="application/ld+json">{"@type": "DiscussionForumPosting"}</script>'),
        page().replace(b'<div class="comments">', b'<div class="forum comments">'),
    ],
)
def test_what_a_page_is_about_stays(html: bytes) -> None:
    assert "grandfather" in extract(html).text


def test_the_stage_puts_comments_into_meta() -> None:
    table = pa.table(
        {"html": pa.array([page()], pa.large_binary())}
        | {name: pa.array([None], pa.string()) for name in ("charset", "text", "url", "meta")}
    )
    meta = json.loads(Extract(comments="apart")(table)["meta"][0].as_py())
    assert "grandfather" in meta["comments"] and "grandfather" not in Extract()(table)["text"][0].as_py()


def test_variants_have_the_same_words() -> None:
    wanted = words_of(visible_text(look_at(page())))
    variants = {variant(page(), str(seed)) for seed in range(40)}
    assert len(variants) > 20
    for data in variants:
        assert words_of(visible_text(look_at(data))) == wanted
    assert variant(page(), "7") == variant(page(), "7")


def test_recipes_and_snippets_are_labels() -> None:
    facts = {"@graph": [{"recipeIngredient": ["2 eggs"], "recipeInstructions": [{"text": "Beat <b>them</b>."}]}]}
    html = f'<script type="application/ld+json">{json.dumps(facts)}</script>'.encode()
    assert [line.split() for line in recipe_lines(html)] == [["2", "eggs"], ["Beat", "them", "."]]
    assert recipe_lines(b'<script type="application/ld+json">{"recipeIngredient": </script>') == []
    known = KnownPage("trafilatura", "a", "a", b"", "", "", must_have=["the mill"], must_not_have=["Share this"])
    labels = np.array([np.nan, 1.0, 0.5])
    mark_snippets(known, [["by", "the", "mill"], ["share", "this"], ["else"]], labels)
    assert labels.tolist() == [1.0, 0.0, 0.5]


def test_books_have_all_their_lines_in_any_markup() -> None:
    lines = [("Chapter 1", True), *((f"{number}. {SENTENCE}", False) for number in range(5))]
    books = {book(lines, random.Random(seed)) for seed in range(30)}
    assert len(books) > 10
    for html in books:
        text = " ".join(words_of(visible_text(look_at(html))))
        assert all(" ".join(words_of(line)) in text for line, _ in lines)
