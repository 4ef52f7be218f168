"""A linear layer as one operator: the layer's answer and gradients, whoever multiplies."""

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch, of the extra `gpu`")

from torch import nn  # noqa: E402

from gristmill.trainer.model import matmuls as module  # noqa: E402
from gristmill.trainer.model.matmuls import (  # noqa: E402
    aligned,
    apply_linear,
    fills,
    has_fused_linears,
    matmul,
    matmul_into,
)

HOPPER = torch.cuda.is_available() and has_fused_linears(torch.device("cuda"))


def layer_of(inputs, outputs, dtype, device="cpu"):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=False, dtype=dtype, device=device)


def run(step, x, layer):
    x = x.detach().requires_grad_()
    answer = step(x, layer)
    gradient = torch.linspace(-1, 1, answer.numel(), device=x.device).view_as(answer).to(answer.dtype)
    return [answer.detach(), *torch.autograd.grad(answer, [x, layer.weight], gradient)]


def called(x, layer):
    return layer(x)


def test_it_is_the_layer_with_its_gradients(monkeypatch):
    assert "product" not in str(
        apply_linear(torch.ones(2, 6, requires_grad=True), layer_of(6, 10, torch.float32)).grad_fn
    )
    monkeypatch.setattr(module, "_fits_matmul", lambda x, weight: True)
    layer, x = layer_of(6, 10, torch.float64), torch.randn(7, 6, dtype=torch.float64)
    assert "product" in str(apply_linear(x.requires_grad_(), layer).grad_fn)
    for got, want in zip(run(apply_linear, x, layer), run(called, x, layer), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(matmul, (x.requires_grad_(), layer.weight))
    assert torch.autograd.gradgradcheck(matmul, (x, layer.weight))
    torch._dynamo.reset()
    compiled = torch.compile(apply_linear, fullgraph=True, backend="aot_eager")
    layer, x = layer_of(6, 10, torch.float32), torch.randn(7, 6)
    for got, want in zip(run(compiled, x, layer), run(apply_linear, x, layer), strict=True):
        assert torch.equal(got, want)
    torch.library.opcheck(torch.ops.gristmill.product.default, (x.requires_grad_(), layer.weight))


def test_layers_that_do_more_than_multiply_are_called(monkeypatch):
    monkeypatch.setattr(module, "_fits_matmul", lambda x, weight: True)
    with_bias = nn.Linear(4, 3)
    torch.testing.assert_close(apply_linear(torch.ones(2, 4), with_bias), with_bias(torch.ones(2, 4)))


def test_tiles_fill_the_card_or_cublas_cuts_the_sum():
    """As they were measured: docs/log.md."""
    wide = {
        "qkv": (81_920, 3072),
        "its gradient": (81_920, 2048),
        "of its weight": (3072, 2048),
        "logits": (8192, 50_304),
    }
    assert [name for name, size in wide.items() if not fills(*size, 132)] == []
    few = {"of out's weight": (2048, 2048), "of down's weight": (2048, 8192), "few tokens": (128, 3072), "one": (1, 16)}
    assert [name for name, size in few.items() if fills(*size, 132)] == []


def test_an_answer_has_its_place():
    x, weight, room = torch.randn(5, 4), torch.randn(3, 4), torch.zeros(6, 3)
    assert matmul_into(room[:5], x, weight).data_ptr() == room.data_ptr()
    torch.testing.assert_close(room[:5], x @ weight.t())
    assert not room[5].any()


def test_lines_that_begin_anywhere_are_cublas_s():
    room = torch.zeros(8, 50_264, dtype=torch.bfloat16)
    assert aligned(room) and aligned(room.t()) and aligned(room[3:5])
    assert not aligned(torch.zeros(8, 50_257, dtype=torch.bfloat16)) and not aligned(room[:, 1:])


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU and the extra `hopper`")
@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs"), [(1, 64, 96), (333, 768, 2304), (16_385, 2048, 3072), (20_000, 768, 2304)]
)
def test_on_hopper_it_is_as_near_to_float64_as_the_layer(tokens, inputs, outputs):
    device = torch.device("cuda")
    layer, exact = (layer_of(inputs, outputs, torch.bfloat16, device) for _ in range(2))
    x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
    wanted = run(called, x.double(), exact.to(torch.float64))
    torch._dynamo.reset()
    ways = [run(way, x, layer) for way in (apply_linear, called, torch.compile(apply_linear, fullgraph=True))]
    assert "product" in str(apply_linear(x.requires_grad_(), layer).grad_fn)
    for ours, theirs, again, want in zip(*ways, wanted, strict=True):
        errors = [float((got.double() - want).norm() / want.norm()) for got in (ours, theirs)]
        assert errors[0] < 1.2 * errors[1] + 1e-6 and errors[0] < 0.01
        assert torch.equal(ours, again)
