"""Repair equals its reference implementation on any text, settles what it starts, and leaves real text alone."""

import unicodedata
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.repair import characters as c
from gristmill.kernels.repair.entities import decode_entities_plain
from gristmill.kernels.repair.mojibake import repair_mojibake_plain
from gristmill.kernels.repair.normal_form import (
    LONG_RUN,
    _may_have_long_runs,
    find_unnormal,
    in_normal_form,
    long_runs,
    normal_form,
)
from gristmill.kernels.repair.repair import Steps, repair, repair_plain

ALL = c.ENTITIES | c.MOJIBAKE | c.CONTROLS | c.ZERO_WIDTH | c.WHITESPACE
HIGH = "".join(map(chr, range(0x80, 0x100))) + "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
PIECES = [
    *"aZ1;&#<\n\r\t \u00a0\u3000\u0085\u2028\x00\x07\x7f\x0b\x0c",
    *"\u00ad\u200b\u200c\u200d\u200e\u2060\ufeff\ufffc\ufe0e\ufe0f\ufe00\u20e3",
    "\u0301", "\u0308", "\u0323", "\u0338", "e", "é", "É", "Ã", "Â", "\ufffd", "\u09c7", "\u09be", "\u0915\u094d", "\u0645", "ᄀ", "ᅡ", "ᆨ",
    "😀", "👩", "\U0001f3fd", "\U0001f3f4", "\U000e0067\U000e0062", "\U000e007f", "\U000e0100", "漢", "&amp;", "&#", "x41;", "&nbsp;", "&#8203;",
    "ā", "โ", "๐\x9f\x94", "β\x80\x99", "&lt;", "&semi;", "&#x26;", "&nLt;", "&#146;", "&#0;", "&Atilde;", "&copy;", "â€™", "â€\ufffd", "Ã©", "Ã¢â‚¬â„¢", "ÐŸÑ€", "×©×œ", "«", "»", "\n\n\n", "    ",
    "plain words that fill more than a block of sixty-four bytes with nothing to repair in it at all\n\nand on",
]  # fmt: skip
mixed = st.lists(st.one_of(st.sampled_from(PIECES), st.sampled_from(HIGH), st.text(max_size=3)), max_size=30).map(
    "".join
)
misread = st.text(max_size=8).map(lambda text: text.encode().decode("latin-1"))
texts = st.one_of(mixed, st.text(), st.tuples(mixed, misread, mixed).map("".join))
steps = st.builds(Steps, st.integers(0, 31).map(lambda bits: bits & ALL), st.sampled_from([None, "NFC", "NFKC"]))
EVERYTHING = Steps(ALL, "NFC")


def ran(column, steps):
    done = repair(column, steps)
    words = [bytes(done.text.data[a:b]).decode() for a, b in pairwise(done.text.offsets)]
    return list(zip(words, map(tuple, np.stack(done.counts, axis=1).tolist()), strict=True))


def repaired(text, chosen=EVERYTHING):
    return ran(text_column(pa.array([text])), chosen)[0][0]


@given(st.lists(texts, max_size=6), steps)
@example(["é ÐŸÑ€ ì ×©×œ×• ñ ×©×œ"], EVERYTHING)
def test_equals_the_plain_twin(values, chosen):
    assert ran(text_column(pa.array(values, pa.string())), chosen) == [repair_plain(value, chosen) for value in values]


@given(texts)
@example("&am\u200bp;#146;")
@example("<\u0338&lt;")
@example("&#38;amp;nbsp; ")
@example("Ã\u200b©")
@example("Ã&copy;")
def test_a_repaired_text_stays_as_it_is(text):
    for chosen in (EVERYTHING, Steps(ALL, "NFKC"), Steps(ALL, None)):
        once = repaired(text, chosen)
        assert repaired(once, chosen) == once


@given(st.lists(st.one_of(st.none(), texts), max_size=8), st.integers(0, 3))
def test_any_slice_and_layout(values, start):
    expected = [repair_plain(value or "", EVERYTHING) for value in values]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert ran(text_column(pa.array(values, kind).slice(start)), EVERYTHING) == expected[start:]
    assert [one for value in values for one in ran(text_column(pa.array([value], pa.string())), EVERYTHING)] == expected


@given(texts)
def test_nothing_is_left_that_a_step_removes(text):
    done = repaired(text)
    kinds = [int(c.kinds()[ord(character)]) for character in done]
    assert not any(kind & (c.CONTROL | c.BREAK | c.SPACE | c.HIDDEN) for kind in kinds)
    assert (
        unicodedata.is_normalized("NFC", done)
        and done == done.strip(" \t\n")
        and "\n\n\n" not in done
        and " \n" not in done
    )


MARKS = "\u0301\u0323\u0344\u0345\u0f71\u0f73\u0f74\uff9e\u05ae\u3099\u0e38"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "a", "é", "ệ", "ﾊ", "각", "\u200d"]),
            st.text(MARKS, max_size=4),
            st.sampled_from([1, 40]),
        ),
        max_size=3,
    ),
    st.sampled_from(["NFC", "NFKC"]),
)
def test_long_runs_of_marks_come_out_as_python_has_them(parts, form):
    text = "".join(base + marks * times for base, marks, times in parts)
    assert in_normal_form(text, form) == unicodedata.normalize(form, text)


def test_a_long_run_is_found_wherever_it_begins():
    for before in range(2 * LONG_RUN + 2):
        text = "a" * before + "\u0301\u0323" * (LONG_RUN // 2)
        assert _may_have_long_runs(text, "NFC") and not _may_have_long_runs(
            text[: before + LONG_RUN // 2 - 1] + "a" * LONG_RUN, "NFC"
        )
        assert in_normal_form(text, "NFC") == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_no_run_of_marks_costs_the_square_of_its_length(form):
    endless = "a" + "\u0301\u0323" * 50_000
    assert in_normal_form(endless, form) == "\u1ea1" + "\u0323" * 49_999 + "\u0301" * 50_000
    for mark in MARKS:  # each of them is taken for one where the form takes it apart into marks
        alone = [
            unicodedata.combining(part) for part in unicodedata.normalize({"NFC": "NFD", "NFKC": "NFKD"}[form], mark)
        ]
        assert all(alone) == (long_runs(form).fullmatch(mark * LONG_RUN) is not None)


@given(st.lists(texts, max_size=5), st.sampled_from(["NFC", "NFKC"]))
def test_the_quick_check_lets_no_text_pass_that_is_not_normal(values, form):
    data, offsets = text_column(pa.array(values, pa.string()))
    found = np.zeros(len(values), np.uint8)
    find_unnormal(data, offsets, np.ones(len(values), np.uint8), normal_form(form), found)
    for value, sent in zip(values, found, strict=True):
        assert sent or unicodedata.is_normalized(form, value)


def test_every_character_alone_and_after_a_letter():
    """Also that the quick check is quick: assigned characters that are normal pass it, but those that may compose."""
    values = [chr(p) for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    for before in ("", "a", "ক", "\u1100", "\uac00"):
        column = text_column(pa.array([before + value for value in values]))
        found = np.zeros(len(values), np.uint8)
        find_unnormal(column.data, column.offsets, np.ones(len(values), np.uint8), normal_form("NFC"), found)
        changed = np.array([not unicodedata.is_normalized("NFC", before + value) for value in values])
        assert changed.any() and not (changed & (found == 0)).any() and found.sum() < changed.sum() + 200


@pytest.mark.parametrize(
    ("seen", "meant"),
    [
        ("donâ€™t", "don’t"), ("cafÃ©", "café"), ("Ã–sterreich, Ã¤hnlich", "Österreich, ähnlich"), ("25Â°C", "25°C"), ("BRANDÂ®", "BRAND®"),
        ("aÂ\u00a0b", "a\u00a0b"), ("Ã¢â‚¬â„¢", "â€™"), ("Å›roda, zÅ‚oty, bÄ™dzie", "środa, złoty, będzie"), ("ÐŸÑ€Ð¸Ð²ÐµÑ‚ Ð¸", "Привет и"),
        ("ðŸ˜€ ok", "😀 ok"), ("â†’ next", "→ next"), ("â‚¬5", "€5"), ("don\x92t \x85", "don’t …"), ("“Helloâ€\ufffd", "“Hello”"), ("é Ã©", "é é"),
        ("weā\x80\x99re ๐\x9f\x94\x8e โ\x9c\x85", "we’re 🔎 ✅"), ("๐\x9f\x94ข donné\x94", "๐\x9f\x94ข donné”"),
        ("æ—¥æœ¬èªž", "日本語"), ("×©×œ×•×\x9d", "שלום"), ("Ø§Ù„Ø¹Ø±Ø¨ÙŠØ©", "العربية"),
    ],
)  # fmt: skip
def test_mojibake_is_read_again(seen, meant):
    assert repair_mojibake_plain(seen)[0] == meant


@pytest.mark.parametrize(
    "text",
    [
        "NÃO, MAÇÃ, IRMÃ’S “MANHÃ” «MAÇÃ» IRMÃ…", "Liberté\u00a0» et CAFÉ\u00a0: É…", "CAFÉ™ PAPÁ” OLÉ¡", "Úžasný VÝŠE máš… kéž…", "Ø±0.1 mm, Ø½ inch, 3×²",
        "“Ã” é uma letra", "Ä Ö Ü", "Ä\u00a0Ö\u00a0Ü\u00a0", "naïve façade coöperate", "¿Qué\u00a0£? à\u00a0£20 café\u00a0€3", "ÂNCORA À ÊXODO", "„MÜLLER“ §5 50°",
        "Ça va\u00a0? «\u00a0Â\u00a0»", "", "é", "ß", "Ã", "â", "ð", "Â",
    ],
)  # fmt: skip
def test_real_text_is_left_alone(text):
    assert repair_mojibake_plain(text) == (text, 0)


@pytest.mark.parametrize(
    ("seen", "meant", "count"),
    [
        ("&amp;", "&", 1), ("&amp;nbsp;", "\u00a0", 2), ("&amp;amp;amp;lt;", "<", 4), ("&#8217;&#x2019;&rsquo;", "’’’", 3), ("P&eacute;rez", "Pérez", 1),
        ("&#146;&#128;", "’€", 2), ("&#0;&#xD800;&#x110000;&#99999999999;", "\ufffd" * 4, 4), ("&a&#109;p;", "&", 2), ("this&not that &amp AT&T;", None, 0),
        ("if (a &lt; b) <p>", None, 0), ("&;&#;&#x;&#x0x41;&#-1;&nosuch;", None, 0), ("&CounterClockwiseContourIntegral;", "∳", 1), ("&nLt;", "≪⃒", 1),
    ],
)  # fmt: skip
def test_entities(seen, meant, count):
    assert decode_entities_plain(seen) == (seen if meant is None else meant, count)


@pytest.mark.parametrize(
    ("seen", "meant"),
    [
        ("a\r\nb\rc\x0bd\x0ce\u2028f", "a\nb\nc\nd\ne\nf"), ("a\x00b\x07c\x7f", "abc"), ("ze\u200bro\u00ad\ufeff\u2060\u202ewidth", "zerowidth"),
        ("می\u200cخواهم", "می\u200cخواهم"), ("Auf\u200clage", "Auflage"), ("حق\u0651\u200cجو", "حق\u0651\u200cجو"), ("क्\u200dष", "क्\u200dष"), ("ക്\u200d", "ക്\u200d"), ("a\u200db", "ab"), ("👩\u200d👩\u200d👧", "👩\u200d👩\u200d👧"),
        ("❤\ufe0f 1\ufe0f\u20e3 a\ufe0f 1\ufe0f", "❤\ufe0f 1\ufe0f\u20e3 a 1"), ("葛\U000e0100 a\U000e0100", "葛\U000e0100 a"), ("😀\ufe0f\ufe0f\U000e0101", "😀\ufe0f"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"),
        ("hi\U000e0069\U000e0067\U000e006e\U000e006f\U000e0072\U000e0065", "hi"), ("  a  b \t c\td  \n\n \n\n    code  here\n- x\n", "a b\tc\td\n\n    code here\n- x"),
        ("\u3000漢\u00a0字\u2003", "漢 字"), (" \n\t ", ""), ("e\u0301", "é"), ("\ufffd", "\ufffd"), ("\u2067שלום\u2069 \u200fא", "שלום א"),
    ],
)  # fmt: skip
def test_characters(seen, meant):
    assert repaired(seen) == meant == repair_plain(seen, EVERYTHING)[0]


def test_hostile_sizes_are_linear_work():
    for unit in (
        "&amp",
        "&amp;amp;",
        "&#38;",
        "Ã",
        "Ã©",
        "é\u00a0",
        "a\u0301\u0323",
        " ",
        "\n",
        "\u200d",
        "\U0001f3f4\U000e0067",
        "क\u200d",
        "\x80",
        ";",
        "&a;",
    ):
        text = unit * (400_000 // len(unit))
        done = repair(text_column(pa.array([text])), EVERYTHING)
        assert len(done.text.data) <= 2 * len(text.encode())


def test_a_clean_column_is_not_copied():
    column = text_column(pa.array(["plain text, and more of it\n\nwith lines", "Überall Grün: 日本語 и é"]))
    done = repair(column, EVERYTHING)
    assert done.text is column and not len(done.changed) and not done.normalised.any()
