"""Attention over packed rows goes by what the numbers are, whichever package was picked for the device."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from gristmill.trainer.model import attention
from gristmill.trainer.model.attention import (
    CAUSAL,
    attend,
    attend_by_length,
    attend_flash4,
    fastest,
)


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


@pytest.mark.parametrize(
    ("capability", "flash4", "expected"),
    [
        ((9, 0), True, "attend_flash4"),
        ((9, 0), False, "attend"),
        ((8, 6), True, "attend"),
        ((7, 5), True, "attend_by_length"),
    ],
)
def test_the_fastest_is_of_those_that_the_card_can_do(
    capability: tuple[int, int], flash4: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(attention, "find_spec", lambda name: object() if flash4 else None)
    assert fastest(torch.device("cuda")).__name__ == expected
    assert fastest(torch.device("cpu")) is attend
