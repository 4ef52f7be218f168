"""Cross-entropy by Triton is the reference's in float64, with its gradient in place: in Triton's interpreter, in
float32."""

import pytest
from hypothesis import example, given, settings, strategies as st

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import cross_entropy, plain  # noqa: E402
from gristmill.kernels.gpu.cross_entropy import LogitTile  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def made(rows, vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    targets[torch.rand(rows, generator=generator) < 0.3] = plain.NONE
    return 5 * torch.randn(rows, vocabulary, generator=generator).to(DEVICE), targets.to(DEVICE)


@settings(max_examples=12)
@given(st.integers(1, 12), st.integers(1, 700), st.sampled_from([0.0, 1e-2]), st.integers(0, 1000))
@example(4, 1, 0.0, 0)
@example(4, 513, 1e-2, 1)
def test_losses_and_gradients_are_those_in_float64(rows, vocabulary, z, seed):
    logits, targets = made(rows, vocabulary, seed)
    wide = logits.double().requires_grad_()
    wanted = plain.row_losses(wide, targets, z)
    (slope,) = torch.autograd.grad(wanted.sum(), wide)
    torch.testing.assert_close(
        cross_entropy.row_losses(logits, targets, z, LogitTile(128, 4)).double(), wanted.detach(), **CLOSE
    )
    in_plain = logits.double()
    torch.testing.assert_close(plain.row_losses_and_slopes(in_plain, targets, z), wanted.detach())
    torch.testing.assert_close(in_plain, slope)
    torch.testing.assert_close(
        cross_entropy.row_losses_and_slopes(logits, targets, z, LogitTile(128, 4)).double(), wanted.detach(), **CLOSE
    )
    torch.testing.assert_close(logits.double(), slope, **CLOSE)
    assert not logits[targets == plain.NONE].any()


def test_the_plain_twin_is_torchs():
    logits, targets = made(20, 30, 3)
    wanted = torch.nn.functional.cross_entropy(logits.double(), targets, ignore_index=plain.NONE, reduction="none")
    torch.testing.assert_close(plain.row_losses(logits.double(), targets), wanted)
    assert (targets == plain.NONE).any()


def test_rows_apart_in_memory_masked_and_huge_logits():
    logits, targets = made(6, 40, 5)
    targets[:] = torch.arange(6)
    logits[0, 20:] = float("-inf")  # never a target, and all of a tile
    logits[1] *= 1e4
    room = torch.full((6, 64), 7.0, device=DEVICE)
    room[:, :40] = logits
    losses = cross_entropy.row_losses_and_slopes(room[:, :40], targets, tile=LogitTile(16, 1))
    assert (room[:, 40:] == 7).all() and room.isfinite().all()
    torch.testing.assert_close(losses.double(), plain.row_losses(logits.double(), targets), rtol=1e-5, atol=1e-5)


def test_a_target_outside_the_vocabulary_makes_its_row_nan_alone_and_no_rows_give_none():
    logits, targets = made(3, 10, 0)
    targets[:] = torch.tensor([1, 10, -1])
    assert cross_entropy.row_losses(logits, targets).isnan().tolist() == [False, True, True]
    assert cross_entropy.row_losses_and_slopes(logits, targets).isnan().tolist() == [False, True, True]
    assert cross_entropy.row_losses(logits[:0], targets[:0]).shape == (0,)
    with pytest.raises(ValueError, match="strides"):
        cross_entropy.row_losses(logits.t(), targets)


def test_a_number_that_is_none_shows_in_the_loss():
    logits, targets = made(2, 300, 1)
    targets[:] = 1
    logits[0, 250] = float("nan")
    assert cross_entropy.row_losses_and_slopes(logits, targets, tile=LogitTile(128, 1)).isnan().tolist() == [
        True,
        False,
    ]
