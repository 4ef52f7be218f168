"""Every token stands in one row, once; no row is overfull; what fits in a row is never cut; and little room is left."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gristmill.kernels.rows import pack
from gristmill.kernels.rows.pack import LONGEST_ROW, Packed, best_fit, concatenate, fewest_rows, one_each, windows
from tests.reference.pack_plain import best_fit_plain, concatenate_plain, one_each_plain

DATA = Path(__file__).parents[4] / "shared" / "data"
PADDING = -1

ROW = st.one_of(st.integers(1, 12), st.integers(60, 70), st.just(5000))
LENGTHS = st.one_of(
    st.lists(st.integers(0, 14), max_size=40),
    st.lists(st.integers(0, 200), max_size=25),
    st.lists(st.integers(0, 9000), max_size=12),
)
MOST = st.integers(1, 45)


def pieces_of(packed: Packed) -> list[tuple[int, ...]]:
    columns = (packed.row, packed.offset, packed.document, packed.start, packed.length)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def assert_whole(packed: Packed, lengths: np.ndarray, row_length: int) -> None:
    """Without a look at how it was packed."""
    assert packed.length.min(initial=1) >= 1
    used = np.bincount(packed.row, packed.length, packed.rows).astype(np.int64)
    assert len(used) == packed.rows and used.max(initial=0) <= row_length and used.min(initial=1) >= 1
    ends = packed.offset + packed.length  # a piece begins where the one before it ends, or a row
    same = packed.row[1:] == packed.row[:-1]
    assert (np.diff(packed.row) == ~same).all() and (packed.offset[1:] == np.where(same, ends[:-1], 0)).all()
    assert (packed.offset[:1] == 0).all() and (packed.row[:1] == 0).all()
    by_document = np.lexsort((packed.start, packed.document))
    document, start, length = (column[by_document] for column in (packed.document, packed.start, packed.length))
    again = document[1:] == document[:-1]  # and where the piece of its document before it ends, or at 0
    assert (start[1:] == np.where(again, start[:-1] + length[:-1], 0)).all() and (start[:1] == 0).all()
    assert (np.bincount(document, length, len(lengths)).astype(np.int64) == lengths).all()


def cut_though_they_fit(packed: Packed, lengths: np.ndarray, row_length: int) -> int:
    return int(((np.bincount(packed.document, minlength=len(lengths)) > 1) & (lengths <= row_length)).sum())


def laid_out(packed: Packed, tokens: np.ndarray, lengths: np.ndarray, row_length: int) -> np.ndarray:
    """The rows themselves: each piece's tokens copied to where it stands, and no two to one place."""
    rows, first = np.full((packed.rows, row_length), PADDING), np.cumsum(lengths) - lengths
    for row, offset, document, start, length in pieces_of(packed):
        place = rows[row, offset : offset + length]
        assert len(place) == length and (place == PADDING).all()
        place[:] = tokens[first[document] + start : first[document] + start + length]
    return rows


def read_back(packed: Packed, rows: np.ndarray, documents: int) -> list[np.ndarray]:
    pieces: list[list[tuple[int, int, int, int]]] = [[] for _ in range(documents)]
    for row, offset, document, start, length in pieces_of(packed):
        pieces[document].append((start, row, offset, length))
    return [
        np.concatenate([rows[row, at : at + length] for _, row, at, length in sorted(its)] or [rows[:0, 0]])
        for its in pieces
    ]


def drawn(documents: int, mean: float = 6.3, seed: int = 7) -> np.ndarray:
    """Log-normal, of about 900 tokens on average."""
    return np.exp(np.random.default_rng(seed).normal(mean, 1.0, documents)).astype(np.int64) + 1


@given(LENGTHS, ROW, MOST)
@example([], 1, 1)
@example([0, 0], 3, 1)
@example([3, 3, 2, 2, 1, 1], 6, 6)
def test_best_fit_is_what_the_plain_packer_does(lengths, row_length, most):
    bounds = windows(len(lengths), most)
    packed = best_fit(np.array(lengths, np.int64), row_length, bounds)
    assert pieces_of(packed) == best_fit_plain(lengths, row_length, bounds.tolist())
    assert_whole(packed, np.array(lengths, np.int64), row_length)
    assert cut_though_they_fit(packed, np.array(lengths, np.int64), row_length) == 0
    assert packed.rows >= fewest_rows(np.array(lengths, np.int64), row_length)


@given(st.integers(4000, LONGEST_ROW), st.lists(st.fractions(0, 3), max_size=30))
def test_best_fit_in_long_rows(row_length, shares):
    lengths = [int(share * row_length) for share in shares]
    assert pieces_of(best_fit(np.array(lengths, np.int64), row_length, windows(len(lengths), 20))) == best_fit_plain(
        lengths, row_length, windows(len(lengths), 20).tolist()
    )


@given(LENGTHS, ROW)
def test_concatenated_and_one_each_are_what_the_plain_packers_do(lengths, row_length):
    array = np.array(lengths, np.int64)
    for packed, plain in (
        (concatenate(array, row_length), concatenate_plain(lengths, row_length)),
        (one_each(array, row_length), one_each_plain(lengths, row_length)),
    ):
        assert pieces_of(packed) == plain
        assert_whole(packed, array, row_length)
    assert concatenate(array, row_length).rows == -(-sum(lengths) // row_length)
    assert cut_though_they_fit(one_each(array, row_length), array, row_length) == 0
    assert one_each(array, row_length).rows == sum(-(-length // row_length) for length in lengths)


@given(LENGTHS, ROW, MOST)
def test_every_token_stands_in_the_rows_once_and_the_rest_is_padding_at_their_ends(lengths, row_length, most):
    array = np.array(lengths, np.int64)
    for packed in (
        best_fit(array, row_length, windows(len(array), most)),
        concatenate(array, row_length),
        one_each(array, row_length),
    ):
        rows = laid_out(packed, np.arange(sum(lengths)), array, row_length)  # each token has a number of its own
        padding = rows == PADDING
        assert np.sort(rows[~padding]).tolist() == list(range(sum(lengths)))
        assert padding.sum() == packed.rows * row_length - sum(lengths)
        assert (np.diff(padding.astype(int), axis=1) >= 0).all()  # after it no token comes


@given(LENGTHS, ROW, st.data())
def test_a_window_is_packed_as_if_it_were_alone(lengths, row_length, data):
    cuts = data.draw(st.lists(st.integers(0, len(lengths)), max_size=4))
    bounds = np.array([0, *sorted(cuts), len(lengths)], np.int64)
    alone, rows = [], 0
    for low, high in pairwise(bounds):
        part = best_fit(np.array(lengths[low:high], np.int64), row_length, windows(high - low, max(int(high - low), 1)))
        alone += [(rows + row, offset, low + d, start, length) for row, offset, d, start, length in pieces_of(part)]
        rows += part.rows
    assert pieces_of(best_fit(np.array(lengths, np.int64), row_length, bounds)) == alone


@given(st.integers(0, 300), st.integers(1, 50))
def test_windows_are_of_one_size_but_for_one(documents, most):
    sizes = np.diff(windows(documents, most))
    assert sizes.sum() == documents and len(sizes) == -(-documents // most)
    assert sizes.max(initial=0) <= most and sizes.max(initial=0) - sizes.min(initial=most) <= 1


@pytest.mark.parametrize("row_length", [2048, 4096, 8192])
def test_little_room_is_left_on_lengths_as_the_web_has_them(row_length):
    lengths = drawn(200_000)
    packed = best_fit(lengths, row_length, windows(len(lengths), 100_000))
    assert_whole(packed, lengths, row_length)
    assert cut_though_they_fit(packed, lengths, row_length) == 0
    assert lengths.sum() / (packed.rows * row_length) > 0.9998
    assert packed.rows <= fewest_rows(lengths, row_length) * 1.0002
    assert packed.rows <= concatenate(lengths, row_length).rows * 1.0002


@pytest.mark.parametrize("row_length", [2048, 4096, 8192])
def test_concatenation_cuts_as_many_as_chance_has_it(row_length):
    """A row ends inside a document of n tokens with probability (n - 1) / row_length."""
    lengths = drawn(200_000)
    fitting = lengths[lengths <= row_length]
    cut = cut_though_they_fit(concatenate(lengths, row_length), lengths, row_length)
    assert cut / len(fitting) == pytest.approx((fitting - 1).mean() / row_length, abs=0.004)


@pytest.mark.parametrize("row_length", [2048, 4096, 8192])
def test_the_place_of_a_row_says_little_of_what_is_in_it(row_length):
    """Those of equal length that find no row to go to are the last of them, so a little remains."""
    lengths = drawn(100_000)
    packed = best_fit(lengths, row_length, windows(len(lengths), len(lengths)))
    documents_in, longest = np.bincount(packed.row), np.zeros(packed.rows, np.int64)
    np.maximum.at(longest, packed.row, packed.length)
    assert abs(np.corrcoef(np.arange(packed.rows), documents_in)[0, 1]) < 0.2
    assert (
        np.corrcoef(np.arange(packed.rows), documents_in[np.argsort(-longest, kind="stable")])[0, 1] > 0.5
    )  # as best fit opens them


def test_an_order_of_documents_survives_to_the_size_of_a_window():
    lengths = drawn(100_000)
    packed = best_fit(lengths, 4096, windows(len(lengths), 5_000))
    assert np.corrcoef(packed.row, packed.document)[0, 1] > 0.998
    assert (np.diff(packed.document[packed.offset == 0] // 5_000) >= 0).all()


@pytest.fixture(scope="module")
def token_ids() -> dict[str, list[np.ndarray]]:
    """Pages and prose, as a byte-level BPE of 32,000 tokens that is trained on some of both makes them, each with an
    end."""
    texts = {}
    for file, column in (("pages.parquet", "main_content"), ("prose.parquet", "text")):
        if not (DATA / file).is_file():
            pytest.skip(f"needs shared/data/{file} beside the repository")
        texts[file] = [text or "" for text in pq.read_table(DATA / file, columns=[column])[column].to_pylist()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text for some in texts.values() for text in some[::8]], trainer)
    return {
        file: [np.array([*encoded.ids, 0]) for encoded in tokenizer.encode_batch_fast(some, add_special_tokens=False)]
        for file, some in texts.items()
    }


@pytest.mark.parametrize("row_length", [2048, 4096])
def test_little_room_is_left_on_real_pages(token_ids, row_length):
    lengths = np.random.default_rng(3).choice([len(ids) for ids in token_ids["pages.parquet"]], 1_000_000)
    packed = best_fit(lengths, row_length, windows(len(lengths), 100_000))
    assert_whole(packed, lengths, row_length)
    assert cut_though_they_fit(packed, lengths, row_length) == 0
    assert lengths.sum() / (packed.rows * row_length) >= 0.999


@pytest.mark.parametrize(("row_length", "more"), [(2048, 0.02), (4096, 0.06)])
def test_prose_among_pages_leaves_gaps_but_few(token_ids, row_length, more):
    lengths = np.array([len(ids) for documents in token_ids.values() for ids in documents])
    np.random.default_rng(3).shuffle(lengths)
    packed = best_fit(lengths, row_length, windows(len(lengths), 100_000))
    assert_whole(packed, lengths, row_length)
    print(f"{row_length}: {packed.rows:,} rows, at least {fewest_rows(lengths, row_length):,}")
    assert packed.rows <= fewest_rows(lengths, row_length) * (1 + more)


@pytest.mark.parametrize("row_length", [2048, 4096])
def test_real_documents_are_read_back_from_the_rows_token_for_token(token_ids, row_length):
    documents = [ids for some in token_ids.values() for ids in some]
    lengths, tokens = np.array([len(ids) for ids in documents]), np.concatenate(documents)
    assert len(documents) > 2_500 and len(tokens) > 5_000_000 and tokens.min() >= 0
    for packed in (best_fit(lengths, row_length, windows(len(lengths), 700)), concatenate(lengths, row_length)):
        rows = laid_out(packed, tokens, lengths, row_length)
        again = read_back(packed, rows, len(documents))
        assert all(np.array_equal(ids, read) for ids, read in zip(documents, again, strict=True))
        assert (np.bincount(rows[rows != PADDING]) == np.bincount(tokens)).all()
        assert (rows == PADDING).sum() == packed.rows * row_length - len(tokens)


def test_more_than_half_a_row_each_is_told_by_the_bound():
    assert fewest_rows(np.full(10, 5), 9) == 10
    assert fewest_rows(np.full(10, 5), 10) == 5
    assert fewest_rows(np.array([25, 6, 0]), 10) == 4
    assert fewest_rows(np.zeros(0, np.int64), 10) == 0


@pytest.mark.parametrize(
    ("lengths", "row_length", "rows"),
    [
        (np.array([100_000_000]), 4096, 24_415),
        (np.zeros(1_000_000, np.int64), 4096, 0),
        (np.full(1_000_000, 4096), 4096, 1_000_000),
        (np.full(1_000_000, 4095), 4096, 1_000_000),
        (np.full(1_000_000, 1), 4096, 245),
        (np.full(1_000_000, 2), 1, 2_000_000),
        (np.arange(1_000_000) % 16_000_000 + 1, LONGEST_ROW, 29_803),
    ],
    ids=[
        "one of 100 million tokens",
        "empty",
        "full rows",
        "one less",
        "one token",
        "rows of one token",
        "all different",
    ],
)
def test_odd_lengths_take_no_longer(lengths, row_length, rows):
    best_fit(np.array([1]), 1, windows(1, 1))
    started = time.process_time()
    packed = best_fit(lengths, row_length, windows(len(lengths), len(lengths)))
    assert time.process_time() - started < 2
    assert packed.rows == rows
    assert_whole(packed, lengths, row_length)


def test_a_window_costs_what_is_in_it_and_not_what_a_row_holds():
    lengths = drawn(300_000)
    best_fit(lengths[:10], 4096, windows(10, 1))
    started = time.process_time()
    packed = best_fit(lengths, 1 << 20, windows(len(lengths), 1))
    assert time.process_time() - started < 2
    assert packed.rows == len(lengths)


def test_five_million_documents_a_second():
    lengths = drawn(1_000_000)
    bounds = windows(len(lengths), 100_000)
    seconds = []
    for _ in range(4):
        started = time.process_time()
        best_fit(lengths, 4096, bounds)
        seconds.append(time.process_time() - started)
    assert len(lengths) / min(seconds) > 5e6


def test_what_cannot_be_packed_is_said():
    one = np.array([1])
    with pytest.raises(ValueError, match="rows of 0 tokens"):
        concatenate(one, 0)
    with pytest.raises(ValueError, match="between 1 and 16,777,216"):
        one_each(one, LONGEST_ROW + 1)
    with pytest.raises(ValueError, match="document 1 has -5 tokens"):
        best_fit(np.array([3, -5]), 4, windows(2, 2))
    with pytest.raises(ValueError, match="windows of 0 documents"):
        windows(3, 0)
    for bounds in ([], [1], [0, 2], [0, 1, 0, 1], [-1, 1]):
        with pytest.raises(ValueError, match="must rise from 0 to 1"):
            best_fit(one, 4, np.array(bounds, np.int64))


def test_kernels_compile_once_whatever_is_given():
    for lengths in (np.arange(9), np.arange(18)[::2], np.arange(9, dtype=np.int32), np.frombuffer(bytes(72), np.int64)):
        assert_whole(best_fit(lengths, 5, windows(9, 4)), lengths, 5)
        assert_whole(one_each(lengths, 5), lengths, 5)
        assert_whole(concatenate(lengths, 5), lengths, 5)
    for kernel in (pack._choose_rows, pack._count_rows, pack._lay_out, pack._count_concatenated, pack._concatenate):
        assert len(kernel.compiled.signatures) == 1
