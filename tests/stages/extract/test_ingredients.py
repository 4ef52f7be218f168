"""A recipe's ingredients that the page states are in its text, whatever the markup around them says."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from gristmill.stages.extract.engines import extract
from gristmill.stages.extract.gristmill import look_at
from gristmill.stages.extract.ingredients import with_ingredients

STORY = "The miller's wife bakes this bread on Sundays, when the oven is warm from the week and the house is full. "
INGREDIENTS = ["500 g rye flour", "350 ml water", "2 tsp salt", "10 g fresh yeast", "1 tbsp caraway seeds"]


def page(stated: object, shown: list[str] = INGREDIENTS, box: str = "footer") -> bytes:
    fact = {"@type": "Recipe", "name": "Bread", "recipeIngredient": stated}
    lines = "".join(f"<div><a href='/i/{n}'>{line}</a></div>" for n, line in enumerate(shown))
    more = "".join(
        f"<div><a href='/m/{n}'>{word}</a></div>" for n, word in enumerate(["salt", "Home", "Contact", "Imprint"])
    )
    return (
        f"<html><head><title>Bread</title><script type='application/ld+json'>{json.dumps(fact)}</script></head><body>"
        f"<nav>{more}</nav><article>{f'<p>{STORY * 3}</p>' * 5}</article><{box}>{lines}</{box}></body></html>"
    ).encode()


def test_a_list_that_the_choice_leaves_out_is_taken_where_the_page_states_it() -> None:
    without = extract(page(None)).text
    assert "rye flour" not in without  # links in a footer
    text = extract(page(INGREDIENTS)).text
    assert all(line in text for line in INGREDIENTS) and "Contact" not in text
    assert text.replace("\n", " ").count("salt") == 1  # the menu's is not in the list


@pytest.mark.parametrize(
    "stated",
    [None, "500 g rye flour", [], INGREDIENTS[:2], [1, None, {"name": "salt"}], ["lentils", "peas", "beans"]],
)
def test_what_is_no_list_changes_nothing(stated: object) -> None:
    assert extract(page(stated)).text == extract(page(None)).text


def test_ingredients_that_the_text_has_already_bring_no_second_list() -> None:
    html = page(INGREDIENTS).replace(STORY.encode(), (STORY + " ".join(INGREDIENTS)).encode())
    text = extract(html).text
    assert text.count("rye flour") == text.count("The miller's wife") > 3


def test_words_that_the_instructions_say_as_well_are_no_list() -> None:
    amounts = "Weigh what the list says: 500, 350, 2, 10 and 1, in g, ml, tsp and tbsp, and take your time with it. "
    names = "The rye flour, the water, the salt, the fresh yeast and the caraway seeds go into a bowl, one by one. "
    html = page(INGREDIENTS).replace(STORY.encode(), f"{STORY}</p><p>{amounts}</p><p>{names}".encode(), 3)
    text = extract(html).text
    assert amounts.strip() in text and names.strip() in text
    assert all(line in text for line in INGREDIENTS)


def test_stated_ingredients_may_have_entities() -> None:
    shown = ["½ l milk", "¼ l cream", "⅓ l water"]
    text = extract(page([line.replace("½", "&frac12;").replace("¼", "&frac14;") for line in shown], shown)).text
    assert all(line in text for line in shown)


def test_hostile_statements_are_bounded() -> None:
    many = [f"{n} g flour number {n}" for n in range(100_000)]
    started = time.process_time()
    assert extract(page(many, shown=[f"{n} g flour" for n in range(50_000)])).text
    assert time.process_time() - started < 10
    seen = look_at(page(INGREDIENTS))
    kept = np.zeros(len(seen.page.element), np.bool_)
    assert not with_ingredients(seen.page, seen.measured.counts, kept, many).any()
    assert "The miller's wife" in extract(page(many)).text
