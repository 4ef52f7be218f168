"""What a stage of a user's own may answer. Whoever breaks the contract is named with file and class, at once, and no
document is blamed."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from distributed.client import FutureCancelledError

from gristmill.pipeline.engine import worker
from gristmill.pipeline.engine.cluster import Where, silenced
from gristmill.pipeline.engine.executor import DaskExecutor
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe as recipes, registry
from gristmill.pipeline.store.records import Task
from gristmill.pipeline.store.storage import Store
from gristmill.stages.contract import ContractBroken
from gristmill.stages.stage import Signals, Verdict
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, written

HEAD = """
from typing import ClassVar
import numpy as np
import pyarrow as pa
from gristmill.stages.stage import Annotate, Applied, Global, Rewrite, Rule, Sink, Verdict, with_columns

def column(batch, values):
    return with_columns(batch, {"text": values})

"""
ANNOTATE = "class Evil(Annotate):\n    adds: ClassVar = ('x',)\n    def annotate(self, batch):\n        rows = len(batch)\n        return "
REWRITE = "class Evil(Rewrite):\n    def rewrite(self, batch):\n        rows = len(batch)\n        keep = Verdict.keep(rows)\n        return "
RULE = "class Evil(Rule):\n    needs: ClassVar = ('text',)\n    def verdict(self, signals):\n        rows = len(signals)\n        return "
SINK = "class Evil(Sink):\n    def table(self, batch):\n        return "
OWN = "evil (evil.py:Evil): "


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)


def recipe(folder: Path, stage: str, documents: int = 40) -> Path:
    lines(folder / "docs.jsonl", [f"document number {n}" for n in range(documents)])
    save(folder / "evil.py", HEAD + stage)
    return save(
        folder / "r.yaml", "name: r\nsources: {docs: {jsonl: {path: docs.jsonl}}}\nstages: ['evil.py:Evil', write]\n"
    )


def failure(folder: Path, stage: str) -> str:
    """Why a run with this stage ends; nothing is written, and no document is quarantined."""
    with pytest.raises(RunFailed) as failed:
        go(recipe(folder, stage), folder / "out")
    record = json.loads((folder / "out" / "run.json").read_text())
    assert record["status"] == "failed" and sum(entry["quarantined"] for entry in record["stages"]) == 0
    assert not list(folder.glob("out/stages/*/rejects/*")) and not list(folder.glob("out/*/*.parquet"))
    return str(failed.value)


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (
            ANNOTATE + "{'x': pa.array([1] * rows), 'uid': pa.array([7] * rows, pa.uint64())}",
            "'uid', a column that every document has",
        ),
        (
            ANNOTATE + "{'x': pa.array([1] * rows), 'text': pa.array(['7'] * rows)}",
            "'text', a column that every document has",
        ),
        (
            ANNOTATE + "{'x': pa.array([1] * rows), 'y': pa.array([1] * rows)}",
            "'y', which `adds` does not declare (it declares 'x')",
        ),
        (ANNOTATE + "{}", "`adds` declares 'x', and annotate() did not answer with it"),
        (ANNOTATE + "{'x': pa.array([1, 2])}", "2 values of 'x' for 40 documents"),
        (ANNOTATE + "{'x': 1}", "a int for 'x'; an Arrow array was expected"),
        (
            ANNOTATE + "{'x': pa.chunked_array([[1] * rows])}",
            "a ChunkedArray for 'x'; an Arrow array was expected; call combine_chunks()",
        ),
        (ANNOTATE + "None", "annotate() answered with nothing; a dict of columns was expected"),
        (
            ANNOTATE + "{'x': pa.array(['a'] * rows, pa.string_view())}",
            "'x' is string_view, which cannot be filtered; cast it to large_string",
        ),
        (REWRITE + "Applied(column(batch, pa.nulls(rows, pa.string())), keep)", "40 of 40 texts became null"),
        (REWRITE + "Applied(column(batch, pa.array([None] + ['a'] * (rows - 1))), keep)", "1 of 40 texts became null"),
        (REWRITE + "Applied(column(batch, pa.array(range(rows))), keep)", "`text` became int64; a text is a string"),
        (
            REWRITE + "Applied(batch.take(pa.array(range(rows))[::-1]), keep)",
            "`uid` was changed, or rows have changed places",
        ),
        (REWRITE + "Applied(batch.slice(0, 3), keep)", "40 documents came, and 3 rows and 40 verdicts were answered"),
        (REWRITE + "Applied(batch, Verdict.keep(3))", "40 documents came, and 40 rows and 3 verdicts were answered"),
        (REWRITE + "Applied(batch.drop_columns(['url']), keep)", "the answer lacks 'url'"),
        (REWRITE + "batch", "a RecordBatch was answered; Applied(batch, verdict) was expected"),
        (RULE + "Verdict.keep(3)", "40 documents came, and 40 rows and 3 verdicts were answered"),
        (RULE + "None", "nothing was answered where a Verdict was expected"),
        (
            RULE + "Verdict.keep(rows).drop(np.full(rows, np.nan), 'bad')",
            "bad: a mask of true and false was expected, not of float64",
        ),
        (RULE + "Verdict.keep(rows).drop([True, False], 'bad')", "bad: a mask of 2 rows for a verdict on 40"),
        (RULE + "Verdict.keep(rows).drop([True] * rows, ' ')", "a document was dropped without a reason (' ')"),
        (RULE + "Verdict.keep(rows).drop([True] * rows, 'bad', ['why'])", "bad: 1 details for a verdict on 40 rows"),
        (SINK + "batch.slice(0, 3)", "table() answered with 3 rows for 40 documents"),
        (SINK + "None", "table() answered with nothing; a record batch was expected"),
        (SINK + "batch.select(['no such'])", "KeyError"),
    ],
)
def test_a_stage_that_breaks_the_contract_is_named_and_no_document_is(tmp_path: Path, stage: str, says: str) -> None:
    said = failure(tmp_path, stage)
    assert said.startswith(OWN) and says in said


def test_a_column_that_changes_its_type_between_batches_is_named(tmp_path: Path) -> None:
    stage = ANNOTATE + "{'x': pa.array([None] * rows if 'number 0' in str(batch['text'][0]) else [1] * rows)}"
    file = recipe(tmp_path, stage)
    file.write_text(file.read_text() + "parts: {batch_bytes: 500}\n")
    with pytest.raises(RunFailed) as failed:
        go(file, tmp_path / "out")
    assert str(failed.value).startswith(
        OWN
    ) and "'x' is int64 here, and was null in a batch before; name the type" in str(failed.value)


def test_what_a_stage_may_answer_is_taken(tmp_path: Path) -> None:
    """Arrays of numpy and lists, masks with nulls, a text that cannot be made and is dropped for it."""
    stage = """
class Evil(Rewrite):
    def rewrite(self, batch):
        texts = [None if i % 4 == 0 else "" if i % 4 == 1 else "b" for i in range(len(batch))]
        made = with_columns(batch, {"text": pa.array(texts, pa.large_string()), "y": np.arange(len(batch))})
        none = pa.array([None if text else text is None for text in texts], pa.bool_())
        return Applied(made, Verdict.keep(len(batch)).drop(none, "no_text"))
class More(Annotate):
    adds: ClassVar = ("a", "b")
    def annotate(self, batch):
        return {"a": np.arange(len(batch)), "b": [1] * len(batch)}
"""
    file = recipe(tmp_path, stage)
    file.write_text(file.read_text().replace("'evil.py:Evil'", "'evil.py:Evil', 'evil.py:More'"))
    summary, _ = go(file, tmp_path / "out")
    assert summary.record.to_json()["stages"][1]["dropped"] == {"no_text": 10}
    assert sorted(text for _, text in written(tmp_path / "out")) == [""] * 10 + ["b"] * 20


@pytest.mark.parametrize("mask", [np.array([0.0, np.nan]), np.array([0, 1]), pa.array([1.0, None]), ["a", "b"]])
def test_a_mask_of_numbers_is_refused(mask: Any) -> None:
    with pytest.raises(ContractBroken, match="a mask of true and false was expected"):
        Verdict.keep(2).drop(mask, "bad")


def test_null_in_a_mask_is_false() -> None:
    signals = Signals(pa.record_batch({"flag": pa.array([True, None, False])}))
    for mask in (signals.flag, signals.column("flag"), pa.chunked_array([[True], [None, False]]), [True, None, False]):
        assert Verdict.keep(3).drop(mask, "bad").kept.tolist() == [False, True, True]
    assert len(Verdict.keep(0).drop([], "bad")) == 0


GLOBAL = """
class Evil(Global):
    columns: ClassVar = ("uid", "text")
    rewrites: ClassVar = True
    def run(self, docs, flow):
        {run}
    def rows(self, docs):
        return pa.table({{"uid": docs["uid"], "key": docs["uid"]}})
    def again(self, rows):
        return {made}
    def made(self, docs):
        return {made}
    def joined(self, rows, docs):
        return {made}
"""
MARK = "return flow.mark(self.made, docs, columns=['uid', 'text'])"
MAP = "flow.map(self.made, docs, columns=['uid', 'text'], by='key'); return docs"
DROP = "return flow.drop(docs, flow.reduce(self.again, flow.map(self.rows, docs, columns=['uid'], by='key')))"
TEXTS = (
    "return flow.rewrite(self.joined, flow.reduce(self.same, flow.map(self.rows, docs, columns=['uid'], by='key')), docs, columns=['uid'])"
    "\n    def same(self, rows):\n        return rows"
)
NONE = "pa.nulls(len(docs), pa.string())"


@pytest.mark.parametrize(
    ("run", "made", "says"),
    [
        (MAP, "None", "made() answered with nothing; a table was expected"),
        (MAP, "docs.select(['uid'])", "made() answered without 'key', by which its rows are cut; it has 'uid', 'home'"),
        (MAP, "pa.table({'key': docs['text']})", "made() answered with 'key' of string; rows are cut by a uint64"),
        (MARK, "docs.select(['uid'])", "made() answered without 'reason', 'detail'"),
        (
            MARK,
            f"pa.table({{'uid': docs['uid'][::-1], 'reason': {NONE}, 'detail': {NONE}}})",
            "made() answered with other uids than it was given",
        ),
        (
            MARK,
            f"pa.table({{'uid': docs['uid'], 'reason': {NONE}, 'detail': {NONE}}})[1:]",
            "made() answered with 39 rows for 40 documents",
        ),
        (
            MARK,
            f"pa.table({{'uid': docs['uid'], 'reason': [''] * 40, 'detail': {NONE}}})",
            "made() dropped a document without a reason",
        ),
        (
            MARK,
            f"pa.table({{'uid': docs['uid'], 'reason': [1] * 40, 'detail': {NONE}}})",
            "made() answered with 'reason' of int64",
        ),
        (
            MARK,
            f"pa.table({{'uid': docs['uid'], 'text': {NONE}, 'reason': {NONE}, 'detail': {NONE}}})",
            "made() answered with 'text', a column",
        ),
        (DROP, "rows.select(['uid', 'home'])", "drop() answered without 'reason', 'detail'"),
        (
            TEXTS,
            f"pa.table({{'uid': docs['uid'], 'text': {NONE}, 'reason': {NONE}, 'detail': {NONE}}})",
            "40 of 40 texts became null",
        ),
        (TEXTS, "docs", "joined() answered without 'reason', 'detail'"),
        ("return None", "None", "run() answered with nothing; the documents were expected"),
        (
            "return docs.no_such_thing",
            "None",
            "AttributeError: 'StoredDocuments' object has no attribute 'no_such_thing'",
        ),
        ("return flow.map(len, docs, columns=['uid'], by='uid')", "None", "TypeError: "),
    ],
)
def test_a_global_stage_that_breaks_the_contract_is_named(tmp_path: Path, run: str, made: str, says: str) -> None:
    said = failure(tmp_path, GLOBAL.format(run=run, made=made))
    assert said.startswith(OWN) and says in said


EXITS = "sys.exit('usage: evil')"


@pytest.mark.parametrize(
    "stage",
    [
        ANNOTATE + f"{{'x': [{EXITS} if text.endswith(' 7') else 1 for text in batch['text'].to_pylist()]}}",
        RULE + f"[{EXITS} for text in signals.text if text.endswith(' 7')] or Verdict.keep(rows)",
    ],
)
def test_a_document_over_which_a_stage_exits_is_quarantined(tmp_path: Path, stage: str) -> None:
    summary, _ = go(recipe(tmp_path, "import sys\n" + stage), tmp_path / "out")
    [entry] = [entry for entry in summary.record.to_json()["stages"] if entry["name"] == "evil"]
    assert (entry["quarantined"], entry["kept"]) == (1, 39) and len(written(tmp_path / "out")) == 39
    assert summary.alarms == ["evil quarantined 1 document of docs that broke it"]


@pytest.mark.parametrize(
    "stage",
    [
        SINK + EXITS,
        GLOBAL.format(run=EXITS, made="None"),
        GLOBAL.format(run=MARK, made=EXITS),
    ],
)
def test_a_stage_that_exits_elsewhere_ends_the_run(tmp_path: Path, stage: str) -> None:
    said = failure(tmp_path, "import sys\n" + stage)
    assert said.startswith("evil (evil.py:Evil)") and "SystemExit: usage: evil" in said


def test_a_stage_that_exits_while_it_prepares_is_named(tmp_path: Path) -> None:
    stage = "import sys\n" + RULE + "Verdict.keep(rows)\n    def prepare(self):\n        " + EXITS
    with pytest.raises(RunFailed, match=r"evil.py:Evil\): prepare\(\) failed: SystemExit: usage: evil"):
        registry.prepare(recipes.load(recipe(tmp_path, stage)).steps[0].stage)


def test_a_stage_that_raises_keyboard_interrupt_does_not_end_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    events: list[list[str]] = []
    monkeypatch.setattr(worker, "run_tasks", interrupt)
    monkeypatch.setattr(
        "distributed.get_worker", lambda: SimpleNamespace(log_event=lambda _, event: events.append(event))
    )
    worker.answer("topic", "key", [], worker.Terms())
    [[key, answer]] = events
    assert key == "key" and json.loads(answer)[0]["message"] == "a stage raised KeyboardInterrupt"


def test_the_code_that_workers_get_is_what_was_checked_whatever_became_of_the_file(tmp_path: Path) -> None:
    step = recipes.load(recipe(tmp_path, RULE + "Verdict.keep(rows)")).steps[0]
    save(tmp_path / "evil.py", "edited while the run began")
    assert step.spec["code"] == HEAD + RULE + "Verdict.keep(rows)"
    assert registry.build(step.spec) == step.stage


def test_a_stage_file_may_name_a_class_that_it_imports(tmp_path: Path) -> None:
    step = recipes.load(recipe(tmp_path, "from gristmill.stages.text.repair import Repair as Evil\n")).steps[0]
    assert registry.build(step.spec) == step.stage and step.called == "repair"


def test_a_module_that_workers_do_not_have_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = recipe(tmp_path, "import helper_that_is_nowhere\n" + RULE + "Verdict.keep(rows)")
    with pytest.raises(
        RecipeError,
        match=r"evil\.py does not import: ModuleNotFoundError: .*goes to the workers alone.*must be installed",
    ):
        recipes.load(file)


def test_an_error_s_escapes_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    lines(tmp_path / "docs.jsonl", [f"document number {n}" for n in range(40)])
    stage = "class Evil(Rewrite):\n    def rewrite(self, batch):\n        if 'number 7' in str(batch['text'].to_pylist()):\n"
    stage += "            raise ValueError('\\x1b]0;pwned\\x07\\x1b[2J\\nsecond line')\n        return Applied(batch, Verdict.keep(len(batch)))\n"
    go(recipe(tmp_path, stage), tmp_path / "out")
    [line] = (tmp_path / "out" / "logs" / "run.log").read_text().splitlines()
    assert line.endswith("ValueError: ␛]0;pwned␇␛[2J second line") and line.startswith("evil: document ")


def test_a_trace_s_escapes_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    failure(tmp_path, GLOBAL.format(run="raise ValueError('\\x1b[2J')", made="None"))
    trace = (tmp_path / "out" / "logs" / "trace.txt").read_text()
    assert "ValueError: ␛[2J" in trace and "\x1b" not in trace


def test_dask_is_silent_in_a_run_and_as_it_was_after_it() -> None:
    asyncio, ours = logging.getLogger("asyncio"), logging.getLogger("distributed.worker")
    ours.setLevel(logging.INFO)
    with silenced():
        assert asyncio.level == ours.level == logging.CRITICAL
    assert (asyncio.level, ours.level) == (logging.NOTSET, logging.INFO)
    ours.setLevel(logging.NOTSET)


def test_tasks_that_a_scheduler_cancels_again_and_again_end_the_run(tmp_path: Path) -> None:
    sent: list[str] = []

    class Cancelled:
        status = "cancelled"

        def __init__(self, key: str) -> None:
            self.key = key

        def add_done_callback(self, then: Callable[[Cancelled], None]) -> None:
            then(self)

        def result(self) -> None:
            raise FutureCancelledError(self.key, None)

        def release(self) -> None: ...

    def map_(*_: object, key: list[str], **__: object) -> list[Cancelled]:
        sent.extend(key)
        return [Cancelled(each) for each in key]

    executor = DaskExecutor(Store(str(tmp_path)), Where(1), Quiet(), tmp_path)
    executor._client = SimpleNamespace(nthreads=lambda: {"w": 1}, map=map_, status="running")
    with pytest.raises(RunFailed, match="docs, part-1 was cancelled by the scheduler 5 times"):
        list(executor.results([Task(kind="partition", task="t", node="docs", key="part-1", cost=1, out="")]))
    assert len(sent) == 5
