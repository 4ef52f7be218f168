"""A stage or block whose answers follow from the documents before is refused; a cache is not. With
`state: per_partition` a block may remember, and each part of the input has a fresh one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import gristmill
from gristmill.pipeline.errors import RunFailed
from gristmill.stages import Datatrove
from tests.pipeline.engine.here import work_here

DOMAINS = ("a.example", "b.example", "c.example")
PER_PARTITION = "datatrove: {block: 'blocks_of_ours:FirstOfDomain', state: per_partition}"
HEAD = """
import random
from typing import ClassVar
import numpy as np
import pyarrow as pa
from pydantic import PrivateAttr
from gristmill.stages.stage import Annotate, Rewrite, Applied, Rule, Verdict, with_columns

SEEN = set()
"""
STATEFUL = {
    "a private attribute": "class Mine(Rule):\n    needs: ClassVar = ('text',)\n    _seen: set = PrivateAttr(default_factory=set)\n"
    "    def verdict(self, signals):\n        texts = signals.column('text').to_pylist()\n"
    "        new = [not (t in self._seen or self._seen.add(t)) for t in texts]\n"
    "        return Verdict.keep(len(texts)).drop(~np.array(new), 'seen')\n",
    "a variable of the module": "class Mine(Rewrite):\n    def rewrite(self, batch):\n        texts = batch['text'].to_pylist()\n"
    "        new = [not (t in SEEN or SEEN.add(t)) for t in texts]\n"
    "        return Applied(batch, Verdict.keep(len(texts)).drop(~np.array(new), 'seen'))\n",
    "Python's random generator": "class Mine(Annotate):\n    adds: ClassVar = ('luck',)\n    def annotate(self, batch):\n"
    "        return {'luck': pa.array([random.random() for _ in range(len(batch))])}\n",
}
CACHE = (
    "class Mine(Annotate):\n    adds: ClassVar = ('length',)\n    _known: dict = PrivateAttr(default_factory=dict)\n"
    "    def annotate(self, batch):\n        texts = batch['text'].to_pylist()\n"
    "        return {'length': pa.array([self._known.setdefault(t, len(t) / 3) for t in texts])}\n"
)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are done in the test's own process."""
    work_here(monkeypatch)


def recipe(folder: Path, stage: str, parts: str = "{}", more: str = "") -> Path:
    """60 documents of three domains in six files of ten; every fifth text is there twice."""
    (folder / "in").mkdir(exist_ok=True)
    for file in range(6):
        rows = [f"{DOMAINS[n % 3]} text {n - n % 5 // 4} of file {file // 2}" for n in range(10)]
        (folder / f"in/{file}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    path = folder / "r.yaml"
    path.write_text(
        f"name: r\nparts: {parts}\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:\n  - {stage}\n{more}  - write\n"
    )
    return path


def kept(run: gristmill.Run) -> list[str]:
    return sorted(row["text"] for row in run.kept())


@pytest.mark.parametrize(
    ("stage", "block", "changed"),
    [
        ("datatrove: {block", "FirstOfDomain", "'seen'"),
        ("datatrove: {block", "FirstOfClass", "'FirstOfClass.seen'"),
        ("datatrove: {block", "DiceOfAHelper", "'helper'"),
        ("nemo: {filter", "Rising", "'longest'"),
    ],
)
def test_a_block_that_remembers_documents_is_refused(
    tmp_path: Path, here: None, stage: str, block: str, changed: str
) -> None:
    with pytest.raises(
        RunFailed, match=f"{block}: it remembers earlier documents: {changed} changed, and a fresh"
    ) as error:
        gristmill.run(recipe(tmp_path, f"{stage}: 'blocks_of_ours:{block}'}}"), tmp_path / "out")
    assert "`state: per_partition` allows it" in str(error.value) and not [*tmp_path.glob("out/write/*")]


@pytest.mark.run
def test_a_block_that_may_remember_gives_the_same_with_any_number_of_workers_and_batch_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    two = gristmill.run(recipe(tmp_path, PER_PARTITION, "{files: 6}"), tmp_path / "two", workers=2)
    work_here(monkeypatch)
    for name, parts in {
        "here": "{files: 6}",
        "small batches": "{files: 6, batch_bytes: 200}",
        "cut": "{files: 1}",
    }.items():
        found[name] = gristmill.run(recipe(tmp_path, PER_PARTITION, parts), tmp_path / name, workers=1)
    assert kept(two) == kept(found["here"]) == kept(found["small batches"])
    assert len(kept(two)) == 6 and {*Counter(text.split()[0] for text in kept(two)).values()} == {2}
    assert len(kept(found["cut"])) == 6 * 3 * 2
    [alarm] = [line for line in two.record["alarms"] if "state" in line]
    assert alarm.startswith("first_of_domain keeps state over each part of a") and "give other results" in alarm


def test_a_block_that_may_remember_and_raises_ends_the_run(tmp_path: Path, here: None) -> None:
    written = recipe(tmp_path, PER_PARTITION)
    (tmp_path / "in/0.jsonl").write_text('{"text": "a.example"}\n{"text": "a.example bomb"}\n{"text": "b.example"}\n')
    with pytest.raises(RunFailed, match=r"FirstOfDomain raised on document \d+ \(RuntimeError: it went off\)"):
        gristmill.run(written, tmp_path / "out")


def test_a_block_on_a_table_is_fresh_each_time() -> None:
    table = pa.table({"text": ["a x", "a y", "a z", "b x"]})
    stage = Datatrove(block="blocks_of_ours:FirstOfDomain", state="per_partition")
    assert [stage(table)["text"].to_pylist() for _ in range(2)] == [["a x", "a y", "b x"]] * 2


@pytest.mark.parametrize(
    ("stage", "keeps"),
    [("datatrove: {block: 'blocks_of_ours:Remembering'}", 54), ("mine.py:Mine", 60)],
    ids=["a block", "a stage of the user's own"],
)
def test_a_cache_is_no_memory(tmp_path: Path, here: None, stage: str, keeps: int) -> None:
    (tmp_path / "mine.py").write_text(HEAD + CACHE)
    run = gristmill.run(recipe(tmp_path, stage), tmp_path / "out")
    assert len(kept(run)) == keeps and not run.record["alarms"]


def test_a_block_that_draws_for_a_batch_answers_the_same_however_batches_and_parts_are_cut(
    tmp_path: Path, here: None
) -> None:
    """It gets one document at a time, whatever its batch size is."""
    stage = "datatrove: {block: 'blocks_of_ours:DiceInBatches'}"
    found = [
        kept(gristmill.run(recipe(tmp_path, stage, parts), tmp_path / f"out{number}"))
        for number, parts in enumerate(("{files: 6}", "{files: 2, batch_bytes: 300}", "{files: 1, batch_bytes: 50}"))
    ]
    assert found[0] == found[1] == found[2] and 15 <= len(found[0]) <= 45
    with pytest.raises(gristmill.pipeline.errors.RecipeError, match="batch_size out; a block gets one document at a"):
        gristmill.run(recipe(tmp_path, stage.replace("}", ", settings: {batch_size: 2}}")), tmp_path / "never")


@pytest.mark.parametrize("how", STATEFUL)
def test_a_stage_of_the_users_own_that_remembers_documents_is_refused(tmp_path: Path, here: None, how: str) -> None:
    (tmp_path / "mine.py").write_text(HEAD + STATEFUL[how])
    with pytest.raises(
        RunFailed, match=r"mine \(mine.py:Mine\): it remembers earlier documents: '(_seen|mine.SEEN|random)'"
    ):
        gristmill.run(recipe(tmp_path, "mine.py:Mine"), tmp_path / "out")
