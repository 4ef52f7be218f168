"""docs/design/training.md lists the files that a batch enters on one GPU, with their sizes; none knows of another."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch, of the extra `gpu`")

from benchmarks.training.work import DrawnRows  # noqa: E402
from gristmill.shards.loader import Loader  # noqa: E402
from gristmill.shards.orders import Shuffled  # noqa: E402
from gristmill.trainer.run.loop import TrainingRun, train  # noqa: E402
from gristmill.trainer.run.settings import Training  # noqa: E402
from tests.trainer.tiny_runs import SHAPE, model  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| \[`(trainer/[\w/]+\.py)`\]\([^)]*\) \| (\d+) \|", re.MULTILINE)
LISTED = ROW.findall((ROOT / "docs/design/training.md").read_text(encoding="utf-8"))
CLOSE = 0.15  # of a file's length, or twenty lines
# What a batch asks for a number or a word, and what says that there is one process.
ASKED = {"trainer/run/schedule.py", "trainer/run/guard.py", "trainer/step/balance.py", "trainer/step/world.py"}
PARALLEL = re.compile(
    r"\b(ranks?|rankgroup|replicas?|pipelines?|pipelined|parallel|parallelism|distributed|sharded|fsdp\d?|dtensor|mesh|zero"
    r" [0-3]|stages?|gloo|nccl|process_?groups?|all_?reduce|all_?gather|all_to_all|reduce_scatter|broadcasts?|isend|irecv)\b",
    re.IGNORECASE,
)


def test_the_page_lists_twelve_files_at_most_with_their_lengths() -> None:
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name, _ in LISTED}
    assert 8 < len(LISTED) == len(lengths) <= 12
    assert [
        (name, said, lengths[name])
        for name, said in LISTED
        if abs(int(said) - lengths[name]) > max(20, CLOSE * lengths[name])
    ] == []


@pytest.mark.parametrize("name", [name for name, _ in LISTED])
def test_no_file_on_the_way_mentions_several_devices(name: str) -> None:
    source = (ROOT / name).read_text(encoding="utf-8")
    assert [line for line in source.splitlines() if PARALLEL.search(line)] == []


def test_an_update_enters_these_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "/trainer/" in name and "/tests/" not in name:
            entered.add("trainer/" + name.rpartition("/trainer/")[2])

    update = TrainingRun._make_update

    def traced(self: TrainingRun, feed: Any) -> None:
        sys.setprofile(note)
        try:
            update(self, feed)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(TrainingRun, "_make_update", traced)
    training = Training(2, 8, 4, precision="bf16", checkpoint_every=None)
    rows: Any = DrawnRows(16, SHAPE.context, SHAPE.vocabulary)
    threading.setprofile(note)  # the thread that reads
    try:
        train(model(), Loader(rows, 8, Shuffled()), training, tmp_path, device=torch.device("cpu"), save_model=False)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    listed = {name for name, _ in LISTED}
    assert entered - ASKED <= listed
    assert listed - entered == {"trainer/step/checkpoint.py"}  # after so many updates
