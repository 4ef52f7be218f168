"""A decoder in float64 that is slow and obviously right: one document, one head, one query at a time, by the names of
`Decoder`'s weights."""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gristmill.trainer.model.shapes import DecoderShape


def plain_logits(weights: Mapping[str, Tensor], shape: DecoderShape, document: Sequence[int]) -> Tensor:
    H, K, D, M = shape.heads, shape.kv_heads, shape.head_size, shape.mlp
    streams = [weights["embedding.weight"][token] for token in document]
    for layer in range(shape.layers):
        own = {name.split(".", 2)[2]: tensor for name, tensor in weights.items() if name.startswith(f"blocks.{layer}.")}
        W_q, W_k, W_v = (
            own["qkv.weight"][: H * D],
            own["qkv.weight"][H * D : (H + K) * D],
            own["qkv.weight"][(H + K) * D :],
        )
        normed = [plain_norm(x, own["attention_norm.weight"], shape) for x in streams]
        answers: list[list[Tensor]] = [[] for _ in document]
        for head in range(H):
            ours = slice(head * D, (head + 1) * D)
            shared = head // (H // K)
            theirs = slice(shared * D, (shared + 1) * D)
            queries = [turned(W_q[ours] @ x, place, shape) for place, x in enumerate(normed)]
            keys = [turned(W_k[theirs] @ x, place, shape) for place, x in enumerate(normed)]
            values = [W_v[theirs] @ x for x in normed]
            for place, query in enumerate(queries):
                window = shape.windows[layer % len(shape.windows)] if shape.windows else 0
                first = max(0, place - window + 1) if window else 0
                scores = torch.stack([query @ keys[seen] / math.sqrt(D) for seen in range(first, place + 1)])
                shares = scores.exp() / scores.exp().sum()
                answers[place].append(
                    sum((share * values[first + i] for i, share in enumerate(shares)), torch.zeros(D).double())
                )
        streams = [x + own["out.weight"] @ torch.cat(answer) for x, answer in zip(streams, answers, strict=True)]
        for place, x in enumerate(streams):
            y = plain_norm(x, own["mlp_norm.weight"], shape)
            gate, up = own["gate_up.weight"][:M] @ y, own["gate_up.weight"][M:] @ y
            streams[place] = x + own["down.weight"] @ (gate / (1 + torch.exp(-gate)) * up)
    head_weight = weights["embedding.weight"] if shape.tied else weights["head.weight"]
    return torch.stack([head_weight @ plain_norm(x, weights["norm.weight"], shape) for x in streams])


def plain_loss(weights: Mapping[str, Tensor], shape: DecoderShape, documents: Sequence[Sequence[int]]) -> Tensor:
    """The sum over all tokens that follow another in their document."""
    total = torch.zeros(()).double()
    for document in documents:
        for logits, following in zip(plain_logits(weights, shape, document)[:-1], document[1:], strict=True):
            total = total + logits.exp().sum().log() - logits[following]
    return total


def plain_norm(x: Tensor, weight: Tensor, shape: DecoderShape) -> Tensor:
    return x / torch.sqrt((x * x).sum() / len(x) + shape.norm_eps) * weight


def turned(x: Tensor, place: int, shape: DecoderShape) -> Tensor:
    """Number i and number i + D/2 of a head are a complex number, which turns with the place of its token."""
    half = len(x) // 2
    turns = torch.tensor([cmath.exp(1j * place * speed(i, shape)) for i in range(half)], dtype=torch.complex128)
    moved = torch.complex(x[:half], x[half:]) * turns
    return torch.cat([moved.real, moved.imag])


def speed(i: int, shape: DecoderShape) -> float:
    """Radians a token; by the rules of Llama 3.1 where positions are scaled."""
    plain = float(shape.rope_base) ** (-2 * i / shape.head_size)
    scaling = shape.rope_scaling
    if scaling is None:
        return plain
    wave = 2 * math.pi / plain
    if wave < scaling.context / scaling.high:
        return plain
    if wave > scaling.context / scaling.low:
        return plain / scaling.factor
    smooth = (scaling.context / wave - scaling.low) / (scaling.high - scaling.low)
    return (1 - smooth) * plain / scaling.factor + smooth * plain
