"""Any fastText classifier is read, predicts what fastText predicts, and a damaged file is refused with a reason."""

from __future__ import annotations

import mmap
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gristmill.classifiers.fasttext import model as fasttext
from gristmill.classifiers.fasttext.model import FastText, ModelFileError, load
from gristmill.kernels.base.columns import text_column
from tests.classifiers.fasttext_files import HS, NS, OVA, SOFTMAX, Small, small

KINDS = {
    "softmax": {"loss": SOFTMAX},
    "tree": {"loss": HS},
    "one against all": {"loss": OVA},
    "negative sampling": {"loss": NS},
    "no n-grams": {"minn": 0, "maxn": 0},
    "single characters": {"minn": 1, "maxn": 3, "loss": HS},
    "word n-grams": {"word_ngrams": 3, "maxn": 0, "minn": 0},
    "word and character n-grams": {"word_ngrams": 2, "pruned": True, "quantised": "rows"},
    "version 11": {"version": 11},
    "codes": {"quantised": "rows"},
    "codes and norms": {"quantised": "rows norms", "loss": HS, "dim": 6},
    "codes in and out": {"quantised": "rows outputs norms", "loss": HS},
    "pruned": {"quantised": "rows norms", "pruned": True},
    "pruned, in many blocks": {"quantised": "rows", "pruned": True, "buckets": 700, "word_ngrams": 2},
    "pruned of every n-gram": {"quantised": "rows", "pruned": True, "buckets": 1},
    "one label": {"labels": 1, "loss": HS},
    "wide": {"dim": 33, "labels": 40, "loss": HS},
}
TEXTS = [
    "",
    " ",
    "the",
    "der die das",
    "été\tété",
    "是的",
    "a\0b\0\0c",
    "x </s> zebra",
    "__label__aa the",
    "__label__zz the",
    "zebra\nzebra",
    "😀",
    "ا ب",
]
WORDS = st.sampled_from(
    ["the", "der", "été", "是的", "a", "zebra", "</s>", "__label__aa", "__label__x", "\n", "\0", "\u3000"]
) | st.text(max_size=9)


def said(model: FastText, texts: list[str], top: int) -> list[list[tuple[str, float]]]:
    labels, scores = model.predict(*text_column(pa.array(texts, pa.string())), top=top)
    return [
        [(model.labels[n], float(s)) for n, s in zip(*row, strict=True) if n >= 0]
        for row in zip(labels, scores, strict=True)
    ]


def holds_equal(description: Small, model: FastText, texts: list[str]) -> None:
    for text, found in zip(texts, said(model, texts, len(description.labels)), strict=True):
        plain = description.probabilities(text.encode())
        if plain is None:
            assert found == []
            continue
        assert [s for _, s in found] == sorted((s for _, s in found), reverse=True)
        lowest = 1.02e-5 if description.loss == HS else 0
        assert {name for name, p in plain.items() if p > lowest} <= {name for name, _ in found} <= plain.keys()
        table = description.loss in (
            NS,
            OVA,
        )  # a step of the sigmoid's table is 1/32 wide: rounding may fall to either side
        assert all(abs(plain[name] - score) < (0.0079 if table else 1e-5) for name, score in found)
        best = said(model, [text], 1)[0]
        assert best[0][1] == found[0][1]


@pytest.mark.parametrize("kind", KINDS)
def test_predicts_what_the_plain_one_does(kind, tmp_path):
    description = small(**KINDS[kind])
    model = load(description.write(tmp_path / "model.bin"))
    assert model.labels == tuple(label.decode()[9:] for label in description.labels)
    assert len([1 for text in TEXTS if description.rows_of(text.encode())]) >= len(TEXTS) - 2
    holds_equal(description, model, TEXTS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    seed=st.integers(0, 3),
    kind=st.sampled_from(sorted(KINDS)),
    texts=st.lists(st.lists(WORDS, max_size=8).map(" ".join), max_size=5),
)
def test_on_any_text(seed, kind, texts, tmp_path_factory):
    description = small(seed, **KINDS[kind])
    holds_equal(description, load(description.write(tmp_path_factory.mktemp("m") / "model.bin")), texts)


def test_codes_that_are_not_worked_out_predict_the_same(tmp_path, monkeypatch):
    description = small(quantised="rows norms", pruned=True, dim=7)
    monkeypatch.setattr(fasttext, "EXPANDED_BYTES", 0)
    model = load(description.write(tmp_path / "model.ftz"))
    assert model.model.codes_each == 4
    holds_equal(description, model, TEXTS)


@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=9), start=st.integers(0, 4))
def test_neighbours_and_slices_never_matter(texts, start, tmp_path_factory):
    model = load(small(word_ngrams=2).write(tmp_path_factory.mktemp("m") / "model.bin"))
    whole = said(model, texts, 3)
    assert whole == [said(model, [text], 3)[0] for text in texts]
    labels, scores = model.predict(*text_column(pa.array(texts, pa.large_string()).slice(start)), top=3)
    both = model.predict(*text_column(pa.array(texts)), top=3)
    assert np.array_equal(labels, both[0][start:]) and np.array_equal(scores, both[1][start:])


def test_only_what_is_wanted_is_judged(tmp_path):
    model = load(small().write(tmp_path / "model.bin"))
    labels, scores = model.predict(*text_column(pa.array(["the", "the", "der"])), np.array([True, False, True]))
    assert (labels[:, 0] >= 0).tolist() == [True, False, True] and scores[1, 0] == 0


def test_long_input_is_linear(tmp_path):
    model = load(small(word_ngrams=3, pruned=True, quantised="rows").write(tmp_path / "model.bin"))
    texts = ["x" * 10_000_000, "the " * 1_000_000, "\n" * 1_000_000, "é" * 1_000_000, "是" * 1_000_000]
    labels, scores = model.predict(*text_column(pa.array(texts)))
    assert (labels >= 0).all() and np.isfinite(scores).all()


def test_bytes_that_are_no_utf8_are_read_within_bounds(tmp_path):
    description = small()
    model = load(description.write(tmp_path / "model.bin"))
    texts = [b"\x80\x80", b"\xff\xfe\xfd", b"a\xc3", b"\xe6\x98", b"<\x80> \xbf"]
    labels, scores = model.predict(*text_column(pa.array(texts, pa.binary())))
    for text, label, score in zip(texts, labels[:, 0], scores[:, 0], strict=True):
        assert description.probabilities(text)[model.labels[label]] == pytest.approx(score, abs=1e-5)


def test_a_file_is_mapped_once_and_again_when_it_changes(tmp_path):
    path = small(1).write(tmp_path / "model.bin")
    first = load(path)
    assert load(path) is first
    base = first.model.input
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
    small(2, labels=9).write(path)
    assert len(load(path).labels) == 9


def test_numbers_that_are_none_give_no_label(tmp_path):
    for loss in (SOFTMAX, HS, OVA, NS):
        description = small(loss=loss)
        description.rows[:] = np.nan
        assert said(load(description.write(tmp_path / f"{loss}.bin")), ["the cat"], 3) == [[]]


@pytest.mark.parametrize("kind", ["tree", "pruned", "codes in and out"])
def test_a_file_that_is_cut_off_anywhere_is_refused(kind, tmp_path):
    whole = small(**KINDS[kind]).write(tmp_path / "whole.bin").read_bytes()
    path = tmp_path / "cut.bin"
    cuts = [*range(0, 300, 7), *range(300, len(whole), max(1, len(whole) // 60)), len(whole) - 1]
    for size in cuts:
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=r"cut\.bin"):
            load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    kind=st.sampled_from(["tree", "pruned", "codes in and out", "word n-grams"]),
    at=st.integers(0, 700),
    value=st.integers(-(2**31), 2**31 - 1),
)
def test_a_file_with_wrong_numbers_is_refused_or_harmless(kind, at, value, tmp_path_factory):
    folder = tmp_path_factory.mktemp("m")
    damaged = bytearray(small(**KINDS[kind]).write(folder / "whole.bin").read_bytes())
    struct.pack_into("<i", damaged, min(at, len(damaged) - 4), value)
    (folder / "damaged.bin").write_bytes(damaged)
    try:
        model = load(folder / "damaged.bin")
    except ModelFileError as error:
        assert "damaged.bin" in str(error)
        return
    assert np.isfinite(model.predict(*text_column(pa.array(["the zebra", "x"])))[1]).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": 2}, "word vectors"),
        ({"version": 13}, "version 13"),
        ({"loss": 9}, "loss of number 9"),
        ({"buckets": 49, "rows": np.zeros((20, 5), np.float32)}, "points to row"),
        ({"counts": [10**16] * 7, "loss": HS}, "no tree"),
        ({"pruned": {1: 0}}, "issue 332"),
    ],
)
def test_says_what_is_wrong(change, says, tmp_path):
    description = small()
    for name, value in change.items():
        setattr(description, name, value)
    with pytest.raises(ModelFileError, match=says):
        load(description.write(tmp_path / "model.bin"))


def test_no_file_and_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="No such file"):
        load(tmp_path / "absent.bin")
    (tmp_path / "text.bin").write_text("hello, this is not a model")
    with pytest.raises(ModelFileError, match="fastText's mark"):
        load(tmp_path / "text.bin")
