"""Edits that a model names: what is read, what is refused, what they do."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gristmill.stages.edits.program import BadProgram, apply_program, read_program, words_of
from gristmill.stages.edits.refine import joined, shown_lines

LINES = [
    "Home  |  About", "The cat sat on 12 mats [3].", "re- sult of cafÃ©", "It is not safe now here", "W E L C O M E &amp; hi",
    "It  is $5 (p < 0.05), up 10 %, at -3; ist nicht s, i",
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "line", "after"),
    [
        ("drop 1\nend", 1, None),
        ("\n drop 1 \n\nend\n", 1, None),
        ('replace 1 "  " " "\nend', 1, "Home | About"),
        ('replace 1 "  |  About" ""\nend', 1, "Home"),
        ('replace 2 " [3]" ""\nend', 2, "The cat sat on 12 mats."),
        ('replace 3 "re- sult" "result"\nend', 3, "result of cafÃ©"),
        ('replace 3 "cafÃ©" "café"\nend', 3, "re- sult of café"),
        ('replace 5 "W E L C O M E" "Welcome"\nend', 5, "Welcome &amp; hi"),
        ('replace 5 "&amp;" "&"\nend', 5, "W E L C O M E & hi"),
        ('replace 4 "It" "IT"\nend', 4, "IT is not safe now here"),
        ('replace 6 "  " " "\nend', 6, "It is $5 (p < 0.05), up 10 %, at -3; ist nicht s, i"),
        ('replace 6 "5 (p" "5, (p"\nend', 6, "It  is $5, (p < 0.05), up 10 %, at -3; ist nicht s, i"),
    ],
)
def test_edits_that_repair_are_applied(answer: str, line: int, after: str | None) -> None:
    done = apply_program(read_program(answer, LINES), LINES)
    assert done[line - 1] == after
    assert [*done[: line - 1], *done[line:]] == [*LINES[: line - 1], *LINES[line:]]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"), ("drop 1", "no_end"), ("drop 1\nreplace 2 \"ca", "no_end"), ("Sure!\ndrop 1\nend", "not_edits"),
        ("```\ndrop 1\nend\n```", "not_edits"), ('{"drop": [1]}', "not_edits"), ("drop 1\nend\nI hope it helps.", "not_edits"),
        ("drop 0\nend", "not_edits"), ("drop 7\nend", "wrong_line"), ("drop 3-2\nend", "wrong_line"), ("drop -1\nend", "not_edits"),
        ("drop 1-99999\nend", "wrong_line"), ('replace 9 "a" "b"\nend', "wrong_line"), ("drop 1-3\ndrop 2\nend", "overlapping_edits"),
        ('drop 2\nreplace 2 "cat" "CAT"\nend', "overlapping_edits"), ('replace 2 "cat sat" "Cat sat"\nreplace 2 "sat on" "Sat on"\nend', "overlapping_edits"),
        ('replace 2 "dog" "dog "\nend', "not_there"), ('replace 2 "" "x"\nend', "not_there"), ('replace 2 "cat" "dog"\nend', "new_words"),
        ('replace 2 "12" "13"\nend', "new_words"), ('replace 2 "12 " ""\nend', "meaning_removed"), ('replace 4 "not " ""\nend', "meaning_removed"),
        ('replace 4 "now here" "nowhere"\nend', "new_words"), ('replace 2 "he" ""\nend', "new_words"), ('replace 1 " " "\\n"\nend', "control_characters"),
        ('replace 1 " " "\\u0000"\nend', "control_characters"), ('replace 2 "[3]" "[3](http://x.example)"\nend', "new_words"), ("DROP 1\nend", "not_edits"),
        ('replace 2 "." ".\\u202e\\u200b"\nend', "new_signs"), ('replace 2 "." " 🅲🅰🆂🅸🅽🅾"\nend', "new_signs"), ('replace 2 "." " \U000e0041"\nend', "new_signs"),
        ('replace 2 "." "' + "!" * 100 + '"\nend', "too_long"), ('replace 6 "<" ">"\nend', "new_signs"), ('replace 6 "-3" "3"\nend', "new_signs"),
        ('replace 6 "$5" "€5"\nend', "new_signs"), ('replace 6 "$" ""\nend', "new_signs"), ('replace 6 "10 %" "10"\nend', "new_signs"),
        ('replace 6 "up 10" "up -10"\nend', "new_signs"), ('replace 6 "nicht " ""\nend', "meaning_removed"), ('replace 6 "is" "i-s"\nend', "new_words"),
        ('replace 1 "a" \'b\'\nend', "not_edits"), ("drop 1\n" * 3000 + "end", "too_many_edits"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_its_reason(answer: str, reason: str) -> None:
    with pytest.raises(BadProgram) as refused:
        read_program(answer, LINES)
    assert refused.value.reason == reason


ODD = st.text(st.sampled_from('drop replace end 123-"\\\n ab[]nou'), max_size=40)


@given(
    st.one_of(
        ODD,
        st.lists(st.sampled_from(["drop 1", "drop 2-3", 'replace 4 "o" ""', 'replace 2 "a" "A"', "end"])).map(
            "\n".join
        ),
    )
)
def test_no_answer_brings_a_word(answer: str) -> None:
    try:
        program = read_program(answer, LINES)
    except BadProgram as error:
        assert error.reason
        return
    for before, after in zip(LINES, apply_program(program, LINES), strict=True):
        assert after is None or set(words_of(after)) <= set(words_of(before))


@given(st.lists(st.sampled_from(["", " ", "a", "b  c"]), max_size=12), st.data())
def test_lines_that_stay_stay_in_order(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    shown = shown_lines(text)
    goes = data.draw(st.lists(st.booleans(), min_size=len(shown), max_size=len(shown)))
    made = joined(text, [None if gone else line for line, gone in zip(shown, goes, strict=True)])
    assert shown_lines(made) == [line for line, gone in zip(shown, goes, strict=True) if not gone]
    if not any(goes):
        assert made == text
