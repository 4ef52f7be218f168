"""Rounding to fp8, as it is and transposed in one pass and by rows: the kernels beside their references; without a GPU,
in Triton's interpreter."""

import pytest
from hypothesis import given, settings, strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from gristmill.kernels.gpu import fp8  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32  # the interpreter is wrong on bf16


def numbers_of(kind, rows, columns, seed):
    """Such as the format has: Triton's interpreter, unlike the card, loses the carry where rounding makes a mantissa
    longer."""
    bits = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bits.view(kind).float().nan_to_num(1.0, 1.0, -1.0).to(DEVICE, DTYPE)


@settings(max_examples=20)
@given(
    st.integers(1, 150), st.integers(1, 90), st.sampled_from(list(fp8.LARGEST)), st.sampled_from([2.0**-8, 1.0, 2.0**8])
)
def test_kernels_equal_their_plain_twins(rows, columns, kind, size):
    x = numbers_of(kind, rows, columns, rows * 91 + columns)
    x[-1, -1] = fp8.LARGEST[kind]
    x *= size
    most = torch.zeros(1, device=DEVICE)
    fp8._largest[(max(1, -(-x.numel() // 512)),)](x, most, x.numel(), 128, 4)
    assert torch.equal(most, fp8.largest_plain(x))
    rounded, turned = fp8._launched(x, most, kind)
    plain, plain_turned = fp8.rounded_both_plain(x, most, kind)
    assert torch.equal(plain.float() * fp8.scale_of(most, kind), x.float())
    assert torch.equal(rounded.float(), plain.float()) and torch.equal(turned.float(), plain_turned.float())
    assert turned.shape == (columns, rows) and torch.equal(turned.float(), rounded.float().t())


def test_kernels_round_each_of_several_matrices():
    x = numbers_of(torch.float8_e4m3fn, 3 * 40, 24, 5).view(3, 40, 24)
    most = fp8.largest_plain(x)
    rounded, turned = fp8._launched(x, most, torch.float8_e4m3fn)
    plain, plain_turned = fp8.rounded_both_plain(x, most, torch.float8_e4m3fn)
    assert torch.equal(rounded.float(), plain.float()) and torch.equal(turned.float(), plain_turned.float())
    assert turned.shape == (3, 24, 40)


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 90), st.sampled_from([2.0**-8, 1.0, 2.0**8]))
def test_kernels_round_rows_as_their_plain_twin_does(rows, columns, size):
    kind = torch.float8_e4m3fn
    x = numbers_of(kind, rows, columns, rows * 91 + columns)
    x[:, -1] = fp8.LARGEST[kind]
    x *= (size * 2.0 ** torch.arange(rows, device=DEVICE)[:, None]).to(DTYPE)
    (rounded, scales), (plain, plain_scales) = fp8._rows_launched(x, kind, False), fp8.rounded_rows_plain(x, kind)
    assert torch.equal(rounded.float(), plain.float()) and torch.equal(scales, plain_scales)
    assert torch.equal(rounded.float() * scales[:, None], x.float())


def test_kernels_round_gated_rows_as_their_plain_twin_does():
    x = torch.randn(7, 2 * 50, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found, plain = (
        rounded.float() * scales[:, None]
        for rounded, scales in (
            fp8._rows_launched(x, torch.float8_e4m3fn, True),
            fp8.rounded_rows_plain(x, torch.float8_e4m3fn, True),
        )
    )
    gate, up = x.chunk(2, dim=1)
    exact = torch.nn.functional.silu(gate) * up
    assert found.shape == exact.shape and (found - plain).abs().max() < 0.07 * exact.abs().max()
    assert (plain - exact).norm() < 0.04 * exact.norm()


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
