"""What is promised of encodings: the order of evidence, browsers' reading of labels, and that nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.read.charset import charset_in, charset_of, decode_html, decode_text

JAPANESE = "日本語の文章です。これは試験のための長い文です。"
RUSSIAN = "Это обычный русский текст, в котором достаточно слов для определения кодировки."


def test_the_order_of_evidence():
    meta = b'<meta charset="koi8-r">'
    assert charset_of(b"\xef\xbb\xbf" + meta, "windows-1251") == "utf-8"
    assert charset_of(meta, "windows-1251") == "cp1251"
    assert charset_of(meta, None) == "koi8-r"
    assert charset_of(meta, "no-such-label") == "koi8-r"
    assert charset_of("é".encode(), None) == "utf-8"


@pytest.mark.parametrize(
    ("text", "codec", "label"),
    [(JAPANESE, "cp932", "Shift_JIS"), (JAPANESE, "euc_jp", "x-euc-jp"), (RUSSIAN, "cp1251", None), (RUSSIAN, "koi8-r", None), ("“naïve” €", "cp1252", "latin1")],
)  # fmt: skip
def test_real_encodings(text, codec, label):
    assert decode_html(text.encode(codec), label) == text
    assert decode_text(text.encode(codec), label) == text


def test_meta_tags():
    page = '<html><head><META http-equiv=content-type content="text/html; charset=windows-1251">' + RUSSIAN
    assert decode_html(page.encode("cp1251"), None) == page
    assert decode_html('<meta charset="utf-16">é'.encode(), None).endswith("é")
    assert decode_text(b"\xff\xfe" + "hi".encode("utf-16-le")) == "hi"


@given(
    st.binary(max_size=300),
    st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["utf-8", "utf-16", "gbk", "iso-2022-jp", "x-user-defined"])),
)
def test_nothing_raises_and_everything_can_be_written(data, label):
    decode_html(data, label).encode("utf-8")
    decode_text(data, label).encode("utf-8")


def test_the_charset_of_a_header():
    assert charset_in('text/html; Charset="UTF-8"') == "utf-8"
    assert charset_in("text/html") is None is charset_in(None)
