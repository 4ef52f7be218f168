"""All files that a sink writes have the same columns, whatever happened to be told of the documents in each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.plan.sink_columns import as_text, columns_of_all, filled, from_text
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.store.parts import new_part
from gristmill.pipeline.store.store import Store
from gristmill.pipeline.store.writing import write_table
from tests.pipeline.runs import go, lines, save

OWN = """
from typing import ClassVar
import pyarrow as pa
from gristmill.stages.stage import Annotate

class Marked(Annotate):
    adds: ClassVar = ("mark",)
    def annotate(self, batch):
        return {"mark": pa.array([0.5] * len(batch))}
"""


def test_parts_without_duplicates_and_sources_without_a_signal_have_the_columns_of_all(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one text", "one text", "a second"])
    lines(tmp_path / "in" / "b.jsonl", ["a third", "a fourth"])
    lines(tmp_path / "more" / "c.jsonl", ["a fifth"])
    save(tmp_path / "own.py", OWN)
    sources = "  a: {jsonl: {path: in}}\n  b: {jsonl: {path: more}, stages: [own.py:Marked]}\n"
    recipe = save(
        tmp_path / "r.yaml",
        f"name: r\nparts: {{files: 1}}\nsources:\n{sources}stages:\n  - write: {{name: first}}\n  - exact_dedup\n  - write\n",
    )
    go(recipe, tmp_path / "out")
    for folder, signals in (("first", ["mark"]), ("write", ["exact_cluster_size", "mark"])):
        files = sorted((tmp_path / "out" / folder).glob("*.parquet"))
        schemas = [pq.read_schema(file) for file in files]
        assert len(files) == 3 and all(schema == schemas[0] for schema in schemas)
        assert schemas[0].names[10:] == signals
    found = pa.concat_tables(pq.read_table(file) for file in files).to_pylist()
    told = {row["text"]: (row["exact_cluster_size"], row["mark"]) for row in found}
    assert told == {
        "one text": (2, None),
        "a second": (None, None),
        "a third": (None, None),
        "a fourth": (None, None),
        "a fifth": (None, 0.5),
    }


@pytest.mark.parametrize(("own", "legs"), [("", ["a", "b"]), (", stages: [own.py:Marked]", ["a", "b", "write"])])
def test_sources_that_are_measured_alike_are_written_where_they_are_read(
    tmp_path: Path, own: str, legs: list[str]
) -> None:
    save(tmp_path / "own.py", OWN)
    recipe = save(
        tmp_path / "r.yaml",
        f"name: r\nsources:\n  a: {{jsonl: {{path: in}}}}\n  b: {{jsonl: {{path: in}}{own}}}\nstages: [write]\n",
    )
    assert [node.name for node in make_plan(recipes.load(recipe)).nodes] == legs


def test_types_are_those_that_hold_all_values(tmp_path: Path) -> None:
    store, parts = Store(str(tmp_path)), []
    for name, values in (("x", pa.array([1], pa.int32())), ("y", pa.array([0.5])), ("z", pa.array(["text"]))):
        table = pa.table(
            {
                "uid": pa.array([1], pa.uint64()),
                "text": ["t"],
                "both": values if name != "z" else pa.array([None]),
                "odd": values,
            }
        )
        parts.append(new_part(name, "s", 1, 1, write_table(store, f"{name}.parquet", table), []))
    columns = columns_of_all(store, parts, {})
    assert columns == pa.schema([("both", pa.float64())])  # of `odd` nothing holds texts and numbers
    assert columns == from_text(as_text(columns)) == columns_of_all(store, parts[::-1], {})
    batch = filled(pa.RecordBatch.from_pydict({"both": pa.array([1], pa.int32()), "odd": [1]}), columns)
    assert (
        batch.schema.names == ["both", "odd"]
        and batch.column("both").to_pylist() == [1.0]
        and batch.schema.field("both").type == pa.float64()
    )
    parts[0]["kept"] = parts[1]["kept"] = 0
    assert columns_of_all(store, parts, {}).names == ["both", "odd"]


def test_tokens_of_a_text_that_was_masked_since_are_not_written(tmp_path: Path) -> None:
    """They hold what was masked. Encoded again they are those of the text beside them; what was measured on the way
    stays."""
    lines(tmp_path / "in" / "a.jsonl", [f"write to user{n}@mills.com about {n} mills and much more" for n in range(20)])
    stages = "  - tokenize: {vocab_size: 300}\n  - write: {name: before}\n  - text_signals\n  - personal_data\n  - write\n  - tokenize: {name: again, vocab_size: 300}\n  - write: {name: after, without: [words]}\n"
    recipe = save(tmp_path / "r.yaml", f"name: r\nsources:\n  a: {{jsonl: {{path: in}}}}\nstages:\n{stages}")
    go(recipe, tmp_path / "out")
    before, masked, after = (
        pa.concat_tables(map(pq.read_table, sorted((tmp_path / "out" / name).glob("*.parquet"))))
        for name in ("before", "write", "after")
    )
    assert before.num_rows == masked.num_rows == after.num_rows == 20
    assert {"token_ids", "tokens"} <= {*before.column_names} and before["token_count"].null_count == 0
    assert (
        not {"token_ids", "tokens", "bytes_per_token"} & {*masked.column_names}
        and masked["token_count"].null_count == 20
    )
    assert {"words", "personal_emails"} <= {*masked.column_names} and "<email>" in masked["text"][0].as_py()
    assert (
        "token_ids" in after.column_names and after["token_count"].null_count == 0 and "words" not in after.column_names
    )
