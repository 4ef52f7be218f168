"""Heads of labels without an order: all kinds of judges learn them, give each label a probability, and say how well
they tell them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gristmill.classifiers.calibration import fit_sharpness
from gristmill.classifiers.card import Head, JudgeError
from gristmill.classifiers.fasttext.judge import FastTextRecipe, train_fasttext
from gristmill.classifiers.judge import Judge, load_judge
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.classifiers.metrics import class_metrics, label_metrics
from gristmill.classifiers.teaching.distil import DistilRecipe
from gristmill.classifiers.training import HeldOutShare, sharpened, train_and_measure
from gristmill.classifiers.training_sets import LabelledTexts, balanced_weights, labelled_texts, repeated
from tests.classifiers.labelled import BAD, GOOD, texts_of, two_kinds

sklearn_metrics = pytest.importorskip("sklearn.metrics")

TOPIC = Head("topic", "labels", ("cooking", "science", "shop"), "what it is about")
KITCHEN = "oven flour yeast bake salt stir onion simmer dough butter spoon recipe garlic taste".split()  # noqa: SIM905
SMALL = FastTextRecipe(dimensions=8, epochs=40, learning_rate=0.5, buckets=1000)


def three_topics(each: tuple[int, int, int] = (60, 60, 60), seed: int = 3) -> LabelledTexts:
    words = {"science": GOOD, "shop": BAD, "cooking": KITCHEN}
    rows = [
        (text, label, f"{label}{i % 7}.example")
        for (label, own), count in zip(words.items(), each, strict=True)
        for i, text in enumerate(texts_of(own, count, seed + len(label)))
    ]
    columns = dict(zip(("text", "label", "group"), map(list, zip(*rows, strict=True)), strict=True))
    return labelled_texts(pa.table(columns), group="group")


@pytest.fixture(scope="module")
def judges() -> dict[str, Judge]:
    lesson = three_topics()
    return {
        "linear": train_linear(lesson, TOPIC, LinearRecipe(bits=12)),
        "fasttext": train_fasttext(lesson, TOPIC, SMALL),
    }


@pytest.mark.parametrize("kind", ["linear", "fasttext"])
def test_each_label_has_a_probability_and_the_score_is_that_of_the_likeliest(judges, kind, tmp_path: Path) -> None:
    judge = judges[kind]
    held = three_topics((40, 40, 40), 31)
    chances = judge.outputs(held.texts)["topic"]
    assert chances.shape == (120, 3) and chances.dtype == np.float32
    assert np.allclose(chances.sum(axis=1), 1, atol=1e-4)
    right = [TOPIC.labels[i] for i in chances.argmax(axis=1)] == np.array(held.labels.to_pylist())
    assert right.mean() > 0.95
    assert np.array_equal(judge.score(held.texts)["topic"], chances.max(axis=1))
    assert np.array_equal(judge.probabilities(held.texts)["topic"], chances)
    judge.save(tmp_path / kind)
    again = load_judge(tmp_path / kind)
    assert again.card.head("topic") == TOPIC
    assert np.array_equal(again.outputs(held.texts)["topic"], chances)


@pytest.mark.parametrize("kind", ["linear", "fasttext"])
def test_words_raise_the_likeliest_label(judges, kind) -> None:
    words = dict(judges[kind].explain("bake the dough in the oven then a cart", "topic"))
    assert words["dough"] > 0 and words["oven"] > 0 > words["cart"]


def test_no_text_has_no_probability(judges) -> None:
    for judge in judges.values():
        assert judge.outputs(pa.array([], pa.string()))["topic"].shape == (0, 3)
        assert judge.score(pa.array([], pa.string()))["topic"].shape == (0,)


def test_figures_are_those_of_scikit_learn() -> None:
    drawn = np.random.default_rng(4)
    chances = drawn.dirichlet([0.6] * 4, 500)
    truth = np.where(drawn.random(500) < 0.6, chances.argmax(axis=1), drawn.integers(0, 4, 500))
    weights = drawn.random(500) + 0.5
    labels = ("a", "b", "c", "d")
    for some in (None, weights):
        facts = label_metrics(truth, chances, labels, some)
        said = chances.argmax(axis=1)
        f1 = sklearn_metrics.f1_score(truth, said, average=None, sample_weight=some)
        assert list(facts["f1"].values()) == pytest.approx(f1.tolist())
        assert facts["macro_f1"] == pytest.approx(f1.mean())
        assert facts["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(truth, said, sample_weight=some))
        assert facts["kappa"] == pytest.approx(sklearn_metrics.cohen_kappa_score(truth, said, sample_weight=some))
        aucs = [sklearn_metrics.roc_auc_score(truth == c, chances[:, c], sample_weight=some) for c in range(4)]
        assert list(facts["auc"].values()) == pytest.approx(aucs)
        table = sklearn_metrics.confusion_matrix(truth, said, sample_weight=some)
        assert np.allclose(facts["confusion"], table)
    assert facts["texts_of"] == {label: int((truth == c).sum()) for c, label in enumerate(labels)}
    assert "kappa_quadratic" not in facts and "kappa_quadratic" in class_metrics(truth, chances, labels)


def test_the_calibration_error_is_of_the_likeliest_label() -> None:
    chances = np.tile([0.7, 0.2, 0.1], (1000, 1))
    truth = np.array([0] * 500 + [1] * 300 + [2] * 200)
    facts = label_metrics(truth, chances, ("a", "b", "c"))
    assert facts["calibration_error"] == pytest.approx(0.2)  # said 0.7, right 0.5
    (row,) = facts["reliability"]
    assert (row["texts"], row["good"]) == (1000, pytest.approx(0.5))


def test_a_label_that_nobody_has_is_not_in_the_mean() -> None:
    facts = label_metrics(np.array([0, 1]), np.array([[0.9, 0.1, 0], [0.2, 0.8, 0]]), ("a", "b", "c"))
    assert (facts["macro_f1"], facts["f1"]["c"], facts["auc"]["c"]) == (1.0, None, None)


def test_the_card_has_figures_of_held_out_sites() -> None:
    judge = train_and_measure(
        three_topics(), TOPIC, lambda texts: train_linear(texts, TOPIC, LinearRecipe(bits=12)), HeldOutShare(0.3)
    )
    facts = judge.card.metrics["topic"]
    assert facts["macro_f1"] > 0.9 and set(facts["f1"]) == set(TOPIC.labels)
    assert np.sum(facts["confusion"]) == facts["texts"] == sum(facts["texts_of"].values()) > 20


def test_balanced_texts_weigh_the_same_by_label() -> None:
    lesson = three_topics((60, 20, 7))
    weights = balanced_weights(lesson)
    sums = {label: weights[np.array(lesson.labels.to_pylist()) == label].sum() for label in TOPIC.labels}
    assert list(sums.values()) == pytest.approx([29] * 3)
    counts = dict(zip(*np.unique(repeated(lesson).labels.to_pylist(), return_counts=True), strict=True))
    assert counts == {"science": 60, "shop": 60, "cooking": 63}
    balanced = train_linear(replace(lesson, weights=weights), TOPIC, LinearRecipe(bits=12, looseness=0.1))
    plain = train_linear(lesson, TOPIC, LinearRecipe(bits=12, looseness=0.1))
    rare = TOPIC.labels.index("cooking")
    nothing = pa.array(["the a of"], pa.string())
    assert balanced.outputs(nothing)["topic"][0, rare] > 2 * plain.outputs(nothing)["topic"][0, rare]


@pytest.mark.parametrize(
    ("labels", "bounds"),
    [(("a",), (0, 1)), (("a", "unknown"), (0, 1)), (("a", ""), (0, 1)), (("a", "b", "c"), (0, 2))],
)
def test_impossible_heads(labels, bounds) -> None:
    with pytest.raises(JudgeError):
        Head("topic", "labels", labels, "", *bounds)


def test_what_needs_an_order_refuses_labels() -> None:
    with pytest.raises(JudgeError, match="labels without an order"):
        DistilRecipe(cuts=(1, 2), high=3).check(TOPIC)
    assert len(two_kinds(5)) == 10


def test_a_neural_judge_learns_labels_in_any_order(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gristmill.classifiers.neural.training import NeuralRecipe, train_neural
    from gristmill.trainer.run.schedule import RateSchedule
    from gristmill.trainer.step.optim import AdamW
    from tests.classifiers import neural_makings as makings

    torch.set_num_threads(1)
    head = Head("topic", "labels", ("science", "mixed", "shop"), "what it is about")  # not from worst to best
    recipe = NeuralRecipe(
        epochs=6, update_tokens=1000, step_tokens=600, optimizer=AdamW(rate=2e-3), schedule=RateSchedule(warmup=0.1),
        dropout=0.0, held_out=0.25,
    )  # fmt: skip
    table = makings.labelled_table(600)
    judge = train_neural(table, [head], makings.tokenizer(), makings.small_shape(), recipe, group="host")
    facts = judge.card.metrics["topic"]
    assert facts["macro_f1"] > 0.6 and facts["texts"] > 50
    texts = pa.array(["lens light theorem proof energy field", "click buy cart login sale deal", None])
    chances = judge.outputs(texts)["topic"]
    assert chances.shape == (3, 3) and np.allclose(chances.sum(axis=1), 1, atol=1e-5)
    assert chances[0].argmax() == 0 and chances[1].argmax() == 2
    judge.save(tmp_path / "neural")
    assert np.allclose(load_judge(tmp_path / "neural").outputs(texts)["topic"], chances, atol=1e-6)


@pytest.mark.parametrize("kind", ["linear", "fasttext"])
def test_probabilities_are_as_often_right_as_they_say(kind: str, judges) -> None:
    noisy = three_topics((120, 120, 120))
    labels = np.array(noisy.labels.to_pylist())
    wrong = np.random.default_rng(1).random(len(labels)) < 0.3
    labels[wrong] = np.random.default_rng(2).choice(TOPIC.labels, int(wrong.sum()))
    noisy = replace(noisy, labels=pa.array(labels, pa.string()), groups=None)

    def train(texts: LabelledTexts) -> Judge:
        recipe = LinearRecipe(bits=12, looseness=0.05)  # far too modest
        return train_linear(texts, TOPIC, recipe) if kind == "linear" else train_fasttext(texts, TOPIC, SMALL)

    def error(judge: Judge) -> float:
        fresh = three_topics((120, 120, 120), 77)
        truth = np.array([TOPIC.labels.index(label) for label in fresh.labels.to_pylist()])
        moved = np.random.default_rng(3).random(len(truth)) < 0.3
        truth[moved] = np.random.default_rng(4).integers(0, 3, int(moved.sum()))
        return float(label_metrics(truth, judge.outputs(fresh.texts)["topic"], TOPIC.labels)["calibration_error"])

    plain = train(noisy)
    sure = sharpened(plain, noisy, TOPIC, train)
    assert error(sure) < error(plain) / 2 and error(sure) < 0.16
    texts = noisy.texts
    assert np.array_equal(sure.outputs(texts)["topic"].argmax(axis=1), plain.outputs(texts)["topic"].argmax(axis=1))
    assert sure.card.training["sharpness"] != 1
    assert sharpened(plain, noisy.take(labels != "shop"), TOPIC, train) is plain


def test_the_sharpness_is_that_of_the_highest_likelihood() -> None:
    drawn = np.random.default_rng(8)
    logits = drawn.standard_normal((4000, 5)) * 2
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = np.array([drawn.choice(5, p=row) for row in true])
    flat = np.exp(logits / 4) / np.exp(logits / 4).sum(axis=1, keepdims=True)
    assert fit_sharpness(flat, truth) == pytest.approx(4, rel=0.05)
    assert fit_sharpness(true, truth) == pytest.approx(1, rel=0.05)


def test_few_texts_are_fitted_by_their_span_to_the_same_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.classifiers.linear import judge as linear

    lesson = three_topics((20, 15, 10))
    held = three_topics((30, 30, 30), 9).texts
    lesson = replace(lesson, weights=balanced_weights(lesson))
    fitted: list[int] = []
    axes = linear._axes
    monkeypatch.setattr(linear, "_axes", lambda products: fitted.append(len(products)) or axes(products))
    by_span = train_linear(lesson, TOPIC, LinearRecipe(bits=16)).outputs(held)["topic"]
    monkeypatch.setattr(linear, "FEW_TEXTS", 0)
    by_terms = train_linear(lesson, TOPIC, LinearRecipe(bits=16)).outputs(held)["topic"]
    assert fitted == [45] and np.abs(by_span - by_terms).max() < 2e-3
