"""Phrases found by blocks are those that stand in the text, and bytes are counted in vectors as one by one."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.bare import kernel
from gristmill.kernels.base.wide import bytes_before
from gristmill.kernels.lines.phrase_blocks import blocks_of, phrases_by_blocks
from gristmill.kernels.lines.phrases import lower, lower_case, trie

PHRASES = {"lorem ipsum": 1, "javascript": 2, "terms of use": 4, "use cookies": 8, "aaaaaaaaab": 16}
SETS = {
    "of ASCII": PHRASES,
    "of one block": {"abcd": 1, "bcda": 2},
    "short": {**PHRASES, "a": 32},
    "beyond ASCII": {**PHRASES, "\u043f\u043e\u043b\u0438\u0442\u0438\u043a\u0430": 32},
    "none": {},
}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *PHRASES,
                "JavaScript",
                "use coo\u212aies",
                "terms of u",
                "abcd",
                "\u043f\u043e\u043b\u0438\u0442\u0438\u043a\u0430",
                "\u2019",
                " ",
                "cda",
            ]
        ),
        st.text(alphabet="abcd\u2019 ", max_size=12),
    ),
    max_size=9,
).map("".join)


@kernel
def found_in(data, start, end, bits, step, small, pairs, classes, moves, found, width):
    return phrases_by_blocks(data, start, end, bits, step, small, pairs, classes, moves, found, width)


@pytest.mark.parametrize("name", SETS)
@given(text=TEXTS, before=st.integers(0, 9), behind=st.integers(0, 9))
@example(text="the terms of use", before=0, behind=0)
def test_phrases_are_found_wherever_they_stand(name, text, before, behind):
    phrases = tuple(trie(SETS[name]))
    pairs, classes, moves, found, width = phrases
    coded = text.encode()
    data = np.frombuffer(b"j" * before + coded + b"avascript"[:behind], np.uint8)
    bits = found_in(
        data,
        before,
        before + len(coded),
        *blocks_of(classes, moves, found, width),
        lower_case(),
        pairs,
        classes,
        moves,
        found,
        width,
    )
    assert bits == sum(bit for phrase, bit in SETS[name].items() if phrase in lower(text))


def test_blocks_are_used_where_they_can_be():
    steps = {name: blocks_of(*list(trie(phrases))[1:]).step for name, phrases in SETS.items()}
    assert steps == {"of ASCII": 7, "of one block": 1, "short": 0, "beyond ASCII": 0, "none": 0}


small_letters_end = bytes_before(16, (0x00, 0x60), (0x7B, 0xFF), with_bits=0x20)
breaks_or_brackets = bytes_before(32, (0x0A, 0x0D), (0xC2, 0xC2), (0x5B, 0x5B))


@kernel
def both(data):
    return small_letters_end(data, 3), breaks_or_brackets(data, 3)


@given(st.lists(st.sampled_from(b"azAZ`{@[\n\x0e\x09\xc2\xc3\x00\xff"), min_size=35, max_size=35), st.integers(0, 35))
def test_bytes_are_counted_up_to_the_first_that_is_looked_for(given_bytes, letters):
    data = np.frombuffer((b"b" * letters + bytes(given_bytes))[:35], np.uint8)
    told = both(data)
    text = bytes(data[3:])
    is_letter = [chr(byte).isalpha() and byte < 0x80 for byte in text[:16]]
    is_other = [byte not in b"\n\x0b\x0c\r\xc2[" for byte in text]
    assert told == ([*is_letter, False].index(False), [*is_other, False].index(False))
