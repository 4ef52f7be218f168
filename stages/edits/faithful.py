"""Does a rephrasing say what its source says? Plain checks, each with its reason; none asks a model.

They find what a source does not have: numbers, names, links, another language, words of the prompt. They do not find
every falsehood: a swap of two names that both stand in the source passes. Negations are compared sentence by sentence
with the source's nearest sentence; that is a guess, so they are counted, and refused only where a recipe says so.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.stages.edits.claims import (
    MARKER,
    WORD,
    bare,
    capitals_inside,
    initials_of,
    is_known,
    is_title,
    links_in,
    negations_in,
    numbers_known,
    numbers_stated,
    sentences_in,
    words_known,
)

REFUSAL = re.compile(
    r"\b(?:i(?:['’]m| am) (?:sorry|unable|not able)|i (?:can(?:no|['’])t|will not|won['’]t|must decline|apologi[sz]e)|"
    r"as an? (?:ai|artificial|large language|language model)|(?:unable|not able) to (?:help|assist|comply|rewrite)|"
    r"es tut mir leid|je suis désolé|lo siento|mi dispiace|desculpe)\b",
    re.I,
)
ITSELF = re.compile(
    r"^(?:sure|certainly|of course|absolutely|okay|ok|here (?:is|are)|here['’]s|below (?:is|are)|the following is|"
    r"(?:the )?(?:rewritten|rephrased) (?:text|version|passage|document))\b[^\n]{0,120}[:.!]\s*(?:\n|$)|"
    r"\b(?:let me know if|hope this helps|(?:the|this) (?:passage|document|text) (?:above|provided))|"
    r"\[(?:begin|end) document",
    re.I,
)
CONTROL_WORD = re.compile(r"<[|｜]|[|｜]>|</?s>|</?SYS>|\[/?INST\]|</?(?:start_of_turn|end_of_turn|eot_id|think)>")
TAG = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>", re.I)
COPIED = 8  # words in a row
REPEATED = 5
MOST_REPEATED = 0.35  # of runs of five words, those that came before
STEM = 5
LEAST_SHARED = 0.35  # of long words, those whose stem the source has
ALIKE = 0.5  # of a sentence's long words, for it to say what another says
SAME = 0.75  # for two sentences to say the same and no more
CAPITALS = 0.25  # of words inside sentences: German, where capitals tell nothing of names
SURE, LETTERS = 0.6, 60  # of a language
OPENER_WORDS = (
    "the a an this that these those it its he she they we you i his her their our your my there here in on at by for from "
    "with to of as and but or so if when while after before since because although though however moreover also then "
    "thus therefore what which who whom whose why how where is are was were do does did has have had can could will would "
    "should may might must not no yes all some many most each every both such one two three first second finally next "
    "question answer step steps summary overview background note key see according about into over under between during "
    "despite instead later earlier today now once only even just another other others"
)
OPENERS = frozenset(OPENER_WORDS.split())


@dataclass(frozen=True)
class Bounds:
    """Words of an output for one of its source."""

    least: float
    most: float


@dataclass(frozen=True)
class Findings:
    reason: str = ""  # why it is refused; empty: it is not
    negations: int = 0  # sentences whose negation is not that of the source's nearest sentence
    names_unchecked: bool = False  # a language whose capitals say nothing of names


def check(source: str, output: str, bounds: Bounds, instructions: str, refuse_negations: bool = False) -> Findings:
    """The first thing that is wrong with an output."""
    if not output.strip():
        return Findings("empty")
    reason = (
        form_of(source, output, instructions)
        or length_of(source, output, bounds)
        or topic_of(source, output)
    )  # fmt: skip
    if reason:
        return Findings(reason)
    if any("/" in link or link not in source.casefold() for link in links_in(output) - links_in(source)):
        return Findings("new_link")
    if numbers_stated(output) - numbers_known(source) or numbers_moved(source, output):
        return Findings("new_number")
    unchecked = capitals_say_nothing(source)
    if not unchecked and new_names(source, output):
        return Findings("new_name")
    negations = negations_changed(source, output, language_of(source)[0])
    if negations and refuse_negations:
        return Findings("negation_changed", negations, unchecked)
    return Findings("", negations, unchecked)


def form_of(source: str, output: str, instructions: str) -> str:
    if unseen_in(output) - set(source) or CONTROL_WORD.search(output):
        return "control_characters"
    opening = output.strip()[:300]
    if REFUSAL.search(opening) and not REFUSAL.search(source):
        return "refusal"
    if is_structured(output) and not is_structured(source):
        return "structured"
    known = runs_of(source, COPIED)
    if runs_of(output, COPIED) & (runs_of(instructions, COPIED) - known):
        return "prompt_copied"
    said = ITSELF.search(output.strip())
    if said and said[0].casefold().strip() not in source.casefold():
        return "talks_about_itself"
    return "repetition" if repeats(output) > max(MOST_REPEATED, 1.5 * repeats(source)) else ""


def unseen_in(text: str) -> set[str]:
    """Characters that nobody sees: control characters, marks of direction, surrogates, private ones. Joiners between
    letters of scripts that need them are none."""
    odd = {sign for sign in set(text) if unicodedata.category(sign) in ("Cc", "Cf", "Co", "Cs")}
    return odd - {"\n", "\t", "\r"} - ({"\u200c", "\u200d"} if not text.isascii() else set())


def is_structured(text: str) -> bool:
    """JSON, a block of code around all of it, or tags of HTML."""
    text = text.strip()
    if text.startswith("```") or TAG.search(text):
        return True
    if text[:1] not in "{[":
        return False
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return bool(re.match(r"[{\[]\s*[\"{\[]", text))


def words_in(text: str) -> list[str]:
    return [word.casefold() for word in re.findall(r"\w+", text)]


def runs_of(text: str, length: int) -> set[tuple[str, ...]]:
    words = words_in(text)
    return set(zip(*(words[start:] for start in range(length)), strict=False))


def repeats(text: str) -> float:
    """The share of runs of five words that stood before; in scripts without spaces, of ten characters."""
    words: Sequence[str] = words_in(text)
    length = REPEATED
    if len(words) < 40 and len(text) > 400:
        words, length = text, 2 * REPEATED
    runs = Counter(zip(*(words[start:] for start in range(length)), strict=False))
    count = sum(runs.values())
    return (count - len(runs)) / count if count >= 8 else 0.0


def length_of(source: str, output: str, bounds: Bounds) -> str:
    """In words; in bytes too, for scripts without spaces."""
    words = len(words_in(output)) / max(1, len(words_in(source)))
    size = len(output.encode("utf-8", "replace")) / max(1, len(source.encode("utf-8", "replace")))
    if max(words, size) < bounds.least:
        return "too_short"
    return "too_long" if min(words, size) > bounds.most else ""


def topic_of(source: str, output: str) -> str:
    own, theirs = language_of(output), language_of(source)
    if own[0] and theirs[0] and own[0] != theirs[0] and min(own[1], theirs[1]) >= SURE:
        return "other_language"
    stems = stems_of(output)
    known = set(stems_of(source))
    if not stems:  # a script without spaces, or no long word: by pairs of letters
        pairs = [output[at : at + 2] for at in range(len(output) - 1)]
        shared = sum(pair in source for pair in pairs)
        return "other_topic" if shared < LEAST_SHARED * len(pairs) else ""
    return "other_topic" if sum(stem in known for stem in stems) < LEAST_SHARED * len(stems) else ""


def stems_of(text: str) -> list[str]:
    return [word[:STEM] for word in words_in(text) if len(word) > 3 and not word[0].isdigit()]


def language_of(text: str) -> tuple[str, float]:
    """By the stage `language`, of the first 2,000 characters; none for short texts."""
    import pyarrow as pa

    from gristmill.stages.text.language import UNKNOWN, Language

    shown = " ".join(text[:2000].split())
    if sum(sign.isalpha() for sign in shown) < LETTERS:
        return "", 0.0
    found = Language().annotate(pa.record_batch({"text": [shown]}))
    name, score = str(found["language"][0]), float(found["language_score"][0].as_py())
    return ("", 0.0) if name == UNKNOWN else (name, score)


def capitals_say_nothing(source: str) -> bool:
    names, words = capitals_inside(source)
    return words >= 20 and len(names) > CAPITALS * words


def new_names(source: str, output: str) -> list[str]:
    """Words with a capital inside sentences that the source has in no form. At the start of a sentence a new word is
    taken for a name where it stands before another name, or in the place of one that the source's sentence has."""
    known, initials = words_known(source), initials_of(source)
    found = [name for name in capitals_inside(output)[0] if not is_known(name, known, initials)]
    names = {bare(name) for name in capitals_inside(source)[0]}
    sources = [(set(stems_of(sentence)), sentence) for sentence in sentences_in(source)]
    for sentence in sentences_in(output):
        words = list(WORD.finditer(sentence))
        if not words or is_title(words):
            continue
        first = words[0][0]
        if bare(first) in OPENERS or not first[0].isupper() or is_known(first, known, initials):
            continue
        if len(words) > 1 and bare(words[1][0]) in names and words[1][0][0].isupper():
            found.append(first)
            continue
        nearest = nearest_of(sentence, sources)
        if nearest is not None:
            begins = [match[0] for match in WORD.finditer(nearest)][:1]
            of_source = {bare(w) for w in WORD.findall(nearest) if bare(w) in names and w[0].isupper()}
            of_source |= {bare(w) for w in begins if bare(w) not in OPENERS and w[0].isupper()}
            if of_source - words_known(sentence) and not likely_plain(first):
                found.append(first)
    return found


def likely_plain(word: str) -> bool:
    """A word that seldom is a name: many rephrasings begin with one."""
    return bool(re.search(r"(?:ly|ing|tion|sion|ment|ness|ers|ors|ists|ans|ies|ed)$", word))


def numbers_moved(source: str, output: str) -> int:
    """Sentences with a number in the place of another: the source has it, but not in the sentence that says so."""
    sources = [(set(stems_of(sentence)), sentence) for sentence in sentences_in(source)]
    moved = 0
    for sentence in sentences_in(output):
        stated = numbers_stated(MARKER.sub("", sentence, count=1))
        nearest = nearest_of(sentence, sources, SAME) if stated else None
        if nearest is not None and stated - numbers_known(nearest):
            moved += bool(numbers_stated(nearest) - numbers_known(sentence))
    return moved


def nearest_of(sentence: str, sources: Sequence[tuple[set[str], str]], alike: float = ALIKE) -> str | None:
    """The source's sentence that says most of its long words."""
    stems = set(stems_of(sentence))
    if len(stems) < 3 or not sources:
        return None
    share, _, nearest = max(
        (len(stems & theirs) / len(stems), -len(theirs), text) for theirs, text in sources
    )  # fmt: skip
    return nearest if share >= alike else None


def negations_changed(source: str, output: str, language: str) -> int:
    """Sentences of an output that deny what the source's nearest sentence says, or say what that one denies."""
    sources = [(set(stems_of(sentence)), sentence) for sentence in sentences_in(source)]
    changed = 0
    for sentence in sentences_in(output):
        if sentence.rstrip().endswith("?"):
            continue
        ours = negations_in(sentence, language)
        same = nearest_of(sentence, sources, SAME)  # how often counts, where it says no more and no less
        nearest = same or nearest_of(sentence, sources)
        if nearest is not None:
            theirs = negations_in(nearest, language)
            changed += ours != theirs if same else bool(ours) != bool(theirs)
    return changed
