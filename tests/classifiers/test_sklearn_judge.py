"""A scikit-learn pipeline in a skops file is a judge; one with any type that skops does not trust is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gristmill.classifiers.card import Head, JudgeError
from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.sklearn_pipeline import judge_of_skops
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.interchange.imports import Importing, bring_in

skops = pytest.importorskip("skops.io", reason="needs skops")
sklearn_pipeline = pytest.importorskip("sklearn.pipeline")

TEXTS = [f"clear words about lenses and light number {i}" for i in range(20)] + [
    f"BUY now {i} cheap cheap" for i in range(20)
]
LABELS = ["good"] * 20 + ["bad"] * 20
PROBES = ["light and lenses", "cheap cheap BUY", "", "neither of them"]


def made(last: object, labels: list[str] | list[float]) -> object:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return sklearn_pipeline.make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), last).fit(TEXTS, labels)


def test_a_classifier_gives_the_same_probabilities_as_a_judge(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    pipeline = made(LogisticRegression(), LABELS)
    skops.dump(pipeline, tmp_path / "p.skops")
    said = bring_in(tmp_path / "p.skops", tmp_path / "judge", "sklearn", Importing(good_label="good"))
    assert "head quality (probability, labels bad, good)" in said
    judge = load_judge(tmp_path / "judge")
    expected = pipeline.predict_proba(PROBES)[:, list(pipeline.classes_).index("good")]  # type: ignore[attr-defined]
    assert judge.score(PROBES)["quality"] == pytest.approx(expected, abs=1e-6)
    assert judge.score(PROBES[:1])["quality"] == pytest.approx(expected[:1], abs=1e-6)
    assert judge.card.preprocessing["steps"] == ["TfidfVectorizer", "LogisticRegression"]


def test_a_regressor_has_bounds_and_other_labels_their_own_probabilities(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression, Ridge

    grades = np.repeat([-3.0, 8.0], 20)
    skops.dump(made(Ridge(), grades.tolist()), tmp_path / "r.skops")
    with pytest.raises(RecipeError, match="--between LOW,HIGH"):
        bring_in(tmp_path / "r.skops", tmp_path / "no", "sklearn", Importing())
    bring_in(tmp_path / "r.skops", tmp_path / "judge", "sklearn", Importing(head="edu", between="0,5"))
    scores = load_judge(tmp_path / "judge").score(TEXTS)["edu"]
    assert len(scores) == 40 and scores.min() == 0 and scores.max() == 5
    topics = [("a", "b", "c")[i % 3] for i in range(40)]
    skops.dump(made(LogisticRegression(), topics), tmp_path / "t.skops")
    bring_in(tmp_path / "t.skops", tmp_path / "topics", "sklearn", Importing(head="topic"))
    judge = load_judge(tmp_path / "topics")
    assert judge.card.heads[0].kind == "labels" and judge.card.heads[0].labels == ("a", "b", "c")


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def test_a_file_with_a_function_or_a_pickle_is_refused_with_the_types_named(tmp_path: Path) -> None:
    import pickle

    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import FunctionTransformer

    skops.dump(sklearn_pipeline.make_pipeline(FunctionTransformer(shout), LogisticRegression()), tmp_path / "p.skops")
    head = Head("quality", "probability", ("bad", "good"), "")
    with pytest.raises(JudgeError, match=r"refused.*test_sklearn_judge\.shout"):
        judge_of_skops(tmp_path / "p.skops", head)
    (tmp_path / "p.pkl").write_bytes(pickle.dumps(LogisticRegression()))
    with pytest.raises(JudgeError, match="pickle and joblib are never loaded"):
        judge_of_skops(tmp_path / "p.pkl", head)
    skops.dump(LogisticRegression().fit([[0.0], [1.0]], [0, 1]), tmp_path / "numbers.skops")
    with pytest.raises(JudgeError, match="cannot score a list of texts"):
        judge = judge_of_skops(tmp_path / "numbers.skops", Head("quality", "probability", ("0", "1"), ""))
        judge.save(tmp_path / "judge")
    assert not (tmp_path / "judge").exists()


def test_a_pipeline_that_gives_no_probabilities_is_refused(tmp_path: Path) -> None:
    from sklearn.svm import LinearSVC

    skops.dump(made(LinearSVC(), LABELS), tmp_path / "p.skops")
    with pytest.raises(RecipeError, match="predict_proba"):
        bring_in(tmp_path / "p.skops", tmp_path / "judge", "sklearn", Importing())
