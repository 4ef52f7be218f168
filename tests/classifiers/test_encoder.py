"""Encoders on packed tokens give what transformers gives on padded ones, alone or among others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
DEBERTA = {"max_position_embeddings": 200, "relative_attention": True, "share_att_key": True} | {
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
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
    "distilbert": (
        transformers.DistilBertConfig,
        transformers.DistilBertModel,
        {"max_position_embeddings": 200, "sinusoidal_pos_embds": True},
    ),
    # v3's settings; texts are longer than what has a bucket of its own, and than the longest distance
    "deberta_v3": (
        transformers.DebertaV2Config,
        transformers.DebertaV2Model,
        DEBERTA | {"position_buckets": 16, "max_relative_positions": 48, "norm_rel_ebd": "layer_norm"},
    ),
    "deberta_without_buckets": (
        transformers.DebertaV2Config,
        transformers.DebertaV2Model,
        DEBERTA | {"position_biased_input": True, "type_vocab_size": 2, "max_relative_positions": 24},
    ),
    "deberta_with_types_alone": (
        transformers.DebertaV2Config,
        transformers.DebertaV2Model,
        DEBERTA | {"type_vocab_size": 2, "pos_att_type": ["c2p", "p2c"], "position_buckets": 256},
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


POOLER = {name: {"add_pooling_layer": False} for name in MODELS if name.startswith(("bert", "roberta"))}


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
    made = model(config(**(SIZES | more)), **POOLER.get(name, {})).eval()
    for parameter in made.parameters():  # also biases and norms, which begin as 0 and 1
        parameter.data += 0.05 * torch.randn_like(parameter)
    made.save_pretrained(folder)
    return made


def roberta_positions(model: torch.nn.Module, mask: torch.Tensor) -> torch.Tensor:
    """As it counts them itself where no other token has the id of the padding."""
    return mask.cumsum(1) * mask + model.config.pad_token_id


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
        longest = max(map(len, texts))
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])
        places = {} if not name.startswith("roberta") else {"position_ids": roberta_positions(model, mask)}
        padded = model(ids, attention_mask=mask, **places).last_hidden_state
        for text, vector, row in zip(texts, ours, padded, strict=True):
            states = model(torch.tensor([text]), attention_mask=torch.ones(1, len(text))).last_hidden_state[0]
            for found in (states, row[: len(text)]):
                expected = found[0] if pooling == "cls" else found.mean(0)
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


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta"])
def test_all_layers_share_what_was_compiled_and_texts_do_not_ask_for_more(family: str) -> None:
    torch._dynamo.reset()
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    more = {"modernbert": {"windows": (-1, 8, 8, -1), "thetas": (1e4, 1e3, 1e3, 1e4)}, "deberta": {"distances": 128}}
    encoder = Encoder(EncoderShape(family, 300, 32, 4, 2, 64, 128, **more.get(family, {}))).eval()  # type: ignore[arg-type]
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


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("deberta_v3", {"share_att_key": False}, "share_att_key is False, and is read only where it is True"),
        ("deberta_v3", {"relative_attention": False}, "relative_attention is False"),
        ("deberta_v3", {"pos_att_type": "c2p"}, "pos_att_type is 'c2p', and is read only where it has p2c and c2p"),
        ("deberta_v3", {"conv_kernel_size": 3}, "DeBERTa with a convolution is not read"),
        ("deberta_v3", {"embedding_size": 32}, "embedding_size is 32, and is read only where it is 64"),
        ("deberta_v3", {"attention_head_size": 8}, "attention_head_size is 8"),
        ("deberta_v3", {"norm_rel_ebd": "batch"}, "norm_rel_ebd is 'batch'; known are none and layer_norm"),
        ("deberta_v3", {"position_buckets": 256}, "48 distances in 256 buckets"),
        ("deberta_v3", {"hidden_act": "mish"}, "hidden_act is 'mish'; known activations are gelu,"),
        ("distilbert", {"dim": 65}, "65 is a multiple of 4"),
        ("distilbert", {"n_layers": 4}, "the weights have no transformer.layer.3"),
        ("distilbert", {"pruned_heads": {"0": [1]}}, "encoders with pruned heads are not read"),
        ("bert", {"position_embedding_type": "relative_key"}, "read only where it is 'absolute'"),
        ("bert", {"is_decoder": True}, "is_decoder is given: only encoders are read"),
        ("bert", {"quantization_config": {"bits": 4}}, "the weights are quantised"),
        ("bert", {"auto_map": {"AutoModel": "evil.Model"}}, "auto_map names code of the folder, which is not run"),
        ("bert", {"trust_remote_code": True}, "trust_remote_code names code of the folder"),
        ("bert", {"vocab_size": 10**9}, "larger than of any encoder that is read here"),
    ],
)
def test_what_is_not_read_is_refused_in_one_line(name: str, change: dict[str, Any], says: str, tmp_path: Path) -> None:
    theirs(name, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(JudgeError) as refused:
        read_encoder(tmp_path)
    assert says in str(refused.value) and "\n" not in str(refused.value) and str(tmp_path) in str(refused.value)


def test_no_file_outside_of_the_folder_is_opened(tmp_path: Path) -> None:
    folder, away = tmp_path / "encoder", tmp_path / "away.safetensors"
    theirs("bert", folder)
    (folder / "model.safetensors").rename(away)
    (folder / "model.safetensors").symlink_to(away)
    with pytest.raises(JudgeError, match="a link out of the folder, which is not followed"):
        read_encoder(folder)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embeddings.word_embeddings.weight": "../away.safetensors"}}))
    with pytest.raises(JudgeError, match=r"'\.\./away\.safetensors'; files are \*\.safetensors of the same folder"):
        read_encoder(folder)
    away.rename(folder / "part.safetensors")
    names = load_file(folder / "part.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "part.safetensors")}))
    assert read_encoder(folder)[0].shape.layers == 3
    cache = tmp_path / "models--a--b"  # the hub's links lead to blobs of the same repository
    (cache / "snapshots").mkdir(parents=True)
    (cache / "blobs").mkdir()
    index.unlink()
    (folder / "part.safetensors").rename(cache / "blobs" / "0123")
    folder.rename(cache / "snapshots" / "c0ffee")
    (cache / "snapshots" / "c0ffee" / "model.safetensors").symlink_to(Path("../../blobs/0123"))
    assert read_encoder(cache / "snapshots" / "c0ffee")[0].shape.layers == 3


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    theirs("bert", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(JudgeError, match=r"it has pytorch_model\.bin; weights that are pickled"):
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
