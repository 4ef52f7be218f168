"""Encoders from Hugging Face folders: config.json and safetensors, by the names of each family. Nothing is pickled, no
code is run.

BERT's token types are all 0 here: that row is added to the positions. RoBERTa's positions begin behind the number of
its padding token, which is 1: the first two rows are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gristmill.classifiers.artifact import read_json
from gristmill.classifiers.card import Json, JudgeError
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape

FAMILIES = {"bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "camembert": "bert", "modernbert": "modernbert"}
ACTIVATION_OF = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
PREFIX = re.compile(r"^(bert|roberta|model)\.")
LARGEST_VOCABULARY, LARGEST_WIDTH, MOST_LAYERS = 4_000_000, 16_384, 256

BERT = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
MODERN = {
    "attention_norm": ("attn_norm",),
    "qkv": ("attn.Wqkv",),
    "out": ("attn.Wo",),
    "output_norm": ("mlp_norm",),
    "up": ("mlp.Wi",),
    "down": ("mlp.Wo",),
}


def read_encoder(folder: Path) -> tuple[Encoder, dict[str, Tensor]]:
    """The encoder in float32, and the weights that are not its own (a classifier's), by their names."""
    config = read_config(folder)
    weights = read_weights(folder)
    shape = shape_of(config, folder, "pooler.dense.weight" in weights, weights)
    encoder = Encoder(shape)
    used: set[str] = set()
    own = _modern(shape, weights, used) if shape.family == "modernbert" else _bert(shape, weights, used, config, folder)
    try:
        encoder.load_state_dict(own)
    except RuntimeError as error:
        raise JudgeError(
            f"{folder}: the weights do not fit config.json: {str(error).splitlines()[-1].strip()}"
        ) from error
    return encoder, {name: tensor for name, tensor in weights.items() if name not in used}


def read_config(folder: Path) -> Json:
    path = folder / "config.json"
    if not path.is_file():
        raise JudgeError(
            f"{folder}: no config.json; an encoder is a folder with config.json, *.safetensors and tokenizer.json"
        )
    config = read_json(path)
    if not isinstance(config, dict) or config.get("model_type") not in FAMILIES:
        kind = config.get("model_type") if isinstance(config, dict) else None
        raise JudgeError(f"{path}: model_type {kind!r} is not read here; known are {', '.join(FAMILIES)}")
    return config


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors, with the model's prefix taken off and old names of norms made new."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        other = sorted(
            path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl")
        )
        hint = (
            f" ({', '.join(other)} is pickle, which can run any code when it is read: convert it to safetensors)"
            if other
            else ""
        )
        raise JudgeError(f"{folder}: no *.safetensors{hint}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            loaded = load_file(file)
        except SafetensorError as error:
            raise JudgeError(f"{file}: cannot be read ({error})") from error
        for name, tensor in loaded.items():
            name = (
                PREFIX.sub("", name)
                .replace("LayerNorm.gamma", "LayerNorm.weight")
                .replace("LayerNorm.beta", "LayerNorm.bias")
            )
            tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


def shape_of(config: Json, where: Path, pooler: bool, weights: dict[str, Tensor]) -> EncoderShape:
    """`pooler`: a BERT pooler is among the weights."""

    def number(name: str, default: int | None = None) -> int:
        value = config.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise JudgeError(f"{where}/config.json: {name} is {value!r}, and must be a whole number above 0")
        return value

    activation = ACTIVATION_OF.get(str(config.get("hidden_act", config.get("hidden_activation", "gelu"))))
    if activation is None:
        raise JudgeError(
            f"{where}/config.json: an activation that is not known here; known are {', '.join(ACTIVATION_OF)}"
        )
    if (
        number("vocab_size") > LARGEST_VOCABULARY
        or number("hidden_size") > LARGEST_WIDTH
        or number("num_hidden_layers") > MOST_LAYERS
    ):
        raise JudgeError(f"{where}/config.json: larger than any encoder that is read here")
    sizes: dict[str, Any] = {
        "vocabulary": number("vocab_size"),
        "width": number("hidden_size"),
        "layers": number("num_hidden_layers"),
        "heads": number("num_attention_heads"),
        "inner": number("intermediate_size"),
        "activation": activation,
    }
    if config["model_type"] == "modernbert":
        return _modern_shape(config, where, sizes, number("max_position_embeddings", 8192), weights)
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("is_decoder"):
        raise JudgeError(f"{where}/config.json: only encoders with absolute positions are read")
    skipped = _skipped_positions(config)
    classifier = "classifier.dense.weight" in weights  # RoBERTa's head brings its own dense layer
    return EncoderShape(
        family="bert",
        positions=number("max_position_embeddings") - skipped,
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
        pooler="tanh" if pooler or classifier else "none",
        **sizes,
    )


def _modern_shape(
    config: Json, where: Path, sizes: dict[str, Any], positions: int, weights: dict[str, Tensor]
) -> EncoderShape:
    for name in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"):
        if config.get(name):
            raise JudgeError(f"{where}/config.json: {name} is true; ModernBERT is read without biases")
    layers = sizes["layers"]
    every = config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types") or ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    rope = config.get("rope_parameters") or {}
    thetas = {
        "full_attention": rope.get("full_attention", {}).get("rope_theta", config.get("global_rope_theta", 160_000.0)),
        "sliding_attention": rope.get("sliding_attention", {}).get(
            "rope_theta", config.get("local_rope_theta", 10_000.0)
        ),
    }
    half = config.get("local_attention", 128) // 2
    if len(kinds) != layers or any(kind not in thetas for kind in kinds):
        raise JudgeError(
            f"{where}/config.json: layer_types names full_attention or sliding_attention for each of the {layers} "
            "layers"
        )
    pooling = config.get("classifier_pooling", "cls")
    return EncoderShape(
        family="modernbert",
        positions=positions,
        norm_eps=float(config.get("norm_eps", 1e-5)),
        pooling="mean" if pooling == "mean" else "cls",
        pooler="norm" if "head.dense.weight" in weights else "none",
        windows=tuple(-1 if kind == "full_attention" else half for kind in kinds),
        thetas=tuple(float(thetas[kind]) for kind in kinds),
        **sizes,
    )


def _skipped_positions(config: Json) -> int:
    if config["model_type"] == "bert":
        return 0
    padding = config.get("pad_token_id")
    return (1 if padding is None else int(padding)) + 1  # a padding token of 0 is one too


def _take(weights: dict[str, Tensor], used: set[str], name: str) -> Tensor:
    if name not in weights:
        raise JudgeError(f"the weights have no {name}")
    used.add(name)
    return weights[name]


def _layers(
    shape: EncoderShape, weights: dict[str, Tensor], used: set[str], names: dict[str, tuple[str, ...]], prefix: str
) -> dict[str, Tensor]:
    own: dict[str, Tensor] = {}
    for layer in range(shape.layers):
        for ours, theirs in names.items():
            for kind in ("weight", "bias"):
                parts = [f"{prefix}{layer}.{name}.{kind}" for name in theirs]
                if parts[0] in weights:
                    own[f"blocks.{layer}.{ours}.{kind}"] = torch.cat([_take(weights, used, part) for part in parts])
    return own


def _bert(
    shape: EncoderShape, weights: dict[str, Tensor], used: set[str], config: Json, folder: Path
) -> dict[str, Tensor]:
    used |= {"embeddings.position_ids"}
    types = weights.get("embeddings.token_type_embeddings.weight")
    positions = _take(weights, used, "embeddings.position_embeddings.weight")[_skipped_positions(config) :]
    own = {
        "tokens.weight": _take(weights, used, "embeddings.word_embeddings.weight"),
        "positions.weight": positions
        if types is None
        else positions + _take(weights, used, "embeddings.token_type_embeddings.weight")[0],
        "embedding_norm.weight": _take(weights, used, "embeddings.LayerNorm.weight"),
        "embedding_norm.bias": _take(weights, used, "embeddings.LayerNorm.bias"),
        **_layers(shape, weights, used, BERT, "encoder.layer."),
    }
    if shape.pooler == "tanh":
        # many published RoBERTa classifiers still carry the pooler that they do not use
        dense = "classifier.dense" if "classifier.dense.weight" in weights else "pooler.dense"
        own |= {f"pooler.dense.{kind}": _take(weights, used, f"{dense}.{kind}") for kind in ("weight", "bias")}
    return own


def _modern(shape: EncoderShape, weights: dict[str, Tensor], used: set[str]) -> dict[str, Tensor]:
    own = {
        "tokens.weight": _take(weights, used, "embeddings.tok_embeddings.weight"),
        "embedding_norm.weight": _take(weights, used, "embeddings.norm.weight"),
        "final_norm.weight": _take(weights, used, "final_norm.weight"),
        **_layers(shape, weights, used, MODERN, "layers."),
    }
    if shape.pooler == "norm":
        own |= {f"pooler.{ours}.weight": _take(weights, used, f"head.{ours}.weight") for ours in ("dense", "norm")}
    return own
