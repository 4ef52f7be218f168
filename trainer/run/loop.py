"""Trains a decoder on token shards: update after update, from the folder's last checkpoint, to a model on disk.

An update reads `rows_per_update` rows, some at a time. Losses are divided by the number of targets of the whole
update, so any split gives the same update. The loop synchronises with the device only every so many updates
(`TrainingRun._fetch_pending`): it fetches what was computed since in one piece, writes metrics, and acts on it. What a
run does next depends on its settings, its data and its checkpoint alone, so a killed run resumes bit for bit.

Written for one device. `OneDevice` has what several answer otherwise; the loop calls it, and the stepper that it makes,
without knowing which it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from gristmill.shards.loader import Loader
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.run import progress, reporting
from gristmill.trainer.run.averaging import average_last
from gristmill.trainer.run.batch_search import TooLarge, step_rows_on_cpu
from gristmill.trainer.run.feed import DEPTH, BatchFacts, Feed
from gristmill.trainer.run.guard import UnsoundRun, Watch, sound
from gristmill.trainer.run.progress import BadRun, Progress
from gristmill.trainer.run.reporting import Reporter, UpdateResult
from gristmill.trainer.run.settings import Training
from gristmill.trainer.run.stopping import StopAsked, Stopped, reproducible, stop_asked
from gristmill.trainer.run.unlocking import BucketsOpened, Unlocked, log_from_facts
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.balance import BALANCE
from gristmill.trainer.step.checkpoint import CheckpointError
from gristmill.trainer.step.stepper import Stepper, stepper_of
from gristmill.trainer.step.world import ONE, World

Evaluate = Callable[[Decoder, int], dict[str, float]]


@dataclass(frozen=True)
class Target:
    """One of the values that an evaluation gives."""

    name: str
    higher: bool = False  # is better


OVERFLOWS = 40  # in a row: by then fp16's loss scale has nowhere left to fall


@dataclass(frozen=True)
class Outcome:
    """`tokens` without padding, `counted` those with a target, `loss` that of the last accepted update. All processes
    and sessions together, but for `tokens_per_second` and `peak_memory` (of this process), which are the last
    session's."""

    updates: int
    tokens: int
    counted: int
    loss: float
    seconds: float
    tokens_per_second: float
    joules: float | None
    peak_memory: int | None
    refused: int = 0


@dataclass(frozen=True)
class Evaluation:
    """`ask` is called by every process, with the model as it stands and the number of updates made, after every `every`
    updates and at the end (None: at the end alone). With `average`, FOLDER/model is another: the mean of several.
    `target`: what `patience` follows."""

    ask: Evaluate
    every: int | None
    target: Target | None = None

    def __post_init__(self) -> None:
        progress.check_every(self.every)


class OneDevice:
    """What a run asks that has another answer on several devices."""

    world: World = ONE

    def stepper(self, model: Decoder, training: Training, device: torch.device) -> Stepper:
        """The model is taken over."""
        if training.linears == "fp8":
            from gristmill.trainer.model.fp8 import use_fp8

            use_fp8(model)
        return self.build(model, training, device)

    def build(self, model: Decoder, training: Training, device: torch.device) -> Stepper:
        return stepper_of(
            model,
            training.optimizer,
            training.precision,
            balance=training.balance or BALANCE,
            offload=training.offload,
            recompute=training.recompute,
            compile=device.type == "cuda" if training.compile is None else training.compile,
            device=device,
        )

    def step_rows(self, stepper: Stepper, loader: Loader, training: Training) -> int:
        """Rows of a step where none are configured."""
        if stepper.device.type == "cuda":
            raise BadRun(
                "rows_per_step is not given: on a GPU say it, or say with `on` what predicts it (chapter Training)"
            )
        return step_rows_on_cpu(training.rows_per_update, loader.shards.meta.row_length, training.rows_per_update)


ONE_DEVICE = OneDevice()


def train(
    model: Decoder,
    loader: Loader,
    training: Training,
    folder: Path,
    *,
    device: torch.device,
    on: OneDevice = ONE_DEVICE,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    evaluate_target: Target | None = None,
    save_model: bool = True,
    tokenizer: Path | None = None,
    told: reporting.Told | None = None,
    initial_weights: str | None = None,
) -> Outcome:
    """Resumes from the newest checkpoint of `folder` if that is of the same run; if not, refuses the folder and
    lists the differences.

    Every process calls this; `model` is taken over. `on`: what the run is spread over. FOLDER/model is written at the
    end if `save_model`, with `tokenizer`; `told` gets its lines of metrics. `initial_weights` is a hash of the weights
    that the run starts from; None: random ones. When this returns, `loader` is behind the last row trained on. SIGTERM
    and SIGINT leave a checkpoint and raise `Stopped`.
    """
    folder, world = Path(folder), on.world
    progress.check(model.shape, loader, training, world)
    evaluation = None if evaluate is None else Evaluation(evaluate, evaluate_every, evaluate_target)
    if training.patience is not None and (evaluation is None or evaluation.target is None):
        raise BadRun(f"patience {training.patience} follows the target of an evaluation, and there is none")
    if problem := world.gather(
        progress.unwritable(model.shape, folder, tokenizer) if save_model and world.first else None
    )[0]:
        raise BadRun(problem)
    identity = progress.identity_of(model.shape, loader, training, initial_weights)
    if problem := world.gather(progress.claim(folder, identity) if world.first else None)[0]:
        raise progress.OtherRun(problem)
    with reproducible(training.deterministic), stop_asked() as asked:
        torch.manual_seed(training.seed)
        stepper = on.stepper(model, training, device)
        run = TrainingRun(stepper, on, loader, training, folder, asked, evaluation, told)
        with run.reporter:
            run.begin()
            run.train()
            if save_model:
                run.write_model(tokenizer)
            return run.outcome()


class TrainingRun:
    """The fixed parts of a run, and its progress."""

    def __init__(
        self,
        stepper: Stepper,
        on: OneDevice,
        loader: Loader,
        training: Training,
        folder: Path,
        asked: StopAsked,
        evaluation: Evaluation | None,
        told: reporting.Told | None,
    ) -> None:
        self.stepper, self.on, self.loader, self.training = stepper, on, loader, training
        self.asked, self.evaluation = asked, evaluation
        self.folder, self.checkpoints = folder, folder / progress.CHECKPOINTS
        self.device, self.world = stepper.device, stepper.world
        self.progress = Progress(loader=loader.state_dict(), log=progress.log_of(loader, training))
        self.watch = Watch(training.guard, self.device)
        self.reporter = Reporter(folder, training, stepper.model.shape, self.device, self.world, told)
        self.pending: list[tuple[int, BatchFacts, float, Tensor]] = []

    def begin(self) -> None:
        self._restore()
        progress.check_supply(self.loader, self.training.updates - self.progress.update)
        self.progress.rows_per_step = self._rows_per_step()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)  # of the run, not of what was tried before
        self.reporter.begin(self.progress)

    def _restore(self) -> None:
        """From the newest checkpoint that is whole; the one before it leads to the same."""
        first_error: CheckpointError | None = None
        for path in reversed(checkpoint.steps(self.checkpoints)):
            try:
                restored = Progress.from_facts(self.stepper.load(path).facts)
            except CheckpointError as error:
                first_error = first_error or error
                self.reporter.warn(f"{error}; trying the one before")
                continue
            if isinstance(self.loader.order, Unlocked):
                self.loader.order = Unlocked(self.loader.order.buckets, log_from_facts(restored.log))
            progress.set_back(self.loader, restored.loader)
            self.watch.restore(restored.watch)
            self.progress = restored
            return
        if first_error:
            raise first_error

    def _rows_per_step(self) -> int:
        """The configured number, or the one settled when the run began, or one found now."""
        return (
            self.training.rows_per_step
            or self.progress.rows_per_step
            or self.on.step_rows(self.stepper, self.loader, self.training)
        )

    def train(self) -> None:
        """Starts a new feed whenever the rows on their way are not those to read next: when a bucket is opened."""
        while not self._ended():
            progress.set_back(self.loader, self.progress.loader)
            rows_per_step = self.progress.rows_per_step
            if rows_per_step is None:
                raise RuntimeError("rows_per_step is not settled")
            steps = self.training.rows_per_update // self.world.readers // rows_per_step
            depth = max(DEPTH, steps) if self.stepper.passes_at_once else DEPTH
            with Feed(self.loader, rows_per_step, self.device, depth, self.stepper.part_of) as feed:
                stale = False
                while not stale and not self._ended():
                    self._update(feed)
                    stale = self._finish_update()
        progress.set_back(self.loader, self.progress.loader)
        self.reporter.clock(self.progress)

    def _ended(self) -> bool:
        patience = self.training.patience
        lost = patience is not None and self.progress.not_better >= patience
        return lost or self.progress.update >= self.training.updates

    def _update(self, feed: Feed) -> None:
        try:
            self._make_update(feed)
        except torch.OutOfMemoryError as error:
            rows, length = self.progress.rows_per_step or 0, self.loader.shards.meta.row_length
            saved = checkpoint.steps(self.checkpoints)
            raise TooLarge(
                f"update {self.progress.update:,}: out of memory on {self.device} with {rows:,} rows of {length:,} "
                f"tokens a step. Set rows_per_step to {max(1, rows // 2):,}, or recompute to 'selective' or 'full'; "
                "the run then goes on from "
                + (f"{saved[-1]}" if saved else "its beginning, for there is no checkpoint yet")
            ) from error

    def _make_update(self, feed: Feed) -> None:
        """Sends one update to the device; its numbers are fetched later."""
        update = self.progress.update
        share = self.training.schedule.share(update, self.training.updates)
        limits = self.watch.limits()
        steps = feed.update()
        first = next(steps, None)
        if first is None:
            raise BadRun(
                f"{self.loader.shards.folder}: the rows end after {update:,} of {self.training.updates:,} updates; give "
                "the loader more epochs"
            )
        read = first.read
        counts = self.world.total_read(_to_device([read.counted, read.tokens], self.device))
        whole = counts[0].clamp(min=1)
        mean = self.stepper.accumulate(((step.packed, step.last) for step in chain([first], steps)), whole) / whole
        good = sound(mean, limits[0])
        limit = torch.where(good & (counts[0] > 0), limits[1], -math.inf)  # without a target nothing moves, nor decays
        norm = self.stepper.step(share, limit, ~good)
        accepted = self.watch.judged(mean, norm, limits, counts[0])
        self.pending.append(
            (update, read, share, torch.stack([mean, norm.double(), accepted.double(), *counts.double(), *limits]))
        )
        self.progress.update = update + 1
        self.progress.loader = read.state

    def _finish_update(self) -> bool:
        """Does what is due after an update. Returns whether the feed has read rows that no longer come next."""
        training, updates, evaluation = self.training, self.progress.update, self.evaluation
        ends = updates == training.updates
        reports = ends or updates % training.metrics_every == 0
        saves = training.checkpoint_due(updates)
        opens = training.unlocking is not None and updates % training.unlocking.every == 0
        evaluates = evaluation is not None and (
            ends or (evaluation.every is not None and updates % evaluation.every == 0)
        )
        stop_asked_here = self.asked.name is not None and self.world.count == 1
        if not (reports or saves or opens or evaluates or stop_asked_here):
            return False
        self._fetch_pending()
        signals = [name for name in self.world.gather(self.asked.name) if name]
        opened = opens and self._open_bucket()
        if reports:
            self.reporter.report(self.progress, self.stepper.balance.facts())
        if evaluates and evaluation is not None:
            self._evaluate(evaluation)
        early = self._ended() and not ends
        if early and not reports:
            self.reporter.report(self.progress, self.stepper.balance.facts())
        if saves or signals or (early and training.checkpoint_every is not None):
            self._save()
        if signals and not (ends or early):
            raise Stopped(
                f"{signals[0]} after {updates:,} of {training.updates:,} updates; a checkpoint is in {self.checkpoints}"
            )
        return opened

    def _fetch_pending(self) -> None:
        """Synchronises with the device and processes the updates since the last time."""
        pending, self.pending = self.pending, []
        if not pending:
            return
        fetched = torch.stack([numbers for *_, numbers in pending]).tolist()
        for (update, read, share, _), (loss, norm, accepted, counted, tokens, *limits) in zip(
            pending, fetched, strict=True
        ):
            result = UpdateResult(
                update, read, share, loss, norm, accepted > 0, int(counted), int(tokens), (limits[0], limits[1])
            )
            self.progress.tokens += result.tokens
            self.reporter.add(result)
            if result.accepted:
                self._accept(result)
            else:
                self._refuse(result)

    def _accept(self, result: UpdateResult) -> None:
        now = self.progress
        now.in_a_row = 0
        if not result.counted:  # documents of one token: a loss of nothing is none
            return
        now.counted += result.counted
        now.loss = result.loss
        now.line_losses.append(result.loss)
        if self.training.unlocking is not None:
            now.stage_losses = [*now.stage_losses, result.loss][-2 * self.training.unlocking.smooth :]

    def _refuse(self, result: UpdateResult) -> None:
        now, guard = self.progress, self.training.guard
        now.refused += 1
        now.in_a_row += 1
        now.line_events.append(reporting.refused_event(result))
        overflow = self.training.precision == "fp16" and result.overflow
        if now.in_a_row >= (max(OVERFLOWS, guard.in_a_row) if overflow else guard.in_a_row):
            raise UnsoundRun(
                f"{now.in_a_row} updates in a row were refused, the last of them update {result.update:,} "
                f"({result.reason}; loss {result.loss:.4g}, gradient norm "
                f"{result.norm:.4g}). Lower the rate, look at the rows from place {result.read.place:,} on, or set "
                "guard.loss_times and norm_times higher"
            )

    def _open_bucket(self) -> bool:
        """Opens the next bucket, if it is time."""
        rule, order, now = self.training.unlocking, self.loader.order, self.progress
        if rule is None or not isinstance(order, Unlocked):
            raise RuntimeError("the order of these rows has no buckets to open")
        last = order.log[-1]
        reason = None if order.whole else rule.reason(now.stage_losses, now.update - last.update)
        if reason is None:
            return False
        recent = now.stage_losses[-rule.smooth :]
        place = now.loader["epoch"] * self.loader.epoch_rows + now.loader["row"]
        opened = BucketsOpened(place, last.count + 1, now.update, reason, sum(recent) / len(recent) if recent else None)
        self.loader.order = order.opened(opened)
        now.log, now.stage_losses = [*now.log, opened.facts()], []
        now.line_events.append(reporting.opened_event(order.buckets.numbers[last.count], opened))
        self.watch.reset()  # the losses of harder text are no spikes
        return True

    def _evaluate(self, evaluation: Evaluation) -> None:
        model = self.stepper.model
        model.eval()
        with self.reporter.pause(), torch.no_grad(), self.stepper.computing():
            values = evaluation.ask(model, self.progress.update)
        model.train()
        self.reporter.report_evaluation(self.progress.update, values)
        if self.training.patience is not None and evaluation.target is not None:
            now = self.progress
            [value, *_] = self.world.gather(float(values[evaluation.target.name]))  # one for all
            worth = -value if evaluation.target.higher else value
            better = now.best is None or worth < now.best
            now.best, now.not_better = (worth, 0) if better else (now.best, now.not_better + 1)

    def _save(self) -> None:
        now = self.progress
        with self.reporter.pause():
            now.watch = self.watch.facts()
            self.reporter.clock(now)
            self.reporter.sync()
            self.stepper.save(
                self.checkpoints, now.update, now.facts(), self.training.keep, self.training.checkpoint_due
            )

    def write_model(self, tokenizer: Path | None) -> None:
        from gristmill.trainer.model.llama import save_llama

        weights = self.stepper.weights()
        if self.world.first:
            if self.training.average > 1:
                weights = average_last(self.checkpoints, self.training.average, self.training.checkpoint_due)
            save_llama(weights, self.stepper.model.shape, self.folder / progress.MODEL, tokenizer)

    def outcome(self) -> Outcome:
        now = self.progress
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        return Outcome(
            *(now.update, now.tokens, now.counted),
            loss=math.nan if now.loss is None else now.loss,
            seconds=now.seconds,
            tokens_per_second=self.reporter.speed(now),
            joules=now.joules,
            peak_memory=peak,
            refused=now.refused,
        )


def _to_device(numbers: list[int], device: torch.device) -> Tensor:
    """Without a synchronisation."""
    here = torch.tensor(numbers)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here
