"""Neural judges: trained on easy texts they tell them apart; they are saved whole or refused; a score stands for
itself."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
import transformers
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

from gristmill.classifiers.artifact import DESCRIPTION, _seal, _written
from gristmill.classifiers.card import Head, JudgeCard
from gristmill.classifiers.judge import JudgeError, NotExplained, load_judge
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, PackedTexts, Projection
from gristmill.classifiers.neural.error_compensation import largest_two
from gristmill.classifiers.neural.fast_attention import PackedAttention
from gristmill.classifiers.neural.fast_linear import (
    HalfProjection,
    InferencePrecision,
    fuse,
    prepare_inference,
    rounded_maps,
)
from gristmill.classifiers.neural.fp8_linear import Fp8Gelu
from gristmill.classifiers.neural.judge import NeuralJudge, neural_judge, preprocessing_of
from gristmill.classifiers.neural.network import Network, precision_on
from gristmill.classifiers.neural.published import from_transformers
from gristmill.classifiers.neural.scoring import Pace, pack_lengths, steps_of
from gristmill.classifiers.neural.text_tokens import Ahead, TextTokenizer, TextTokens, pieces_of, tokenise
from gristmill.classifiers.neural.training import (
    NeuralRecipe,
    OneHead,
    head_losses,
    neural_metrics,
    targets_of,
    train_neural,
    updates_of,
)
from gristmill.classifiers.training_sets import LabelledTexts, labelled_texts
from gristmill.mixing.weights.spearman import spearman
from gristmill.trainer.run.schedule import RateSchedule
from gristmill.trainer.step.optim import AdamW
from tests.classifiers import neural_makings as makings

HEADS = (makings.QUALITY, makings.TOPIC, makings.VALUE)
QUICK = NeuralRecipe(
    epochs=6,
    update_tokens=1000,
    step_tokens=600,
    optimizer=AdamW(rate=2e-3),
    schedule=RateSchedule(warmup=0.1),
    dropout=0.0,
    held_out=0.25,
)


@pytest.fixture(scope="module")
def trained() -> NeuralJudge:
    torch.set_num_threads(1)
    return train_neural(
        makings.labelled_table(), HEADS, makings.tokenizer(), makings.small_shape(), QUICK, group="host"
    )


@pytest.fixture(scope="module")
def random_judge() -> NeuralJudge:
    torch.manual_seed(1)
    network = Network(Encoder(makings.small_shape()), HEADS)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    network.heads.weight.data[-1] *= 0.1
    network.heads.bias.data[-1] = 0.5  # inside the range of the regression
    return neural_judge(JudgeCard("neural", HEADS, preprocessing_of(64)), network, makings.tokenizer())


def test_three_heads_learn_from_labels_of_which_a_third_is_missing(trained: NeuralJudge) -> None:
    metrics = trained.card.metrics
    assert metrics["quality"]["auc"] > 0.95
    assert metrics["topic"]["accuracy"] > 0.7
    assert metrics["educational_value"]["spearman"] > 0.65
    facts = trained.card.training
    assert facts["texts"] + facts["held_out"] == 600 and 60 < facts["held_out"] < 260
    scores = trained.score(pa.array(["lens light theorem proof energy field", "click buy cart login sale deal"]))
    assert scores["quality"][0] > 0.8 > 0.2 > scores["quality"][1]
    assert scores["topic"].dtype == np.float32 and scores["educational_value"][0] > scores["educational_value"][1]


def test_a_missing_label_gives_no_loss_and_no_gradient() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    nan = float("nan")
    targets = torch.tensor([[1.0, nan, 0.4], [nan, 2.0, nan], [nan, nan, nan], [0.0, 1.0, 0.9]])
    sums = head_losses(logits, targets, torch.tensor([1.0, 2.0, 1.0, 1.0]), HEADS)
    first = torch.nn.functional.binary_cross_entropy_with_logits(
        logits[[0, 3], 0], torch.tensor([1.0, 0.0]), reduction="sum"
    )
    second = 2 * torch.nn.functional.cross_entropy(logits[1:2, 1:4], torch.tensor([2]))
    second = second + torch.nn.functional.cross_entropy(logits[3:, 1:4], torch.tensor([1]))
    third = ((logits[[0, 3], 4] - torch.tensor([0.4, 0.9])) ** 2).sum()
    assert torch.allclose(sums, torch.stack([first, second, third]))
    sums.sum().backward()
    assert (logits.grad[2] == 0).all() and logits.grad[1, 0] == 0 and logits.grad[0, 0] != 0


def test_a_precision_that_judges_cannot_be_trained_in_is_refused() -> None:
    assert NeuralRecipe(precision="bf16").precision == "bf16"
    with pytest.raises(JudgeError, match="precision 'fp16': judges are trained in float32 or bf16"):
        NeuralRecipe(precision="fp16")  # type: ignore[arg-type]


def test_targets_are_checked() -> None:
    assert targets_of(pa.chunked_array([["good", None, "bad"]]), makings.QUALITY)[[0, 2]].tolist() == [1, 0]
    assert targets_of(pa.chunked_array([[0.25, 1.0]]), makings.QUALITY).tolist() == [0.25, 1.0]
    assert targets_of(pa.chunked_array([[2.5, 5.0]]), makings.VALUE).tolist() == [0.5, 1.0]
    for column, head in (
        ([0.5, 1.5], makings.QUALITY),
        ([0.5], makings.TOPIC),
        ([-1.0], makings.VALUE),
        ([float("inf")], makings.VALUE),
        (["fine"], makings.TOPIC),
    ):
        with pytest.raises(JudgeError, match=head.name):
            targets_of(pa.chunked_array([column]), head)


def test_whole_numbers_that_name_labels_are_these_labels() -> None:
    """As they are to fastText's and linear judges."""
    backwards = replace(makings.QUALITY, labels=("1", "0"))
    assert targets_of(pa.chunked_array([[1, 0, None]]), backwards)[:2].tolist() == [0, 1]
    grades = Head("grade", "classes", tuple("12345"), "", 0, 4)
    assert targets_of(pa.chunked_array([[1, 5]]), grades).tolist() == [0, 4]
    assert targets_of(pa.chunked_array([[0, 2]]), makings.TOPIC).tolist() == [0, 2]  # names of none: places


def test_each_label_has_texts_to_train_on() -> None:
    hosts = [f"good{i}" for i in range(40) for _ in range(3)] + [f"bad{i}" for i in range(2) for _ in range(30)]
    table = pa.table(
        {"text": ["lens light"] * 120 + ["buy cart"] * 60, "quality": ["good"] * 120 + ["bad"] * 60, "host": hosts}
    )
    recipe = replace(QUICK, epochs=0.1)
    heads, shape = (makings.QUALITY,), makings.small_shape()
    for seed in range(8):
        judge = train_neural(table, heads, makings.tokenizer(), shape, replace(recipe, seed=seed), group="host")
        assert (
            judge.card.training["texts"] < 180
            and 0 < judge.card.metrics["quality"]["good"] < judge.card.metrics["quality"]["texts"]
        )
    alone = table.set_column(2, "host", pa.array([*hosts[:120], *["bad0"] * 60]))
    with pytest.raises(JudgeError, match="all texts labelled 'bad' are held out; name another group"):
        for seed in range(40):
            train_neural(alone, heads, makings.tokenizer(), shape, replace(recipe, seed=seed), group="host")


def test_a_regressions_error_is_weighted(random_judge: NeuralJudge) -> None:
    texts, weights = makings.labelled_table(20)["text"].combine_chunks(), np.array([1.0, 9.0] * 10)
    shares = np.linspace(0, 1, 20, dtype=np.float32)
    targets = np.stack([np.full(20, np.nan, np.float32)] * 2 + [shares], 1)
    labelled = LabelledTexts(texts, pa.array(["-"] * 20), weights)
    said = random_judge.outputs(texts)["educational_value"]
    found = neural_metrics(random_judge, labelled, targets, np.ones(20, np.bool_))["educational_value"]
    errors = (said - 5 * shares) ** 2
    assert found["mean_squared_error"] == pytest.approx((errors * weights).sum() / weights.sum(), rel=1e-5)
    assert abs(found["mean_squared_error"] - errors.mean()) > 1e-3


def test_a_score_is_the_same_alone_among_others_and_in_any_batches(random_judge: NeuralJudge) -> None:
    texts = pa.array([*makings.odd_texts(), *makings.labelled_table(60, 5)["text"].to_pylist()], pa.string())
    whole = random_judge.outputs(texts)
    assert {name: len(values) for name, values in whole.items()} == dict.fromkeys(whole, len(texts))
    for name, values in whole.items():
        assert np.isfinite(values).all() and values.std() > 1e-4
        alone = np.concatenate([random_judge.outputs(texts[i : i + 1])[name] for i in range(len(texts))])
        assert np.abs(values - alone).max() < 1e-5
    small = random_judge.at("cpu", pace=Pace(step_tokens=100, window_steps=2), ahead=Ahead(workers=3, texts=4))
    chunked = pa.chunked_array([texts[:7], texts[7:7], texts[7:]]).cast(pa.large_string())
    for judge, column in (
        (small, texts),
        (small, chunked),
        (random_judge, pa.concat_arrays([pa.array(["x"]), texts])[1:]),
    ):
        for name, values in judge.outputs(column).items():
            assert np.abs(values - whole[name]).max() < 1e-5
    assert len(random_judge.outputs(texts[:0])["quality"]) == 0


def test_steps_that_are_filled_up_for_the_compiler_give_the_same_scores(random_judge: NeuralJudge) -> None:
    texts = makings.labelled_table(200, 6)["text"]
    filled = random_judge.at("cpu", pace=Pace(step_tokens=256, compiled=True, filled=0.5))
    filled.engine.encoder._compiled = filled.engine.encoder.passes
    shapes: set[int] = set()
    plain = filled.engine.encoder.forward
    filled.engine.encoder.forward = lambda packed: (shapes.add(len(packed.tokens_T)), plain(packed))[1]  # type: ignore[method-assign]
    for name, values in filled.outputs(texts).items():
        assert np.abs(values - random_judge.outputs(texts)[name]).max() < 1e-5
    assert 256 in shapes and len(shapes) <= 2


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(50, 300))
def test_packing_takes_each_text_once_and_keeps_to_the_budget(lengths: list[int], budget: int) -> None:
    steps = pack_lengths(np.array(lengths), budget)
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(lengths)))
    sizes = [sum(lengths[i] for i in step) for step in steps]
    assert max(sizes) <= budget
    assert all(size > budget - 50 for size in sizes[:-1])


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=120), st.integers(1, 4), st.integers(1, 30))
def test_steps_hold_every_token_in_its_place(lengths: list[int], windows: int, piece: int) -> None:
    ids = np.arange(sum(lengths), dtype=np.int32)
    ends = np.cumsum(lengths)
    pieces = [
        TextTokens(ids[ends[i] - lengths[i] : ends[min(i + piece, len(lengths)) - 1]], np.array(lengths[i : i + piece]))
        for i in range(0, len(lengths), piece)
    ]
    seen = {}
    for step in steps_of(pieces, Pace(step_tokens=64, window_steps=windows, compiled=True, filled=0.9)):
        assert len(step.tokens) <= 64 and step.cuts[-1] == len(step.tokens) and (np.diff(step.cuts) > 0).all()
        for row, start, stop in zip(step.rows.tolist(), step.cuts[:-1].tolist(), step.cuts[1:].tolist(), strict=False):
            seen[row] = step.tokens[start:stop].tolist()
            assert step.positions[start:stop].tolist() == list(range(stop - start)) and stop - start <= step.longest
    assert seen == {i: ids[ends[i] - n : ends[i]].tolist() for i, n in enumerate(lengths)}


def test_the_first_step_waits_for_the_texts_of_one_step_alone() -> None:
    taken: list[int] = []

    def pieces() -> Iterator[TextTokens]:
        for i in range(100):
            taken.append(i)
            yield TextTokens(np.zeros(32, np.int32), np.array([16, 16]))

    begins = [len(taken) for _ in steps_of(pieces(), Pace(step_tokens=64, window_steps=8))]
    assert begins[0] <= 4 and max(np.diff(begins)) == 14 and len(begins) == 50


def test_pieces_of_work_begin_small_and_hold_every_text_once_whatever_the_batches() -> None:
    texts = pa.array([str(i) for i in range(12_000)])
    for batches in ([texts], [texts[:40], texts[40:41], texts[41:9000], texts[9000:]], [texts[:0]]):
        pieces = list(pieces_of(batches, 512))
        assert [text for piece in pieces for text in piece.to_pylist()] == [
            text for batch in batches for text in batch.to_pylist()
        ]
        if len(batches[0]) == 12_000:
            assert len(pieces[0]) == 32 and max(map(len, pieces)) == 512 and len(pieces) < 100


def test_a_long_text_is_cut_before_it_is_tokenised_and_the_ids_are_those_of_the_whole() -> None:
    tokenizer = makings.tokenizer(32)
    texts = ["lens light " * 4000, " " * 100_000 + "lens light", "lens", "[SEP] lens [CLS]", "a" * 10_000 + " lens", ""]
    found = tokenizer.tokens(pa.array(texts))
    longest: list[int] = []
    library = Tokenizer.from_str(tokenizer.json)
    library.encode_special_tokens = True
    start = 0
    for text, length in zip(texts, found.lengths.tolist(), strict=True):
        whole = library.encode(text).ids
        expected = [2, *whole[1:-1][:30], 3]
        assert found.ids[start : start + length].tolist() == expected
        start += length
        longest.append(length)
    assert longest[0] == 32 and longest[5] == 2 and 3 not in found.ids[1 : 1 + 30]


def test_threads_and_processes_tokenise_the_same() -> None:
    tokenizer = makings.tokenizer(32)
    texts = makings.labelled_table(50)["text"].combine_chunks()
    expected = tokenizer.tokens(texts)
    for ahead in (Ahead(workers=2, texts=7), Ahead(processes=1, texts=20)):
        pieces = list(tokenise([texts[:13], texts[13:]], tokenizer, ahead))
        assert len(pieces) > 2
        assert np.array_equal(np.concatenate([piece.ids for piece in pieces]), expected.ids)


@pytest.mark.parametrize(("precision", "furthest"), [("bf16", 0.02), ("fp8", 0.05), ("int8", 0.03)])
def test_fewer_bits_keep_the_order_of_scores(trained: NeuralJudge, precision: str, furthest: float) -> None:
    texts = makings.labelled_table(300, 9)["text"]
    exact, rough = trained.score(texts), trained.at("cpu", precision).score(texts)  # type: ignore[arg-type]
    for head in HEADS:
        assert np.abs(exact[head.name] - rough[head.name]).max() < furthest * (head.high - head.low) * 3
        correlation = spearman(exact[head.name], rough[head.name])
        assert correlation is not None and correlation > 0.99
    again = trained.at("cpu", precision)  # type: ignore[arg-type]
    alone = np.concatenate([again.score(texts[i : i + 1])["quality"] for i in range(20)])
    assert np.abs(alone - rough["quality"][:20]).max() < 0.02


def test_fp8_products_that_end_in_what_follows_give_the_same(trained: NeuralJudge) -> None:
    texts = makings.labelled_table(300, 9)["text"]
    plain, fused = (trained.at("cpu", "fp8") for _ in range(2))
    fuse(fused.engine.encoder)
    whole = list(fused.engine.encoder.blocks)[:-1]
    assert len(whole) >= 1 and all(
        type(block.up) is Fp8Gelu and block.down.fused and block.out.fused for block in whole
    )  # type: ignore[union-attr]
    assert all(
        isinstance(block.attention, PackedAttention) and block.attention.shrink is block.out.shrink for block in whole
    )
    for head in HEADS:
        one, other = (judge.score(texts)[head.name] for judge in (plain, fused))
        assert np.abs(one - other).max() < 0.03 * (head.high - head.low)
        correlation = spearman(one, other)
        assert correlation is not None and correlation > 0.998
    torch._dynamo.reset()
    with torch.inference_mode():
        packed = PackedTexts(
            torch.arange(32, dtype=torch.int32),
            torch.arange(32, dtype=torch.int32) % 16,
            torch.tensor([0, 16, 32], dtype=torch.int32),
            16,
        )
        eager = fused.engine.encoder(packed)
        fused.engine.encoder.compile_for(32, backend="aot_eager")
        assert (fused.engine.encoder(packed) - eager).abs().max() < 1e-3


def test_bf16_judges_that_are_fused_say_the_same(trained: NeuralJudge) -> None:
    texts = makings.labelled_table(60, 9)["text"]
    plain, fused, exact = trained.at("cpu", "bf16"), trained.at("cpu", "bf16"), trained.at("cpu", "float32")
    for judge in (fused, exact):
        fuse(judge.engine.encoder)
    ways = [[type(block.attention) for block in judge.engine.encoder.blocks] for judge in (plain, fused, exact)]
    empty = [type(None)] * len(ways[0])
    assert ways == [empty, [PackedAttention] * (len(empty) - 1) + empty[:1], empty]  # in float32 all stays as it is
    assert (
        type(exact.engine.encoder.blocks[0].up) is Projection
        and type(fused.engine.encoder.blocks[0].up) is not Projection
    )
    for head in HEADS:
        one, other = (judge.score(texts)[head.name] for judge in (plain, fused))
        assert np.abs(one - other).max() < 0.03 * (head.high - head.low)


def drawn_encoder(family: str) -> Encoder:
    """Attention that looks at all of a text, and biases that are not 0."""
    torch.manual_seed(0)
    modern: dict[str, Any] = {"windows": (-1, 4, -1, -1), "thetas": (1e4,) * 4} if family == "modernbert" else {}
    encoder = Encoder(EncoderShape(family, 50, 64, 4, 2, 128, 64, **modern)).eval()  # type: ignore[arg-type]
    for name, parameter in encoder.named_parameters():
        if name.startswith("blocks"):
            parameter.data.copy_(0.1 * torch.randn_like(parameter) + (parameter.data if parameter.ndim == 1 else 0))
    return encoder


def texts_of(lengths: list[int], device: str = "cpu") -> PackedTexts:
    places = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
    tokens = torch.randint(50, (sum(lengths),), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    return PackedTexts(
        *(x.to(device) for x in (tokens, places, torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32))), 64
    )


@pytest.mark.parametrize(("family", "precision"), [("bert", "bf16"), ("bert", "fp8"), ("modernbert", "bf16")])
def test_first_tokens_have_a_finer_stream_of_their_own(family: str, precision: InferencePrecision) -> None:
    """Whatever rounds the others."""
    plain = drawn_encoder(family)
    fine, coarse = (prepare_inference(copy.deepcopy(plain), precision) for _ in range(2))
    coarse.fine = None
    errors = []
    with torch.inference_mode():
        for encoder in (fine, coarse):
            pairs = [
                (encoder(texts), plain(texts)) for texts in (texts_of([32] * 10), texts_of([64, 6, 50, 40, 60, 64, 36]))
            ]
            errors.append(sum(float((found - exact).norm() / exact.norm()) for found, exact in pairs))
    assert errors[0] < 0.7 * errors[1]


def test_the_finer_stream_is_compiled_once_for_any_number_of_texts() -> None:
    """More numbers than torch compiles one function for; a single text is another."""
    encoder = prepare_inference(drawn_encoder("bert"), "bf16")
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    for number in (5, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 16):
        lengths = [64 // number] * (number - 1)
        texts = texts_of([*lengths, 64 - sum(lengths)])
        with torch.inference_mode():
            eager = encoder(texts)
            encoder._compiled_tokens = 64
            if encoder._compiled is None:
                encoder.compile_for(64, backend="eager")
            assert (encoder(texts) - eager).abs().max() < 1e-5
            encoder._compiled_tokens = 0
    assert graphs["unique_graphs"] == 5
    with torch.inference_mode():
        encoder._compiled_tokens = 64
        encoder(texts_of([64]))
    assert graphs["unique_graphs"] <= 7


def test_the_finer_stream_takes_what_is_too_large_for_fp16() -> None:
    wide = Projection(64, 16, True)
    wide.weight.data.fill_(1.0)
    answer = HalfProjection(wide)(torch.full((2, 64), 2000.0))
    assert answer.isfinite().all() and answer.max() == 65504
    torch.testing.assert_close(HalfProjection(wide)(torch.ones(1, 64)), wide(torch.ones(1, 64)), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["bf16", "fp8", "int8", "sparse"])
def test_on_a_gpu_all_ways_give_what_float32_gives(precision: InferencePrecision) -> None:
    if precision == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8")
    plain = drawn_encoder("bert").cuda()
    if precision == "sparse":
        for _, matmul in rounded_maps(plain):
            matmul.weight.data = largest_two(matmul.weight.data)
    texts = texts_of([64, 6, 50, 40, 60, 64, 36], "cuda")
    with torch.inference_mode():
        exact = plain(texts)
        for fused, compiled in ((False, False), (True, False), (True, True)):
            encoder = prepare_inference(copy.deepcopy(plain), precision)
            if fused:
                fuse(encoder)
            if compiled:
                torch._dynamo.reset()
                encoder.compile_for(320)
            assert (encoder(texts) - exact).norm() < (0.05 if precision in ("fp8", "int8") else 0.01) * exact.norm()


@pytest.mark.parametrize("operator", ["fp8_gelu", "fp8_added"])
def test_fused_operators_keep_the_rules_of_torchs_library(operator: str) -> None:
    torch.manual_seed(0)
    x8, weight8 = (torch.randn(size).to(torch.float8_e4m3fn) for size in ((16, 32), (48, 32)))
    one = torch.ones(1)
    last = one if operator == "fp8_gelu" else torch.randn(16, 48, dtype=torch.bfloat16)
    given = (x8, weight8, torch.randn(48, dtype=torch.bfloat16), one, one, last)
    torch.library.opcheck(getattr(torch.ops.gristmill, operator).default, given, test_utils="test_faketensor")


def test_precision_is_the_fastest_unless_given(random_judge: NeuralJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` takes fp8 where it was measured to be faster than bf16, and never int8 or sparse weights."""
    gpu, plain, compiled = torch.device("cuda"), Pace(), Pace(compiled=True)
    generation = (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)

    def chosen(pace: Pace = plain, wanted: InferencePrecision | None = None, **shape: Any) -> str:
        network = copy.deepcopy(random_judge.network)
        network.encoder.shape = replace(network.encoder.shape, **shape)
        return precision_on(network, gpu, wanted, pace)

    base, large, deberta = {"width": 768}, {"width": 1024}, {"family": "deberta", "distances": 64}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chosen(compiled, **base) == chosen(compiled, **large) == chosen(plain, **large) == "fp8"
        assert chosen(plain, **base) == chosen(plain) == chosen(compiled) == "bf16"
        assert chosen(compiled, **large, **deberta) == "bf16"
        assert chosen(wanted="fp8") == "fp8" and chosen(wanted="bf16", pace=compiled, **large) == "bf16"
        assert precision_on(random_judge.network, torch.device("cpu"), None, plain) == "float32"
        generation = (8, 9)
        assert chosen(compiled, **large) == "bf16" and chosen(wanted="fp8") == "fp8"
    with pytest.warns(UserWarning, match=r"precision sparse: 0\.66 times the speed of bf16 on an H200"):
        assert chosen(wanted="sparse") == "sparse"
    with pytest.warns(UserWarning, match=r"precision int8: 0\.57 times the speed of bf16 on an H200"):
        assert chosen(wanted="int8") == "int8"
    generation = (8, 0)
    with pytest.raises(JudgeError, match="fp8 does not run on cuda"):
        chosen(wanted="fp8")


def test_fp8_of_another_family_is_refused() -> None:
    shape = EncoderShape("modernbert", 300, 32, 2, 2, 64, 64, windows=(-1, 8), thetas=(1e4, 1e3))
    judge = neural_judge(
        JudgeCard("neural", HEADS, preprocessing_of(64)), Network(Encoder(shape), HEADS), makings.tokenizer()
    )
    with pytest.raises(JudgeError, match="BERT's family"):
        judge.at("cpu", "fp8")


def test_a_saved_judge_comes_back_the_same(trained: NeuralJudge, tmp_path: Path) -> None:
    texts = makings.labelled_table(40, 3)["text"]
    trained.save(tmp_path / "judge")
    assert sorted(path.name for path in (tmp_path / "judge").iterdir()) == [
        "config.json",
        "judge.json",
        "tokenizer.json",
        "weights.safetensors",
    ]
    loaded = load_judge(tmp_path / "judge")
    assert isinstance(loaded, NeuralJudge) and loaded.card == trained.card
    for name, values in trained.outputs(texts).items():
        assert np.array_equal(values, loaded.outputs(texts)[name])
    with pytest.raises(NotExplained):
        loaded.explain("lens", "quality")


def reseal(folder: Path, name: str) -> None:
    """What somebody would do who changes a file and its hash."""
    facts = json.loads((folder / DESCRIPTION).read_text())
    facts["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    facts["seal"] = _seal(facts)
    (folder / DESCRIPTION).write_bytes(_written(facts))


def test_a_changed_byte_a_wrong_tokenizer_and_other_weights_are_refused(trained: NeuralJudge, tmp_path: Path) -> None:
    def fresh(name: str) -> Path:
        trained.save(tmp_path / name)
        return tmp_path / name

    changed = fresh("changed") / "weights.safetensors"
    data = bytearray(changed.read_bytes())
    data[-3] ^= 1
    changed.write_bytes(data)
    with pytest.raises(JudgeError, match=r"weights\.safetensors is not the file that was saved"):
        load_judge(changed.parent)
    data[-1] ^= 0x40  # an exponent
    changed.write_bytes(data)
    reseal(changed.parent, "weights.safetensors")
    with pytest.raises(JudgeError, match=r"golden text|not finite"):
        load_judge(changed.parent)

    large = fresh("large") / "tokenizer.json"
    facts = json.loads(large.read_text())
    facts["model"]["vocab"]["zebra"] = 300
    large.write_text(json.dumps(facts))
    reseal(large.parent, "tokenizer.json")
    with pytest.raises(JudgeError, match="wrong tokenizer"):
        load_judge(large.parent)

    other = fresh("other") / "tokenizer.json"
    facts = json.loads(other.read_text())
    words = list(facts["model"]["vocab"])
    ids = dict(zip(words, [0, 1, 2, 3, *range(len(words) - 1, 3, -1)], strict=True))
    facts["model"]["vocab"] = ids
    other.write_text(json.dumps(facts))
    reseal(other.parent, "tokenizer.json")
    with pytest.raises(JudgeError, match="golden text"):
        load_judge(other.parent)

    gone = fresh("gone")
    (gone / "config.json").unlink()
    with pytest.raises(JudgeError, match=r"config\.json is missing"):
        load_judge(gone)

    shape = fresh("shape") / "config.json"
    shape.write_text(shape.read_text().replace('"layers": 2', '"layers": 1'))
    reseal(shape.parent, "config.json")
    with pytest.raises(JudgeError, match="does not fit"):
        load_judge(shape.parent)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_classifiers_of_the_fineweb_edu_kind_score_as_in_transformers(family: str, tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_labels": 1,
    }
    torch.manual_seed(0)
    if family == "bert":
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, max_position_embeddings=64))
    elif family == "roberta":
        model = transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig(**sizes, max_position_embeddings=66, pad_token_id=1)
        )
    else:
        config = transformers.ModernBertConfig(
            **sizes,
            pad_token_id=0,
            cls_token_id=2,
            sep_token_id=3,
            bos_token_id=2,
            eos_token_id=3,
            max_position_embeddings=64,
        )
        model = transformers.ModernBertForSequenceClassification(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(makings.tokenizer_json())
    judge = from_transformers(tmp_path)
    texts = makings.labelled_table(30, 2)["text"].to_pylist()
    tokenizer = Tokenizer.from_str(makings.tokenizer_json())
    with torch.no_grad():
        expected = [float(model(torch.tensor([tokenizer.encode(text).ids[:64]])).logits) for text in texts]
    found = judge.score(pa.array(texts))["educational_value"]
    assert np.abs(found - np.clip(expected, 0, 5)).max() < 1e-4
    assert len({round(score, 4) for score in expected}) > 20
    judge.save(tmp_path / "judge")
    assert np.array_equal(load_judge(tmp_path / "judge").score(pa.array(texts))["educational_value"], found)


def test_an_epoch_has_each_text_once_in_an_order_of_its_own() -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 500)
    rows = np.flatnonzero(np.arange(500) % 3)
    epochs = [list(updates_of(lengths, rows, QUICK, epoch)) for epoch in range(2)]
    for updates in epochs:
        steps = [step for steps in updates for step in steps]
        assert sorted(np.concatenate(steps).tolist()) == rows.tolist()
        assert max(lengths[step].sum() for step in steps) <= 600
        assert all(1000 <= sum(lengths[step].sum() for step in steps) < 1600 for steps in updates[:-1])
    assert not np.array_equal(epochs[0][0][0], epochs[1][0][0])


def test_two_ranks_train_the_judge_that_one_process_trains() -> None:
    table = makings.labelled_table(90)
    table = table.filter(pc.is_valid(table["quality"]))
    texts = labelled_texts(table, label="quality", group="host")
    recipe = replace(QUICK, epochs=3, patience=2, held_out=0.3)
    training = OneHead(makings.QUALITY, makings.tokenizer(), makings.small_shape(), recipe)
    lines: list[dict[str, object]] = []
    alone, shared = training(texts), replace(training, ranks=2)(texts, lines.append)
    facts = alone.card.training
    assert facts["updates"] > 1 and shared.card.training == facts | {"ranks": 2}
    assert [line["update"] for line in lines if "held_out_loss" in line] == list(range(1, facts["updates"] + 1))
    found = shared.network.state_dict()
    for name, tensor in alone.network.state_dict().items():
        assert torch.allclose(tensor, found[name], atol=1e-4), name


def test_what_a_rank_refuses_is_told_as_without_ranks() -> None:
    texts = labelled_texts(pa.table({"text": ["a lens"] * 8, "label": ["good"] * 8}))
    training = OneHead(makings.QUALITY, makings.tokenizer(), makings.small_shape(8), QUICK, ranks=2)
    with pytest.raises(JudgeError, match=r"^the tokenizer cuts texts at 64 tokens, where the encoder takes 8"):
        training(texts)


def test_training_stops_when_the_held_out_loss_has_stopped_falling() -> None:
    recipe = replace(QUICK, epochs=200, patience=1, evaluate_every=5, optimizer=AdamW(rate=1e-2))
    judge = train_neural(
        makings.labelled_table(150), HEADS, makings.tokenizer(), makings.small_shape(), recipe, group="host"
    )
    facts = judge.card.training
    assert facts["updates"] < facts["planned_updates"] and facts["best_held_out_loss"] > 0


def test_a_tokenizer_that_the_encoder_cannot_take_is_refused_before_any_training() -> None:
    small = replace(makings.small_shape(), positions=8)
    for shape, says in (
        (small, "cuts texts at 48 tokens, where the encoder takes 8"),
        (replace(makings.small_shape(), vocabulary=5), "wrong tokenizer"),
    ):
        with pytest.raises(JudgeError, match=says):
            train_neural(makings.labelled_table(40), HEADS, makings.tokenizer(48), shape, QUICK, group="host")


def test_a_tokenizer_needs_room_for_a_text() -> None:
    with pytest.raises(JudgeError, match="no room"):
        TextTokenizer(makings.tokenizer_json(), 2)
    with pytest.raises(JudgeError, match="cannot be read"):
        TextTokenizer("{}", 64)
