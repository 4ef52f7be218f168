"""Tokens to scores without padding: texts sorted by length inside a window, packed into steps of a fixed number of
tokens, several steps under way.

A text's score does not depend on its neighbours beyond the rounding of the precision: the matmuls of a step may
add in another order than those of a step of another size (below 1e-5 of the range in float32; about 1e-2 in bf16).
Results come back in the order of the texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gristmill.classifiers.neural.encoder import PackedTexts
from gristmill.classifiers.neural.text_tokens import TextTokens
from gristmill.kernels.base.types import Array

Answer = Callable[[PackedTexts], Tensor]


@dataclass(frozen=True)
class Pace:
    """`step_tokens`: of a step; `window_steps`: as many steps' texts are sorted by length together, at the beginning
    fewer; `under_way`: steps sent ahead of their results.

    `compiled`: full steps go through torch.compile, which takes some 20 s before the first; a step at least `filled`
    full is filled up to `step_tokens`, so that it has the one shape that is compiled.
    """

    step_tokens: int = 65_536
    window_steps: int = 16
    under_way: int = 4
    compiled: bool = False
    filled: float = 0.9


class ScoringStep(NamedTuple):
    """Texts of a step: their rows among all texts, their tokens end to end; filling goes on behind them."""

    rows: Array  # int64_N
    tokens: Array  # int32_T
    positions: Array  # int32_T
    cuts: Array  # int32, from 0, those of the filling too
    longest: int


def steps_of(tokens: Iterable[TextTokens], pace: Pace) -> Iterator[ScoringStep]:
    """All texts, in windows; what does not fill the last step of a window waits for the next. The first windows are of
    1, 2, 4... steps, so that the device does not wait for the texts of all."""
    window: list[TextTokens] = []
    rows: list[Array] = []
    gathered = seen = 0
    window_steps = 1
    for piece in tokens:
        window.append(piece)
        rows.append(np.arange(seen, seen + len(piece.lengths)))
        seen += len(piece.lengths)
        gathered += len(piece.ids)
        if gathered >= window_steps * pace.step_tokens:
            window_steps = min(2 * window_steps, pace.window_steps)
            whole, places = _concatenate(window), np.concatenate(rows)
            *full, last = pack_lengths(whole.lengths, pace.step_tokens)
            starts = np.cumsum(whole.lengths) - whole.lengths
            for chosen in full:
                yield _step(whole, starts, places, chosen, pace)
            ids = [whole.ids[starts[i] : starts[i] + whole.lengths[i]] for i in last.tolist()]
            window, rows = [TextTokens(np.concatenate(ids), whole.lengths[last])], [places[last]]
            gathered = len(window[0].ids)
    if seen:
        whole, places = _concatenate(window), np.concatenate(rows)
        starts = np.cumsum(whole.lengths) - whole.lengths
        for chosen in pack_lengths(whole.lengths, pace.step_tokens):
            yield _step(whole, starts, places, chosen, pace)


def pack_lengths(lengths: Array, budget: int) -> list[Array]:
    """Rows for each step: the longest first, and the room that is left at a step's end goes to the shortest. The least
    full step comes last."""
    order = np.argsort(-lengths, kind="stable")
    sizes = lengths[order].tolist()
    steps: list[Array] = []
    first, last = 0, len(order)
    while first < last:
        begin, used = first, 0
        while first < last and (first == begin or used + sizes[first] <= budget):
            used += sizes[first]
            first += 1
        end = last
        while first < last and used + sizes[last - 1] <= budget:
            last -= 1
            used += sizes[last]
        steps.append(np.concatenate([order[begin:first], order[last:end]]))
    return steps


def _concatenate(window: list[TextTokens]) -> TextTokens:
    return TextTokens(
        np.concatenate([piece.ids for piece in window]), np.concatenate([piece.lengths for piece in window])
    )


def _step(whole: TextTokens, starts: Array, places: Array, chosen: Array, pace: Pace) -> ScoringStep:
    lengths = whole.lengths[chosen]
    longest, size = int(lengths.max()), int(lengths.sum())
    ends = np.cumsum(lengths)
    source = np.repeat(starts[chosen] - (ends - lengths), lengths)
    source += np.arange(size)
    tokens = whole.ids[source]
    missing = pace.step_tokens - size
    if pace.compiled and 0 < missing <= (1 - pace.filled) * pace.step_tokens:
        tokens = np.concatenate([tokens, np.zeros(missing, np.int32)])
        filling = np.minimum(np.arange(longest, missing + longest, longest), missing)
        ends, lengths = np.concatenate([ends, size + filling]), np.concatenate([lengths, np.diff(filling, prepend=0)])
    positions = np.arange(len(tokens), dtype=np.int32) - np.repeat(ends - lengths, lengths).astype(np.int32)
    return ScoringStep(places[chosen], tokens, positions, np.concatenate([[0], ends]).astype(np.int32), longest)


class Results(NamedTuple):
    rows: Array
    answers: Array  # float32_NK


class _Slot:
    """Pinned room for a step's input, and where its answers arrive."""

    def __init__(self, pace: Pace, longest: int, device: torch.device) -> None:
        room = max(pace.step_tokens, longest)
        self.device = device
        self.buffers = [torch.empty(size, dtype=torch.int32, pin_memory=True) for size in (room, room, room + 1)]
        self.done = torch.cuda.Event()
        self.rows: Array | None = None
        self.answers: Tensor | None = None

    def launch(self, answer: Answer, step: ScoringStep) -> None:
        sent = []
        for buffer, array in zip(self.buffers, (step.tokens, step.positions, step.cuts), strict=True):
            part = buffer[: len(array)]
            part.numpy()[:] = array
            sent.append(part.to(self.device, non_blocking=True))
        answers = answer(PackedTexts(sent[0], sent[1], sent[2], step.longest))[: len(step.rows)]
        self.answers = torch.empty(answers.shape, dtype=answers.dtype, pin_memory=True).copy_(
            answers, non_blocking=True
        )
        self.rows = step.rows
        self.done.record(torch.cuda.current_stream(self.device))

    def results(self) -> Results:
        if self.rows is None or self.answers is None:
            raise RuntimeError("results were asked for before any rows were sent")
        self.done.synchronize()
        return Results(self.rows, self.answers.numpy())


def run_steps(
    steps: Iterable[ScoringStep], answer: Answer, device: torch.device, pace: Pace, longest: int
) -> Iterator[Results]:
    """Of each step, in their order. On CUDA the host prepares steps while the device works on others."""
    if device.type != "cuda":
        for step in steps:
            arrays = [torch.from_numpy(array) for array in (step.tokens, step.positions, step.cuts)]
            answers = answer(PackedTexts(arrays[0], arrays[1], arrays[2], step.longest))
            yield Results(step.rows, answers[: len(step.rows)].numpy())
        return
    with torch.cuda.device(device):
        free = [_Slot(pace, longest, device) for _ in range(pace.under_way + 1)]
        at_work: deque[_Slot] = deque()
        for step in steps:
            slot = free.pop()
            slot.launch(answer, step)
            at_work.append(slot)
            if not free:
                yield at_work[0].results()
                free.append(at_work.popleft())
        while at_work:
            yield at_work.popleft().results()


def in_order(results: Iterable[Results], texts: int, width: int) -> Array:
    """float32_NK, in the order of the texts."""
    whole = np.full((texts, width), np.nan, np.float32)
    unanswered = texts
    for rows, answers in results:
        whole[rows] = answers
        unanswered -= len(rows)
    if unanswered:
        raise RuntimeError(f"{unanswered} texts were given no score")
    return whole
