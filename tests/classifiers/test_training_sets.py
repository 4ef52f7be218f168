"""Whole groups are held out, the same ones always, and a table that cannot be trained on is refused with the reason."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gristmill.classifiers.judge import JudgeError
from gristmill.classifiers.training import HeldOutShare, train_and_measure
from gristmill.classifiers.training_sets import LabelledTexts, folds_of, held_out, labelled_texts
from tests.classifiers.labelled import QUALITY, two_kinds


def by_group(labelled: LabelledTexts, places: np.ndarray) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for group, place in zip(labelled.groups.to_pylist(), places.tolist(), strict=True):
        found.setdefault(group, set()).add(place)
    return found


def test_a_group_is_on_one_side():
    labelled = two_kinds()
    found = by_group(labelled, held_out(labelled, 0.3, seed=4))
    assert len(found) == 17 and all(len(sides) == 1 for sides in found.values())
    assert {side for sides in found.values() for side in sides} == {True, False}
    assert all(len(folds) == 1 for folds in by_group(labelled, folds_of(labelled, 5)).values())
    assert set(folds_of(labelled, 5).tolist()) == {0, 1, 2, 3, 4}


def test_a_group_keeps_its_side_when_others_come():
    table = pa.table({"text": ["x"] * 1000, "label": ["a"] * 1000, "group": [f"site{i}.example" for i in range(1000)]})
    for seed in range(5):
        some = held_out(labelled_texts(table.slice(0, 500), group="group"), 0.3, seed)
        assert some.tolist() == held_out(labelled_texts(table, group="group"), 0.3, seed)[:500].tolist()
        assert 100 < some.sum() < 200
    assert held_out(two_kinds(), 0.5, 0).tolist() != held_out(two_kinds(), 0.5, 1).tolist()


def test_which_groups_are_held_out_is_known():
    table = pa.table(
        {"text": ["x"] * 4, "label": ["a"] * 4, "group": ["a.example", "b.example", "c.example", "d.example"]}
    )
    labelled = labelled_texts(table, group="group")
    assert held_out(labelled, 0.7).tolist() == [True, False, False, True]
    assert folds_of(labelled, 4).tolist() == [1, 2, 3, 0]


def test_every_fold_has_its_share_of_the_groups_of_a_label():
    rows = [("good", f"book{i}") for i in range(10) for _ in range(i + 1)] + [
        ("bad", f"site{i % 50}") for i in range(300)
    ]
    labelled = labelled_texts(
        pa.table({"text": ["x"] * len(rows), "label": [a for a, _ in rows], "group": [b for _, b in rows]}),
        group="group",
    )
    folds = folds_of(labelled, 5, seed=2)
    for kind, groups in (("book", 2), ("site", 10)):
        here = {
            (group, fold)
            for group, fold in zip(labelled.groups.to_pylist(), folds.tolist(), strict=True)
            if group.startswith(kind)
        }
        assert np.bincount([fold for _, fold in here]).tolist() == [groups] * 5


@pytest.mark.parametrize("seed", range(10))
def test_a_label_of_few_groups_is_on_both_sides(seed):
    rows = [("good", "book1"), ("good", "book2"), ("good", "book3")] * 3 + [("bad", f"site{i}") for i in range(50)]
    labelled = labelled_texts(
        pa.table({"text": ["x"] * len(rows), "label": [a for a, _ in rows], "group": [b for _, b in rows]}),
        group="group",
    )
    for share in (0.01, 0.2, 0.99):
        outside = held_out(labelled, share, seed)
        assert set(labelled.labels.filter(pa.array(outside)).to_pylist()) == {"good", "bad"}
        assert set(labelled.labels.filter(pa.array(~outside)).to_pylist()) == {"good", "bad"}


def test_the_share_is_about_what_was_asked():
    table = pa.table({"text": [f"text {i}" for i in range(5000)], "label": ["a"] * 5000})
    assert 0.08 < held_out(labelled_texts(table), 0.1).mean() < 0.12


def test_equal_texts_are_one_group_where_none_is_named():
    labelled = labelled_texts(pa.table({"text": ["same", "other", "same", "third"] * 5, "label": ["a"] * 20}))
    folds = folds_of(labelled, 1000).reshape(5, 4)
    assert (folds == folds[0]).all() and folds[0, 0] == folds[0, 2] != folds[0, 1]


def test_a_fingerprint_tells_sets_apart():
    base = pa.table({"text": ["ab", "c"], "label": ["x", "y"], "weight": [1.0, 2.0]})
    same = [
        base.slice(0),
        pa.concat_tables([base.slice(0, 1), base.slice(1)]),
        base.set_column(0, "text", base["text"].cast(pa.large_string())),
    ]
    prints = {labelled_texts(table, weight="weight").fingerprint for table in same}
    assert len(prints) == 1
    for other in (
        {"text": ["a", "bc"], "label": ["x", "y"], "weight": [1.0, 2.0]},
        {"text": ["ab", "c"], "label": ["y", "x"], "weight": [1.0, 2.0]},
        {"text": ["ab", "c"], "label": ["x", "y"], "weight": [1.0, 3.0]},
        {"text": ["c", "ab"], "label": ["y", "x"], "weight": [2.0, 1.0]},
    ):
        prints.add(labelled_texts(pa.table(other), weight="weight").fingerprint)
    assert len(prints) == 5


@pytest.mark.parametrize(
    ("columns", "settings", "reason"),
    [
        ({"text": ["a"], "label": ["x"]}, {"group": "host"}, "no column 'host'; it has text, label"),
        ({"text": ["a", "b"], "label": ["x", None]}, {}, "1 rows have no label"),
        ({"text": [], "label": []}, {}, "no rows"),
        ({"text": ["a"], "label": [float("nan")]}, {}, "no finite numbers"),
        ({"text": ["a"], "label": [[1]]}, {}, "of type list"),
        ({"text": ["a", "b"], "label": ["x", "y"], "w": [1.0, 0.0]}, {"weight": "w"}, "not above 0"),
        ({"text": ["a", "b"], "label": ["x", "y"], "w": [1.0, None]}, {"weight": "w"}, "not above 0"),
        ({"text": ["a", "b"], "label": ["x", "y"], "g": ["q", None]}, {"group": "g"}, "1 rows have no g"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(columns, settings, reason):
    with pytest.raises(JudgeError, match=reason):
        labelled_texts(pa.table(columns), **settings)


def test_labels_are_those_of_the_head():
    with pytest.raises(JudgeError, match="1 texts have the label 'ugly'"):
        labelled_texts(pa.table({"text": ["a", "b", "c"], "label": ["good", "bad", "ugly"]})).numbers(QUALITY)
    with pytest.raises(JudgeError, match="no text has the label 'bad'"):
        labelled_texts(pa.table({"text": ["a"], "label": ["good"]})).numbers(QUALITY)
    with pytest.raises(JudgeError, match="between 0 and 1"):
        held_out(two_kinds(), 1.0)


def test_whole_numbers_are_labels_and_null_texts_are_empty():
    labelled = labelled_texts(pa.table({"text": pa.array([None, "b"], pa.string_view()), "label": [0, 1]}))
    assert labelled.labels.to_pylist() == ["0", "1"] and labelled.texts.to_pylist() == ["", "b"]


def test_a_label_of_which_all_texts_are_held_out_is_named():
    hosts = ["one"] * 10 + [f"host{i}" for i in range(10)]
    labelled = labelled_texts(
        pa.table({"text": [f"text {i}" for i in range(20)], "label": ["bad"] * 10 + ["good"] * 10, "g": hosts}),
        group="g",
    )
    seeds = [seed for seed in range(20) if held_out(labelled, 0.5, seed)[:10].all()]
    assert 0 < len(seeds) < 20
    with pytest.raises(JudgeError, match="every text with the label 'bad' is of a group that is held out"):
        train_and_measure(
            labelled, QUALITY, lambda texts: pytest.fail("nothing can be learned"), HeldOutShare(0.5, seeds[0])
        )
