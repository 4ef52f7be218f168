"""Megatron's files hold every document once and whole, or every row, token for token."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.rows.pack import concatenate
from gristmill.shards.export import megatron as export_megatron, rows as export_rows
from gristmill.shards.export.export import Options, export
from gristmill.shards.export.megatron import write_megatron
from gristmill.shards.export.rows import ExportError, Sequences
from gristmill.shards.format import BadShards
from tests.shards.made_shards import EOS, all_documents, make_shards, read_indexed, rows_of, run_elsewhere

LENGTHS = [[3, 9, 4, 20, 8, 8], [5, 5, 2, 17], [1]]


@pytest.mark.parametrize("vocab_size", [1000, 65_499, 65_500, 65_536, 65_537, 200_000])
def test_documents_come_back_whole_in_the_type_that_megatron_would_choose(tmp_path: Path, vocab_size: int) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    done = export(made.folder, "megatron", tmp_path / "out")
    found = read_indexed(tmp_path / "out" / "tokens")
    assert sorted(found) == sorted(all_documents(made)) and done.items == 11
    assert (tmp_path / "out" / "tokens.idx").read_bytes()[17] == (8 if vocab_size < 65_500 else 4)


def test_documents_stand_in_the_order_of_their_first_pieces(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(made.folder, "megatron", tmp_path / "out")
    expected = []
    for documents, packed in zip(made.documents, made.packed, strict=True):
        seen = dict.fromkeys(
            document
            for document, start in zip(packed.document.tolist(), packed.start.tolist(), strict=True)
            if start == 0
        )
        expected += [documents[document][1] for document in seen]
    assert read_indexed(tmp_path / "out" / "tokens") == expected


def test_copies_of_a_document_come_back_as_often_as_they_stand_there(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, copies=3)
    export(made.folder, "megatron", tmp_path / "out")
    found = read_indexed(tmp_path / "out" / "tokens")
    assert sorted(found) == sorted(all_documents(made)) and len(found) == 33


def test_copies_that_were_cut_at_different_places_are_refused_and_go_as_rows(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", [[13]], 8, copies=2, pack=concatenate)
    with pytest.raises(BadShards, match="cut at different places"):
        export(made.folder, "megatron", tmp_path / "out")
    assert export(made.folder, "megatron-rows", tmp_path / "out").items == 4


def test_concatenated_rows_give_whole_documents_too(tmp_path: Path) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, pack=concatenate)
    export(made.folder, "megatron", tmp_path / "out")
    assert read_indexed(tmp_path / "out" / "tokens") == all_documents(made)


@pytest.mark.parametrize("eod", [None, 7])
def test_rows_come_back_with_their_padding_made_of_the_end_of_text(tmp_path: Path, eod: int | None) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    export(made.folder, "megatron-rows", tmp_path / "out", Options(eod=eod))
    fill = EOS if eod is None else eod
    expected = [tokens + [fill] * (8 - len(tokens)) for tokens, _ in rows_of(made)]
    assert read_indexed(tmp_path / "out" / "tokens") == expected
    assert any(len(tokens) < 8 for tokens, _ in rows_of(made))


def test_blocks_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8)
    for to in ("megatron", "megatron-rows"):
        export(made.folder, to, tmp_path / f"{to}-whole")
    monkeypatch.setattr(export_rows, "BLOCK_TOKENS", 9)
    monkeypatch.setattr(export_megatron, "AT_ONCE", 2)
    for to in ("megatron", "megatron-rows"):
        export(made.folder, to, tmp_path / f"{to}-small")
        for name in ("tokens.bin", "tokens.idx"):
            assert (tmp_path / f"{to}-small" / name).read_bytes() == (tmp_path / f"{to}-whole" / name).read_bytes()


@given(st.lists(st.lists(st.lists(st.integers(0, 65_000), max_size=5), max_size=4), min_size=1, max_size=4))
def test_any_sequences_come_back(tmp_path_factory: pytest.TempPathFactory, runs: list[list[list[int]]]) -> None:
    prefix = tmp_path_factory.mktemp("indexed") / "a.b"
    made = (
        Sequences(np.array(list(chain.from_iterable(run)), np.uint16), np.array([len(s) for s in run], np.int64))
        for run in runs
    )
    if sum(map(len, runs)) == 0:
        with pytest.raises(ExportError, match="no documents"):
            write_megatron(prefix, made, 65_001)
    else:
        assert write_megatron(prefix, made, 65_001) == sum(map(len, runs))
        assert read_indexed(prefix) == list(chain.from_iterable(runs))


def test_a_token_that_would_change_in_megatrons_type_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=re.escape("2,147,483,648")):
        write_megatron(tmp_path / "a", [Sequences(np.array([2**31], np.uint32), np.array([1]))], 2**32)
    with pytest.raises(ExportError, match="65,536"):
        write_megatron(tmp_path / "a", [Sequences(np.array([65_536], np.uint32), np.array([1]))], 1000)


def test_places_beyond_four_gigabytes_stay_right(tmp_path: Path) -> None:
    """The index alone: lengths of a set that nobody writes in a test."""
    long = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (0,), (0,))
    prefix = tmp_path / "a"
    write_megatron(prefix, [Sequences(long, np.array([2**31 - 1] * 5))], 1000)
    places = np.frombuffer(prefix.with_suffix(".idx").read_bytes(), "<i8", 5, 34 + 20)
    assert places.tolist() == [2 * i * (2**31 - 1) for i in range(5)]


@pytest.mark.parametrize("vocab_size", [1000, 65_500, 200_000])
@pytest.mark.parametrize("to", ["megatron", "megatron-rows"])
def test_megatron_core_reads_the_same(tmp_path: Path, to: str, vocab_size: int) -> None:
    made = make_shards(tmp_path / "shards", LENGTHS, 8, vocab_size)
    export(made.folder, to, tmp_path / "out")
    ours = read_indexed(tmp_path / "out" / "tokens")
    theirs = run_elsewhere("GRISTMILL_MEGATRON_PYTHON", "with_megatron.py", tmp_path / "out" / "tokens", "8", str(EOS))
    assert theirs["documents"] == ours and len(ours) > 5
    assert theirs["ends"] == list(range(len(ours) + 1))
    assert theirs["dtype"] == ("uint16" if vocab_size < 65_500 else "int32")
    if to == "megatron-rows":  # an epoch's last row has no token after it that could be its last label
        assert len(theirs["samples"]) == len(ours) - 1
        assert all(sample in ours for sample in theirs["samples"])
