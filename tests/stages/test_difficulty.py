"""Difficulty is that of the textbooks, known for every text, and the same however the batch is laid out."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings as how, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import Difficulty
from gristmill.stages.text.common_words import learn_common_words
from gristmill.stages.text.difficulty import ENGLISH_ONLY, SIGNALS
from gristmill.stages.text.directions import EASY_WHEN_HIGH

PROSE = Path(__file__).parents[3] / "shared" / "data" / "prose.parquet"
NPY = (
    b"\x93NUMPY\x01\x00v\x00"
    + b"{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }".ljust(117)
    + b"\n"
    + bytes(8)
)
ODD = [
    "",
    " ",
    "\n\n \t",
    "a",
    "。",
    "😀👍🏽❤️",
    "שלום עולם",
    "\0\0a\0",
    "\u0301\u0301",
    "\u200d\ufeff",
    "...",
    "1984",
    "a" * 5000,
    "日本語のテキスト。",
    None,
]


@pytest.fixture(scope="module")
def words_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("the\ncat\non\nDon't\nmat\nzebra\n", "utf-8")
    return str(path)


def measured(texts, kind=None, languages=None, **settings):
    columns = {"text": pa.array(texts, kind or pa.string())} | (
        {"language": pa.array(languages, pa.string())} if languages else {}
    )
    return {
        name: values.to_pylist() for name, values in Difficulty(**settings).annotate(pa.record_batch(columns)).items()
    }


def test_every_text_has_every_signal_but_reading_ease_where_nothing_is_to_read(words_file):
    found = measured(ODD, common_words=words_file)
    assert tuple(found) == SIGNALS == Difficulty.adds
    for name, values in found.items():
        assert len(values) == len(ODD)
        known = [value for value in values if value is not None]
        assert np.isfinite(known).all() and (len(known) == len(ODD)) == (name not in ENGLISH_ONLY), name
        if name not in ENGLISH_ONLY:
            assert min(known) >= 0 and values[0] == 0, name


def test_flesch_by_the_book():
    found = measured(
        ["The cat sat on the mat.", "The Australian platypus is seemingly a hybrid of a mammal and reptilian creature."]
    )
    assert found["flesch_reading_ease"][0] == pytest.approx(116.145) and found["flesch_kincaid_grade"][
        0
    ] == pytest.approx(-1.45)
    assert found["sentence_length"] == [6, 13]
    # the-Aus-tra-lian-plat-y-pus-is-seem-ing-ly-a-hy-brid-of-a-mam-mal-and-rep-til-ian-crea-ture: 24 syllables in 13
    # words
    assert found["flesch_reading_ease"][1] == pytest.approx(206.835 - 1.015 * 13 - 84.6 * 24 / 13)
    assert found["flesch_kincaid_grade"][1] == pytest.approx(0.39 * 13 + 11.8 * 24 / 13 - 15.59)


def test_complexity_is_the_sum_that_the_docs_give():
    text = "The Australian platypus is seemingly a hybrid of a mammal and reptilian creature."
    english, other = measured([text], languages=["en"]), measured([text], languages=["de"])
    long, varied, hard = 13 / 20, 12 / 13, (100 - english["flesch_reading_ease"][0]) / 100
    assert english["complexity"] == [pytest.approx(0.3 * varied + 0.3 * long + 0.4 * hard)]
    assert other["complexity"] == [pytest.approx((0.3 * varied + 0.3 * long) / 0.6)] and english[
        "lexical_diversity"
    ] == [varied]
    assert max(measured(["word " * 50_000, "Internationalization " * 300])["complexity"]) <= 1


def test_flesch_is_for_english_alone():
    languages = ["en", "eng_Latn", "EN-us", "de", "unknown", None]
    for ours, known in (("en", [True] * 3 + [False] * 2 + [True]), ("fr", [True] * 3 + [False] * 3)):
        found = measured(["A short text."] * 6, languages=languages, language=ours)
        for name in ENGLISH_ONLY:
            assert [value is not None for value in found[name]] == known
        assert found["mtld"] == [3.0] * 6
    assert measured(["A short text."], language="de")["flesch_reading_ease"] == [None]


def test_zlib_looks_at_the_first_8192_bytes():
    text = "The quick brown fox. " * 1000
    assert measured([text, text + "x" * 99, "é" * 5000, "ab"], only=("zlib_share",))["zlib_share"] == [
        len(zlib.compress(text.encode()[:8192], 6)) / 8192,
        len(zlib.compress(text.encode()[:8192], 6)) / 8192,
        len(zlib.compress("é".encode() * 4096, 6)) / 8192,
        len(zlib.compress(b"ab", 6)) / 2,
    ]


def test_rare_words_are_those_that_a_list_does_not_have_among_its_first(words_file):
    text = "The cat don’t know 77 zebras: Zebra!"
    assert measured([text], common_words=words_file)["rare_word_share"] == [2 / 6]
    assert measured([text], common_words=words_file, common=3)["rare_word_share"] == [4 / 6]
    assert "rare_word_share" not in measured([text])


def test_common_words_are_learned_from_texts(tmp_path):
    texts = pa.array(["b b b b 9 9 9 9 9 9", "a a A a a", None, "c"])
    learned = learn_common_words([texts, texts.slice(1)], 2)
    np.savez(tmp_path / "words.npz", hashes=learned)
    path = str(tmp_path / "words.npz")
    assert len(learned) == 2 and measured(["a a b c"], common_words=path)["rare_word_share"] == [1 / 4]
    assert measured(["a a b c"], common_words=path, common=1)["rare_word_share"] == [2 / 4]
    assert (
        np.array_equal(learn_common_words([texts.slice(1), texts], 2), learned)
        and len(learn_common_words([texts])) == 3
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"only": ("mtdl",)}, "did you mean 'mtld'"),
        ({"only": ("rare_word_share",)}, "needs common_words"),
        ({"common_words": "nowhere.txt"}, "no file nowhere.txt"),
        ({"common": 0}, "greater than 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        Difficulty(**settings)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY", NPY])
def test_a_damaged_file_of_words_is_refused(tmp_path, content):
    (tmp_path / "words.npz").write_bytes(content)
    with pytest.raises(SettingsError, match=r"common_words: .* is none that"):
        Difficulty(common_words=str(tmp_path / "words.npz"))
    (tmp_path / "words.txt").write_text("\n  \n")
    with pytest.raises(SettingsError, match="holds no word"):
        Difficulty(common_words=str(tmp_path / "words.txt"))


@given(texts=st.lists(st.one_of(st.none(), st.text(max_size=60)), max_size=6), start=st.integers(0, 3))
@how(max_examples=50)
def test_layout_order_and_neighbours_never_matter(texts, start):
    whole = measured(texts)
    assert measured(texts, pa.large_string()) == whole == measured(texts, pa.string_view())
    batch = pa.record_batch({"text": pa.array(texts, pa.string())}).slice(start)
    assert {n: v.to_pylist() for n, v in Difficulty().annotate(batch).items()} == {
        n: v[start:] for n, v in whole.items()
    }
    assert {n: v[::-1] for n, v in measured(texts[::-1]).items()} == whole
    assert all(measured([text]) == {n: [v[i]] for n, v in whole.items()} for i, text in enumerate(texts))


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_alone_is_the_same(name, words_file):
    assert measured(ODD, only=(name,), common_words=words_file) == {name: measured(ODD, common_words=words_file)[name]}


def test_it_adds_what_it_says(words_file):
    assert Difficulty().added == tuple(measured(["a"])) and Difficulty(common_words=words_file).added == SIGNALS
    assert set(EASY_WHEN_HIGH) & set(SIGNALS) == {"flesch_reading_ease"}


@pytest.mark.skipif(not PROSE.exists(), reason="no ../shared/data/prose.parquet")
def test_childrens_books_are_easier_than_scholarly_ones():
    table = pq.read_table(PROSE)
    found = Difficulty(only=("flesch_kincaid_grade", "flesch_reading_ease", "complexity", "sentence_length"))(table)
    works = np.array(found["work"].to_pylist())
    middle = {
        name: {work: np.median(found[name].to_numpy()[works == work]) for work in set(works)}
        for name in found.schema.names[-4:]
    }
    easy = [work for work in set(works) if work.startswith(("burgess", "bryant", "carroll"))]
    hard = [
        work
        for work in set(works)
        if work.startswith(("melville", "milton", "austen-sense")) or work in ("valid", "test")
    ]
    assert len(easy) == 3 and len(hard) == 5
    for name, of in middle.items():
        way = -1 if name in EASY_WHEN_HIGH else 1
        assert max(way * of[work] for work in easy) < min(way * of[work] for work in hard), name
