"""Which benchmark texts a document contains: token n-grams against an index of the texts' n-grams, found by hash and
then compared.

A rolling hash of `widths[0]` tokens goes over a document and queries a Bloom filter of 16 bits an n-gram (Putze et al.
2007: all bits of a key in one word, so one memory access). Hits are looked up in a table of 64-bit keys, and the tokens
themselves are compared by their hashes. Among 1e12 n-grams of text and 1e6 of the index keys alone would collide for
one n-gram in twenty; with the comparison a false match needs two words of one hash at the same place of otherwise equal
n-grams. Twin: `tests/reference/ngrams_plain.py`.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.bare import helper, inlined, kernel
from gristmill.kernels.base.splitmix import mixed
from gristmill.kernels.base.types import Array, Offsets
from gristmill.kernels.words.token_rules import SHINGLE_STEP, SHORT
from gristmill.kernels.words.tokens import Tokens

FILTER_BITS = 16  # of the filter, for each run
_STEP, _WIDTH = np.uint64(SHINGLE_STEP), np.uint64(SHORT)


class NgramIndex(NamedTuple):
    """Runs g of the texts t. Run g is `tokens[places[g]:places[g] + run_widths[g]]`, and it occurs in the texts
    `texts[first[g]:first[g + 1]]`."""

    widths: Offsets  # the different widths of runs, smallest first
    filter: Array  # uint64, a power of two of them
    slots: Array  # uint64 keys in open addressing, 0 where empty
    slot_runs: Array  # int32, the run of each key
    tokens: Array  # uint64 hashes
    places: Offsets
    run_widths: Offsets
    first: Offsets
    texts: Array  # int32
    text_runs: Offsets  # how many runs each text is sought by; 0 for one that is not


class Hits(NamedTuple):
    """Runs of the index in documents: run `runs[h]` at token `tokens[h]`; those of document i are `first[i]:first[i +
    1]`."""

    tokens: Offsets
    runs: Array
    first: Offsets


class Overlaps(NamedTuple):
    """For each document the text that it contains most of, as in `ngrams_plain.Overlap`; -1 is none."""

    text: Array
    runs: Offsets
    share: Array
    start: Offsets
    end: Offsets


# --- the index --------------------------------------------------------------------------------------------------------


def index_of(
    tokens: Tokens, repeated: Array, width: int, shortest: int, most_texts: int, ignored: Tokens
) -> NgramIndex:
    """An index of texts, without those marked as repeated and without the runs of the texts `ignored`."""
    keys, texts, places, widths = _runs(tokens, repeated, width, shortest)
    unwanted = _runs(ignored, np.zeros(len(ignored.first) - 1, np.bool_), width, shortest)[0]
    order = np.lexsort((places, texts, keys))
    keys, texts, places, widths = keys[order], texts[order], places[order], widths[order]
    once = np.ones(len(keys), np.bool_)  # a run counts once for a text
    once[1:] = (keys[1:] != keys[:-1]) | (texts[1:] != texts[:-1])
    keys, texts, places, widths = keys[once], texts[once], places[once], widths[once]
    _, run, counts = np.unique(keys, return_inverse=True, return_counts=True)
    stays = (counts[run] <= most_texts) & ~np.isin(keys, unwanted)
    keys, texts, places, widths = keys[stays], texts[stays], places[stays], widths[stays]
    keys, firsts, counts = np.unique(keys, return_index=True, return_counts=True)
    places, widths = places[firsts], widths[firsts]
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    text_runs = np.bincount(texts, minlength=len(tokens.first) - 1).astype(np.int64)
    used = np.unique(widths)
    filter_, slots = (
        np.zeros(_power_of_two(len(keys) * FILTER_BITS // 64), np.uint64),
        np.zeros(_power_of_two(len(keys) * 8 // 5), np.uint64),
    )
    slot_runs = np.zeros(len(slots), np.int32)
    if len(keys):
        _insert(keys, tokens.hashes, places, used[0], filter_, slots, slot_runs)
    return NgramIndex(
        used, filter_, slots, slot_runs, tokens.hashes, places, widths, first, texts.astype(np.int32), text_runs
    )


def _power_of_two(at_least: int) -> int:
    return 1 << max(at_least - 1, 1).bit_length()


def _runs(tokens: Tokens, repeated: Array, width: int, shortest: int) -> tuple[Array, Array, Array, Array]:
    """Key, text, place and width of each run of each text."""
    lengths = np.diff(tokens.first)
    widths = np.where((lengths >= min(shortest, width)) & ~repeated, np.minimum(lengths, width), 0)
    counts = np.where(widths > 0, lengths - widths + 1, 0)
    texts = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts, counts) + tokens.first[:-1][texts]
    keys, run_widths = np.zeros(len(texts), np.uint64), widths[texts]
    _keys(tokens.hashes, places, run_widths, keys)
    return keys, texts, places, run_widths


@inlined
def _key(polynomial, width):
    """Never 0, which marks an empty slot."""
    key = mixed(polynomial + np.uint64(width) * _WIDTH)
    return key if key != np.uint64(0) else np.uint64(1)


@inlined
def _bits(polynomial):
    """A hash whose top selects the word of the filter, and the three bits in that word."""
    h = (polynomial ^ polynomial >> np.uint64(32)) * np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0x94D049BB133111EB)
    bit, six = np.uint64(1), np.uint64(63)
    return h, bit << (h >> np.uint64(24) & six) | bit << (h >> np.uint64(30) & six) | bit << (h >> np.uint64(12) & six)


@helper
def _shift(words):
    """The right shift that makes a hash a number below a power of two."""
    shift = np.uint64(64)
    while words > 1:
        words >>= 1
        shift -= np.uint64(1)
    return shift


@kernel
def _keys(hashes, places, widths, keys):
    for i in range(len(places)):
        polynomial = np.uint64(0)
        for k in range(places[i], places[i] + widths[i]):
            polynomial = polynomial * _STEP + hashes[k]
        keys[i] = _key(polynomial, widths[i])


@kernel
def _insert(keys, hashes, places, lead, words, slots, slot_runs):
    mask, shift = np.uint64(len(slots) - 1), _shift(len(words))
    for run in range(len(keys)):
        slot = keys[run] & mask
        while slots[slot] != np.uint64(0):
            slot = (slot + np.uint64(1)) & mask
        slots[slot], slot_runs[slot] = keys[run], run
        polynomial = np.uint64(0)
        for k in range(places[run], places[run] + lead):
            polynomial = polynomial * _STEP + hashes[k]
        h, bits = _bits(polynomial)
        words[h >> shift] |= bits


# --- documents --------------------------------------------------------------------------------------------------------


def hits_of(tokens: Tokens, index: NgramIndex) -> Hits:
    """Every place in the documents where a run of the index occurs."""
    first = np.zeros(len(tokens.first), np.int64)
    room = 4096
    while len(index.widths):
        places, runs = np.empty(room, np.int64), np.empty(room, np.int32)
        count = _find(
            tokens.hashes, tokens.first, index.widths, index.filter, index.slots, index.slot_runs,
            index.tokens, index.places, index.run_widths, places, runs, first,
        )  # fmt: skip
        if count <= room:
            return Hits(places[:count], runs[:count], first)
        room = count
    return Hits(np.empty(0, np.int64), np.empty(0, np.int32), first)


@kernel
def _find(
    hashes, first, widths, words, slots, slot_runs, run_hashes, places, run_widths, hit_tokens, hit_runs, hit_first
):
    """Returns the number of hits; hits beyond the room there is are only counted."""
    lead, shift, count = widths[0], _shift(len(words)), 0
    power = np.uint64(1)
    for _ in range(lead):
        power *= _STEP
    for document in range(len(first) - 1):
        hit_first[document] = count
        begin, end = first[document], first[document + 1]
        if end - begin < lead:
            continue
        polynomial = np.uint64(0)
        for i in range(begin, begin + lead - 1):
            polynomial = polynomial * _STEP + hashes[i]
        leaving = np.uint64(0)
        for i in range(begin + lead - 1, end):
            polynomial = polynomial * _STEP + hashes[i] - leaving * power
            start = i - lead + 1
            leaving = hashes[start]
            h, bits = _bits(polynomial)
            if words[h >> shift] & bits == bits:
                count = _look_up(
                    hashes,
                    start,
                    end,
                    polynomial,
                    widths,
                    slots,
                    slot_runs,
                    run_hashes,
                    places,
                    run_widths,
                    hit_tokens,
                    hit_runs,
                    count,
                )
    hit_first[len(first) - 1] = count
    return count


@helper
def _look_up(
    hashes,
    start,
    end,
    polynomial,
    widths,
    slots,
    slot_runs,
    run_hashes,
    places,
    run_widths,
    hit_tokens,
    hit_runs,
    count,
):
    """Adds the runs that begin at a token; the polynomial is that of the smallest width."""
    mask, reached = np.uint64(len(slots) - 1), start + widths[0]
    for w in range(len(widths)):
        width = widths[w]
        if start + width > end:
            break
        while reached < start + width:
            polynomial = polynomial * _STEP + hashes[reached]
            reached += 1
        key = _key(polynomial, width)
        slot = key & mask
        while slots[slot] != np.uint64(0):
            if slots[slot] == key:
                run = slot_runs[slot]
                same = run_widths[run] == width
                for k in range(width):
                    if not same:
                        break
                    same = run_hashes[places[run] + k] == hashes[start + k]
                if same:
                    if count < len(hit_runs):
                        hit_tokens[count], hit_runs[count] = start, run
                    count += 1
            slot = (slot + np.uint64(1)) & mask
    return count


class NgramScratch(NamedTuple):
    """Counts by text, and the document in which a run or a text was last met."""

    run_seen: Array
    text_seen: Array
    text_found: Offsets


def scratch_for(index: NgramIndex) -> NgramScratch:
    """For one batch of documents. Document numbers must not repeat between calls."""
    texts = len(index.text_runs)
    return NgramScratch(
        np.full(len(index.places), -1, np.int64), np.full(texts, -1, np.int64), np.zeros(texts, np.int64)
    )


def overlaps_of(
    tokens: Tokens, offsets: Offsets, hits: Hits, index: NgramIndex, scratch: NgramScratch, number: int
) -> Overlaps:
    """The text that each document contains most of; `number` is that of the first document in its batch."""
    n = len(offsets) - 1
    overlaps = Overlaps(
        np.full(n, -1, np.int32), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    )
    if len(hits.runs):
        _best(
            *hits,
            tokens.starts,
            tokens.ends,
            offsets,
            index.run_widths,
            index.first,
            index.texts,
            index.text_runs,
            *scratch,
            number,
            *overlaps,
        )
    return overlaps


@helper
def _count(hit_runs, a, b, first, texts, text_runs, run_seen, text_seen, text_found, number):
    """Counts the different runs of each text among hits; returns the text with the largest share."""
    best = np.int64(-1)
    for h in range(a, b):
        run = hit_runs[h]
        if run_seen[run] == number:
            continue
        run_seen[run] = number
        for k in range(first[run], first[run + 1]):
            text = np.int64(texts[k])
            if text_seen[text] != number:
                text_seen[text], text_found[text] = number, 0
            text_found[text] += 1
            if best < 0:
                best = text
            ours, theirs = text_found[text] * text_runs[best], text_found[best] * text_runs[text]
            if ours > theirs or (ours == theirs and (text_found[text], best) > (text_found[best], text)):
                best = text
    return best


@helper
def _is_of(run, text, first, texts):
    belongs = False
    for k in range(first[run], first[run + 1]):
        belongs |= texts[k] == text
    return belongs


@kernel
def _best(
    hit_tokens, hit_runs, hit_first, starts, ends, offsets, run_widths, first, texts, text_runs, run_seen, text_seen,
    text_found, number,
    out_text, out_runs, out_share, out_start, out_end,
):  # fmt: skip
    for document in range(len(hit_first) - 1):
        a, b = hit_first[document], hit_first[document + 1]
        if a == b:
            continue
        best = _count(hit_runs, a, b, first, texts, text_runs, run_seen, text_seen, text_found, number + document)
        out_text[document], out_runs[document] = best, text_found[best]
        out_share[document] = text_found[best] / text_runs[best]
        begin, end, longest = np.int64(-1), np.int64(-1), np.int64(-1)
        for h in range(a, b):
            if not _is_of(hit_runs[h], best, first, texts):
                continue
            start, stop = starts[hit_tokens[h]], ends[hit_tokens[h] + run_widths[hit_runs[h]] - 1]
            if begin < 0 or start > end:
                begin = start
                end = stop
            end = max(end, stop)
            if end - begin > longest:
                longest = end - begin
                out_start[document], out_end[document] = begin - offsets[document], end - offsets[document]


def spans_of(
    tokens: Tokens, hits: Hits, index: NgramIndex, at_least: float, scratch: NgramScratch, number: int
) -> tuple[Array, Offsets, Offsets]:
    """Document, first byte and end of all spans under runs of texts that the document contains to at least this share,
    in order."""
    documents, begins, stops = (np.empty(len(hits.runs), np.int64) for _ in range(3))
    count = 0
    if len(hits.runs):
        count = _spans(
            *hits, tokens.starts, tokens.ends, index.run_widths, index.first, index.texts, index.text_runs, at_least,
            *scratch, number,
            documents, begins, stops,
        )  # fmt: skip
    return documents[:count], begins[:count], stops[:count]


@kernel
def _spans(
    hit_tokens, hit_runs, hit_first, starts, ends, run_widths, first, texts, text_runs, at_least, run_seen, text_seen,
    text_found, number,
    documents, begins, stops,
):  # fmt: skip
    count = 0
    for document in range(len(hit_first) - 1):
        a, b = hit_first[document], hit_first[document + 1]
        if a == b:
            continue
        _count(hit_runs, a, b, first, texts, text_runs, run_seen, text_seen, text_found, number + document)
        before = count
        for h in range(a, b):
            run, enough = hit_runs[h], False
            for k in range(first[run], first[run + 1]):
                enough |= text_found[texts[k]] / text_runs[texts[k]] >= at_least
            if not enough:
                continue
            start, stop = starts[hit_tokens[h]], ends[hit_tokens[h] + run_widths[run] - 1]
            if count > before and start <= stops[count - 1]:
                stops[count - 1] = max(stops[count - 1], stop)
            else:
                documents[count], begins[count], stops[count] = document, start, stop
                count += 1
    return count
