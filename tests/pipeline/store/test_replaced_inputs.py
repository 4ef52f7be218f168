"""Objects that are replaced between the listing of a run's inputs and their reading."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import gristmill
from gristmill.pipeline.engine.executor import InlineExecutor
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store.records import Result, Task
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import save, written
from tests.pipeline.store.object_store import Proxy

boto3 = pytest.importorskip("boto3")
S3FileSystem = pytest.importorskip("s3fs").S3FileSystem
RECIPE = "name: r\nsources: {a: {jsonl: {path: 's3://mill/replaced/'}}}\nstages: [write]\n"


def test_an_object_that_was_replaced_is_not_read_under_the_name_of_the_one_before(
    proxied: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = boto3.client("s3", endpoint_url=f"http://{proxied.upstream}")
    before, after = (json.dumps({"text": text}).encode() + b"\n" for text in ("the old text", "the new text"))
    store.put_object(Bucket="mill", Key="replaced/x.jsonl", Body=before)
    recipe, out = save(tmp_path / "r.yaml", RECIPE), tmp_path / "out"

    class Replacing(InlineExecutor):
        def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
            """The object is listed by now, and read by a process that did not list it."""
            S3FileSystem.clear_instance_cache()
            store.put_object(Bucket="mill", Key="replaced/x.jsonl", Body=after)
            yield from super().results(tasks)

    with monkeypatch.context() as patch, pytest.raises(RunFailed, match=r"x\.jsonl: the object was replaced since"):
        work_here(patch, Replacing)
        gristmill.run(recipe, out)
    work_here(monkeypatch)
    gristmill.run(recipe, out)
    assert [text for _, text in written(out)] == ["the new text"]
    store.put_object(Bucket="mill", Key="replaced/x.jsonl", Body=before)
    gristmill.run(recipe, out)
    assert [text for _, text in written(out)] == ["the old text"]
