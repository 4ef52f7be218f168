"""Compressed judges: errors are made up for, what is saved is loaded by the same stage, and the card says what it
cost."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from gristmill.classifiers.card import JudgeCard, JudgeError
from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.neural.coded_linear import (
    CodedProjection,
    Int8Projection,
    SparseProjection,
    int8_matmul,
    rounded_to_int8,
)
from gristmill.classifiers.neural.compression import (
    Compression,
    compress,
    kept_layers,
    logits_of,
    mend,
    shorter,
    steps_of_rows,
)
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, Projection
from gristmill.classifiers.neural.error_compensation import (
    DAMPING,
    LARGEST,
    compensated_codes,
    compensated_sparse,
    is_two_of_four,
    largest_two,
    nearest_codes,
)
from gristmill.classifiers.neural.fast_linear import rounded_maps
from gristmill.classifiers.neural.judge import NeuralJudge, neural_judge, preprocessing_of
from gristmill.classifiers.neural.network import Network
from gristmill.classifiers.neural.training import NeuralRecipe, tokenised
from gristmill.classifiers.training_sets import LabelledTexts
from gristmill.mixing.weights.spearman import spearman
from gristmill.pipeline.cli.app import app
from gristmill.stages.judge.judge import Judge
from gristmill.trainer.step.optim import AdamW
from tests.classifiers import neural_makings as makings

HEADS = (makings.QUALITY, makings.TOPIC, makings.VALUE)


def judge_of(layers: int = 4, family: str = "bert") -> NeuralJudge:
    """Random weights, with scores that differ from text to text."""
    torch.manual_seed(layers)
    kind = {} if family == "bert" else {"windows": (-1,) * layers, "thetas": (1e4,) * layers, "pooler": "norm"}
    shape = EncoderShape(family, 300, 32, layers, 2, 64, 64, **kind)  # type: ignore[arg-type]
    network = Network(Encoder(shape), HEADS)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    network.heads.weight.data[-1] *= 0.1
    network.heads.bias.data[-1] = 0.5
    return neural_judge(JudgeCard("neural", HEADS, preprocessing_of(64)), network, makings.tokenizer())


def texts_of(count: int = 300) -> LabelledTexts:
    table = makings.labelled_table(count, 3)
    return LabelledTexts(
        table["text"].combine_chunks().cast(pa.large_string()), pa.array(["-"] * count), None,
        table["host"].combine_chunks(),
    )  # fmt: skip


def inputs_and_weights(inputs: int = 48, outputs: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs that depend on each other, as those of a judge do."""
    drawn = torch.Generator().manual_seed(5)
    x = torch.randn(500, inputs, generator=drawn) @ torch.randn(inputs, inputs, generator=drawn)
    return x * torch.rand(inputs, generator=drawn), torch.randn(outputs, inputs, generator=drawn)


def off(weight: torch.Tensor, plain: torch.Tensor, x: torch.Tensor) -> float:
    return float(((weight - plain) @ x.T).norm() / (plain @ x.T).norm())


def compensated_plain(weight: torch.Tensor, moment: torch.Tensor, scale: torch.Tensor, largest: int) -> torch.Tensor:
    """One input after another is rounded, and all that remain are solved for anew."""
    moment = moment.double() + DAMPING * moment.double().diagonal().mean() * torch.eye(len(moment), dtype=torch.double)
    first, now, scale = weight.double(), weight.double().clone(), scale.double()
    order = moment.diagonal().argsort(descending=True).tolist()
    for place, i in enumerate(order):
        now[:, i] = (now[:, i] / scale[:, 0]).round().clamp(-largest, largest) * scale[:, 0]
        done, rest = order[: place + 1], order[place + 1 :]
        if rest:
            lost = (first - now)[:, done] @ moment[done][:, rest]
            now[:, rest] = first[:, rest] + torch.linalg.solve(moment[rest][:, rest], lost.T).T
    return now.float()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rounding_equals_solving_for_the_rest_after_each_input(kind: str) -> None:
    x, weight = inputs_and_weights()
    codes = compensated_codes(weight, x.T @ x, LARGEST[kind])
    plain = compensated_plain(weight, x.T @ x, codes.scale_O1, LARGEST[kind])
    assert int((codes.weight - plain).abs().gt(1e-4).sum()) <= 2  # of 960: a tie may round either way
    assert codes.codes_OI.abs().max() == LARGEST[kind]
    assert off(codes.weight, weight, x) < 0.75 * off(nearest_codes(weight, LARGEST[kind]).weight, weight, x)


def test_removed_weights_are_made_up_for() -> None:
    x, weight = inputs_and_weights()
    sparse = compensated_sparse(weight, x.T @ x)
    assert is_two_of_four(sparse) and not is_two_of_four(weight) and int((sparse != 0).sum()) == weight.numel() // 2
    assert off(sparse, weight, x) < 0.75 * off(largest_two(weight), weight, x)
    both = compensated_codes(weight, x.T @ x, LARGEST["int8"], sparse=True)
    assert is_two_of_four(both.weight) and off(both.weight, weight, x) < 1.1 * off(sparse, weight, x)


def test_an_input_that_is_never_there_stops_nothing() -> None:
    x, weight = inputs_and_weights()
    x[:, 7] = 0
    assert off(compensated_codes(weight, x.T @ x, 7).weight, weight, x) < 0.2
    assert bool(compensated_sparse(weight, x.T @ x).isfinite().all())


@pytest.mark.parametrize("bias", [True, False])
def test_int8_matmuls_are_exact_sums_on_every_device(bias: bool) -> None:
    """The largest codes everywhere, where a CPU without VNNI would cut what overflows."""
    plain = Projection(64, 48, bias)
    plain.weight.data = torch.where(torch.rand(48, 64) < 0.9, 1.0, -1.0)
    int8, x = Int8Projection(plain), torch.ones(21, 64)
    x[3:] = torch.randn(18, 64)
    rounded, scale = rounded_to_int8(x)
    exact = (rounded.double() @ int8.codes.double().T) * int8.scale * scale + (plain.bias if bias else 0)
    assert torch.allclose(int8(x).double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.allclose(int8.rows(x, 16, 48).double(), exact[:, 16:], rtol=1e-5, atol=1e-5)
    sums = int8_matmul(rounded[:5], int8.codes)
    assert torch.equal(sums.double(), rounded[:5].double() @ int8.codes.double().T)


def test_codes_of_four_bits_lie_two_in_a_byte() -> None:
    x, weight = inputs_and_weights()
    codes = compensated_codes(weight, x.T @ x, LARGEST["int4"])
    stored = CodedProjection(codes, None, four_bits=True)
    assert stored.codes.numel() * 2 == weight.numel() and stored.codes.dtype == torch.uint8
    assert torch.equal(stored.whole.codes_OI, codes.codes_OI)
    assert torch.allclose(stored(x), x @ codes.weight.T) and torch.equal(Int8Projection(stored).codes, codes.codes_OI)


@pytest.mark.parametrize(
    ("how", "order"),
    [
        (Compression("int8"), 0.99),
        (Compression("int4"), 0.9),
        (Compression("float32", sparse=True), 0.6),
        (Compression("int8", sparse=True), 0.6),
    ],
)
def test_a_compressed_judge_is_loaded_as_it_was_saved(how: Compression, order: float, tmp_path: Path) -> None:
    judge, texts = judge_of(2), texts_of(100)
    small = compress(judge, texts, how)
    cost = small.card.metrics["educational_value"]
    assert cost["spearman_to_full"] > order and 5 < cost["texts"] < 50
    small.save(tmp_path / "small")
    again = load_judge(tmp_path / "small")
    coded = how.weights != "float32"
    assert (
        isinstance(again, NeuralJudge) and again.precision == ("int8" if coded else "float32") and again.coded == coded
    )
    for name, scores in small.score(texts.texts).items():
        assert np.abs(again.score(texts.texts)[name] - scores).max() < 1e-5 and scores.std() > 0
    facts = again.card.training["compression"]
    assert (facts["weights"], facts["sparse"], facts["layers_kept"]) == (how.weights, how.sparse, [1, 2])
    if how.sparse:
        by_hand = again.at("cpu", "sparse")
        kinds = [type(module) for module in by_hand.engine.encoder.modules()]
        assert kinds.count(SparseProjection) == 5
        order_kept = spearman(
            by_hand.score(texts.texts)["quality"], again.at("cpu", "float32").score(texts.texts)["quality"]
        )
        assert order_kept is not None and order_kept > 0.99
    else:
        with pytest.raises(JudgeError, match="judge compress --sparse"):
            again.at("cpu", "sparse")


def test_int8_is_computed_from_the_codes_that_were_saved() -> None:
    small = compress(judge_of(2), texts_of(60), Compression("int8", calibration=20))
    maps = dict(rounded_maps(small.network.encoder))
    assert len(maps) == 5 and all(isinstance(of, CodedProjection) for of in maps.values())
    for name, stored in maps.items():
        assert torch.equal(small.engine.encoder.get_submodule(name).codes, stored.codes)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_the_layer_that_does_nothing_goes_first(family: str) -> None:
    judge = judge_of(4, family)
    idle = judge.network.encoder.blocks[2]
    for parameter in idle.parameters():
        parameter.data.zero_()
    if family == "bert":
        idle.attention_norm.weight.data.fill_(1)  # type: ignore[operator, union-attr]
        idle.output_norm.weight.data.fill_(1)  # type: ignore[operator, union-attr]
        for block in (judge.network.encoder.blocks[1],):
            block.output_norm.weight.data.fill_(1)  # type: ignore[operator, union-attr]
            block.output_norm.bias.data.zero_()  # type: ignore[operator, union-attr]
    data = tokenised(texts_of(40).texts, None, np.zeros((40, 1), np.float32), judge.tokenizer)
    steps = [data.packed(rows, torch.device("cpu")) for rows in steps_of_rows(data, np.arange(40))]
    assert kept_layers(judge.network, steps, 3) == [0, 1, 3]


def test_distillation_mends_what_dropped_layers_cost() -> None:
    full, texts = judge_of(3).network, texts_of(120)
    data = tokenised(texts.texts, None, np.zeros((120, 1), np.float32), makings.tokenizer())
    rows, unseen = np.arange(80), np.arange(80, 120)
    steps = [data.packed(some, torch.device("cpu")) for some in steps_of_rows(data, unseen)]
    short = Network(shorter(full.encoder, [0, 2]), HEADS)
    short.heads = copy.deepcopy(full.heads)

    def distance() -> float:
        return float(((logits_of(short, short.encoder, steps) - logits_of(full, full.encoder, steps)) ** 2).mean())

    bare = distance()
    recipe = NeuralRecipe(epochs=8, update_tokens=400, step_tokens=400, optimizer=AdamW(rate=2e-3), dropout=0.0)
    facts = mend(short, full, data, rows, recipe, lambda facts: None)
    assert facts["updates"] > 20 and distance() < 0.7 * bare


def test_what_cannot_be_compressed_is_said() -> None:
    for settings, message in (
        ({"weights": "float32"}, "nothing to compress"),
        ({"weights": "int2"}, "weights 'int2' are one of"),
    ):
        with pytest.raises(JudgeError, match=message):
            Compression(**settings)
    for layers in (1, 2, 5):
        with pytest.raises(JudgeError, match=f"{layers} layers: this judge has 2"):
            compress(judge_of(2), texts_of(20), Compression(layers=layers))


def test_the_command_writes_a_judge_that_the_stage_scores_with(tmp_path: Path) -> None:
    judge_of(3).save(tmp_path / "full")
    table = makings.labelled_table(100, 3).select(["text", "host"])
    pq.write_table(table, tmp_path / "texts.parquet")
    words = ["judge", "compress", tmp_path / "full", tmp_path / "texts.parquet", "--out", tmp_path / "small", "--group",
             "host", "--layers", 2, "--epochs", 1, "--device", "cpu", "--json"]  # fmt: skip
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    card = json.loads(done.stdout.strip().splitlines()[-1])
    assert card["training"]["compression"]["layers_kept"] == [1, 3] and card["metrics"]["quality"]["texts"] > 5
    batch = pa.RecordBatch.from_arrays([table["text"].combine_chunks()], ["text"])
    stage = Judge(judge_path=str(tmp_path / "small"), device="cpu")
    shown = stage.model_card()
    assert stage.gpu is False and shown is not None and shown["training"]["compression"]["weights"] == "int8"
    scores = stage.annotate(batch)["educational_value"].to_numpy()
    exact = Judge(judge_path=str(tmp_path / "small"), device="cpu", precision="float32").annotate(batch)
    expected = load_judge(tmp_path / "small").score(batch["text"])["educational_value"]
    assert np.array_equal(scores, expected) and scores.std() > 0
    assert 0 < np.abs(scores - exact["educational_value"].to_numpy()).max() < 0.3
    again = CliRunner().invoke(app, list(map(str, words)))
    assert again.exit_code != 0 and "not empty" in again.output + str(again.exception)
    words[5] = tmp_path / "texts.parquet" / "small"
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code != 0 and "the output folder cannot be written" in str(done.exception)


def test_the_curve_has_points_of_compressed_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from benchmarks.judges import quality_curve

    table = makings.labelled_table(120, 3)
    columns = {"text": table["text"], "grade": pa.array(np.arange(120) % 5, pa.float64()), "site": table["host"]}
    pq.write_table(pa.table(columns), tmp_path / "passages.parquet")
    points = ["neural, int8 by", "neural, half the layers, distilled"]
    words = [
        "run",
        tmp_path,
        "--tiny",
        "--neural-texts",
        20,
        "--judge",
        tmp_path / "teacher",
        "--only",
        ";".join(points),
    ]
    monkeypatch.setattr("sys.argv", ["quality_curve", *map(str, words)])
    quality_curve.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {line["what"]: line for line in lines if line["what"].startswith("neural")}
    assert len(found) == 3 and not any("error" in line for line in lines)
    assert found["neural, half the layers, distilled"]["layers_kept"] == [1, 3]
    assert load_judge(tmp_path / "teacher").card.kind == "neural"
    assert found["neural, half the layers, distilled, int8"]["precision"] == "int8"
    assert all(line["documents_a_second_a_core"] > 0 and line["tested_on"] > 5 for line in found.values())
