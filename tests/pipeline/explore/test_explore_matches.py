"""What a search shows of a text: the words in their surroundings, whole words at the ends, and nothing lost or made up."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gristmill.pipeline.explore.matches import LONGEST, excerpt, first_match, folded, marked, place_of

LONG = "The quick brown fox jumps over the lazy dog near the river bank. " * 40


def plainly(stretches: list[tuple[str, bool]] | None) -> str:
    return "".join(f"[{text}]" if match else text for text, match in stretches or [])


def test_an_excerpt_is_cut_between_words() -> None:
    text = LONG + "Here stands the millstone of it all. " + LONG
    found = plainly(excerpt(text, ("MILLSTONE",)))
    assert "Here stands the [millstone] of it all." in found and found.startswith("… ") and found.endswith(" …")
    inner = found.removeprefix("… ").removesuffix(" …").replace("[", "").replace("]", "")
    assert inner in text and set(inner.split()) <= set(text.split())
    assert plainly(excerpt("the mill", ("mill",))) == "the [mill]"


def test_a_word_that_begins_one_is_shown_rather_than_one_within() -> None:
    assert plainly(excerpt("understanding " + LONG + "a standing desk", ("standing",))).endswith("a [standing] desk")
    assert plainly(excerpt("understanding it", ("standing",))) == "under[standing] it"


def test_every_word_is_shown_once_at_least_if_it_fits() -> None:
    found = plainly(excerpt("alpha " + LONG + "omega " + LONG, ("omega", "alpha")))
    assert found.startswith("[alpha] The quick") and "[omega]" in found and " … " in found


def test_a_script_without_spaces_and_an_absent_word() -> None:
    text = "粉屋は良いものを残し、" * 60
    assert (
        "[ものを]" in plainly(excerpt(text, ("ものを",)))
        and excerpt(text, ("absent",)) is None
        and excerpt(text, ()) is None
    )


@given(st.text(max_size=300), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_marks_change_nothing(text: str, words: list[str]) -> None:
    parts = marked(text, words)
    assert "".join(its for its, _ in parts) == text and all(its for its, _ in parts)
    assert (first_match(text, words) is not None) == any(match for _, match in parts)
    shown = excerpt(text, words)
    if shown is not None:
        assert sum(len(its) for its, _ in shown) <= LONGEST + 3 * 250
        assert any(match for _, match in shown) or not all(word.strip() for word in words)


def test_letters_keep_their_places() -> None:
    assert (
        folded("İSTANBUL ẞ") == "İstanbul ß"
        and plainly(marked("In İSTANBUL", ("istanbul", "STANBUL"))) == "In İ[STANBUL]"
    )


def test_a_hostile_text_takes_no_longer() -> None:
    assert excerpt("a" * 3_000_000 + "b", ("a" * 400 + "b",)) is not None
    assert excerpt("xa" * 3_000_000 + " a", ("a",)) is not None and place_of("xa" * 3_000, "a") == 1
    assert len(marked("ab" * 100_000, ("a", "ab", "b"))) == 100_000
