"""One model and its optimiser, over its ranks and in its precision: what a training loop calls, however weights and
gradients are laid out.

- backward (several times): gradients of each pass are accumulated in float32; at the last pass they are summed over the
  ranks
- step: norm over all ranks, clip, the optimiser on what this rank owns, and the new weights back to where the model
  computes

| precision | the model holds | the optimiser steps on | matmuls |
| --- | --- | --- | --- |
| float32 | float32 | the same | float32 |
| bf16 | bf16 (stages 2, 3: float32 shards, gathered in bf16) | float32 masters (the shards) | bf16 |
| fp16 | float32 | the same | fp16 by autocast; the loss is scaled |

An update whose gradients are not finite leaves weights, masters and the optimiser's state as they were, on every rank,
without a synchronisation on CUDA: the norm that `step` returns is then not finite either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gristmill.trainer.model.model import Block, Decoder
from gristmill.trainer.model.packed import PackedTokens
from gristmill.trainer.parallel.context import ContextAttention, ContextRanks, split
from gristmill.trainer.parallel.expert_parallel import BALANCE, Balance, LoadBalance, share_experts
from gristmill.trainer.parallel.parts import Cut, Part, gather_wholes, list_tensors, whole_cut
from gristmill.trainer.parallel.pipeline import Pipeline, StagedDecoder
from gristmill.trainer.parallel.pipeline_plan import SPLIT, Plan, Schedule, plan_for
from gristmill.trainer.parallel.ranks import ALONE, Grid, RankGroup, grid_of
from gristmill.trainer.parallel.replicas import ReplicaGradients, ReplicaSum, replica_sum_of
from gristmill.trainer.parallel.sharded import (
    ShardedGradients,
    ShardedMasters,
    prepare_blocks,
    shard_fully,
    slots_of,
    sum_between_replicas,
)
from gristmill.trainer.parallel.tensor_parallel import split_layers
from gristmill.trainer.parallel.zero import BucketedGradients, Gradients, owners
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.checkpoint import Due, Restored
from gristmill.trainer.step.masters import (
    DeviceMasters,
    HostMasters,
    MasterLookup,
    MasterStore,
    Slot,
    copy_to_host,
    use_fused_kernel,
)
from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.precision import LossScale, Precision, autocast_for
from gristmill.trainer.step.recompute import Recompute


class Stepper:
    """Created by `stepper_of`. `ranks.data` are the ranks that see tokens of their own."""

    def __init__(
        self,
        model: Decoder,
        optimizer: torch.optim.Optimizer,
        clip: float,
        ranks: Grid,
        slots: Sequence[Slot],
        gradients: Gradients,
        masters: MasterStore,
        precision: Precision,
        device: torch.device,
        balance: Balance,
        between: ReplicaSum | None = None,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.model, self.optimizer, self.clip, self.ranks, self.device, self.precision = (
            model,
            optimizer,
            clip,
            ranks,
            device,
            precision,
        )
        self.scale = LossScale(device) if precision == "fp16" else None
        self._slots, self._gradients, self._masters = slots, gradients, masters
        self._between, self._pipeline = between, pipeline
        self.balance = LoadBalance(model, balance, ranks.data)

    def computing(self) -> AbstractContextManager[object]:
        """Around what uses the model's weights, evaluation too."""
        return computing_in(self.precision, self.device)

    @property
    def plan(self) -> Plan | None:
        """Of a pipeline."""
        return self.model.plan if isinstance(self.model, StagedDecoder) else None

    def part_of(self, packed: PackedTokens) -> PackedTokens:
        """This rank's part of a line of rows, on the CPU; all of it where ranks share no rows."""
        ranks, shape = self.ranks.context, self.model.shape
        return packed if ranks.count == 1 else split(packed, ranks.rank, ranks.count, shape, self.ranks.tensor.count)

    def loss(self, packed: PackedTokens) -> Tensor:
        """The sum over the targets; divide it by what the whole update counts. Not in a pipeline (`accumulate`)."""
        if self._pipeline is not None:
            raise RuntimeError("a pipeline makes the passes of an update together: call accumulate")
        with self.computing():
            total: Tensor = self.model(packed)
        return total

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds to the gradients. At the `last` pass of an update ranks communicate: every rank must make one."""
        self._gradients.backward(self.scale.scaled(loss) if self.scale else loss, last)

    def accumulate(self, steps: Iterable[tuple[PackedTokens, bool]], whole: Tensor) -> Tensor:
        """All passes of an update that counts `whole` targets, each with whether it is the last; a pipeline takes them
        all and has an order of its own. Returns the sum of all ranks' losses, float64."""
        if self._pipeline is not None:
            micros = [packed for packed, _ in steps]
            total = self._pipeline.run(micros, lambda loss: (self.scale.scaled(loss) if self.scale else loss) / whole)
        else:
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for packed, last in steps:
                loss = self.loss(packed)
                total += loss.detach().double()
                self.backward(loss / whole, last)
        return self.ranks.pipeline.all_reduce(self.ranks.data.all_reduce(total))

    def step(self, share: float, limit: Tensor | None = None, poisoned: Tensor | None = None) -> Tensor:
        """One step at `share` of the peak rate. Returns the gradient's norm before clipping, on the device; a norm
        above `limit` leaves everything as it was too.

        `poisoned`, alike on all ranks: whether the update is refused for its loss, which the loss scale must ignore.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_rate"] * share
        shared = list(self._gradients.shared())
        if self.scale:
            self.scale.unscale_([gradient for gradient, _ in shared])
        norm = self._norm(shared)
        allowed = norm if limit is None else torch.where(norm <= limit, norm, torch.inf)
        self._masters.step(self.optimizer, self._gradients.local(), allowed, self.clip)
        if self.scale:
            self.scale.update((~norm.isfinite()).float(), poisoned)
        self.balance.step(allowed.isfinite())
        del shared
        self._gradients.clear()
        self._send_weights()
        return norm

    def drop_gradients(self) -> None:
        """Of an update that is abandoned after an error in the middle of it."""
        self._gradients.clear()
        self.balance.drop()
        if self._pipeline is not None:
            self._pipeline.clear()

    def weights(self) -> dict[str, Tensor]:
        """Float32, whole, on the CPU, by the model's names; {} on ranks after the first, who must call this too."""
        parts = self._parts()
        return {
            name: whole.to(torch.float32, copy=True)
            for name, whole in gather_wholes(parts, list_tensors(parts, self.ranks.all), self.ranks.all)
        }

    def save(self, folder: Path, step: int, facts: Mapping[str, Any], keep: int = 2, due: Due | None = None) -> None:
        """All ranks call this, the first one writes (`gristmill.trainer.step.checkpoint`)."""
        also = {**({"loss_scale": self.scale.state()} if self.scale else {}), **self.balance.state()}
        own = self._between.residuals() if self._between else {}
        checkpoint.save(folder, step, self._parts(), self.optimizer, facts, keep, self.ranks.all, also, due, own)

    def load(self, path: Path) -> Restored:
        """Any number of ranks in any layout may have saved it. All ranks call this and see the same files."""
        restored = checkpoint.load(path, self._parts(), self.optimizer, self.ranks.all)
        self._masters.write_weights()
        self._send_weights()
        if self.scale and "loss_scale" in restored.also:
            self.scale.load_state(restored.also["loss_scale"])
        if self._between:
            self._between.restore(restored.own, self.device)
        self.balance.load_state(restored.also)
        return restored

    def _send_weights(self) -> None:
        self._gradients.broadcast_weights()
        if self._pipeline is not None:
            self._pipeline.refresh()

    def _parts(self) -> dict[str, Part]:
        return {slot.name: Part(slot.master, slot.cut) for slot in self._slots} | self.balance.parts(self.model)

    @torch.no_grad()
    def _norm(self, shared: Sequence[tuple[Tensor, int]]) -> Tensor:
        """What several ranks hold counts once."""
        squares = torch.zeros((), dtype=torch.float32, device=self.device)
        for copies in sorted({copies for _, copies in shared}):
            gradients = [gradient for gradient, count in shared if count == copies]
            norms = torch.stack(
                torch._foreach_norm(gradients, 2, dtype=torch.promote_types(gradients[0].dtype, torch.float32))
            )
            squares = squares + norms.to(self.device).square().sum() / copies
        if any(copies != self.ranks.all.count for _, copies in shared) or not shared:
            return self.ranks.all.all_reduce(squares).sqrt()
        return (squares * self.ranks.all.count).sqrt()


def stepper_of(
    model: Decoder,
    optimizer: Any,
    precision: Precision = "float32",
    zero: int = 0,
    ranks: RankGroup | Grid = ALONE,
    *,
    tensor: int = 1,
    context: int = 1,
    replicas: int = 1,
    replica_gradients: ReplicaGradients = "float32",
    pipeline: int = 1,
    schedule: Schedule = "1f1b",
    experts: int = 1,
    balance: Balance = BALANCE,
    offload: bool = False,
    recompute: Recompute = "none",
    compile: bool = False,
    device: torch.device | None = None,
) -> Stepper:
    """`optimizer`: the settings (`gristmill.trainer.step.optim.AdamW`, `gristmill.trainer.step.muon.Muon`). The model
    is taken over and changed in place; it may be on the CPU and is moved to `device` (None: it stays). All ranks start
    from the first one's weights.

    `ranks` may be a grid made before (`grid_of`), whose `tensor` then counts. `zero` 0:
    gradients are summed; 1: masters and optimiser state sharded over the ranks; 2, 3: gradients and weights too.
    `tensor`: this many neighbouring ranks share each layer; `context`: this many share each row
    (`gristmill.trainer.parallel.context`; `Stepper.part_of` gives a rank's part). `replicas`: what `zero` shards is
    sharded inside each of so many groups of neighbours, which exchange `replica_gradients`
    (`gristmill.trainer.parallel.replicas`). `pipeline`: the blocks are cut into so many parts
    (`gristmill.trainer.parallel.pipeline_plan` has the `schedule`s), and updates are made by `Stepper.accumulate`.
    `experts`: this many share the experts (`expert_parallel.share_experts`), whose loads `balance` keeps even.
    `offload`: the optimiser's masters and state live on the host.
    """
    device = device or next(model.parameters()).device
    grid = ranks if isinstance(ranks, Grid) else grid_of(ranks, tensor, context, pipeline, experts, replicas)
    ranks, tensor = grid.all, grid.tensor.count
    _check(model, optimizer, zero, ranks, tensor, grid.experts.count)
    if precision == "fp16" and replica_gradients != "float32":
        raise ValueError(f"replica_gradients {replica_gradients!r}: a loss scale that moves goes with 'float32' alone")
    between = replica_sum_of(grid, replica_gradients, zero)
    plan = plan_for(model.shape, grid.pipeline.count, schedule) if grid.pipeline.count > 1 else None
    if plan:
        _check_pipeline(model, schedule, zero, precision, compile)
        if between:
            raise ValueError("a pipeline does not go with replicas: stages are what hosts exchange least")
    if between and grid.experts.count > 1:
        raise ValueError("ranks that share the experts do not go with replicas: take experts 1 or replicas 1")
    if any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters()):
        model.float()
    ranks.share_weights(model)
    if grid.context.count > 1:
        share_rows(model, grid.context)
    cuts = share_experts(model, grid.experts) if grid.experts.count > 1 else {}
    apart = dict.fromkeys(cuts, grid.twins)
    if plan:
        model = StagedDecoder(model, plan, grid.pipeline)
    prepare_blocks(model, recompute, compile)
    if zero >= 2 and grid.shards.count > 1:
        shard_fully(model, grid.shards, zero, precision == "bf16", offload, device)
        slots = slots_of(model)
        hooks = sum_between_replicas(model, between) if between else ()
        gradients: Gradients = ShardedGradients(slots, hooks, grid.replicas.count)
        masters: MasterStore = ShardedMasters(slots)
    else:
        cuts |= split_layers(model, grid.tensor) if tensor > 1 else {}
        slots, gradients, masters = _unsharded(model, grid, cuts, apart, precision, zero, offload, device, between)
    runs: Pipeline | None = None
    if isinstance(model, StagedDecoder) and isinstance(gradients, BucketedGradients):
        runs = Pipeline(model, grid, gradients, lambda: computing_in(precision, device), device)
    built = optimizer.optimizer(model, MasterLookup(slots))
    if (
        runs is None
        and isinstance(gradients, BucketedGradients)
        and isinstance(masters, DeviceMasters)
        and hasattr(built, "step_into")
    ):
        gradients.keep_in_place()
    keep_only(built, {slot.name for slot in slots})
    if offload and getattr(optimizer, "loop", None) is None:
        use_fused_kernel(built)
    return Stepper(
        model, built, optimizer.clip, grid, slots, gradients, masters, precision, device, balance, between, runs
    )


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    return autocast_for(device, "fp16") if precision == "fp16" else nullcontext()


def share_rows(model: Decoder, ranks: RankGroup) -> None:
    """Attention of every block over all of these ranks."""
    here = ContextRanks(ranks.rank, ranks.count, ranks.group or torch.distributed.group.WORLD)
    for block in model.blocks:
        if isinstance(block, Block):
            block.attend = ContextAttention(block.attend, here)


def _unsharded(
    model: Decoder,
    grid: Grid,
    cuts: Mapping[str, Cut],
    apart: Mapping[str, RankGroup],
    precision: Precision,
    zero: int,
    offload: bool,
    device: torch.device,
    between: ReplicaSum | None,
) -> tuple[list[Slot], Gradients, MasterStore]:
    """Every rank holds whole weights, except the layers in `cuts`; it steps on all of them, or on those that it
    owns. The gradients of those `apart` are summed by other ranks than `Grid.shards`, and owned by one of these."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    owner_of: dict[str, int] = {}
    owned = set(sizes)
    if zero and grid.shards.count > 1:
        for group, names in ((grid.shards, sizes.keys() - apart.keys()), (grid.twins, apart.keys())):
            owner_of |= owners({name: sizes[name] for name in sizes if name in names}, group.count)
        owned = {name for name, owner in owner_of.items() if owner == apart.get(name, grid.shards).rank}
    masters = {
        name: _master(p.detach(), precision, offload, device) for name, p in model.named_parameters() if name in owned
    }
    model.to(device=device, dtype=torch.bfloat16 if precision == "bf16" else None)
    weights = dict(model.named_parameters())
    slots = [
        Slot(
            name,
            weight,
            weight if (master := masters[name]) is None else master,
            cuts.get(name, whole_cut(weight.shape)),
        )
        for name, weight in weights.items()
        if name in owned
    ]
    copies = {
        name: (grid.replicas.count if owner_of else apart.get(name, grid.data).count)
        * (1 if name in cuts else grid.tensor.count)
        for name in weights
    }
    return (
        slots,
        BucketedGradients(weights, grid.shards, owner_of, copies, between, apart),
        HostMasters(slots) if offload else DeviceMasters(slots),
    )


def _master(weight: Tensor, precision: Precision, offload: bool, device: torch.device) -> Tensor | None:
    """A float32 copy; None: the weight itself."""
    if offload:
        return copy_to_host(weight, device.type == "cuda")
    return weight.to(device, torch.float32, copy=True).requires_grad_() if precision == "bf16" else None


def keep_only(optimizer: torch.optim.Optimizer, names: set[str]) -> None:
    """Removes the parameters of other ranks from an optimiser that has not stepped yet."""
    for group in optimizer.param_groups:
        kept = [name in names for name in group["names"]]
        for key, values in group.items():
            if isinstance(values, list) and len(values) == len(kept):
                group[key] = [value for value, keep in zip(values, kept, strict=True) if keep]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["names"]]


def _check(model: nn.Module, optimizer: Any, zero: int, ranks: RankGroup, tensor: int, experts: int) -> None:
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"zero {zero!r}: there are the stages 0, 1, 2 and 3")
    if tensor > 1 and zero >= 2:
        raise ValueError(f"layers that {tensor} ranks share go with zero 0 or 1, not {zero}")
    if experts > 1 and zero >= 2:
        raise ValueError(
            f"experts that {experts} ranks share go with zero 0 or 1, not {zero}; with experts 1 zero 2 and 3"
        )
    if experts > 1 and tensor > 1:
        raise ValueError(f"experts that {experts} ranks share go with tensor 1, not {tensor}")
    if not isinstance(optimizer, AdamW) and ranks.count > 1 and (zero >= 2 or tensor > 1):
        raise ValueError(f"{type(optimizer).__name__} needs whole matrices: take zero 0 or 1, and tensor 1")
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        raise ValueError(f"every parameter must learn; {', '.join(frozen[:3])} are told not to")


def _check_pipeline(model: Decoder, schedule: Schedule, zero: int, precision: Precision, compile: bool) -> None:
    if model.shape.experts is not None:
        raise ValueError("a pipeline does not go with a mixture of experts: take pipeline 1, and experts for its ranks")
    if zero >= 2:
        raise ValueError(f"stages of a pipeline go with zero 0 or 1, not {zero}: their gradients are kept whole anyway")
    if schedule in SPLIT and (compile or precision == "fp16"):
        raise ValueError(
            f"pipeline_schedule {schedule!r} computes weight gradients later, which neither compiled blocks nor fp16 "
            "can: take '1f1b' or 'interleaved', or compile false"
        )
