"""Rounding to fp8 as it is and transposed in one pass: the kernel beside its reference, in Triton's interpreter."""

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from gristmill.kernels.gpu import fp8  # noqa: E402


@settings(max_examples=20)
@given(
    st.integers(1, 150), st.integers(1, 90), st.sampled_from(list(fp8.LARGEST)), st.sampled_from([2.0**-8, 1.0, 2.0**8])
)
def test_kernels_equal_their_plain_twins(rows, columns, kind, size):
    """On numbers that the format has: Triton's interpreter, unlike the card, loses the carry where rounding makes a
    mantissa longer."""
    bits = torch.randint(
        0, 256, (rows, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows * 91 + columns)
    )
    x = bits.view(kind).float().nan_to_num(1.0, 1.0, -1.0)
    x[-1, -1] = fp8.LARGEST[kind]
    x *= size
    most = torch.zeros(1)
    fp8._largest[(max(1, -(-x.numel() // 512)),)](x, most, x.numel(), 128, 4)
    assert torch.equal(most, fp8.largest_plain(x))
    rounded, turned = fp8._launched(x, most, kind)
    plain, plain_turned = fp8.rounded_both_plain(x, most, kind)
    assert torch.equal(plain.float() * fp8.scale_of(most, kind), x)
    assert torch.equal(rounded.float(), plain.float()) and torch.equal(turned.float(), plain_turned.float())
    assert turned.shape == (columns, rows) and torch.equal(turned.float(), rounded.float().t())


@given(st.integers(0, 1000), st.sampled_from(list(fp8.LARGEST)), st.floats(1e-6, 1e6))
def test_a_number_moves_by_half_a_step_at_the_most(seed, kind, size):
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(seed)) * size
    most = fp8.largest(x)
    rounded, turned = fp8.rounded_both(x, most, kind)
    scale = fp8.scale_of(most, kind)
    step = x.abs() * (2**-3 if kind is torch.float8_e4m3fn else 2**-2) + scale * (
        2**-9 if kind is torch.float8_e4m3fn else 2**-16
    )
    assert bool(((rounded.float() * scale - x).abs() <= 0.51 * step).all())
    assert torch.equal(turned.float(), rounded.float().t())


def test_a_matrix_of_zeros_stays_zeros():
    zeros = torch.zeros(16, 32)
    rounded, turned = fp8.rounded_both(zeros, fp8.largest(zeros), torch.float8_e4m3fn)
    assert rounded.shape == (16, 32) and turned.shape == (32, 16)
    assert not rounded.float().any() and torch.isfinite(fp8.scale_of(fp8.largest(zeros), torch.float8_e4m3fn)).all()
