"""Spans of personal data in one pass over Arrow text, and the text with replacements, straight into new buffers.

The scan goes from left to right and only looks closer where a byte may anchor a pattern (`@ : + ( _ - A G J`, a digit).
At one place the order is IBAN, card, social security number, IPv4, telephone. A match is skipped; of two that overlap
the one that begins first stays, of two that begin together the longer. Twin: `tests/reference/spans_plain.py`.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.base.compiled import helper, kernel
from gristmill.kernels.base.types import Array, Bytes, Offsets
from gristmill.kernels.personal_data.patterns import alnum, card, digit, email, iban, ip4, ip6
from gristmill.kernels.personal_data.phones import after_cue, bracketed, in_pairs, international, north_american
from gristmill.kernels.personal_data.secret_keys import (
    from_capital_a,
    from_capital_g,
    from_capital_j,
    from_hyphen,
    from_scheme,
    from_underscore,
)
from gristmill.kernels.personal_data.social_security import social_security

KINDS = ("email", "ip", "phone", "card", "iban", "key", "ssn")
EMAIL, IP, PHONE, CARD, IBAN, KEY, SSN = range(7)
IP6 = 7  # replacements of their own: one kind, but two forms of address

# SWIFT IBAN registry, release 99: lengths by country.
IBAN_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 "
    "GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 "
    "LV21 LY25 MC27 MD24 ME22 "
    "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 "
    "SK24 SM27 SO23 ST25 SV28 "
    "TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)


class Spans(NamedTuple):
    """Span s is `data[starts[s]:ends[s]]`, in document `documents[s]`; sorted and without overlaps."""

    documents: Offsets
    starts: Offsets
    ends: Offsets
    kinds: Bytes

    def __len__(self) -> int:
        return len(self.starts)


class Replacements(NamedTuple):
    """The replacements of kind k (or IP6) are numbers firsts[k] to firsts[k + 1]; a hash of the match selects one."""

    data: Bytes
    offsets: Offsets
    firsts: Offsets


def replacements(choices: list[list[str]]) -> Replacements:
    """`choices[kind]` in the order of KINDS, then those for IPv6; at least one each."""
    texts = [text.encode() for of_kind in choices for text in of_kind]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return Replacements(
        np.frombuffer(b"".join(texts), np.uint8), offsets, np.cumsum([0, *map(len, choices)]).astype(np.int64)
    )


def iban_lengths() -> Bytes:
    table = np.zeros(26 * 26, np.uint8)
    for entry in IBAN_LENGTHS.split():
        table[(ord(entry[0]) - 65) * 26 + ord(entry[1]) - 65] = int(entry[2:])
    return table


def _anchors() -> Bytes:
    table = np.zeros(256, np.uint8)
    for anchor in b"@:+(_-AGJ0123456789":
        table[anchor] = 1
    return table


def find_spans(data: Bytes, offsets: Offsets, wanted: tuple[str, ...] = KINDS) -> Spans:
    """All spans of the wanted kinds."""
    bits = sum(1 << KINDS.index(kind) for kind in wanted)
    lengths, anchors, scratch = iban_lengths(), _anchors(), np.zeros((4, 1024), np.int64)
    parts: list[Array] = []
    document, last = 0, len(offsets) - 1
    while document < last:
        document, count = _find(data, offsets, document, bits, lengths, anchors, scratch)
        parts.append(scratch[:, :count].copy())
        if not count and document < last:  # not even one document fits
            scratch = np.zeros((4, scratch.shape[1] * 8), np.int64)
    columns = np.concatenate(parts, axis=1) if parts else scratch[:, :0]
    return Spans(columns[0], columns[1], columns[2], columns[3].astype(np.uint8))


@kernel
def _find(data, offsets, document, wanted, lengths, anchors, out):
    """Spans of documents from this one on, as many whole documents as fit; returns the first that did not, and the
    number of spans."""
    room, whole = out.shape[1], 0
    for row in range(document, len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        count, free, i = whole, start, start
        while i < end:
            while i < end and anchors[data[i]] == 0:
                i += 1
            if i >= end:
                break
            first, stop, kind = _at(data, i, start, end, free, wanted, lengths)
            if stop < 0:
                i += 1
                continue
            kept = count
            while True:  # an address may begin before what was found in it, or inside of what was found before it
                while kept > whole and first <= out[1, kept - 1]:
                    kept -= 1
                if kept == whole or out[2, kept - 1] <= first:
                    break
                first, stop = email(data, i, start, end, out[2, kept - 1])
                if stop < 0:
                    break
                kept = count
            if stop < 0:
                i += 1
                continue
            count = kept
            if count == room:
                return row, whole
            out[0, count], out[1, count], out[2, count], out[3, count] = row, first, stop, kind
            count += 1
            i = free = stop
        whole = count
    return len(offsets) - 1, whole


@helper
def _at(data, i, start, end, free, wanted, lengths):
    """The span anchored at byte i: begin, end and kind; ends at -1 where there is none."""
    byte = data[i]
    none = (np.int64(-1), np.int64(-1), 0)
    if digit(byte):
        if i > start and digit(data[i - 1]):
            return none
        if wanted >> IBAN & 1 and i - 2 >= free:
            stop = iban(data, i, start, end, lengths)
            if stop > 0:
                return i - 2, stop, IBAN
        if i < free:
            return none
        if wanted >> CARD & 1:
            stop = card(data, i, start, end, free)
            if stop > 0:
                return i, stop, CARD
        if wanted >> SSN & 1:
            stop = social_security(data, i, start, end)
            if stop > 0:
                return i, stop, SSN
        if wanted >> IP & 1:
            stop = ip4(data, i, start, end)
            if stop > 0:
                return i, stop, IP
        if wanted >> PHONE & 1:
            stop = max(
                max(north_american(data, i, start, end), in_pairs(data, i, start, end)), after_cue(data, i, start, end)
            )
            if stop > 0:
                return i, stop, PHONE
        return none
    if byte == 64:
        if wanted >> EMAIL & 1:
            first, stop = email(data, i, start, end, start)
            if stop > 0:
                return first, stop, EMAIL
        return none
    if byte == 58:
        if wanted >> IP & 1:
            first, stop = ip6(data, i, start, end)
            if stop > 0 and first >= free:
                return first, stop, IP
        if wanted >> KEY & 1:
            first, stop = from_scheme(data, i, start, end)
            if stop > 0:
                return first, stop, KEY
        return none
    if byte == 43 or byte == 40:
        if wanted >> PHONE & 1:
            if byte == 43:
                stop = international(data, i, start, end)
            else:
                stop = max(north_american(data, i, start, end), bracketed(data, i, start, end))
            if stop > 0:
                return i, stop, PHONE
        return none
    if wanted >> KEY & 1 == 0:
        return none
    first, stop = i, np.int64(-1)
    if byte == 65:
        stop = from_capital_a(data, i, start, end)
    elif byte == 95:
        first, stop = from_underscore(data, i, start, end)
    elif byte == 45:
        first, stop = from_hyphen(data, i, start, end)
    elif byte == 74:
        first = i - 2
        stop = from_capital_j(data, i, start, end)
    elif byte == 71:
        first = i - 1
        stop = from_capital_g(data, i, start, end)
    return (first, stop, KEY) if stop > 0 and first >= free else none


def counts_by_kind(spans: Spans, documents: int) -> Array:
    """int32[documents, kinds]."""
    counts = np.zeros((documents, len(KINDS)), np.int32)
    np.add.at(counts, (spans.documents, spans.kinds), 1)
    return counts


def replaced(data: Bytes, offsets: Offsets, spans: Spans, by: Replacements, seed: int) -> tuple[Bytes, Offsets]:
    """The texts with every span replaced; offsets begin at 0."""
    chosen = np.zeros(len(spans), np.int64)
    _choose(data, spans.starts, spans.ends, spans.kinds, by.firsts, np.uint64(seed % 2**64), chosen)
    grown = (by.offsets[1:] - by.offsets[:-1])[chosen] - (spans.ends - spans.starts)
    by_document = np.zeros(len(offsets) - 1, np.int64)
    np.add.at(by_document, spans.documents, grown)
    lengths = offsets[1:] - offsets[:-1] + by_document
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    out = np.empty(int(ends[-1]), np.uint8)
    _write(data, offsets[0], offsets[-1], spans.starts, spans.ends, by.data, by.offsets, chosen, out)
    return out, ends


@kernel
def _choose(data, starts, ends, kinds, firsts, seed, chosen):
    """By splitmix64 over letters and digits, in lower case: +1 212 555 0123 and +1-212-555-0123 are equal. Addresses
    count whole."""
    for span in range(len(starts)):
        hashed = seed * np.uint64(0xD1B54A32D192ED03) + np.uint64(0x9E3779B97F4A7C15)
        kind = np.int64(kinds[span])
        if kind == IP and data[starts[span] + 4] == 58:
            kind = IP6
        for i in range(starts[span], ends[span]):
            byte = data[i]
            if not alnum(byte) and byte < 128 and ((kind >= PHONE and kind <= IBAN) or kind == SSN):
                continue
            hashed = (hashed ^ np.uint64(byte | 32 if 65 <= byte <= 90 else byte)) * np.uint64(0xBF58476D1CE4E5B9)
            hashed ^= hashed >> np.uint64(31)
        hashed = (hashed ^ hashed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        chosen[span] = firsts[kind] + np.int64((hashed >> np.uint64(33)) % np.uint64(firsts[kind + 1] - firsts[kind]))


@kernel
def _write(data, start, end, starts, ends, by, by_offsets, chosen, out):
    i, to = start, 0
    for span in range(len(starts)):
        size = starts[span] - i
        out[to : to + size] = data[i : i + size]
        to += size
        size = by_offsets[chosen[span] + 1] - by_offsets[chosen[span]]
        out[to : to + size] = by[by_offsets[chosen[span]] : by_offsets[chosen[span] + 1]]
        to += size
        i = ends[span]
    out[to : to + end - i] = data[i:end]
