"""Disentangled attention on packed texts (He et al. 2021, DeBERTa; buckets of distances: v2 and v3).

The score of query i and key j is content to content, content to distance and distance to content:

    (q_i . k_j + q_i . K[b(i - j)] + k_j . Q[b(i - j)]) / sqrt(3 D)

K and Q are keys and queries of embedded distances, b the bucket of a distance. Texts of similar length are padded
together, as many as MOST_SCORES allows: the bias is of each pair of tokens, so no flash attention takes it.
T tokens, N texts, H heads, D numbers a head, L tokens of a padded text, R buckets of distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

MOST_SCORES = 1 << 22  # of a head, at once: texts times length times the larger of length and buckets


class PositionScores(NamedTuple):
    """What a block makes of the embedded distances."""

    queries_RHD: Tensor
    keys_RHD: Tensor


class PaddedTexts(NamedTuple):
    """Consecutive texts: where their tokens stand, padded with their first ones."""

    first: int  # text
    tokens_NL: Tensor
    real_NL: Tensor
    buckets_LL: Tensor  # of query and key, counted from `lowest`
    lowest: int  # of the buckets that texts so long meet
    highest: int


Layout = Sequence[PaddedTexts]


def layout_of(cuts: Tensor, distances: int, buckets: int) -> Layout:
    """For all layers of a pass; empty texts are left out."""
    ends = cuts.tolist()
    lengths = [stop - start for start, stop in pairwise(ends)]
    groups: list[PaddedTexts] = []
    first = 0
    while first < len(lengths):
        longest, last = lengths[first], first + 1
        # alike in length, so that no more than a fifth of a group is padding
        while longest and last < len(lengths) and 0.8 * longest <= lengths[last] <= 1.25 * longest:
            wider = max(longest, lengths[last])
            if (last + 1 - first) * wider * max(wider, buckets or wider) > MOST_SCORES:
                break
            longest, last = wider, last + 1
        if longest:
            groups.append(_padded(cuts, first, last, longest, distances, buckets))
        first = last
    return groups


def _padded(cuts: Tensor, first: int, last: int, longest: int, distances: int, buckets: int) -> PaddedTexts:
    place = torch.arange(longest, device=cuts.device)
    starts_N1, stops_N1 = cuts[first:last, None].long(), cuts[first + 1 : last + 1, None].long()
    real_NL = starts_N1 + place < stops_N1
    tokens_NL = torch.where(real_NL, starts_N1 + place, starts_N1)
    span = buckets or distances
    by_distance = bucket_of(torch.arange(1 - longest, longest), buckets, distances).add(span).clamp(0, 2 * span - 1)
    lowest, highest = int(by_distance[0]), int(by_distance[-1])
    table = (by_distance - lowest).to(cuts.device)
    return PaddedTexts(first, tokens_NL, real_NL, table[place[:, None] - place + longest - 1], lowest, highest)


def bucket_of(distance: Tensor, buckets: int, distances: int) -> Tensor:
    """Distances up to half of `buckets` have one each, longer ones share them by their logarithm."""
    if buckets <= 0:
        return distance
    half = buckets // 2
    far = distance.abs().clamp(min=half - 1)  # a near one is not asked for its logarithm
    steps = torch.log(far / half) / torch.log(torch.tensor((distances - 1) / half)) * (half - 1)
    return torch.where(distance.abs() <= half, distance, (steps.ceil() + half).long() * distance.sign())


def attend_disentangled(
    q: Tensor, k_THD: Tensor, v_THD: Tensor, of_distances: PositionScores, layout: Layout, first_only: bool = False
) -> Tensor:
    """T x H x D; `first_only`: `q` and the answers are those of each text's first token, N x H x D."""
    answers = torch.zeros_like(q)
    scale = (3 * q.shape[-1]) ** -0.5
    queries_RHD, keys_RHD = (part.to(q.dtype) for part in of_distances)
    for texts in layout:
        k_NHLD, v_NHLD = (x[texts.tokens_NL].transpose(1, 2) for x in (k_THD, v_THD))
        buckets = texts.buckets_LL
        if first_only:
            rows = slice(texts.first, texts.first + len(texts.tokens_NL))
            q_NHLD, buckets = q[rows, :, None], buckets[:1]
        else:
            q_NHLD = q[texts.tokens_NL].transpose(1, 2)
        met = slice(texts.lowest, texts.highest + 1)
        to_distance = q_NHLD @ keys_RHD[met].permute(1, 2, 0)
        from_distance = k_NHLD @ queries_RHD[met].permute(1, 2, 0)
        shape = (*k_NHLD.shape[:2], *buckets.shape)
        scores = q_NHLD @ k_NHLD.transpose(-1, -2)
        scores = scores + to_distance.gather(-1, buckets.expand(shape))
        scores = scores + from_distance.gather(-1, buckets.t().expand(*shape[:2], *buckets.t().shape)).transpose(-1, -2)
        scores = (scores.float() * scale).masked_fill(~texts.real_NL[:, None, None], -torch.inf)
        found = (scores.softmax(-1).to(v_NHLD.dtype) @ v_NHLD).transpose(1, 2)
        if first_only:
            answers[rows] = found[:, 0]
        else:
            answers[texts.tokens_NL[texts.real_NL]] = found[texts.real_NL]
    return answers
