"""Where a page may state terms of use: tags and texts that may reserve rights or name a license, from its bytes.

A search for a few words comes first, 32 bytes at a time; only a page that has one of them is walked tag by tag. What is
inside comments, styles and scripts other than JSON-LD counts for nothing. The places are only candidates: whoever reads
them decides what they say (gristmill/stages/rights/page_terms.py).

Measured on 4,726 real pages: 1.2 GB/s, 3 to 5 % of the time of extraction (benchmarks/text/terms.py).
"""

# ruff: noqa: SIM102 (compiled; one condition a line)

from __future__ import annotations

import re

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.compiled import kernel
from gristmill.kernels.base.types import Array, Bytes
from gristmill.kernels.html.compiled import first_of_words
from gristmill.kernels.html.hints import LONGEST_WORD, end_tag, ends_name, is_next, next_word
from gristmill.kernels.html.tags import after_comment
from gristmill.kernels.html.text import TAG_CLOSES, TAG_OPENS, find_byte

RESERVATIONS, LICENSES = 1, 2  # what is looked for
META, LINK, JSON, TEXT = range(4)  # what was found: a <meta>, an <a>, <area> or <link>, JSON-LD, text
MOST = 256  # places of a page
LONGEST_TAG = 16 << 10  # bytes of a tag that are searched
TAIL = 32 + LONGEST_WORD  # bytes at the end of a page, where a search of 32 bytes at a time has no room

RESERVE = (b"noai", b"noim", b"noin", b"noar", b"noca", b"nosn", b"tdm-")
LICENSE = (b"licen", b"ivecom", b"ive com", b"cc-by", b"cc by", b"cc0")
SAID = (b"ive com", b"cc-by", b"cc by", b"cc0")  # in text
reserves = first_of_words(*RESERVE)
licenses = first_of_words(*LICENSE)
either = first_of_words(*RESERVE, *LICENSE)
says = first_of_words(*SAID)
holds_json = first_of_words(b"ld+js")


def term_places(data: Bytes, wanted: int) -> Array:
    """int64[places, 3]: kind, start and end of each place in `data`, in order; MOST at most."""
    places = np.empty((MOST, 3), np.int64)
    return places[: find_terms(data, np.int64(wanted), places)]


@inlined
def has_bits(data, i, n):
    """Whether what a search of 32 bytes at a time cannot reach may hold a word: two letters that each has."""
    while i + 1 < n:
        a, b = data[i] | 32, data[i + 1] | 32
        if (
            (a == 110 and b == 111)  # no
            or (a == 116 and b == 100)  # td
            or (a == 108 and (b == 105 or b == 100))  # li, ld
            or (a == 105 and b == 118)  # iv
            or (a == 99 and b == 99)  # cc
        ):
            return True
        i += 1
    return False


@inlined
def has_word(data, i, end, n, search):
    """Whether one of the words of `search` begins between i and end; at the very end of a page also where one may."""
    i = next_word(data, i, end, n, search)
    if i < end and i + TAIL > n:
        return has_bits(data, i, end)
    return i < end


@inlined
def note(places, count, kind, start, end):
    if count < MOST:
        places[count, 0], places[count, 1], places[count, 2] = kind, start, end
        count += 1
    return count


@kernel
def find_terms(data, wanted, places):
    n = np.int64(len(data))
    rights, license = wanted & RESERVATIONS != 0, wanted & LICENSES != 0
    sure = max(n - TAIL, np.int64(0))
    if rights and license:
        first = next_word(data, 0, sure, n, either)
    elif rights:
        first = next_word(data, 0, sure, n, reserves)
    else:
        first = next_word(data, 0, sure, n, licenses)
    if first >= sure and not has_bits(data, sure, n):
        return 0
    texts = license and (has_word(data, min(first, sure), sure, n, says) or has_bits(data, sure, n))
    i, count = np.int64(0), 0
    while i < n and count < MOST:
        begin = i
        i = find_byte(data, i, n, TAG_OPENS)
        if texts and i - begin > 2:
            if has_word(data, begin, i, n, says):
                count = note(places, count, TEXT, next_word(data, begin, i, n, says), i)
        i += 1
        if i + 1 >= n:
            return count
        letter = data[i] | 32
        if letter == 33 and is_next(data, i, n, 33, 45, 45, data[min(i + 3, n - 1)] | 32):
            i = after_comment(data, i + 3, n)
            continue
        if letter < 97 or letter > 122:
            continue
        at, end = i - 1, find_byte(data, i, n, TAG_CLOSES)
        until = min(end, i + LONGEST_TAG)
        if letter == 109:  # m
            if is_next(data, i, n, 109, 101, 116, 97) and ends_name(data, i + 4, n):
                if (rights and has_word(data, i, until, n, reserves)) or (
                    license and has_word(data, i, until, n, licenses)
                ):
                    count = note(places, count, META, at, min(end + 1, n))
        elif letter == 97 or letter == 108:  # a, l
            is_link = ends_name(data, i + 1, n) if letter == 97 else is_next(data, i, n, 108, 105, 110, 107)
            is_link = is_link or is_next(data, i, n, 97, 114, 101, 97)
            if license and is_link and has_word(data, i, until, n, licenses):
                count = note(places, count, LINK, at, min(end + 1, n))
        elif letter == 115:  # s
            is_script = is_next(data, i, n, 115, 99, 114, 105)
            if is_script or is_next(data, i, n, 115, 116, 121, 108):
                after = (
                    end_tag(data, end, n, 115, 99, 114, 105) if is_script else end_tag(data, end, n, 115, 116, 121, 108)
                )
                if is_script and license and has_word(data, i, until, n, holds_json):
                    if has_word(data, end, after, n, licenses):
                        count = note(places, count, JSON, min(end + 1, n), after)
                end = after - 1
        i = end + 1
    return count


TAG_PLAIN = re.compile(rb"<(?:(!--)|(meta|link|script|style|a|area)(?=[\s/>])|[A-Za-z])", re.IGNORECASE)
COMMENT_ENDS = re.compile(rb"-?>|.*?--!?>", re.DOTALL)
PATTERNS = {
    words: re.compile(b"|".join(re.escape(word) for word in words), re.IGNORECASE) for words in (RESERVE, LICENSE, SAID)
}


def term_places_plain(data: bytes, wanted: int) -> list[tuple[int, int, int]]:
    """The reference of `term_places`: places whose tag or text has one of the words. The kernel may note more in the
    last TAIL bytes of a page."""
    rights, license = bool(wanted & RESERVATIONS), bool(wanted & LICENSES)

    def word(words: tuple[bytes, ...], a: int, b: int) -> re.Match[bytes] | None:
        match = PATTERNS[words].search(data, a, b + LONGEST_WORD) if a < b else None
        return match if match and match.start() < b else None

    found: list[tuple[int, int, int]] = []
    i = 0
    while i < len(data) and len(found) < MOST:
        at = data.find(b"<", i)
        at = len(data) if at < 0 else at
        said = word(SAID, i, at) if license else None
        if said:
            found.append((TEXT, said.start(), at))
        if at + 2 >= len(data):
            break
        tag = TAG_PLAIN.match(data, at)
        i = at + 1
        if tag is None:
            continue
        if tag[1]:
            ended = COMMENT_ENDS.match(data, at + 4)
            i = ended.end() if ended else len(data)
            continue
        end = data.find(b">", at)
        end = len(data) if end < 0 else end
        name = (tag[2] or b"").lower()
        here = (word(RESERVE, at, end) if rights else None) or (word(LICENSE, at, end) if license else None)
        if name == b"meta" and here:
            found.append((META, at, min(end + 1, len(data))))
        elif name in (b"a", b"area", b"link") and license and word(LICENSE, at, end):
            found.append((LINK, at, min(end + 1, len(data))))
        elif name in (b"script", b"style"):
            closed = re.compile(rb"</" + name[:4], re.IGNORECASE).search(data, end)
            after = closed.start() if closed else len(data)
            if name == b"script" and license and b"ld+js" in data[at:end].lower() and word(LICENSE, end, after):
                found.append((JSON, min(end + 1, len(data)), after))
            end = after - 1
        i = end + 1
    return found
