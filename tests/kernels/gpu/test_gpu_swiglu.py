"""SwiGLU by Triton is the reference's in float64, forward and backward: in Triton's interpreter, in float32."""

import pytest
from hypothesis import example, given, settings, strategies as st

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import plain, swiglu  # noqa: E402
from gristmill.kernels.gpu.swiglu import SwigluTile  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@settings(max_examples=12)
@given(st.integers(1, 20), st.integers(1, 300), st.integers(0, 1000))
@example(9, 1, 0)
@example(3, 129, 1)
def test_outputs_and_gradients_are_those_in_float64_also_in_place(tokens, inner, seed):
    gate_up, d_out = 4 * drawn(seed, tokens, 2 * inner), drawn(seed + 1, tokens, inner)
    wide = gate_up.double().requires_grad_()
    wanted = plain.swiglu(wide)
    (slope,) = torch.autograd.grad(wanted, wide, d_out.double())
    torch.testing.assert_close(swiglu.swiglu(gate_up, SwigluTile(256, 64)).double(), wanted.detach(), **CLOSE)
    torch.testing.assert_close(
        swiglu.swiglu_backward(d_out, gate_up, tile=SwigluTile(256, 64)).double(), slope, **CLOSE
    )
    before = gate_up.clone()
    assert swiglu.swiglu_backward(d_out, gate_up, out=gate_up) is gate_up
    assert torch.equal(gate_up, swiglu.swiglu_backward(d_out, before))


def test_the_plain_twin_is_torchs_and_its_gradients_are_right():
    gate_up = drawn(0, 4, 10).double().requires_grad_()
    torch.testing.assert_close(plain.swiglu(gate_up), torch.nn.functional.silu(gate_up[:, :5]) * gate_up[:, 5:])
    assert torch.autograd.gradcheck(plain.swiglu, (gate_up,))


def test_large_gates_no_tokens_and_odd_rows():
    large = torch.tensor([[200.0, -200.0, 1.0, 1.0]], device=DEVICE)
    assert swiglu.swiglu(large).tolist() == [[200.0, 0.0]]
    assert swiglu.swiglu_backward(torch.ones(1, 2, device=DEVICE), large).tolist() == [[1.0, 0.0, 200.0, 0.0]]
    assert swiglu.swiglu(large[:0]).shape == (0, 2) and swiglu.swiglu_backward(large[:0, :2], large[:0]).shape == (0, 4)
    with pytest.raises(ValueError, match="odd"):
        swiglu.swiglu(large[:, :3])
    with pytest.raises(ValueError, match="contiguous matrix"):
        swiglu.swiglu_backward(large[:, :2], large, out=large[:, :2])
