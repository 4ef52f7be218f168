"""Where words that were looked for stand in a text: the surroundings of a match for a list, and stretches to be marked
on a page."""

from __future__ import annotations

import re
from collections.abc import Sequence

AROUND = 110  # characters before and after a match
LONGEST = 340  # characters of an excerpt
ROOM = 24  # characters within which an end of an excerpt looks for the end of a word
TRIES = 200  # places of a word that are looked at for one where it begins a word
GAP = " … "

Stretch = tuple[str, bool]  # text, and whether it is a match


def folded(text: str) -> str:
    """In small letters, each in its place: one character may not become two."""
    small = text.lower()
    return (
        small
        if len(small) == len(text)
        else "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
    )


def marked(text: str, words: Sequence[str]) -> list[Stretch]:
    """A text in stretches: what is none of the words, and what is; the longer, where one begins another."""
    longest_first = sorted({folded(word) for word in words if word}, key=lambda word: (-len(word), word))
    stretches, end = [], 0
    for match in re.finditer("|".join(map(re.escape, longest_first)), folded(text)) if longest_first else ():
        stretches += [(text[end : match.start()], False), (text[match.start() : match.end()], True)]
        end = match.end()
    return [stretch for stretch in (*stretches, (text[end:], False)) if stretch[0]]


def first_match(text: str, words: Sequence[str]) -> int | None:
    """Where the first of the words stands."""
    small = folded(text)
    places = [small.find(folded(word)) for word in words if word]
    return min((place for place in places if place >= 0), default=None)


def excerpt(text: str, words: Sequence[str]) -> list[Stretch] | None:
    """The first place of each word (at the beginning of a word, if there is one such) with what stands around it, on
    one line, "…" where it is cut. None where no word is found."""
    small = folded(text)
    places = sorted(
        (place, place + len(word)) for word in words if word and (place := place_of(small, folded(word))) >= 0
    )
    if not places:
        return None
    pieces: list[tuple[int, int]] = []
    around = AROUND if len(places) == 1 else AROUND // 2
    for match in places:
        start, end = (
            word_begins(text, max(0, match[0] - around), match[0]),
            word_ends(text, min(len(text), match[1] + around), match[1]),
        )
        if pieces and start <= pieces[-1][1]:
            pieces[-1] = (pieces[-1][0], max(end, pieces[-1][1]))
        elif sum(b - a for a, b in pieces) < LONGEST:
            pieces.append((start, end))
    joined = GAP.join(" ".join(text[start:end].split()) for start, end in pieces)
    whole = ("… " if pieces[0][0] > 0 else "") + joined + (" …" if pieces[-1][1] < len(text) else "")
    return marked(whole, [" ".join(word.split()) for word in words])


def place_of(small: str, word: str) -> int:
    """The first place where a word begins one; else its first place."""
    first = place = small.find(word)
    for _ in range(TRIES):
        if place <= 0 or not small[place - 1].isalnum():
            return first if place < 0 else place
        place = small.find(word, place + 1)
    return first


def word_begins(text: str, at: int, match: int) -> int:
    """The beginning of the next word, if it is near; a script without spaces is cut where it is."""
    if at == 0 or text[at - 1].isspace():
        return at
    space = next((place for place in range(at, min(at + ROOM, match)) if text[place].isspace()), None)
    return at if space is None else space + 1


def word_ends(text: str, at: int, match: int) -> int:
    if at == len(text) or text[at].isspace():
        return at
    space = next((place for place in range(at, max(at - ROOM, match), -1) if text[place - 1].isspace()), None)
    return at if space is None else space - 1
