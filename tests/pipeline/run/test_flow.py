"""Every round of `Flow`, by a toy stage that has a reference implementation; with few buckets and many."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import xxhash

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.shuffle import shuffle
from tests.pipeline.runs import go, save, shared_texts, written

TOY = '''
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from gristmill.stages.stage import Global

class Rare(Global):
    """Drops texts that occur once, and says of each text how many letters it has and how many documents there are."""

    def run(self, docs, flow):
        keys = flow.map(self.sign, docs, columns=("uid", "text"), by="key")
        assert flow.gather(keys).num_rows == docs.rows
        total = flow.gather(flow.combine(self.add, flow.map(self.one, docs, columns=("uid",), by="key"), by="key"))
        assert total["n"].to_pylist() == [docs.rows]
        sizes = flow.reduce(self.sizes, keys)
        return flow.drop(docs, flow.join(self.letters, sizes, docs, columns=("uid", "text")))

    def sign(self, docs):
        return pa.table({"uid": docs["uid"], "key": pa.array([xxhash.xxh3_64_intdigest(t.as_py().encode()) for t in docs["text"]], pa.uint64())})

    def one(self, docs):
        return pa.table({"n": pa.array([len(docs)], pa.int64()), "key": pa.array([0], pa.uint64())})

    def add(self, tables):
        return pa.table({"n": pa.array([sum(pc.sum(t["n"]).as_py() for t in tables)], pa.int64()), "key": pa.array([0], pa.uint64())})

    def sizes(self, rows):
        key = rows["key"].to_numpy()
        values, at, counts = np.unique(key, return_inverse=True, return_counts=True)
        return pa.table({"home": rows["home"], "uid": rows["uid"], "size": pa.array(counts[at])})

    def letters(self, rows, docs):
        text = dict(zip(docs["uid"].to_pylist(), docs["text"].to_pylist()))
        reason = pc.if_else(pc.equal(rows["size"], 1), "rare", pa.scalar(None, pa.string()))
        length = [len(text[u]) for u in rows["uid"].to_pylist()]
        return pa.table({"home": rows["home"], "uid": rows["uid"], "reason": reason, "detail": reason, "size": rows["size"],
                         "letters": pa.array(length, pa.int64())})
'''


@pytest.mark.parametrize(
    ("rows_a_bucket", "parts_alone", "most_slices"),
    [(500_000, 1024, 1 << 16), (5, 1024, 1 << 16), (5, 2, 1 << 16), (5, 1024, 8)],
)
def test_a_toy_stage_equals_its_plain_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_bucket: int, parts_alone: int, most_slices: int
) -> None:
    monkeypatch.setattr(shuffle, "MOST_SLICES", most_slices)
    monkeypatch.setattr(shuffle, "ROWS_A_BUCKET", rows_a_bucket)
    monkeypatch.setattr(shuffle, "PARTS_ALONE", parts_alone)
    shared_texts(tmp_path / "in", files=10)
    save(tmp_path / "my_global.py", TOY)
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nparts: {files: 1}\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - write: {name: all}\n  - my_global.py:Rare\n  - write\n",
    )
    _, anew = go(recipe, tmp_path / "out")
    everything = written(tmp_path / "out", "all")
    times = Counter(text for _, text in everything)
    reference = sorted((u, t, times[t], len(t)) for u, t in everything if times[t] > 1)
    found = [r for p in (tmp_path / "out" / "write").glob("*.parquet") for r in pq.read_table(p).to_pylist()]
    assert sorted((r["uid"], r["text"], r["size"], r["letters"]) for r in found) == reference and len(reference) == 30
    kinds = {kind for node, kind in anew if node == "rare"}
    assert kinds == {"map", "reduce", "join", "combine", "drop"} | ({"regroup"} if most_slices == 8 else set())
    assert anew["rare", "reduce"] > 1


OTHER = '''
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from gristmill.stages.stage import Global

class Numbered(Global):
    """Puts the number of each document, in order of uid, before its text; drops every seventh; says how many have its text."""

    rewrites = True
    index: str

    def run(self, docs, flow):
        keys = flow.map(self.sign, docs, columns=("uid", "text"), by="uid")
        flow.run.save(keys, self.index, {"made by": "numbered"}, docs=docs)
        saved, facts = flow.run.load(self.index)
        assert facts == {"made by": "numbered"} and saved.count == keys.count
        numbers = flow.scan(self.number, keys, by="uid")
        sizes = flow.reduce(self.sizes, flow.reduce(self.by_key, keys, by="key") + flow.reduce(self.by_key, saved, by="key"), by="uid")
        return flow.rewrite(self.put, flow.reduce(self.together, numbers, sizes), docs, columns=("uid", "text"))

    def sign(self, docs):
        return pa.table({"uid": docs["uid"], "key": pa.array([xxhash.xxh3_64_intdigest(t.as_py().encode()) for t in docs["text"]], pa.uint64())})

    def by_key(self, rows):
        return rows

    def number(self, tables):
        last = 0
        for table in tables:
            yield table.append_column("number", pa.array(np.arange(last, last + len(table))))
            last += len(table)

    def sizes(self, rows):
        values, at, counts = np.unique(rows["key"].to_numpy(), return_inverse=True, return_counts=True)
        return pa.table({"uid": rows["uid"], "size": pa.array(counts[at])})

    def together(self, numbers, sizes):
        return numbers.join(pa.table({"uid": sizes["uid"], "size": sizes["size"]}).group_by("uid").aggregate([("size", "max")]), "uid")

    def put(self, rows, docs):
        rows = rows.take(pc.index_in(docs["uid"], value_set=rows["uid"].combine_chunks()))
        text = pc.binary_join_element_wise(pc.cast(rows["number"], pa.string()), docs["text"], " ")
        seventh = pa.array(rows["number"].to_numpy() % 7 == 0)
        nothing = pa.scalar(None, pa.string())
        return pa.table({"uid": docs["uid"], "text": text, "reason": pc.if_else(seventh, "seventh", nothing), "detail": pc.if_else(seventh, "a detail", nothing),
                         "size": rows["size_max"]})
'''


@pytest.mark.parametrize("rows_a_bucket", [500_000, 5])
def test_texts_written_anew_by_a_toy_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_bucket: int) -> None:
    """`scan`, `reduce` of two kinds, rows of two rounds, `save`, `load` and `rewrite`."""
    monkeypatch.setattr(shuffle, "ROWS_A_BUCKET", rows_a_bucket)
    shared_texts(tmp_path / "in", files=10)
    save(tmp_path / "my_global.py", OTHER)
    recipe = save(
        tmp_path / "r.yaml",
        f"name: r\nparts: {{files: 1}}\nsources:\n  a: {{jsonl: {{path: in}}}}\nstages:\n  - write: {{name: all}}\n  - my_global.py:Numbered: {{index: {tmp_path / 'index'}}}\n  - write\n",
    )
    go(recipe, tmp_path / "out")
    everything = sorted(written(tmp_path / "out", "all"))
    times = Counter(text for _, text in everything)
    reference = [(u, f"{n} {t}", 2 * times[t]) for n, (u, t) in enumerate(everything) if n % 7]
    found = [r for p in (tmp_path / "out" / "write").glob("*.parquet") for r in pq.read_table(p).to_pylist()]
    assert sorted((r["uid"], r["text"], r["size"]) for r in found) == reference and len(reference) > 30
    gone = [
        r
        for p in (tmp_path / "out" / "stages" / "numbered" / "rejects").glob("*.parquet")
        for r in pq.read_table(p).to_pylist()
    ]
    assert sorted((r["uid"], r["text"], r["reason"], r["detail"]) for r in gone) == [
        (u, t, "seventh", "a detail") for n, (u, t) in enumerate(everything) if n % 7 == 0
    ]


def test_a_stage_that_writes_texts_anew_must_say_so(tmp_path: Path) -> None:
    shared_texts(tmp_path / "in", files=2)
    save(tmp_path / "my_global.py", OTHER.replace("    rewrites = True\n", ""))
    text = f"name: r\nsources:\n  a: {{jsonl: {{path: in}}}}\nstages:\n  - my_global.py:Numbered: {{index: {tmp_path / 'index'}}}\n"
    with pytest.raises(RunFailed, match="numbered: a stage that writes texts anew says so"):
        go(save(tmp_path / "r.yaml", text), tmp_path / "out")


MARKING = '''
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gristmill.stages.stage import Global

class Lengths(Global):
    """Says of each text how long it is, and which share of all texts are shorter; drops the longest."""

    def run(self, docs, flow):
        assert flow.run.shared("longest") is None
        found = flow.combine(self.most, flow.map(self.longest, docs, columns=("uid", "text", "no_such_column"), by="key"), by="key")
        flow.report("longest", flow.gather(found)["length"][0].as_py())
        flow.run.leave("left/longest.txt", str(flow.gather(found)["length"][0].as_py()))
        return flow.mark(self.length, docs, columns=("uid", "text", "no_such_column"), broadcast=found)

    def longest(self, docs):
        assert docs.column_names == ["uid", "text"]
        return pa.table({"length": [pc.max(pc.utf8_length(docs["text"])).as_py()], "key": pa.array([0], pa.uint64())})

    def most(self, tables):
        return pa.table({"length": [max(pc.max(t["length"]).as_py() for t in tables)], "key": pa.array([0], pa.uint64())})

    def length(self, docs, longest):
        length = pc.utf8_length(docs["text"])
        reason = pc.if_else(pc.equal(length, longest["length"][0]), "longest", pa.scalar(None, pa.string()))
        return pa.table({"uid": docs["uid"], "reason": reason, "detail": pa.nulls(len(docs), pa.string()), "length": length})


class Hears(Global):
    """Hears what the stage before it told, and gives each text a number from a table of its own."""

    def run(self, docs, flow):
        table = pa.table({"add": [flow.run.shared("longest")]})
        return flow.mark(self.sum, docs, columns=("uid", "length"), broadcast=table)

    def sum(self, docs, table):
        none = pa.nulls(len(docs), pa.string())
        return pa.table({"uid": docs["uid"], "reason": none, "detail": none, "sum": pc.add(docs["length"], table["add"][0])})
'''


@pytest.mark.parametrize("parts_alone", [1024, 2])
def test_documents_are_marked_beside_a_table_and_a_later_stage_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts_alone: int
) -> None:
    monkeypatch.setattr(shuffle, "PARTS_ALONE", parts_alone)
    shared_texts(tmp_path / "in", files=10)
    save(tmp_path / "toy.py", MARKING)
    recipe = save(
        tmp_path / "r.yaml",
        "name: toy\nparts: {files: 1}\nsources: {t: {jsonl: {path: in}}}\nstages:\n  - write: {name: all}\n  - toy.py:Lengths\n  - toy.py:Hears\n  - write\n",
    )
    summary, _ = go(recipe, tmp_path / "out")
    texts = [text for _, text in written(tmp_path / "out", "all")]
    longest = max(len(text) for text in texts)
    found = [r for p in (tmp_path / "out" / "write").glob("*.parquet") for r in pq.read_table(p).to_pylist()]
    assert len(found) == sum(len(text) < longest for text in texts) > 0
    assert all(row["length"] == len(row["text"]) and row["sum"] == row["length"] + longest for row in found)
    assert (tmp_path / "out/left/longest.txt").read_text() == str(longest)
    lengths = next(s for s in summary.record.to_json()["stages"] if s["name"] == "lengths")
    assert lengths["dropped"] == {"longest": len(texts) - len(found)}
    [table] = (tmp_path / "out/shuffle").rglob("*-table-*.arrow")
    stamp = table.stat()
    assert xxhash.xxh3_128_hexdigest(table.read_bytes()).startswith(table.stem.rsplit("-", 1)[1])
    _, anew = go(recipe, tmp_path / "out")
    assert not anew and (table.stat().st_ino, table.stat().st_mtime_ns) == (
        stamp.st_ino,
        stamp.st_mtime_ns,
    )  # nor written again
