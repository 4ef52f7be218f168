"""Embeddings of texts: a static model's are those of the package model2vec, an encoder's those of its pooled tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.embedding.embedder import read_embedder
from gristmill.stages import Embed
from gristmill.stages.stage import CannotRun
from tests.classifiers.static_models import WORDS, static_model


def texts(count: int) -> list[str]:
    dice = random.Random(4)
    plain = [word for word in WORDS if word.isalpha()]
    made = [" ".join(dice.choices([*plain, "houses", "unknown", "ab"], k=dice.randint(1, 40))) for _ in range(count)]
    return [*made, "", "unknown", "red " * 2000]


@pytest.mark.parametrize("quantised", [False, True])
def test_vectors_are_those_of_model2vec(tmp_path: Path, quantised: bool) -> None:
    model2vec = pytest.importorskip("model2vec")
    folder = static_model(tmp_path / "m", 1, quantised)
    wanted = model2vec.StaticModel.from_pretrained(str(folder), force_download=False).encode(texts(60))
    found = read_embedder(str(folder), 512, "cpu").vectors(pa.array(texts(60)))
    assert found.shape == wanted.shape == (63, 12) and np.abs(wanted).max() > 1
    assert np.abs(found - wanted).max() < 5e-5  # float32 sums of 512 rows


def test_the_stage_adds_8_bit_vectors_and_none_to_a_text_without_known_words(tmp_path: Path) -> None:
    stage = Embed(model_path=str(static_model(tmp_path / "m", 1)))
    made = stage(pa.table({"text": ["red house", "unknown", None, "old river"]}))["embedding"]
    assert made.type == pa.list_(pa.int8(), 12) and made.null_count == 2
    assert [max(map(abs, row)) for row in made.to_pylist() if row] == [127, 127]
    assert not stage.gpu


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "no static embedding that can be read"),
        (lambda folder: save_file({"other": np.zeros((2, 2), np.float32)}, folder / "model.safetensors"), "no matrix"),
        (
            lambda folder: save_file({"embeddings": np.zeros((3, 2), np.float32)}, folder / "model.safetensors"),
            "3 rows",
        ),
        (
            lambda folder: save_file(
                {"embeddings": np.full((len(WORDS), 2), np.nan, np.float32)}, folder / "model.safetensors"
            ),
            "not finite",
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_in_one_line(tmp_path: Path, change, words: str) -> None:  # type: ignore[no-untyped-def]
    folder = static_model(tmp_path / "m", 1)
    change(folder)
    with pytest.raises(JudgeError, match=words):
        read_embedder(str(folder), 512, "cpu")
    with pytest.raises(CannotRun, match="the model cannot be loaded"):
        Embed(model_path=str(folder))(pa.table({"text": ["red"]}))
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        Embed(model_path=str(tmp_path))


def test_an_encoder_gives_the_mean_of_its_tokens_or_the_first(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    import torch

    static = static_model(tmp_path / "static", 1)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    folder = tmp_path / "encoder"
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text((static / "tokenizer.json").read_text())
    assert load_file(folder / "model.safetensors")
    ids = [[3, 6], [4, 7, 8, 5]]
    for name, pooled in (("mean_tokens", lambda x: x.mean(0)), ("cls_token", lambda x: x[0])):
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{name}": True}))
        found = read_embedder(str(folder), 512, "cpu").vectors(pa.array(["red house", "old river tree small"]))
        with torch.inference_mode():
            wanted = [pooled(model(torch.tensor([row])).last_hidden_state[0]).numpy() for row in ids]
        assert found == pytest.approx(np.array(wanted), abs=1e-4)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    with pytest.raises(JudgeError, match="pooled by"):
        read_embedder(str(folder), 512, "cpu")
    assert Embed(model_path=str(folder), device="auto").gpu
