"""What is promised of encodings: the order of evidence, browsers' reading of labels, and that nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.read.charset import charset_in, charset_of, declared_in_page, decode_html, decode_text

JAPANESE = "日本語の文章です。これは試験のための長い文です。"
KOREAN = "서울특별시는 대한민국의 수도이자 최대 도시이다. 한강을 끼고 있으며 많은 사람들이 살고 있다."
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
    for comment in (b"<!-- <meta charset=koi8-r> -->", b"<!-->", b"<!--->", b""):
        assert charset_of(comment + b"<meta charset=windows-1251>", None) == "cp1251"
    assert charset_of(b"<?xml version=\"1.0\" encoding='ISO-8859-2'?><html>", None) == "iso8859-2"
    assert charset_of(b'<?xml version="1.0" encoding="ISO-8859-2"?><meta charset="koi8-r">', None) == "koi8-r"


@pytest.mark.parametrize("codec", ["euc_kr", "cp949"])
def test_korean_is_detected_though_no_label_is_named_as_the_detector_names_it(codec):
    assert decode_html(KOREAN.encode(codec), None) == decode_text(KOREAN.encode(codec)) == KOREAN


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


def test_runs_of_spaces_take_no_time():
    assert charset_in("text/html; charset=" + " " * 1_000_000 + ";") is None
    assert charset_in("text/html; " + "charset  " * 100_000) is None
    assert declared_in_page(b"<meta " * 75 + b"charset=" + b" " * 3600 + b";") is None
    assert declared_in_page(b"<?xml encoding =  '  utf-8'?>") == "utf-8" == declared_in_page(b"<meta charset =  ' utf-8'>")
