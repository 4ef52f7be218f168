"""RMSNorm by Triton is the reference's in float64, forward and backward, at any width: in Triton's interpreter, in
float32."""

import pytest
from hypothesis import example, given, settings, strategies as st

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import plain, rms_norm  # noqa: E402
from gristmill.kernels.gpu.rms_norm import NormTile  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
EPS = 1e-5


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def exact(*inputs):
    return [x.double().requires_grad_() for x in inputs]


def same(found, wanted):
    torch.testing.assert_close(found.double(), wanted.detach(), **CLOSE)


@settings(max_examples=12)
@given(st.integers(1, 40), st.integers(1, 300), st.integers(0, 1000))
@example(33, 1, 0)
@example(1, 256, 1)
@example(7, 129, 2)
def test_norm_and_gradients_are_those_in_float64(rows, width, seed):
    x, weight, d_normed = 3 * drawn(seed, rows, width), drawn(seed + 1, width), drawn(seed + 2, rows, width)
    normed, scales = rms_norm.rms_norm(x, weight, EPS, NormTile(256, 4))
    d_x, d_weight = rms_norm.rms_norm_backward(d_normed, x, weight, scales, tile=NormTile(256, 4))
    wide = exact(x, weight)
    wanted = plain.rms_norm(*wide, EPS)
    same(normed, wanted)
    for found, slope in zip((d_x, d_weight), torch.autograd.grad(wanted, wide, d_normed.double()), strict=True):
        same(found, slope)


@settings(max_examples=8)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 1000))
def test_a_sum_its_norm_and_gradients_are_those_in_float64(rows, width, seed):
    x, residual, d_total, d_normed = (drawn(seed + i, rows, width) for i in range(4))
    weight = drawn(seed + 4, width)
    total, normed, scales = rms_norm.add_rms_norm(x, residual, weight, EPS, NormTile(256, 4))
    d_x, d_weight = rms_norm.rms_norm_backward(d_normed, total, weight, scales, d_total, NormTile(256, 4))
    wide = exact(x, residual, weight)
    wanted = plain.add_rms_norm(*wide, EPS)
    same(total, wanted[0])
    same(normed, wanted[1])
    of_x, of_residual, of_weight = torch.autograd.grad(wanted, wide, (d_total.double(), d_normed.double()))
    same(d_x, of_x)
    same(d_x, of_residual)
    same(d_weight, of_weight)


def test_the_plain_twin_is_torchs_and_its_gradients_are_right():
    x, weight = exact(drawn(0, 5, 12), drawn(1, 12))
    torch.testing.assert_close(plain.rms_norm(x, weight, EPS), torch.nn.functional.rms_norm(x, (12,), weight, EPS))
    assert torch.autograd.gradcheck(lambda x, w: plain.rms_norm(x, w, EPS), (x, weight))
    assert torch.autograd.gradcheck(lambda x, w: plain.add_rms_norm(x, x.flip(0), w, EPS), (x, weight))


def test_two_runs_give_the_same_bits_whatever_the_memory_layout():
    x, weight, slope = drawn(0, 300, 70), drawn(1, 70), drawn(2, 300, 70)
    first, second = (
        rms_norm.rms_norm_backward(slope, given, weight, rms_norm.rms_norm(given, weight, EPS)[1])
        for given in (x, x.t().contiguous().t())
    )
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


def test_no_rows_and_rows_of_zeros():
    weight = drawn(0, 8)
    nothing = torch.zeros(0, 8, device=DEVICE)
    normed, scales = rms_norm.rms_norm(nothing, weight, EPS)
    assert normed.shape == (0, 8) and not rms_norm.rms_norm_backward(nothing, nothing, weight, scales)[1].any()
    zeros = torch.zeros(3, 8, device=DEVICE)
    normed, scales = rms_norm.rms_norm(zeros, weight, EPS)
    assert not normed.any() and rms_norm.rms_norm_backward(zeros + 1, zeros, weight, scales)[0].isfinite().all()
    with pytest.raises(ValueError, match="not alike"):
        rms_norm.add_rms_norm(zeros, nothing, weight, EPS)
