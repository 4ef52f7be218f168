"""The diversity of a text's words: MTLD (McCarthy and Jarvis 2010), distinct words in windows of equal length, and
uncommon words.

Words are the tokens of `gristmill.kernels.words.tokens` (lower case), joined where only an apostrophe or a soft hyphen
separates them (don't). Each word is looked up once, for its last occurrence; a word is new to a stretch if that is
before the stretch. Two words share a 64-bit hash with a chance of 2**-64 a pair.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel
from gristmill.kernels.base.columns import TextColumn
from gristmill.kernels.base.types import Array
from gristmill.kernels.words.repetition import bits_for, sweep_table
from gristmill.kernels.words.token_rules import ALL, TOKEN_CHUNK, token_hash_plain, tokens_plain
from gristmill.kernels.words.tokens import Tokens, token_column

MTLD, DIVERSITY, RARE = range(3)
DIVERSITY_COLUMNS = 3
THRESHOLD = 0.72
WINDOW = 100  # words

_CHUNK = np.uint64(TOKEN_CHUNK)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)
_NEVER = np.int64(1) << 62


def words_of(column: TextColumn) -> Tokens:
    tokens = token_column(column)
    join_words(column.data, *tokens)
    return tokens


@kernel
def join_words(data, hashes, starts, ends, first):
    """Joins, in place, tokens of one document with nothing but ', U+2019 or a soft hyphen between them."""
    n, begin = 0, first[0]
    for d in range(len(first) - 1):
        stop = first[d + 1]
        first[d] = n
        for k in range(begin, stop):
            if k > begin and n > first[d] and is_joint(data, ends[n - 1], starts[k]):
                hashes[n - 1] = joined(hashes[n - 1], hashes[k])
                ends[n - 1] = ends[k]
            else:
                hashes[n], starts[n], ends[n] = hashes[k], starts[k], ends[k]
                n += 1
        begin = stop
    first[len(first) - 1] = n


@inlined
def is_joint(data, start, end):
    if end - start == 1:
        return data[start] == 0x27
    if end - start == 2:
        return data[start] == 0xC2 and data[start + 1] == 0xAD
    return end - start == 3 and data[start] == 0xE2 and data[start + 1] == 0x80 and data[start + 2] == 0x99


@inlined
def joined(h, following):
    h = (h ^ following >> np.uint64(1)) * _CHUNK
    return h ^ h >> np.uint64(32)


@kernel
def diversity(data, hashes, starts, first, common, table, last, following, out):
    """out[i]: the columns above. `common` is a table of hashes; `table`, `last` and `following` (int64, a place for
    each word) are scratch memory."""
    sweep = table[len(table) - 1, 0]
    for d in range(len(first) - 1):
        begin, count = first[d], first[d + 1] - first[d]
        sweep += np.uint64(1)
        bits = bits_for(count)
        asked, rare = 0, 0
        for i in range(count):
            key = hashes[begin + i]
            before = put_place(table, bits, sweep, key, i)
            last[i], following[i] = before, _NEVER
            if before >= 0:
                following[before] = i
            byte = data[starts[begin + i]]
            if byte < 0x30 or byte > 0x39:
                asked += 1
                rare += not is_in(common, key)
        out[d, RARE] = rare / asked if asked else 0.0
        out[d, DIVERSITY] = in_windows(last, count)
        out[d, MTLD] = (count / max(factors(last, count), 1.0) + count / max(factors_back(following, count), 1.0)) / 2
    table[len(table) - 1, 0] = sweep


@inlined
def put_place(table, bits, sweep, key, place):
    """The last place of this key in this sweep, or -1; `place` becomes the last one."""
    mask = (np.uint64(1) << bits) - np.uint64(1)
    slot = (key * _SPREAD) >> (np.uint64(64) - bits)
    while table[slot, 1] >> np.uint64(32) == sweep:
        if table[slot, 0] == key:
            before = np.int64(table[slot, 1] & _LOW)
            table[slot, 1] = sweep << np.uint64(32) | np.uint64(place)
            return before
        slot = (slot + np.uint64(1)) & mask
    table[slot, 0] = key
    table[slot, 1] = sweep << np.uint64(32) | np.uint64(place)
    return np.int64(-1)


@inlined
def is_in(table, key):
    mask = np.uint64(len(table) - 1)
    slot = (key * _SPREAD) >> np.uint64(20) & mask
    while table[slot] != 0:
        if table[slot] == key:
            return True
        slot = (slot + np.uint64(1)) & mask
    return False


@inlined
def in_windows(last, count):
    """Distinct words as a share of all, averaged over whole windows; a shorter text is one window."""
    size = min(count, WINDOW)
    whole = count // size * size if size else 0
    new = 0
    for i in range(whole):
        new += last[i] < i - i % size
    return new / whole if whole else 0.0


@inlined
def factors(last, count):
    """The number of stretches, from the start, in which the share of distinct words falls to the threshold. The last
    one counts in part."""
    total, begin, new = 0.0, 0, 0
    for i in range(count):
        new += last[i] < begin
        if new / (i + 1 - begin) <= THRESHOLD:
            total += 1.0
            begin, new = i + 1, 0
    return total + (1 - new / (count - begin)) / (1 - THRESHOLD) if count > begin else total


@inlined
def factors_back(following, count):
    """The same from the end."""
    total, end, new = 0.0, count, 0
    for i in range(count - 1, -1, -1):
        new += following[i] >= end
        if new / (end - i) <= THRESHOLD:
            total += 1.0
            end, new = i, 0
    return total + (1 - new / end) / (1 - THRESHOLD) if end > 0 else total


class Scratch:
    """Scratch memory for texts of up to this many words; it grows for longer texts."""

    def __init__(self) -> None:
        self.table, self.last, self.following = sweep_table(0), np.zeros(0, np.int64), np.zeros(0, np.int64)

    def diversity_of(self, column: TextColumn, words: Tokens, common: Array) -> Array:
        most = int(np.diff(words.first).max(initial=0))
        if len(self.last) < most:
            self.table, self.last, self.following = (
                sweep_table(most),
                np.zeros(most, np.int64),
                np.zeros(most, np.int64),
            )
        out = np.zeros((len(column), DIVERSITY_COLUMNS))
        diversity(
            column.data, words.hashes, words.starts, words.first, common, self.table, self.last, self.following, out
        )
        return out


def common_table(hashes: Array) -> Array:
    """An open hash table, a quarter full at most; 0 marks a free slot, so a word of hash 0 is never common."""
    slots = 1 << max(6, (4 * len(hashes) - 1).bit_length())
    table = np.zeros(slots, np.uint64)
    for key in np.unique(hashes).tolist():
        slot = (key * int(_SPREAD) & ALL) >> 20 & slots - 1
        while table[slot]:
            slot = (slot + 1) % slots
        table[slot] = key
    table.flags.writeable = False
    return table


def words_plain(text: str) -> list[tuple[bytes, ...]]:
    """Each word as the tokens that it is joined of."""
    data, words, before = text.encode(), list[tuple[bytes, ...]](), -1
    for start, end, token in tokens_plain(text):
        if words and data[before:start] in (b"'", "\u2019".encode(), "\xad".encode()):
            words[-1] += (token,)
        else:
            words.append((token,))
        before = end
    return words


def word_hash_plain(word: tuple[bytes, ...]) -> int:
    h = token_hash_plain(word[0])
    for token in word[1:]:
        h = (h ^ token_hash_plain(token) >> 1) * TOKEN_CHUNK & ALL
        h ^= h >> 32
    return h


def diversity_plain(words: list[tuple[bytes, ...]], common: set[tuple[bytes, ...]]) -> list[float]:
    size = min(len(words), WINDOW)
    windows = [words[i : i + size] for i in range(0, len(words) - size + 1, size)] if size else []
    asked = [word for word in words if not 0x30 <= word[0][0] <= 0x39]
    both = (len(words) / max(_factors_plain(way), 1) for way in (words, words[::-1]))
    return [
        sum(both) / 2,
        sum(len(set(window)) for window in windows) / (size * len(windows)) if windows else 0.0,
        sum(word not in common for word in asked) / len(asked) if asked else 0.0,
    ]


def _factors_plain(words: list[tuple[bytes, ...]]) -> float:
    total, stretch = 0.0, list[tuple[bytes, ...]]()
    for word in words:
        stretch.append(word)
        if len(set(stretch)) / len(stretch) <= THRESHOLD:
            total += 1
            stretch = []
    return total + (1 - len(set(stretch)) / len(stretch)) / (1 - THRESHOLD) if stretch else total
