"""Rotary positions by Triton are the reference's, and Hugging Face's: in Triton's interpreter, in float32."""

import pytest
from hypothesis import example, given, settings, strategies as st

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import plain, rotary  # noqa: E402
from gristmill.kernels.gpu.rotary import RotaryTile  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def angles(places, head_size):
    frequencies = 10_000.0 ** -(torch.arange(0, head_size, 2) / head_size)
    turns = torch.arange(places)[:, None] * frequencies
    return turns.cos().to(DEVICE), turns.sin().to(DEVICE)


@settings(max_examples=12)
@given(
    st.integers(1, 40), st.integers(1, 4), st.integers(1, 3), st.integers(1, 20), st.booleans(), st.integers(0, 1000)
)
@example(37, 1, 3, 32, True, 0)
@example(5, 4, 1, 3, True, 1)
def test_queries_keys_values_and_the_gradient_are_those_in_float64(tokens, times, kv_heads, half, by_position, seed):
    heads, size = times * kv_heads, 2 * half
    qkv = drawn(seed, tokens, (heads + 2 * kv_heads) * size)
    cos, sin = angles(50 if by_position else tokens, size)
    positions = (
        torch.randint(50, (tokens,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32).to(DEVICE)
        if by_position
        else None
    )
    found = rotary.rotary_qkv(qkv, cos, sin, positions, heads, kv_heads, size, RotaryTile(256, 4))
    wide = qkv.double().requires_grad_()
    wanted = plain.rotary_qkv(wide, cos, sin, positions, heads, kv_heads, size)
    slopes = [drawn(seed + 1 + i, *part.shape) for i, part in enumerate(found)]
    d_qkv = rotary.rotary_qkv_backward(*slopes, cos, sin, positions, RotaryTile(256, 4))
    (slope,) = torch.autograd.grad(wanted, wide, [s.double() for s in slopes])
    for got, want in zip((*found, d_qkv), (*wanted, slope), strict=True):
        assert got.is_contiguous()
        torch.testing.assert_close(got.double(), want.detach(), rtol=1e-5, atol=1e-5)


def test_the_plain_twin_is_hugging_faces_and_its_gradients_are_right():
    tokens, size = 9, 8
    cos, sin = angles(tokens, size)
    qkv = drawn(0, tokens, 4 * size).double().requires_grad_()
    q, k, v = plain.rotary_qkv(qkv, cos, sin, None, 2, 1, size)
    whole_cos, whole_sin = torch.cat([cos, cos], 1)[:, None], torch.cat([sin, sin], 1)[:, None]
    for found, x in (
        (q, qkv[:, : 2 * size].view(tokens, 2, size)),
        (k, qkv[:, 2 * size : 3 * size].view(tokens, 1, size)),
    ):
        rotate_half = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
        torch.testing.assert_close(found, x * whole_cos + rotate_half * whole_sin)
    assert torch.equal(v[:, 0], qkv[:, 3 * size :])
    assert torch.autograd.gradcheck(lambda x: plain.rotary_qkv(x, cos, sin, None, 2, 1, size), (qkv,))


def test_gradients_that_are_no_whole_tensors_are_taken():
    cos, sin = angles(6, 4)
    d_q, d_k, d_v = drawn(0, 6, 2, 4), drawn(1, 1, 6, 4).transpose(0, 1), torch.ones((), device=DEVICE).expand(6, 1, 4)
    wanted = rotary.rotary_qkv_backward(d_q, d_k.contiguous(), d_v.contiguous(), cos, sin, None)
    assert torch.equal(rotary.rotary_qkv_backward(d_q, d_k, d_v, cos, sin, None), wanted)


def test_a_position_outside_the_tables_gives_nan_and_no_tokens_give_none():
    cos, sin = angles(4, 4)
    positions = torch.tensor([3, 4, -1], dtype=torch.int32, device=DEVICE)
    q, k, v = rotary.rotary_qkv(drawn(0, 3, 12), cos, sin, positions, 1, 1, 4)
    assert q.isnan().flatten(1).all(1).tolist() == k.isnan().flatten(1).all(1).tolist() == [False, True, True]
    assert q[0].isfinite().all() and v.isfinite().all()
    assert rotary.rotary_qkv(drawn(0, 0, 12), cos, sin, positions[:0], 1, 1, 4)[0].shape == (0, 1, 4)


def test_what_does_not_fit_is_refused():
    cos, sin = angles(4, 4)
    with pytest.raises(ValueError, match="do not make rows of 13"):
        rotary.rotary_qkv(drawn(0, 4, 13), cos, sin, None, 1, 1, 4)
    with pytest.raises(ValueError, match="must be float32, with 2 columns"):
        rotary.rotary_qkv(drawn(0, 4, 12), cos.double(), sin, None, 1, 1, 4)
    with pytest.raises(ValueError, match="as many positions"):
        rotary.rotary_qkv(drawn(0, 3, 12), cos, sin, None, 1, 1, 4)
