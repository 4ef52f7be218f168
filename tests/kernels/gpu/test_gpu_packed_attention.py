"""Attention inside packed texts by Triton is its reference's: in Triton's interpreter in float32, on a GPU in bf16 and
rounded to fp8 too."""

import pytest
from hypothesis import example, given, settings, strategies as st

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import plain  # noqa: E402
from gristmill.kernels.gpu.packed_attention import AttentionTile, packed_attention  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SMALL = AttentionTile(32, 16, 4, 1)
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def drawn(lengths, heads, size, seed=0, dtype=torch.float32):
    """Queries, keys and values side by side, as one product gives them; and the texts' bounds."""
    cuts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    numbers = torch.randn(sum(lengths), 3, heads, size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return (*numbers.unbind(1), cuts.to(DEVICE))


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=5),
    st.integers(1, 3),
    st.sampled_from([16, 32, 64]),
    st.integers(0, 99),
)
@example([32], 1, 16, 0)
@example([1, 0, 33, 32, 0], 2, 32, 0)
@example([65, 1], 3, 64, 0)
def test_each_token_sees_its_text_and_no_other(lengths, heads, size, seed):
    q, k, v, cuts = drawn(lengths, heads, size, seed)
    firsts, wanted = (
        torch.zeros(len(lengths), heads, size, device=DEVICE, dtype=kind) for kind in (torch.float32, torch.float64)
    )
    found = packed_attention(q, k, v, cuts, first_NHD=firsts, tile=SMALL)
    exact = plain.packed_attention(q.double(), k.double(), v.double(), cuts, first_NHD=wanted)
    torch.testing.assert_close(found.double(), exact, **CLOSE)
    torch.testing.assert_close(firsts.double(), wanted, **CLOSE)
    there = [text for text, length in enumerate(lengths) if length]
    assert torch.equal(wanted[there], exact[cuts[there].long()]) and found.shape == (sum(lengths), heads, size)


def test_the_plain_twin_is_torchs_attention_of_each_text():
    q, k, v, cuts = drawn([3, 0, 7], 2, 16)
    for first, end in ((0, 3), (3, 10)):
        scores = torch.einsum("qhd,khd->hqk", q[first:end], k[first:end]) / 4
        wanted = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[first:end])
        torch.testing.assert_close(plain.packed_attention(q, k, v, cuts)[first:end], wanted, **CLOSE)


def test_tokens_that_are_in_no_text_and_many_small_texts_do_no_harm():
    q, k, v, cuts = drawn([5, 40], 2, 16)
    wanted = plain.packed_attention(q, k, v, cuts)
    behind = [torch.cat([x, torch.full((3, 2, 16), torch.nan, device=DEVICE)]) for x in (q, k, v)]
    torch.testing.assert_close(packed_attention(*behind, cuts, tile=SMALL)[:45], wanted, **CLOSE)
    assert packed_attention(q[:0], k[:0], v[:0], cuts[:1]).shape == (0, 2, 16)
    q, k, v, cuts = drawn([2] * 1030 + [50, 0, 1], 1, 16)  # past the first piece of bounds that a program looks at
    torch.testing.assert_close(
        packed_attention(q, k, v, cuts, tile=AttentionTile(64, 64, 4, 1)),
        plain.packed_attention(q, k, v, cuts),
        **CLOSE,
    )


def test_large_scores_do_not_overflow_and_a_text_does_not_depend_on_where_it_stands():
    q, k, v, cuts = (30 * x if x.is_floating_point() else x for x in drawn([38, 50], 2, 32))
    found = packed_attention(q, k, v, cuts, tile=SMALL)
    assert found.isfinite().all()
    turned = torch.tensor([0, 50, 88], dtype=torch.int32, device=DEVICE)
    assert torch.equal(packed_attention(*(x.roll(50, 0) for x in (q, k, v)), turned, tile=SMALL).roll(-50, 0), found)


def test_what_it_gives_can_be_rounded_to_fp8():
    """The interpreter's own rounding loses a carry here and there; the GPU's does not."""
    q, k, v, cuts = drawn([40, 9], 2, 32)
    shrink = torch.full((1,), 300.0, device=DEVICE)
    firsts, exact = (torch.zeros(2, 2, 32, device=DEVICE) for _ in range(2))
    found, wanted = (
        packed_attention(q, k, v, cuts, shrink, firsts, SMALL),
        plain.packed_attention(q, k, v, cuts, shrink, exact),
    )
    torch.testing.assert_close(firsts, exact, **CLOSE)  # as they are, neither multiplied nor cut off
    torch.testing.assert_close(exact, plain.packed_attention(q, k, v, cuts)[cuts[:-1].long()])
    assert found.dtype == wanted.dtype == torch.float8_e4m3fn
    assert wanted.float().abs().max() == 448 and found.float().abs().max() <= 448  # some are cut off
    assert (found.float() - wanted.float()).norm() < (2e-3 if GPU else 0.1) * wanted.float().norm()


def test_what_it_cannot_take_is_refused():
    q, k, v, cuts = drawn([4], 2, 16)
    for given_ in ((q[..., :8], k[..., :8], v[..., :8]), (q, k[:, :1], v), (q, k, v[:3])):
        with pytest.raises(ValueError, match="alike is wanted"):
            packed_attention(*given_, cuts)
    for given_ in ((q[:, ::2], k[:, ::2], v[:, ::2]), (q.contiguous(), k, v)):
        with pytest.raises(ValueError, match="side by side"):
            packed_attention(*given_, cuts)


@pytest.mark.skipif(not GPU, reason="the interpreter is wrong in bf16")
@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("lengths", [[512] * 4, [1, 511, 130, 64, 65, 700, 2]])
def test_on_a_gpu_bf16_is_as_near_as_its_digits_allow(lengths, size):
    q, k, v, cuts = drawn(lengths, 4, size, dtype=torch.bfloat16)
    wanted = plain.packed_attention(q.double(), k.double(), v.double(), cuts)
    assert (packed_attention(q, k, v, cuts).double() - wanted).norm() < 4e-3 * wanted.norm()
    shrink = torch.full((1,), 20.0, device=DEVICE)
    firsts = torch.zeros(len(lengths), 4, size, device=DEVICE)
    in_fp8 = packed_attention(q, k, v, cuts, shrink, firsts)
    assert (firsts.double() - wanted[cuts[:-1].long()]).norm() < 4e-3 * wanted[cuts[:-1].long()].norm()
    assert (in_fp8.double() / 20 - wanted).norm() < 3e-2 * wanted.norm()
    assert torch.equal(in_fp8.view(torch.uint8), packed_attention(q, k, v, cuts, shrink).view(torch.uint8))
