"""A shard holds every token of every document, padding where there is none, and what was used to make it; equal rows
are equal bytes."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.rows.pack import Packed, concatenate, one_each
from gristmill.shards.format import KEY, BadShards, Documents, ShardMeta, batch_rows, dtype_of, schema_of, shard_table
from gristmill.shards.index import read_index
from gristmill.shards.writer import ALIGNMENT, index_of, shard_facts
from tests.shards.shard_sets import SOURCES, best, documents_of, meta_of, small_set, table_of, written


def test_tokens_take_two_bytes_where_every_id_fits() -> None:
    assert dtype_of(65_536) == np.uint16 and dtype_of(65_537) == np.uint32
    assert schema_of(meta_of(8, 65_536), SOURCES).field("input_ids").type.value_type == pa.uint16()
    assert schema_of(meta_of(8, 65_537), SOURCES).field("input_ids").type == pa.list_(
        pa.field("item", pa.uint32(), False), 8
    )


def rows_by_hand(meta: ShardMeta, documents: Documents, packed: Packed) -> list[dict]:
    """Slowly: each row out of its pieces."""
    rows: list[dict] = [
        {"input_ids": [], "seq_lens": [], "doc_uids": [], "chunk": [], "source": [], "of": []}
        for _ in range(packed.rows)
    ]
    pieces = list(zip(*(column.tolist() for column in packed[:-1]), strict=True))
    starts = {d: sorted(start for _, _, other, start, _ in pieces if other == d) for d in packed.document.tolist()}
    for row, _, d, start, length in pieces:
        made, first = rows[row], int(documents.offsets[d]) + start
        made["input_ids"] += documents.tokens[first : first + length].tolist()
        made["seq_lens"].append(length)
        made["doc_uids"].append(int(documents.uid[d]))
        made["chunk"].append(starts[d].index(start))
        made["source"].append(SOURCES[documents.source[d]])
        made["of"].append(d)
    for made in rows:
        of = made.pop("of")
        made["input_ids"] += [meta.pad_id] * (meta.row_length - len(made["input_ids"]))
        made["bucket"] = max(int(documents.bucket[d]) for d in of)
        known = [
            (float(documents.difficulty[d]), n)
            for d, n in zip(of, made["seq_lens"], strict=True)
            if not np.isnan(documents.difficulty[d])
        ]
        made["difficulty"] = sum(value * n for value, n in known) / sum(n for _, n in known) if known else None
    return rows


@given(
    st.integers(0, 40),
    st.integers(1, 20),
    st.integers(0, 99),
    st.sampled_from([best, concatenate, one_each]),
    st.sampled_from([900, 70_000]),
)
def test_rows_hold_what_the_packer_put_there(count, row_length, seed, packer, vocab_size):
    meta, documents = meta_of(row_length, vocab_size), documents_of(count, 9, vocab_size, seed)
    packed = packer(np.diff(documents.offsets), row_length)
    table = shard_table(meta, SOURCES, documents, packed)
    table.validate(full=True)
    found, expected = table.to_pylist(), rows_by_hand(meta, documents, packed)
    assert [row.pop("difficulty") for row in found] == [
        None if row["difficulty"] is None else pytest.approx(row["difficulty"], rel=1e-6) for row in expected
    ]
    assert found == [{name: value for name, value in row.items() if name != "difficulty"} for row in expected]
    facts = shard_facts(table)
    assert facts["tokens"] == len(documents.tokens) == sum(facts["sources"].values())
    assert facts["documents"] == count and facts["pieces"] == len(packed.row) and facts["rows"] == packed.rows
    assert facts["tokens"] + facts["padding"] == packed.rows * row_length
    by_source = np.bincount(documents.source, np.diff(documents.offsets), len(SOURCES)).tolist()
    assert list(facts["sources"].values()) == by_source and list(facts["sources"]) == list(SOURCES)


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    documents = documents_of(5, 9, 1000, 1)
    with pytest.raises(
        ValueError, match=r"token \d+ is not in the vocabulary of 500: is the tokenizer the one that was named\?"
    ):
        table_of(meta_of(vocab_size=500), documents)
    beyond = documents._replace(tokens=np.full_like(documents.tokens, 500))
    assert len(table_of(meta_of(vocab_size=501), beyond)) > 0
    with pytest.raises(ValueError, match="token 500 is not in the vocabulary of 500"):
        table_of(meta_of(vocab_size=500), beyond)
    with pytest.raises(ValueError, match="tokens are uint16, but a vocabulary of 70,000 is stored as uint32"):
        table_of(meta_of(vocab_size=70_000), documents)
    with pytest.raises(ValueError, match="a document of source 3: there are 3"):
        table_of(meta_of(), documents._replace(source=np.full(5, 3)))


@pytest.mark.parametrize("row_length", [16, 37, 4096])
def test_equal_rows_are_equal_bytes_in_aligned_batches(row_length) -> None:
    """Also if the table comes in several chunks."""
    meta, documents = meta_of(row_length), documents_of(3000, 9, 1000, 3)
    documents = documents._replace(tokens=np.tile(documents.tokens, 400), offsets=documents.offsets * 400)
    table = table_of(meta, documents)
    content = written(table)
    assert content == written(table) == written(pa.concat_tables([table.slice(0, 5), table.slice(5)]))
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        each = batch_rows(row_length)
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        assert len(sizes) >= 3 and set(sizes[:-1]) == {each} and 0 < sizes[-1] <= each and sum(sizes) == len(table)
        base = pa.py_buffer(content).address
        for i in range(len(sizes)):
            assert (reader.get_batch(i).column("input_ids").values.buffers()[1].address - base) % ALIGNMENT == 0
        assert reader.read_all().equals(table)
        assert reader.schema.metadata[KEY] == json.dumps(meta.facts(), sort_keys=True).encode()


def test_a_shard_without_rows_can_be_written_and_read() -> None:
    content = written(table_of(meta_of(), documents_of(0, 9, 1000, 3)))
    with pa.ipc.open_file(io.BytesIO(content)) as reader:
        assert reader.read_all().num_rows == 0


def test_meta_comes_back_from_the_schema() -> None:
    meta = dataclasses.replace(meta_of(), bos_id=5, tokenizer="日本語")
    assert ShardMeta.from_schema(schema_of(meta, SOURCES), "here") == meta


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"version": 2}, "token shards of version 2, this program reads up to version 1; update gristmill"),
        ({"version": None}, "None is no version"),
        ({"version": True}, "True is no version"),
        ({"pad_id": 1000}, "pad_id 1000 is not in the vocabulary of 1,000"),
        ({"pad_id": None}, "pad_id must be a whole number"),
        ({"eos_id": -1}, "eos_id -1 is not in the vocabulary"),
        ({"eos_id": "0"}, "eos_id '0' is not in the vocabulary"),
        ({"row_length": 0}, "rows of 0 tokens"),
        ({"row_length": 1 << 40}, "rows of 1,099,511,627,776 tokens"),
        ({"vocab_size": 1 << 33}, "a vocabulary of"),
        ({"vocab_size": 5.5}, "vocab_size must be a whole number"),
        ({"tokenizer": 3}, "tokenizer must be text"),
    ],
)
def test_facts_that_cannot_be_are_refused(change, wrong) -> None:
    with pytest.raises(BadShards, match="^somewhere: .*" + wrong.split(":")[0].replace("(", r"\(")):
        ShardMeta.from_facts({**meta_of().facts(), **change}, "somewhere")


def test_facts_that_are_missing_are_named() -> None:
    facts = meta_of().facts()
    del facts["seed"], facts["packer"]
    with pytest.raises(BadShards, match="packer, seed missing"):
        ShardMeta.from_facts(facts, "here")
    with pytest.raises(BadShards, match="an Arrow file, but not a token shard"):
        ShardMeta.from_schema(pa.schema([("a", pa.int8())]), "here")


def test_the_index_adds_up(tmp_path) -> None:
    made = small_set(tmp_path, segments=(0, 7))
    index = read_index((tmp_path / "index.json").read_bytes(), "here")
    assert index.meta == made.meta and len(index.shards) == 3 and index.segments == (0, 7)
    assert (
        index.total("tokens") == sum(len(documents.tokens) for documents in made.shards) == sum(index.sources.values())
    )
    assert index.total("documents") == 180
    facts = [{**dataclasses.asdict(shard), "sources": {"web": 0}} for shard in index.shards]
    assert index_of(made.meta, facts)["sources"] == [{"name": "web", "tokens": 0}]
    with pytest.raises(ValueError, match="must know the same sources"):
        index_of(made.meta, [facts[0], {**facts[1], "sources": {"code": 0}}])
    with pytest.raises(BadShards, match="segments must rise from 0"):
        index_of(made.meta, facts, (3, 7))
