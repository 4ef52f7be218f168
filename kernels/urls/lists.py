"""URLs against lists: a hash table for names, pages and words, an automaton for substrings (Aho and Corasick 1975).

A table holds 64-bit keys in open addressing, at most 5/8 full, and no text: 4.5 million entries are 67 MB. A lookup of
something that is not listed hits a key by chance once in 2**64 / entries: 2.5e-13 for 4.5 million, some 1e-12 a URL.
The hash of a domain is computed from the right and that of a path from the left, so all suffixes and prefixes of a URL
cost one pass.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.base.unicode import LETTER, MARK, NUMBER, code_point, properties
from gristmill.kernels.urls.urls import Urls, folded_text

ALLOWED, DOMAIN, HOST, URL, PREFIX, WORD, SOFT_WORD = range(7)  # what an entry is; SUBSTRING has no key
SUBSTRING = 7
NOTHING, HYPHENS_AND_DOTS, PUNCTUATION = range(3)  # what is taken out before substrings are sought
_WORDLIKE = LETTER | MARK | NUMBER


class Automaton(NamedTuple):
    """State s goes to `next_state[s, classes[byte]]`. `pattern_of_state[s]` is the longest pattern that ends there, or
    -1."""

    classes: Bytes
    next_state: Array
    pattern_of_state: Array


class ListMatches(NamedTuple):
    """For each URL: bits of 1 << kind; where the domain and the words begin (and end) in its text; the pattern."""

    bits: Array
    domains: Offsets
    prefixes: Offsets
    words: Offsets  # [n, 2]
    soft_words: Offsets  # [n, 2 * threshold], distinct words; the first -1 ends them
    patterns: Array


@helper
def _step(hashed, byte):
    hashed = (hashed ^ np.uint64(byte)) * np.uint64(0x9E3779B97F4A7C15)
    return hashed ^ hashed >> np.uint64(32)


@helper
def _key(hashed, kind):
    """Never 0, which marks an empty slot."""
    z = mixed(hashed + np.uint64(kind + 1) * np.uint64(0xD1B54A32D192ED03))
    return z if z != np.uint64(0) else np.uint64(1)


@helper
def _has(table, key):
    mask = np.uint64(len(table) - 1)
    slot = key & mask
    while table[slot] != np.uint64(0):
        if table[slot] == key:
            return True
        slot = (slot + np.uint64(1)) & mask
    return False


@helper
def _character(text, i, end, table):
    """Bytes of the character at i, and whether it is part of a word; a `%XX` is not."""
    byte = text[i]
    if byte < 128:
        if byte == 37 and i + 2 < end:
            return 3, False
        return 1, 48 <= byte <= 57 or 97 <= byte <= 122 or 65 <= byte <= 90
    point, size = code_point(text, i, end)
    return size, table[point] & _WORDLIKE != 0


def table_of(keys: Array) -> Array:
    """An open addressing table of these keys."""
    size = 8
    while size * 5 < len(keys) * 8:
        size *= 2
    table = np.zeros(size, np.uint64)
    _insert(keys, table)
    return table


@kernel
def _insert(keys, table):
    mask = np.uint64(len(table) - 1)
    for i in range(len(keys)):
        slot = keys[i] & mask
        while table[slot] != np.uint64(0) and table[slot] != keys[i]:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = keys[i]


def site_keys(urls: Urls, kinds: Array) -> Array:
    """The key of each URL as an entry of a kind; 0 where nothing is left of it."""
    keys = np.zeros(len(urls), np.uint64)
    _site_keys(urls.text, urls.starts, urls.hosts, urls.keys, kinds.astype(np.int64), keys)
    return keys


@kernel
def _site_keys(text, starts, hosts, ends, kinds, keys):
    for row in range(len(starts)):
        hashed = np.uint64(0)
        if hosts[row] == starts[row]:
            continue
        if kinds[row] == URL or kinds[row] == PREFIX:
            for i in range(starts[row], ends[row]):
                hashed = _step(hashed, text[i])
        else:
            for i in range(hosts[row] - 1, starts[row] - 1, -1):
                hashed = _step(hashed, text[i])
        keys[row] = _key(hashed, kinds[row])


def word_keys(folded: Bytes, offsets: Offsets, kind: int) -> Array:
    """The key of each entry as a word, of its letters and digits alone; 0 where there are none."""
    keys = np.zeros(len(offsets) - 1, np.uint64)
    _word_keys(folded, offsets, kind, properties(), keys)
    return keys


@kernel
def _word_keys(folded, offsets, kind, table, keys):
    for row in range(len(keys)):
        hashed, i, any_left = np.uint64(0), offsets[row], False
        while i < offsets[row + 1]:
            size, wordlike = _character(folded, i, offsets[row + 1], table)
            if wordlike:
                any_left = True
                for j in range(i, i + size):
                    hashed = _step(hashed, folded[j])
            i += size
        if any_left:
            keys[row] = _key(hashed, kind)


def automaton_of(folded: Bytes, offsets: Offsets, taken_out: int) -> Automaton:
    """All entries at once, without what is taken out. Memory is bytes of entries times distinct bytes times 4."""
    used = np.unique(folded[offsets[0] : offsets[-1]])
    classes = np.zeros(256, np.uint8)
    classes[used[:255]] = np.arange(1, len(used[:255]) + 1)  # UTF-8 never uses all bytes
    states = int(offsets[-1] - offsets[0]) + 1
    next_state = np.zeros((states, len(used) + 1), np.int32)
    patterns = np.full(states, -1, np.int32)
    count = _build(folded, offsets, taken_out, properties(), classes, next_state, patterns)
    return Automaton(classes, next_state[:count].copy(), patterns[:count].copy())


@helper
def _stays(text, i, size, wordlike, taken_out):
    if taken_out == PUNCTUATION:
        return wordlike
    return not (taken_out == HYPHENS_AND_DOTS and size == 1 and (text[i] == 45 or text[i] == 46))


@kernel
def _build(folded, offsets, taken_out, table, classes, next_state, patterns):
    count = 1
    for row in range(len(offsets) - 1):
        state, i = np.int64(0), offsets[row]
        while i < offsets[row + 1]:
            size, wordlike = _character(folded, i, offsets[row + 1], table)
            if _stays(folded, i, size, wordlike, taken_out):
                for j in range(i, i + size):
                    letter = classes[folded[j]]
                    if next_state[state, letter] == 0:
                        next_state[state, letter] = count
                        count += 1
                    state = np.int64(next_state[state, letter])
            i += size
        if state and patterns[state] < 0:
            patterns[state] = row
    fallback, queue = np.zeros(count, np.int32), np.zeros(count, np.int32)
    head, tail = 0, 0
    for letter in range(next_state.shape[1]):
        if next_state[0, letter]:
            queue[tail] = next_state[0, letter]
            tail += 1
    while head < tail:
        state = queue[head]
        head += 1
        if patterns[state] < 0:
            patterns[state] = patterns[fallback[state]]
        for letter in range(next_state.shape[1]):
            child = next_state[state, letter]
            elsewhere = next_state[fallback[state], letter]
            if child:
                fallback[child] = elsewhere
                queue[tail] = child
                tail += 1
            else:
                next_state[state, letter] = elsewhere
    return count


def look_up(
    urls: Urls, sites: Array, words: Array, automaton: Automaton, kinds: int, taken_out: int, soft_words: int
) -> ListMatches:
    """The entries that each URL matches. `kinds` are the bits of the lists there are, `soft_words` the number of them
    that counts as a match."""
    n = len(urls)
    matches = ListMatches(
        np.zeros(n, np.uint16), np.full(n, -1, np.int64), np.full(n, -1, np.int64), np.full((n, 2), -1, np.int64),
        np.full((n, 2 * soft_words), -1, np.int64), np.full(n, -1, np.int32),
    )  # fmt: skip
    _match_sites(
        urls.text,
        urls.starts,
        urls.hosts,
        urls.sites,
        urls.keys,
        sites,
        kinds,
        matches.bits,
        matches.domains,
        matches.prefixes,
    )
    if not kinds & (1 << WORD | 1 << SOFT_WORD | 1 << SUBSTRING):
        return matches
    folded = folded_text(urls.text, urls.starts, urls.ends)
    if kinds & (1 << WORD | 1 << SOFT_WORD):
        _match_words(
            folded, urls.starts, urls.ends, words, properties(), matches.bits, matches.words, matches.soft_words
        )
    if kinds >> SUBSTRING & 1:
        _match_substrings(
            folded, urls.starts, urls.ends, *automaton, taken_out, properties(), matches.bits, matches.patterns
        )
    return matches


@kernel
def _match_sites(text, starts, hosts, sites, ends, table, kinds, bits, domains, prefixes):
    for row in range(len(starts)):
        start, host, met = starts[row], hosts[row], 0
        if host == start:
            continue
        if kinds & (1 << ALLOWED | 1 << DOMAIN | 1 << HOST):
            hashed = np.uint64(0)
            for i in range(host - 1, start - 1, -1):
                hashed = _step(hashed, text[i])
                if i == start or text[i - 1] == 46:
                    if kinds >> DOMAIN & 1 and _has(table, _key(hashed, DOMAIN)):
                        met |= 1 << DOMAIN
                        domains[row] = i  # the longest that is listed
                    if kinds >> ALLOWED & 1 and _has(table, _key(hashed, ALLOWED)):
                        met |= 1 << ALLOWED
            if kinds >> HOST & 1 and _has(table, _key(hashed, HOST)):
                met |= 1 << HOST
        if kinds & (1 << URL | 1 << PREFIX):
            hashed = np.uint64(0)
            for i in range(start, ends[row]):
                hashed = _step(hashed, text[i])
                at_boundary = i + 1 >= sites[row] and (i + 1 == ends[row] or text[i + 1] == 47 or text[i + 1] == 63)
                if at_boundary and kinds >> PREFIX & 1 and _has(table, _key(hashed, PREFIX)):
                    met |= 1 << PREFIX
                    prefixes[row] = i + 1
            if kinds >> URL & 1 and _has(table, _key(hashed, URL)):
                met |= 1 << URL
        bits[row] |= met


@kernel
def _match_words(folded, starts, ends, table, points, bits, words, soft_words):
    wanted = soft_words.shape[1] // 2
    seen = np.zeros(wanted, np.uint64)
    for row in range(len(starts)):
        i, end, soft, met = starts[row], ends[row], 0, 0
        start, hashed = i, np.uint64(0)
        while i <= end:
            size = 1
            if i < end:
                byte = folded[i]
                if 97 <= byte <= 122 or 48 <= byte <= 57:
                    hashed = _step(hashed, byte)
                    i += 1
                    continue
                if byte >= 128 or byte == 37:
                    size, wordlike = _character(folded, i, end, points)
                    if wordlike:
                        for j in range(i, i + size):
                            hashed = _step(hashed, folded[j])
                        i += size
                        continue
            if i > start:
                if words[row, 0] < 0 and _has(table, _key(hashed, WORD)):
                    words[row, 0], words[row, 1] = start, i
                    met |= 1 << WORD
                key = _key(hashed, SOFT_WORD)
                if soft < wanted and _has(table, key):
                    new = True
                    for k in range(soft):
                        new &= seen[k] != key
                    if new:
                        seen[soft] = key
                        soft_words[row, 2 * soft], soft_words[row, 2 * soft + 1] = start, i
                        soft += 1
            i += size
            start, hashed = i, np.uint64(0)
        if soft == wanted:
            met |= 1 << SOFT_WORD
        bits[row] |= met


@kernel
def _match_substrings(folded, starts, ends, classes, next_state, pattern_of_state, taken_out, points, bits, patterns):
    for row in range(len(starts)):
        state, i, end = np.int64(0), starts[row], ends[row]
        while i < end:
            byte = folded[i]
            size = 1
            if not (97 <= byte <= 122 or 48 <= byte <= 57):
                wordlike = False
                if taken_out == PUNCTUATION:
                    size, wordlike = _character(folded, i, end, points)
                if not _stays(folded, i, size, wordlike, taken_out):
                    i += size
                    continue
            for j in range(i, i + size):
                state = np.int64(next_state[state, classes[folded[j]]])
                if pattern_of_state[state] >= 0:
                    patterns[row] = pattern_of_state[state]
                    bits[row] |= 1 << SUBSTRING
                    end = i  # the first is enough
                    break
            i += size


def entry_lines(chunk: Bytes) -> tuple[Offsets, Offsets]:
    """Where the entries of whole lines are: trimmed, without comments (`#` first in a line or after white space) and
    `*.`."""
    lines = int((chunk == 10).sum()) + 1
    starts, ends = np.zeros(lines, np.int64), np.zeros(lines, np.int64)
    count = _entry_lines(chunk, starts, ends)
    return starts[:count], ends[:count]


@kernel
def _entry_lines(chunk, starts, ends):
    count, i = 0, 0
    while i < len(chunk):
        while i < len(chunk) and chunk[i] <= 32:
            i += 1
        start, end = i, i
        while i < len(chunk) and chunk[i] != 10:
            if chunk[i] == 35 and (i == start or chunk[i - 1] <= 32):
                while i < len(chunk) and chunk[i] != 10:
                    i += 1
                break
            if chunk[i] > 32:
                end = i + 1
            i += 1
        if end - start >= 2 and chunk[start] == 42 and chunk[start + 1] == 46:
            start += 2
        if end > start:
            starts[count], ends[count] = start, end
            count += 1
    return count
