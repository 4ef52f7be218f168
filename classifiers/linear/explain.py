"""Which words of a text made a linear judge say what it said. Hashes have no names: terms are found again in the text
itself."""

from __future__ import annotations

from collections import Counter, defaultdict

from gristmill.kernels.base.types import Array
from gristmill.kernels.language.hashed_terms import terms_plain
from gristmill.kernels.words.token_rules import shingles_plain, tokens_plain


def term_contributions(text: str, bits: int, widest: int, idf: Array, direction_F: Array) -> dict[str, float]:
    """What each different term adds. Terms of one number share its part by how often they stand; the parts sum to the
    whole."""
    words = [token.decode("utf-8", "replace") for _, _, token in tokens_plain(text)]
    names: list[tuple[int, str]] = []
    for width in range(1, widest + 1):
        for i, hash_ in enumerate(shingles_plain(text, width)):
            names.append((hash_ >> (64 - bits), " ".join(words[i : i + width])))
    occurrences = Counter(number for number, _ in names)
    parts = {number: value * float(direction_F[number]) for number, value in terms_plain(text, bits, widest, idf)}
    contributions: defaultdict[str, float] = defaultdict(float)
    for number, name in names:
        contributions[name] += parts[number] / occurrences[number]
    return dict(contributions)
