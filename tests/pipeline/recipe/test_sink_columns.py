"""All files that a sink writes have the same columns, whatever happened to be told of the documents in each."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.tasks.rewrites import columns_of_all, conformed, filled
from tests.pipeline.runs import go, lines, save, tree

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


@pytest.mark.parametrize("own", ["", ", stages: [own.py:Marked]"])
def test_sources_are_written_where_they_are_read(tmp_path: Path, own: str) -> None:
    save(tmp_path / "own.py", OWN)
    recipe = save(
        tmp_path / "r.yaml",
        f"name: r\nsources:\n  a: {{jsonl: {{path: in}}}}\n  b: {{jsonl: {{path: in}}{own}}}\nstages: [write]\n",
    )
    assert [node.name for node in make_plan(recipes.load(recipe)).nodes] == ["a", "b"]


def test_a_column_that_nobody_adds_any_more_leaves_the_files_of_other_sources(tmp_path: Path) -> None:
    lines(tmp_path / "in" / "a.jsonl", ["one text", "a second"])
    lines(tmp_path / "more" / "c.jsonl", ["a third"])
    save(tmp_path / "own.py", OWN)
    recipe, out = tmp_path / "r.yaml", tmp_path / "out"
    text = "name: r\nsources:\n  a: {jsonl: {path: in}}\n  b: {jsonl: {path: more}OWN}\nstages: [write]\n"
    trees = []
    for own in ("", ", stages: [own.py:Marked]", ""):
        save(recipe, text.replace("OWN", own))
        go(recipe, out)
        columns = {tuple(pq.read_schema(file).names) for file in (out / "write").glob("*.parquet")}
        assert len(columns) == 1 and ("mark" in columns.pop()) == bool(own)
        trees.append(tree(out, "write"))
        assert go(recipe, out)[0].worked == 0 and tree(out, "write") == trees[-1]
    assert trees[0] == trees[2] != trees[1]


def test_types_are_those_that_hold_all_values() -> None:
    own = [pa.schema([("uid", pa.uint64()), ("both", pa.int32()), ("odd", pa.int32())])]
    own += [pa.schema([("uid", pa.uint64()), ("both", pa.float64()), ("odd", pa.float64())])]
    own += [pa.schema([("both", pa.null()), ("odd", pa.string()), ("more", pa.string())])]
    columns = columns_of_all(own)
    assert dict(columns) == {"uid": pa.uint64(), "both": pa.float64(), "odd": None, "more": pa.string()}
    assert list(columns) == list(columns_of_all(own[::-1]))  # of `odd` nothing holds texts and numbers
    wanted = conformed(own[0], columns)
    assert wanted == pa.schema(
        [("uid", pa.uint64()), ("both", pa.float64()), ("odd", pa.int32()), ("more", pa.string())]
    )
    batch = pa.RecordBatch.from_pylist([{"uid": 1, "both": 2, "odd": 3}], schema=own[0])
    assert filled(batch, wanted).to_pylist() == [{"uid": 1, "both": 2.0, "odd": 3, "more": None}]


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
