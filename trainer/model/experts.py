"""Mixture of experts: which experts a token goes to, what balances their load, and the experts' matmuls.

No token is dropped: tokens are sorted by expert, and one grouped matmul takes them all, however many each expert has.
Two things balance the load (`gristmill.trainer.parallel.expert_parallel` moves both once an update, over all ranks):

- a bias for each expert, added to the scores where experts are chosen, never to their weights; it rises where the load
  is below the mean and falls where it is above (Wang et al. 2024, DeepSeek-V3). There is no auxiliary loss then.
- an auxiliary loss (Shazeer et al. 2017, Fedus et al. 2021): a token's shares of all experts times their loads, which
  is 1 where all are even. The loads are those of the whole update before, so the loss is a sum over tokens: its
  gradient is the same however an update is split.

The gradient of these losses goes to the router alone; the loss that is reported is the cross-entropy.

T tokens, C hidden width, E experts, K of them a token, S = T x K rows sorted by expert, M inner width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gristmill.trainer.model.fused import fused_on_cuda
from gristmill.trainer.model.grouped import expert_mlp, wide_matmul
from gristmill.trainer.model.shapes import Mixture

PARTS = 2  # of a pass over several ranks, alike on each: one is exchanged while the other is computed


class Routed(NamedTuple):
    """What a block says of its tokens beside what it computes: their experts, and their auxiliary losses (None: of
    none)."""

    chosen_TK: Tensor
    penalty_T: Tensor | None


class Router(nn.Module):
    """`loss` and `z` are the rates of the auxiliary losses. `load` is the load of the update before over the mean,
    `pace` how many steps each bias took then; `tally` is of the update that runs: tokens of each expert, all tokens,
    the sum of auxiliary losses."""

    load: Tensor
    pace: Tensor
    tally: Tensor
    bias: Tensor | None

    def __init__(self, hidden: int, shape: Mixture) -> None:
        super().__init__()
        self.shape, self.loss, self.z = shape, 0.0, 0.0
        self.weight = nn.Parameter(torch.empty(shape.number, hidden))
        self.register_buffer("bias", torch.zeros(shape.number) if shape.router == "sigmoid" else None)
        self.register_buffer("load", torch.ones(shape.number), persistent=False)
        self.register_buffer("pace", torch.ones(shape.number), persistent=False)
        self.register_buffer("tally", torch.zeros(shape.number + 2, dtype=torch.float64), persistent=False)

    def forward(self, x_TC: Tensor) -> tuple[Tensor, Routed]:
        """The weights of each token's experts, float32 at the least."""
        shape, logits_TE = self.shape, wide_matmul(x_TC, self.weight)
        scores_TE = logits_TE.softmax(-1) if shape.router == "softmax" else logits_TE.sigmoid()
        favoured_TE = scores_TE.detach() if self.bias is None else scores_TE.detach() + self.bias
        chosen_TK = favoured_TE.topk(shape.active, -1, sorted=False).indices
        weights_TK = scores_TE.gather(1, chosen_TK)
        if shape.normalised:
            weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
        return weights_TK, Routed(chosen_TK, self._penalty(logits_TE, scores_TE) if self.loss or self.z else None)

    def _penalty(self, logits_TE: Tensor, scores_TE: Tensor) -> Tensor:
        shares_TE = scores_TE if self.shape.router == "softmax" else scores_TE / scores_TE.sum(-1, keepdim=True)
        penalty_T = self.loss * (shares_TE * self.load).sum(-1)
        return penalty_T + self.z * logits_TE.logsumexp(-1).square() if self.z else penalty_T

    @torch.no_grad()
    def count(self, chosen_TK: Tensor, counted_T: Tensor, penalty: Tensor | None) -> None:
        """Of tokens that have a target: padding is computed as other tokens are, and is no load."""
        E, once_T = self.shape.number, counted_T.to(self.tally.dtype)
        self.tally[:E].scatter_add_(0, chosen_TK.flatten(), once_T.repeat_interleave(self.shape.active))
        self.tally[E] += once_T.sum()
        if penalty is not None:
            self.tally[E + 1] += penalty

    @torch.no_grad()
    def reset(self) -> None:
        """As if no update had been made; the bias stays."""
        self.load.fill_(1.0)
        self.pace.fill_(1.0)
        self.tally.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        """Buffers move with the weight and keep their precision: a step of the bias is too small for bf16."""
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in exact.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self


def auxiliary_loss(routers: list[Router], routed: list[Routed], counted_T: Tensor) -> Tensor | None:
    """The sum over tokens that have a target, the mean over layers; and counts the experts' tokens."""
    total: Tensor | None = None
    for router, (chosen_TK, penalty_T) in zip(routers, routed, strict=True):
        penalty = None if penalty_T is None else torch.where(counted_T, penalty_T, 0).sum()
        router.count(chosen_TK, counted_T, None if penalty is None else penalty.detach())
        if penalty is not None:
            total = penalty if total is None else total + penalty
    return None if total is None else total / len(routers)


class Experts(nn.Module):
    """`count` ranks of `group` hold equal parts of the experts, in order (1: all are here)."""

    def __init__(self, hidden: int, shape: Mixture) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(shape.number, 2 * shape.width, hidden))
        self.down = nn.Parameter(torch.empty(shape.number, hidden, shape.width))
        self.shape, self.fp8, self.count = shape, False, 1
        self.group: Any = None

    def forward(self, x_TC: Tensor, weights_TK: Tensor, chosen_TK: Tensor) -> Tensor:
        """The weighted sum of what a token's experts make of it."""
        if self.count > 1:
            return self._exchanged(x_TC, weights_TK, chosen_TK)
        by_expert = Sorted.of(chosen_TK, self.shape.number)
        return by_expert.gather(self._mlp(by_expert.spread(x_TC), by_expert.ends_E), weights_TK, x_TC.dtype)

    def _mlp(self, x_SC: Tensor, ends_E: Tensor) -> Tensor:
        return expert_mlp(x_SC, self.gate_up, self.down, ends_E, self.fp8)

    def _exchanged(self, x_TC: Tensor, weights_TK: Tensor, chosen_TK: Tensor) -> Tensor:
        """Tokens go to the ranks of their experts and back. While one part of them travels the other is computed, and
        backward too: an exchange waits only where its result is used."""
        cut = [tensor.tensor_split(PARTS) for tensor in (x_TC, weights_TK, chosen_TK)]
        by_expert = [Sorted.of(chosen, self.shape.number) for chosen in cut[2]]
        sent_PE = torch.stack([each.counts_E for each in by_expert])
        own = self.shape.number // self.count
        sent_RPE = sent_PE.view(PARTS, self.count, own).transpose(0, 1)
        arriving_RPE = exchange_counts(sent_RPE, self.group)
        ends_PE = arriving_RPE.sum(0).cumsum(1).int()
        # One wait for the device in a layer: the sizes of messages are the host's to know.
        sizes = torch.stack([sent_RPE, arriving_RPE]).transpose(1, 2).tolist()
        sent, arriving = ([[sum(of_rank) for of_rank in part] for part in way] for way in sizes)
        there = [Travel(out, into, self.group) for out, into in zip(arriving, sent, strict=True)]
        back = [Travel(out, into, self.group) for out, into in zip(sent, arriving, strict=True)]
        travelling = [
            Exchange.apply(each.spread(x), travel)  # type: ignore[no-untyped-call]
            for each, x, travel in zip(by_expert, cut[0], there, strict=True)
        ]
        returning = []
        for part, rows in enumerate(travelling):
            arrived = Arrive.apply(rows, there[part])  # type: ignore[no-untyped-call]
            of_rank, of_expert = sizes[1][part], [list(counts) for counts in zip(*sizes[1][part], strict=True)]
            made = turned(self._mlp(turned(arrived, of_rank), ends_PE[part]), of_expert)
            returning.append(Exchange.apply(made, back[part]))  # type: ignore[no-untyped-call]
        outputs = []
        for part, rows in enumerate(returning):
            returned = Arrive.apply(rows, back[part])  # type: ignore[no-untyped-call]
            outputs.append(by_expert[part].gather(returned, cut[1][part], x_TC.dtype))
        return torch.cat(outputs)


class Sorted(NamedTuple):
    """Rows sorted by expert: where each comes from (`sources_S`), where each of a source's rows lies (`places_TK`), and
    where the rows of each expert end."""

    sources_S: Tensor
    order_S: Tensor
    places_TK: Tensor
    ends_E: Tensor

    @classmethod
    def of(cls, chosen_TK: Tensor, experts: int) -> Sorted:
        ids = chosen_TK.flatten()
        order = ids.argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        each = torch.arange(experts, device=ids.device)
        ends = torch.searchsorted(ids[order], each, right=True).int()
        return cls(order // chosen_TK.shape[1], order, places.view_as(chosen_TK), ends)

    @property
    def counts_E(self) -> Tensor:
        return self.ends_E.diff(prepend=self.ends_E.new_zeros(1)).long()

    def spread(self, x_TC: Tensor) -> Tensor:
        """The rows of the experts, S x C."""
        rows: Tensor = Spread.apply(x_TC, self.sources_S, self.places_TK)  # type: ignore[no-untyped-call]
        return rows

    def gather(self, y_SC: Tensor, weights_TK: Tensor, dtype: torch.dtype) -> Tensor:
        """T x C: the weighted sum of each source's rows."""
        total: Tensor = Gather.apply(y_SC, weights_TK, self.places_TK, self.order_S)  # type: ignore[no-untyped-call]
        return total.to(dtype)


class Spread(torch.autograd.Function):
    """x[sources], where `places` says which rows of the output each row of x became: gradients are gathered, and summed
    in a fixed order, where torch's own would be added by atomics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sources_S: Tensor, places_TK: Tensor) -> Tensor:
        ctx.save_for_backward(places_TK)
        return x[sources_S]

    @staticmethod
    def backward(ctx: Any, grad_SC: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (places_TK,) = ctx.saved_tensors
        return _sum_of(grad_SC, places_TK), None, None


class Gather(torch.autograd.Function):
    """The sum over K of weights (T x K) times y[places] in float32 at the least, rounded once; y is saved as it is."""

    @staticmethod
    def forward(ctx: Any, y_SC: Tensor, weights_TK: Tensor, places_TK: Tensor, order_S: Tensor) -> Tensor:
        ctx.save_for_backward(y_SC, weights_TK, places_TK, order_S)
        total: Tensor = _weighted_sum_of(y_SC, places_TK, weights_TK)
        return total

    @staticmethod
    def backward(ctx: Any, grad_TC: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        return *_slopes_of(grad_TC, *ctx.saved_tensors), None, None


@fused_on_cuda
def _sum_of(x_SC: Tensor, places_TK: Tensor) -> Tensor:
    wide = torch.promote_types(x_SC.dtype, torch.float32)
    return x_SC[places_TK].sum(1, dtype=wide).to(x_SC.dtype)


@fused_on_cuda
def _weighted_sum_of(y_SC: Tensor, places_TK: Tensor, weights_TK: Tensor) -> Tensor:
    return (y_SC[places_TK] * weights_TK[..., None]).sum(1).to(y_SC.dtype)


@fused_on_cuda
def _slopes_of(
    grad_TC: Tensor, y_SC: Tensor, weights_TK: Tensor, places_TK: Tensor, order_S: Tensor
) -> tuple[Tensor, Tensor]:
    wide_TC = grad_TC.to(torch.promote_types(grad_TC.dtype, weights_TK.dtype))
    grad_SC = wide_TC[order_S // weights_TK.shape[1]] * weights_TK.flatten()[order_S][:, None]
    of_weights_TK = (wide_TC[:, None] * y_SC[places_TK]).sum(-1)
    return grad_SC.to(y_SC.dtype), of_weights_TK.to(weights_TK.dtype)


# --- between ranks ---------------------------------------------------------------------------------------------------


def turned(rows: Tensor, counts: list[list[int]]) -> Tensor:
    """Blocks of rows, so many in each, in lines and columns of `counts`: from one line after another to one column
    after another."""
    blocks = torch.split(rows, [count for line in counts for count in line])
    columns = len(counts[0])
    return torch.cat([block for column in range(columns) for block in blocks[column::columns]])


def exchange_counts(counts_RPE: Tensor, group: Any) -> Tensor:
    """How many rows each rank sends here, of each part and expert."""
    even = [1] * len(counts_RPE)
    started = torch.ops._c10d_functional.all_to_all_single(counts_RPE.contiguous(), even, even, group.group_name)
    counts: Tensor = torch.ops._c10d_functional.wait_tensor(started)
    return counts


class Travel:
    """Rows on their way: how many come from each rank, how many go to each; and backward their gradient."""

    def __init__(self, out: list[int], into: list[int], group: Any) -> None:
        self.out, self.into, self.group = out, into, group
        self.gradient: Tensor | None = None

    def start(self, x: Tensor, back: bool = False) -> Tensor:
        """Does not wait."""
        sizes = (self.into, self.out) if back else (self.out, self.into)
        name = self.group.group_name
        started: Tensor = torch.ops._c10d_functional.all_to_all_single(x.contiguous(), *sizes, name)
        return started


class Exchange(torch.autograd.Function):
    """Sends rows to each rank and does not wait: only `Arrive` may touch the result. Backward, the two change roles,
    and what autograd computes between them runs while rows travel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, travel: Travel) -> Tensor:
        ctx.travel = travel
        return travel.start(x)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        gradient, ctx.travel.gradient = ctx.travel.gradient, None
        return torch.ops._c10d_functional.wait_tensor(gradient), None


class Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, travel: Travel) -> Tensor:
        ctx.travel = travel
        return torch.ops._c10d_functional.wait_tensor(x).view_as(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.travel.gradient = ctx.travel.start(grad, back=True)
        return grad, None  # of the right size, and not looked at: the gradient is on its way
