"""Who reads write/*.parquet sees one version of every part, whenever they look."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store import partitions
from gristmill.pipeline.store.records import Result, Task
from gristmill.pipeline.store.storage import Store
from tests.pipeline.crawls import jsonl
from tests.pipeline.runs import go

TEXTS = [f"A text of the mill, number {n}, long enough to be told from others." for n in range(24)]


class Looking(Quiet):
    """Looks at the sink whenever a task is done, and may break the run off."""

    def __init__(self, sink: Path, stop_after: int = 1000) -> None:
        super().__init__()
        self.sink = sink
        self.stop_after = stop_after
        self.seen: list[frozenset[str]] = []

    def finished(self, task: Task, result: Result, anew: bool) -> None:
        self.seen.append(frozenset(path.name for path in self.sink.glob("*.parquet")))
        self.stop_after -= task.node == "s"
        if self.stop_after == 0:
            raise KeyboardInterrupt


def made(folder: Path, rate: float) -> Path:
    for number in range(4):
        jsonl(folder / f"in/part-{number}.jsonl", TEXTS[number::4])
    path = folder / "r.yaml"
    path.write_text(
        f"name: r\nparts: {{files: 1, small_file: 0}}\nsources: {{s: {{jsonl: {{path: in}}}}}}\nstages: [sample: {{rate: {rate}}}, write]\n"
    )
    return path


def names(out: Path) -> frozenset[str]:
    return frozenset(path.name for path in (out / "write").iterdir())


def test_a_sink_appears_whole_and_changes_whole(tmp_path: Path) -> None:
    path, out = made(tmp_path, 0.99), tmp_path / "out"
    first = Looking(out / "write")
    run(recipe.load(path), str(out), Where(1), first)
    assert set(first.seen) == {frozenset()} and len(names(out)) == 4
    before = names(out)
    (out / "write/_SUCCESS").touch()
    second = Looking(out / "write")
    run(recipe.load(made(tmp_path, 0.9)), str(out), Where(1), second)
    assert set(second.seen) == {before} and len(names(out)) == 5 and not names(out) & before
    assert "_SUCCESS" in names(out)
    assert not list(out.glob(".write*"))


def test_a_run_that_broke_off_leaves_the_version_before(tmp_path: Path) -> None:
    path, out = made(tmp_path, 0.99), tmp_path / "out"
    go(path, out)
    before = names(out)
    path = made(tmp_path, 0.9)
    with pytest.raises(KeyboardInterrupt):
        run(recipe.load(path), str(out), Where(1), Looking(out / "write", stop_after=2))
    assert names(out) == before and (out / ".write.new").is_dir()
    _, anew = go(path, out)
    assert 0 < sum(anew.values()) < 4  # parts that waited for the others are not made again
    assert len(names(out)) == 4 and not names(out) & before
    go(path, tmp_path / "fresh")
    assert {p.name: p.read_bytes() for p in (out / "write").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "fresh/write").iterdir()
    }


def test_a_part_that_stays_is_the_same_file_and_is_not_written_again(tmp_path: Path) -> None:
    path, out = made(tmp_path, 0.99), tmp_path / "out"
    go(path, out)
    inodes = {p.name: p.stat().st_ino for p in (out / "write").iterdir()}
    jsonl(tmp_path / "in/part-9.jsonl", ["One more text for the mill that nobody has seen before."])
    _, anew = go(path, out)
    after = {p.name: p.stat().st_ino for p in (out / "write").iterdir()}
    assert len(after) == 5 and inodes.items() <= after.items() and sum(anew.values()) == 1
    _, anew = go(path, out)
    assert not anew
    assert sum(len(pq.read_table(p)) for p in (out / "write").iterdir()) > 20


@pytest.mark.parametrize("kind", ["swap", "no swap", "no links", "remote"])
def test_a_sink_holds_what_is_wanted_on_any_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "no swap":
        monkeypatch.setattr(partitions, "swap", lambda left, right: False)
    if kind == "no links":
        monkeypatch.setattr(partitions.os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    store = Store(f"memory://{uuid.uuid4().hex}" if kind == "remote" else str(tmp_path))
    old, stays, new = (f"a-{n}23456789abc.0000000{n}.parquet" for n in range(3))
    for name in (old, stays):
        store.write(f"write/{name}", name.encode())
    store.write("write/README", b"mine")
    store.write(partitions.staged(f"write/{new}"), b"new")
    store.write(partitions.staged("write/b-023456789abc.00000000.parquet"), b"left by another version")
    assert partitions.publish(store, "write", {f"write/{stays}", f"write/{new}"})
    assert sorted(store.files("")) == sorted(["write/README", f"write/{stays}", f"write/{new}"])
    assert store.read(f"write/{new}") == b"new" and store.read(f"write/{stays}") == stays.encode()
    assert not partitions.publish(store, "write", {f"write/{stays}", f"write/{new}"})
