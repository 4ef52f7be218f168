"""Signatures and bands are the same by kernel and by reference; they estimate Jaccard as MinHash must; hostile
documents cost what others cost."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.duplicates.minhash import (
    band_hashes,
    bands_for,
    chance_of_meeting,
    signatures,
    signatures_of_shingles,
)
from gristmill.kernels.duplicates.minhash_rules import bands_plain, signature_plain
from gristmill.kernels.words.token_rules import shingles_plain
from gristmill.kernels.words.tokens import shingle_column

WORDS = st.sampled_from(["the", "The", "mill", "grain", "école", "漢字", "ไทย", "Привет", "42", "—", "\n", "\u0301"])
TEXTS = st.lists(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=300).map(" ".join)), max_size=4)
PLACES = st.sampled_from([1, 2, 7, 16, 100, 128])
MANY_WORDS = " ".join(f"w{k}" for k in range(5000))


def column_of(texts: list[str]) -> TextColumn:
    return text_column(pa.array(["left out", *texts, "left out too"], pa.string()).slice(1, len(texts)))


@given(TEXTS, st.integers(1, 8), PLACES, st.integers(0, 2**64 - 1))
@example(
    ["", "one", "one two three four", "one two three four five", "a " * 3000, "a b c d e f g " * 400, MANY_WORDS],
    5,
    128,
    0,
)
@settings(max_examples=60, deadline=None)
def test_signatures_equal_the_plain_twin(texts, width, places, seed):
    shingles = [shingles_plain(text, width, seed) for text in texts]
    wanted = [signature_plain(found, places) for found in shingles]
    found = signatures(column_of(texts), width=width, places=places, seed=seed)
    assert found.dtype == np.uint32 and found.tolist() == wanted
    assert signatures_of_shingles(*shingle_column(column_of(texts), width, seed), places).tolist() == wanted


@given(
    TEXTS, st.integers(1, 5), st.sampled_from([(1, 1, 1), (18, 7, 128), (21, 6, 126), (3, 40, 128)]), st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_bands_equal_the_plain_twin(texts, width, shape, seed):
    bands, rows, places = shape
    shingles = [shingles_plain(text, width, seed) for text in texts]
    found, counts = band_hashes(column_of(texts), width=width, bands=bands, rows=rows, seed=seed, places=places)
    assert found.dtype == np.uint64 and found.tolist() == [
        bands_plain(signature_plain(s, places), bands, rows) for s in shingles
    ]
    assert counts.tolist() == [len(s) for s in shingles]


@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=40), max_size=5), PLACES)
@settings(max_examples=60, deadline=None)
def test_given_shingles_of_any_value(documents, places):
    hashes = np.array([value for shingles in documents for value in shingles], np.uint64)
    first = np.cumsum([0, *map(len, documents)])
    assert signatures_of_shingles(hashes, first, places).tolist() == [
        signature_plain(shingles, places) for shingles in documents
    ]


def test_order_repeats_and_neighbours_change_nothing():
    text = " ".join(f"w{k}" for k in range(300))
    alone = signatures(text_column(pa.array([text])))[0]
    assert (
        signatures(text_column(pa.array(["x", text, "", text.upper(), text.replace(" ", " - ")])))[[1, 3, 4]] == alone
    ).all()
    shingles = np.array(shingles_plain(text, 5), np.uint64)
    twice = np.concatenate([shingles[::-1], shingles])
    assert (signatures_of_shingles(twice, np.array([0, len(twice)]))[0] == alone).all()


def test_signatures_stay_what_they_are():
    """They are stored and met by later runs: another value is another format."""
    column = text_column(pa.array(["the quick brown fox jumps over the lazy dog"]))
    assert signatures(column, places=4).tolist() == [[2446399778, 3312352332, 238597905, 1833703439]]
    assert band_hashes(column, bands=2, rows=2)[0].tolist() == [[4213750720634618016, 12073833911210416770]]


@pytest.mark.parametrize(("shared", "each"), [(50, 50), (320, 40), (900, 50), (60, 1)])
def test_agreement_estimates_jaccard_without_bias(shared, each):
    """Its spread is at most 1.15 times that of the classical way: sqrt(J (1 - J) / places). Small sets, where places
    stay empty for many rounds, too."""
    trials, places = 4000, 128
    jaccard = shared / (shared + 2 * each)
    random = np.random.default_rng(7)
    size = shared + each
    values = random.integers(0, 2**64, (trials, shared + 2 * each), dtype=np.uint64)
    left, right = values[:, :size], values[:, each:]
    first = np.arange(trials + 1) * size
    a, b = (signatures_of_shingles(side.ravel(), first, places) for side in (left, right))
    agreement = (a == b).mean(axis=1)
    classical = np.sqrt(jaccard * (1 - jaccard) / places)
    assert abs(agreement.mean() - jaccard) < 4 * classical / np.sqrt(trials)
    assert agreement.std() < 1.15 * classical


def test_bands_nominate_as_the_curve_says():
    trials, size, jaccard = 3000, 200, 0.75
    shared = round(2 * size * jaccard / (1 + jaccard))
    values = np.random.default_rng(3).integers(0, 2**64, (trials, 2 * size - shared), dtype=np.uint64)
    first = np.arange(trials + 1) * size
    a, b = (signatures_of_shingles(side.ravel(), first) for side in (values[:, :size], values[:, -size:]))
    met = (a[:, :126].reshape(trials, 18, 7) == b[:, :126].reshape(trials, 18, 7)).all(axis=2).any(axis=1).mean()
    assert met == pytest.approx(chance_of_meeting(shared / (2 * size - shared), 18, 7), abs=0.03)


@pytest.mark.parametrize(("threshold", "shape"), [(0.8, (18, 7)), (0.75, (21, 6)), (0.9, (11, 11)), (1.0, (1, 128))])
def test_bands_are_chosen_for_the_wanted_threshold(threshold, shape):
    assert bands_for(threshold) == shape
    bands, rows = shape
    assert chance_of_meeting(threshold, bands, rows) >= 0.97 and (
        rows == 128 or chance_of_meeting(threshold, 128 // (rows + 1), rows + 1) < 0.97
    )


def test_the_chance_of_meeting_rises_from_nothing_to_certainty():
    chances = [chance_of_meeting(step / 20, 18, 7) for step in range(21)]
    assert chances[0] == 0 and chances[20] == 1 and chances[16] == pytest.approx(0.9856, abs=1e-4)
    assert all(a < b for a, b in pairwise(chances))


def test_what_cannot_be_is_refused():
    column = column_of(["a"])
    with pytest.raises(ValueError, match="more hashes or a higher threshold"):
        bands_for(0.01, hashes=64)
    with pytest.raises(ValueError, match="do not fit"):
        band_hashes(column, bands=19, rows=7, places=128)
    for places in (0, 1 << 20):
        with pytest.raises(ValueError, match="places"):
            signatures(column, places=places)


def seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(once() for _ in range(3))


@pytest.mark.parametrize("text", ["the ", "a ", "one two three ", "漢", "x", "\u0301", "é"], ids=ascii)
def test_a_document_of_ten_megabytes_costs_what_ten_megabytes_cost(text):
    """Two million equal words leave places empty for more than a hundred rounds; only the first goes over all of them."""
    usual = text_column(pa.array([" ".join(f"w{k}" for k in range(500_000))]))
    hostile = text_column(pa.array([text * (10_000_000 // len(text.encode()))]))
    per_byte = seconds(partial(signatures, usual)) / usual.offsets[-1]
    assert (
        seconds(partial(signatures, hostile)) / hostile.offsets[-1] < 30 * per_byte
    )  # a token has a few bytes or one; all rounds over all tokens would be 300 times
