"""Attention over packed rows goes by what the numbers are, whichever package was picked for the device."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from gristmill.trainer.model import attention
from gristmill.trainer.model.attention import (
    CAUSAL,
    EVERYTHING,
    Window,
    attend,
    attend_by_length,
    attend_flash4,
    fastest,
)
from gristmill.trainer.model.flex import BLOCK, attend_flex, block_mask, spans

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def heads(tokens: int, *counts: int, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, count, 16, generator=random) for count in counts]


def ends(*lengths: int) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def test_float32_goes_another_way_than_flash4() -> None:
    q, k, v = heads(7, 4, 2, 2)
    cuts = ends(3, 4)
    assert torch.equal(
        attend_flash4(q, k, v, cuts, cuts, 4, 4, CAUSAL), attend_by_length(q, k, v, cuts, cuts, 4, 4, CAUSAL)
    )


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, (4, 0), (130, 0), (3, 5)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_flex_attention_is_the_plain_one_forward_and_backward(
    window: Window, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch refuses backward on the CPU, where it is slow; it is there."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    cuts = ends(150, 1, 0, 90, 90, 29)
    found = []
    for attend_so in (attend_flex, attend_by_length):
        q, k, v = (x.requires_grad_() for x in heads(360, 4, kv_heads, kv_heads))
        answer = attend_so(q, k, v, cuts, cuts, 256, 256, window)
        gradients = torch.autograd.grad((answer * heads(360, 4, seed=1)[0]).sum(), (q, k, v))
        found.append((answer.detach(), *gradients))
    for ours, plain in zip(*found, strict=True):
        assert ours.shape == plain.shape and torch.allclose(ours, plain, atol=2e-5) and plain.abs().max() > 0.1


def test_flex_attention_of_fewer_queries_than_keys() -> None:
    q, (k, v) = heads(5, 4)[0], heads(40, 2, 2, seed=1)
    cuts_q, cuts_k = ends(2, 3), ends(30, 10)
    for window in (EVERYTHING, CAUSAL, (7, 0)):
        ours = attend_flex(q, k, v, cuts_q, cuts_k, 4, 32, window)
        assert torch.allclose(ours, attend_by_length(q, k, v, cuts_q, cuts_k, 4, 32, window), atol=1e-5)


@pytest.mark.parametrize("window", [EVERYTHING, CAUSAL, (4, 0), (200, 0), (300, 300)])
@pytest.mark.parametrize("lengths", [(1000,), (10, 500, 1, 0, 300, 77), (128, 256, 128), (5,) * 90, (1,)])
def test_the_blocks_are_those_in_which_anything_is_seen(lengths: tuple[int, ...], window: Window) -> None:
    """What the compiled kernel looks at; uncompiled, torch looks at everything."""
    cuts = ends(*lengths)
    tokens = int(cuts[-1])
    first, stop = spans(cuts, cuts, tokens, window)
    blocks = -(-tokens // BLOCK)
    seen = torch.zeros(blocks * BLOCK, blocks * BLOCK, dtype=torch.bool)
    keys = torch.arange(tokens)
    seen[:tokens, :tokens] = (first[:, None] <= keys) & (keys < stop[:, None])
    plain = seen.view(blocks, BLOCK, blocks, BLOCK).any(3).any(1)
    made = block_mask(first, stop, tokens)
    assert torch.equal(made.to_dense()[0, 0].bool(), plain)
    assert made.shape == (1, 1, tokens, tokens)


@pytest.mark.parametrize(
    ("capability", "flash4", "expected"),
    [
        ((9, 0), True, "attend_flash4"),
        ((9, 0), False, "attend"),
        ((8, 6), True, "attend"),
        ((7, 5), True, "attend_flex"),
    ],
)
def test_the_fastest_is_of_those_that_the_card_can_do(
    capability: tuple[int, int], flash4: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(attention, "find_spec", lambda name: object() if flash4 else None)
    assert fastest(torch.device("cuda")).__name__ == expected
    assert fastest(torch.device("cpu")) is attend


@pytest.mark.parametrize("window", [CAUSAL, (40, 0), (130, 3)])
def test_the_compiled_kernel_looks_at_these_blocks_alone(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU there is one for the way forward."""
    monkeypatch.setattr("gristmill.trainer.model.flex.flex_attention", torch.compile(torch_flex.flex_attention))
    q, k, v = heads(602, 4, 2, 2)
    cuts = ends(150, 1, 0, 90, 90, 29, 242)
    with torch.no_grad():
        ours = attend_flex(q, k, v, cuts, cuts, 256, 256, window)
    assert torch.allclose(ours, attend_by_length(q, k, v, cuts, cuts, 256, 256, window), atol=1e-5)
