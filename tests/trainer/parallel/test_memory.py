"""What a pass will keep is known before it is tried; the rest (weights, masters, optimiser) is counted in
test_stepper.py."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gristmill.trainer.model import fused, matmuls
from gristmill.trainer.model.attention import attend_flash4
from gristmill.trainer.model.fp8 import use_fp8
from gristmill.trainer.model.model import Block, Decoder, initialise, rotation_of
from gristmill.trainer.model.shapes import DecoderShape, Mixture, shape_named
from gristmill.trainer.parallel.context import ContextAttention, ContextRanks, Shared, Stretch, way_of
from gristmill.trainer.parallel.memory import kept_of_token
from gristmill.trainer.parallel.pipeline import DeferredWeights
from gristmill.trainer.parallel.pipeline_plan import plan_for
from gristmill.trainer.parallel.ranks import RankGroup
from gristmill.trainer.parallel.spread import spread
from gristmill.trainer.run.settings import SCHEDULES, SPLIT, Schedule, Training
from gristmill.trainer.step.recompute import Recompute, is_costly, with_recompute
from tests.trainer.tiny import memory

T = 1024
SHAPE = DecoderShape(1000, 256, 4, 8, 2, 768)
SPARSE = DecoderShape(1000, 256, 4, 8, 2, 768, experts=Mixture(8, 2, 384, "sigmoid", shared=1))


@pytest.mark.parametrize("shape", [SHAPE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("linears", ["apart", "fused", "fp8"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_blocks_keep_what_was_said(
    monkeypatch: pytest.MonkeyPatch, recompute: Recompute, linears: str, shape: DecoderShape
) -> None:
    monkeypatch.setattr(fused, "_has_kernels", lambda x: True)
    for name in ("_fits_matmul", "_fits_gated_mlp"):
        monkeypatch.setattr(matmuls, name, lambda *tensors: linears == "fused")
    fp8 = linears == "fp8"
    said = memory(shape, T, fused_linears=linears == "fused", recompute=recompute, linears="fp8" if fp8 else "bf16")
    # One hidden state: what leaves the last block is the head's. Of a sparse one there are two, and chosen experts.
    left = (1 if shape.experts is None else 3) * 2 * T * shape.hidden + 32 * shape.layers * fp8  # scales
    assert abs(kept_bytes(shape, recompute, fp8=fp8) - said.activations) <= left


@pytest.mark.parametrize("recompute", ["none", "selective"])
@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, kv_heads=1), DecoderShape(1000, 258, 4, 3, 3, 768)])
def test_ranks_that_share_rows_keep_what_was_said(
    monkeypatch: pytest.MonkeyPatch, recompute: Recompute, shape: DecoderShape
) -> None:
    """Two of them, by heads, by copied heads and by keys: nearly all tokens are shared."""
    monkeypatch.setattr(fused, "_has_kernels", lambda x: True)
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        kept = kept_bytes(shape, recompute, ContextRanks(0, 2, torch.distributed.group.WORLD))
    finally:
        torch.distributed.destroy_process_group()
    said = T * shape.layers * kept_of_token(shape, 2, recompute, context=2)
    assert abs(kept - said) <= 2.1 * T * shape.hidden


def kept_bytes(shape: DecoderShape, recompute: Recompute, ranks: ContextRanks | None = None, fp8: bool = False) -> int:
    """Of all blocks, with the operators of a GPU, on tensors that have a size and no numbers."""
    with FakeTensorMode() as pretended:
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Decoder(shape, attend_flash4)
        finally:
            torch.set_default_dtype(torch.float32)
        if fp8:
            use_fp8(model)
        rotation = rotation_of(torch.empty(T, dtype=torch.int32), shape)
        cuts, shared = torch.empty(3, dtype=torch.int32), None
        if ranks is not None:
            S = T - 64
            ends = (S // 2, S) if way_of(shape, 2) == "keys" else ()
            shared = Shared(S, cuts, tuple(Stretch(0, end, cuts, cuts) for end in ends))
            for block in model.blocks:
                block.attend = ContextAttention(attend_flash4, ranks)
        x = torch.empty(T, shape.hidden, dtype=torch.bfloat16, requires_grad=True)
        others = {
            tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers(), *rotation, cuts)
        }
        change, routed = None, []
        for block in model.blocks:
            forward = with_recompute(MethodType(type(block).forward, block), recompute)
            x, change, *of_tokens = forward(x, change, rotation, cuts, T, shared)
            routed += of_tokens
        return alive(pretended, others)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_compiler_keeps_no_more(monkeypatch: pytest.MonkeyPatch, recompute: Recompute) -> None:
    """What it plans to hand from the forward to the backward pass, before it makes either. torch 2.11 kept norms in
    `full` where it was not asked operator by operator."""
    monkeypatch.setattr(fused, "_has_kernels", lambda x: True)
    for name in ("_fits_matmul", "_fits_gated_mlp"):
        monkeypatch.setattr(matmuls, name, lambda *tensors: True)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Decoder(SHAPE, attend_flash4)
    finally:
        torch.set_default_dtype(torch.float32)
    kept: dict[str, int] = {}

    def planned(graph: Any, _: Any) -> None:
        said = next(iter(graph.graph.find_nodes(op="output"))).args[0]
        whole = [node for node in said if hasattr(node, "meta") and isinstance(node.meta.get("val"), Tensor)]
        numbers = {
            node.name: node.meta["val"]
            for node in whole
            if node.meta["val"].shape[:1] == (T,) or T in node.meta["val"].shape[1:2]
        }
        kept.update({name: value.numel() * value.element_size() for name, value in numbers.items()})
        raise Planned

    class Planned(Exception):
        pass

    forward = with_recompute(MethodType(Block.forward, model.blocks[0]), recompute, compiled=True)
    backend = aot_autograd(fw_compiler=planned, partition_fn=min_cut_rematerialization_partition)
    rotation = rotation_of(torch.arange(T, dtype=torch.int32), SHAPE)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed):
        x = torch.zeros(T, SHAPE.hidden, dtype=torch.bfloat16, requires_grad=True)
        torch.compile(forward, backend=backend)(x, None, rotation, torch.tensor([0, 500, T], dtype=torch.int32), T)
    angles = 2 * T * SHAPE.head_size // 2 * 4
    answer = 2 * T * SHAPE.hidden  # goes to the next block, which keeps it if it wants to
    assert (
        abs(sum(kept.values()) - angles - answer - T * kept_of_token(SHAPE, 2, recompute, fused_linears=True)) <= 8 * T
    )


FUSED, FP8 = {"fused_linears": True}, {"linears": "fp8"}
FULL, SELECTIVE = {"recompute": "full"}, {"recompute": "selective"}
# GiB of the rank with most on H200s, shape, tokens of a pass, and what else is not the default: benchmarks/training,
# layouts.py, ranks.py, speed.py and experts.py (docs/training.md).
MEASURED: list[tuple[float, str, int, dict[str, Any]]] = [
    (55.46, "1.3b", 32_768, FUSED),
    (50.58, "1.3b", 32_768, FUSED | SELECTIVE),
    (23.32, "1.3b", 32_768, FUSED | FULL),
    (48.2, "1.3b", 32_768, FUSED | {"zero": 1, "ranks": 2}),
    (18.08, "1.3b", 32_768, FUSED | FULL | {"zero": 1, "ranks": 2}),
    (43.2, "1.3b", 32_768, FUSED | SELECTIVE | {"zero": 2, "ranks": 2}),
    (16.04, "1.3b", 32_768, FUSED | FULL | {"zero": 2, "ranks": 2}),
    (46.1, "1.3b", 32_768, FUSED | {"zero": 3, "ranks": 2}),
    (14.12, "1.3b", 32_768, FUSED | FULL | {"zero": 3, "ranks": 2}),
    (93.4, "1.3b", 65_536, FUSED),
    (93.5, "1.3b", 65_536, FUSED | {"ranks": 2}),
    (117.3, "1.3b", 81_920, FUSED | {"passes": 4}),
    (65.1, "1.3b", 32_768, {}),
    (46.70, "1.3b", 16_384, {"passes": 16}),
    (36.98, "1.3b", 16_384, {"passes": 8, "zero": 2, "ranks": 2}),
    (34.71, "1.3b", 16_384, {"passes": 8, "zero": 3, "ranks": 2}),
    (32.06, "1.3b", 16_384, {"passes": 4, "zero": 2, "ranks": 4}),
    (27.06, "1.3b", 16_384, FUSED | {"passes": 4, "zero": 2, "ranks": 4}),
    (38.53, "1.3b", 65_536, FULL | {"passes": 4}),
    (39.23, "1.3b", 65_536, FULL | {"passes": 2, "ranks": 2, "context": 2}),
    (28.69, "1.3b", 65_536, FULL | {"passes": 2, "zero": 2, "ranks": 2}),
    (39.22, "1.3b", 16_384, {"pipeline": 2, "pipeline_schedule": "1f1b"}),
    (47.59, "1.3b", 16_384, {"pipeline": 2, "pipeline_schedule": "interleaved"}),
    (39.85, "1.3b", 16_384, {"pipeline": 2, "pipeline_schedule": "zb1p"}),
    (39.07, "1.3b", 16_384, {"pipeline": 2, "pipeline_schedule": "zbv"}),
    (36.57, "1.3b", 16_384, {"pipeline": 4, "pipeline_schedule": "1f1b"}),
    (43.03, "1.3b", 16_384, {"pipeline": 4, "pipeline_schedule": "interleaved"}),
    (36.79, "1.3b", 16_384, {"pipeline": 4, "pipeline_schedule": "zb1p"}),
    (35.76, "1.3b", 16_384, {"pipeline": 4, "pipeline_schedule": "zbv"}),
    (30.83, "1.3b", 16_384, FUSED | {"pipeline": 4, "pipeline_schedule": "1f1b"}),
    (35.91, "1.3b", 16_384, FUSED | {"pipeline": 4, "pipeline_schedule": "interleaved"}),
    (34.17, "1.3b", 16_384, FP8 | {"pipeline": 4, "pipeline_schedule": "1f1b"}),
    (39.97, "1.3b", 16_384, FP8 | {"pipeline": 4, "pipeline_schedule": "interleaved"}),
    (104.9, "4b-a1.3b", 32_768, {}),
    (105.4, "4b-a1.3b", 32_768, FP8),
    (69.5, "4b-a1.3b", 8192, {}),
    (97.36, "4b-a1.3b", 16_384, {"passes": 16}),
    (73.12, "4b-a1.3b", 16_384, {"passes": 8, "zero": 1, "ranks": 2}),
    (62.19, "4b-a1.3b", 16_384, {"passes": 8, "zero": 1, "ranks": 2, "experts": 2}),
]


@pytest.mark.parametrize("way", MEASURED, ids=str)
def test_as_gpus_measured(way: tuple[float, str, int, dict[str, Any]]) -> None:
    measured, name, tokens, others = way
    shape, others = shape_named(name, 50_304), dict(others)
    if "pipeline" in others:
        others["passes"] = 16
    assert memory(shape, tokens, **others).peak / 2**30 == pytest.approx(measured, rel=0.02)


class Peak(TorchDispatchMode):
    """The most bytes of tensors that were alive at once, of those that were made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), names: Any = None) -> Any:
        given = operator(*args, **(names or {}))
        for tensor in tree_leaves(given):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._alive:
                storage = tensor.untyped_storage()
                gone = partial(self._gone, storage._cdata, storage.nbytes())
                self._alive[storage._cdata] = weakref.ref(storage, gone)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
        return given

    def _gone(self, key: int, size: int, _: Any) -> None:
        del self._alive[key]
        self.now -= size


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_of_a_pipeline_keep_what_was_said(monkeypatch: pytest.MonkeyPatch, schedule: Schedule, rank: int) -> None:
    """Also where weight gradients wait: once what they had been made of stayed until the next pass."""
    monkeypatch.setattr(fused, "_has_kernels", lambda x: True)
    shape = replace(SHAPE, layers=8)
    plan, hidden = plan_for(shape, 2, schedule), {"dtype": torch.bfloat16, "size": (T, shape.hidden)}
    with FakeTensorMode():
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Decoder(shape, attend_flash4)
        finally:
            torch.set_default_dtype(torch.float32)
        held = [weight for layer in plan.held(rank) for weight in model.blocks[layer].parameters()]
        deferred = DeferredWeights(model) if schedule in SPLIT else None
        rotation, cuts = rotation_of(torch.empty(T, dtype=torch.int32), shape), torch.empty(3, dtype=torch.int32)
        begun: dict[tuple[int, int], Any] = {}
        with Peak() as peak:
            for kind, stage, micro in plan.orders(8)[rank]:
                if kind == "forward":
                    x, change = torch.empty(**hidden, requires_grad=True), None
                    for layer in range(*plan.layers[stage]):
                        x, change, *_ = model.blocks[layer](x, change, rotation, cuts, T, None)
                    begun[stage, micro] = get_gradient_edge(x + change)
                    del x, change
                elif kind == "backward":
                    backward = partial(torch.autograd.backward, begun.pop((stage, micro)), torch.empty(**hidden))
                    if deferred:
                        deferred.during((stage, micro), backward)
                    else:
                        backward()
                    del backward
                    for weight in held:
                        weight.grad = None
                elif deferred:
                    assert len(deferred.gradients((stage, micro))) == 4 * len(range(*plan.layers[stage]))
    said = memory(shape, T, passes=8, place=rank, pipeline=2, pipeline_schedule=schedule)
    gradients = 2 * sum(weight.numel() for weight in held)
    assert not begun and said.activations < peak.most < said.activations + gradients + said.block


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_that_is_dropped_leaves_no_weights(schedule: Schedule) -> None:
    """Of its last rank, which has a copy of a tied head."""
    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        model = initialise(Decoder(replace(SHAPE, tied=True)), 0)
        ranks = RankGroup(1, 2, torch.distributed.group.WORLD)
        stepper = spread(model, Training(1, 64, pipeline=2, pipeline_schedule=schedule, precision="float32"), ranks)
        weights = [weakref.ref(weight) for weight in stepper.model.parameters()]
        del model, stepper
        gc.collect()
        assert len(weights) > 5 and not any(weight() is not None for weight in weights)
    finally:
        torch.distributed.destroy_process_group()


def alive(pretended: Any, others: set[int]) -> int:
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if type(found).__name__ == "FakeTensor" and found.fake_mode is pretended:
            storages[found.untyped_storage()._cdata] = found.untyped_storage().nbytes()
    return sum(size for storage, size in storages.items() if storage not in others)


def test_each_way_to_save_memory_does() -> None:
    shape = shape_named("1.3b", 50_304)
    plain = memory(shape, 32_768)
    assert 40e9 < plain.activations < 60e9 and plain.weights == 2 * shape.parameters and plain.peak < 100e9
    peaks = [memory(shape, 32_768, recompute=recompute).peak for recompute in ("none", "selective", "full")]
    assert peaks[0] > peaks[1] > peaks[2]
    stages = [memory(shape, 4096, zero=zero, ranks=8) for zero in (0, 1, 2, 3)]
    held = [of.weights + of.masters + of.gradients + of.optimizer for of in stages]
    assert held[0] > held[1] > held[2] > held[3]
    assert memory(shape, 4096, tensor=4).activations < memory(shape, 4096).activations
    assert memory(shape, 4096, offload=True).peak < memory(shape, 4096).peak
    assert memory(shape, 32_768, ranks=2, passes=2).peak == plain.peak + memory(shape, 32_768, ranks=2).gradients
    assert plain.gradients == 2 * shape.parameters < memory(shape, 32_768, passes=2).gradients


def test_products_and_attention_are_kept() -> None:
    aten = torch.ops.aten
    assert is_costly(aten.mm.default) and is_costly(torch.ops.gristmill.flash4.default)
    assert is_costly(aten._scaled_dot_product_flash_attention_for_cpu.default)
    assert not is_costly(aten.mul.Tensor) and not is_costly(torch.ops.gristmill.rms_norm.default)
    assert not is_costly(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)


def test_selective_works_out_no_product_twice() -> None:
    """Counted as torch dispatches them, in one block forward and backward."""

    class Products(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), names: Any = None) -> Any:
            self.count += operator in (
                torch.ops.aten.mm.default,
                torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
            )
            return operator(*args, **(names or {}))

    block = Decoder(SHAPE).blocks[0]
    counts = {}
    for recompute in ("none", "selective", "full"):
        x: Tensor = torch.randn(8, SHAPE.hidden, requires_grad=True)
        with Products() as products:
            answer = with_recompute(MethodType(type(block).forward, block), recompute)(
                x, None, rotation_of(torch.arange(8), SHAPE), torch.tensor([0, 8], dtype=torch.int32), 8
            )
            sum(answer).sum().backward()
        counts[recompute] = products.count
    assert counts["none"] == counts["selective"] < counts["full"]
