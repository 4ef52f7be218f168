"""Rounds add what was verified, are kept only where the held-out figure does not fall, and never see what is held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.classifiers.teaching.iterate import IterationRecipe, by_marks, iterate
from gristmill.classifiers.training_sets import LabelledTexts, labelled_texts
from tests.classifiers.labelled import BAD, GOOD, GRADE, QUALITY, texts_of

pytest.importorskip("sklearn", reason="training a linear judge needs scikit-learn")

RECIPE = IterationRecipe(rounds=4, candidates=60, top=0.3, bottom=0.3, held_out=0.5, patience=2)


def train(labelled: LabelledTexts):
    return train_linear(labelled, QUALITY, LinearRecipe(bits=12, widest=1))


def start(each: int = 40) -> LabelledTexts:
    """Knows three good words and three bad ones; held-out texts ask for all."""
    texts, labels, groups = [], [], []
    for kind, words in (("good", GOOD), ("bad", BAD)):
        for i in range(each):
            texts += texts_of(words if i % 2 else words[:4], 1, 100 * i + len(kind))
            labels.append(kind)
            groups.append(f"site{i % 20}.example")
    return labelled_texts(pa.table({"text": texts, "label": labels, "group": groups}), group="group")


def pool(each: int = 300) -> pa.Table:
    texts = texts_of(GOOD, each, 10_001) + texts_of(BAD, each, 10_002)
    return pa.table({"text": texts, "group": [f"site{i % 60}.example" for i in range(2 * each)]})


def rule(texts: pa.Array) -> np.ndarray:
    """Stands in for a language model: the share of good words among those that say something."""
    counts = [
        (sum(w in GOOD for w in words), sum(w in BAD for w in words))
        for words in (t.replace(",", "").split() for t in texts.to_pylist())
    ]
    return np.array([good / (good + bad) if good + bad else np.nan for good, bad in counts])


VERIFY = by_marks(rule, QUALITY, [0.5])


def test_rounds_that_are_kept_never_fall_and_texts_grow():
    lines: list[dict] = []
    made = iterate(start(), pool(), QUALITY, train, VERIFY, RECIPE, lines.append)
    assert lines == made.rounds and made.rounds[0]["round"] == 0 and len(made.rounds) > 1
    kept = [line for line in made.rounds if line["kept"]]
    assert len(kept) > 1
    gates = [line["gate"] for line in kept]
    assert gates == sorted(gates)
    assert kept[-1]["texts"] == len(made.training) > kept[0]["texts"]
    assert kept[-1]["fingerprint"] == made.training.fingerprint
    for line in made.rounds[1:]:
        assert line["added"].get("good", 0) == line["added"].get("bad", 0)
        assert sum(line["verified"].values()) + line["refused"] + line["copies"] == line["candidates"] <= 60
    assert made.judge.card.training["rounds"] == made.rounds
    assert made.judge.card.metrics["quality"]["auc"] == kept[-1]["test"]


def test_held_out_groups_give_nothing_and_no_text_is_drawn_twice():
    drawn: list[tuple[str, int]] = []

    def verify(candidates: pa.Table) -> pa.Array:
        drawn.extend(zip(candidates["group"].to_pylist(), candidates["row"].to_pylist(), strict=True))
        return VERIFY(candidates)

    made = iterate(start(), pool(), QUALITY, train, verify, replace(RECIPE, patience=4))
    assert len(drawn) > 60 and len({row for _, row in drawn}) == len(drawn)
    from gristmill.classifiers.training_sets import held_out

    outside = set(start().groups.filter(pa.array(held_out(start(), RECIPE.held_out, RECIPE.seed))).to_pylist())
    assert (
        outside and not outside & {group for group, _ in drawn} and not outside & set(made.training.groups.to_pylist())
    )


def test_a_round_that_makes_it_worse_is_undone():
    def wrong(candidates):
        return pa.array(["good" if label == "bad" else "bad" for label in candidates["proposed"].to_pylist()])

    made = iterate(start(), pool(), QUALITY, train, wrong, replace(RECIPE, candidates=200))
    assert [line["kept"] for line in made.rounds] == [True, False, False] and made.rounds[-1][
        "ended"
    ] == "nothing was gained"
    assert made.rounds[1]["gate"] < made.rounds[0]["gate"] and made.rounds[1]["turned"] > 100
    assert len(made.training) == made.rounds[0]["texts"]


def test_a_text_that_was_refused_is_not_asked_about_again():
    asked: list[int] = []

    def refuse(candidates: pa.Table) -> pa.Array:
        asked.extend(candidates["row"].to_pylist())
        return pa.nulls(len(candidates), pa.string())

    iterate(start(), pool(), QUALITY, train, refuse, replace(RECIPE, patience=3))
    assert len(asked) == len(set(asked)) > 120


def test_a_copy_of_a_text_that_is_there_is_no_candidate():
    begin = start()
    copies = pa.table({"text": begin.texts.to_pylist(), "group": [f"mirror{i}.example" for i in range(len(begin))]})
    made = iterate(begin, copies, QUALITY, train, VERIFY, replace(RECIPE, patience=1))
    assert made.rounds[1]["candidates"] > 0 and made.rounds[1]["copies"] == made.rounds[1]["candidates"]
    assert made.rounds[1]["added"] == {} and len(made.training) == made.rounds[0]["texts"]


def test_the_same_again_whatever_the_order_of_the_pool():
    order = np.random.default_rng(4).permutation(600)
    makes = [iterate(start(), part, QUALITY, train, VERIFY, RECIPE) for part in (pool(), pool())]
    assert makes[0].rounds == makes[1].rounds
    shuffled = iterate(start(), pool().take(order), QUALITY, train, VERIFY, replace(RECIPE, rounds=1))
    first = makes[0].rounds[1]
    assert {k: shuffled.rounds[1][k] for k in ("candidates", "copies", "added", "kept")} == {
        k: first[k] for k in ("candidates", "copies", "added", "kept")
    }


def test_without_groups_a_text_is_its_own_group(tmp_path):
    begin = replace(start(), groups=None)
    made = iterate(begin, pool().select(["text"]), QUALITY, train, VERIFY, replace(RECIPE, rounds=2))
    assert len(made.training) > made.rounds[0]["texts"] and made.training.groups is None
    made.judge.save(tmp_path / "judge")
    assert load_judge(tmp_path / "judge").card.training["rounds"] == made.rounds


@pytest.mark.parametrize(
    ("verify", "change", "reason"),
    [
        (lambda c: pa.array(["ugly"] * len(c)), {}, "the verifier says 'ugly'"),
        (lambda c: pa.array(["good"]), {}, "of 1 texts"),
        (VERIFY, {"metric": "beauty"}, "'beauty' is no figure"),
    ],
)
def test_what_is_wrong_is_said(verify, change, reason):
    with pytest.raises(JudgeError, match=reason):
        iterate(start(), pool(), QUALITY, train, verify, replace(RECIPE, **change))


def test_settings_are_checked():
    with pytest.raises(JudgeError, match="2 cuts are needed"):
        by_marks(rule, GRADE, [0.5])
    with pytest.raises(JudgeError, match="no column 'group'"):
        iterate(start(), pool().select(["text"]), QUALITY, train, VERIFY, RECIPE)


def test_marks_that_could_not_be_read_leave_a_text_out():
    candidates = pa.table({"text": ["a", "b", "c", "d"]})
    marks = by_marks(lambda texts: np.array([0.1, np.nan, 0.55, 0.9]), QUALITY, [0.5])
    assert marks(candidates).to_pylist() == ["bad", None, "good", "good"]
