"""Operations are those that torch itself counts, attention only where a token may look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gristmill.trainer.model.flops import Flops, flops_of, mfu, pairs, peak_of
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import pack_documents
from gristmill.trainer.model.shapes import DecoderShape, shape_named

SHAPE = DecoderShape(vocabulary=40, hidden=16, layers=3, heads=4, kv_heads=2, mlp=24, head_size=6)


def values_alone(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return (
        v.repeat_interleave(q.shape[1] // v.shape[1], 1) + q * 0 + k.repeat_interleave(q.shape[1] // k.shape[1], 1) * 0
    )


def all_pairs(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).transpose(0, 1) for x in (k, v))
    return ((q.transpose(0, 1) @ keys.mT) @ values).transpose(0, 1)


def counted(shape: DecoderShape, attend: Any, tokens: int) -> tuple[int, int]:
    """Forward and backward, by torch."""
    model = Decoder(shape, attend)
    with FlopCounterMode(display=False) as forward:
        logits = model.logits(pack_documents([list(range(tokens))]))
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


@pytest.mark.parametrize("tied", [True, False])
def test_matrix_products_are_those_that_torch_counts(tied: bool) -> None:
    shape = DecoderShape(**{**SHAPE.facts(), "tied": tied})
    flops = flops_of(shape, np.array([10, 1, 9]))
    assert (flops.matmul_forward, flops.matmul_backward) == counted(shape, values_alone, 20)


def test_attention_is_what_torch_counts_for_the_pairs_that_are_seen() -> None:
    n = 20
    plain, full = counted(SHAPE, values_alone, n), counted(SHAPE, all_pairs, n)
    flops = flops_of(SHAPE, np.array([n]))
    assert flops.attention_forward * n * n == (full[0] - plain[0]) * n * (n + 1) // 2 > 0
    assert flops.attention_backward * n * n == (full[1] - plain[1]) * n * (n + 1) // 2


@given(st.lists(st.integers(1, 30), max_size=6), st.integers(0, 12))
def test_pairs_are_counted_one_by_one(lengths: list[int], window: int) -> None:
    seen = sum(
        1 for n in lengths for query in range(n) for key in range(query + 1) if not window or query - key < window
    )
    assert pairs(np.array(lengths, np.int32), window) == seen


def test_windows_count_for_their_own_layers() -> None:
    lengths = np.array([9, 4])
    both = flops_of(DecoderShape(**{**SHAPE.facts(), "windows": (0, 3)}), lengths)
    assert both.attention_forward == 4 * 4 * 6 * (2 * pairs(lengths) + pairs(lengths, 3))
    assert both.attention_backward == 2 * both.attention_forward
    assert both.matmul == flops_of(SHAPE, lengths).matmul


def test_short_documents_cost_less_attention_than_one_long_one() -> None:
    cut, whole = flops_of(SHAPE, np.full(8, 512)), flops_of(SHAPE, np.array([4096]))
    assert cut.matmul == whole.matmul
    assert 7.9 < whole.attention / cut.attention < 8


def test_sums_do_not_overflow() -> None:
    shape = shape_named("8b", 128_256)
    lengths = np.full(1_000, 131_072, np.int32)
    flops = flops_of(shape, lengths)
    tokens = 131_072_000
    assert flops.matmul == 6 * tokens * (shape.parameters - 128_256 * 4096 - 65 * 4096)
    assert flops.attention == 12 * 32 * 4096 * 1_000 * (131_072 * 131_073 // 2)
    assert flops.total == flops.forward + flops.backward == flops.matmul + flops.attention
    assert (flops + flops).total == 2 * flops.total


def test_no_documents_cost_nothing() -> None:
    assert flops_of(SHAPE, np.zeros(0, np.int32)) == Flops(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "bf16", "fp8"),
    [
        ("NVIDIA H200", 989e12, 1979e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 1979e12),
        ("NVIDIA H100 PCIe", 756e12, 1513e12),
        ("NVIDIA H200 NVL", 835e12, 1671e12),
        ("NVIDIA A100-SXM4-80GB", 312e12, None),
        ("NVIDIA A10G", 70e12, None),
        ("NVIDIA A10", 125e12, None),
        ("NVIDIA L40S", 362e12, 733e12),
        ("NVIDIA L4", 121e12, 242e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 330.3e12),
        ("NVIDIA L40", None, None),
        ("NVIDIA RTX A4000", None, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None, None),
        ("cpu", None, None),
    ],
)
def test_peaks_are_those_of_the_data_sheets(name: str, bf16: float | None, fp8: float | None) -> None:
    assert (peak_of(name), peak_of(name, "fp8")) == (pytest.approx(bf16), pytest.approx(fp8))


def test_utilisation_is_a_share_of_the_peak() -> None:
    assert mfu(Flops(100, 200, 40, 60), seconds=2.0, peak=1000.0) == pytest.approx(0.2)
    assert mfu(500, 1.0, 1000.0) == pytest.approx(0.5)
    assert mfu(500, 1.0, None) is None
