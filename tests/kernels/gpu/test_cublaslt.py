"""Products in fp8 by cuBLASLt beside their references: on a GPU that has them; elsewhere that nobody asks for them."""

import contextlib
from collections import Counter
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gristmill.kernels.gpu import cublaslt  # noqa: E402
from gristmill.kernels.gpu.cublaslt import FP8  # noqa: E402

GPU = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def given(tokens, width, inner, device):
    chance = torch.Generator().manual_seed(tokens + width)
    x, weight = (torch.randn(size, generator=chance).to(device) for size in ((tokens, width), (inner, width)))
    bias = torch.randn(inner, generator=chance).to(device, torch.bfloat16)
    scale = torch.full((1,), 0.5, device=device)
    return (x.to(FP8), weight.to(FP8), bias, scale, scale / width**0.5)


def test_twins_say_what_is_meant():
    x, weight, bias, x_scale, weight_scale = given(16, 32, 48, "cpu")
    linear = (x.double() * x_scale) @ (weight.double() * weight_scale).t() + bias.double()
    to = torch.randn(16, 48)
    added = cublaslt.linear_added_plain(x, weight, bias, x_scale, weight_scale, to)
    assert added.dtype == torch.float32 and (added - (to + linear)).abs().max() < 1e-5
    gelu = torch.nn.functional.gelu(linear, approximate="tanh")
    shrink = torch.full((1,), 1000.0)  # some go past the largest number of the format, and stay there
    rounded = cublaslt.gelu_rounded_plain(x, weight, bias, x_scale, weight_scale, shrink).double()
    wanted = (gelu * 1000).clamp(-448, 448)
    assert (wanted == 448).any() and (rounded[wanted == 448] == 448).all()
    assert ((rounded - wanted).abs() <= wanted.abs() / 16 + 2**-10).all()


@pytest.mark.parametrize(("rows", "kept"), [(16, 16), (17, 32), (1, 16), (32, 32), (0, 0)])
@pytest.mark.parametrize("kind", [FP8, torch.bfloat16])
def test_rows_are_filled_to_a_multiple_of_sixteen(rows, kept, kind):
    x = torch.randn(48, rows).t().to(kind)  # columns end to end
    filled = cublaslt.in_sixteens(x)
    assert filled.shape == (kept, 48) and filled.is_contiguous() and filled.dtype == kind
    assert torch.equal(filled[:rows].float(), x.float()) and not filled[rows:].float().any()


@pytest.mark.skipif(not GPU, reason="needs a GPU with fp8 products")
@pytest.mark.parametrize(
    ("tokens", "width", "inner"),
    [(16, 16, 16), (4096, 768, 3072), (1008, 3072, 768), (64, 384, 1536), (1237, 768, 768)],
)
def test_on_a_gpu_they_are_their_twins(tokens, width, inner):
    assert cublaslt.works(torch.cuda.current_device(), width, inner)
    product = given(tokens, width, inner, "cuda")
    to = torch.randn(tokens, inner, device="cuda", dtype=torch.bfloat16)
    ours, plain = cublaslt.linear_added(*product, to), cublaslt.linear_added_plain(*product, to)
    assert (ours.float() - plain.float()).norm() < 2e-3 * plain.float().norm()
    shrink = torch.full((1,), 60.0, device="cuda")
    ours, plain = (f(*product, shrink).float() for f in (cublaslt.gelu_rounded, cublaslt.gelu_rounded_plain))
    assert ours.max() <= 448 and (ours - plain).norm() < 2e-2 * plain.norm()
    again = cublaslt.gelu_rounded(*product, shrink).float()
    assert torch.equal(ours, again)


@pytest.mark.skipif(not GPU, reason="needs a GPU with fp8 products")
def test_sizes_that_fp8_cannot_take_are_refused():
    x, weight, bias, *scales = given(16, 32, 48, "cuda")
    to = torch.zeros(16, 48, device="cuda", dtype=torch.bfloat16)
    for given_to, says in ((to[:8], "cannot be added"), (to.float(), "bfloat16 is wanted")):
        with pytest.raises(ValueError, match=says):
            cublaslt.linear_added(x, weight, bias, *scales, given_to)
    with pytest.raises(ValueError, match="end to end"):
        cublaslt.linear_added(x[:, :16], weight[:, :16], bias, *scales, to)
    with pytest.raises(RuntimeError, match="cuBLASLt"):
        cublaslt.gelu_rounded(x[:, :8].contiguous(), weight[:, :8].contiguous(), bias, *scales, scales[0])


class Recorded:
    """A library that does nothing, and how often it was asked to."""

    def __init__(self):
        self.calls = Counter()

    def __getattr__(self, name):
        def call(*given):
            self.calls[name] += 1
            if name.endswith("GetHeuristic"):
                given[-1]._obj.value = 1  # as many were found
            return 0

        return call


def test_as_many_plans_as_are_said_are_kept(monkeypatch):
    library = Recorded()
    monkeypatch.setattr(cublaslt, "_library", lambda: library)
    monkeypatch.setattr(cublaslt, "_handle", lambda card: None)
    monkeypatch.setattr(cublaslt, "_plans", {})
    monkeypatch.setattr(cublaslt, "MOST_PLANS", 4)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    x, weight, bias, *scales = given(160, 32, 48, "cpu")
    for tokens in (16, 17, 40, 33, 64, 16, 96, 112, 0):  # 17, 33 and 40 are filled: 16, 32, 48, 48, 64, 16, 96, 112
        assert cublaslt.gelu_rounded(x[:tokens], weight, bias, *scales, scales[0]).shape == (tokens, 48)
    assert [key[1] for key in cublaslt._plans] == [64, 16, 96, 112]  # the one that was used longest ago went first
    assert library.calls["cublasLtMatmulDescCreate"] == 6 and library.calls["cublasLtMatmulDescDestroy"] == 2
    assert library.calls["cublasLtMatrixLayoutDestroy"] == 8 and library.calls["cublasLtMatmul"] == 8
