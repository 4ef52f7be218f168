"""Attention over packed rows goes by what the numbers are, whichever package was picked for the device."""

from __future__ import annotations

import torch

from trainer.attention import CAUSAL, attend_by_length, attend_flash4


def test_float32_goes_another_way_than_flash4() -> None:
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(7, heads, 8, generator=random) for heads in (4, 2, 2))
    cuts = torch.tensor([0, 3, 7], dtype=torch.int32)
    assert torch.equal(attend_flash4(q, k, v, cuts, cuts, 4, 4, CAUSAL), attend_by_length(q, k, v, cuts, cuts, 4, 4, CAUSAL))
