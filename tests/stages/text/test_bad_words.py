"""Bad words are counted as a reader would: whole words, phrases, any case, any script; and the list is the user's."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.text.bad_words import BadWords, FewBadWords

LIST = "bad\nbad word\n\nx-rated\nПлохо\n🖕\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "en").write_text(LIST, "utf-8")
    (tmp_path / "ja.txt").write_text("グロ\nひどい\n女の子\n", "utf-8")
    (tmp_path / "de.txt.gz").write_bytes(gzip.compress("böse\n".encode()))
    (tmp_path / "README.md").write_text("bad", "utf-8")
    return tmp_path


def counts(texts, path, languages=None, **settings):
    columns = {"text": pa.array(texts, pa.string())} | ({"language": languages} if languages else {})
    return BadWords(words_path=str(path), **settings)(pa.table(columns))["bad_words"].to_pylist()


def test_whole_words_and_phrases_in_any_case(folder):
    texts = ["Bad! A BAD-word; (x rated)", "badly abad", "ПЛОХО", "so 🖕🖕", "", None, "b\u200bad", "bad\nword"]
    assert counts(texts, folder / "en") == [3, 0, 1, 2, 0, 0, 1, 1]


def test_each_language_has_its_list(folder):
    texts = ["bad böse", "bad böse", "とてもひどい女の子", "bad", "bad"]
    assert counts(texts, folder, ["en", "de", "ja", "fr", None]) == [1, 1, 1, 0, 1]
    assert counts(texts, folder, ["en", "de", "ja", "fr", None], allowed=(), default_language="fr") == [1, 1, 2, 0, 0]
    assert counts(texts, folder) == [1, 1, 0, 1, 1]


def test_a_list_is_for_its_language_however_a_model_names_it(folder):
    assert counts(["bad böse"] * 5, folder, ["eng_Latn", "deu_Latn", "fra_Latn", "EN-us", "unknown"]) == [1, 1, 0, 1, 0]
    (folder / "eng_Latn").write_text("fine\n", "utf-8")  # a name of its own goes before
    assert counts(["bad", "bad"], folder, ["eng_Latn", "en"]) == [0, 1]


def test_the_rule(folder):
    table = pa.table({"text": ["fine", "bad", "bad bad"]})
    measured = BadWords(words_path=str(folder / "en"))(table)
    assert FewBadWords()(measured)["text"].to_pylist() == ["fine"]
    assert FewBadWords(at_most=1)(measured)["text"].to_pylist() == ["fine", "bad"]
    assert FewBadWords().apply(measured.to_batches()[0]).verdict.reason(1) == "bad_words"


def test_a_changed_list_is_read_again(folder):
    path = folder / "en"
    assert counts(["bad good"], path) == [1]
    path.write_text("good\nbad\n", "utf-8")
    import os

    os.utime(path, ns=(1, 1))
    assert counts(["bad good"], path) == [2]


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match="no list at"):
        BadWords(words_path=str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="named by a language"):
        BadWords(words_path=str(tmp_path))
