"""Models that the package fasttext trained come in as judges, and it trains ours where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.fasttext.judge import FastTextRecipe, as_fasttext, train_fasttext, trainer_here
from gristmill.classifiers.judge import load_judge
from gristmill.kernels.language.fasttext_words import only_words_plain
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.interchange.imports import Importing, bring_in
from tests.classifiers.labelled import QUALITY, two_kinds

SMALL = FastTextRecipe(dimensions=12, word_ngrams=2, buckets=1000, learning_rate=0.5)


def test_floret_trains_and_else_a_module_fasttext_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("floret")
    package = SimpleNamespace(train_supervised=None)
    monkeypatch.setitem(sys.modules, "fasttext", package)
    assert list(trainer_here()[1]) == ["floret"]
    monkeypatch.setattr("gristmill.classifiers.fasttext.judge.version", lambda name: "0.9.3")
    monkeypatch.setitem(sys.modules, "floret", None)
    assert trainer_here()[0] is package and "floret" not in trainer_here()[1]
    monkeypatch.setitem(sys.modules, "fasttext", SimpleNamespace(load_model=None))
    with pytest.raises(JudgeError, match="needs the package floret"):
        trainer_here()


def by_chance(train: Callable[[], Any]) -> Any:
    """What the package trains; it ends in NaN now and then, for it reads memory that it never set."""
    for _ in range(20):
        try:
            return train()
        except (JudgeError, RuntimeError) as error:
            assert "Encountered NaN" in str(error)
    return pytest.skip("this fasttext ends in NaN every time")


def test_a_model_file_becomes_a_judge_by_a_command(tmp_path: Path) -> None:
    """Its bytes are fastText's, whichever package trained it."""
    pytest.importorskip("floret")
    trained = train_fasttext(two_kinds(), QUALITY, SMALL)
    trained.write(tmp_path)
    said = bring_in(tmp_path / "model.bin", tmp_path / "judge", "fasttext", Importing(good_label=QUALITY.labels[1]))
    assert "(probability" in said
    texts = pa.array(["reason explains theory under energy", "cart login sale cookies accept", ""])
    judge = load_judge(tmp_path / "judge")
    assert judge.score(texts)["quality"].tolist() == trained.score(texts)["quality"].tolist()
    with pytest.raises(RecipeError, match="--good-label is one of two labels"):
        bring_in(tmp_path / "model.bin", tmp_path / "no", "fasttext", Importing(good_label="fine"))
    with pytest.raises(RecipeError, match="--tokenizer means nothing to --from fasttext"):
        bring_in(tmp_path / "model.bin", tmp_path / "no", "fasttext", Importing(tokenizer="x"))
    (tmp_path / "wrong.bin").write_bytes(b"nothing")
    with pytest.raises(RecipeError, match="not a fastText classifier"):
        bring_in(tmp_path / "wrong.bin", tmp_path / "no", "fasttext", Importing())
    assert not (tmp_path / "no").exists()


def test_the_package_trains_a_judge_of_the_same_words_and_labels_as_floret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fasttext = pytest.importorskip("fasttext")
    pytest.importorskip("floret")
    if not hasattr(fasttext, "train_supervised"):
        pytest.skip("this module fasttext cannot train")
    by_floret = train_fasttext(two_kinds(), QUALITY, SMALL)
    assert list(by_floret.card.versions) == ["floret"]
    monkeypatch.setitem(sys.modules, "floret", None)
    by_fasttext = by_chance(lambda: train_fasttext(two_kinds(), QUALITY, SMALL))
    assert "floret" not in by_fasttext.card.versions
    ours, theirs = (bytes(judge.model.model.file) for judge in (by_floret, by_fasttext))
    assert len(ours) == len(theirs) and by_fasttext.model.labels == by_floret.model.labels
    assert ours[:1000] == theirs[:1000]  # settings and words; weights begin elsewhere


@pytest.mark.parametrize("ending", ["bin", "ftz"])
def test_models_of_the_package_are_judges_with_its_scores(ending: str, tmp_path: Path) -> None:
    fasttext = pytest.importorskip("fasttext")
    if not hasattr(fasttext, "train_supervised"):
        pytest.skip("this module fasttext cannot train")
    labelled = two_kinds(300)
    numbers = labelled.numbers(QUALITY)
    lines = [
        f"__label__{QUALITY.labels[number]} {only_words_plain(text)}\n"
        for number, text in zip(numbers.tolist(), labelled.texts.to_pylist(), strict=True)
    ]
    (tmp_path / "train.txt").write_text("".join(lines))
    settings = {"dim": 16, "wordNgrams": 2, "bucket": 2000, "thread": 1, "verbose": 0}
    model = by_chance(lambda: fasttext.train_supervised(str(tmp_path / "train.txt"), **settings))
    if ending == "ftz":
        model.quantize(input=str(tmp_path / "train.txt"), retrain=False)
    model.save_model(str(tmp_path / f"m.{ending}"))
    bring_in(tmp_path / f"m.{ending}", tmp_path / "judge", "fasttext", Importing(good_label=QUALITY.labels[1]))
    texts = labelled.texts.to_pylist()[:50]
    scores = load_judge(tmp_path / "judge").score(texts)["quality"]
    for text, score in zip(texts, scores.tolist(), strict=True):
        theirs = {
            label[9:]: chance for chance, label in model.f.predict(only_words_plain(text) + "\n", 2, 0.0, "strict")
        }
        assert score == pytest.approx(min(theirs[QUALITY.labels[1]], 1), abs=1e-5)
    assert len(scores) == 50


def test_a_file_of_florets_own_kind_is_refused() -> None:
    with pytest.raises(JudgeError, match="none of fastText's"):
        as_fasttext(bytes(200))
