"""fp8 linear maps: near the exact ones, both ways, compiled too, and a model trains with them as without."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
from gristmill.trainer.model.fp8 import Fp8Linear, fp8_linear, use_fp8
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.packed import pack_documents
from gristmill.trainer.model.shapes import shape_named
from gristmill.trainer.step.optim import AdamW, update


def test_products_and_slopes_are_near_the_exact_ones():
    torch.manual_seed(0)
    x, weight = torch.randn(64, 48, requires_grad=True), torch.randn(32, 48, requires_grad=True)
    gradient = torch.randn(64, 32)
    answer = fp8_linear(x, weight)[0]
    answer.backward(gradient)
    found = answer.detach(), x.grad, weight.grad
    x.grad = weight.grad = None
    exact = F.linear(x, weight)
    exact.backward(gradient)
    for ours, reference in zip(found, (exact.detach(), x.grad, weight.grad), strict=True):
        assert ours.shape == reference.shape
        assert float((ours - reference).norm() / reference.norm()) < 0.08


def test_operators_say_truly_what_they_give():
    operands = (torch.randn(16, 32, requires_grad=True), torch.randn(48, 32, requires_grad=True))
    torch.library.opcheck(fp8_linear, operands, test_utils=("test_faketensor", "test_autograd_registration"))


def test_only_the_linear_maps_of_blocks_change_and_the_model_learns_as_before():
    shape = shape_named("1m", 64, hidden=32, layers=2, mlp=64)
    losses = {}
    for kind in ("plain", "fp8"):
        model = initialise(Decoder(shape), 3)
        names = [name for name, _ in model.named_parameters()]
        if kind == "fp8":
            use_fp8(model)
            assert sum(isinstance(module, Fp8Linear) for module in model.modules()) == 4 * shape.layers
        assert [name for name, _ in model.named_parameters()] == names
        optimizer, learning = AdamW(rate=3e-3).optimizer(model), list(model.parameters())
        text = torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(1)).tolist()
        batch = pack_documents(text)
        losses[kind] = [
            float(update(optimizer, learning, [model.loss(batch) / batch.counted], 1.0, 1.0).loss) for _ in range(30)
        ]
    assert losses["plain"][-1] < 0.8 * losses["plain"][0]
    assert losses["fp8"][-1] == pytest.approx(losses["plain"][-1], rel=0.05)
