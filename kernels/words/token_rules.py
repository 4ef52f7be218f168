"""The definition of words for deduplication, in plain Python: `gristmill.kernels.words.tokens` and the kernel
for GPUs equal it bit for bit.

A token is a run of letters, marks and numbers, in lower case; a letter of a script without spaces (Han, kana, Thai,
Lao, Khmer, Burmese) is a token by itself, with the marks that follow it. Everything else only separates. Lower case is
simple case folding, applied only where it takes as many bytes of UTF-8: folding never moves a byte, so that a CPU can
fold eight at once and a GPU any of them alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.kernels.base.splitmix import ALL, mixed_plain
from gristmill.kernels.base.unicode import DENSE, LETTER, MARK, NUMBER, properties

TOKEN_LENGTH = 0x9E3779B97F4A7C15
TOKEN_CHUNK = 0xD6E8FEB86659FD93
SHINGLE_STEP = 0xA0761D6478BD642F
SHORT = 0xE7037ED1A0B428DB


def folded(character: str) -> str:
    """In lower case, where that is one character of as many bytes."""
    lower = character.lower()
    return lower if len(lower) == 1 and len(lower.encode()) == len(character.encode()) else character


def tokens_plain(text: str) -> Iterator[tuple[int, int, bytes]]:
    """Begin and end of each token, in bytes of the text, and its bytes in lower case."""
    table, position, begin, before = properties(), 0, -1, 0
    held = bytearray()
    for character in text:
        point = ord(character)
        kind = int(table[point]) if not 0xD800 <= point < 0xE000 else 0
        inside = bool(kind & (LETTER | MARK | NUMBER))
        starts = inside and (begin < 0 or bool(not kind & MARK and (kind | before) & DENSE))
        if begin >= 0 and (starts or not inside):
            yield begin, position, bytes(held)
            begin = -1
        if starts:
            begin, held = position, bytearray()
        if inside:
            held += folded(character).encode()
        before = kind
        position += len(character.encode())
    if begin >= 0:
        yield begin, position, bytes(held)


def token_hash_plain(token: bytes) -> int:
    """Eight bytes at a time, the first lowest, padded with zeros."""
    h = len(token) * TOKEN_LENGTH & ALL
    for i in range(0, len(token), 8):
        h = (h ^ int.from_bytes(token[i : i + 8], "little")) * TOKEN_CHUNK & ALL
        h ^= h >> 32
    return h


def shingles_plain(text: str, width: int, seed: int = 0) -> list[int]:
    """A hash for each run of `width` tokens, in order, with repeats. A text of fewer tokens is one shingle; an empty
    one has none."""
    hashes = [token_hash_plain(token) for _, _, token in tokens_plain(text)]
    if not hashes:
        return []
    if len(hashes) < width:
        return [mixed_plain(_polynomial(hashes) + len(hashes) * SHORT + mixed_plain(seed) & ALL)]
    return [
        mixed_plain(_polynomial(hashes[i : i + width]) + mixed_plain(seed) & ALL)
        for i in range(len(hashes) - width + 1)
    ]


def jaccard_plain(left: set[int], right: set[int]) -> float:
    """The size of the intersection over that of the union; 0 for two empty sets."""
    return len(left & right) / len(left | right) if left or right else 0.0


def _polynomial(hashes: list[int]) -> int:
    value = 0
    for h in hashes:
        value = value * SHINGLE_STEP + h & ALL
    return value
