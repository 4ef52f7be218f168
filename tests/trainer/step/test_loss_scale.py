"""Half precision by loss scaling: small gradients survive, overflows cost an update and nothing else."""

from __future__ import annotations

import json

import pytest
import torch

from gristmill.trainer.step.optim import AdamW
from gristmill.trainer.step.precision import LossScale, Scaling, autocast_for

QUICK = Scaling(start=8.0, patience=3, most=16.0)


def test_gradients_come_back_as_they_were_and_what_is_not_finite_is_found() -> None:
    scale = LossScale("cpu", Scaling(start=1024.0))
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    scale.scaled((weight * weight).sum()).backward()
    assert weight.grad is not None and weight.grad.tolist() == [2048.0, 4096.0]
    found = scale.unscale_([weight.grad])
    assert weight.grad.tolist() == [2.0, 4.0] and found.dtype == torch.float32 and float(found) == 0
    for bad in (float("inf"), float("-inf"), float("nan")):
        gradients = [torch.ones(3), torch.tensor([1.0, bad]), torch.ones(2, dtype=torch.float16)]
        assert float(scale.unscale_(gradients)) == 1
    assert float(scale.unscale_([])) == 0
    huge = [torch.full((4,), 3e38), torch.full((4,), 3e38)]  # finite, though the sum of their squares is not
    assert float(LossScale("cpu", Scaling(start=1.0)).unscale_(huge)) == 0


def test_the_scale_grows_after_good_updates_and_falls_at_once() -> None:
    scale = LossScale("cpu", QUICK)
    seen = []
    for overflow in (0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1):
        scale.update(torch.tensor(float(overflow)))
        seen.append(float(scale.scale))
    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 16, 16, 16, 16, 8, 4, 2, 1, 1, 1]


def test_an_update_left_out_for_another_reason_leaves_the_scale_as_it_was() -> None:
    scale = LossScale("cpu", QUICK)
    seen = []
    for overflow, ignored in ((0, False), (1, True), (0, True), (0, False), (1, True), (0, False), (1, False)):
        scale.update(torch.tensor(float(overflow)), torch.tensor(ignored))
        seen.append((float(scale.scale), int(scale.good)))
    assert seen == [(8, 1), (8, 1), (8, 1), (8, 2), (8, 2), (16, 0), (8, 0)]


def test_its_state_is_json_and_goes_on_the_same() -> None:
    scale, other = LossScale("cpu", QUICK), LossScale("cpu", QUICK)
    for overflow in (1.0, 0.0, 0.0):
        scale.update(torch.tensor(overflow))
    other.load_state(json.loads(json.dumps(scale.state())))
    assert other.state() == {"scale": 4.0, "good": 2}
    other.update(torch.tensor(0.0))
    assert float(other.scale) == 8.0


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"start": 0.5}, {"growth": 1.0}, {"backoff": 1.0}, {"patience": 0}):
        with pytest.raises(ValueError, match="loss scale"):
            Scaling(**wrong)  # type: ignore[arg-type]


def test_fp16_loses_small_gradients_that_the_scale_brings_back() -> None:
    def gradient(scale: LossScale) -> float:
        weight = torch.tensor([[1.0]], requires_grad=True)
        half = weight.to(torch.float16) * torch.tensor([[1e-5]], dtype=torch.float16)
        scale.scaled((half * 1e-5).float().sum()).backward()
        assert weight.grad is not None
        scale.unscale_([weight.grad])
        return float(weight.grad)

    assert gradient(LossScale("cpu", Scaling(start=1.0))) == 0.0
    assert gradient(LossScale("cpu", Scaling(start=32768.0))) == pytest.approx(1e-10, rel=0.02)


def test_training_in_fp16_goes_through_an_overflow_and_learns() -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(8, 1)
    optimizer = AdamW(rate=0.05).optimizer(network)
    scale = LossScale("cpu", Scaling(start=2.0**24, patience=50, most=2.0**24))
    x = torch.randn(64, 8)
    y = x.sum(1, keepdim=True)
    losses, left_out = [], 0
    for _ in range(200):
        optimizer.zero_grad()
        with autocast_for(torch.device("cpu"), "fp16"):
            assert network(x).dtype == torch.float16
            loss = (network(x) - y).square().mean()
        scale.scaled(loss).backward()
        found = scale.unscale_([p.grad for p in network.parameters() if p.grad is not None])
        if not found:
            optimizer.step()
        left_out += int(found)
        scale.update(found)
        losses.append(float(loss.detach()))
    assert 0 < left_out < 30 and losses[-1] < losses[0] / 100
