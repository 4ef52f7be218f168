"""Whatever is done to shards is found, with the shard and the row, in words."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from gristmill.kernels.rows.pack import concatenate, one_each
from gristmill.shards.format import schema_of
from gristmill.shards.verify import Fault, verify
from gristmill.shards.writer import index_of, shard_facts
from tests.shards.shard_sets import documents_of, meta_of, small_set, table_of, write_set, written


def faults_of(folder) -> list[str]:
    return [str(fault) for fault in verify(folder)]


@pytest.mark.parametrize(
    "more", [{}, {"packer": concatenate}, {"packer": one_each}, {"vocab_size": 70_000}, {"shards": 0}, {"documents": 0}]
)
def test_whole_shards_have_no_fault(tmp_path, more) -> None:
    made = small_set(tmp_path, **more)
    seen: list[int] = []
    assert verify(made.folder, seen.append) == []
    assert seen == list(range(len(made.shards)))


def test_copies_of_documents_are_no_fault(tmp_path) -> None:
    """Cut alike, or, where rows are cut without regard to documents, in different places."""
    one = documents_of(30, 9, 1000, 1)
    twice = one._replace(
        tokens=np.tile(one.tokens, 2),
        offsets=np.concatenate([one.offsets, one.offsets[1:] + one.offsets[-1]]),
        **{name: np.tile(getattr(one, name), 2) for name in ("uid", "source", "bucket", "difficulty")},
    )
    for number, packer in enumerate((concatenate, one_each)):
        assert verify(write_set(tmp_path / str(number), meta_of(), [twice], packer).folder) == []


def test_a_missing_shard(tmp_path) -> None:
    made = small_set(tmp_path)
    (tmp_path / "shard-00001.arrow").unlink()
    assert faults_of(made.folder)[0] == "shard-00001.arrow: missing, but the index lists it"
    assert any("index.json: source 'web' has" in fault for fault in faults_of(made.folder))


def test_a_tokenizer_that_is_another_or_was_changed(tmp_path) -> None:
    made = small_set(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    (fault,) = faults_of(made.folder)
    assert (
        fault.startswith("tokenizer/tokenizer.json: sha256 44136fa3") and "another tokenizer, or was changed" in fault
    )


def test_a_shard_cut_off(tmp_path) -> None:
    small_set(tmp_path)
    path = tmp_path / "shard-00001.arrow"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert (
        faults_of(tmp_path)[0]
        == f"shard-00001.arrow: {len(content) // 2:,} bytes, the index says {len(content):,}; was it cut off or written anew?"
    )


def test_two_shards_that_changed_places(tmp_path) -> None:
    meta = meta_of()
    ones = documents_of(50, 9, 1000, 1)
    write_set(tmp_path, meta, [ones, ones._replace(tokens=ones.tokens[::-1].copy())])
    one, two = tmp_path / "shard-00000.arrow", tmp_path / "shard-00001.arrow"
    first, second = one.read_bytes(), two.read_bytes()
    assert len(first) == len(second) and verify(tmp_path) == []
    one.write_bytes(second)
    two.write_bytes(first)
    found = faults_of(tmp_path)
    assert len(found) == 2 and all(
        "checksum" in fault and "was changed after it was written" in fault for fault in found
    )


def test_a_file_that_the_index_does_not_list(tmp_path) -> None:
    small_set(tmp_path)
    (tmp_path / "shard-00003.arrow").write_bytes((tmp_path / "shard-00000.arrow").read_bytes())
    assert verify(tmp_path) == [
        Fault("shard-00003.arrow", None, "lies among the shards, but the index does not list it")
    ]


def test_a_byte_that_flipped_anywhere_is_found(tmp_path) -> None:
    """And nothing that a damaged file says makes the reader raise or read what is not there."""
    small_set(tmp_path, shards=1, documents=20)
    path = tmp_path / "shard-00000.arrow"
    content = path.read_bytes()
    random.seed(5)
    for at in [*range(0, 64), *random.sample(range(len(content)), 300), *range(len(content) - 400, len(content))]:
        damaged = bytearray(content)
        damaged[at] ^= 1 << random.randrange(8)
        path.unlink()  # else the map of the file before would change with it
        path.write_bytes(damaged)
        assert verify(tmp_path), at
    path.write_bytes(content)
    assert verify(tmp_path) == []


def rewritten(folder, change, keep_facts: bool = False) -> list[str]:
    """Faults of a shard that somebody wrote wrong, with an index that agrees with it as far as it can."""
    made = small_set(folder, shards=1)
    table = table_of(made.meta, made.shards[0])
    columns = {name: table[name].to_pylist() for name in table.schema.names}
    change(columns)
    wrong = pa.table(
        {name: pa.array(values, table.schema.field(name).type) for name, values in columns.items()}, schema=table.schema
    )
    content = written(wrong)
    (folder / "shard-00000.arrow").write_bytes(content)
    facts = shard_facts(table if keep_facts else wrong)
    facts["sources"] = {name: facts["sources"][name] for name in shard_facts(wrong)["sources"]}
    facts |= {"path": "shard-00000.arrow", "bytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content)}
    (folder / "index.json").write_text(json.dumps(index_of(made.meta, [facts])))
    return faults_of(folder)


def put(column: str, row: int, value) -> object:
    def change(columns) -> None:
        columns[column][row] = value(columns[column][row]) if callable(value) else value

    return change


def all_of(*changes):
    def change(columns) -> None:
        for each in changes:
            each(columns)

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (put("input_ids", 5, lambda ids: [999, 1000, *ids[2:]]), "row 5: a token that is not in the vocabulary of 1,000"),
        (all_of(*(put("input_ids", row, [1000] * 16) for row in (5, 7, 9))), "row 5: a token that is not in the vocabulary of 1,000 (and 2 more rows after it)"),
        (put("bucket", 3, -2), "row 3: a bucket below -1"),
        (put("difficulty", 4, float("inf")), "row 4: a difficulty that is not finite"),
        (all_of(*(put(column, 6, []) for column in ("seq_lens", "doc_uids", "chunk", "source"))), "row 6: holds no document"),
        (put("seq_lens", 2, lambda lengths: [0] * len(lengths)), "row 2: a document of no tokens, or fewer"),
        (put("chunk", 2, lambda chunks: [-1] * len(chunks)), "row 2: a piece of a document with a number below 0"),
    ],
)  # fmt: skip
def test_rows_written_wrong_are_found_though_the_checksum_holds(tmp_path, change, fault) -> None:
    assert any(found.startswith(f"shard-00000.arrow: {fault}") for found in rewritten(tmp_path, change)), rewritten(
        tmp_path, change
    )


@pytest.mark.parametrize("at", ["directly", "at the end of the row"])
def test_what_follows_the_last_document_must_be_padding(tmp_path, at) -> None:
    rows = []

    def change(columns) -> None:
        rows.append(next(i for i, lengths in enumerate(columns["seq_lens"]) if sum(lengths) < 15))
        columns["input_ids"][rows[0]][sum(columns["seq_lens"][rows[0]]) if at == "directly" else -1] = 0

    assert rewritten(tmp_path, change) == [
        f"shard-00000.arrow: row {rows[0]}: what follows its last document is not padding (1)"
    ]


def test_rows_with_too_many_tokens(tmp_path) -> None:
    found = rewritten(tmp_path, put("seq_lens", 3, lambda lengths: [100, *lengths[1:]]), keep_facts=True)
    assert "shard-00000.arrow: row 3: its documents have more than 16 tokens together" in found
    assert any("tokens, the index says" in fault for fault in found) and any(
        "padding, the index says" in fault for fault in found
    )


def test_a_piece_that_is_missing(tmp_path) -> None:
    """The first piece of a cut document, or one in its middle; what an index with the right counts knows is found too."""

    def change(columns) -> None:
        row = next(i for i, chunks in enumerate(columns["chunk"]) if 1 in chunks)
        at = columns["chunk"][row].index(1)
        columns["chunk"][row][at] = 2

    found = rewritten(tmp_path, change)
    assert len(found) == 1 and "without piece 1 in this shard" in found[0] and ": row " in found[0]


def test_a_document_of_two_sources(tmp_path) -> None:
    def change(columns) -> None:
        row = next(i for i, chunks in enumerate(columns["chunk"]) if 1 in chunks)
        at = columns["chunk"][row].index(1)
        columns["source"][row][at] = {"web": "code", "code": "books", "books": "web"}[columns["source"][row][at]]

    assert any("has two sources" in fault for fault in rewritten(tmp_path, change))


def test_an_index_that_is_wrong_is_one_fault(tmp_path) -> None:
    small_set(tmp_path)
    (tmp_path / "index.json").write_text("{")
    assert len(verify(tmp_path)) == 1 and "not JSON" in faults_of(tmp_path)[0]
    assert "no index.json here" in faults_of(tmp_path / "nowhere")[0]


def test_counts_of_the_index_are_held_against_the_shards(tmp_path) -> None:
    made = small_set(tmp_path)
    facts = json.loads((tmp_path / "index.json").read_text())
    facts["shards"][1]["documents"] += 1
    facts["documents"] += 1
    facts["sources"][0]["tokens"] += 1
    facts["sources"][1]["tokens"] -= 1
    (tmp_path / "index.json").write_text(json.dumps(facts))
    found = faults_of(made.folder)
    assert found[0] == "shard-00001.arrow: 60 documents, the index says 61"
    assert len(found) == 3 and all("its shards hold" in fault for fault in found[1:])


def test_lists_that_do_not_fit_together(tmp_path) -> None:
    found = rewritten(tmp_path, put("chunk", 3, []), keep_facts=True)
    assert found[0] == "shard-00000.arrow: record batch 0: chunk has not as many values in each row as seq_lens"


def test_a_schema_of_another_vocabulary(tmp_path) -> None:
    made = small_set(tmp_path, shards=1)
    table = table_of(made.meta, made.shards[0])
    other = dataclasses.replace(made.meta, vocab_size=999)
    content = written(table.replace_schema_metadata(schema_of(other, ()).metadata))
    (tmp_path / "shard-00000.arrow").write_bytes(content)
    facts = {
        **shard_facts(table),
        "path": "shard-00000.arrow",
        "bytes": len(content),
        "checksum": xxhash.xxh3_128_hexdigest(content),
    }
    (tmp_path / "index.json").write_text(json.dumps(index_of(made.meta, [facts])))
    assert (
        faults_of(tmp_path)[0]
        == "shard-00000.arrow: made in another way than the index says (vocab_size 999, not 1000)"
    )
