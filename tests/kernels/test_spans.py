"""Personal data is found where it is and nowhere else, by the kernels as by their reference, in linear time."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.personal_data.spans import KINDS, counts_by_kind, find_spans, replaced, replacements
from tests.reference.spans_plain import luhn, spans_plain

CARDS = [
    "4111111111111111",
    "4111 1111 1111 1111",
    "5555-5555-5555-4444",
    "3782 822463 10005",
    "30569309025904",
    "6011111111111117",
]
IBANS = ["GB29 NWBK 6016 1331 9268 19", "DE89370400440532013000", "NO93 8601 1117 947", "FR1420041010050500013M02606"]
KEYS = [
    "AKIA" + "ABCD1234" * 2, "AIza" + "aB3-_" * 7, "ghp_" + "a1B2" * 9, "github_pat_" + "a1_B" * 6, "sk_live_" + "ab12" * 5, "hf_" + "aB" * 17,
    "sk-proj-" + "aB3_" * 10, "sk-" + "aB3d" * 12, "sk-ant-api03-" + "aB3_-d" * 14, "sk-" + "0af3" * 8, "sk-or-v1-" + "0af3" * 16, "xoxb-1234567890-" + "aB3d" * 4, "glpat-" + "aB3-" * 5, "npm_" + "a1B2" * 9, "SG." + "a" * 22 + "." + "b" * 43,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcdefghijklmnopq", "dop_v1_" + "0a" * 32, "pypi-AgE" + "aB3_" * 15,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE+/=\n-----END RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\nMI\n-----END PRIVATE KEY-----",
]  # fmt: skip
FOUND = {
    "email": [
        "ann@a.org", "Ann.O'Brien+x_y%z@mail.co.uk", "o@bücher.example", "müller@x.de", "иван@почта.рф", "a@xn--bcher-kva.xn--p1ai", "1@b.cd",
        "x@a-b.museum",
    ],
    "ip": ["93.184.216.34", "100.128.10.1", "2600:1f18:2551:8900:abcd::1", "2a00:1450:4001:81b:0:0:0:200e"],
    "phone": [
        "+44 (0)20 7946 0958", "+1-212-555-0123", "(212) 555-0123", "212-555-0123", "1-800-555-0199", "01 23 45 67 89", "(030) 123 4567",
        "+(65) 3158 0269", "(495) 123-45-67", "+49 30 123456", "+49 (0) 30 / 123 456 78",
    ],
    "card": CARDS, "iban": IBANS, "key": KEYS,
}  # fmt: skip
SSN = "536-90-4399"
NEAR = [
    "@mention", "icon@2x.png", "git@github.com:a/b", "a@b", "lodash@4.17.21", "10.1.20.30", "192.168.100.20", "203.0.113.25", "1.2.3.4",
    "93.184.216.340", "93.184.216.34.5", "v93.184.216.34", "version 93.184.216.34", "224.10.10.10", "2001:db8:1::1", "fe80::1:2:3", "12:30:45",
    "std::abc", "2024-01-02", "978-0-306-40615-7", "$1,234,567.89", "4111111111111112", "GB29 NWBK 6016 1331 9268 18", "123-456-7890",
    "2010-2015", "tel 2010-12-31", "sk-loading-spinner-container-wrapper-x", "sk-typo-mod-font-primary-700-h5-2024-12", "sk-SK", "sk-3f2a91",
    "sk-Model-2024-Black-Edition", "sk-rapid-wechselt-neben-kara-auch-fountas-in-die-mls-2019", "sk-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "536-90-4399", "070-01-0141", "STC: Nr. 219-05-2006", "classname 536-90-4399", "https://example.org:8080/@ann", "https://ann@host/",
    "https://a.example,https://b.example/@x:1", "std::cout<<x@y", "12:30://x:y@", "a://b:@c", "AKIAIOSFODNN7", "3.141592653589793", "1234567890", "+1 000 000 0000",
    "4220 4632 5041 5490 6775", "-----BEGIN PUBLIC KEY-----\nMI\n-----END PUBLIC KEY-----", "555-0123", "1700000000000", "0x1234567890abcdef",
]  # fmt: skip


def found_in(text: str, wanted=KINDS):
    data, offsets = text_column(pa.array([text]))
    spans = find_spans(data, offsets, wanted)
    return [
        (bytes(data[a:b]).decode(), KINDS[kind])
        for a, b, kind in zip(spans.starts, spans.ends, spans.kinds, strict=True)
    ]


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in FOUND.items() for text in texts])
def test_each_shape_is_found_alone_and_in_a_sentence(kind, text):
    for around in ("{}", "Write to {}.", "({})", "<{}>", "a\n{}\nb", "„{}“, or"):
        assert found_in(around.format(text)) == [(text, kind)], around
    assert found_in(text, tuple(k for k in KINDS if k != kind and {kind, k} != {"phone", "card"})) == []


@pytest.mark.parametrize("text", NEAR)
def test_near_misses_stay(text):
    assert found_in(text) == [] and found_in(f"see {text}, so") == []


def test_context_decides():
    assert found_in("Phone no.: 7946 0958") == [("7946 0958", "phone")] and found_in("order 7946 0958") == []
    assert found_in("Tel. 030 / 123 45 67") == [("030 / 123 45 67", "phone")] and found_in("1920 / 1080 / 30") == []
    for cue in (
        "TEL：",
        "Tel:",
        "電話：",
        "电话: ",
        "手机",
        "携帯：",
        "传真：",
        "전화: ",
        "Тел.: ",
        "тел. ",
        "Телефон: ",
        "факс ",
    ):
        assert found_in(f"联系 {cue}03-1234-5678") == [("03-1234-5678", "phone")], cue
    for word in ("отель ", "хотел ", "фон ", "话", "：", "手：", "价格："):
        assert found_in(f"联系 {word}03-1234-5678") == [], word
    for name in ("Version=", 'version = "', "FileVersion: ", "fileVersion('", "v "):
        assert found_in(f"{name}12.10.100.12") == [], name
    assert found_in('host = "93.184.216.34"') == [("93.184.216.34", "ip")]
    assert found_in("mailto:ann@a.org?x=1") == [("ann@a.org", "email")]
    assert found_in("邮箱ann@a.org欢迎") == [("ann@a.org", "email")]
    assert found_in("a@b.org-c@d.org") == [("a@b.org", "email"), ("c@d.org", "email")]
    assert found_in("4111111111111111@x.com") == [("4111111111111111@x.com", "email")]
    assert found_in("call (212) 555-0123x12") == [("(212) 555-0123", "phone")]
    assert found_in("4111111111111111 12/25") == [("4111111111111111", "card")]
    assert found_in("") == found_in("\0\0") == found_in(" ") == found_in("😀😀") == []


pieces = st.sampled_from(
    [text for texts in FOUND.values() for text in texts] + NEAR
    + [SSN, "SSN ", "ssns", "SS# ", "social security ", "://", "https://ann:s3cret@", "sk-" + "a1" * 10]
    + [*"@:+(_-AGJ0123456789./ )#\n", "a", "b", "@", "x1", "é", "中", "ж", " ", "–", "tel ", "no. ", "call", "version ", "git", "sk-", "::", "xn--", " / ", "：", "电话", "тел", "ефон", "факс", "=", '"', "fileversion"]
)  # fmt: skip
texts = st.lists(pieces, max_size=8).map("".join)
cued = FOUND | {"ssn": [f"SSN {SSN}", f"social security number: {SSN}", "SS# 123 45 6789"]}
sentences = st.lists(st.sampled_from(sorted(cued)).flatmap(lambda kind: st.sampled_from(cued[kind])), max_size=4).map(
    " ".join
)
near_alphabet = st.text("@:+(_-.AIKG eyJ0125789abx)/é中\u00a0", max_size=60)


@pytest.mark.parametrize(
    "cue",
    [
        "SSN",
        "ssn:",
        "SSNs",
        "SS#",
        "Social Security number:",
        "SOCIAL SECURITY NO.",
        "his social security number is",
        "ssn,",
    ],
)
@pytest.mark.parametrize("number", [SSN, "536 90 4399", "001-01-0001", "899-99-9999", "665-01-0001", "667-01-0001"])
def test_social_security_numbers_are_found_behind_a_word_that_says_so(cue, number):
    for around in ("{}", "({}).", "{}, or", '"{}"'):
        assert found_in(around.format(f"{cue} {number}")) == [(number, "ssn")], around
    assert found_in(f"{cue} {number}", ("email", "key")) == []


@pytest.mark.parametrize("number", ["000-12-3456", "666-12-3456", "900-12-3456", "987-65-4321", "536-00-4399", "536-90-0000", "536-90 4399", "536.90.4399"])  # fmt: skip
def test_numbers_that_are_never_issued_stay(number):
    assert found_in(f"SSN {number}") == []


def test_the_word_stands_near_and_alone():
    for text in (
        f"{SSN} is no SSN",
        f"classname {SSN}",
        f"ssnet {SSN}",
        f"SSN {'x' * 48} {SSN}",
        f"SSN 1-{SSN}",
        f"SSN {SSN}-1",
        f"SSN {SSN}5",
        f"press# {SSN}",
    ):
        assert found_in(text) == [], text
    assert found_in(f"SSN {'x' * 40} {SSN}") == [(SSN, "ssn")]
    assert found_in(f"SSN {SSN} and 212-34-5678") == [(SSN, "ssn"), ("212-34-5678", "ssn")]


@pytest.mark.parametrize("host", ["db.example.org/x", "localhost:5432/x", "10.1.20.30", "[fe80::1]:80/"])
@pytest.mark.parametrize("secret", ["ann:s3cret", ":s3cret", "ann%40mail.example:p%40ss~$w0rd!", "a.b-c_d:x"])
def test_what_logs_in_within_an_address_is_a_key(host, secret):
    for scheme in ("https", "postgresql+psycopg", "redis", "amqp"):
        assert found_in(f"see {scheme}://{secret}@{host}") == [(secret, "key")]
    assert ("s3cret@db.example.org", "email") in found_in("https://ann:s3cret@db.example.org/x", ("email",))


def test_kernels_and_twin_agree():
    met = Counter()

    @settings(max_examples=1000)
    @given(
        st.lists(st.one_of(texts, sentences, near_alphabet, st.text(max_size=20)), max_size=5),
        st.sampled_from([KINDS, ("email",), ("ip", "phone")]),
    )
    def agree(values, wanted):
        data, offsets = text_column(pa.array(values, pa.string()))
        spans = find_spans(data, offsets, wanted)
        expected = [
            (i, a + int(offsets[i]), b + int(offsets[i]), kind)
            for i, v in enumerate(values)
            for a, b, kind in spans_plain(v.encode(), wanted)
        ]
        assert [(int(d), int(a), int(b), KINDS[k]) for d, a, b, k in zip(*spans, strict=True)] == expected
        for _, a, b, _ in expected:
            bytes(data[a:b]).decode()  # whole characters
        met.update(kind for *_, kind in expected)

    agree()
    assert all(met[kind] > 20 for kind in KINDS), met


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_read_inside_their_bounds(values):
    data, offsets = text_column(pa.array(values, pa.binary()))
    spans = find_spans(data, offsets)
    assert all(a < b for a, b in zip(spans.starts, spans.ends, strict=True)) and all(
        b <= c for b, c in zip(spans.ends, spans.starts[1:], strict=False)
    )


@given(st.lists(texts, max_size=6), st.integers(0, 3))
def test_replaced_is_what_python_would_join(values, start):
    array = pa.array(values, pa.string()).slice(start)
    data, offsets = text_column(array)
    spans = find_spans(data, offsets)
    out, ends = replaced(data, offsets, spans, replacements([[f"<{kind}>"] for kind in (*KINDS, "ip")]), 0)
    expected = []
    for value in values[start:]:
        text, i, whole = value.encode(), 0, b""
        for a, b, kind in spans_plain(text):
            whole, i = whole + text[i:a] + f"<{kind}>".encode(), b
        expected.append(whole + text[i:])
    assert [bytes(out[a:b]) for a, b in pairwise(ends)] == expected
    counts = counts_by_kind(spans, len(array))
    assert counts.shape == (len(array), len(KINDS)) and counts.sum() == len(spans)


def test_more_spans_than_were_expected():
    text = "ann@a.org " * 5000
    data, offsets = text_column(pa.array(["x@y.org", text, "", "z@y.org"]))
    assert np.bincount(find_spans(data, offsets).documents).tolist() == [1, 5000, 0, 1]


@pytest.mark.parametrize(
    "unit",
    [
        "@",
        "a@",
        "1",
        "+1",
        "(",
        "a://a:",
        "123-45-6789 ",
        "ss",
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "2600:",
        ":",
        "4 4",
        "a.",
        "sk-",
        "é@é",
        "tel 1",
    ],
)
def test_ten_megabytes_of_anything_take_a_moment(unit):
    find_spans(*text_column(pa.array(["x"])))
    data, offsets = text_column(pa.array([unit * (10_000_000 // len(unit))]))
    started = time.process_time()
    find_spans(data, offsets)
    assert time.process_time() - started < 4


def test_checksums():
    assert all(luhn(card.replace(" ", "").replace("-", "")) for card in CARDS) and not luhn("4111111111111112")


def test_a_card_behind_a_number_that_goes_goes_too():
    for text, left in (
        (b"Call +1 212 555 0123 4111 1111 1111 1111 now", b"Call <phone> <card> now"),
        (b"8 4111 1111 1111 1111", b"8 4111 1111 1111 1111"),
    ):
        spans = spans_plain(text)
        data, offsets = np.frombuffer(text, np.uint8), np.array([0, len(text)], np.int64)
        found = find_spans(data, offsets)
        assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == [span[:2] for span in spans]
        for start, end, kind in reversed(spans):
            text = text[:start] + f"<{kind}>".encode() + text[end:]
        assert text == left
