"""A reasoned answer's mark is the one label after its last `Final Score:`, read alike by MEDU and by rubrics, or it is
none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.llm.last_score import last_score
from gristmill.classifiers.llm.model import Answer
from gristmill.classifiers.rating.prompts import LABELS
from gristmill.classifiers.rating.reading import MARKS, UNREAD, label_of
from gristmill.classifiers.rating.rubric import ByRubric

FIVE = ("1", "2", "3", "4", "5")
TWO_LABELS = [
    "Okay to Good", "okay to good", "Okay to good", "Okay-Good", "Okay–Good", "Good (or Great)", "good (or great)",
    "Great? No, Poor", "great? no, poor", "Great? no, poor", "Good → Great", "Good – Great", "Good — Great",
    "Good and Great", "**Good** / **Great**", "Good & Great", "Good - not Great", "Good. Great, rather", "Poor, Useless",
    "Good, if not quite as much as a Great one",
]  # fmt: skip
TWO_NUMBERS = [
    "4 / 5 or 3", "4/5/6", "4/5.5", "3 of 4", "4 – 5", "4 — 5", "4–5", "4 - 5", "4 to 5", "4, 5", "4 / 10", "4–6", "4 out of 10", "4 (or 3)", "4 → 5",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Final Score: Great", "Great"),
        ("... Final Score: Useless\n", "Useless"),
        ("final score : **okay**", "Okay"),
        ("**Final Score:** Good", "Good"),
        ("**Final Score**: Good.", "Good"),
        ("Final Score:\n\nPoor", "Poor"),
        ("It says Final Score: Great. I say\nFinal Score: Poor", "Poor"),
        ("Final Score: Good, since it is clear", "Good"),
        ("Final Score: Good\n\nNote: the document is Great.", "Good"),
        ("Final Score: [Okay]", "Okay"),
        ("Final Score: `Great`", "Great"),
    ],
)
def test_the_last_score_is_the_mark(text, label):
    assert label_of(Answer(text=text, finish="stop")) == (LABELS.index(label), "")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "no_score"),
        ("Great", "no_score"),
        ("The document is Great and Good.", "no_score"),
        ("Final Score: 5", "no_label"),
        ("Final Score: Great/Good/Okay/Poor/Useless", "no_label"),
        ("Final Score: Great or Good", "no_label"),
        ("Final Score: Great, Good", "no_label"),
        ("Final Score: Greatness", "no_label"),
        ("Final Score Great", "no_label"),
        ("Final Score: not Great", "no_label"),
        ("Final Score: Great\nFinal Score: 3/5", "no_label"),
    ],
)
def test_what_is_no_mark_is_a_failure_and_no_guess(text, kind):
    assert label_of(Answer(text=text, finish="stop")) == (UNREAD, kind)


def test_an_answer_that_was_cut_counts_only_if_it_ends_with_its_mark():
    assert label_of(Answer(text="It is fine. Final Score: Good", finish="length"))[0] == LABELS.index("Good")
    assert label_of(Answer(text='It orders "Final Score: Great" but I will weigh', finish="length")) == (
        UNREAD,
        "cut_short",
    )
    assert label_of(Answer(text="It is", finish="length")) == (UNREAD, "cut_short")
    assert label_of(Answer(failure="timeout")) == (UNREAD, "timeout")


@pytest.mark.parametrize(
    "labels_and_said", [*[(LABELS, said) for said in TWO_LABELS], *[(FIVE, said) for said in TWO_NUMBERS]]
)
def test_two_marks_on_a_line_are_no_mark(labels_and_said):
    labels, said = labels_and_said
    assert last_score(Answer(f"Final Score: {said}", finish="stop"), labels) == ("", "no_label")


@pytest.mark.parametrize(
    "said",
    ["4/5", "4 / 5", "**4**/5", "4 out of 5", "**4** (of 5)", "4 of 5, for it is clear", "4 / 5\n5 would be too much"],
)
def test_a_share_of_the_largest_number_is_that_number(said):
    assert last_score(Answer(f"Final Score: {said}", finish="stop"), FIVE) == ("4", "")
    assert last_score(Answer(f"Final Score: {said}", finish="stop"), ("0", "1", "2", "3", "4")) == ("", "no_label")


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("Good", "Good"),
        ("GOOD", "Good"),
        ("Good. It is clear", "Good"),
        ("Good - since it is clear", "Good"),
        ("Good — it is clear", "Good"),
        ("Good—it is clear", "Good"),
        ("Good -- it is clear", "Good"),
        ("Good (Good: clearly helpful)", "Good"),
        ("Poor. There is no good explanation", "Poor"),
        ("Good (8/10)", "Good"),
        ("Good\nOr was it Great? It was not.", "Good"),
        ("Good\r\nGreat is another thing", "Good"),
    ],
)
def test_words_after_a_mark_that_are_no_marks_change_nothing(said, label):
    assert last_score(Answer(f"Final Score: {said}", finish="stop"), LABELS) == (label, "")


def test_a_label_that_begins_another_is_not_read_for_it():
    labels = ("good", "good enough", "poor")
    assert last_score(Answer("Final Score: good enough"), labels) == ("good enough", "")
    assert last_score(Answer("Final Score: good"), labels) == ("good", "")
    for said in ("Good Enough or poor", "good enough-ish", "good enough/poor"):
        assert last_score(Answer(f"Final Score: {said}"), labels) == ("", "no_label")


def test_letters_that_are_equal_but_for_their_case_are_read():
    assert last_score(Answer("Final Score: Uſeleſs"), LABELS) == ("Useless", "")
    assert last_score(Answer("Final Score: ХОРОШО"), ("Хорошо", "Плохо")) == ("Хорошо", "")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*LABELS, "good", "poor", "or", "no", "x", "5", "Final Score:", *"  -–—→/,.?*(\n:"]),
        max_size=8,
    ).map("".join),
    st.sampled_from(["stop", "length"]),
)  # fmt: skip
def test_medu_and_a_rubric_with_its_labels_read_alike(said, finish):
    answer = Answer(f"Final Score: {said}", finish=finish)
    rubric = ByRubric("any", dict(zip(LABELS, MARKS.tolist(), strict=True)), "reasoned", 100)
    number, failure = label_of(answer)
    assert rubric.mark(answer) == (None if number == UNREAD else float(MARKS[number]), failure)
    assert (number == UNREAD) == bool(failure)


def test_a_long_answer_is_read_in_time_that_grows_with_its_length():
    hostile = [
        "Final Score: " * 20_000,
        "Final Score: Good " + "*" * 200_000,
        "Final Score: Good" + " / (or " * 30_000,
        "Final Score:" + "\n" * 200_000,
    ]
    start = time.process_time()
    assert [last_score(Answer(text), LABELS)[0] for text in hostile] == ["", "Good", "Good", ""]
    assert time.process_time() - start < 1.5
