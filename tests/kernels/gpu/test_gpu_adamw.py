"""A step of AdamW by Triton is torch's own: in Triton's interpreter, in float32."""

import pytest

torch = pytest.importorskip("torch", reason="gristmill.kernels.gpu needs torch, of the extra `gpu`")
pytest.importorskip("triton", reason="gristmill.kernels.gpu needs triton, of the extra `gpu`")

from gristmill.kernels.gpu import adamw, plain  # noqa: E402
from gristmill.kernels.gpu.adamw import AdamWTile  # noqa: E402
from gristmill.kernels.gpu.plain import AdamWRule, step_scalars  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RULE = AdamWRule((0.9, 0.95), 1e-8, 0.1)


def scalar(x):
    return torch.tensor(float(x), device=DEVICE)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def states(shape):
    master = drawn(0, *shape)
    return [master.clone(), master, torch.zeros_like(master), torch.zeros_like(master)]


@pytest.mark.parametrize("shape", [(7, 33), (256,), (1,)])
def test_ten_steps_are_torchs_in_float64(shape):
    weight, master, mean, square = states(shape)
    exact = master.double().requires_grad_()
    torchs = torch.optim.AdamW([exact], betas=RULE.betas, eps=RULE.eps, weight_decay=RULE.weight_decay)
    for step in range(10):
        rate, clip, gradient = 1e-2 / (step + 1), 0.5 + 0.05 * step, drawn(step + 1, *shape)
        scalars = step_scalars(scalar(rate), scalar(step + 1), scalar(clip), scalar(0), RULE.betas)
        adamw.adamw_step(weight, gradient, master, mean, square, scalars, RULE, AdamWTile(128, 4))
        exact.grad, torchs.param_groups[0]["lr"] = gradient.double() * clip, rate
        torchs.step()
    torch.testing.assert_close(master.double(), exact.detach(), rtol=1e-6, atol=1e-6)
    state = torchs.state[exact]
    torch.testing.assert_close(mean.double(), state["exp_avg"], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(square.double(), state["exp_avg_sq"], rtol=1e-5, atol=1e-7)
    assert torch.equal(weight, master)


def test_the_plain_twin_is_torchs():
    weight, master, mean, square = (x.double() for x in states((5, 6)))
    exact = master.clone().requires_grad_()
    torchs = torch.optim.AdamW([exact], lr=1e-2, betas=RULE.betas, eps=RULE.eps, weight_decay=RULE.weight_decay)
    for step in range(4):
        gradient = drawn(step + 1, 5, 6).double()
        plain.adamw_step(
            weight,
            gradient,
            master,
            mean,
            square,
            step_scalars(scalar(1e-2), scalar(step + 1), scalar(1), scalar(0), RULE.betas),
            RULE,
        )
        exact.grad = gradient
        torchs.step()
    torch.testing.assert_close(master, exact.detach(), rtol=1e-6, atol=1e-7)  # its scalars are float32


def test_a_gradient_that_is_not_finite_leaves_all_as_it_was():
    before = states((40,))
    after = [x.clone() for x in before]
    scalars = step_scalars(scalar(1e-2), scalar(1), scalar(float("nan")), scalar(1), RULE.betas)
    adamw.adamw_step(after[0], torch.full((40,), float("inf"), device=DEVICE), *after[1:], scalars, RULE)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_what_lies_apart_is_taken_as_gradient_and_refused_as_state():
    weight, master, mean, square = states((4, 6))
    reference = [x.clone() for x in (weight, master, mean, square)]
    scalars, gradient = step_scalars(scalar(1e-2), scalar(1), scalar(1), scalar(0), RULE.betas), drawn(1, 6, 4).t()
    adamw.adamw_step(weight, gradient, master, mean, square, scalars, RULE)
    adamw.adamw_step(reference[0], gradient.contiguous(), *reference[1:], scalars, RULE)
    assert torch.equal(master, reference[1]) and not torch.equal(master, drawn(0, 4, 6))
    with pytest.raises(ValueError, match="must be contiguous"):
        adamw.adamw_step(weight.t(), gradient.t(), master.t(), mean.t(), square.t(), scalars, RULE)
    with pytest.raises(ValueError, match="differ"):
        adamw.adamw_step(weight, gradient[:2], master, mean, square, scalars, RULE)
