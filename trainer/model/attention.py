"""Attention over packed rows: sequences lie end to end in one tensor, without padding, and no token sees another
sequence.

T tokens, H heads, D numbers a head; `cuts` are the N + 1 cumulative lengths of N sequences, int32, `cuts[0] == 0`. A
window (left, right) is how far a query sees to either side, -1 for no limit: (-1, -1) sees all, (-1, 0) is causal, (64,
64) is ModernBERT's local attention. Where a sequence has fewer queries than keys, its last query is aligned with its
last key (as in flash attention).

On CUDA in half precision: flash-attn-4 where it is installed, on Hopper or later (`fastest`; measured 1.4 to 1.8 times
the next, forward and backward, by benchmarks/training/gpu_kernels.py); else `varlen_attn` of torch 2.11 (flash
attention 2: Ampere and later). Elsewhere, and in float32: torch's scaled_dot_product_attention, sequences of equal
length at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

Window = tuple[int, int]
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int, Window], Tensor]

# Earlier versions take grouped heads without being asked.
_TAKES_ENABLE_GQA = torch.__version__ >= torch.torch_version.TorchVersion("2.12")

AMPERE, HOPPER = 8, 9  # compute capability
EVERYTHING: Window = (-1, -1)
CAUSAL: Window = (-1, 0)


def attend(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    window: Window,
) -> Tensor:
    """The attention output, T x H x D like the queries. `longest_*` may be any upper bound."""
    if q_THD.is_cuda and q_THD.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        grouped: dict[str, Any] = {"enable_gqa": True} if q_THD.shape[1] != k_THD.shape[1] and _TAKES_ENABLE_GQA else {}
        return cast(
            Tensor,
            varlen_attn(q_THD, k_THD, v_THD, cuts_q, cuts_k, longest_q, longest_k, window_size=window, **grouped),
        )
    return attend_by_length(q_THD, k_THD, v_THD, cuts_q, cuts_k, longest_q, longest_k, window)


def attend_flash4(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    window: Window,
) -> Tensor:
    """Calls the package flash-attn-4 directly, because torch's own glue to it breaks with its releases. Hopper and
    later; other precisions go to `attend`."""
    # A kernel that works on tiles of queries gains nothing on a single query.
    if longest_q == 1 or q_THD.dtype not in (torch.bfloat16, torch.float16):
        return attend(q_THD, k_THD, v_THD, cuts_q, cuts_k, longest_q, longest_k, window)
    output: Tensor = _flash4(q_THD, k_THD, v_THD, cuts_q, cuts_k, longest_q, longest_k, *window)[0]
    return output


@torch.library.custom_op("gristmill::flash4", mutates_args=())
def _flash4(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp (H x T). A custom operator, so that torch.compile takes it whole."""
    from flash_attn.cute.interface import _flash_attn_fwd  # type: ignore[import-not-found]

    output, lse = _flash_attn_fwd(
        q_THD, k_THD, v_THD, cu_seqlens_q=cuts_q, cu_seqlens_k=cuts_k, max_seqlen_q=longest_q, max_seqlen_k=longest_k,
        return_lse=True, **_flash4_window(left, right),
    )[:2]  # fmt: skip
    return output, lse


@_flash4.register_fake
def _(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q_THD, memory_format=torch.contiguous_format), q_THD.new_empty(
        q_THD.shape[1], q_THD.shape[0], dtype=torch.float32
    )


@torch.library.custom_op("gristmill::flash4_backward", mutates_args=())
def _flash4_backward(
    grad_output: Tensor,
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    output: Tensor,
    lse: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor]:
    from flash_attn.cute.interface import _flash_attn_bwd

    gradients: tuple[Tensor, Tensor, Tensor] = _flash_attn_bwd(
        q_THD,
        k_THD,
        v_THD,
        output,
        grad_output,
        lse,
        cu_seqlens_q=cuts_q,
        cu_seqlens_k=cuts_k,
        max_seqlen_q=longest_q,
        max_seqlen_k=longest_k,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        **_flash4_window(left, right),
    )[:3]
    return gradients


@_flash4_backward.register_fake
def _(grad_output, q_THD, k_THD, v_THD, *others):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_THD, k_THD, v_THD))


def _flash4_setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q_THD, k_THD, v_THD, cuts_q, cuts_k, *ctx.numbers = inputs
    ctx.save_for_backward(q_THD, k_THD, v_THD, *output, cuts_q, cuts_k)
    ctx.set_materialize_grads(False)


def _flash4_autograd_backward(ctx: Any, grad_output: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    gradients = _flash4_backward(grad_output.contiguous(), *ctx.saved_tensors, *ctx.numbers)
    return (*gradients, None, None, None, None, None, None)


_flash4.register_autograd(_flash4_autograd_backward, setup_context=_flash4_setup_context)


def _flash4_window(left: int, right: int) -> dict[str, Any]:
    """In the package's arguments, which treat causal apart from windows."""
    if (left, right) == CAUSAL:
        return {"causal": True}
    return {"window_size_left": None if left < 0 else left, "window_size_right": None if right < 0 else right}


def fastest(device: torch.device) -> Attend:
    """The fastest implementation (as measured) that is available. An installed package that fails to import raises."""
    if device.type != "cuda":
        return attend
    generation = torch.cuda.get_device_capability(device)[0]
    if generation >= HOPPER and find_spec("flash_attn") and find_spec("flash_attn.cute"):
        return attend_flash4
    return attend if generation >= AMPERE else attend_by_length


def attend_by_length(
    q_THD: Tensor,
    k_THD: Tensor,
    v_THD: Tensor,
    cuts_q: Tensor,
    cuts_k: Tensor,
    longest_q: int,
    longest_k: int,
    window: Window,
) -> Tensor:
    """On any device, in any precision."""
    outputs = []
    for (q_from, q_to, q_each), (k_from, k_to, k_each) in _runs_of_equal_lengths(cuts_q.tolist(), cuts_k.tolist()):
        q, k, v = (
            _by_sequence(x[start:stop], each)
            for x, start, stop, each in (
                (q_THD, q_from, q_to, q_each),
                (k_THD, k_from, k_to, k_each),
                (v_THD, k_from, k_to, k_each),
            )
        )
        mask = None if window == EVERYTHING else _window_mask(q_each, k_each, window, q.device)
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs) if outputs else torch.zeros_like(q_THD)


Span = tuple[int, int, int]


def _runs_of_equal_lengths(q: list[int], k: list[int]) -> Iterator[tuple[Span, Span]]:
    """Runs of consecutive sequences of equal lengths: (first token, end, length of each) of the queries, and of the
    keys. Empty sequences are left out."""
    first = 0
    while first < len(q) - 1:
        q_each, k_each = q[first + 1] - q[first], k[first + 1] - k[first]
        last = first + 1
        while last < len(q) - 1 and (q[last + 1] - q[last], k[last + 1] - k[last]) == (q_each, k_each):
            last += 1
        if q_each:
            yield (q[first], q[last], q_each), (k[first], k[last], k_each)
        first = last


def _by_sequence(x_THD: Tensor, each: int) -> Tensor:
    return x_THD.reshape(-1, each, *x_THD.shape[1:]).transpose(1, 2)


def _window_mask(queries: int, keys: int, window: Window, device: torch.device) -> Tensor:
    behind, before = window
    offset = torch.arange(keys, device=device) - (torch.arange(queries, device=device) + keys - queries)[:, None]
    mask = torch.ones_like(offset, dtype=torch.bool)
    if behind >= 0:
        mask &= offset >= -behind
    if before >= 0:
        mask &= offset <= before
    return mask
