"""A student learns what a teacher said, and how far they agree is measured on groups that it never saw."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.classifiers.card import Head, JudgeError
from gristmill.classifiers.fasttext.judge import FastTextRecipe, train_fasttext
from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.classifiers.teaching.agreement import agreement, classes_of
from gristmill.classifiers.teaching.distil import DistilRecipe, distil, lesson_of
from gristmill.classifiers.teaching.passages import passages
from gristmill.classifiers.teaching.seed_groups import hosts_of
from gristmill.classifiers.training_sets import LabelledTexts, labelled_texts
from gristmill.mixing.weights.spearman import spearman
from tests.classifiers.labelled import BAD, GOOD, GRADE, QUALITY, texts_of

pytest.importorskip("sklearn", reason="training a linear judge needs scikit-learn")
DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data files of ../shared/data are not there")
SMALL = LinearRecipe(bits=12)
VALUE = Head("educational_value", "regression", (), "how much it explains", 0, 5)


def marked(each: int = 60, seed: int = 2) -> pa.Table:
    """Six kinds of texts with marks from 0 to 5: the share of good words; of every tenth text the mark could not be
    read."""
    texts, marks = [], []
    for mark in range(6):
        texts += texts_of(GOOD * mark + BAD * (5 - mark), each, seed + mark)
        marks += [float(mark)] * each
    rows = [
        (text, None if i % 10 == 0 else mark, f"host{i % 40}", f"uid{i}")
        for i, (text, mark) in enumerate(zip(texts, marks, strict=True))
    ]
    return pa.table(dict(zip(("text", "mark", "host", "uid"), map(list, zip(*rows, strict=True)), strict=True)))


def linear(head: Head):
    return lambda lesson: train_linear(lesson, head, SMALL)


FIVE = DistilRecipe((2.5,), high=5.0, held_out=0.6)


def test_a_linear_student_of_hard_labels_agrees(tmp_path):
    made = distil(marked(), QUALITY, linear(QUALITY), FIVE, teacher="a rule", group="host")
    found = made.agreement
    assert (
        found["auc_at"][0]["cut"] == 2.5
        and found["auc_at"][0]["auc"] > 0.9
        and found["kappa"] > 0.6
        and found["spearman"] > 0.7
    )
    assert made.judge.card.training["unread"] == 36
    assert np.sum(found["confusion"]) == found["texts"] == len(made.held_out) > 60
    made.judge.save(tmp_path / "judge")
    again = load_judge(tmp_path / "judge")
    assert (
        again.card.metrics["quality"]["agreement"]["kappa"] == found["kappa"]
        and again.card.training["distilled_from"] == "a rule"
    )


@pytest.mark.parametrize("form", ["soft", "repeated"])
def test_students_of_soft_labels_score_nearer_to_the_marks(form):
    """Texts in the middle are told to be in the middle; hard labels push them to an end."""
    table = marked().filter(pc.is_valid(marked()["mark"]))
    truth = table["mark"].to_numpy() / 5
    makes = [
        distil(table, QUALITY, linear(QUALITY), replace(FIVE, form=one), teacher="a rule", group="host")
        for one in ("hard", form)
    ]
    hard, soft = (float(((made.judge.score(table["text"])["quality"] - truth) ** 2).mean()) for made in makes)
    assert soft < 0.8 * hard and makes[1].agreement["spearman"] > 0.9


def test_classes_have_a_kappa_each():
    made = distil(marked(), GRADE, linear(GRADE), replace(FIVE, cuts=(1.5, 3.5)), teacher="a rule", group="host")
    found = made.agreement
    assert set(found["kappa_by_class"]) == {"poor", "fair", "fine"} and [row["cut"] for row in found["auc_at"]] == [
        1.5,
        3.5,
    ]
    assert found["kappa_weighted"] > found["kappa"] > 0.3 and found["spearman"] > 0.8


def test_nothing_of_a_held_out_group_is_learnt():
    seen: list[LabelledTexts] = []

    def train(lesson: LabelledTexts):
        seen.append(lesson)
        return train_linear(lesson, QUALITY, SMALL)

    made = distil(marked(), QUALITY, train, FIVE, teacher="a rule", group="host")
    hosts = dict(zip(marked()["text"].to_pylist(), marked()["host"].to_pylist(), strict=True))
    learnt = set(seen[0].groups.to_pylist())
    assert learnt and not learnt & {hosts[text] for text in made.held_out.to_pylist()}
    assert 0 < made.judge.card.training["texts"] <= len(seen[0])


def test_rows_and_their_order_do_not_change_the_report():
    table = marked()
    order = np.random.default_rng(1).permutation(table.num_rows)
    reports = [
        distil(part, QUALITY, linear(QUALITY), FIVE, teacher="a rule", group="host").agreement
        for part in (table, pa.concat_tables([table.slice(0, 100), table.slice(100)]), table.take(order))
    ]
    assert reports[0] == reports[1]
    assert reports[2]["texts"] == reports[0]["texts"] and abs(reports[2]["spearman"] - reports[0]["spearman"]) < 1e-3


def told() -> tuple[LabelledTexts, np.ndarray]:
    marks = np.array([0.0, 1.0, 2.4, 2.6, 4.0, 5.0])
    labels = ["bad" if mark < 2.5 else "good" for mark in marks]
    return labelled_texts(
        pa.table({"text": list("abcdef"), "label": labels, "group": list("uvwxyz")}), group="group"
    ), marks


def rows_of(lesson: LabelledTexts) -> list[tuple]:
    weights = [1.0] * len(lesson) if lesson.weights is None else lesson.weights.round(6).tolist()
    return sorted(
        zip(lesson.texts.to_pylist(), lesson.labels.to_pylist(), weights, lesson.groups.to_pylist(), strict=True)
    )


def test_soft_labels_are_two_texts_with_weights():
    labelled, marks = told()
    found = rows_of(lesson_of(labelled, marks, QUALITY, replace(FIVE, form="soft")))
    assert found[:3] == [("a", "bad", 1.0, "u"), ("b", "bad", 0.8, "v"), ("b", "good", 0.2, "v")]
    assert found[-1] == ("f", "good", 1.0, "z") and len(found) == 10
    repeated = rows_of(lesson_of(labelled, marks, QUALITY, replace(FIVE, form="repeated")))
    assert (
        len(repeated) == 24
        and repeated.count(("b", "good", 1.0, "v")) == 1
        and repeated.count(("b", "bad", 1.0, "v")) == 3
    )


def test_values_are_marks_or_shares():
    labelled, marks = told()
    assert lesson_of(labelled, marks, VALUE, replace(FIVE, form="value")).labels.to_pylist() == marks.tolist()
    assert lesson_of(labelled, marks, QUALITY, replace(FIVE, form="value")).labels.to_pylist() == (marks / 5).tolist()


def test_labels_are_balanced():
    labelled, marks = told()
    some = labelled.take(np.array([True, True, True, False, False, True]))
    weighed = lesson_of(some, marks[[0, 1, 2, 5]], QUALITY, replace(FIVE, balance=True))
    assert weighed.weights.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])
    soft = lesson_of(some, marks[[0, 1, 2, 5]], QUALITY, replace(FIVE, form="soft", balance=True))
    by_label = {name: soft.weights[np.array(soft.labels.to_pylist()) == name].sum() for name in ("bad", "good")}
    assert by_label["bad"] == pytest.approx(by_label["good"])


@pytest.mark.parametrize(
    ("head", "change", "reason"),
    [
        (VALUE, {}, "form 'value'"),
        (GRADE, {}, "2 cuts are needed, not 1"),
        (GRADE, {"form": "soft"}, "learnt by form 'hard'"),
        (QUALITY, {"high": 4.0}, "marks lie between 0 and 5"),
    ],
)
def test_what_cannot_be_learnt_is_refused(head, change, reason):
    with pytest.raises(JudgeError, match=reason):
        distil(marked(), head, linear(head), replace(FIVE, **change), teacher="a rule", group="host")


@pytest.mark.parametrize(
    "change", [{"cuts": (3.0, 2.0)}, {"cuts": ()}, {"cuts": (0.0,)}, {"cuts": (6.0,)}, {"form": "odd"}]
)
def test_a_recipe_that_cannot_be_is_refused(change):
    with pytest.raises(JudgeError):
        replace(FIVE, **change)


def test_texts_that_are_repeated_have_no_weights():
    with pytest.raises(JudgeError, match="students without weights"):
        replace(FIVE, form="repeated", balance=True)


def test_a_mark_that_is_missing_everywhere_is_refused():
    with pytest.raises(JudgeError, match="no text has a mark"):
        distil(
            pa.table({"text": ["a"], "mark": pa.nulls(1, pa.float64())}), QUALITY, linear(QUALITY), FIVE, teacher="none"
        )


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), min_size=2, max_size=60),
    st.lists(st.integers(0, 2), min_size=60, max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_agreement_is_that_of_scikit_learn(pairs, said):
    from scipy.stats import spearmanr
    from sklearn.metrics import cohen_kappa_score, roc_auc_score

    marks, scores = (np.array(column, float) for column in zip(*pairs, strict=True))
    said = np.array(said[: len(marks)])
    labels = ("poor", "fair", "fine")
    found = agreement(marks, scores, said, (1.5, 3.5), labels)
    truth = classes_of(marks, (1.5, 3.5))
    if len(set(marks)) > 1 and len(set(scores)) > 1:
        assert found["spearman"] == pytest.approx(spearmanr(marks, scores).statistic)
    else:
        assert found["spearman"] is None
    for row in found["auc_at"]:
        good = marks >= row["cut"]
        assert (
            row["auc"] is None
            if good.all() or not good.any()
            else row["auc"] == pytest.approx(roc_auc_score(good, scores))
        )
    if len({*truth, *said}) > 1:
        assert found["kappa"] == pytest.approx(cohen_kappa_score(truth, said))
        assert found["kappa_weighted"] == pytest.approx(
            cohen_kappa_score(truth, said, weights="quadratic", labels=[0, 1, 2])
        )
        for c, label in enumerate(labels):
            if c in truth or c in said:
                expected = cohen_kappa_score(truth == c, said == c)
                assert found["kappa_by_class"][label] == (pytest.approx(expected) if np.isfinite(expected) else None)


def test_ranks_of_equal_values_are_shared():
    assert (
        spearman(np.array([1, 1, 2]), np.array([3, 3, 9])) == pytest.approx(1.0)
        and spearman(np.ones(3), np.arange(3)) is None
    )


def test_a_neural_student_learns_values():
    pytest.importorskip("torch", reason="a neural judge needs torch")
    from gristmill.classifiers.neural.training import NeuralRecipe, OneHead
    from gristmill.trainer.step.optim import AdamW
    from tests.classifiers import neural_makings as makings

    table = makings.labelled_table(400)
    table = table.append_column("mark", table["educational_value"])
    recipe = NeuralRecipe(epochs=4, update_tokens=1024, step_tokens=1024, optimizer=AdamW(rate=3e-3))
    for head, form in ((makings.VALUE, "value"), (QUALITY, "value"), (QUALITY, "hard")):
        student = OneHead(head, makings.tokenizer(), makings.small_shape(), recipe)
        balance = form == "hard"
        made = distil(
            table, head, student, replace(FIVE, form=form, cuts=(2.0,), balance=balance), teacher="a rule", group="host"
        )
        assert made.agreement["auc_at"][0]["auc"] > 0.9, (head.name, form)


@needs_data
def test_a_rule_about_real_pages_is_learnt_by_linear_and_fasttext():
    """Main text and raw text of pages, marked 0 to 5 by a rule that stands in for a language model: how much of a text
    is navigation."""
    pytest.importorskip("floret", reason="training a fasttext judge needs floret")
    menu = {
        "cookie",
        "cookies",
        "login",
        "sign",
        "menu",
        "cart",
        "privacy",
        "copyright",
        "rights",
        "reserved",
        "subscribe",
        "newsletter",
    }
    menu |= {"home", "contact", "share", "search", "skip"}
    hosts = pq.read_table(DATA / "pages.parquet", columns=["page", "url"])
    host = dict(zip(hosts["page"].to_pylist(), hosts_of(hosts["url"]), strict=True))
    rows = pq.read_table(DATA / "rule_verdicts.parquet", columns=["page", "kind", "text"])
    texts = passages(rows["text"].cast(pa.large_string()).combine_chunks(), 1500, 0)

    def rule(text: str) -> float:
        words = re.findall(r"\w+", text.lower())
        return float(np.clip(5 - 100 * sum(word in menu for word in words) / max(len(words), 1), 0, 5))

    table = pa.table(
        {
            "text": texts,
            "mark": [rule(text) for text in texts.to_pylist()],
            "host": [host[page] for page in rows["page"].to_pylist()],
        }
    )
    recipe = DistilRecipe((3.5,), high=5.0, held_out=0.3)
    fast = FastTextRecipe(dimensions=16, epochs=30, learning_rate=0.5, word_ngrams=1)
    for train in (
        lambda lesson: train_linear(lesson, QUALITY, LinearRecipe(bits=16, widest=1)),
        lambda lesson: train_fasttext(lesson, QUALITY, fast),
    ):
        made = distil(table, QUALITY, train, recipe, teacher="a rule about menus", group="host")
        found = made.agreement
        assert found["auc_at"][0]["auc"] > 0.9 and found["texts"] > 300, found["auc_at"]
