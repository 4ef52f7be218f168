"""What is promised of encodings: the order of evidence, declarations held against the bytes, browsers' reading of
labels, and that nothing raises."""

import random
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from gristmill.stages.extract.engines import extract
from gristmill.stages.read.charset import (
    charset_in,
    charset_of,
    declared_in_page,
    decode_html,
    decode_page,
    decode_text,
)
from tests.stages.read.charset_cases import CODECS, TEXTS, WAYS, cases, texts_of

DATA = Path(__file__).parents[4] / "shared" / "data"

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
    st.one_of(
        st.none(), st.text(max_size=12), st.sampled_from(["utf-8", "utf-16", "gbk", "iso-2022-jp", "x-user-defined"])
    ),
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
    assert (
        declared_in_page(b"<?xml encoding =  '  utf-8'?>") == "utf-8" == declared_in_page(b"<meta charset =  ' utf-8'>")
    )


def test_pages_are_read_right_whether_their_encoding_is_undeclared_declared_or_declared_wrongly():
    tried = Counter()
    for case in cases({language: [f"{text} {text}"] for language, text in TEXTS.items()}):
        tried[case.codec, case.way] += 1
        assert case.text in decode_page(case.page, case.http).text, (case.codec, case.way)
    assert len(tried) == len(CODECS) * len(WAYS) == 128


@pytest.mark.skipif(not (DATA / "languages.parquet").exists(), reason="../shared/data/languages.parquet is absent")
def test_of_texts_of_300_characters_98_of_100_are_read_right():
    tried = list(cases(texts_of(DATA / "languages.parquet", 2, 300)))
    wrong = [(case.codec, case.way) for case in tried if case.text not in decode_page(case.page, case.http).text]
    assert len({case.codec for case in tried}) >= 18 and len(tried) > 150
    assert len(wrong) <= 0.02 * len(tried), wrong


@pytest.mark.skipif(not (DATA / "pages.parquet").exists(), reason="../shared/data/pages.parquet is absent")
@pytest.mark.parametrize(
    ("name", "key", "otherwise"),
    [("pages", "page", {"0193", "0527", "0533"}), ("pages_more", "id", {"R441.html", "R802.html", "qq"})],
)
def test_real_pages_keep_what_they_declare_but_for_these(name, key, otherwise):
    table = pq.read_table(DATA / f"{name}.parquet", columns=[key, "html"])
    pages = zip(table[key].to_pylist(), (decode_page(page.as_py(), None) for page in table["html"]), strict=True)
    declared = [(id, page.overruled) for id, page in pages if page.declared is not None]
    assert len(declared) > 1300 and {id for id, overruled in declared if overruled} == otherwise


@pytest.mark.parametrize("label", ["windows-1252", "iso-8859-1", "windows-1250", "koi8-r", "gbk", "shift_jis"])
def test_valid_utf8_is_that_whatever_is_declared(label):
    for text in ("Größe über Öl, Straße", "“quoted” – it’s", TEXTS["ru"], TEXTS["zh"]):
        page = f"<meta charset={label}><p>{text}".encode()
        for http in (None, label):
            decoded = decode_page(page, http)
            assert decoded.text.endswith(text) and (decoded.codec, decoded.overruled) == ("utf-8", True)
    few = "<meta charset=windows-1252><p>Ã©".encode("cp1252")  # one pair may be anything
    assert decode_page(few, None).text.endswith("Ã©")


SENTENCE = TEXTS["ru"]


@pytest.mark.parametrize("stray", [b"\xff", b"\x98", b"\xd0", b"\x93"])
def test_a_stray_byte_does_not_overrule_a_declaration(stray):
    page = b"<meta charset=utf-8><p>" + SENTENCE.encode() + b"<p>" + stray + b"<p>" + SENTENCE.encode()
    read = decode_page(page, None)
    assert (read.codec, read.overruled, read.text.count(SENTENCE), read.text.count("\ufffd")) == ("utf-8", False, 2, 1)
    japanese = b"<meta charset=shift_jis><p>" + (TEXTS["ja"] * 2).encode("cp932") + b"<p>\xff</p>"
    read = decode_page(japanese, None)
    assert (read.codec, read.overruled, read.text.count(TEXTS["ja"])) == ("cp932", False, 2)


def test_a_declaration_that_decodes_cleanly_wins_though_another_would_be_likelier():
    page = b"<p>" + SENTENCE.encode("koi8-r")
    read = decode_page(page, "windows-1251")
    assert (read.codec, read.declared, read.overruled) == ("cp1251", "cp1251", False) and SENTENCE not in read.text


@pytest.mark.parametrize(
    ("page", "http", "codec"),
    [
        (b"\xef\xbb\xbf<p>" + SENTENCE.encode("cp1251"), None, "cp1251"),
        (b"<meta charset=koi8-r><p>" + SENTENCE.encode("koi8-r"), "utf-8", "koi8-r"),
        (b"<meta charset=utf-8><p>" + SENTENCE.encode("koi8-r"), "utf-8", "koi8-r"),
        (b"<meta charset=shift_jis><p>" + (TEXTS["ja"] * 2).encode("euc_jp"), None, "euc_jp"),
        (b"<meta charset=euc-jp><p>" + (TEXTS["ja"] * 2).encode("cp932"), None, "cp932"),
        (b"<meta charset=gb2312><p>" + TEXTS["ko"].encode(), None, "utf-8"),
        (f"<p>Итак. {SENTENCE}</p>".encode(), "windows-1251", "utf-8"),  # the second byte of И stands for nothing there
        (b"<p>" + SENTENCE.encode() + b"</p>", "utf-16", "utf-8"),
        (b"\xff\xfe<p>" + SENTENCE.encode() + b"</p>", None, "utf-8"),
        (f"<p>{SENTENCE}</p>".encode("utf-16-be"), "utf-16", "utf-16-be"),
        (f"<p>{SENTENCE}</p>".encode("utf-16-le"), "utf-8", "utf-16-le"),
        (f"<p>{TEXTS['ja']}</p>".encode("iso2022_jp"), "utf-8", "iso2022_jp"),
    ],
)  # fmt: skip
def test_a_declaration_that_the_bytes_refute_gives_way(page, http, codec):
    read = decode_page(page, http)
    assert (read.codec, read.overruled, read.detected) == (codec, True, False)
    assert any(text in read.text for text in (SENTENCE, TEXTS["ja"], TEXTS["ko"])) and "\ufffd" not in read.text
    assert read.text.startswith("<")


def test_the_page_that_said_utf8_and_was_not():
    page = b"<meta charset=utf-8><p>" + ("Привет, мир. Это русский текст. " * 9).encode("cp1251")
    assert extract(page).text.count("Привет, мир. Это русский текст.") == 9
    icelandic = (
        "Ríkisútvarpið sagði frá því í gær að veðrið yrði gott næstu daga, þótt kaldara yrði á Norðurlandi. " * 4
    )
    assert decode_html(b"<meta charset=utf-8><p>" + icelandic.encode("latin-1"), "utf-8").endswith(icelandic)


def test_bytes_that_no_character_has_in_windows_1252_cost_no_others():
    page = b"<meta charset=iso-8859-1><p>" + "It\u2019s \u201cok\u201d".encode() + b" at the caf\xe9 in K\xf6ln, \xa35."
    assert decode_html(page, None).endswith("It\u2019s \u201cok\u201d at the caf\xe9 in K\xf6ln, \xa35.")
    page = b"<meta charset=windows-1252><p>caf\xe9 \x9d na\xefve \xa35 cr\xe8me br\xfbl\xe9e \x81</p>"
    read = decode_page(page, None)
    assert (read.codec, read.text[-29:]) == ("cp1252", "\x9d na\xefve \xa35 cr\xe8me br\xfbl\xe9e \x81</p>")
    mostly = b"<meta charset=utf-8><p>" + "\u201cquoted\u201d it\u2019s".encode() + b" na\xefve"
    assert decode_html(mostly, None).endswith("na\ufffdve"), "of a page that says UTF-8, a stray byte is lost"


RARE = "뷁! " + TEXTS["ko"]
CANTONESE = "佢離開咗三年先返嚟，睇落有啲攰。我哋傾咗成個鐘頭，佢話喺英國讀書嗰陣掛住香港嘅嘢食。"


@pytest.mark.parametrize(("text", "codec"), [(RARE, "cp949"), (RARE * 4, "cp949"), (CANTONESE, "big5hkscs")])
@pytest.mark.parametrize("mark", ["", "<meta charset=utf-8>"])
def test_a_rare_character_does_not_hide_which_multi_byte_encoding_it_is(text, codec, mark):
    read = decode_page(f"{mark}<p>{text}</p>".encode(codec), None)
    assert read.codec == codec and text in read.text


def test_words_quotation_marks_alone_are_windows_1252():
    page = b"<p>The player\x92s inventory: \x93Everybody that carefully waves arms in air\x94</p>"
    read = decode_page(page, None)
    assert read.text == "<p>The player’s inventory: “Everybody that carefully waves arms in air”</p>" and read.detected
    assert decode_html(b"<p>\x95 one</p>" * 40, None) == "<p>• one</p>" * 40


def test_bytes_that_nothing_explains_are_not_made_into_letters():
    noise = random.Random(3).randbytes(3000)
    assert decode_page(b"<p>" + noise, None).codec == "utf-8" and decode_text(noise).count("\ufffd") > 1000


SAYS_WINDOWS = b"<meta charset=windows-1252>"


@pytest.mark.parametrize("page", [b"\x9d" * 3_000_000, "\xe9".encode() * 1_000_000 + b"\x9d" * 900_000])
def test_strays_take_no_time(page):
    started = time.monotonic()
    assert len(decode_page(SAYS_WINDOWS + page, None).text) > 1_800_000
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "page", [b"<" * 3_000_000 + b"\xff", b"\xff" * 3_000_000, b"\x1b$B" * 1_000_000, b"<\0" * 1_000_000 + b"\xff"]
)
def test_hostile_bytes_take_no_time(page):
    started = time.monotonic()
    decode_page(page, "utf-8")
    assert time.monotonic() - started < 5
