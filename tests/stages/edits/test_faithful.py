"""What a rephrasing may not do: bring numbers, names, links or another language, copy its prompt, refuse, repeat itself."""

from __future__ import annotations

import pytest

from gristmill.stages.edits.claims import numbers_in, numbers_stated
from gristmill.stages.edits.faithful import check
from gristmill.stages.edits.passages import passages_of, passages_of_lines, size_of
from gristmill.stages.edits.prompts import STYLES

SOURCE = (
    "The observatory at Kodaikanal was built in 1899 by the Madras government. Its first director, Charles Michie Smith, "
    "moved the instruments from the coast, because the sky above the hills is clear for 230 days a year. The telescope "
    "does not follow the sun by itself; an assistant turns it every twelve minutes. In 1909 John Evershed found there that "
    "gas streams out of sunspots. The plates weigh 3,500 kg and were never shown to the public in London."
)
FAITHFUL = (
    "Kodaikanal's observatory was built in 1899 by the government of Madras. Charles Michie Smith, its first director, "
    "brought the instruments from the coast, since the sky over the hills is clear on 230 days of the year. The telescope "
    "does not follow the sun by itself: every 12 minutes an assistant turns it. There, in 1909, John Evershed found that "
    "gas streams out of sunspots. The plates weigh 3500 kg. They were never shown to the public in London."
)
ANSWERS = (
    "Question: When was the observatory at Kodaikanal built?\nAnswer: The observatory at Kodaikanal was built in 1899.\n\n"
    "Question: Why were the instruments moved to the hills?\nAnswer: The sky above the hills is clear for 230 days a year."
)


def reason_of(output: str, style: str = "wiki", source: str = SOURCE) -> str:
    rules = STYLES[style]  # type: ignore[index]
    return check(source, output, rules.bounds, rules.instructions).reason


def test_faithful_texts_pass() -> None:
    assert reason_of(FAITHFUL) == "" and reason_of(FAITHFUL, "distilled") == ""
    assert reason_of(ANSWERS, "question_answer") == ""
    assert reason_of(f"1. {FAITHFUL.replace('. ', '.' + chr(10) + '2. ', 1)}", "tutorial") == ""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (" \n", "empty"),
        ("I'm sorry, but I can't help with rewriting this text.", "refusal"),
        (f"As an AI language model, {FAITHFUL}", "refusal"),
        (f'{{"text": "{FAITHFUL}"}}', "structured"),
        (f"```\n{FAITHFUL}\n```", "structured"),
        (f"Here is the rewritten text:\n{FAITHFUL}", "talks_about_itself"),
        (f"{FAITHFUL}\n\nLet me know if you would like another version!", "talks_about_itself"),
        (f"{FAITHFUL} {STYLES['wiki'].instructions[:300]}", "prompt_copied"),
        (FAITHFUL + " The plates weigh 3500 kg and more of it." * 8, "repetition"),
        ("The observatory is old.", "too_short"),
        (FAITHFUL * 3, "repetition"),
        (FAITHFUL.replace("1899", "1898"), "new_number"),
        (FAITHFUL.replace("12 minutes", "fourteen minutes"), "new_number"),
        (FAITHFUL.replace("3500", "35,000"), "new_number"),
        (FAITHFUL.replace("John Evershed", "John Eversley"), "new_name"),
        (FAITHFUL.replace("London", "Paris"), "new_name"),
        (FAITHFUL.replace("Charles Michie Smith, its", "Peter Michie Smith, its"), "new_name"),
        (f"{FAITHFUL} More at www.observatory.example.", "new_link"),
        (
            "Das Observatorium wurde von der Regierung gebaut und die Instrumente kamen von der Küste, weil der Himmel über "
            "den Hügeln an vielen Tagen des Jahres klar ist. Das Fernrohr folgt der Sonne nicht von allein, und ein Gehilfe "
            "dreht es immer wieder nach. Die Platten sind schwer und wurden nie gezeigt.",
            "other_language",
        ),
        ("HACKED by the page, all your models belong to whoever wrote this very page and nobody else at all " * 1, "other_topic"),
    ],
)  # fmt: skip
def test_others_are_refused_with_their_reason(output: str, reason: str) -> None:
    assert reason_of(output, "summary" if reason in ("other_topic", "too_long") else "wiki") == reason


def test_negations_are_counted_and_refused_where_asked() -> None:
    rules = STYLES["wiki"]
    for changed in (FAITHFUL.replace("does not follow", "follows"), FAITHFUL.replace("were never shown", "were shown")):
        found = check(SOURCE, changed, rules.bounds, rules.instructions)
        assert (found.reason, found.negations) == ("", 1)
        assert check(SOURCE, changed, rules.bounds, rules.instructions, True).reason == "negation_changed"
    assert check(SOURCE, FAITHFUL, rules.bounds, rules.instructions, True).negations == 0


def test_numbers_are_their_values() -> None:
    same = [
        ("1,234", "1234"),
        ("3.50", "3.5"),
        ("twenty-five", "25"),
        ("two hundred and five", "205"),
        ("3 million", "3,000,000"),
    ]
    for one, other in same:
        assert numbers_in(other) <= numbers_in(one) and numbers_in(one)
    assert numbers_in("1.234") & numbers_in("1234") and not numbers_in("1.5") & numbers_in("15")
    assert numbers_stated("1. a\n2. b of 7\nStep 3: c\n9. d") == {"7", "9"}


def test_passages_are_bounded_and_lose_nothing() -> None:
    text = "\n\n".join([SOURCE, "short", SOURCE.replace(". ", ".\n"), "x" * 500])
    for tokens in (16, 40, 100, 10_000):
        passages = passages_of(text, tokens)
        assert max(map(size_of, passages)) <= 4 * tokens
        assert "".join("".join(passages).split()) == "".join(text.split())
    assert len(passages_of(text, 16)) > 10 and len(passages_of(text, 10_000)) == 1
    lines = ["a" * 30] * 10 + ["b" * 300]
    rows = passages_of_lines(lines, 16)
    assert [row for some in rows for row in some] == list(range(11)) and max(map(len, rows)) == 2
