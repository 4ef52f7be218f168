"""Repair as a stage: nothing is dropped, every step is a setting, counts say what was done, and any Arrow layout gives
the same."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.stages import Repair

LANGUAGES = Path(__file__).parents[4] / "shared" / "data" / "languages.parquet"
BROKEN = "cafÃ© &amp; bar\x07\u200b  e\u0301\n\n\n\n\ufffd "


def texts(stage, values, kind=None):
    return stage(pa.table({"text": pa.array(values, kind or pa.string())}))


def test_counts_say_what_was_done():
    row = texts(Repair(), [BROKEN]).to_pylist()[0]
    assert row == {
        "text": "café & bar é\n\n\ufffd", "mojibake_repaired": 1, "entities_repaired": 1, "controls_removed": 1, "zero_width_removed": 1,
        "replacement_characters": 1,
    }  # fmt: skip
    assert tuple(name for name in row if name != "text") == Repair.adds


@pytest.mark.parametrize(
    ("off", "text"),
    [
        ("mojibake", "cafÃ© & bar é\n\n\ufffd"), ("entities", "café &amp; bar é\n\n\ufffd"), ("normal_form", "café & bar e\u0301\n\n\ufffd"),
        ("controls", "café & bar\x07 é\n\n\ufffd"), ("zero_width", "café & bar\u200b é\n\n\ufffd"), ("whitespace", "café & bar  é\n\n\n\n\ufffd "),
    ],
)  # fmt: skip
def test_each_step_can_be_turned_off(off, text):
    stage = Repair(**{off: None if off == "normal_form" else False})
    assert texts(stage, [BROKEN]).column("text").to_pylist() == [text]


@pytest.mark.parametrize(
    "text", ["It\u2019s Gr\u00f6\u00dfe", "\u201cHi\u201d", "Aqu\u00ed \u00e0", "\u00ab voil\u00e0 \u00bb"]
)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_was_misread_more_than_once_is_undone_before_anything_is_cleaned_away(text, times):
    misread = {"latin-1": text, "windows": text}
    for _ in range(times):
        misread["latin-1"] = misread["latin-1"].encode().decode("latin-1")
        misread["windows"] = "".join(
            bytes([b]).decode("cp1252") if b not in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else chr(b)
            for b in misread["windows"].encode()
        )
    whole = texts(Repair(), [text]).column("text").to_pylist()
    assert texts(Repair(), list(misread.values())).column("text").to_pylist() == whole * 2


def test_nothing_on_changes_nothing():
    stage = Repair(mojibake=False, entities=False, normal_form=None, controls=False, zero_width=False, whitespace=False)
    assert texts(stage, [BROKEN]).column("text").to_pylist() == [BROKEN]


def test_normal_form_nfkc():
    assert texts(Repair(normal_form="NFKC"), ["ﬁｎｅ ㍿"]).column("text").to_pylist() == ["fine 株式会社"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_any_layout_keeps_its_type_its_nulls_and_its_rows(kind):
    values = ["unseen", None, BROKEN, "", "clean", "a\r\nb"]
    table = pa.table({"uid": pa.array(range(6), pa.uint64()), "text": pa.array(values, kind)}).slice(1)
    done = Repair().apply(table.combine_chunks().to_batches()[0]).batch
    assert done.column("text").type == kind and done.column("uid").to_pylist() == [1, 2, 3, 4, 5]
    assert done.column("text").to_pylist() == [None, "café & bar é\n\n\ufffd", "", "clean", "a\nb"]
    assert all(done.column(name).type == pa.int32() and done.column(name).null_count == 0 for name in Repair.adds)


@pytest.mark.parametrize(
    "values", [[], [None], [""], [" "], ["\x00"], ["😀" * 5], ["\u0301"], ["שלום"], ["a"]], ids=ascii
)
def test_odd_texts_have_defined_signals(values):
    done = Repair().apply(pa.record_batch({"text": pa.array(values, pa.string())})).batch
    assert len(done) == len(values) and all(done.column(name).null_count == 0 for name in Repair.adds)


def test_a_text_of_unseen_characters_alone_is_dropped():
    done = Repair().apply(pa.record_batch({"text": ["\x07\u200b", "clean", "", None]}))
    assert [done.verdict.reason(row) for row in range(4)] == ["nothing_left", None, None, None]
    assert done.batch.column("text").to_pylist() == ["\x07\u200b", "clean", "", None]


def test_batches_do_not_matter():
    values = [BROKEN, "clean", "don\x92t", "Ã©", "&amp;#146;", "x" * 500 + "  y"] * 5
    whole = texts(Repair(), values)
    assert (
        pa.concat_tables([texts(Repair(), values[i : i + 3]) for i in range(0, len(values), 3)]).combine_chunks()
        == whole.combine_chunks()
    )


def test_real_sentences_of_75_languages_are_left_alone_and_restored():
    if not LANGUAGES.exists():
        pytest.skip(f"needs {LANGUAGES}")
    sentences = pq.read_table(LANGUAGES).column("text").to_pylist()
    only = Repair(entities=False, normal_form=None, controls=False, zero_width=False, whitespace=False)
    done = texts(only, sentences).column("text").to_pylist()
    assert (
        150 < sum(a != b for a, b in zip(sentences, done, strict=True)) < 300
    )  # those that came misread, all of them looked at
    clean = [a for a, b in zip(sentences, done, strict=True) if a == b and not a.isascii()]
    assert len(clean) > 50_000
    restored = texts(only, [text.encode().decode("latin-1") for text in clean]).column("text").to_pylist()
    assert sum(a == b for a, b in zip(clean, restored, strict=True)) > 0.998 * len(clean)
