"""How long a run takes on this machine, from a few seconds of the run itself: steps of training, and texts scored.

Everything is tried as the run does it: its model, rows, precision and compilation, its held-out texts and tokenizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gristmill.pipeline.formatting import as_bytes
from gristmill.pipeline.train.evaluation import documents_of
from gristmill.pipeline.train.records import Job

if TYPE_CHECKING:
    import torch

    from gristmill.shards.loader import Loader
    from gristmill.trainer.evaluation.scoring import Continuation
    from gristmill.trainer.model.model import Decoder
    from gristmill.trainer.model.shapes import DecoderShape
    from gristmill.trainer.run.settings import Training
    from gristmill.trainer.step.stepper import Stepper

Pieces = Mapping[str, Sequence["Continuation"]]  # what is scored, by set of the evaluation

ENOUGH = 1.0  # seconds of steps, the first aside
MOST_ROUNDS = 10  # of scoring a few texts
LONGEST = 4.0  # seconds of a step that is tried: of a large model fewer rows than a step of the run has


class NotTried(Exception):
    """There is no room for the run here; the message says what it would take."""


@dataclass(frozen=True)
class Trial:
    """Seconds, as measured here."""

    start: float  # until the first step is done: the model made, texts tokenized, code compiled
    row: float  # of training, forward and backward
    update: float  # of the optimizer
    token: float  # of measuring
    tokens: Mapping[str, int]  # that are measured, by set
    tokens_on_the_way: int  # of one measurement before the end
    seconds: float  # that the trial took

    @property
    def measuring(self) -> float:
        """All sets, once."""
        return self.token * sum(self.tokens.values())

    @property
    def largest(self) -> str:
        """The set that takes most of the time of measuring."""
        return max(self.tokens, key=lambda name: self.tokens[name])

    def training(self, updates: int, rows_per_update: int) -> float:
        return updates * (rows_per_update * self.row + self.update)


def try_job(job: Job) -> Trial:
    """A job of one rank, for a few seconds; its folder is not touched."""
    import torch

    from gristmill.pipeline.train.work import first_model, held_out_texts, watched_documents, what_is_read
    from gristmill.shards.loader import Loader
    from gristmill.trainer.model.shapes import DecoderShape
    from gristmill.trainer.run.settings import Training

    if job["ranks"] > 1:
        raise NotTried(f"a trial needs all {job['ranks']} ranks")
    if job["threads"]:
        torch.set_num_threads(job["threads"])
    device, training = torch.device(job["device"]), Training.from_facts(job["training"])
    begun = time.perf_counter()
    sets, order = what_is_read(job, training)
    loader = Loader(sets, training.rows_per_update, order, training.order_seed)
    spec, tokens = job["evaluate"], 0
    pieces: dict[str, Sequence[Continuation]] = {}
    if spec is not None:
        for name, texts in spec["texts"].items():
            pieces[name] = held_out_texts(documents_of(name, texts), job).pieces
        for name, choices in spec["choices"].items():
            tokenizer = Path(str(job["tokenizer"]))
            pieces[name] = pieces_of_questions(Path(choices["file"]), tokenizer, job["row_length"], job["before"])
        for name in spec["watched"]:
            if name in spec["choices"]:
                tokens += tokens_in(pieces[name])
            else:
                tokens += tokens_in(held_out_texts(watched_documents(spec, name), job).pieces)
    shape = DecoderShape.from_facts(job["begin"]["shape"])
    return try_out(lambda: first_model(job["begin"], device), shape, loader, training, pieces, device, begun, tokens)


def try_out(
    make: Callable[[], Decoder],
    shape: DecoderShape,
    loader: Loader,
    training: Training,
    pieces: Pieces,
    device: torch.device,
    begun: float,
    tokens_on_the_way: int = 0,
) -> Trial:
    """`begun`: when the run's making began, by `time.perf_counter`."""
    from gristmill.trainer.run.batch_search import divisors, step_rows_on_cpu
    from gristmill.trainer.run.loop import ONE_DEVICE
    from gristmill.trainer.run.stopping import reproducible

    length, rows = loader.shards.meta.row_length, training.rows_per_update
    most = training.rows_per_step or step_rows_on_cpu(rows, length, training.most_step_rows(1))
    candidates = rows_that_fit([some for some in divisors(rows) if some <= most], shape, training, length, device)
    with reproducible(training.deterministic):
        stepper = ONE_DEVICE.stepper(make(), training, device)
        tried = candidates[-1] if device.type == "cuda" else candidates[0]  # a GPU compiles each number of rows anew
        steps = _try_steps(stepper, loader, tried, ENOUGH if len(candidates) == 1 or device.type == "cuda" else 0.0)
        start = steps.until_second - begun - steps.row * tried - steps.update
        fits = [some for some in candidates if some * steps.row <= LONGEST]
        if device.type != "cuda" and fits and fits[-1] > tried:
            steps = _try_steps(stepper, loader, fits[-1], ENOUGH)
        some = [piece for of_set in pieces.values() for piece in of_set]
        token = _seconds_of_token(stepper, some, round(LONGEST / steps.row * length)) if some else 0.0
    tokens = {name: tokens_in(of_set) for name, of_set in pieces.items()}
    return Trial(
        max(0.0, start), steps.row, steps.update, token, tokens, tokens_on_the_way, time.perf_counter() - begun
    )


def rows_that_fit(
    candidates: Sequence[int], shape: DecoderShape, training: Training, row_length: int, device: torch.device
) -> list[int]:
    """Numbers of rows of a step, by the memory that they are predicted to take."""
    import psutil
    import torch

    from gristmill.trainer.parallel.memory import rank_memory

    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    needed = {rows: rank_memory(shape, training, 1, row_length, rows).peak for rows in candidates}
    if min(needed.values()) > free:
        raise NotTried(
            f"a run needs about {as_bytes(min(needed.values()))} of memory, and {as_bytes(free)} are free here"
        )
    return [rows for rows, size in needed.items() if size <= free]


def tokens_in(pieces: Sequence[Continuation]) -> int:
    return sum(len(piece.tokens) for piece in pieces)


def pieces_of_questions(file: Path, tokenizer: Path, row_length: int, before: int | None) -> list[Continuation]:
    """What is scored for multiple-choice questions."""
    from tokenizers import Tokenizer

    from gristmill.trainer.evaluation.multiple_choice import encode_questions, read_questions
    from gristmill.trainer.evaluation.scoring import Continuation

    pairs = encode_questions(read_questions(file), Tokenizer.from_file(str(tokenizer)), row_length, before)
    return [Continuation(pair.tokens, 1) for pair in pairs if len(pair.tokens) > 1]


class _Steps(NamedTuple):
    """Medians of all steps but the first: what else the machine does holds up some."""

    row: float
    update: float
    until_second: float  # when the first one was done


def _try_steps(stepper: Stepper, loader: Loader, rows: int, enough: float) -> _Steps:
    """Steps of so many rows, at rate 0, until all but the first took `enough` seconds."""
    import torch

    from gristmill.trainer.run.feed import Feed

    passes: list[float] = []
    updates: list[float] = []
    until_second = 0.0
    with Feed(loader, rows, stepper.device) as feed:
        for number, step in enumerate(feed.steps()):
            whole = torch.tensor(float(max(1, step.read.counted)), dtype=torch.float64, device=stepper.device)
            begun = time.perf_counter()
            stepper.accumulate([(step.packed, True)], whole)
            _wait(stepper.device)
            between = time.perf_counter()
            stepper.step(0.0)
            _wait(stepper.device)
            ended = time.perf_counter()
            if number == 0:
                until_second = ended
                continue
            passes.append(between - begun)
            updates.append(ended - between)
            if sum(passes) + sum(updates) >= enough:
                break
    return _Steps(median(passes) / rows, median(updates), until_second)


def _seconds_of_token(stepper: Stepper, pieces: Sequence[Continuation], most: int) -> float:
    """Of scoring; pieces of all lengths, of at most so many tokens together."""
    import torch

    from gristmill.trainer.evaluation.scoring import score_continuations

    by_length = sorted(pieces, key=lambda piece: len(piece.tokens))
    some = by_length[:: max(1, -(-tokens_in(pieces) // max(1, most)))]
    model = stepper.model.eval()
    rounds: list[float] = []  # the first is slower, and what else the machine does holds up some
    with torch.no_grad(), stepper.computing():
        while len(rounds) < 2 or (len(rounds) < MOST_ROUNDS and sum(rounds) < ENOUGH):
            begun = time.perf_counter()
            score_continuations(model, some, stepper.device)
            rounds.append(time.perf_counter() - begun)
    return min(rounds) / tokens_in(some)


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
