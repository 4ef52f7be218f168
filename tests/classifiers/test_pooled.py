"""The pooled judge: trained by torch, scored without it, the same whatever stands beside a text."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file, save_file

from gristmill.classifiers.judge import GOLDEN_TEXTS, Head, JudgeError, load_judge
from gristmill.classifiers.pooled import judge as pooled_module
from gristmill.classifiers.pooled.judge import PooledJudge
from gristmill.classifiers.teaching.distil import DistilRecipe, distil
from gristmill.classifiers.training import train_and_measure
from gristmill.classifiers.training_sets import labelled_texts
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.pooled_terms import term_rows
from tests.classifiers.labelled import GRADE, QUALITY, three_grades, two_kinds

torch = pytest.importorskip("torch", reason="training a pooled judge needs torch")
from gristmill.classifiers.pooled.training import PooledNetwork, PooledRecipe, tensors_of, train_pooled  # noqa: E402

SMALL = PooledRecipe(bits=10, width=8, hidden=8, epochs=10, batch=24, rate=0.01)
TOPIC = Head("topic", "labels", ("fair", "fine", "poor"), "which of its labels fits best")
MARK = Head("mark", "regression", (), "how much is explained", 0.0, 5.0)
TEXTS = ["light bends slowly", "buy cart", "", " \n", "été 水は", "\0", "a" * 1000, "buy, " * 500]
GOOD, BAD = "reason explains theory under energy", "cart login sale cookies accept"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def with_marks(each: int = 60) -> pa.Table:
    rows = three_grades(each)
    marks = pa.array([{"poor": 0.5, "fair": 2.5, "fine": 4.5}[label] for label in rows.labels.to_pylist()])
    return pa.table({"text": rows.texts, "mark": marks})


@pytest.fixture(scope="module")
def judges() -> dict[str, PooledJudge]:
    marks = labelled_texts(with_marks(), label="mark")
    return {
        "int8": train_pooled(two_kinds(), QUALITY, SMALL),
        "float32": train_pooled(two_kinds(), QUALITY, replace(SMALL, precision="float32")),
        "classes": train_pooled(three_grades(), GRADE, SMALL),
        "labels": train_pooled(three_grades(), TOPIC, SMALL),
        "regression": train_pooled(marks, MARK, SMALL),
        "beginning": train_pooled(two_kinds(), QUALITY, replace(SMALL, most_bytes=50, epochs=3)),
    }


def column_of(texts: list[str | None], kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(texts, kind or pa.string())


def test_it_learns_each_kind_of_head(judges):
    texts = [GOOD, BAD]
    for precision in ("int8", "float32"):
        good, bad = judges[precision].score(texts)["quality"]
        assert good > 0.9 and bad < 0.1
    fine, poor = judges["classes"].score(texts)["grade"]
    assert fine > 1.6 and poor < 0.4
    assert judges["classes"].probabilities(column_of(texts))["grade"].sum(1) == pytest.approx(1)
    assert judges["labels"].probabilities(column_of(texts))["topic"].argmax(1).tolist() == [1, 2]
    fine, poor = judges["regression"].score(texts)["mark"]
    assert 3.5 < fine <= 5 and 0 <= poor < 1.5


def test_int8_scores_are_near_those_of_float32(judges):
    texts = two_kinds().texts
    close = np.abs(judges["int8"].score(texts)["quality"] - judges["float32"].score(texts)["quality"])
    assert len(close) == 240 and close.max() < 0.05
    assert judges["int8"].embeddings.table.nbytes * 4 == judges["float32"].embeddings.table.nbytes


@pytest.mark.parametrize("outputs", [1, 5])
def test_scores_are_those_of_the_torch_network(outputs):
    torch.manual_seed(1)
    network = PooledNetwork(1 << 10, 16, 12, outputs)
    torch.nn.init.normal_(network.table.weight)
    network.norm.running_mean.normal_()
    network.norm.running_var.uniform_(0.5, 2)
    texts = column_of([*TEXTS, *GOLDEN_TEXTS])
    terms = term_rows(text_column(texts), 10)
    with torch.no_grad():
        expected = network.eval()(torch.from_numpy(terms.rows.astype(np.int64)), torch.from_numpy(np.diff(terms.first)))
    for precision, tolerance in (("float32", 2e-5), ("int8", 0.1)):
        embeddings, perceptron = pooled_module._weights_of(tensors_of(network, np.arange(1 << 10), precision))
        found = pooled_module.perceptron(pooled_module.pooled(terms, embeddings), *perceptron)
        assert found.shape == (len(texts), outputs)
        assert found == pytest.approx(expected.numpy(), abs=tolerance)


def test_int8_does_not_cut_the_largest_embeddings_which_are_those_of_common_words():
    torch.manual_seed(1)
    network = PooledNetwork(1 << 12, 4, 8, 1)
    common = int(term_rows(text_column(column_of(["the"])), 12).rows[0])
    with torch.no_grad():
        network.table.weight[common, 1:] = 5.0
    terms = term_rows(text_column(column_of(["the", "the mill of the town"])), 12)
    logits = []
    for precision in ("float32", "int8"):
        embeddings, perceptron = pooled_module._weights_of(tensors_of(network, np.arange(1 << 12), precision))
        logits.append(pooled_module.perceptron(pooled_module.pooled(terms, embeddings), *perceptron))
    assert np.ptp(logits[0]) > 0.05 and np.abs(logits[0] - logits[1]).max() < 0.02


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from([*TEXTS, None]) | st.text(), min_size=1, max_size=8), st.integers(0, 7))
def test_scores_do_not_depend_on_what_stands_beside(judges, texts, start):
    for name in ("int8", "beginning"):
        whole = judges[name].score(column_of(texts))["quality"]
        assert np.isfinite(whole).all() and ((whole >= 0) & (whole <= 1)).all()
        assert [judges[name].score(column_of([text]))["quality"][0] for text in texts] == whole.tolist()
        for kind in (pa.large_string(), pa.string_view()):
            assert judges[name].score(column_of(texts, kind).slice(start))["quality"].tolist() == whole[start:].tolist()


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_slices_do_not_show(judges, monkeypatch, size):
    texts = column_of([*TEXTS, "", "", *GOLDEN_TEXTS]).slice(1)
    whole = judges["int8"].score(texts)["quality"].tolist()
    assert len(whole) == 17
    monkeypatch.setattr(pooled_module, "SLICE_BYTES", size)
    assert judges["int8"].score(texts)["quality"].tolist() == whole
    assert judges["int8"].score(column_of([]))["quality"].shape == (0,)


def test_only_the_beginning_is_read(judges):
    score = judges["beginning"].score(column_of(["light " * 9, "light " * 9 + BAD, BAD]))["quality"]
    assert score[0] == score[1] != score[2]


def test_it_comes_back_as_it_was(judges, tmp_path):
    for name, judge in judges.items():
        judge.save(tmp_path / name)
        back = load_judge(tmp_path / name)
        assert back.card == judge.card and back.card.kind == "pooled"
        mine, theirs = judge.outputs(column_of(TEXTS)), back.outputs(column_of(TEXTS))
        assert mine[judge.head.name].tobytes() == theirs[judge.head.name].tobytes()


def test_a_saved_judge_scores_without_torch(judges, tmp_path):
    judges["int8"].save(tmp_path / "judge")
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from gristmill.classifiers.judge import load_judge\n"
        f"print(load_judge({str(tmp_path / 'judge')!r}).score([{GOOD!r}])['quality'][0])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert float(answer) == judges["int8"].score([GOOD])["quality"][0]


def test_the_same_texts_give_the_same_weights(judges):
    again = train_pooled(two_kinds(), QUALITY, SMALL)
    assert again.card == judges["int8"].card
    for mine, theirs in zip(
        (*again.embeddings, *again.perceptron), (*judges["int8"].embeddings, *judges["int8"].perceptron), strict=True
    ):
        assert mine.tobytes() == theirs.tobytes()


def test_weights_of_texts_count(judges):
    rows = two_kinds()
    light = replace(rows, weights=np.where(np.array(rows.labels.to_pylist()) == "good", 1.0, 0.01))
    both = column_of(["the a of and"])
    assert train_pooled(light, QUALITY, SMALL).score(both)["quality"][0] > judges["int8"].score(both)["quality"][0]


def test_explain_says_what_a_score_loses_without_a_word(judges):
    judge = judges["int8"]
    losses = dict(judge.explain("The BUY of energy, the cart", "quality", most=100))
    assert set(losses) == {"the", "buy", "of", "energy", "cart"}
    assert losses["buy"] < 0 < losses["energy"]
    assert len(judge.explain("The buy of energy", "quality", most=3)) == 3
    assert dict(judges["classes"].explain("the buy of energy", "grade"))["energy"] > 0
    assert dict(judges["labels"].explain("because theory of energy", "topic"))["energy"] > 0
    assert dict(judges["regression"].explain("the buy of energy", "mark"))["buy"] < 0
    assert judge.explain("", "quality") == []
    for text in ["one, two  three. two", *GOLDEN_TEXTS]:
        places = [place for terms in pooled_module._terms_of_words(text) for place in terms]
        assert max(places, default=-1) < len(term_rows(text_column(column_of([text])), 10).rows)


def test_it_learns_by_distillation_what_another_judge_said():
    held = with_marks(100)
    recipe = DistilRecipe(cuts=(1.5, 3.5), form="value", low=0.0, high=5.0, held_out=0.3)
    distilled = distil(held, MARK, lambda lesson: train_pooled(lesson, MARK, SMALL), recipe, teacher="a rule")
    assert distilled.agreement["spearman"] > 0.8
    quality = replace(recipe, cuts=(2.5,))
    distilled = distil(held, QUALITY, lambda lesson: train_pooled(lesson, QUALITY, SMALL), quality, teacher="a rule")
    assert distilled.agreement["spearman"] > 0.8
    assert distilled.judge.card.training["distilled_from"] == "a rule"


def test_figures_of_held_out_texts():
    judge = train_and_measure(two_kinds(), QUALITY, lambda texts: train_pooled(texts, QUALITY, SMALL))
    assert judge.card.metrics["quality"]["auc"] > 0.95 and judge.card.metrics["quality"]["texts"] > 10
    marks = labelled_texts(with_marks(), label="mark")
    judge = train_and_measure(marks, MARK, lambda texts: train_pooled(texts, MARK, SMALL))
    assert judge.card.metrics["mark"]["spearman"] > 0.8 and judge.card.metrics["mark"]["texts"] > 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bits": 40}, "bits 40 is no whole number from 8 to 24"),
        ({"width": 2}, "width 2 is no whole number"),
        ({"precision": "int4"}, "precision 'int4' is none of int8, float32"),
        ({"epochs": 0}, "epochs and rate are above 0"),
        ({"dropout": 1.0}, "shares from 0 to below 1"),
    ],
)
def test_recipes_that_cannot_be(change, reason):
    with pytest.raises(JudgeError, match=reason):
        train_pooled(two_kinds(5), QUALITY, replace(SMALL, **change))


def test_labels_that_the_head_does_not_have():
    with pytest.raises(JudgeError, match="texts have the label 'good'"):
        train_pooled(two_kinds(5), Head("x", "probability", ("bad", "best"), ""), SMALL)


class Changed(PooledJudge):
    """Writes other tensors than it has."""

    change = staticmethod(lambda tensors: tensors)

    def write(self, folder):
        super().write(folder)
        save_file(self.change(load_file(folder / "weights.safetensors")), folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden": np.zeros((3, 8), np.float32)}, r"hidden should be float32 of \(36, 8\)"),
        ({"table": np.zeros((1 << 10, 8), np.float32)}, "table should be int8"),
        ({"last_bias": np.array([np.nan])}, "last_bias has numbers that are not finite"),
        ({"gates": np.full(256, -1, np.float32)}, "a gate is below 0"),
        ({"gates": None}, "gates should be float32"),
    ],
)
def test_weights_that_do_not_fit_are_refused(judges, tmp_path, monkeypatch, change, reason):
    judge = judges["int8"]
    kept = lambda tensors: {k: v for k, v in (tensors | change).items() if v is not None}  # noqa: E731
    monkeypatch.setattr(Changed, "change", staticmethod(kept))
    Changed(judge.card, judge.embeddings, judge.perceptron, judge.bits, judge.most_bytes).save(tmp_path / "x")
    with pytest.raises(JudgeError, match=reason):
        load_judge(tmp_path / "x")


@pytest.mark.parametrize(
    "change",
    [{"bits": 60}, {"bits": True}, {"hidden": 0}, {"most_bytes": -1}, {"precision": None}, {"terms": "others"}],
)
def test_preprocessing_that_is_not_known(judges, tmp_path, change):
    judge = judges["int8"]
    replace(judge, card=replace(judge.card, preprocessing=judge.card.preprocessing | change)).save(tmp_path / "x")
    with pytest.raises(JudgeError, match="preprocessing: "):
        load_judge(tmp_path / "x")
