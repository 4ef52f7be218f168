"""The decoder's fused steps are whole operators to torch.compile and to autograd, and ordinary torch where there is no
GPU."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch, of the extra `gpu`")

from gristmill.kernels.gpu import plain  # noqa: E402
from gristmill.trainer.model import fused  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS, HEADS, KV_HEADS, SIZE, TOKENS = 1e-5, 4, 2, 6, 7


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def angles(positions=20):
    turns = torch.arange(positions)[:, None] * 0.3 ** torch.arange(SIZE // 2)
    return turns.cos().to(DEVICE), turns.sin().to(DEVICE)


def places():
    return torch.arange(TOKENS, dtype=torch.int32, device=DEVICE) % 5


def qkv():
    return drawn(3, TOKENS, (HEADS + 2 * KV_HEADS) * SIZE)


# By name: the function, its operator (which runs the Triton kernels wherever it is called), the reference, and inputs.
STEPS = {
    "rms_norm": (
        fused.rms_norm, lambda *a: torch.ops.gristmill.rms_norm(*a)[0], plain.rms_norm, lambda: (drawn(0, TOKENS, 24), drawn(1, 24), EPS),
    ),
    "rms_norm beside": (
        fused.rms_norm_beside, fused._RmsNormBeside.apply, lambda x, weight, eps: (x, plain.rms_norm(x, weight, eps)), lambda: (drawn(0, TOKENS, 24), drawn(1, 24), EPS),
    ),
    "add_rms_norm": (
        fused.add_rms_norm, lambda *a: torch.ops.gristmill.add_rms_norm(*a)[:2], plain.add_rms_norm,
        lambda: (drawn(0, TOKENS, 24), drawn(2, TOKENS, 24), drawn(1, 24), EPS),
    ),
    "rotary_qkv": (
        fused.rotary_qkv, torch.ops.gristmill.rotary_qkv, plain.rotary_qkv, lambda: (qkv(), *angles(), places(), HEADS, KV_HEADS, SIZE),
    ),
    "rotary_qkv by token": (
        fused.rotary_qkv, torch.ops.gristmill.rotary_qkv, plain.rotary_qkv, lambda: (qkv(), *angles(TOKENS), None, HEADS, KV_HEADS, SIZE),
    ),
    "swiglu": (fused.swiglu, torch.ops.gristmill.swiglu, plain.swiglu, lambda: (drawn(0, TOKENS, 18),)),
}  # fmt: skip


def learning(inputs, dtype):
    """Inputs that get gradients, in this precision: all but what turns queries and keys."""
    return [
        x.to(dtype).requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.shape[-1] != SIZE // 2
        else x
        for x in inputs
    ]


def run(step, inputs):
    """Outputs, and the gradients of what learns, of a sum in which each output has its weights."""
    outputs = step(*inputs)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    total = sum((out * drawn(10 + i, *out.shape).to(out.dtype)).sum() for i, out in enumerate(outputs))
    learns = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return [*outputs, *torch.autograd.grad(total, learns)]


def same(found, wanted, **close):
    assert len(found) == len(wanted) > 1
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), want.double(), **close)


@pytest.mark.parametrize("name", STEPS)
def test_operators_and_their_gradients_are_those_of_the_plain_twins_in_float64(name):
    pytest.importorskip("triton", reason="the operators run Triton kernels")
    _, operator, reference, inputs = STEPS[name]
    same(
        run(operator, learning(inputs(), torch.float32)),
        run(reference, learning(inputs(), torch.float64)),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("name", STEPS)
def test_the_compiler_takes_each_whole_forward_and_backward(name):
    pytest.importorskip("triton", reason="the operators run Triton kernels")
    _, operator, _, inputs = STEPS[name]
    torch._dynamo.reset()
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    same(
        run(compiled, learning(inputs(), torch.float32)),
        run(operator, learning(inputs(), torch.float32)),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("name", [name for name in STEPS if name != "rms_norm beside"])  # which is no operator
def test_operators_keep_the_rules_of_torchs_library(name):
    pytest.importorskip("triton", reason="the operators run Triton kernels")
    inputs = learning(STEPS[name][3](), torch.float32)
    torch.library.opcheck(getattr(torch.ops.gristmill, name.split()[0]).default, tuple(inputs))


@pytest.mark.parametrize("name", STEPS)
def test_the_plain_path_has_right_gradients_and_is_compiled_whole(name):
    function, _, reference, inputs = STEPS[name]
    exact = [x.to("cpu") if isinstance(x, torch.Tensor) else x for x in inputs()]
    exact = learning(exact, torch.float64)
    assert torch.autograd.gradcheck(function, exact)
    torch._dynamo.reset()
    same(
        [x.to(DEVICE) for x in run_here(torch.compile(function, fullgraph=True, backend="aot_eager"), exact)],
        [x.to(DEVICE) for x in run_here(reference, exact)],
        rtol=1e-12, atol=1e-12,
    )  # fmt: skip


def run_here(step, inputs):
    outputs = step(*inputs)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    learns = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return [*outputs, *torch.autograd.grad(sum(out.square().sum() for out in outputs), learns)]


def test_a_sum_whose_norm_or_itself_goes_nowhere_has_its_gradients_all_the_same():
    pytest.importorskip("triton", reason="the operators run Triton kernels")
    for name, which in itertools.product(("add_rms_norm", "rms_norm beside"), (0, 1)):
        _, operator, reference, inputs = STEPS[name]
        found = run(lambda *a, o=operator, w=which: o(*a)[w], learning(inputs(), torch.float32))
        wanted_inputs = learning(inputs(), torch.float64)
        outputs = reference(*wanted_inputs)[which]
        learns = [x for x in wanted_inputs if isinstance(x, torch.Tensor)]
        wanted = torch.autograd.grad((outputs * drawn(10, *outputs.shape).double()).sum(), learns, allow_unused=True)
        for got, want in zip(found[1:], wanted, strict=True):
            torch.testing.assert_close(
                got.double(), torch.zeros_like(got).double() if want is None else want, rtol=1e-5, atol=1e-5
            )
