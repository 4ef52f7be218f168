"""Where words stand in a text: found in any case, each letter in its place, and nothing lost or made up."""

from __future__ import annotations

from hypothesis import given, strategies as st

from gristmill.pipeline.explore.search import folded, marked, matches


def plainly(text: str, *words: str) -> str:
    return "".join(f"[{piece}]" if match else piece for piece, match in marked(text, matches(text, words)))


def test_words_are_marked_in_any_case_the_longer_first() -> None:
    assert plainly("Here stands the Millstone", "MILL", "millstone") == "Here stands the [Millstone]"
    assert plainly("粉屋は良いものを残し", "ものを") == "粉屋は良い[ものを]残し"
    assert plainly("the mill", "absent") == plainly("the mill") == "the mill"


@given(st.text(max_size=300), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_marks_change_nothing(text: str, words: list[str]) -> None:
    pieces = marked(text, matches(text, words))
    assert "".join(piece for piece, _ in pieces) == text and all(piece for piece, _ in pieces)
    assert any(match for _, match in pieces) == any(folded(word) in folded(text) for word in words)


def test_letters_keep_their_places() -> None:
    assert folded("İSTANBUL ẞ") == "İstanbul ß" and plainly("In İSTANBUL", "istanbul", "STANBUL") == "In İ[STANBUL]"


def test_a_hostile_text_takes_no_longer() -> None:
    assert len([*matches("a" * 3_000_000 + "b", ["a" * 400 + "b"])]) == 1
    assert len([*matches("ab" * 100_000, ["a", "ab", "b"])]) == 100_000
