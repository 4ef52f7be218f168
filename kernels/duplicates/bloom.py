"""A Bloom filter of token n-grams, and the pass of documents through it (semantics of BFF: Groeneveld; Li et al. 2024,
DCLM, appendix).

Blocked (Putze, Sanders and Singler 2007): all bits of a key are in one cache line of 512, so a key costs one memory
access. Probe i of a key is the highest nine bits of key * STEP**(i + 1). The price is size: the number of keys in a
block is Poisson, so that 1 % takes 9.9 bits a key and not 9.6. Measured: benchmarks/dedup/bloom.py.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.bare import inlined, kernel
from gristmill.kernels.base.compiled import intrinsic, ir, types
from gristmill.kernels.base.types import Array, Offsets

BLOCK_BITS = 512
BLOCK_WORDS = 8  # of 64 bits
BLOCK_BYTES = 64
MOST_PROBES = 32  # a bit each in a word
MOST_BLOCKS = 1 << 32
AHEAD = 24  # keys whose block is prefetched
STEP = 0x9FB21C651E98DF25
ALL = (1 << 64) - 1

_STEP, _ONE, _HALF = np.uint64(STEP), np.uint64(1), np.uint64(32)


class FilterShape(NamedTuple):
    blocks: int
    probes: int

    @property
    def bytes(self) -> int:
        return self.blocks * BLOCK_BYTES


class WalkOutcome(NamedTuple):
    """The outcome of a pass: which units go (of all units), which documents go, and for each document its keys and how
    many had been met before."""

    unit_goes: Array
    document_goes: Array
    keys: Offsets
    met: Offsets


def shape_for(keys: int, false_positives: float) -> FilterShape:
    """The smallest filter with at most this rate of false positives once all keys are in."""
    load, probes = _best_load(false_positives)
    return FilterShape(max(1, math.ceil(keys / load)), probes)


@lru_cache(maxsize=64)
def _best_load(false_positives: float) -> tuple[float, int]:
    """The most keys a block, and the number of probes that allows it."""
    if not 0 < false_positives < 1:
        raise ValueError(f"a false-positive rate of {false_positives}: it lies between 0 and 1")
    best = (0.0, 1)
    for probes in range(1, MOST_PROBES + 1):
        low, high = 0.0, float(BLOCK_BITS)
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if _rate(middle, probes) <= false_positives else (low, middle)
        best = max(best, (low, probes))
    if best[0] <= 0.1:
        raise ValueError(
            f"a false-positive rate of {false_positives} is lower than a block of {BLOCK_BITS} bits allows"
        )
    return best


def _rate(load: float, probes: int) -> float:
    """The rate of false positives: the keys of a block are Poisson, and each sets `probes` bits."""
    if load == 0:
        return 0.0
    most = int(load + 12 * math.sqrt(load) + 20)
    keys = np.arange(most + 1)
    chance = np.exp(keys * math.log(load) - load - np.array([math.lgamma(k + 1) for k in keys]))
    filled = 1 - (1 - 1 / BLOCK_BITS) ** (probes * keys)
    return float((chance * filled**probes).sum())


def empty_filter(shape: FilterShape) -> Array:
    """uint64[blocks * 8], zeros, aligned to a cache line."""
    if shape.blocks > MOST_BLOCKS:
        raise ValueError(f"{shape.blocks:,} blocks of a filter: it can have {MOST_BLOCKS:,}")
    room = np.zeros(shape.blocks * BLOCK_WORDS + BLOCK_WORDS, np.uint64)
    skipped = -room.ctypes.data % BLOCK_BYTES // 8
    return room[skipped : skipped + shape.blocks * BLOCK_WORDS]


def walk(
    words: Array,
    probes: int,
    keys: Array,
    unit_first: Offsets,
    first: Offsets,
    most_of_unit: float,
    most_of_document: Array,
) -> WalkOutcome:
    """Documents one after another, each unit by unit. A unit goes if more than a share `most_of_unit` of its keys was
    met before; the keys of a unit that stays are added, after all of them were looked up. Document d goes if more than
    a share `most_of_document[d]` was met, and leaves nothing in the filter. Unit u has keys unit_first[u] to
    unit_first[u + 1], document d has units first[d] to first[d + 1]; a unit without keys stays."""
    documents = len(first) - 1
    document_keys = unit_first[first]
    lacking = np.zeros(int(np.diff(document_keys).max(initial=0)), np.uint32)
    seen = WalkOutcome(
        np.zeros(len(unit_first) - 1, np.uint8),
        np.zeros(documents, np.uint8),
        np.diff(document_keys).astype(np.int64),
        np.zeros(documents, np.int64),
    )
    _walk(
        words, probes, np.ascontiguousarray(keys), unit_first, first, float(most_of_unit),
        np.ascontiguousarray(most_of_document, np.float64), lacking,
        seen.unit_goes, seen.document_goes, seen.met,
    )  # fmt: skip
    return seen._replace(unit_goes=seen.unit_goes.astype(np.bool_), document_goes=seen.document_goes.astype(np.bool_))


@intrinsic
def _ask_for(typing_context: Any, words: Any, i: Any) -> Any:
    """Prefetches the cache line of word i."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(prefetch, [place, number(1), number(3), number(1)])  # to be written, to be kept, data
        return context.get_dummy_value()

    return types.void(words, types.int64), make


@inlined
def _block(key, blocks):
    """The first word of a key's block."""
    return np.int64((key >> _HALF) * blocks >> _HALF) * BLOCK_WORDS


@inlined
def _lacking(words, base, key, probes):
    """A bit for each probe whose bit is not set."""
    lacks = np.uint64(0)
    for i in range(probes):
        key *= _STEP
        word = words[base + np.int64(key >> np.uint64(61))]
        lacks |= (~(word >> (key >> np.uint64(55) & np.uint64(63))) & _ONE) << np.uint64(i)
    return lacks


@inlined
def _put_in(words, base, key, probes):
    for _ in range(probes):
        key *= _STEP
        words[base + np.int64(key >> np.uint64(61))] |= _ONE << (key >> np.uint64(55) & np.uint64(63))


@inlined
def _clear(words, base, key, lacks):
    while lacks:
        key *= _STEP
        if lacks & _ONE:
            words[base + np.int64(key >> np.uint64(61))] &= ~(_ONE << (key >> np.uint64(55) & np.uint64(63)))
        lacks >>= _ONE


@kernel
def _walk(
    words, probes, keys, unit_first, first, most_of_unit, most_of_document, lacking, unit_goes, document_goes, met
):
    blocks = np.uint64(len(words) // BLOCK_WORDS)
    for k in range(min(AHEAD, len(keys))):
        _ask_for(words, _block(keys[k], blocks))
    for d in range(len(first) - 1):
        begin, end = unit_first[first[d]], unit_first[first[d + 1]]
        met_here = np.int64(0)
        for u in range(first[d], first[d + 1]):
            low, high = unit_first[u], unit_first[u + 1]
            met_of_unit = np.int64(0)
            for k in range(low, high):
                if k + AHEAD < len(keys):
                    _ask_for(words, _block(keys[k + AHEAD], blocks))
                lacks = _lacking(words, _block(keys[k], blocks), keys[k], probes)
                lacking[k - begin] = lacks
                met_of_unit += lacks == 0
            met_here += met_of_unit
            if high > low and met_of_unit / (high - low) > most_of_unit:
                unit_goes[u] = 1
            else:
                for k in range(low, high):
                    if lacking[k - begin]:
                        _put_in(words, _block(keys[k], blocks), keys[k], probes)
        met[d] = met_here
        if end > begin and met_here / (end - begin) > most_of_document[d]:
            document_goes[d] = 1
            for k in range(begin, end):  # bits that were clear then were clear before the document
                _clear(words, _block(keys[k], blocks), keys[k], np.uint64(lacking[k - begin]))


# --- the reference ---------------------------------------------------------------------------------------------------


def bits_plain(key: int, shape: FilterShape) -> set[int]:
    block = (key >> 32) * shape.blocks >> 32
    return {block * BLOCK_BITS + (key * pow(STEP, i + 1, 1 << 64) & ALL) // (1 << 55) for i in range(shape.probes)}


def walk_plain(
    documents: list[list[list[int]]],
    most_of_unit: float,
    most_of_document: list[float],
    shape: FilterShape | None = None,
) -> list[tuple[list[bool], bool, int]]:
    """For each document: which units go, whether it goes itself, and how many keys were met. Without a shape the filter
    is exact."""
    seen: set[int] = set()
    out = []
    for units, most in zip(documents, most_of_document, strict=True):
        before, goes, met, total = set(seen), [], 0, 0
        for unit in units:
            bits = [{key} if shape is None else bits_plain(key, shape) for key in unit]
            met_of_unit = sum(b <= seen for b in bits)
            goes.append(bool(unit) and met_of_unit / len(unit) > most_of_unit)
            met, total = met + met_of_unit, total + len(unit)
            if not goes[-1]:
                seen = seen.union(*bits)
        drops = total > 0 and met / total > most
        if drops:
            seen = before
        out.append((goes, drops, met))
    return out
