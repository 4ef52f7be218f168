"""The SwiGLU layer as one operator: what it makes and its gradients are those of its parts; who may take it is decided without a word from the user."""

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch, of the extra `gpu`")

from torch import nn  # noqa: E402

from trainer import gated_mlp as module  # noqa: E402
from trainer.fp8 import Fp8Linear  # noqa: E402
from trainer.fused import swiglu  # noqa: E402
from trainer.gated_mlp import gated_mlp, in_one, interleaved, side_by_side  # noqa: E402

HOPPER = torch.cuda.is_available() and in_one(torch.device("cuda"))


def layers(hidden, inner, dtype, device="cpu"):
    torch.manual_seed(0)
    return [nn.Linear(i, o, bias=False, dtype=dtype, device=device) for i, o in ((hidden, 2 * inner), (inner, hidden))]


def run(step, x, gate_up, down):
    x = x.detach().requires_grad_()
    answer = step(x, gate_up, down)
    slope = torch.linspace(-1, 1, answer.numel(), device=x.device).view_as(answer).to(answer.dtype)
    return [answer.detach(), *torch.autograd.grad(answer, [x, gate_up.weight, down.weight], slope)]


def apart(x, gate_up, down):
    return down(swiglu(gate_up(x)))


@pytest.fixture
def as_one(monkeypatch):
    monkeypatch.setattr(module, "_for_products", lambda x, gate_up: True)


def test_one_operator_is_its_parts(as_one):
    gate_up, down = layers(6, 10, torch.float64)
    x = torch.randn(7, 6, dtype=torch.float64)
    found, wanted = run(gated_mlp, x, gate_up, down), run(apart, x, gate_up, down)
    assert len(found) == 4
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda x, a, b: torch.ops.gristmill.gated_mlp(x, a, b)[0], (x.requires_grad_(), gate_up.weight, down.weight)
    )


def test_the_compiler_takes_it_whole_and_it_keeps_the_rules_of_torchs_library(as_one):
    gate_up, down = layers(6, 10, torch.float32)
    x = torch.randn(7, 6)
    torch._dynamo.reset()
    compiled = torch.compile(gated_mlp, fullgraph=True, backend="aot_eager")
    for got, want in zip(run(compiled, x, gate_up, down), run(gated_mlp, x, gate_up, down), strict=True):
        assert torch.equal(got, want)
    torch.library.opcheck(torch.ops.gristmill.gated_mlp.default, (x.requires_grad_(), gate_up.weight, down.weight))


def test_a_layer_without_gradients_and_an_answer_that_goes_nowhere(as_one):
    gate_up, down = layers(6, 10, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(gated_mlp(torch.ones(3, 6), gate_up, down), apart(torch.ones(3, 6), gate_up, down))
    x = torch.randn(3, 6, requires_grad=True)
    both = torch.ops.gristmill.gated_mlp(x, gate_up.weight, down.weight)[1]
    assert not both.requires_grad and both.shape == (3, 20)


def test_what_is_interleaved_comes_apart_again():
    x = torch.arange(12).view(2, 6)
    assert interleaved(x, 1)[0].tolist() == [0, 3, 1, 4, 2, 5]
    assert interleaved(x.t(), 0)[:, 0].tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(side_by_side(interleaved(x, 1), 1), x) and torch.equal(side_by_side(interleaved(x.t(), 0), 0), x.t())


def test_layers_that_do_more_than_multiply_are_called(as_one):
    class Told(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    for kind, number in ((Told, 2), (Fp8Linear, 0)):
        calls = []
        gate_up, down = layers(16, 16, torch.float32)
        gate_up.__class__ = down.__class__ = kind
        x = torch.randn(16, 16)
        torch.testing.assert_close(gated_mlp(x, gate_up, down), apart(x, gate_up, down))
        assert len(calls) == 2 * number


def test_without_a_gpu_or_the_package_nobody_asks_for_it(monkeypatch):
    assert not in_one(torch.device("cpu"))
    gate_up, _ = layers(32, 32, torch.bfloat16)
    assert not module._for_products(torch.ones(2, 32, dtype=torch.bfloat16), gate_up.weight)
    module._found.cache_clear()
    monkeypatch.setattr(module, "version", lambda name: "0.4.2")
    assert not module._present(0)
    torch._dynamo.reset()
    assert torch.compile(lambda x: x + (1 if module._present(0) else 2), fullgraph=True, backend="eager")(torch.zeros(1)).item() == 2
    module._found.cache_clear()


def test_compiled_products_lie_in_this_users_own_folder(monkeypatch, tmp_path):
    import kernels.compiled

    quack = SimpleNamespace(gemm_interface=object(), cache_utils=SimpleNamespace(CACHE_DIR=None))
    for name, found in {"quack": quack, "quack.gemm_interface": quack.gemm_interface, "quack.cache_utils": quack.cache_utils}.items():
        monkeypatch.setitem(sys.modules, name, found)
    monkeypatch.setattr(kernels.compiled, "cache_folder", lambda: tmp_path)
    assert module._quack() is quack.gemm_interface and str(tmp_path / "quack") == quack.cache_utils.CACHE_DIR
    quack.cache_utils.CACHE_DIR = "chosen"
    assert module._quack() is quack.gemm_interface and quack.cache_utils.CACHE_DIR == "chosen"


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU and the extra `hopper`")
@pytest.mark.parametrize(("tokens", "hidden", "inner"), [(1, 64, 96), (333, 768, 2048), (4096, 2048, 8192)])
def test_on_hopper_it_is_as_near_to_float64_as_its_parts(tokens, hidden, inner):
    device = torch.device("cuda")
    gate_up, down = layers(hidden, inner, torch.bfloat16, device)
    x = torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16)
    exact = [layer.to(torch.float64) for layer in layers(hidden, inner, torch.bfloat16, device)]
    wanted = run(lambda x, a, b: b(module.plain.swiglu(a(x))), x.double(), *exact)
    torch._dynamo.reset()
    compiled = torch.compile(gated_mlp, fullgraph=True)
    for ours, parts, again, want in zip(
        run(gated_mlp, x, gate_up, down), run(apart, x, gate_up, down), run(compiled, x, gate_up, down), wanted, strict=True
    ):
        errors = [float((got.double() - want).norm() / want.norm()) for got in (ours, parts)]
        assert errors[0] < 1.2 * errors[1] + 1e-6 and errors[0] < 0.01
        assert torch.equal(ours, again)
