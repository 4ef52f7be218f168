"""Rows are views of the mapped file; what is not whole is refused in words; an index of somebody else's is not
believed."""

from __future__ import annotations

import json
import pickle
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gristmill.kernels.rows.pack import concatenate
from gristmill.shards.format import BadShards
from gristmill.shards.reader import open_shards
from tests.shards.shard_sets import SOURCES, documents_of, meta_of, small_set, table_of, write_set, written


def mapped_ranges(name: str) -> list[tuple[int, int]]:
    with Path("/proc/self/maps").open() as maps:
        lines = [line for line in maps if line.rstrip().endswith(name)]
    return [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in lines]  # type: ignore[misc]


def inside(array: np.ndarray, ranges: list[tuple[int, int]]) -> bool:
    first = array.__array_interface__["data"][0]
    return any(low <= first and first + array.nbytes <= high for low, high in ranges)


def test_rows_are_what_was_written(tmp_path) -> None:
    made = small_set(tmp_path / "set")
    shards = open_shards(made.folder)
    expected = [row for documents in made.shards for row in table_of(made.meta, documents).to_pylist()]
    assert len(shards) == len(expected) > 100 and shards.sources == SOURCES
    for row, wanted in zip(shards, expected, strict=True):
        assert row.input_ids.tolist() == wanted["input_ids"] and row.seq_lens.tolist() == wanted["seq_lens"]
        assert row.doc_uids.tolist() == wanted["doc_uids"] and row.chunk.tolist() == wanted["chunk"]
        assert [SOURCES[source] for source in row.source] == wanted["source"] and row.bucket == wanted["bucket"]
        assert np.isnan(row.difficulty) if wanted["difficulty"] is None else row.difficulty == wanted["difficulty"]
    assert shards[-1].input_ids.tolist() == expected[-1]["input_ids"]
    with pytest.raises(IndexError, match="there are"):
        shards.row(len(shards))
    with pytest.raises(TypeError, match=r"not a slice: take\(range\(start, stop\)\)"):
        shards[1:3]
    assert shards.take(range(1, 3)).input_ids.tolist() == shards.rows(1, 3).tolist()


@pytest.mark.parametrize(
    "numbers", [range(0), [5], range(3, 9), [9, 8, 7], [0, 0, 70, 1, 2, 3, 140, 70], range(30, 90)]
)
def test_any_rows_can_be_taken(tmp_path, numbers) -> None:
    """In one shard, over the edge of one, twice the same, none at all."""
    shards = open_shards(small_set(tmp_path).folder)
    taken = shards.take(list(numbers))
    assert taken.input_ids.shape == (len(numbers), 16) and taken.first_piece[0] == 0
    for i, number in enumerate(numbers):
        for found, wanted in zip(taken.row(i), shards.row(number), strict=True):
            assert np.array_equal(found, wanted, equal_nan=isinstance(wanted, float))
    out = np.zeros((len(numbers), 16), np.uint16)
    assert shards.take(list(numbers), out).input_ids is out and np.array_equal(out, taken.input_ids)
    with pytest.raises(IndexError):
        shards.take([0, len(shards)])
    with pytest.raises(IndexError):
        shards.take([-1])


def test_nothing_is_copied(tmp_path) -> None:
    shards = open_shards(small_set(tmp_path, documents=400).folder)
    row, several = shards.row(3), shards.rows(10, 20)
    ranges = mapped_ranges("shard-00000.arrow")
    assert ranges and inside(several, ranges) and not inside(several.copy(), ranges)
    for array in (row.input_ids, row.seq_lens, row.doc_uids, row.chunk, row.source):
        assert inside(array, ranges) and not array.flags.writeable
    assert np.shares_memory(shards.rows(3, 4), row.input_ids)
    block = next(shards.blocks())
    assert np.shares_memory(block.input_ids, row.input_ids) and inside(block.input_ids, ranges)


def test_more_shards_than_files_that_may_be_open(tmp_path) -> None:
    """And an array outlives the set that it came from."""
    meta = meta_of()
    made = write_set(tmp_path, meta, [documents_of(3, 9, 1000, seed) for seed in range(80)])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())  # of other tests of this process too
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, before[1]))
        shards = open_shards(made.folder)
        total = sum(int(row.seq_lens.sum()) for row in shards)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert total == sum(len(documents.tokens) for documents in made.shards)
    ids = shards.row(0).input_ids
    kept = ids.tolist()
    del shards
    assert ids.tolist() == kept


@pytest.mark.parametrize("packer", ["best", "concatenate"])
def test_documents_come_back_whole(tmp_path, packer) -> None:
    made = small_set(tmp_path, **({"packer": concatenate} if packer == "concatenate" else {}))
    found = list(open_shards(tmp_path).documents())
    wanted = {
        int(uid): (SOURCES[source], documents.tokens[start:end].tolist())
        for documents in made.shards
        for uid, source, start, end in zip(
            documents.uid, documents.source, documents.offsets, documents.offsets[1:], strict=False
        )
    }
    assert len(found) == len(wanted) == 180
    assert {document.uid: (SOURCES[document.source], document.tokens.tolist()) for document in found} == wanted
    assert any(len(document.tokens) > 16 for document in found)


def test_a_set_shows_what_is_in_it(tmp_path) -> None:
    made = small_set(tmp_path)
    shown = repr(open_shards(made.folder))
    documents = sum(len(shard.uid) for shard in made.shards)
    tokens = sum(len(shard.tokens) for shard in made.shards)
    rows = len(open_shards(made.folder))
    assert shown == (
        f"<ShardSet {made.folder}: {rows:,} rows of 16 tokens; {documents:,} documents, {tokens:,} tokens of"
        " web, code, books; tokenizer tiny>"
    )
    assert rows > 10 and documents > 10


def test_a_set_goes_to_another_process_by_name(tmp_path) -> None:
    shards = open_shards(small_set(tmp_path).folder)
    shards.row(0)
    sent = pickle.dumps(shards)
    assert len(sent) < 5000 and pickle.loads(sent).row(5).doc_uids.tolist() == shards.row(5).doc_uids.tolist()


def test_the_fingerprint_is_of_contents_and_not_of_names(tmp_path) -> None:
    one, same, other = (
        open_shards(small_set(tmp_path / name, documents=count).folder)
        for name, count in (("a", 60), ("b", 60), ("c", 61))
    )
    assert one.fingerprint == same.fingerprint != other.fingerprint


def changed_index(folder, change) -> None:
    path = folder / "index.json"
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


@pytest.mark.parametrize(
    "path",
    ["../shard-00000.arrow", "/etc/passwd", "a/../../b", "..", "", ".", "a\\b", "a//b", "./a", "a\0b", "a\nb", 5, None],
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, path) -> None:
    made = small_set(tmp_path)
    changed_index(made.folder, lambda facts: facts["shards"][1].update(path=path))
    with pytest.raises(BadShards, match=r"index.json: shards\[1\]: "):
        open_shards(made.folder)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda facts: facts["shards"][0].update(rows=-1), r"shards\[0\].rows: -1 is not a count"),
        (lambda facts: facts["shards"][0].update(rows=1e9), r"shards\[0\].rows: 1000000000.0 is not a count"),
        (lambda facts: facts["shards"][0].update(rows=True), "True is not a count"),
        (lambda facts: facts["shards"][0].update(rows=1 << 70), "is not a count"),
        (lambda facts: facts["shards"][0].update(tokens=5), "5 tokens and .* of padding are not"),
        (lambda facts: facts["shards"].pop(), "rows is .*, but its shards add up to"),
        (lambda facts: facts["shards"][1].update(path="shard-00000.arrow"), "shard-00000.arrow is listed 2 times"),
        (lambda facts: facts.update(rows=1), "rows is 1, but its shards add up to"),
        (lambda facts: facts.update(format="x"), "not an index of token shards"),
        (lambda facts: facts.update(version=2), "token shards of version 2, this program reads up to version 1"),
        (lambda facts: facts["meta"].update(version=9), "meta: token shards of version 9"),
        (lambda facts: facts.update(shards={}), "must be lists"),
        (lambda facts: facts["sources"][0].update(tokens=1), "sources hold"),
        (lambda facts: facts["sources"].append({"name": "web", "tokens": 0}), "a source is listed twice"),
        (lambda facts: facts.update(segments=[0, 10**9]), "segments must rise from 0 and stay below"),
        (lambda facts: facts.update(segments=[5]), "segments must rise from 0"),
        (lambda facts: facts["shards"].insert(0, []), "a shard has a path"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path, change, wrong) -> None:
    made = small_set(tmp_path)
    changed_index(made.folder, change)
    with pytest.raises(BadShards, match=wrong):
        open_shards(made.folder)


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"null", b"\xff\xfe", b'{"format": NaN}'])
def test_what_is_no_index_is_refused(tmp_path, text) -> None:
    (tmp_path / "index.json").write_bytes(text)
    with pytest.raises(BadShards, match=r"index.json"):
        open_shards(tmp_path)


def test_a_folder_without_shards_is_refused_in_words(tmp_path) -> None:
    with pytest.raises(BadShards, match=r"no index.json here; a set of shards is a folder with one"):
        open_shards(tmp_path)
    with pytest.raises(BadShards, match="must lie in a local folder; copy them there first"):
        open_shards("s3://bucket/shards")


def test_shards_that_do_not_belong_together_are_refused(tmp_path) -> None:
    made = small_set(tmp_path)
    other = written(table_of(meta_of(17), made.shards[1]))
    (tmp_path / "shard-00001.arrow").write_bytes(other)
    changed_index(
        tmp_path,
        lambda facts: (
            facts["shards"][1].update(bytes=len(other)),
            facts.update(bytes=sum(s["bytes"] for s in facts["shards"])),
        ),
    )
    shards = open_shards(tmp_path)
    assert shards.row(0).seq_lens.sum() > 0
    with pytest.raises(
        BadShards, match=r"shard-00001.arrow: made in another way than the index says .row_length 17, not 16"
    ):
        shards.row(len(shards) // 2)


def test_a_missing_and_a_short_shard_are_named(tmp_path) -> None:
    made = small_set(tmp_path)
    content = (tmp_path / "shard-00000.arrow").read_bytes()
    (tmp_path / "shard-00000.arrow").write_bytes(content[:-100])
    (tmp_path / "shard-00002.arrow").unlink()
    shards = open_shards(made.folder)
    with pytest.raises(
        BadShards,
        match=rf"shard-00000.arrow: {len(content) - 100:,} bytes, the index says {len(content):,}; was it cut off",
    ):
        shards.row(0)
    with pytest.raises(BadShards, match=r"shard-00002.arrow: missing, but the index lists it"):
        shards.row(len(shards) - 1)


def test_an_arrow_file_with_other_columns_is_refused(tmp_path) -> None:
    made = small_set(tmp_path)
    table = table_of(made.meta, made.shards[0]).drop_columns(["chunk"])
    with pa.OSFile(str(tmp_path / "shard-00000.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    size = (tmp_path / "shard-00000.arrow").stat().st_size
    changed_index(
        tmp_path,
        lambda facts: (
            facts["shards"][0].update(bytes=size),
            facts.update(bytes=sum(s["bytes"] for s in facts["shards"])),
        ),
    )
    with pytest.raises(BadShards, match="its columns are not those of a token shard"):
        open_shards(tmp_path).row(0)
