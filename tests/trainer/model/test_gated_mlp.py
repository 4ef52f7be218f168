"""The SwiGLU layer, and a sum with a product, as one operator each: what they make and their gradients are those of
their parts; who may take them is decided without a word from the user."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch, of the extra `gpu`")

from torch import nn  # noqa: E402

from gristmill.trainer.model import matmuls as module  # noqa: E402
from gristmill.trainer.model.fp8 import Fp8Linear  # noqa: E402
from gristmill.trainer.model.fused import swiglu  # noqa: E402
from gristmill.trainer.model.matmuls import (  # noqa: E402
    add_linear,
    deinterleave,
    gated_mlp,
    has_fused_linears,
    interleave,
)

OPERATORS = {gated_mlp: "gated_mlp", add_linear: "added"}
HOPPER = torch.cuda.is_available() and has_fused_linears(torch.device("cuda"))


def layers(hidden, inner, dtype, device="cpu"):
    torch.manual_seed(0)
    return [nn.Linear(i, o, bias=False, dtype=dtype, device=device) for i, o in ((hidden, 2 * inner), (inner, hidden))]


def total(stream, change):
    return stream if change is None else stream + change


def run(step, x, residual, *layers):
    """The sum, and the gradients of all that it is made of."""
    x, residual = (tensor.detach().requires_grad_() for tensor in (x, residual))
    answer = total(*step(x, *layers, residual))
    gradient = torch.linspace(-1, 1, answer.numel(), device=x.device).view_as(answer).to(answer.dtype)
    return [answer.detach(), *torch.autograd.grad(answer, [x, residual, *(layer.weight for layer in layers)], gradient)]


def apart(x, *layers_and_residual):
    """Of a layer, or of the three of a SwiGLU."""
    *layers, residual = layers_and_residual
    return residual, layers[0](x) if len(layers) == 1 else layers[1](swiglu(layers[0](x)))


@pytest.fixture
def as_one(monkeypatch):
    for name in ("_fits_matmul", "_fits_gated_mlp"):
        monkeypatch.setattr(module, name, lambda *tensors: True)


def cases(dtype):
    gate_up, down = layers(6, 10, dtype)
    x, residual, wide = (torch.randn(7, width, dtype=dtype) for width in (6, 6, 10))
    return [(gated_mlp, x, residual, gate_up, down), (add_linear, wide, residual, down)]


@pytest.mark.parametrize("case", [0, 1], ids=["gated_mlp", "added"])
def test_one_operator_is_its_parts(as_one, case):
    step, x, residual, *parts = cases(torch.float64)[case]
    found, wanted = run(step, x, residual, *parts), run(apart, x, residual, *parts)
    assert len(found) == 3 + len(parts)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert step(x, *parts, residual)[1] is None  # all of it is in the sum
    inputs = (x.requires_grad_(), *(layer.weight for layer in parts), residual.requires_grad_())
    operator = getattr(torch.ops.gristmill, OPERATORS[step])
    assert torch.autograd.gradcheck(lambda *tensors: operator(*tensors)[0] if case == 0 else operator(*tensors), inputs)


@pytest.mark.parametrize("case", [0, 1], ids=["gated_mlp", "added"])
def test_the_compiler_takes_it_whole_and_it_keeps_the_rules_of_torchs_library(as_one, case):
    step, x, residual, *parts = cases(torch.float32)[case]
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, want in zip(run(compiled, x, residual, *parts), run(step, x, residual, *parts), strict=True):
        assert torch.equal(got, want)
    inputs = (x.requires_grad_(), *(layer.weight for layer in parts), residual.requires_grad_())
    torch.library.opcheck(getattr(torch.ops.gristmill, OPERATORS[step]).default, inputs)


def test_a_layer_without_gradients_and_an_answer_that_goes_nowhere(as_one):
    gate_up, down = layers(6, 10, torch.float32)
    x, residual = torch.ones(3, 6), torch.ones(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(
            total(*gated_mlp(x, gate_up, down, residual)), total(*apart(x, gate_up, down, residual))
        )
    x = torch.randn(3, 6, requires_grad=True)
    both = torch.ops.gristmill.gated_mlp(x, gate_up.weight, down.weight, residual)[1]
    assert not both.requires_grad and both.shape == (3, 20)


def test_what_is_interleaved_comes_apart_again():
    x = torch.arange(12).view(2, 6)
    assert interleave(x, 1)[0].tolist() == [0, 3, 1, 4, 2, 5]
    assert interleave(x.t(), 0)[:, 0].tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(deinterleave(interleave(x, 1), 1), x) and torch.equal(
        deinterleave(interleave(x.t(), 0), 0), x.t()
    )


def test_layers_that_do_more_than_multiply_are_called(as_one):
    class Told(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    for kind, number in ((Told, 7), (Fp8Linear, 0)):
        calls = []
        gate_up, down = layers(16, 16, torch.float32)
        gate_up.__class__ = down.__class__ = kind
        x, residual = torch.randn(16, 16), torch.randn(16, 16)
        assert gated_mlp(x, gate_up, down, residual)[0] is residual and add_linear(x, down, residual)[0] is residual
        torch.testing.assert_close(gated_mlp(x, gate_up, down, residual)[1], apart(x, gate_up, down, residual)[1])
        assert len(calls) == number


def test_without_a_gpu_or_the_package_nobody_asks_for_it(monkeypatch):
    assert not has_fused_linears(torch.device("cpu"))
    gate_up, _ = layers(32, 32, torch.bfloat16)
    assert not module._fits_gated_mlp(*[torch.ones(2, 32, dtype=torch.bfloat16)] * 3, gate_up.weight)
    assert not module._fits_matmul(*[torch.ones(2, 32, dtype=torch.bfloat16)] * 2, gate_up.weight)
    module._available.cache_clear()
    monkeypatch.setattr(module, "version", lambda name: "0.4.2")
    assert not module._available_on(0)
    torch._dynamo.reset()
    assert (
        torch.compile(lambda x: x + (1 if module._available_on(0) else 2), fullgraph=True, backend="eager")(
            torch.zeros(1)
        ).item()
        == 2
    )
    module._available.cache_clear()


def test_compiled_products_lie_in_this_users_own_folder(monkeypatch, tmp_path):
    quack = SimpleNamespace(gemm_interface=object(), cache_utils=SimpleNamespace(CACHE_DIR=None))
    for name, found in {
        "quack": quack,
        "quack.gemm_interface": quack.gemm_interface,
        "quack.cache_utils": quack.cache_utils,
    }.items():
        monkeypatch.setitem(sys.modules, name, found)
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    assert module.quack() is quack.gemm_interface and str(tmp_path / "quack") == quack.cache_utils.CACHE_DIR
    quack.cache_utils.CACHE_DIR = "chosen"
    assert module.quack() is quack.gemm_interface and quack.cache_utils.CACHE_DIR == "chosen"


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU and the extra `hopper`")
@pytest.mark.parametrize(
    ("tokens", "hidden", "inner"), [(1, 64, 96), (333, 768, 2048), (4096, 2048, 8192), (8200, 2048, 4096)]
)
def test_on_hopper_it_is_as_near_to_float64_as_its_parts(tokens, hidden, inner):
    device = torch.device("cuda")
    gate_up, down = layers(hidden, inner, torch.bfloat16, device)
    x, residual, wide = (
        torch.randn(tokens, width, device=device, dtype=torch.bfloat16) for width in (hidden, hidden, inner)
    )
    exact = [layer.to(torch.float64) for layer in layers(hidden, inner, torch.bfloat16, device)]

    def exactly(x, gate_up, down, residual):
        return residual, down(module.plain.swiglu(gate_up(x)))

    for step, into, parts, wanted in (
        (gated_mlp, x, [gate_up, down], run(exactly, x.double(), residual.double(), *exact)),
        (add_linear, wide, [down], run(apart, wide.double(), residual.double(), exact[1])),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True)
        ways = [run(way, into, residual, *parts) for way in (step, apart, compiled)]
        for ours, theirs, again, want in zip(*ways, wanted, strict=True):
            errors = [float((got.double() - want).norm() / want.norm()) for got in (ours, theirs)]
            assert errors[0] < 1.2 * errors[1] + 1e-6 and errors[0] < 0.01
            assert torch.equal(ours, again)
