"""Muon makes matrices of blocks orthogonal, part by part, and leaves the rest to AdamW."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.packed import PackedTokens, pack_documents
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.step import checkpoint
from gristmill.trainer.step.muon import Muon, newton_schulz, orthogonalise, scale_of
from gristmill.trainer.step.optim import AdamW, update
from gristmill.trainer.step.stepper import stepper_of
from tests.trainer.forked_ranks import forked

SHAPE = DecoderShape(vocabulary=31, hidden=16, layers=2, heads=4, kv_heads=2, mlp=24, context=64)
SETTINGS = Muon(rate=0.02, weight_decay=0.1, adamw=AdamW(rate=0.01, weight_decay=0.1, betas=(0.9, 0.95)))


def model() -> Decoder:
    return initialise(Decoder(SHAPE), 0)


def documents(seed: int = 0) -> PackedTokens:
    generator = torch.Generator().manual_seed(seed)
    return pack_documents([torch.randint(0, 31, (length,), generator=generator).tolist() for length in (9, 17, 30)])


def train(network: nn.Module, optimizer: torch.optim.Optimizer, updates: int, packed: PackedTokens) -> list[float]:
    losses = []
    for _ in range(updates):
        made = update(optimizer, list(network.parameters()), [network(packed) / packed.counted], 1.0, 1.0)
        losses.append(float(made.loss))
    return losses


def orthogonal_by_svd(matrix: Tensor) -> Tensor:
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    return u @ v


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (6, 20), (20, 6), (1, 7), (64, 64)])
def test_newton_schulz_keeps_singular_vectors_and_brings_singular_values_near_one(rows: int, columns: int) -> None:
    matrices = torch.randn(3, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    for made, matrix in zip(newton_schulz(matrices * 1e-3), matrices, strict=True):
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        between = u.T @ made @ v.T
        values = between.diagonal()
        assert torch.allclose(between, values.diag(), atol=1e-9)
        assert float(values.min()) > 0.2 and float(values.max()) < 1.21 and 0.66 < float(values.median()) < 1.2
        cosine = (made * orthogonal_by_svd(matrix)).sum() / (made.norm() * math.sqrt(min(rows, columns)))
        assert float(cosine) > 0.97
    assert not newton_schulz(torch.zeros(1, 4, 5)).any()


def test_a_batch_gives_what_each_matrix_alone_gives_and_parts_are_apart() -> None:
    matrices = torch.randn(4, 12, 10, generator=torch.Generator().manual_seed(1))
    made = orthogonalise(matrices, (6, 3, 3), "spectral")
    for matrix, found in zip(matrices, made, strict=True):
        alone = torch.cat([newton_schulz(part[None])[0] for part in matrix.split((6, 3, 3))])
        assert torch.allclose(found, alone, atol=1e-6)
    assert not torch.allclose(made, orthogonalise(matrices, (12,), "spectral"), atol=0.05)


def test_the_scale_makes_steps_as_long_as_adamws() -> None:
    for rows, columns in ((64, 64), (32, 128), (128, 32)):
        made = orthogonalise(
            torch.randn(1, rows, columns, generator=torch.Generator().manual_seed(2)), (rows,), "adamw"
        )
        assert 0.14 < float(made.square().mean().sqrt()) < 0.24
    assert scale_of(400, 100, "spectral") == 2.0 and scale_of(100, 400, "spectral") == 1.0


def test_matrices_of_blocks_go_by_muon_and_all_else_by_adamw() -> None:
    optimizer = SETTINGS.optimizer(model())
    muon, *rest = optimizer.param_groups
    assert set(muon["names"]) == {
        f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("qkv", "out", "gate_up", "down")
    }
    assert muon["parts"]["blocks.1.qkv.weight"] == (16, 8, 8)
    assert muon["parts"]["blocks.0.gate_up.weight"] == (24, 24)
    assert muon["parts"]["blocks.0.down.weight"] == (16,)
    norms = {f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("attention_norm", "mlp_norm")}
    assert {name for group in rest for name in group["names"]} == norms | {
        "embedding.weight",
        "norm.weight",
        "head.weight",
    }
    assert {(group["weight_decay"], *sorted(group["names"])[-1:]) for group in rest} == {
        (0.1, "head.weight"),
        (0.0, "norm.weight"),
    }
    assert muon["base_rate"] == 0.02 and all(group["base_rate"] == 0.01 for group in rest)
    with pytest.raises(ValueError, match="blocks"):
        SETTINGS.optimizer(nn.Linear(3, 3))


@pytest.mark.parametrize("nesterov", [True, False])
def test_steps_are_those_of_a_plain_loop(nesterov: bool) -> None:
    settings = Muon(0.02, 0.1, 0.9, nesterov, adamw=SETTINGS.adamw)
    network, packed = model(), documents()
    reference = copy.deepcopy(network)
    optimizer = settings.optimizer(network)
    muon = set(optimizer.param_groups[0]["names"])
    others = AdamW(0.01, 0.1, (0.9, 0.95)).optimizer(
        reference
    )  # steps on all; those of Muon are put back and stepped on by hand
    momenta = {name: torch.zeros_like(p) for name, p in reference.named_parameters()}
    cuts = {"qkv": (16, 8, 8), "gate_up": (24, 24), "out": (16,), "down": (16,)}
    for _ in range(3):
        update(optimizer, list(network.parameters()), [network(packed) / packed.counted], 0.5, 1.0)
        before = {name: p.detach().clone() for name, p in reference.named_parameters()}
        update(others, list(reference.parameters()), [reference(packed) / packed.counted], 0.5, 1.0)
        for name, parameter in reference.named_parameters():
            if name not in muon:
                continue
            momenta[name] = 0.9 * momenta[name] + 0.1 * parameter.grad
            direction = 0.1 * parameter.grad + 0.9 * momenta[name] if nesterov else momenta[name]
            parts = direction.split(cuts[name.split(".")[2]])
            step = torch.cat([newton_schulz(part[None])[0] * 0.2 * max(part.shape) ** 0.5 for part in parts])
            parameter.data.copy_(before[name] * (1 - 0.5 * 0.02 * 0.1) - 0.5 * 0.02 * step)
        for (name, a), b in zip(network.named_parameters(), reference.parameters(), strict=True):
            assert torch.allclose(a, b, atol=2e-5), name


class OneMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.blocks(x)
        return made


def fit(optimizer: torch.optim.Optimizer, network: nn.Module) -> float:
    """What 100 updates leave of a regression whose inputs vary a hundred times more in some directions than in others."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(256, 16, generator=generator) * torch.logspace(0, -2, 16)
    y = x @ torch.randn(16, 16, generator=generator)
    for step in range(100):
        loss = (network(x) - y).square().mean()
        made = update(optimizer, list(network.parameters()), [loss], 1 - step / 100, 1e9)
    return float(made.loss.detach()) / float(y.square().mean())


def test_it_trains_better_than_sgd_at_its_best_rate() -> None:
    by_sgd = []
    for rate in (0.3, 1.0, 3.0, 10.0, 30.0):
        made = OneMatrix()
        groups = [{"params": list(made.parameters()), "base_rate": rate, "lr": rate}]
        by_sgd.append(fit(torch.optim.SGD(groups, momentum=0.95, nesterov=True), made))
    made = OneMatrix()
    by_muon = fit(Muon(rate=1.0, weight_decay=0.0).optimizer(made), made)
    assert by_muon < 0.3 * min(by_sgd), (by_muon, by_sgd)


def test_gradients_that_are_not_finite_move_nothing() -> None:
    network, packed = model(), documents()
    optimizer = SETTINGS.optimizer(network)
    train(network, optimizer, 2, packed)
    before = [p.detach().clone() for p in network.parameters()]
    state = {id(p): {k: v.clone() for k, v in optimizer.state[p].items()} for p in network.parameters()}
    for bad in (float("nan"), float("inf")):
        for parameter in network.parameters():
            parameter.grad = torch.full_like(parameter, bad)
        optimizer.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
        optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
        assert all(torch.equal(v, optimizer.state[p][k]) for p in network.parameters() for k, v in state[id(p)].items())
    optimizer.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    packed = documents()
    network = model()
    optimizer = SETTINGS.optimizer(network)
    train(network, optimizer, 3, packed)
    checkpoint.save(tmp_path, 3, network.state_dict(), optimizer, {})
    after = train(network, optimizer, 3, packed)
    again = initialise(Decoder(SHAPE), 5)
    fresh = SETTINGS.optimizer(again)
    checkpoint.load(tmp_path / "step-00000003", again.state_dict(), fresh)
    assert train(again, fresh, 3, packed) == after
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    other = SETTINGS.optimizer(again)
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(
        other.state[again.blocks[0].qkv.weight]["momentum"], optimizer.state[network.blocks[0].qkv.weight]["momentum"]
    )


def test_masters_are_stepped_on_in_place_of_bf16_weights() -> None:
    stepper, packed = stepper_of(model(), SETTINGS, "bf16"), documents()
    assert all(p.dtype == torch.float32 for group in stepper.optimizer.param_groups for p in group["params"])
    losses = []
    for _ in range(8):
        loss = stepper.loss(packed) / packed.counted
        stepper.backward(loss, last=True)
        stepper.step(1.0)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    masters = stepper.weights()
    weights = dict(stepper.model.named_parameters())
    assert all(
        p.dtype == torch.bfloat16 and torch.equal(p.detach(), masters[name].bfloat16()) for name, p in weights.items()
    )
    assert any(not torch.equal(p.detach().float(), masters[name]) for name, p in weights.items())


def _cut_rank(rank: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    network = model()
    gradients = {
        name: torch.randn(p.shape, generator=torch.Generator().manual_seed(3)) for name, p in network.named_parameters()
    }
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            module._parameters[name] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
    optimizer = SETTINGS.optimizer(network)
    for _ in range(2):
        for name, parameter in network.named_parameters():
            parameter.grad = distribute_tensor(gradients[name], mesh, [Shard(0)])
        optimizer.step()
    found = {}
    for name, parameter in network.named_parameters():
        assert isinstance(parameter, DTensor)
        found[name] = parameter.detach().full_tensor()
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # or the first takes its sockets away from the other
    torch.distributed.destroy_process_group()


def test_matrices_cut_over_ranks_are_stepped_on_as_wholes(tmp_path: Path) -> None:
    assert forked(2, _cut_rank, str(tmp_path)) == [0, 0]
    network = model()
    optimizer = SETTINGS.optimizer(network)
    for _ in range(2):
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
        optimizer.step()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert all(torch.allclose(p.detach(), found[name], atol=1e-6) for name, p in network.named_parameters())
