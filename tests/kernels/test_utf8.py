"""Bytes are called UTF-8 as Python's decoder does, and plain UTF-8 only where no declaration changes what they say."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.utf8 import measured_utf8
from gristmill.stages.read.charset import decode_page, plainly_utf8

PIECES = st.sampled_from(
    [b"a" * 40, b"x", b"<p>", "é".encode(), "Привет".encode(), "中文".encode(), "😀".encode(), b"\0", b"\x1b$B", b"\x80", b"\xc0\x80",
     b"\xe0\x9f\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80\x80",
     b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf5", b"\xff\xfe", b"\xe4\xb8", b"\xf0\x9f\x98"]
)  # fmt: skip
BYTES = st.one_of(st.binary(max_size=12), st.lists(PIECES, max_size=8).map(b"".join))
CHARSETS = st.sampled_from(
    [None, "utf-8", "utf-16", "windows-1252", "windows-1251", "shift_jis", "big5", "gb18030", "iso-2022-jp", "euc-kr"]
)


@settings(max_examples=1000)
@given(BYTES)
def test_bytes_are_utf8_as_for_python(data: bytes) -> None:
    count, odd = measured_utf8(np.frombuffer(data, np.uint8))
    try:
        text = data.decode()
    except UnicodeDecodeError:
        assert count == -1
        return
    assert count == sum(character > "\x7f" for character in text)
    assert odd == (b"\0" in data or b"\x1b" in data)


@settings(max_examples=1000)
@given(BYTES, CHARSETS)
def test_plain_utf8_stays_as_it_is_whatever_is_declared(data: bytes, charset: str | None) -> None:
    if plainly_utf8(data):
        assert decode_page(data, charset).utf8 == data


def test_pages_are_plain_utf8() -> None:
    kinds = [b"", b"<p>a", "<p>Привет".encode(), "<p>é".encode(), "\ufeff<p>Привет".encode(), b"\0", b"<p>\xe9t\xe9"]
    assert [plainly_utf8(data) for data in kinds] == [True, True, True, False, False, False, False]
