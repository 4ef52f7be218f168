"""Lines that stand on many pages of a site: keys by which they are counted, and which runs of them are boilerplate.

A line is counted alone, if it is long, and together with the line before it. So a short line (a heading, a table
header, "2 eggs") is never judged by how often it stands on the site, only by whether its neighbour stands there with
it. Keys are 64 bits of a site and its line: among 10**11 of them a given one meets another by chance in 5e-9.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.splitmix import ALL, mixed, mixed_plain
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.duplicates.paragraphs import UnitHashes, Units

STEP = 0xD1B54A32D192ED03
_STEP, _ONE = np.uint64(STEP), np.uint64(1)


class LineKeys(NamedTuple):
    """By line: its key alone (even), and with the line with words before it (odd); 0 where it has none."""

    alone: Hashes
    pair: Hashes


def line_keys(units: Units, hashes: UnitHashes, sites: Hashes, min_words: int) -> LineKeys:
    """Of lines with words of documents that have a site (0 is none). Alone: lines of `min_words` words and more."""
    keys = LineKeys(np.zeros(len(units.starts), np.uint64), np.zeros(len(units.starts), np.uint64))
    _line_keys(units.first, hashes.words, hashes.high, sites, min_words, keys.alone, keys.pair)
    return keys


def boilerplate_runs(
    units: Units, words: Array, alone: Array, together: Array, min_words: int, run_words: int
) -> Array:
    """Which lines are boilerplate. `alone`: a line stands on so many pages that it goes wherever it is; `together`: it
    stands on enough pages with the line before it.

    Lines that stand together are a run. A run is boilerplate if one of its lines has `min_words` words, if it has so
    many in all and is the first or the last of the text, or if it has `run_words` in all.
    """
    goes = np.zeros(len(units.starts), np.bool_)
    _runs(units.first, words, alone, together, min_words, run_words, goes)
    return goes


@kernel
def _line_keys(first, words, high, sites, min_words, alone, pair):
    for d in range(len(first) - 1):
        site, before = sites[d], np.int64(-1)
        if site == np.uint64(0):
            continue
        for u in range(first[d], first[d + 1]):
            if words[u] == 0:
                continue
            if words[u] >= min_words:
                key = mixed(site * _STEP + high[u])
                alone[u] = key - (key & _ONE)
                if alone[u] == np.uint64(0):
                    alone[u] = np.uint64(2)
            if before >= 0:
                pair[u] = mixed(site * _STEP + mixed(high[before] * _STEP + high[u])) | _ONE
            before = u


@kernel
def _runs(first, words, alone, together, min_words, run_words, goes):
    for d in range(len(first) - 1):
        begin, end = first[d], first[d + 1]
        while begin < end and words[begin] == 0:
            begin += 1
        while end > begin and words[end - 1] == 0:
            end -= 1
        start = begin
        while start < end:
            last, after = start, start + 1
            total, longest = words[start], words[start]
            while after < end and (words[after] == 0 or together[after]):
                if words[after] > 0:
                    last = after
                    total += words[after]
                    longest = max(longest, words[after])
                after += 1
            at_edge = start == begin or last + 1 == end
            if last > start and (longest >= min_words or total >= run_words or (at_edge and total >= min_words)):
                for u in range(start, last + 1):
                    goes[u] = True
            elif last == start and alone[start]:
                goes[start] = True
            start = after


# --- the references --------------------------------------------------------------------------------------------------


def line_keys_plain(high: Sequence[int], words: Sequence[int], site: int, min_words: int) -> list[tuple[int, int]]:
    """Of one document: the keys of each line, alone and with the one before it."""
    keys, before = [], None
    for hashed, count in zip(high, words, strict=True):
        alone = pair = 0
        if site and count:
            if count >= min_words:
                alone = mixed_plain((site * STEP + hashed) & ALL) & ~1 or 2
            if before is not None:
                both = mixed_plain((before * STEP + hashed) & ALL)
                pair = mixed_plain((site * STEP + both) & ALL) | 1
            before = hashed
        keys.append((alone, pair))
    return keys


def boilerplate_runs_plain(
    words: Sequence[int], alone: Sequence[bool], together: Sequence[bool], min_words: int, run_words: int
) -> list[bool]:
    """Of one document."""
    goes = [False] * len(words)
    runs: list[list[int]] = []
    for place in (place for place, count in enumerate(words) if count):
        if runs and together[place]:
            runs[-1].append(place)
        else:
            runs.append([place])
    for number, run in enumerate(runs):
        total, longest = sum(words[place] for place in run), max(words[place] for place in run)
        at_edge = number in (0, len(runs) - 1)
        if len(run) == 1:
            goes[run[0]] = bool(alone[run[0]])
        elif longest >= min_words or total >= run_words or (at_edge and total >= min_words):
            goes[run[0] : run[-1] + 1] = [True] * (run[-1] + 1 - run[0])
    return goes


__all__ = ["LineKeys", "boilerplate_runs", "boilerplate_runs_plain", "line_keys", "line_keys_plain"]
