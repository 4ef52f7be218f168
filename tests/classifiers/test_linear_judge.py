"""The linear judge: scikit-learn's fit, scored without scikit-learn, the same whatever stands beside a text."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import save_file

from gristmill.classifiers.judge import GOLDEN_TEXTS, Head, JudgeError, load_judge
from gristmill.classifiers.linear import judge as linear_judge
from gristmill.classifiers.linear.judge import LinearJudge, LinearRecipe, train_linear
from gristmill.classifiers.training import train_and_measure
from gristmill.classifiers.training_sets import labelled_texts
from gristmill.kernels.language.hashed_terms import terms_plain, weighed_plain
from tests.classifiers.labelled import GRADE, QUALITY, three_grades, two_kinds

SMALL = LinearRecipe(bits=12)
TEXTS = ["light bends slowly", "buy cart", "", " \n", "été 水は", "\0", "a" * 1000, "buy " * 5000]


@pytest.fixture(scope="module")
def judge() -> LinearJudge:
    return train_linear(two_kinds(), QUALITY, SMALL)


@pytest.fixture(scope="module")
def graded() -> LinearJudge:
    return train_linear(three_grades(), GRADE, SMALL)


def column_of(texts: list[str | None], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(texts, kind or pa.string())


def test_it_learns(judge, graded):
    score = judge.score(column_of(["reason explains theory under energy", "cart login sale cookies accept"]))["quality"]
    assert score.dtype == np.float32 and score[0] > 0.9 and score[1] < 0.1
    poor, fine = graded.score(column_of(["buy cart login sale click price", "because theory reason explains energy"]))[
        "grade"
    ]
    assert poor < 0.8 and fine > 1.2


@settings(deadline=None)
@given(st.sampled_from([*TEXTS, *GOLDEN_TEXTS]) | st.text())
def test_scores_are_those_of_the_plain_twin(judge, graded, text):
    [logit] = weighed_plain(terms_plain(text, 12, 2, judge.idf), judge.weights, judge.bias)
    assert judge.score(column_of([text]))["quality"][0] == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-6)
    logits = np.array(weighed_plain(terms_plain(text, 12, 2, graded.idf), graded.weights, graded.bias))
    assert graded.probabilities([text])["grade"][0] == pytest.approx(np.exp(logits) / np.exp(logits).sum(), rel=1e-5)


def test_the_fit_is_that_of_scikit_learn():
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression

    from gristmill.kernels.base.columns import text_column
    from gristmill.kernels.language.hashed_terms import term_column

    rows = two_kinds()
    judge = train_linear(rows, QUALITY, SMALL)
    ones = np.ones(1 << 12, np.float32)
    counts = np.zeros((len(rows), 1 << 12))
    terms = term_column(text_column(rows.texts), 12, 2, ones)
    for i, text in enumerate(rows.texts.to_pylist()):
        values = np.array([value for _, value in terms_plain(text, 12, 2, ones)])
        numbers = terms.numbers[terms.first[i] : terms.first[i + 1]]
        counts[i, numbers] = np.round(np.exp(values / values.min() - 1))  # 1 + ln n, scaled
    matrix = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    theirs = LogisticRegression(C=SMALL.looseness, max_iter=1000).fit(matrix, rows.labels.to_pylist())
    assert theirs.classes_.tolist() == ["bad", "good"]
    assert judge.score(rows.texts)["quality"] == pytest.approx(theirs.predict_proba(matrix)[:, 1], abs=2e-3)


def test_weights_of_texts_count():
    rows = two_kinds(30)
    light = replace(rows, weights=np.where(np.array(rows.labels.to_pylist()) == "good", 1.0, 0.01))
    assert (
        train_linear(light, QUALITY, SMALL).score(column_of([""]))["quality"][0]
        > train_linear(rows, QUALITY, SMALL).score(column_of([""]))["quality"][0]
    )


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([*TEXTS, None]) | st.text(), min_size=1, max_size=8), st.integers(0, 7))
def test_scores_do_not_depend_on_what_stands_beside(judge, texts, start):
    whole = judge.score(column_of(texts))["quality"]
    assert np.isfinite(whole).all() and ((whole >= 0) & (whole <= 1)).all()
    assert [judge.score(column_of([text]))["quality"][0] for text in texts] == whole.tolist()
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert judge.score(column_of(texts, kind).slice(start))["quality"].tolist() == whole[start:].tolist()


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_slices_do_not_show(judge, monkeypatch, size):
    texts = column_of([*TEXTS, "", "", *GOLDEN_TEXTS]).slice(1)
    whole = judge.score(texts)["quality"].tolist()
    monkeypatch.setattr(linear_judge, "SLICE_BYTES", size)
    assert judge.score(texts)["quality"].tolist() == whole


def test_no_text_at_all(judge, graded):
    assert judge.score(column_of([]))["quality"].shape == (0,)
    assert graded.probabilities(column_of([]))["grade"].shape == (0, 3)


def test_it_comes_back_as_it_was(judge, graded, tmp_path):
    for one in (judge, graded):
        one.save(tmp_path / one.head.name)
        back = load_judge(tmp_path / one.head.name)
        assert back.card == one.card
        assert (
            back.score(column_of(TEXTS))[one.head.name].tolist() == one.score(column_of(TEXTS))[one.head.name].tolist()
        )


def test_the_same_texts_give_the_same_weights(judge):
    again = train_linear(two_kinds(), QUALITY, SMALL)
    assert (
        again.card == judge.card
        and again.weights.tobytes() == judge.weights.tobytes()
        and again.bias.tobytes() == judge.bias.tobytes()
    )


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["light", "buy", "Cart", "été", "水は", "unknown", "a"]), max_size=12).map(" ".join)
    | st.text(max_size=30)
)
def test_the_parts_of_terms_sum_to_the_log_odds(judge, text):
    [logit] = weighed_plain(terms_plain(text, 12, 2, judge.idf), judge.weights, judge.bias)
    parts = judge.explain(text, "quality", most=10**6)
    assert sum(part for _, part in parts) + float(judge.bias[0]) == pytest.approx(logit, abs=1e-9)


def test_words_that_made_a_score(judge, graded):
    parts = dict(judge.explain("The BUY of energy", "quality", most=100))
    assert set(parts) == {"the", "buy", "of", "energy", "the buy", "buy of", "of energy"}
    assert parts["buy"] < 0 < parts["energy"]
    assert len(judge.explain("The buy of energy", "quality", most=3)) == 3
    assert dict(graded.explain("the buy of energy", "grade"))["energy"] > 0


@pytest.mark.parametrize(
    ("head", "recipe", "reason"),
    [
        (Head("x", "regression", (), "", 0, 5), SMALL, "fitted to labels"),
        (QUALITY, replace(SMALL, bits=40), "bits lie between 8 and 26"),
        (QUALITY, replace(SMALL, widest=3), "words of a term between 1 and 2"),
        (QUALITY, replace(SMALL, most_steps=1), "1 steps were too few"),
        (Head("x", "probability", ("bad", "best"), ""), SMALL, "texts have the label 'good'"),
    ],
)
def test_what_cannot_be_trained(head, recipe, reason):
    with pytest.raises(JudgeError, match=reason):
        train_linear(two_kinds(20), head, recipe)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": np.zeros((1 << 12, 2), np.float32)}, r"weights should be f4 of \(4096, 1\)"),
        ({"weights": np.zeros((1 << 12, 1), np.float64)}, "weights should be f4"),
        ({"idf": np.zeros(7, np.float32)}, r"idf should be f4 of \(4096,\)"),
        ({"bias": np.array([np.nan])}, "bias has numbers that are not finite"),
        ({"bias": None}, "bias should be f8"),
    ],
)
def test_weights_that_do_not_fit_are_refused(judge, tmp_path, change, reason):
    class Other(LinearJudge):
        def write(self, folder):
            tensors = {"idf": self.idf, "weights": self.weights, "bias": self.bias} | change
            save_file(
                {name: value for name, value in tensors.items() if value is not None}, folder / "weights.safetensors"
            )

    Other(judge.card, judge.idf, judge.weights, judge.bias, judge.bits, judge.widest).save(tmp_path / "x")
    with pytest.raises(JudgeError, match=reason):
        load_judge(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{}", b"garbage" * 100])
def test_a_weights_file_that_is_none(judge, tmp_path, content):
    class Other(LinearJudge):
        def write(self, folder):
            (folder / "weights.safetensors").write_bytes(content)

    Other(judge.card, judge.idf, judge.weights, judge.bias, judge.bits, judge.widest).save(tmp_path / "x")
    with pytest.raises(JudgeError, match=r"no file of safetensors|idf should be"):
        load_judge(tmp_path / "x")


@pytest.mark.parametrize(
    "change", [{"bits": 60}, {"bits": 12.0}, {"bits": True}, {"widest": 0}, {"widest": None}, {"terms": "others"}]
)
def test_preprocessing_that_is_not_known(judge, tmp_path, change):
    card = replace(judge.card, preprocessing=judge.card.preprocessing | change)
    replace(judge, card=card).save(tmp_path / "x")
    with pytest.raises(JudgeError, match="preprocessing: "):
        load_judge(tmp_path / "x")


def test_two_labels_may_be_classes_too():
    head = Head("kind", "classes", ("bad", "good"), "", 0, 1)
    as_classes = train_linear(two_kinds(), head, SMALL).probabilities(column_of(TEXTS))["kind"][:, 1]
    assert as_classes == pytest.approx(
        train_linear(two_kinds(), QUALITY, SMALL).score(column_of(TEXTS))["quality"], abs=1e-5
    )


def test_figures_of_held_out_texts():
    judge = train_and_measure(two_kinds(), QUALITY, lambda texts: train_linear(texts, QUALITY, SMALL))
    facts = judge.card.metrics["quality"]
    assert (
        facts["auc"] > 0.95
        and facts["texts"] > 10
        and sum(row["texts"] for row in facts["reliability"]) == facts["texts"]
    )


def test_texts_without_a_word_can_be_trained_on():
    table = pa.table({"text": ["", " "] * 5, "label": ["good", "bad"] * 5})
    assert train_linear(labelled_texts(table), QUALITY, SMALL).score(column_of([""]))["quality"][0] == pytest.approx(
        0.5
    )
