"""Which benchmark texts a document holds, in plain Python: the reference that `gristmill.kernels.duplicates.ngrams` and
`gristmill.kernels.duplicates.cuts` equal.

A text of at least `width` tokens (`gristmill.kernels.words.token_rules`) is sought by its runs of `width` tokens; one
of fewer, but at least `shortest`, as a whole; one that is shorter still is not sought. Each distinct run counts once. A
run that more than `most_texts` texts share is a template of their benchmark, and no sign of any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gristmill.kernels.words.token_rules import tokens_plain

Gram = tuple[bytes, ...]
Span = tuple[int, int]


class Overlap(NamedTuple):
    """The text of which the largest share of runs stands in a document; of equal shares more runs, then the text named
    first. `start` to `end` are the bytes of the longest stretch that its runs cover, the first of equal ones."""

    text: int = -1
    runs: int = 0
    share: float = 0.0
    start: int = 0
    end: int = 0


def sought_plain(
    texts: Sequence[str], width: int, shortest: int, most_texts: int, ignored: Sequence[str] = ()
) -> list[set[Gram]]:
    """The runs by which each text is sought; none for one that has the tokens of a text before it."""
    grams: list[set[Gram]] = []
    seen: set[Gram] = set()
    for text in texts:
        words = _words(text)
        grams.append(_grams_of(words, width, shortest) if words not in seen else set())
        seen.add(words)
    texts_with = Counter(gram for found in grams for gram in found)
    left_out = {gram for text in ignored for gram in _grams_of(_words(text), width, shortest)}
    left_out |= {gram for gram, count in texts_with.items() if count > most_texts}
    return [found - left_out for found in grams]


def overlap_plain(document: str, sought: Sequence[set[Gram]]) -> Overlap:
    """What of the texts a document holds most of."""
    found, places = _found(document, sought)
    best = max(found, key=lambda text: (found[text] / len(sought[text]), found[text], -text), default=-1)
    if best < 0:
        return Overlap()
    start, end = max(
        _joined([span for gram, span in places if gram in sought[best]]), key=lambda span: span[1] - span[0]
    )
    return Overlap(best, found[best], found[best] / len(sought[best]), start, end)


def spans_plain(document: str, sought: Sequence[set[Gram]], at_least: float) -> list[Span]:
    """The bytes under runs of all texts of which at least such a share stands in the document; a share of 0 asks for
    one run."""
    found, places = _found(document, sought)
    enough = [sought[text] for text, count in found.items() if count / len(sought[text]) >= at_least]
    return _joined([span for gram, span in places if any(gram in grams for grams in enough)])


def widened_plain(document: str, spans: Sequence[Span], margin: int) -> list[Span]:
    """Spans with so many characters more on each side; they end where no token is cut."""
    places = [len(document[:at].encode()) for at in range(len(document) + 1)]
    tokens = [(start, end) for start, end, _ in tokens_plain(document)]
    wide = []
    for start, end in spans:
        start = places[max(places.index(start) - margin, 0)]
        end = places[min(places.index(end) + margin, len(document))]
        start = next((a for a, b in tokens if a < start < b), start)
        end = next((b for a, b in tokens if a < end < b), end)
        wide.append((start, end))
    return _joined(wide)


def cut_plain(document: str, spans: Sequence[Span], shortest_piece: int) -> tuple[str, int]:
    """What is left between spans, white space trimmed where it was cut, an empty line between pieces, without those of
    fewer characters; and how many pieces there were, short ones too. A document without spans stays as it is."""
    if not spans:
        return document, 1
    data, pieces, at = document.encode(), [], 0
    for place, (start, end) in enumerate([*spans, (len(document.encode()), -1)]):
        piece = data[at:start]
        piece = piece.lstrip(_SPACE) if place else piece
        piece = piece.rstrip(_SPACE) if end >= 0 else piece
        pieces.append(piece.decode())
        at = end
    pieces = [piece for piece in pieces if piece]
    return "\n\n".join(piece for piece in pieces if len(piece) >= shortest_piece), len(pieces)


_SPACE = bytes(range(33))


def _words(text: str) -> Gram:
    return tuple(token for _, _, token in tokens_plain(text))


def _grams_of(words: Gram, width: int, shortest: int) -> set[Gram]:
    if len(words) < min(shortest, width):
        return set()
    width = min(width, len(words))
    return {words[i : i + width] for i in range(len(words) - width + 1)}


def _found(document: str, sought: Sequence[set[Gram]]) -> tuple[Counter[int], list[tuple[Gram, Span]]]:
    """How many runs of each text stand in a document, and where each run stands."""
    tokens = list(tokens_plain(document))
    wanted = {gram for grams in sought for gram in grams}
    places = []
    for width in {len(gram) for gram in wanted}:
        for i in range(len(tokens) - width + 1):
            gram = tuple(token for _, _, token in tokens[i : i + width])
            if gram in wanted:
                places.append((gram, (tokens[i][0], tokens[i + width - 1][1])))
    there = {gram for gram, _ in places}
    return Counter(text for text, grams in enumerate(sought) for _ in grams & there), places


def _joined(spans: list[Span]) -> list[Span]:
    """Spans in order, those that overlap or touch as one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
