"""Weights with fewer bits, or with two of every four left: what one input's rounding costs is made up for by the inputs
that are still to come.

GPTQ (Frantar et al. 2023) and SparseGPT (Frantar and Alistarh 2023), in one pass over the inputs of a linear map, so
that sparse weights can be rounded too. Both look at the map's inputs on calibration texts, by their second moments.
O outputs, I inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = {"int8": 63, "int4": 7}
"""The largest code. int8 has 7 bits: AVX2 adds two products of 8 bits in 16, and no such sum overflows then."""
DAMPING = 0.01  # of the mean second moment, added to all
AT_ONCE = 128  # inputs between two updates of all that come after
SHRUNK = tuple(1 - 0.05 * step for step in range(11))  # scales tried, as shares of the one that cuts nothing


class Codes(NamedTuple):
    """Whole numbers times one scale for each output."""

    codes_OI: Tensor  # int8
    scale_O1: Tensor  # float32

    @property
    def weight(self) -> Tensor:
        return self.codes_OI.float() * self.scale_O1


def nearest_codes(weight_OI: Tensor, largest: int, moment_II: Tensor | None = None) -> Codes:
    """Each weight rounded by itself. Of the scales tried an output has the one of the smallest error, each input
    weighted by its second moment."""
    weight = weight_OI.float()
    whole = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
    if moment_II is None:
        return Codes(_rounded(weight, whole, largest).to(torch.int8), whole)
    importance = moment_II.diagonal().float()
    best, least = whole, torch.full_like(whole, float("inf"))
    for share in SHRUNK:
        scale = whole * share
        error = ((_rounded(weight, scale, largest) * scale - weight) ** 2 * importance).sum(1, keepdim=True)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return Codes(_rounded(weight, best, largest).to(torch.int8), best)


def compensated_codes(weight_OI: Tensor, moment_II: Tensor, largest: int, sparse: bool = False) -> Codes:
    """GPTQ; `sparse`: of every four inputs of an output the two that matter least are 0."""
    scale = nearest_codes(weight_OI, largest, moment_II).scale_O1
    weight = _compensated(weight_OI, moment_II, scale.double(), largest, sparse)
    return Codes(_rounded(weight.float(), scale, largest).to(torch.int8), scale)


def compensated_sparse(weight_OI: Tensor, moment_II: Tensor) -> Tensor:
    """SparseGPT: float32 weights, of every four inputs of an output two are 0."""
    return _compensated(weight_OI, moment_II, None, 0, True).float()


def largest_two(weight_OI: Tensor) -> Tensor:
    """Of every four inputs the two largest weights, and 0 for the others."""
    fours = weight_OI.unflatten(1, (-1, 4))
    smallest = fours.abs().argsort(-1)[..., :2]
    return fours.scatter(-1, smallest, 0.0).flatten(1)


def is_two_of_four(weight_OI: Tensor) -> bool:
    return weight_OI.shape[1] % 4 == 0 and bool(((weight_OI.unflatten(1, (-1, 4)) != 0).sum(-1) <= 2).all())


def _compensated(weight_OI: Tensor, moment_II: Tensor, scale: Tensor | None, largest: int, sparse: bool) -> Tensor:
    weight, moment = weight_OI.double().clone(), moment_II.double().clone()
    unused = moment.diagonal() == 0
    moment.diagonal()[unused] = 1.0
    weight[:, unused] = 0.0
    moment.diagonal().add_(DAMPING * moment.diagonal().mean())
    inputs = weight.shape[1]
    # what matters most is rounded first, while much can still make up for it; fours of inputs stay together
    order = torch.arange(inputs, device=weight.device) if sparse else moment.diagonal().argsort(descending=True)
    weight, moment = weight[:, order], moment[order][:, order]
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moment)), upper=True)
    for start in range(0, inputs, AT_ONCE):
        stop = min(start + AT_ONCE, inputs)
        errors = torch.zeros_like(weight[:, start:stop])
        gone = torch.zeros_like(weight[:, :4], dtype=torch.bool)
        for i in range(start, stop):
            if sparse and i % 4 == 0:
                cost = (weight[:, i : i + 4] / factor.diagonal()[i : i + 4]) ** 2
                gone = torch.zeros_like(cost, dtype=torch.bool).scatter(1, cost.argsort(1)[:, :2], True)
            kept = weight[:, i].masked_fill(gone[:, i % 4], 0.0) if sparse else weight[:, i].clone()
            if scale is not None:
                kept = _rounded(kept, scale[:, 0], largest) * scale[:, 0]
            error = (weight[:, i] - kept) / factor[i, i]
            weight[:, i:stop] -= error[:, None] * factor[i, i:stop]
            weight[:, i] = kept
            errors[:, i - start] = error
        weight[:, stop:] -= errors @ factor[start:stop, stop:]
    return weight[:, order.argsort()]


def _rounded(weight: Tensor, scale: Tensor, largest: int) -> Tensor:
    return (weight / scale).round().clamp(-largest, largest)
