"""The Unicode tables say what Unicode says, and code points are read as Python reads them."""

import numpy as np
from hypothesis import given, strategies as st

from gristmill.kernels.base import unicode as u
from gristmill.kernels.base.compiled import kernel


def has(character, *bits):
    found = int(u.properties()[ord(character)])
    return all(found & bit for bit in bits)


def test_properties_of_well_known_characters():
    assert has("a", u.LETTER, u.LOWER) and not has("a", u.UPPER) and has("É", u.LETTER, u.UPPER)
    assert has("7", u.DIGIT, u.NUMBER) and has("½", u.NUMBER) and not has("½", u.DIGIT)
    assert has("“", u.PUNCTUATION) and has("$", u.SYMBOL) and has("\u3000", u.SPACE) and has("\0", u.CONTROL)
    assert (
        has("\u200b", u.FORMAT)
        and has("😀", u.EMOJI)
        and has("。", u.TERMINAL)
        and has("漢", u.IDEOGRAPH, u.DENSE)
        and has("ไ", u.DENSE)
    )
    assert not has("가", u.DENSE) and has("\ue000", u.UNASSIGNED)


def test_word_break_and_script():
    assert (
        u.WORD_BREAKS[u.word_break()[ord("a")]] == "ALetter"
        and u.WORD_BREAKS[u.word_break()[ord("'")]] == "Single_Quote"
    )
    assert u.SCRIPTS[u.script()[ord("ж")]] == "Cyrillic" and u.SCRIPTS[u.script()[ord("日")]] == "Han"
    assert u.properties().shape == u.word_break().shape == u.script().shape == (0x110000,)


@kernel
def points_of(data, out):
    i = n = 0
    while i < len(data):
        out[n], length = u.code_point(data, i, len(data))
        i += length
        n += 1
    return n


def read(data: bytes) -> list[int]:
    out = np.zeros(len(data) + 1, np.int64)
    view = np.frombuffer(data, np.uint8)
    return out[: points_of(view, out)].tolist()


@given(st.text())
def test_code_points_of_any_text(text):
    assert read(text.encode()) == [ord(c) for c in text]


@given(st.binary())
def test_any_bytes_are_read_to_the_end(data):
    points = read(data)
    assert len(points) <= len(data) and all(0 <= p < 0x110000 for p in points)
