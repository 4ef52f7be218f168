"""The decoder is what its formulas say, documents in one row do not see each other, and padding teaches nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gristmill.shards.rows import Rows
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.packed import pack_documents, pack_rows
from gristmill.trainer.model.shapes import NAMED, DecoderShape, RopeScaling, shape_named
from tests.trainer.model.plain_decoder import plain_logits, plain_loss

SCALING = RopeScaling(factor=8.0, low=1.0, high=4.0, context=16)  # of waves from 6 tokens on: all three rules apply


def small(**changes: Any) -> DecoderShape:
    return DecoderShape(
        **{"vocabulary": 23, "hidden": 16, "layers": 2, "heads": 4, "kv_heads": 2, "mlp": 24, "context": 64, **changes}
    )


def decoder(shape: DecoderShape, seed: int = 0) -> Decoder:
    """Weights large enough that every part has a say."""
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(shape).double()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(1 + 0.3 * noise if weight.ndim == 1 else noise * 1.5 / math.sqrt(weight.shape[-1]))
    return model


def documents_of(lengths: list[int], vocabulary: int = 23, seed: int = 1) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, vocabulary, length).tolist() for length in lengths]


SHAPES = {
    "every head its own keys": small(kv_heads=4),
    "grouped": small(),
    "one key for all": small(kv_heads=1),
    "tied": small(tied=True),
    "heads wider than the stream": small(head_size=6),
    "windows everywhere": small(windows=(3,)),
    "windows in turn": small(windows=(0, 2), layers=3),
    "a window of one": small(windows=(1,)),
    "scaled positions": small(rope_scaling=SCALING, head_size=8),
    "another base and eps": small(rope_base=100.0, norm_eps=0.1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_gradients_are_those_of_the_formulas(name: str) -> None:
    shape = SHAPES[name]
    documents = documents_of([1, 9, 14, 2, 14])
    model = decoder(shape)
    batch = pack_documents(documents)
    assert batch.counted == 8 + 13 + 1 + 13
    weights = {key: weight.detach().clone().requires_grad_() for key, weight in model.named_parameters()}
    expected = torch.cat([plain_logits(weights, shape, document) for document in documents])
    assert expected.std() > 0.5
    # positions are turned by float32 angles, as everywhere in this family
    torch.testing.assert_close(model.logits(batch), expected, rtol=1e-5, atol=2e-6)
    loss = model.loss(batch)
    plain = plain_loss(weights, shape, documents)
    torch.testing.assert_close(loss.double(), plain, rtol=1e-6, atol=0)
    loss.backward()
    plain.backward()
    for key, weight in model.named_parameters():
        assert weight.grad is not None
        largest = weights[key].grad.abs().max()  # type: ignore[union-attr]
        assert largest > 0 or "qkv" not in key
        torch.testing.assert_close(
            weight.grad, weights[key].grad, rtol=1e-4, atol=float(2e-6 * largest), msg=lambda m, key=key: f"{key}: {m}"
        )


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.sampled_from([(), (3,), (0, 2)]), st.integers(0, 99))
def test_packed_documents_answer_as_if_alone(lengths: list[int], windows: tuple[int, ...], seed: int) -> None:
    model, documents = decoder(small(windows=windows)), documents_of(lengths, seed=seed)
    batch = pack_documents(documents)
    alone = [pack_documents([document]) for document in documents]
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(batch), torch.cat([model.logits(one) for one in alone]), rtol=0, atol=1e-10
        )
    model.loss(batch).backward()
    together = {name: weight.grad.clone() for name, weight in model.named_parameters()}  # type: ignore[union-attr]
    model.zero_grad()
    for one in alone:
        model.loss(one).backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(together[name], weight.grad, rtol=1e-6, atol=1e-6)


def rows_of(rows: list[list[list[int]]], row_length: int, padding: int) -> Rows:
    ids = np.full((len(rows), row_length), padding, np.uint16)
    for i, pieces in enumerate(rows):
        tokens = [token for piece in pieces for token in piece]
        ids[i, : len(tokens)] = tokens
    lengths = [len(piece) for pieces in rows for piece in pieces]
    first = np.concatenate([[0], np.cumsum([len(pieces) for pieces in rows])]).astype(np.int32)
    n = len(lengths)
    zeros = (np.zeros(n, np.uint64), np.zeros(n, np.int32), np.zeros(n, np.int16))
    return Rows(
        ids, first, np.array(lengths, np.int32), *zeros, np.zeros(len(rows), np.int16), np.zeros(len(rows), np.float32)
    )


PIECES = st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=4)


@given(PIECES, st.integers(0, 6))
def test_rows_are_their_documents_and_padding_of_its_own(lengths: list[list[int]], more: int) -> None:
    row_length = max(1, max(sum(row) for row in lengths) + more)
    texts = iter(documents_of([n for row in lengths for n in row]))
    rows = [[next(texts) for _ in row] for row in lengths]
    batch = pack_rows(rows_of(rows, row_length, padding=0))
    cuts, ids, targets, positions = (
        part.tolist() for part in (batch.cuts, batch.ids_T, batch.targets_T, batch.positions_T)
    )
    expected: list[tuple[list[int], bool]] = []
    for row in rows:
        rest = row_length - sum(map(len, row))
        expected += [(piece, True) for piece in row] + ([([0] * rest, False)] if rest else [])
    assert len(cuts) == len(expected) + 1 and cuts[-1] == len(ids) == len(rows) * row_length
    for (piece, known), start, stop in zip(expected, cuts, cuts[1:], strict=False):
        assert ids[start:stop] == piece
        assert positions[start:stop] == list(range(len(piece)))
        assert targets[start:stop] == ([*piece[1:], -100] if known else [-100] * len(piece))
        assert len(piece) <= batch.longest
    assert batch.counted == sum(len(piece) - 1 for piece, known in expected if known)


def test_padding_teaches_nothing() -> None:
    rows = [[[3, 4, 5], [6, 7]], [[8, 9, 10, 11]]]
    found = []
    for padding in (1, 2):
        model = decoder(small())
        loss = model.loss(pack_rows(rows_of(rows, 9, padding)))
        loss.backward()
        grads = {name: weight.grad for name, weight in model.named_parameters()}
        assert not grads["embedding.weight"][padding].any()  # type: ignore[index]
        assert grads["embedding.weight"][3].any()  # type: ignore[index]
        found.append((loss, grads))
    without = decoder(small())
    loss = without.loss(pack_documents([piece for row in rows for piece in row]))
    loss.backward()
    for padded, grads in found:
        torch.testing.assert_close(padded, loss, rtol=1e-6, atol=0)
        for name, weight in without.named_parameters():
            torch.testing.assert_close(grads[name], weight.grad, rtol=1e-6, atol=1e-6)


def test_no_documents_make_an_empty_batch() -> None:
    batch = pack_documents([[], []])
    assert (batch.ids_T.numel(), batch.cuts.tolist(), batch.counted) == (0, [0], 0)
    assert pack_documents([[], [5, 6]]).targets_T.tolist() == [6, -100]


def test_starting_weights_are_the_seeds_alone() -> None:
    shape = small(vocabulary=300, hidden=128, layers=8, mlp=256)
    torch.manual_seed(1)
    first = initialise(Decoder(shape), seed=7)
    torch.manual_seed(2)
    second = Decoder(shape)
    before = torch.get_rng_state()
    initialise(second, seed=7)
    assert torch.equal(before, torch.get_rng_state())
    other = initialise(Decoder(shape), seed=8)
    for (name, weight), again, unlike in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(weight, again)
        if "norm" in name:
            assert (weight == 1).all()
            continue
        assert not torch.equal(weight, unlike)
        deviation = 0.02 / math.sqrt(16) if name.endswith(("out.weight", "down.weight")) else 0.02
        assert weight.std().item() == pytest.approx(deviation, rel=0.05)
        assert abs(weight.mean().item()) < deviation / 20


def test_starting_weights_of_bf16_are_the_same_rounded() -> None:
    wide, narrow = initialise(Decoder(small()), 3), initialise(Decoder(small()).to(torch.bfloat16), 3)
    assert all(torch.equal(a.bfloat16(), b) for a, b in zip(wide.parameters(), narrow.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("tied", [True, False])
def test_shapes_know_their_number_of_parameters(name: str, tied: bool) -> None:
    shape = shape_named(name, 1000, tied=tied, head_size=48)
    with torch.device("meta"):
        model = Decoder(shape)
    assert sum(weight.numel() for weight in model.parameters()) == shape.parameters > 0


@pytest.mark.parametrize("name", NAMED)
def test_shapes_are_as_large_as_their_names(name: str) -> None:
    vocabulary = {"1m": 12_288, "10m": 16_384, "8b": 128_256}.get(name, 50_304)
    shape, (whole, _, active) = shape_named(name, vocabulary), name.partition("-a")
    for said, parameters in ((whole, shape.parameters), (active or whole, shape.active_parameters)):
        assert parameters == pytest.approx(float(said[:-1]) * {"m": 1e6, "b": 1e9}[said[-1]], rel=0.17)
    assert DecoderShape.from_facts(json.loads(json.dumps(shape.facts()))) == shape


def test_llama_3_8b_is_that() -> None:
    assert shape_named("8b", 128_256).parameters == 8_030_261_248


def test_facts_keep_scaling_and_windows() -> None:
    shape = small(rope_scaling=SCALING, windows=(0, 4))
    assert DecoderShape.from_facts(json.loads(json.dumps(shape.facts()))) == shape
    assert [shape.window(layer) for layer in range(4)] == [0, 4, 0, 4]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heads": 0}, "heads\n.* greater than or equal to 1"),
        ({"hidden": 16.0}, "hidden\n.* valid integer"),
        ({"layers": True}, "layers\n.* valid integer"),
        ({"hidden": 18}, "4 heads do not share a width of 18 equally; say head_size"),
        ({"kv_heads": 3}, "4 query heads cannot share 3 key-value heads equally"),
        ({"head_size": 5}, "head_size 5: rotary positions turn pairs, so it must be even"),
        ({"head_size": -2}, "head_size\n.* greater than or equal to 0"),
        ({"windows": (-1,)}, "windows.0\n.* greater than or equal to 0"),
        ({"rope_base": 0.0}, "rope_base\n.* greater than 0"),
        ({"norm_eps": math.nan}, "norm_eps\n.* finite number"),
    ],
)
def test_shapes_that_cannot_be_say_why(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        small(**changes)


def test_a_name_that_is_not_known_is_told_those_that_are() -> None:
    with pytest.raises(ValueError, match="no shape is named '7b'; there are 1m, 10m, "):
        shape_named("7b", 100)
    with pytest.raises(ValueError, match=r"high 1\.0 is not above low 4\.0"):
        RopeScaling(8.0, 4.0, 1.0, 8192)
