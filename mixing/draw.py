"""From weights to documents: which documents are used, and how often, by hash of uid and seed. Every draw is
deterministic.

From a source of T tokens of which t are wanted every document is used t // T times, and some once more: in the order of
their hash, those up to a cut. The cut is where the drawn tokens come nearest to what is wanted, so a source is never
off by more than half a document. A larger budget only adds copies; it removes nothing.

No list of all documents is ever sorted. Pass one adds up tokens by source and by the top bits of the hash (`bins_of`,
`histogram`: tables of parts add up), which shows the bin of the cut (`plan`). Pass two reads the documents of that bin
alone (`in_cut_bin`, `exact_cuts`); after it each document's copies follow from its own hash (`copies`). `copies_plain`
sorts everything and must agree.

Hashes are chains of splitmix64 (kernels/base/splitmix.py): state = mixed((state ^ value) + 0x9E3779B97F4A7C15) over a
number for the purpose, the seed, and what is hashed. The draw and the keys of copies have their own purposes, so they
are independent of each other and of the stage `sample`. With one seed, distinct uids have distinct hashes.

Shapes: G groups (sources), B bins, D documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.kernels.base.splitmix import ALL, mixed_all, mixed_plain
from gristmill.kernels.base.types import Floats, Integers, Mask, Words

Counts = np.ndarray[Any, np.dtype[np.uint16]]

MOST_COPIES = 65_535  # copies are uint16
MOST_CELLS = 1 << 22  # of a histogram: 32 MB
GOLDEN = 0x9E3779B97F4A7C15
DRAW, COPY = 1, 2  # purposes


@dataclass(frozen=True)
class DrawPlan:
    """For each group: whole epochs, the tokens wanted beyond them, the bin of the cut, and the tokens of all bins below
    it."""

    bits: int
    total_G: Integers
    wanted_G: Integers
    whole_G: Integers
    rest_G: Integers
    bin_G: Integers
    before_G: Integers


@dataclass(frozen=True)
class Cuts:
    """For each group: epochs that every document gets, and the first (hash, uid) without a further copy. `drawn_G`:
    exact tokens."""

    whole_G: Integers
    hash_G: Words
    uid_G: Words
    drawn_G: Integers


def draw_hashes(uids: Words, seed: int) -> Words:
    """The order in which documents of a group are drawn."""
    return _chained(_chained_plain(DRAW, seed), uids)


def copy_keys(uids: Words, copy: Integers, seed: int) -> Words:
    """A key for each copy of a document, 0 for the first: it decides, for example, where the copy goes in training."""
    return _chained(_chained(_chained_plain(COPY, seed), uids), copy.astype(np.uint64))


def tokens_wanted(weights_N: Floats, budget: float) -> Integers:
    return np.rint(budget * weights_N).astype(np.int64)


def bits_for(groups: int) -> int:
    """The most top bits, 16 at most, for which a histogram stays small."""
    return max(0, min(16, (MOST_CELLS // max(groups, 1)).bit_length() - 1))


def bins_of(hashes: Words, bits: int) -> Integers:
    """The top bits of each hash."""
    if bits == 0:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def histogram(bins: Integers, tokens: Integers, groups: Integers, number_of_groups: int, bits: int) -> Integers:
    """Tokens by group and bin. The tables of any partition of the documents add up to that of all."""
    width = 1 << bits
    cells = (groups.astype(np.int64) << bits) + bins
    table = np.bincount(
        cells, weights=tokens, minlength=number_of_groups * width
    )  # sums of integers: exact in float64 up to 2**53
    return table.astype(np.int64).reshape(number_of_groups, width)


def plan(table_GB: Integers, wanted_G: Integers) -> DrawPlan:
    total_G = table_GB.sum(axis=1)
    if np.any(wanted_G < 0) or np.any((wanted_G > 0) & (total_G == 0)):
        raise ValueError("tokens are wanted of a group that has none, or fewer than none are wanted")
    whole_G = wanted_G // np.maximum(total_G, 1)
    if np.any(whole_G >= MOST_COPIES):
        raise ValueError(
            f"a group would be seen {int(whole_G.max()):,} times and more; at most {MOST_COPIES:,} copies of a document"
        )
    rest_G = wanted_G - whole_G * total_G
    upto_GB = np.cumsum(table_GB, axis=1)
    # The bin in which what is wanted is reached. Less than all is wanted, so there is one.
    bin_G = (upto_GB < rest_G[:, None]).sum(axis=1)
    before_G = np.where(bin_G > 0, upto_GB[np.arange(len(bin_G)), np.maximum(bin_G - 1, 0)], 0)
    bits = table_GB.shape[1].bit_length() - 1
    return DrawPlan(bits, total_G, wanted_G.astype(np.int64), whole_G, rest_G, bin_G, before_G)


def in_cut_bin(bits: int, bin_G: Integers, hashes: Words, groups: Integers) -> Mask:
    """The documents that `exact_cuts` needs."""
    here: Mask = bins_of(hashes, bits) == bin_G[groups]
    return here


def exact_cuts(planned: DrawPlan, uids: Words, hashes: Words, tokens: Integers, groups: Integers) -> Cuts:
    """From all documents of the cut bins, and no others, in any order. Equal hashes go by uid."""
    whole_G, drawn_G = planned.whole_G.copy(), planned.whole_G * planned.total_G + planned.before_G
    hash_G, uid_G = np.zeros(len(whole_G), np.uint64), np.zeros(len(whole_G), np.uint64)
    order = np.lexsort((uids, hashes, groups))
    uids, hashes, tokens, groups = uids[order], hashes[order], tokens[order].astype(np.int64), groups[order]
    starts = np.searchsorted(groups, np.arange(len(whole_G) + 1))
    for g in np.flatnonzero(planned.total_G > 0):
        first, last = int(starts[g]), int(starts[g + 1])
        sums = np.cumsum(tokens[first:last])
        taken = _nearest(sums, int(planned.rest_G[g] - planned.before_G[g]))
        drawn_G[g] += sums[taken - 1] if taken else 0
        if taken < last - first:
            hash_G[g], uid_G[g] = hashes[first + taken], uids[first + taken]
        elif planned.bin_G[g] + 1 < 1 << planned.bits:  # all of this bin and none of the next
            hash_G[g] = np.uint64(int(planned.bin_G[g] + 1) << (64 - planned.bits))
        else:
            whole_G[g] += 1
    return Cuts(whole_G, hash_G, uid_G, drawn_G)


def copies(cuts: Cuts, uids: Words, hashes: Words, groups: Integers) -> Counts:
    """How often each document is used."""
    cut_D = cuts.hash_G[groups]
    once_more = (hashes < cut_D) | ((hashes == cut_D) & (uids < cuts.uid_G[groups]))
    counts: Counts = (cuts.whole_G[groups] + once_more).astype(np.uint16)
    return counts


def copies_plain(
    uids: list[int], hashes: list[int], tokens: list[int], groups: list[int], wanted: list[int]
) -> list[int]:
    """Sorts everything, and walks until one more document would not come nearer to what is wanted."""
    counts = [0] * len(uids)
    for group, asked in enumerate(wanted):
        members = sorted((d for d in range(len(uids)) if groups[d] == group), key=lambda d: (hashes[d], uids[d]))
        total = sum(tokens[d] for d in members)
        if total == 0:
            continue
        for d in members:
            counts[d] = asked // total
        remaining = asked % total
        for d in members:
            if remaining <= 0 or tokens[d] - remaining >= remaining:
                break
            counts[d] += 1
            remaining -= tokens[d]
    return counts


def draw_hash_plain(uid: int, seed: int) -> int:
    return _chained_plain(DRAW, seed, uid)


def copy_key_plain(uid: int, copy: int, seed: int) -> int:
    return _chained_plain(COPY, seed, uid, copy)


def _nearest(sums: Integers, wanted: int) -> int:
    """The number of documents whose sum is nearest to what is wanted; of two equally near, the one with fewer
    tokens."""
    taken = int(np.searchsorted(sums, wanted, side="left"))
    if taken == len(sums):
        return taken
    short = wanted - (int(sums[taken - 1]) if taken else 0)
    return taken + 1 if int(sums[taken]) - wanted < short else taken


def _chained(state: Words | int, values: Words) -> Words:
    return mixed_all((np.asarray(state, np.uint64) ^ values.astype(np.uint64)) + np.uint64(GOLDEN))


def _chained_plain(*values: int) -> int:
    state = 0
    for value in values:
        state = mixed_plain((state ^ value & ALL) + GOLDEN & ALL)
    return state
