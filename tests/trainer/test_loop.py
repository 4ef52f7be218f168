"""A run is what its settings, its data and its folder say, however often it was killed and however it was cut up."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from gristmill.shards.format import BadShards
from gristmill.shards.reader import open_shards
from gristmill.trainer.run import loop
from gristmill.trainer.run.batch_search import TooLarge
from gristmill.trainer.run.guard import Guard, UnsoundRun
from gristmill.trainer.run.loop import TrainingRun
from gristmill.trainer.run.metrics import read_metrics
from gristmill.trainer.run.progress import BadRun, OtherRun
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.run.settings import Training
from gristmill.trainer.run.stopping import Stopped
from gristmill.trainer.run.unlocking import Unlocked, Unlocking, buckets_of
from gristmill.trainer.step import checkpoint
from tests.shards.shard_sets import small_set
from tests.trainer.tiny_runs import SHAPE, TRAINING, loader, model, run

REPOSITORY = Path(__file__).parents[2]
TIMED = ("per_second", "joule", "memory", "seconds", "mfu")


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("tiny") / "shards", shards=2, documents=60, vocab_size=50).folder


@pytest.fixture(scope="session")
def straight(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    run(shards, folder)
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(checkpoint.steps(folder / "checkpoints")[-1] / "model.safetensors")


def told(folder: Path) -> list[dict[str, Any]]:
    """Lines of metrics without what no two runs have in common."""
    return [
        {k: v for k, v in line.items() if not any(word in k for word in TIMED)}
        for line in read_metrics(folder / "metrics.jsonl")
    ]


def assert_same(folder: Path, other: Path) -> None:
    ours, theirs = weights(folder), weights(other)
    assert ours.keys() == theirs.keys() and len(ours) > 10
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert told(folder) == told(other)
    assert len(told(folder)) > 0


def near(folder: Path, other: Path, apart: float) -> None:
    ours, theirs = weights(folder), weights(other)
    assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=apart) for name in ours)


# What a run is


def test_a_run_learns_and_tells(shards: Path, tmp_path: Path) -> None:
    training = replace(TRAINING, updates=60, checkpoint_every=20, schedule=RateSchedule("constant", 0.05))
    asked: list[int] = []
    outcome = run(
        shards,
        tmp_path / "run",
        training,
        evaluate=lambda m, update: (asked.append(update), {"bits": float(update)})[1],
        evaluate_every=25,
    )
    lines = [line for line in told(tmp_path / "run") if "loss" in line]
    assert [line["step"] for line in lines] == [*range(3, 61, 3)]
    assert lines[0]["loss"] == pytest.approx(math.log(50), rel=0.02) and lines[-1]["loss"] < lines[0]["loss"] - 0.05
    assert asked == [25, 50, 60]
    assert [line["evaluation.bits"] for line in told(tmp_path / "run") if "evaluation.bits" in line] == [25, 50, 60]
    reads = loader(shards)
    batches = [reads.next_batch() for _ in range(60)]
    tokens = sum(int(batch.rows.seq_lens.sum()) for batch in batches if batch)
    pieces = sum(len(batch.rows.seq_lens) for batch in batches if batch)
    assert (outcome.updates, outcome.tokens, outcome.counted, outcome.refused) == (60, tokens, tokens - pieces, 0)
    assert lines[-1]["tokens"] == tokens
    assert outcome.tokens_per_second > 0 and outcome.seconds > 0 and outcome.peak_memory is None
    assert [path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")] == [
        "step-00000040",
        "step-00000060",
    ]
    assert (tmp_path / "run" / "model" / "config.json").exists()


def test_every_update_is_the_plain_one(shards: Path, tmp_path: Path) -> None:
    """Against a loop of ten lines that knows nothing of steps, guards and threads."""
    from gristmill.trainer.model.packed import pack_rows

    training = replace(TRAINING, rows_per_step=2)
    run(shards, tmp_path / "run", training)
    plain, reads = model(), loader(shards)
    optimizer = training.optimizer.optimizer(plain)
    for update in range(training.updates):
        batch = reads.next_batch()
        assert batch is not None
        whole = pack_rows(batch.rows)
        for group in optimizer.param_groups:
            group["lr"] = group["base_rate"] * training.schedule.share(update, training.updates)
        optimizer.zero_grad()
        (plain.loss(whole) / whole.counted).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), training.optimizer.clip)
        optimizer.step()
    found = weights(tmp_path / "run")
    assert all(torch.allclose(found[name], tensor, rtol=0, atol=2e-6) for name, tensor in plain.named_parameters())


def test_a_line_tells_the_mean_since_the_line_before(shards: Path, straight: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "run", replace(TRAINING, metrics_every=1))
    each = {line["step"]: line["loss"] for line in told(tmp_path / "run")}
    assert len(each) == 14 and len(set(each.values())) == 14
    for line, steps in zip(told(straight), [(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12), (13, 14)], strict=True):
        assert line["loss"] == pytest.approx(sum(each[step] for step in steps) / len(steps), rel=1e-12)
    assert weights(tmp_path / "run").keys() == weights(straight).keys()


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_other_steps_are_the_same_update(shards: Path, straight: Path, tmp_path: Path, rows: int) -> None:
    run(shards, tmp_path / "run", replace(TRAINING, rows_per_step=rows))
    near(tmp_path / "run", straight, 2e-6)
    for ours, theirs in zip(told(tmp_path / "run"), told(straight), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-6)


def test_the_same_again_is_the_same_bits(shards: Path, straight: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "run", replace(TRAINING, deterministic=True))
    assert_same(tmp_path / "run", straight)
    assert not torch.are_deterministic_algorithms_enabled() and "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_the_model_is_the_mean_of_the_last_checkpoints(shards: Path, straight: Path, tmp_path: Path) -> None:
    run(shards, tmp_path / "run", replace(TRAINING, average=2))
    first, second = (
        load_file(path / "model.safetensors") for path in checkpoint.steps(tmp_path / "run" / "checkpoints")
    )
    name = "model.embed_tokens.weight"
    mean = (first["embedding.weight"].double() + second["embedding.weight"].double()) / 2
    assert torch.equal(load_file(tmp_path / "run" / "model" / "model.safetensors")[name], mean.float())
    assert torch.equal(load_file(straight / "model" / "model.safetensors")[name], second["embedding.weight"])


# Killed and gone on with


class Killed(BaseException):
    pass


def kill_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    make = TrainingRun._make_update

    def make_or_die(self: TrainingRun, feed: Any) -> None:
        if self.progress.update == update:
            raise Killed
        make(self, feed)

    monkeypatch.setattr(TrainingRun, "_make_update", make_or_die)


@pytest.mark.parametrize("update", range(TRAINING.updates))
def test_killed_at_any_update_and_gone_on_with(
    shards: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, update)
        run(shards, tmp_path / "run")
    assert len(checkpoint.steps(tmp_path / "run" / "checkpoints")) == min(2, update // 4)
    outcome = run(shards, tmp_path / "run")
    assert_same(tmp_path / "run", straight)
    assert outcome.updates == TRAINING.updates


def test_shot_again_and_again(shards: Path, straight: Path, tmp_path: Path) -> None:
    """Real processes that end without a word: in the middle of a checkpoint's file, when all of one but its name was
    there, and between two."""
    command = [sys.executable, "-m", "tests.trainer.tiny_runs", str(shards), str(tmp_path / "run")]
    seen = []
    for when in ("half a file 2", "before the rename 2", "update 9"):
        done = subprocess.run([*command, when], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
        assert done.returncode == 9, done.stderr[-2000:]
        seen.append([path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")])
    assert seen == [[], ["step-00000004"], ["step-00000004", "step-00000008"]]
    run(shards, tmp_path / "run")
    assert_same(tmp_path / "run", straight)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_two_ranks_are_one_run(shards: Path, straight: Path, tmp_path: Path) -> None:
    """Shot between two checkpoints, and gone on with by one."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = [sys.executable, "-m", "tests.trainer.tiny_runs", str(shards), str(tmp_path / "run"), "update 9"]
    there = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [
        subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **there, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [child.communicate(timeout=120)[1] for child in children]
    assert children[0].returncode == 9, said[0][-2000:]
    assert [path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")] == [
        "step-00000004",
        "step-00000008",
    ]
    run(shards, tmp_path / "run")
    near(tmp_path / "run", straight, 2e-6)
    for ours, theirs in zip(told(tmp_path / "run"), told(straight), strict=True):
        assert ours["tokens"] == theirs["tokens"] and ours["loss"] == pytest.approx(theirs["loss"], abs=2e-6)


def test_a_finished_run_is_done(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(shards, tmp_path / "run")
    monkeypatch.setattr(TrainingRun, "_make_update", lambda *_: pytest.fail("trained again"))
    again = run(shards, tmp_path / "run")
    assert replace(again, seconds=0, tokens_per_second=0) == replace(first, seconds=0, tokens_per_second=0)


def test_a_damaged_checkpoint_is_passed_over(
    shards: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 10)
        run(shards, tmp_path / "run")
    file = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match="not the bytes that were written"):
        run(shards, tmp_path / "run")
    assert_same(tmp_path / "run", straight)


def tell_after(monkeypatch: pytest.MonkeyPatch, update: int, number: signal.Signals = signal.SIGTERM) -> None:
    make = TrainingRun._make_update

    def make_and_hear(self: TrainingRun, feed: Any) -> None:
        make(self, feed)
        if self.progress.update == update:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(TrainingRun, "_make_update", make_and_hear)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop(
    shards: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with (
        monkeypatch.context() as patch,
        pytest.raises(Stopped, match=f"{number.name} after 6 of 14 updates; a checkpoint is in "),
    ):
        tell_after(patch, 6, number)
        run(shards, tmp_path / "run", replace(TRAINING, checkpoint_every=None))
    assert [path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")] == ["step-00000006"]
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    run(shards, tmp_path / "run")
    assert_same(tmp_path / "run", straight)


def test_where_a_run_was_told_to_stop_does_not_show_in_an_averaged_model(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = replace(TRAINING, average=2)
    run(shards, tmp_path / "straight", training)
    held = []
    for update in (6, 9, 13):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            tell_after(patch, update)
            run(shards, tmp_path / "run", training)
        held.append([checkpoint.step_of(path) for path in checkpoint.steps(tmp_path / "run" / "checkpoints")])
    run(shards, tmp_path / "run", training)
    assert held == [[4, 6], [4, 8, 9], [8, 12, 13]]
    assert [checkpoint.step_of(path) for path in checkpoint.steps(tmp_path / "run" / "checkpoints")] == [12, 14]
    assert_same(tmp_path / "run", tmp_path / "straight")
    ours, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "straight"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    with pytest.raises(OtherRun, match=r"training\.checkpoint_every is 1, there it is 4"):
        run(shards, tmp_path / "run", replace(training, checkpoint_every=1))


def test_ways_may_change_on_the_way(
    shards: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 6)
        run(shards, tmp_path / "run")
    run(
        shards,
        tmp_path / "run",
        replace(TRAINING, rows_per_step=8, metrics_every=1, checkpoint_every=5, recompute="full"),
    )
    near(tmp_path / "run", straight, 2e-6)


# Folders, data and models that do not go together


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, f: run(s, f, replace(TRAINING, seed=4)), r"training\.seed is 4, there it is 0"),
        (
            lambda s, f: run(s, f, replace(TRAINING, optimizer=replace(TRAINING.optimizer, rate=0.02))),
            r"training\.optimizer\.rate is 0\.02, there it is 0\.01",
        ),
        (lambda s, f: run(s, f, loader=loader(s, seed=9)), r"data\.seed is 9, there it is 3"),
        (lambda s, f: run(s, f, model=model(replace(SHAPE, mlp=48))), r"model\.mlp is 48, there it is 32"),
    ],
)
def test_a_folder_of_another_run_is_refused(
    shards: Path, straight: Path, change: Callable[[Path, Path], Any], message: str
) -> None:
    before = (straight / "metrics.jsonl").read_bytes()
    with pytest.raises(OtherRun, match=f"holds another run.*{message}"):
        change(shards, straight)
    assert (straight / "metrics.jsonl").read_bytes() == before


def test_other_shards_are_refused(straight: Path, tmp_path: Path) -> None:
    other = small_set(tmp_path / "other", shards=1, vocab_size=50).folder
    with pytest.raises(OtherRun, match=r"data\.shards is"):
        run(other, straight)


def test_a_folder_of_something_else_is_refused(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(OtherRun, match=r"left no run\.json"):
        run(shards, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda s, f: run(s, f, model=model(replace(SHAPE, vocabulary=49))),
            "tokens of a vocabulary of 50 .* the model knows 49; make the model with vocabulary=50",
        ),
        (lambda s, f: run(s, f, model=model(replace(SHAPE, context=8))), "rows of 16 tokens, the model's context is 8"),
        (lambda s, f: run(s, f, replace(TRAINING, rows_per_update=16)), "batches have 8 rows, rows_per_update is 16"),
        (
            lambda s, f: run(s, f, loader=loader(s, rank=1, world=2)),
            "the loader is that of rank 1 of 2, this process sees the rows of rank 0 of 1",
        ),
        (
            lambda s, f: run(s, f, loader=loader(s, epochs=1)),
            r"1 epochs hold \d+ more updates of 8 rows, 14 are still to come",
        ),
        (
            lambda s, f: run(s, f, replace(TRAINING, unlocking=Unlocking())),
            "unlocking needs a loader whose order is Unlocked",
        ),
        (lambda s, f: run(s, f, tokenizer=f / "nothing"), r"a tokenizer is a file named tokenizer\.json"),
        (lambda s, f: run(s, f, model=model(replace(SHAPE, windows=(2, 4)))), r"windows of several sizes \(2, 4\)"),
        (
            lambda s, f: run(s, f, evaluate=lambda *_: {}, evaluate_every=0),
            "evaluate_every 0: a whole number of updates above 0",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_first_step(
    shards: Path, tmp_path: Path, change: Callable[[Path, Path], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingRun, "_make_update", lambda *_: pytest.fail("trained"))
    with pytest.raises(BadRun, match=message):
        change(shards, tmp_path / "run")


def test_a_model_that_is_not_to_be_written_need_not_be_writable(shards: Path, tmp_path: Path) -> None:
    windows = model(replace(SHAPE, windows=(2, 4)))
    assert run(shards, tmp_path, replace(TRAINING, updates=1), model=windows, save_model=False).updates == 1


def test_a_folder_in_which_the_model_has_no_place_is_refused_before_the_first_step(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shards, tmp_path, replace(TRAINING, updates=1, checkpoint_every=None))
    (tmp_path / "model" / "notes.txt").write_text("mine")
    monkeypatch.setattr(TrainingRun, "_make_update", lambda *_: pytest.fail("trained"))
    with pytest.raises(BadRun, match="there is something else here already"):
        run(shards, tmp_path, replace(TRAINING, updates=1, checkpoint_every=None))


@pytest.mark.parametrize("number", [torch.tensor(2.5), np.float32(2.5), 2.5])
def test_an_evaluation_may_give_numbers_of_torch_and_numpy(shards: Path, tmp_path: Path, number: Any) -> None:
    run(shards, tmp_path, replace(TRAINING, updates=1), evaluate=lambda *_: {"loss": number})
    assert [
        line["evaluation.loss"] for line in read_metrics(tmp_path / "metrics.jsonl") if "evaluation.loss" in line
    ] == [2.5]


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    index = small_set(tmp_path / "empty", shards=1).folder / "index.json"
    facts = json.loads(index.read_text())
    facts |= dict.fromkeys(("rows", "tokens", "padding", "documents", "pieces", "bytes"), 0) | {
        "shards": [],
        "sources": [],
    }
    index.write_text(json.dumps(facts))
    with pytest.raises(BadShards, match="0 rows, too few for one batch of 8"):
        run(tmp_path / "empty", tmp_path / "run")


def test_a_shard_that_is_cut_off_stops_the_run_with_its_name(tmp_path: Path) -> None:
    shards = small_set(tmp_path / "set", shards=2, documents=60, vocab_size=50).folder
    last = sorted(shards.glob("*.arrow"))[-1]
    os.truncate(last, last.stat().st_size // 2)
    with pytest.raises(BadShards, match=rf"{last.name}: [\d,]+ bytes, the index says [\d,]+; was it cut off"):
        run(shards, tmp_path / "run")


def test_out_of_memory_says_what_to_do(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with (
        monkeypatch.context() as patch,
        pytest.raises(
            TooLarge, match=r"update 0: out of memory on cpu with 4 rows of 16 tokens a step. Set rows_per_step to 2"
        ),
    ):
        patch.setattr(TrainingRun, "_make_update", full)
        run(shards, tmp_path / "run")
    assert run(shards, tmp_path / "run", replace(TRAINING, rows_per_step=2)).updates == 14


# Updates that would do harm


def bad_rows(monkeypatch: pytest.MonkeyPatch, places: dict[int, float]) -> list[int]:
    """The loss of the batches that begin at these places is multiplied so. Returns the places that were trained on,
    filled as it happens."""
    from gristmill.trainer.run import feed

    trained: list[int] = []
    whole = feed.Feed.update

    def update(self: Any) -> Iterator[Any]:
        for step in whole(self):
            trained.append(step.read.place)
            monkeypatch.setattr(loop.Stepper, "factor", places.get(step.read.place, 1.0), raising=False)
            yield step

    loss = loop.Stepper.loss
    monkeypatch.setattr(feed.Feed, "update", update)
    monkeypatch.setattr(loop.Stepper, "loss", lambda self, packed: loss(self, packed) * self.factor)
    return trained


GUARDED = replace(TRAINING, rows_per_step=8, guard=Guard(least=3, window=8))


def events(folder: Path) -> list[dict[str, Any]]:
    return [event for line in told(folder) for event in line.get("events", [])]


@pytest.mark.parametrize(
    ("factor", "reason"), [(math.nan, "loss not finite"), (math.inf, "loss not finite"), (50.0, "loss above")]
)
def test_a_bad_update_is_skipped_and_told(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, reason: str
) -> None:
    with monkeypatch.context() as patch:
        bad_rows(patch, {40: factor, 48: factor, 80: factor})
        outcome = run(shards, tmp_path / "run", GUARDED)
    found = events(tmp_path / "run")
    assert [(event["refused"], event["place"]) for event in found] == [(5, 40), (6, 48), (10, 80)] and all(
        event["reason"].startswith(reason) for event in found
    )
    assert outcome.refused == 3 and math.isfinite(outcome.loss)
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())


def test_a_skipped_update_leaves_all_as_it_was(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = replace(GUARDED, updates=6, checkpoint_every=1, keep=9, schedule=RateSchedule("constant", 0))
    with monkeypatch.context() as patch:
        bad_rows(patch, {24: 80.0, 32: math.nan})
        run(shards, tmp_path / "run", training)
    at = {
        path.name: (load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors"))
        for path in checkpoint.steps(tmp_path / "run" / "checkpoints")
    }
    for before, after, same in (("step-00000003", "step-00000005", True), ("step-00000005", "step-00000006", False)):
        for ours, theirs in zip(at[before], at[after], strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in ours if "random" not in name) is same


def test_an_update_without_a_target_leaves_all_as_it_was(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights do not decay, and momentum does not push them; nor is the update one that was refused."""
    training = replace(GUARDED, updates=5, checkpoint_every=1, keep=9, schedule=RateSchedule("constant", 0))
    real = loop.Feed.update

    def update(self: Any) -> Iterator[Any]:
        for step in real(self):
            without = replace(step.packed, targets_T=torch.full_like(step.packed.targets_T, -100), counted=0)
            yield step._replace(packed=without, read=replace(step.read, counted=0)) if step.read.place == 24 else step

    monkeypatch.setattr(loop.Feed, "update", update)
    outcome = run(shards, tmp_path / "run", training)
    at = {
        int(path.name[-1]): (load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors"))
        for path in checkpoint.steps(tmp_path / "run" / "checkpoints")
    }
    for before, same in ((2, False), (3, True), (4, False)):
        for ours, theirs in zip(at[before], at[before + 1], strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in ours if "random" not in name) is same
    assert (outcome.updates, outcome.refused) == (5, 0) and math.isfinite(outcome.loss)


def test_a_loss_that_jumps_is_skipped(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is as ever."""
    loss = loop.Stepper.loss
    seen: list[int] = []

    def jumps(self: Any, packed: Any) -> Tensor:
        seen.append(1)
        return loss(self, packed) + (1e6 if len(seen) == 6 else 0)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Stepper, "loss", jumps)
        run(shards, tmp_path / "run", replace(GUARDED, checkpoint_every=1, keep=14, updates=7))
    (event,) = events(tmp_path / "run")
    assert event["refused"] == 5 and event["reason"].startswith("loss above") and event["loss"] > 100
    five, six, seven = (
        load_file(path / "model.safetensors") for path in checkpoint.steps(tmp_path / "run" / "checkpoints")[4:]
    )
    assert all(torch.equal(five[name], six[name]) for name in five) and not torch.equal(
        six["embedding.weight"], seven["embedding.weight"]
    )


def test_a_gradient_that_jumps_is_skipped(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loss is as ever."""
    norm = loop.Stepper._norm
    seen: list[int] = []

    def jumps(self: Any, shared: Any) -> Tensor:
        seen.append(1)
        return norm(self, shared) * (100 if len(seen) == 6 else 1)

    training = replace(GUARDED, checkpoint_every=1, keep=14, updates=7)
    with monkeypatch.context() as patch:
        patch.setattr(loop.Stepper, "_norm", jumps)
        run(shards, tmp_path / "run", training)
    (event,) = events(tmp_path / "run")
    assert event["refused"] == 5 and event["reason"].startswith("norm above") and event["norm"] > 10
    five, six, seven = (
        load_file(path / "model.safetensors") for path in checkpoint.steps(tmp_path / "run" / "checkpoints")[4:]
    )
    assert all(torch.equal(five[name], six[name]) for name in five) and not torch.equal(
        six["embedding.weight"], seven["embedding.weight"]
    )


def test_a_guarded_run_replays(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_rows(monkeypatch, {40: 50.0, 72: math.nan})
    run(shards, tmp_path / "run", GUARDED)
    for update in (7, 11):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(patch, update)
            run(shards, tmp_path / f"run {update}", GUARDED)
        run(shards, tmp_path / f"run {update}", GUARDED)
        assert_same(tmp_path / f"run {update}", tmp_path / "run")


def test_too_many_in_a_row_stop_the_run(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_rows(monkeypatch, dict.fromkeys(range(40, 400, 8), math.nan))
    with pytest.raises(
        UnsoundRun, match=r"4 updates in a row were refused, the last of them update 8 \(loss not finite.*place 64"
    ):
        run(shards, tmp_path / "run", replace(GUARDED, guard=Guard(in_a_row=4)))


# Buckets


def test_buckets_are_opened_as_training_goes_and_replay(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads() -> Any:
        return loader(shards, order=Unlocked(buckets_of(open_shards(shards))))

    training = replace(TRAINING, updates=24, unlocking=Unlocking(below=3.9, stalled=None, at_most=9, smooth=2, every=2))
    trained = bad_rows(monkeypatch, {})
    run(shards, tmp_path / "run", training, loader=reads())
    whole = list(dict.fromkeys(trained))
    found = [event for event in events(tmp_path / "run") if "opened" in event]
    assert [event["count"] for event in found] == [2, 3, 4] and {event["reason"] for event in found} <= {
        "below",
        "at_most",
    }
    assert all(event["place"] == 8 * event["update"] for event in found) and found[0]["update"] > 0
    assert whole == [*range(0, 8 * 24, 8)]
    state = json.loads((checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] / "state.json").read_text())["facts"]
    assert [entry["count"] for entry in state["log"]] == [1, 2, 3, 4]
    assert len(state["watch"]["losses"]) == 24 - found[-1]["update"]  # those of harder text are held against their like
    order = reads()
    rows_before = order.rows_at(torch.arange(8 * found[0]["update"]).numpy())
    assert set(open_shards(shards).take(rows_before).bucket.tolist()) <= {-1, 0}
    for update in (5, 19):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(patch, update)
            run(shards, tmp_path / str(update), training, loader=reads())
        run(shards, tmp_path / str(update), training, loader=reads())
        assert_same(tmp_path / str(update), tmp_path / "run")


# Precision


@pytest.mark.parametrize(
    "change", [{"precision": "bf16"}, {"precision": "fp16"}, {"precision": "bf16", "linears": "fp8"}]
)
def test_other_precisions_go_on_bit_for_bit_too(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    training: Training = replace(TRAINING, **change)
    run(shards, tmp_path / "run", training)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_at(patch, 9)
        run(shards, tmp_path / "again", training)
    run(shards, tmp_path / "again", training)
    assert_same(tmp_path / "again", tmp_path / "run")


@pytest.mark.parametrize("factor", [50.0, math.nan])
def test_a_loss_that_is_refused_says_nothing_of_the_loss_scale(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    bad_rows(monkeypatch, {40: factor, 80: factor})
    outcome = run(shards, tmp_path / "run", replace(GUARDED, precision="fp16"))
    state = json.loads((checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] / "state.json").read_text())
    assert outcome.refused == 2 and state["also"]["loss_scale"] == {"scale": 65536.0, "good": 12}


def test_nothing_is_warned_of(shards: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(shards, tmp_path / "run", replace(TRAINING, deterministic=True, recompute="selective"))
