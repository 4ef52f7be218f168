"""The label that a reasoned answer ends with, whatever the labels: the one that stands after its last `Final Score:`.

Earlier scores are quotations, a document's own among them. No label, another one on its line (`Good/Okay`, `Great? No,
Poor`), the beginning of something longer (`4.5`, `2-ish`), a range or a share of numbers (`3 – 4`, `4 / 10`): each is a
failure, never a guess. A share of the largest label (`4/5`, `4 out of 5` where 5 is the best) is that label.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gristmill.classifiers.llm.model import Answer

SCORE_AT = re.compile(r"final[ \t]{1,3}score", re.IGNORECASE)
REST_OF_LINE = re.compile(r"[^\r\n]*")
MOST_AFTER_CUT = 8  # characters after the label of an answer that was cut: more is a quotation, not an end
HYPHENS = r"\u2010-\u2013-"  # those that join words and numbers: all dashes but the long ones
JOINT = rf"(?:[/|,;:&+?~=<>(\[→⇒\u2014\u2015{HYPHENS}]|(?:or|and|to|but|not|no|of|out)\b)"
BEFORE = r"[*_`'\"]{0,4}[ \t]{0,3}[:：][\s*_`'\"\[(<]{0,8}"  # a label
MARKUP = r"[ \t*_`'\")\]]{0,4}"


def last_score(answer: Answer, labels: tuple[str, ...], at: re.Pattern[str] = SCORE_AT) -> tuple[str, str]:
    """The label and no failure, or nothing and the kind of failure; `at` are the words that stand before it."""
    if answer.failure:
        return "", answer.failure
    scores = list(at.finditer(answer.text))
    if not scores:
        return "", "cut_short" if answer.finish == "length" else "no_score"
    text = _share_of_the_largest(labels).sub(r"\1", answer.text[scores[-1].end() :], count=1)
    match = _after_score(labels).match(text)
    if match is None:
        return "", "no_label"
    if answer.finish == "length" and len(text) - match.end() > MOST_AFTER_CUT:
        return "", "cut_short"
    label = _spelled(match[1], labels)
    rest = REST_OF_LINE.match(text, match.end())
    others = [
        (spelling, _spelled(spelling, labels)) for spelling in _whole_labels(labels).findall(rest[0] if rest else "")
    ]
    if match[1] == label:  # labels are written as they were given, so `good` in a sentence is a word
        others = [(spelling, other) for spelling, other in others if spelling == other]
    return ("", "no_label") if any(other != label for _, other in others) else (label, "")


@lru_cache(16)
def _after_score(labels: tuple[str, ...]) -> re.Pattern[str]:
    """A colon and a label that is whole and has no other joined to it, in whatever capitals; beside a number any number
    is another."""
    other = _any_of(labels) + (r"|\d+" if any(label[-1].isdigit() for label in labels) else "")
    joined = rf"(?:{MARKUP}{JOINT}){{1,3}}[ \t*_`'\"(\[]{{0,4}}(?!\1\b)(?:{other})\b"
    return re.compile(rf"{BEFORE}((?>{_any_of(labels)}))(?![{HYPHENS}]?\w)(?![.,/]\d)(?!{joined})", re.IGNORECASE)


@lru_cache(16)
def _share_of_the_largest(labels: tuple[str, ...]) -> re.Pattern[str]:
    """A number and the whole it is part of, where that whole is the largest label; of labels that are no numbers
    nothing."""
    if not all(label.isdecimal() for label in labels):
        return re.compile(r"((?!))")
    largest = max(labels, key=int)
    return re.compile(
        rf"\A({BEFORE}(?:{_any_of(labels)}))[ \t*_`]{{0,4}}(?:/|\(?(?:out[ \t]{{1,3}})?of\b)[ \t]{{0,3}}"
        rf"{largest}(?!\w|[.,/{HYPHENS}]\w)\)?",
        re.IGNORECASE,
    )


@lru_cache(16)
def _whole_labels(labels: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{_any_of(labels)})\b", re.IGNORECASE)


def _any_of(labels: tuple[str, ...]) -> str:
    return "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))


def _spelled(spelling: str, labels: tuple[str, ...]) -> str:
    """The label that was meant, found as it was matched: lower() would not know each letter that is one but for its
    case (`ſ`)."""
    return next(label for label in labels if re.fullmatch(re.escape(label), spelling, re.IGNORECASE))
