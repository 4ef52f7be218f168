"""A mixture of experts from a dense decoder (Komatsuzaki et al. 2022): each expert begins as a copy of the MLP.

The weights of a token's experts sum to 1, so the first logits are those of the dense decoder, whatever the router says.
The router begins at random, which sends tokens to different experts, and the copies part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from gristmill.trainer.model.model import Block, Decoder, SparseBlock
from gristmill.trainer.model.shapes import DecoderShape, mixture_from


def upcycled_shape(dense: DecoderShape, asked: Mapping[str, Any]) -> DecoderShape:
    """Of `{upcycle: FOLDER, experts: {number: 8, active: 2}}`; ValueError says what is wrong with it."""
    if unknown := sorted(asked.keys() - {"upcycle", "experts"}):
        raise ValueError(f"{unknown[0]}: beside upcycle there is only experts; all else is as the dense model has it")
    if dense.experts is not None:
        raise ValueError("upcycle: this model is a mixture of experts already; name its folder alone to go on with it")
    mixture = mixture_from(asked.get("experts"), dense.mlp)
    for name, wrong in (("width", mixture.width != dense.mlp), ("shared", mixture.shared > 0)):
        if wrong:
            raise ValueError(
                f"experts.{name}: experts begin as copies of the MLP, {dense.mlp:,} wide, and none is shared"
            )
    if not mixture.normalised:
        raise ValueError("experts.normalised: the weights of copies must sum to 1, or the model is another one")
    return replace(dense, experts=mixture)


@torch.no_grad()
def upcycled(dense: Decoder, shape: DecoderShape, seed: int) -> Decoder:
    """`shape`: that of `upcycled_shape`."""
    first = next(dense.parameters())
    with torch.device(first.device):
        model = Decoder(shape, next(block.attend for block in dense.blocks if isinstance(block, Block))).to(first.dtype)
    generator = torch.Generator().manual_seed(seed)
    weights = dense.state_dict()
    for name, weight in model.state_dict().items():
        if name in weights:
            weight.copy_(weights[name])
    for layer, block in enumerate(model.blocks):
        if isinstance(block, SparseBlock):
            block.experts.gate_up.copy_(weights[f"blocks.{layer}.gate_up.weight"].expand_as(block.experts.gate_up))
            block.experts.down.copy_(weights[f"blocks.{layer}.down.weight"].expand_as(block.experts.down))
            block.router.weight.copy_(torch.randn(block.router.weight.shape, generator=generator) * 0.02)
    return model
