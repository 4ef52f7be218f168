"""Encoders on packed tokens give what transformers gives on padded ones, alone or among others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, PackedTexts
from gristmill.classifiers.neural.encoder_weights import read_encoder
from gristmill.trainer.model.attention import attend_by_length

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
MODELS = {
    "bert": (transformers.BertConfig, transformers.BertModel, {"max_position_embeddings": 200}),
    "roberta": (
        transformers.RobertaConfig,
        transformers.RobertaModel,
        {"max_position_embeddings": 202, "type_vocab_size": 1},
    ),
    "roberta_whose_padding_is_token_0": (
        transformers.RobertaConfig,
        transformers.RobertaModel,
        {"max_position_embeddings": 202, "type_vocab_size": 1, "pad_token_id": 0},
    ),
    "modernbert": (
        transformers.ModernBertConfig,
        transformers.ModernBertModel,
        {"max_position_embeddings": 400, "local_attention": 16, "num_hidden_layers": 4, "pad_token_id": 0}
        | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "modernbert_ends_local": (
        transformers.ModernBertConfig,
        transformers.ModernBertModel,
        {"max_position_embeddings": 400, "local_attention": 16, "num_hidden_layers": 3, "pad_token_id": 0}
        | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    ),
}


def packed(texts: list[list[int]]) -> PackedTexts:
    lengths = [len(text) for text in texts]
    return PackedTexts(
        torch.tensor([token for text in texts for token in text], dtype=torch.int32),
        torch.cat([torch.arange(n) for n in lengths]).int(),
        torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        max(lengths),
    )


def some_texts(seed: int = 0, lengths: tuple[int, ...] = (5, 60, 1, 60, 33, 2)) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(5, 300, n).tolist() for n in lengths]


def theirs(name: str, folder: Path) -> torch.nn.Module:
    config, model, more = MODELS[name]
    torch.manual_seed(3)
    made = model(config(**(SIZES | more)), **({} if name.startswith("modern") else {"add_pooling_layer": False})).eval()
    for parameter in made.parameters():  # also biases and norms, which begin as 0 and 1
        parameter.data += 0.05 * torch.randn_like(parameter)
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("name", MODELS)
def test_packed_texts_get_the_vectors_of_transformers(name: str, pooling: str, tmp_path: Path) -> None:
    model = theirs(name, tmp_path)
    encoder, rest = read_encoder(tmp_path)
    assert not rest
    object.__setattr__(encoder.shape, "pooling", pooling)
    texts = some_texts()
    with torch.no_grad():
        ours = encoder.eval()(packed(texts))
        for text, vector in zip(texts, ours, strict=True):
            states = model(torch.tensor([text]), attention_mask=torch.ones(1, len(text))).last_hidden_state[0]
            expected = states[0] if pooling == "cls" else states.mean(0)
            assert (vector - expected).abs().max() < 1e-4
    assert len(ours) == len(texts) and ours.std() > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_a_text_gets_the_same_vector_alone_and_among_others(name: str, tmp_path: Path) -> None:
    theirs(name, tmp_path)
    encoder = read_encoder(tmp_path)[0].eval()
    texts = some_texts(1, (7, 90, 90, 3, 41, 1, 90))
    with torch.no_grad():
        together = encoder(packed(texts))
        turned = encoder(packed(texts[::-1])).flip(0)
        alone = torch.cat([encoder(packed([text])) for text in texts])
    assert (together - alone).abs().max() < 1e-5
    assert (together - turned).abs().max() < 1e-5


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_all_layers_share_what_was_compiled_and_texts_do_not_ask_for_more(family: str) -> None:
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    modern = {"windows": (-1, 8, 8, -1), "thetas": (1e4, 1e3, 1e3, 1e4)} if family == "modernbert" else {}
    encoder = Encoder(EncoderShape(family, 300, 32, 4, 2, 64, 128, **modern)).eval()  # type: ignore[arg-type]
    texts = [
        some_texts(seed, lengths) for seed, lengths in ((0, (10, 22)), (1, (32,)), (2, (3, 4, 25)), (3, (8, 8, 8, 8)))
    ]
    with torch.no_grad():
        expected = [encoder(packed(several)) for several in texts]
        encoder.compile_for(32, backend="eager")
        for several, want in zip(texts, expected, strict=True):
            assert (encoder(packed(several)) - want).abs().max() < 1e-6
    # the embedding, the first projection, from one attention to the next, and to the last, of which only keys are asked
    once = 4
    assert graphs["unique_graphs"] == once
    limit = 4  # of how often torch compiles a function; its own is 8
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=limit):
        for number in range(limit + 1):
            other = Encoder(encoder.shape).eval()
            other.compile_for(32, backend="eager")
            other(packed(texts[0]))
            assert graphs["unique_graphs"] == once * (number + 2)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 2), (3, 0)])
def test_attention_by_length_sees_the_window_and_its_own_text_only(window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    lengths = [4, 4, 1, 0, 9]
    cuts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    q, k, v = torch.randn(18, 4, 8), torch.randn(18, 2, 8), torch.randn(18, 2, 8)
    ours = attend_by_length(q, k, v, cuts, cuts, 9, 9, window)
    text = torch.repeat_interleave(torch.arange(5), torch.tensor(lengths))
    place = torch.arange(18)
    ahead = place - place[:, None]
    seen = (
        (text == text[:, None])
        & (ahead >= (-window[0] if window[0] >= 0 else -99))
        & (ahead <= (window[1] if window[1] >= 0 else 99))
    )
    weights = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(2, 1)) / 8**0.5
    expected = torch.einsum(
        "hqk,khd->qhd", weights.masked_fill(~seen, -torch.inf).softmax(-1), v.repeat_interleave(2, 1)
    )
    assert ours.shape == (18, 4, 8) and (ours - expected).abs().max() < 1e-5


def test_a_classifier_of_roberta_does_not_read_a_pooler_that_lies_beside_it(tmp_path: Path) -> None:
    config, _, more = MODELS["roberta"]
    torch.manual_seed(3)
    model = transformers.RobertaForSequenceClassification(config(**(SIZES | more))).eval()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stray = {"roberta.pooler.dense.weight": torch.randn(64, 64), "roberta.pooler.dense.bias": torch.randn(64)}
    save_file(load_file(file) | stray, file)
    encoder, rest = read_encoder(tmp_path)
    texts = some_texts(lengths=(5, 9))
    with torch.no_grad():
        pooled = encoder.eval()(packed(texts))
        ours = pooled @ rest["classifier.out_proj.weight"].T + rest["classifier.out_proj.bias"]
        theirs_too = torch.cat([model(torch.tensor([text])).logits for text in texts])
    assert torch.allclose(ours, theirs_too, atol=1e-5)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    theirs("bert", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(JudgeError, match=r"pytorch_model\.bin is pickle"):
        read_encoder(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    theirs("bert", tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"vocab_size": 300', '"vocab_size": 301'))
    with pytest.raises(JudgeError, match="do not fit"):
        read_encoder(tmp_path)
    (tmp_path / "config.json").write_text(config.replace('"model_type": "bert"', '"model_type": "deberta"'))
    with pytest.raises(JudgeError, match="deberta"):
        read_encoder(tmp_path)
