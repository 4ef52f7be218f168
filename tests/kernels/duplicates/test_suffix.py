"""What stands twice is found, whatever the text; and cutting it out leaves the other words as they are."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.unicode import SPACE, properties
from gristmill.kernels.duplicates.anchors import Stretches, anchors, gram_of, stretches, twice_at_most
from gristmill.kernels.duplicates.seams import mended
from gristmill.kernels.duplicates.suffix import merged, met_twice, repeats, suffix_array, window_hashes
from gristmill.kernels.words.token_rules import token_hash_plain, tokens_plain
from gristmill.kernels.words.tokens import Tokens, token_column
from tests.reference.suffix_plain import WHITE, anchors_plain, mended_plain, repeats_plain, suffix_array_plain


def column_of(documents: list[list[int]]) -> Tokens:
    hashes = np.array([token_hash_plain(bytes([t])) for tokens in documents for t in tokens], np.uint64)
    first = np.cumsum([0, *map(len, documents)])
    nowhere = np.zeros(len(hashes), np.int64)
    return Tokens(hashes, nowhere, nowhere, first)


FEW = st.lists(st.integers(0, 2), max_size=40)
PERIODIC = st.builds(
    lambda head, period, times: head + period * times,
    FEW,
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.integers(1, 12),
)
DOCUMENTS = st.lists(st.one_of(FEW, PERIODIC, st.lists(st.integers(0, 200), max_size=30)), max_size=6)
WINDOW = st.integers(1, 12)


@given(DOCUMENTS, WINDOW)
def test_anchors(documents, window):
    tokens = column_of(documents)
    found = anchors(tokens, window)
    for d, begin in enumerate(tokens.first[:-1].tolist()):
        mine = slice(found.first[d], found.first[d + 1])
        rows = zip(
            found.keys[mine].tolist(),
            (found.low[mine] - begin).tolist(),
            (found.high[mine] - begin).tolist(),
            strict=True,
        )
        assert list(rows) == anchors_plain(tokens.hashes[begin : tokens.first[d + 1]].tolist(), window, gram_of(window))
    keys, first = twice_at_most(found)
    for d in range(len(documents)):
        times = Counter(found.keys[found.first[d] : found.first[d + 1]].tolist())
        assert keys[first[d] : first[d + 1]].tolist() == [k for k in sorted(times) for _ in range(min(2, times[k]))]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 70))
def test_suffix_array(values, depth):
    order, ranks = suffix_array(np.array(values, np.uint64), depth)
    assert (order.tolist(), ranks.tolist()) == suffix_array_plain(values, depth)


def spans_of(found: Stretches, window: int, keep_first: bool, documents: int) -> list[list[tuple[int, int]]]:
    removed = repeats(found, window, keep_first).removed
    cut = [set[int]() for _ in range(documents)]
    for d, begin, end in zip(*(values.tolist() for values in merged(found, removed, window)), strict=True):
        cut[d].update(range(begin, end))
    return [[(min(run), max(run) + 1) for run in runs(sorted(tokens))] for tokens in cut]


def runs(values: list[int]) -> list[list[int]]:
    made: list[list[int]] = []
    for value in values:
        if made and made[-1][-1] == value - 1:
            made[-1].append(value)
        else:
            made.append([value])
    return made


@given(DOCUMENTS, WINDOW, st.booleans())
def test_repeats_are_those_of_the_plain_twin(documents, window, keep_first):
    tokens = column_of(documents)
    found = anchors(tokens, window)
    expected = repeats_plain(documents, window, keep_first)
    everything = stretches(tokens, found, np.unique(found.keys), window)
    assert spans_of(everything, window, keep_first, len(documents)) == expected
    keys, times = np.unique(twice_at_most(found)[0], return_counts=True)
    deserving = stretches(tokens, found, keys[times > 1], window)
    assert len(deserving.hashes) <= len(everything.hashes)
    assert spans_of(deserving, window, keep_first, len(documents)) == expected, (
        "windows whose anchor stands once are no repeats"
    )


@given(DOCUMENTS, WINDOW)
def test_the_first_of_each_window_is_named_and_hashed(documents, window):
    tokens = column_of(documents)
    found = anchors(tokens, window)
    here = stretches(tokens, found, np.unique(found.keys), window)
    _, where, high, low = repeats(here, window, True)
    named = [(d, p) for d, p in zip(here.documents[where].tolist(), here.places[where].tolist(), strict=True)]
    first: dict[tuple[int, ...], tuple[int, int]] = {}
    for d, values in enumerate(documents):
        for p in range(len(values) - window + 1):
            first.setdefault(tuple(values[p : p + window]), (d, p))
    assert named == sorted(first.values())
    assert len(set(high.tolist())) == len(set(low.tolist())) == len(first)
    if len(where):
        alone = window_hashes(
            np.ascontiguousarray(here.hashes[where[-1] : where[-1] + window]), np.zeros(1, np.int64), window
        )
        assert (high[-1], low[-1]) == (alone[0][0], alone[1][0]), "a hash is of the window alone"


PIECES = st.sampled_from(
    [
        "a",
        "bc",
        "Déf",
        " ",
        " ",
        "\n",
        "\n\n",
        ". ",
        ",",
        "-",
        " “",
        "”",
        "(",
        ")",
        "漢",
        "字",
        "か\u3099",
        "。",
        "\u3000",
        "\u200b",
        "e\u0301",
        "🙂",
        "\x00",
    ]
)
TEXT = st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=25))


@st.composite
def cuts(draw):
    text = draw(TEXT)
    count = len(list(tokens_plain(text)))
    gone = sorted(draw(st.sets(st.integers(0, count - 1)))) if count else []
    return text, [(run[0], run[-1] + 1) for run in runs(gone)]


@given(st.lists(cuts(), max_size=4))
def test_cutting_leaves_the_other_tokens(given):
    column = text_column(pa.array(["before", *(text for text, _ in given)], pa.string())[1:])
    spans = [(d, a, b) for d, (_, mine) in enumerate(given) for a, b in mine]
    arrays = tuple(np.array([span[k] for span in spans], np.int64) for k in range(3))
    data, offsets = mended(column, token_column(column), arrays)
    for d, (text, mine) in enumerate(given):
        made = bytes(data[offsets[d] : offsets[d + 1]]).decode()
        assert made == mended_plain(text, mine)
        kept = [word for k, (_, _, word) in enumerate(tokens_plain(text)) if not any(a <= k < b for a, b in mine)]
        assert [word for _, _, word in tokens_plain(made)] == kept


@pytest.mark.parametrize(
    ("text", "span", "left"),
    [
        ("Keep this. Cut that. Keep too.", (2, 4), "Keep this. Keep too."),
        ("One.\n\nCut this!\n\nTwo.", (1, 3), "One.\n\nTwo."),
        ("One, “cut this.”\nTwo.", (1, 3), "One,\nTwo."),
        ("Cut this. Keep.", (0, 2), "Keep."),
        ("Keep. (Cut this.)\n", (1, 3), "Keep."),
        ("Keep.\tCut.\u3000Keep.", (1, 2), "Keep.\tKeep."),
        ("Keep.\tCut.\nKeep.", (1, 2), "Keep.\nKeep."),
        ("甲乙。丙丁。戊", (2, 4), "甲乙。戊"),
        ("abc漢字def", (1, 3), "abc def"),
        ("all of it", (0, 3), ""),
    ],
)
def test_seams(text, span, left):
    column = text_column(pa.array([text]))
    arrays = tuple(np.array([value], np.int64) for value in (0, *span))
    assert bytes(mended(column, token_column(column), arrays)[0]).decode() == left == mended_plain(text, [span])


def test_white_space_of_the_twin_is_that_of_unicode():
    assert [point for point in range(0x110000) if properties()[point] & SPACE] == sorted(map(ord, WHITE))


@pytest.mark.parametrize(
    "text",
    [[7], [1, 2, 3], list(range(40)), list(range(200))],
    ids=["one word", "three words", "period 40", "a text 5,000 times"],
)
def test_text_that_repeats_itself_a_million_times_takes_seconds(text):
    window, tokens = 50, column_of([(text * (1_000_000 // len(text) + 1))[:1_000_000]])
    anchors(column_of([[1] * 60]), window), suffix_array(np.arange(99, dtype=np.uint64), 2)  # compiled
    start = time.perf_counter()
    found = anchors(tokens, window)
    keys, times = np.unique(twice_at_most(found)[0], return_counts=True)
    here = stretches(tokens, found, keys[times > 1], window)
    removed, leads, _, _ = repeats(here, window, True)
    _, begins, ends = merged(here, removed, window)
    assert time.perf_counter() - start < 20
    assert len(leads) == len(text) and ends.max() == 1_000_000
    assert begins.min() == max(window, len(text)), "the first occurrence stays"


@given(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=50))
def test_what_is_met_twice_is_named(values):
    named = met_twice(np.array(values, np.uint64)).tolist()
    assert all(found for value, found in zip(values, named, strict=True) if values.count(value) > 1)


def test_few_are_named_that_are_met_once():
    values = np.random.default_rng(3).integers(0, 2**64, 100_000, np.uint64)
    assert 0 < met_twice(values).mean() < 0.065
