"""What a plan may say of a neural judge, key by key: each changes what it is for, on a small model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gristmill.classifiers.judge import load_judge
from gristmill.classifiers.neural.encoder_weights import read_encoder
from tests.classifiers.neural_makings import labelled_table, tokenizer_json
from tests.pipeline.judging.test_judge_plans import write
from tests.pipeline.judging.test_judging import as_table, ask, fails

SIZES = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2} | {
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small encoders of each new family, and texts by host."""
    at = tmp_path_factory.mktemp("neural")
    deberta = {"relative_attention": True, "share_att_key": True, "pos_att_type": "p2c|c2p", "position_buckets": 16}
    for name, config in (
        ("bert", transformers.BertConfig(**SIZES)),
        ("distilbert", transformers.DistilBertConfig(**SIZES)),
        ("deberta", transformers.DebertaV2Config(**SIZES, **deberta, position_biased_input=False)),
    ):
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(at / name)
        (at / name / "tokenizer.json").write_text(tokenizer_json())
    rows = [row for row in labelled_table(260).to_pylist() if row["quality"]]
    as_table(
        at / "t.parquet",
        [{"text": row["text"], "label": row["quality"], "url": f"https://{row['host']}/"} for row in rows],
    )
    return at


def plan(folder: Path, name: str, **neural: Any) -> Path:
    settings = {"encoder": "bert", "tokens": 64, "device": "cpu", "epochs": 1} | neural
    labelled = {"files": "t.parquet"}
    return write(folder, {"out": name, "kind": {"neural": settings}, "labelled": labelled, "hold_out": 0.3})


def train(folder: Path, name: str, **neural: Any) -> dict[str, Any]:
    result = ask("judge", "train", plan(folder, name, **neural), "--json")
    assert result.exit_code == 0, result.exception or result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def moved(folder: Path, name: str) -> float:
    """How far training moved the encoder's weights."""
    began = read_encoder(folder / "bert")[0].state_dict()
    now = load_judge(folder / name).network.encoder.state_dict()  # type: ignore[attr-defined]
    return max(float((now[part] - began[part]).abs().max()) for part in began)


@pytest.fixture(scope="module")
def usual(folder: Path) -> dict[str, Any]:
    return train(folder, "usual")


@pytest.mark.parametrize("encoder", ["distilbert", "deberta"])
def test_a_new_family_is_trained_saved_loaded_and_scores(encoder: str, folder: Path) -> None:
    told = train(folder, f"of_{encoder}", encoder=encoder, epochs=12, batch=512, rate=3e-3)
    assert told["metrics"]["quality"]["auc"] > 0.95
    scores = load_judge(folder / f"of_{encoder}").score(["theorem proof energy lens", "buy cart login sale"])["quality"]
    assert scores[0] > scores[1] + 0.2


def test_the_rate_is_that_of_the_plan(folder: Path, usual: dict[str, Any]) -> None:
    told = train(folder, "slow", rate=1e-9)
    assert told["training"]["settings"]["optimizer"]["rate"] == 1e-9
    assert usual["training"]["settings"]["optimizer"]["rate"] == 3e-4
    assert moved(folder, "slow") < 1e-7 < 1e-4 < moved(folder, "usual")


def test_a_smaller_batch_makes_more_updates(folder: Path, usual: dict[str, Any]) -> None:
    told = train(folder, "small", batch=512)
    assert usual["training"]["updates"] == 1 and told["training"]["updates"] > 2


def test_patience_stops_training_that_gains_nothing(folder: Path) -> None:
    told = train(folder, "patient", epochs=300, batch=512, rate=1e-9, patience=2)["training"]
    assert told["updates"] < told["planned_updates"] / 50 and told["best_held_out_loss"] > 0
    assert told["held_out"]["texts"] > 20  # the plan's, which training never sees, and not those that end it


def test_precision_is_that_of_the_plan(folder: Path, usual: dict[str, Any]) -> None:
    told = train(folder, "half", precision="bf16")
    assert told["training"]["settings"]["precision"] == "bf16"
    assert usual["training"]["settings"]["precision"] is None
    texts = ["theorem proof energy lens", "buy cart login sale"]
    found = [load_judge(folder / name).score(texts)["quality"] for name in ("usual", "half")]
    assert 0 < abs(found[0] - found[1]).max() < 0.05


def test_ranks_share_each_update(folder: Path, usual: dict[str, Any]) -> None:
    told = train(folder, "shared", ranks=2)["training"]
    assert told["ranks"] == 2 and "ranks" not in usual["training"]
    assert told["updates"] == usual["training"]["updates"] == 1 and told["texts"] == usual["training"]["texts"]
    assert moved(folder, "shared") > 1e-4


@pytest.mark.parametrize(
    ("neural", "message"),
    [
        ({"batch": 512, "tokens": 1024}, "batch: 512 tokens do not hold a text of 1,024"),
        ({"ranks": 64}, "kind.neural.ranks: 64 ranks, where"),
        ({"ranks": 0}, "kind.neural.ranks"),
        ({"patience": 0}, "kind.neural.patience"),
        ({"rate": 2}, "kind.neural.rate"),
        ({"precision": "fp8"}, "kind.neural.precision"),
        ({"encoder": "nowhere"}, "kind.neural.encoder: there is no folder"),
    ],
)
def test_settings_that_do_not_fit_are_told_with_their_key(folder: Path, neural: dict[str, Any], message: str) -> None:
    told = fails("judge", "train", plan(folder, "never", **neural))
    assert message in told and "plan.yaml" not in told and not (folder / "never").exists()
