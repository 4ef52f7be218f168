"""Pipelines: ranks hold different blocks, and pass micro-batches on to each other
(`gristmill.trainer.parallel.pipeline_plan` says which and when).

All ranks of a pipeline read the same rows, so only hidden states and their gradients travel: the residual stream of a
micro-batch, whose size every rank knows. Each direction between two neighbours has a process group of its own, and its
messages are received in the order in which the other rank sends them, which both know: none waits for another that
comes later.

A head tied to the embedding is a copy in the last stage. Its gradients are summed there in float32 and added to the
embedding's in the first stage, which alone steps, before ranks that see other rows sum theirs; the new weights go the
other way. Where one rank holds both stages nothing travels.

T tokens, C hidden width, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gristmill.trainer.model.linear_cross_entropy import linear_cross_entropy
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.parallel.deferred import DeferredWeights
from gristmill.trainer.parallel.pipeline_plan import SPLIT, Action, Plan
from gristmill.trainer.parallel.ranks import Grid, RankGroup
from gristmill.trainer.parallel.zero import BucketedGradients, call_if_alive


class StagedDecoder(Decoder):
    """A rank's blocks of a decoder, by their names in the whole; of embedding, norm and head what its stages use.

    `hidden` and all that is made of it work on every rank, if all ranks of the pipeline ask the same: for evaluation.
    """

    def __init__(self, whole: Decoder, plan: Plan, ranks: RankGroup) -> None:
        nn.Module.__init__(self)
        self.shape, self.plan, self.ranks = whole.shape, plan, ranks
        stages = plan.stages(ranks.rank)
        self.blocks = nn.ModuleList()
        for layer in plan.held(ranks.rank):
            self.blocks.add_module(str(layer), whole.blocks[layer])
        if 0 in stages:
            self.embedding = whole.embedding
        self.is_last = plan.last in stages
        if self.is_last:
            self.norm, self.head = whole.norm, whole.head
        self.tied_copy = whole.embedding.weight.detach().clone() if self.is_last and self.shape.tied else None
        for name in ("embedding", "blocks", "norm", "head"):  # what other ranks hold takes no memory here
            delattr(whole, name)

    def run_stage(self, stage: int, x_TC: Tensor | None, packed: PackedTokens) -> Tensor:
        """The residual stream behind a stage; behind the last, normed."""
        x = self.embedding(packed.ids_T) if x_TC is None else x_TC
        blocks = (self.blocks.get_submodule(str(layer)) for layer in range(*self.plan.layers[stage]))
        x, change, _ = self.through(blocks, x, packed)
        if stage == self.plan.last:
            normed: Tensor = self.norm.of_sum(x, change)[1]
            return normed
        return x if change is None else x + change

    @torch.no_grad()
    def hidden(self, packed: PackedTokens) -> Tensor:
        x: Tensor | None = None
        for stage, rank in enumerate(self.plan.rank_of):
            x = self.run_stage(stage, x, packed) if rank == self.ranks.rank else None
            x = self._from(rank, x, (len(packed.ids_T), self.shape.hidden), packed.ids_T.device)
        if x is None:
            raise RuntimeError("a pipeline without stages")
        return x

    @property
    def own_head(self) -> Tensor:
        """In the last stage."""
        if self.tied_copy is not None:
            return self.tied_copy
        if self.head is None:
            raise RuntimeError("this rank does not hold the last stage")
        return self.head.weight

    @property
    def head_weight(self) -> Tensor:
        own = self.own_head.detach() if self.is_last else None
        device = next(self.parameters()).device
        return self._from(self.plan.rank_of[-1], own, (self.shape.vocabulary, self.shape.hidden), device)

    def _from(self, rank: int, own: Tensor | None, size: tuple[int, int], device: torch.device) -> Tensor:
        """What a rank holds, on all of the pipeline."""
        x = torch.empty(size, dtype=next(self.parameters()).dtype, device=device) if own is None else own.contiguous()
        torch.distributed.broadcast(x, group=self.ranks.group or torch.distributed.group.WORLD, group_src=rank)
        return x


class Edge:
    """Messages between two ranks of a pipeline, one way."""

    def __init__(self, group: Any, sender: int, receiver: int) -> None:
        self.group, self.sender, self.receiver = group, sender, receiver
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def send(self, x: Tensor) -> None:
        x = x.contiguous()
        self._sent.append((torch.distributed.isend(x, self.receiver, group=self.group), x))
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()

    def ask(self, like: Tensor) -> tuple[Any, Tensor]:
        """Begins to receive into `like`."""
        return torch.distributed.irecv(like, self.sender, group=self.group), like

    def wait(self) -> None:
        while self._sent:
            self._sent.popleft()[0].wait()

    def connect(self, rank: int, device: torch.device) -> None:
        """Both ends meet once. NCCL joins them at the first message, and that must not wait behind other messages."""
        token = torch.zeros(1, device=device)
        if rank == self.sender:
            self.send(token)
            self.wait()
        else:
            self.ask(token)[0].wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)


class Pipeline:
    """Runs updates of a `StagedDecoder`. All ranks must make one: it makes process groups."""

    def __init__(
        self,
        model: StagedDecoder,
        grid: Grid,
        gradients: BucketedGradients,
        computing: Callable[[], AbstractContextManager[object]],
        device: torch.device,
    ) -> None:
        self.model, self.plan, self.ranks, self.device = model, model.plan, grid.pipeline, device
        self._gradients, self._computing = gradients, computing
        self._dtype = next(model.parameters()).dtype
        self._deferred = DeferredWeights(model) if self.plan.schedule in SPLIT else None
        steps = {(a, b) for a, b in itertools.pairwise(self.plan.rank_of) if a != b}
        self._edges = _edges(grid, steps | {(b, a) for a, b in steps}, device)
        self._tied = _TiedHead(model, grid, device) if model.shape.tied else None
        self._loaded = False
        self.clear()

    def clear(self) -> None:
        self._roots: dict[tuple[int, int], tuple[Tensor | None, Tensor | GradientEdge]] = {}
        self._here: dict[Action, Tensor] = {}  # what this rank sent to itself
        self._asked: dict[Action, tuple[Any, Tensor]] = {}
        self._coming: dict[int, deque[Action]] = {}
        if self._deferred:
            self._deferred.clear()
        if self._tied:
            self._tied.total = None

    def load(self, packed: PackedTokens) -> None:
        """Every kernel works once, for nothing. A kernel's first launch loads it, and may wait until the device is
        idle; behind a message that waits for the other rank, it would wait for what that rank needs from here."""
        for stage in self.plan.stages(self.ranks.rank):
            size = len(packed.ids_T), self.model.shape.hidden
            x = torch.zeros(size, dtype=self._dtype, device=self.device, requires_grad=True) if stage else None
            with self._computing():
                output = self.model.run_stage(stage, x, packed)
                if stage == self.plan.last:
                    output = linear_cross_entropy(output, self.model.own_head, packed.targets_T)
            layers = range(*self.plan.layers[stage])
            weights = [w for layer in layers for w in self.model.blocks.get_submodule(str(layer)).parameters()]
            asked = [*weights, *([] if x is None else [x])]
            backward = partial(torch.autograd.grad, output, asked, torch.ones_like(output), allow_unused=True)
            if self._deferred:
                self._deferred.during("loading", backward)
                self._deferred.gradients("loading")
            else:
                backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._loaded = True

    def run(self, micros: Sequence[PackedTokens], weigh: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradients of an update, summed over ranks that see other rows. Returns this rank's sum of losses, which is 0
        before the last stage. `weigh`: what of a loss is learned from."""
        orders = self.plan.orders(len(micros))
        if not self._loaded and self.device.type == "cuda":
            self.load(micros[0])
        self.clear()
        self._micros, self._weigh = micros, weigh
        self._total = torch.zeros((), dtype=torch.float64, device=self.device)
        mine = self.ranks.rank
        self._coming = {
            rank: deque(to for action in order if (to := self._receiver(action)) and self._rank(to) == mine)
            for rank, order in enumerate(orders)
            if rank != mine
        }
        for action in orders[mine]:
            self._ask(action)
            {"forward": self._forward, "backward": self._backward, "weights": self._weights}[action.kind](action)
        self._gradients.finish()
        for edge in self._edges.values():
            edge.wait()
        if self._tied:
            self._tied.wait()
        return self._total

    def refresh(self) -> None:
        """After the optimiser's step, or when weights were loaded."""
        if self._tied:
            self._tied.refresh()

    def _forward(self, action: Action) -> None:
        stage, packed = action.stage, self._micros[action.micro]
        x = self._received(action).requires_grad_() if stage else None
        with self._computing():
            output = self.model.run_stage(stage, x, packed)
            if stage == self.plan.last:
                loss = linear_cross_entropy(output, self.model.own_head, packed.targets_T)
                self._total += loss.detach().double()
                self._roots[stage, action.micro] = (x, self._weigh(loss))
                return
        # The graph alone: the output itself is only sent.
        self._roots[stage, action.micro] = (x, get_gradient_edge(output))
        self._send(Action("forward", stage + 1, action.micro), output.detach())

    def _backward(self, action: Action) -> None:
        stage, micro = action.stage, action.micro
        x, root = self._roots.pop((stage, micro))
        gradient = None if stage == self.plan.last else self._received(action)
        final = micro == len(self._micros) - 1
        if final and stage == 0 and self._tied:
            self._tied.add_to(self._gradients)
        if self._deferred:
            self._deferred.during((stage, micro), lambda: self._gradients.accumulate(root, gradient, final))
        else:
            self._gradients.accumulate(root, gradient, final)
        if x is not None:
            if x.grad is None:
                raise RuntimeError(f"stage {stage} has no gradient for the one before")
            self._send(Action("backward", stage - 1, micro), x.grad)
        if final and stage == self.plan.last and self._tied:
            self._tied.send()

    def _weights(self, action: Action) -> None:
        if self._deferred:
            for weight, gradient in self._deferred.gradients((action.stage, action.micro)):
                self._gradients.add(weight, gradient, action.micro == len(self._micros) - 1)

    # Messages

    def _rank(self, action: Action) -> int:
        return self.plan.rank_of[action.stage]

    def _receiver(self, action: Action) -> Action | None:
        """Who needs what an action makes."""
        if action.kind == "forward" and action.stage < self.plan.last:
            return Action("forward", action.stage + 1, action.micro)
        if action.kind == "backward" and action.stage > 0:
            return Action("backward", action.stage - 1, action.micro)
        return None

    def _send(self, to: Action, x: Tensor) -> None:
        rank = self._rank(to)
        if rank == self.ranks.rank:
            self._here[to] = x
        else:
            self._edges[self.ranks.rank, rank].send(x.to(self._dtype))

    def _ask(self, action: Action) -> None:
        """Asks for all that comes up to what an action needs."""
        stage = action.stage + {"forward": -1, "backward": 1, "weights": 0}[action.kind]
        if action.kind == "weights" or not 0 <= stage <= self.plan.last:
            return
        rank = self.plan.rank_of[stage]
        if rank == self.ranks.rank:
            return
        while action not in self._asked and self._coming[rank]:
            coming = self._coming[rank].popleft()
            size = len(self._micros[coming.micro].ids_T), self.model.shape.hidden
            buffer = torch.empty(size, dtype=self._dtype, device=self.device)
            self._asked[coming] = self._edges[rank, self.ranks.rank].ask(buffer)

    def _received(self, action: Action) -> Tensor:
        if action in self._here:
            return self._here.pop(action)
        work, x = self._asked.pop(action)
        work.wait()
        return x


class _TiedHead:
    """The head's copy of the embedding in the last stage."""

    def __init__(self, model: StagedDecoder, grid: Grid, device: torch.device) -> None:
        self.model = model
        self.total: Tensor | None = None  # of its gradients
        last = model.plan.rank_of[-1]
        pair = _edges(grid, {(0, last), (last, 0)}, device) if last else {}
        self._up, self._down = pair.get((last, 0)), pair.get((0, last))
        if model.tied_copy is not None:
            copy = model.tied_copy.to(device, _dtype_of(model)) if last else model.embedding.weight.detach()
            model.tied_copy = copy.requires_grad_()
            register: Any = model.tied_copy.register_post_accumulate_grad_hook
            register(call_if_alive(self._arrived))

    def _arrived(self, copy: Tensor) -> None:
        if copy.grad is not None:
            wide = torch.promote_types(copy.dtype, torch.float32)
            self.total = copy.grad.to(wide) if self.total is None else self.total.add_(copy.grad)
            copy.grad = None

    def send(self) -> None:
        """After the last gradient."""
        if self._up is not None and self.total is not None:
            self._up.send(self.total)
            self.total = None

    def add_to(self, gradients: BucketedGradients) -> None:
        """In the first stage."""
        weight = self.model.embedding.weight
        if self._up is not None:
            wide = torch.promote_types(weight.dtype, torch.float32)
            work, self.total = self._up.ask(torch.empty(weight.shape, dtype=wide, device=weight.device))
            work.wait()
        if self.total is None:
            raise RuntimeError("the head has no gradient yet")
        gradients.add(weight, self.total, False)
        self.total = None

    @torch.no_grad()
    def refresh(self) -> None:
        """The copy, after the embedding was changed."""
        if self._down is None:
            return
        if self.model.tied_copy is None:
            self._down.send(self.model.embedding.weight.detach())
            self._down.wait()
        else:
            self._down.ask(self.model.tied_copy)[0].wait()

    def wait(self) -> None:
        if self._up is not None:
            self._up.wait()


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


def _edges(grid: Grid, steps: Iterable[tuple[int, int]], device: torch.device) -> dict[tuple[int, int], Edge]:
    """Between these places of every pipeline; those that this rank is an end of. All ranks must call this."""
    of_stage = grid.all.count // grid.pipeline.count
    found = {}
    for place in range(of_stage):
        for a, b in sorted(steps):
            ends = place + a * of_stage, place + b * of_stage
            group: Any = torch.distributed.new_group(list(ends))
            if grid.all.rank in ends:
                found[a, b] = Edge(group, *ends)
                found[a, b].connect(grid.all.rank, device)
    return found
