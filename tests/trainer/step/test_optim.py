"""One update is one update, however it is cut into batches or spread over ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gristmill.trainer.parallel.ranks import RankGroup
from gristmill.trainer.step.muon import Muon
from gristmill.trainer.step.optim import (
    AdamW,
    parameter_groups,
    step_if_finite,
    update,
    use_fused_kernel,
)
from gristmill.trainer.step.precision import autocast_for
from tests.trainer.forked_ranks import forked

SETTINGS = AdamW(rate=0.01, weight_decay=0.1, faster=(("2.", 3.0),))


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))


def losses(network: torch.nn.Module, parts: list[list[int]], whole: int) -> list[torch.Tensor]:
    return [(network(torch.tensor(part)) - 1).square().sum() / whole for part in parts]


def test_matrices_decay_and_vectors_and_embeddings_do_not() -> None:
    groups = {(g["weight_decay"], g["lr"]): g["names"] for g in parameter_groups(model(), SETTINGS)}
    assert groups == {
        (0.0, 0.01): ["0.weight", "1.bias"],
        (0.1, 0.01): ["1.weight"],
        (0.1, 0.03): ["2.weight"],
        (0.0, 0.03): ["2.bias"],
    }


def test_an_update_from_parts_is_the_update_from_the_whole() -> None:
    found = []
    for parts in ([[1, 2, 3, 4, 5]], [[1, 2], [3], [4, 5]]):
        network = model()
        optimizer = SETTINGS.optimizer(network)
        for _ in range(3):
            made = update(optimizer, list(network.parameters()), losses(network, parts, 5), 0.5, 1.0)
        found.append((network, made, optimizer))
    (one, of_one, optimizer), (other, of_other, _) = found
    assert float(of_one.loss) == pytest.approx(float(of_other.loss)) and float(of_one.norm) > 0
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert sorted(group["lr"] for group in optimizer.param_groups) == pytest.approx([0.005, 0.005, 0.015, 0.015])


@pytest.mark.parametrize("fused", [False, True])
def test_every_kernel_makes_the_same_step_and_leaves_out_what_is_not_finite(fused: bool) -> None:
    network, plain = model(), model()
    optimizer = AdamW(rate=0.01, weight_decay=0.1).optimizer(network)
    optimizer = use_fused_kernel(optimizer) if fused else optimizer
    reference = torch.optim.AdamW(
        parameter_groups(plain, AdamW(rate=0.01, weight_decay=0.1)), betas=(0.9, 0.98), foreach=False, fused=False
    )
    assert optimizer.param_groups[0]["fused"] == fused
    for bad in (False, True, False):
        for some in (network, plain):
            for parameter in some.parameters():
                parameter.grad = torch.full_like(parameter, float("inf") if bad else 0.3)
        step_if_finite(
            optimizer, torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
        )
        if not bad:
            reference.step()
        assert all(
            torch.allclose(a, b, atol=1e-7) for a, b in zip(network.parameters(), plain.parameters(), strict=True)
        )
    assert all(float(optimizer.state[p]["step"]) == 2 for p in network.parameters())


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    network = model()
    optimizer = SETTINGS.optimizer(network)
    before = [p.clone() for p in network.parameters()]
    made = update(optimizer, list(network.parameters()), [network(torch.tensor([1])).sum() * float("inf")], 1.0, 1.0)
    assert not made.norm.isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_bf16_is_autocast() -> None:
    network = torch.nn.Linear(4, 4)
    with autocast_for(torch.device("cpu"), "bf16"):
        assert network(torch.ones(1, 4)).dtype == torch.bfloat16
    with autocast_for(torch.device("cpu"), "float32"):
        assert network(torch.ones(1, 4)).dtype == torch.float32


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ranks = RankGroup(rank, 2)
    network = model()
    if rank:
        for parameter in network.parameters():
            parameter.data.zero_()  # the first rank's weights win
    ranks.share_weights(network)
    optimizer = SETTINGS.optimizer(network)
    for _ in range(3):
        mine = ranks.own_share([[1, 2], [3], [4, 5]])
        made = update(optimizer, list(network.parameters()), losses(network, list(mine), 5), 1.0, 1.0, ranks)
    torch.save({"loss": made.loss, **network.state_dict()}, f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # or the first takes its sockets away from the other
    torch.distributed.destroy_process_group()


def test_two_ranks_with_unequal_shares_make_the_update_of_one(tmp_path: Path) -> None:
    assert forked(2, _rank, str(tmp_path)) == [0, 0]
    network = model()
    optimizer = SETTINGS.optimizer(network)
    for _ in range(3):
        made = update(optimizer, list(network.parameters()), losses(network, [[1, 2, 3, 4, 5]], 5), 1.0, 1.0)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert float(found.pop("loss")) == pytest.approx(float(made.loss))
        assert all(torch.allclose(tensor, found[name], atol=1e-6) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("kind", [AdamW, Muon])
@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_clip_that_would_leave_nothing_is_refused_and_infinity_clips_nothing(kind: Any, clip: float) -> None:
    with pytest.raises(ValueError, match=r"clip\n  Input should be greater than 0"):
        kind(clip=clip)
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([30.0, 40.0, 0.0])
    assert kind(clip=math.inf).clip == math.inf and float(torch.nn.utils.clip_grad_norm_([weight], math.inf)) == 50.0
    assert weight.grad.tolist() == [30.0, 40.0, 0.0]
