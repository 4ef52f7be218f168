"""Attention over packed rows by torch's flex_attention: for GPUs that have neither flash-attn-4 nor `varlen_attn`,
which need Ampere or later.

A query sees the keys from `first` to before `stop`, two numbers that the cuts and the window give. Documents lie end to
end, so the key blocks that a query block sees are consecutive, and are found without a mask of all queries and keys
(which `create_block_mask` would build). On CUDA the kernel is compiled, by itself or with the block that calls it. On
the CPU it is not compiled, it materialises all scores, and torch has no backward. Forward and backward are tested
against `attend_by_length` on the CPU, backward with torch's refusal removed. There is no figure of speed for want of
such a card.

Q queries, K keys, H heads, D numbers a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128  # torch's own


def attend_flex(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    window: tuple[int, int],
) -> Tensor:
    """As `gristmill.trainer.model.attention.attend`, in any precision."""
    mask = block_mask(*spans(cuts_q, cuts_k, len(q_THD), window), len(k_THD))
    q, k, v = (x.transpose(0, 1)[None] for x in (q_THD, k_THD, v_THD))
    attention = _compiled() if q_THD.is_cuda and not torch.compiler.is_compiling() else flex_attention
    answer: Tensor = attention(q, k, v, block_mask=mask, enable_gqa=q_THD.shape[1] != k_THD.shape[1])
    return answer[0].transpose(0, 1)


def spans(cuts_q: Tensor, cuts_k: Tensor, queries: int, window: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The first key that each query sees, and the one after the last (Q, int32)."""
    positions = torch.arange(queries, device=cuts_q.device, dtype=torch.int32)
    document = torch.searchsorted(cuts_q[1:], positions, right=True)
    begin, end = cuts_k[document], cuts_k[document + 1]
    diagonal = end - cuts_q[document + 1] + positions  # the last query is aligned with the last key
    behind, ahead = window
    first = begin if behind < 0 else torch.maximum(begin, diagonal - behind)
    stop = end if ahead < 0 else torch.minimum(end, diagonal + ahead + 1)
    return first, stop


def block_mask(first_Q: Tensor, stop_Q: Tensor, keys: int) -> BlockMask:
    """Blocks between the first and the last key that any query of a block sees."""
    queries = len(first_Q)
    blocks_q, blocks_k = -(-queries // BLOCK), -(-keys // BLOCK)
    rest = blocks_q * BLOCK - queries
    low = F.pad(first_Q, (0, rest), value=keys).view(blocks_q, BLOCK).amin(1) // BLOCK
    high = (F.pad(stop_Q, (0, rest), value=0).view(blocks_q, BLOCK).amax(1) + BLOCK - 1) // BLOCK
    numbers = (low[:, None] + torch.arange(blocks_k, device=low.device, dtype=torch.int32)).clamp(max=blocks_k - 1)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (first_Q[query] <= key) & (key < stop_Q[query])

    return BlockMask.from_kv_blocks(
        (high - low).clamp(min=0).to(torch.int32)[None, None],
        numbers.to(torch.int32)[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(queries, keys),
    )


@cache
def _compiled() -> Any:
    return torch.compile(flex_attention)
