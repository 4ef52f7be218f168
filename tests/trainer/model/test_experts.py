"""Mixtures of experts: what a token's experts make of it, what is counted, what balances the load, and how experts are
made of a dense decoder."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gristmill.trainer.model import grouped
from gristmill.trainer.model.experts import Router
from gristmill.trainer.model.flops import flops_of
from gristmill.trainer.model.grouped import expert_mlp, wide_matmul
from gristmill.trainer.model.model import Decoder, SparseBlock, initialise
from gristmill.trainer.model.packed import pack_documents
from gristmill.trainer.model.shapes import DecoderShape, Mixture
from gristmill.trainer.run.settings import Training
from gristmill.trainer.step.balance import Balance, LoadBalance
from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.stepper import stepper_of
from tests.trainer.tiny import memory

MIXTURES = {
    "softmax": Mixture(4, 2, 24),
    "softmax as it is": Mixture(5, 3, 24, normalised=False, dense=(1,)),
    "sigmoid, one each, shared": Mixture(4, 1, 24, "sigmoid", shared=2, dense=(0,)),
}


def sparse(experts: Mixture, **changes: Any) -> DecoderShape:
    sizes = {"vocabulary": 61, "hidden": 32, "layers": 3, "heads": 4, "kv_heads": 2, "mlp": 48}
    return DecoderShape(**{**sizes, **changes}, experts=experts)


def texts(count: int = 2, length: int = 9, vocabulary: int = 61) -> Any:
    generator = torch.Generator().manual_seed(1)
    lengths = [length + 3 * i for i in range(count)]
    return pack_documents([torch.randint(0, vocabulary, (size,), generator=generator).tolist() for size in lengths])


class PlainMixture(torch.nn.Module):
    """In place of a block's router and experts: a token and an expert at a time."""

    def __init__(self, block: SparseBlock) -> None:
        super().__init__()
        self.block = block

    def of(self, x_TC: Tensor) -> Tensor:
        router, experts, shape = self.block.router, self.block.experts, self.block.experts.shape
        rows = []
        for x in x_TC:
            logits = router.weight @ x
            scores = logits.exp() / logits.exp().sum() if shape.router == "softmax" else 1 / (1 + (-logits).exp())
            bias = [0.0] * shape.number if router.bias is None else router.bias.tolist()
            favoured = sorted(range(shape.number), key=lambda e: -(float(scores[e]) + bias[e]))[: shape.active]
            whole = sum(scores[e] for e in favoured) if shape.normalised else 1
            made = torch.zeros_like(x)
            for e in favoured:
                gate, up = (experts.gate_up[e] @ x).chunk(2)
                made = made + scores[e] / whole * (experts.down[e] @ (F.silu(gate) * up))
            rows.append(made)
        return torch.stack(rows)


@pytest.mark.parametrize("name", MIXTURES)
def test_losses_and_gradients_are_those_of_a_plain_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = initialise(Decoder(sparse(MIXTURES[name], qk_norm="head")), 0).double()
    for router in model.routers:
        if router.bias is not None:
            router.bias.copy_(0.1 * torch.randn(len(router.bias), generator=torch.Generator().manual_seed(2)))
    plain = copy.deepcopy(model)
    for block in plain.blocks:
        if isinstance(block, SparseBlock):
            mixture = PlainMixture(block)
            monkeypatch.setattr(block.experts, "forward", lambda x, *_, mixture=mixture: mixture.of(x))
    losses = [each.loss(texts()) for each in (model, plain)]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    for loss in losses:
        loss.backward()
    gradients = [{name: p.grad for name, p in each.named_parameters()} for each in (model, plain)]
    assert len(gradients[0]) > 20 and sum(p.numel() for p in model.parameters()) == model.shape.parameters
    for weight, gradient in gradients[0].items():
        assert gradient is not None and gradient.any()
        torch.testing.assert_close(gradient, gradients[1][weight], rtol=1e-9, atol=1e-12)
    for router in model.routers:  # none is dropped: of each token with a target, every chosen expert
        *counts, tokens, _ = router.tally.tolist()
        assert sum(counts) == router.shape.active * tokens == router.shape.active * texts().counted > 0


def test_fp8_is_near_the_exact_products_and_operators_say_truly_what_they_give() -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate_up, down, gradient = (
        torch.randn(size, generator=generator) / math.sqrt(size[-1])
        for size in ((40, 32), (3, 96, 32), (3, 32, 48), (40, 32))
    )
    ends = torch.tensor([13, 13, 40], dtype=torch.int32)  # the second expert has no rows
    found = []
    for fp8 in (False, True):
        inputs = [tensor.clone().requires_grad_() for tensor in (x, gate_up, down)]
        output = expert_mlp(*inputs, ends, fp8)
        output.backward(gradient)
        found.append((output.detach(), *(tensor.grad for tensor in inputs)))
    for exact, near in zip(*found, strict=True):
        assert 0 < float((exact - near).norm() / exact.norm()) < 0.08
    assert not found[0][2][1].any() and found[0][2][0].any()
    inputs = [tensor.clone().requires_grad_() for tensor in (x, gate_up, down)]
    tests = ("test_faketensor", "test_autograd_registration")
    torch.library.opcheck(grouped._expert_mlp, (*inputs, ends, False), test_utils=tests)
    torch.library.opcheck(grouped._wide_matmul, (inputs[0], torch.randn(4, 32, requires_grad=True)), test_utils=tests)
    assert wide_matmul(x.bfloat16(), torch.randn(4, 32).bfloat16()).dtype == torch.float32


def test_biases_bring_the_load_near_even() -> None:
    shape = DecoderShape(64, 32, 1, 2, 1, 16, experts=Mixture(8, 2, 16, "sigmoid"))
    stepper = stepper_of(initialise(Decoder(shape), 0), AdamW(rate=1e-3), balance=Balance(bias=0.005))
    generator = torch.Generator().manual_seed(0)
    likely = 1 / torch.arange(1, 65).float()
    batch = pack_documents([torch.multinomial(likely, 64, True, generator=generator).tolist() for _ in range(8)])
    loads = []
    for _ in range(120):
        stepper.backward(stepper.loss(batch) / batch.counted, last=True)
        stepper.step(1.0)
        facts = stepper.balance.facts()
        assert facts["tokens_dropped"] == 0 == facts["auxiliary_loss"]
        loads.append(stepper.model.routers[0].load.clone())
    assert facts["expert_load"] == pytest.approx(float(loads[-1].max())) and float(loads[0].max()) > 1.2
    load = torch.stack(loads[-20:]).mean(0)
    assert float(load.min()) > 0.9 and float(load.max()) < 1.1, load


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_auxiliary_loss_weighs_scores_by_the_loads_of_the_update_before(kind: Any) -> None:
    router = Router(16, Mixture(4, 2, 8, kind))
    x = torch.randn(30, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        router.weight.copy_(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))
    router.loss, router.z = 0.5, 0.1
    router.load.copy_(torch.tensor([0.5, 2.5, 1.0, 0.0]))
    penalty = router(x)[1].penalty_T
    logits = x @ router.weight.t()
    scores = logits.softmax(-1) if kind == "softmax" else logits.sigmoid()
    shares = scores / scores.sum(-1, keepdim=True)
    wanted = 0.5 * (0.5 * shares[:, 0] + 2.5 * shares[:, 1] + shares[:, 2]) + 0.1 * logits.exp().sum(-1).log().square()
    torch.testing.assert_close(penalty, wanted, rtol=1e-5, atol=1e-6)
    (found,), (exact,) = (torch.autograd.grad(loss.sum(), [router.weight]) for loss in (penalty, wanted))
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_a_refused_update_moves_no_bias_and_no_load() -> None:
    stepper = stepper_of(initialise(Decoder(sparse(MIXTURES["sigmoid, one each, shared"])), 0), AdamW())
    router = stepper.model.routers[0]
    for limit, moves in ((1e-6, False), (None, True)):
        stepper.backward(stepper.loss(texts()), last=True)
        stepper.step(1.0, limit=None if limit is None else torch.tensor(limit))
        assert router.bias is not None and bool(router.bias.any()) == moves == bool((router.load != 1).any())
        assert not router.tally.any()


def test_steps_of_biases_grow_while_they_point_one_way_and_go_on_from_a_checkpoint() -> None:
    def balance_of(*tallies: list[float], state: dict[str, Any] | None = None) -> LoadBalance:
        balance = LoadBalance(Decoder(sparse(MIXTURES["sigmoid, one each, shared"])), Balance(bias=0.001))
        if state is not None:
            balance.load_state(json.loads(json.dumps(state)))
        for tally in tallies:
            for router in balance._routers:
                router.tally.copy_(torch.tensor([*tally, sum(tally), 0.0]))
            balance.step(torch.tensor(True))
        return balance

    much, little = [4.0, 2.0, 1.0, 1.0], [0.0, 2.0, 3.0, 3.0]
    router = balance_of(much, much, much)._routers[0]
    assert router.pace.tolist() == [2.25, 3.375, 2.25, 2.25]  # the second is even, and was before
    assert router.bias is not None and float(router.bias[0]) == pytest.approx(-0.001 * (1 + 1.5 + 2.25))
    assert balance_of(*[much] * 40)._routers[0].pace.max() == 100
    turned = balance_of(much, much, much, little)._routers[0]
    assert turned.pace.tolist()[0] == 1.125 and float(turned.bias[0] - router.bias[0]) == pytest.approx(0.001125)
    halfway = balance_of(much, much)
    gone_on = balance_of(much, little, state=halfway.state())._routers[0]
    assert gone_on.pace.tolist() == turned.pace.tolist() and gone_on.load.tolist() == turned.load.tolist()
    earlier = balance_of(state={"expert_loads": halfway.state()["expert_loads"]})._routers[0]
    assert earlier.pace.tolist() == [1.0] * 4 and earlier.load.tolist() == [2.0, 1.0, 0.5, 0.5]


def test_only_active_experts_are_work_and_all_are_memory() -> None:
    dense, mixture = DecoderShape(61, 32, 3, 4, 2, 48), sparse(Mixture(8, 2, 24))
    router = 2 * 10 * 3 * 8 * 32
    assert (
        flops_of(mixture, torch.tensor([10]).numpy()).matmul_forward - router
        == flops_of(dense, torch.tensor([10]).numpy()).matmul_forward
    )
    assert mixture.active_parameters - 3 * 8 * 32 == dense.parameters < mixture.parameters
    whole, halves = (memory(mixture, 64, zero=1, ranks=4, experts=count) for count in (1, 2))
    of_experts = 3 * 8 * 3 * 32 * 24
    assert whole.weights - halves.weights == 2 * of_experts // 2
    assert (
        halves.optimizer == whole.optimizer and halves.masters == whole.masters
    )  # each has half of them, on half the ranks


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"zero": 2}, "zero 2 does not go with experts 2"),
        ({"tensor": 2}, "a model with experts is not cut"),
    ],
)
def test_layouts_that_do_not_go_together_say_so(wrong: dict[str, int], says: str) -> None:
    from gristmill.trainer.parallel.ranks import RankGroup
    from gristmill.trainer.parallel.spread import spread

    with pytest.raises(ValueError, match=says):
        spread(Decoder(sparse(MIXTURES["softmax"])), Training(1, 64, experts=2, **wrong), RankGroup(0, 4))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"number": 4, "active": 9, "width": 8}, "active 9 is more than the 4 experts"),
        ({"number": 4, "width": 8}, "shape.experts.active: Field required"),
        ({"number": 4, "active": 2, "width": 8, "wide": 3}, "shape.experts.wide: no such field; did you mean width"),
        (
            {"number": 1, "active": 1, "width": 8},
            "shape.experts.number: Input should be greater than or equal to 2, not 1",
        ),
        (
            {"number": 4, "active": 2, "width": 8, "router": "hash"},
            "shape.experts.router: Input should be 'softmax' or 'sigmoid', not 'hash'",
        ),
        ({"number": 4, "active": 2, "width": 8, "dense": [3]}, "there are the layers 0 to 2"),
        ({"number": 4, "active": 2, "width": 8, "dense": [0, 1, 2]}, "names every layer"),
    ],
)
def test_mixtures_that_cannot_be_say_why(facts: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DecoderShape.from_facts({**DecoderShape(61, 32, 3, 4, 2, 48).facts(), "experts": facts})
