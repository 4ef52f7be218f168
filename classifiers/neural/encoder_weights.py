"""Encoders from Hugging Face folders: config.json and safetensors, by the names of each family. Nothing is unpickled,
no code of a folder is run, no file outside of it is opened.

BERT's token types are all 0 here: that row is added to the positions, or to the tokens where there are none. RoBERTa's
positions begin behind the number of its padding token, which is 1: the first two rows are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gristmill.classifiers.artifact import PLAIN_NAME, read_json
from gristmill.classifiers.card import Json, JudgeError
from gristmill.classifiers.neural.encoder import Encoder, EncoderShape
from gristmill.trainer.model.llama_config import LlamaError
from gristmill.trainer.model.llama_files import open_tensors

ACTIVATION_OF = {name: name for name in ("gelu", "relu", "silu")} | {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
PREFIX = re.compile(r"^(bert|roberta|distilbert|deberta|model)\.")
LARGEST_VOCABULARY, LARGEST_WIDTH, MOST_LAYERS = 4_000_000, 16_384, 256
# What a configuration may say that no encoder here does.
REFUSED = {
    "is_decoder": "only encoders are read",
    "add_cross_attention": "only encoders are read",
    "pruned_heads": "encoders with pruned heads are not read",
    "quantization_config": "the weights are quantised; name the folder before that",
}
CODE = ("auto_map", "trust_remote_code", "custom_pipelines")


class Names(NamedTuple):
    """A family's names: of layers, of what is in them, and of the modules outside of them."""

    layers: str
    of_layer: dict[str, tuple[str, ...]]
    outside: dict[str, str]


OUTSIDE = {
    "tokens": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
}
BERT = Names(
    "encoder.layer",
    {
        "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "output_norm": ("output.LayerNorm",),
    },
    OUTSIDE,
)
DISTILBERT = Names(
    "transformer.layer",
    {
        "qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "out": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "output_norm": ("output_layer_norm",),
    },
    OUTSIDE,
)
DEBERTA = Names(
    BERT.layers,
    BERT.of_layer | {"qkv": ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj")},
    OUTSIDE | {"distances": "encoder.rel_embeddings", "distance_norm": "encoder.LayerNorm"},
)
MODERNBERT = Names(
    "layers",
    {
        "attention_norm": ("attn_norm",),
        "qkv": ("attn.Wqkv",),
        "out": ("attn.Wo",),
        "output_norm": ("mlp_norm",),
        "up": ("mlp.Wi",),
        "down": ("mlp.Wo",),
    },
    {"tokens": "embeddings.tok_embeddings", "embedding_norm": "embeddings.norm", "final_norm": "final_norm"},
)


class Config:
    """config.json, whose values are checked as they are asked for."""

    def __init__(self, facts: Json, path: Path) -> None:
        self.facts, self.path = facts, path

    def get(self, name: str, default: Any = None) -> Any:
        return self.facts.get(name, default)

    def wrong(self, message: str) -> JudgeError:
        return JudgeError(f"{self.path}: {message}")

    def number(self, name: str, default: int | None = None, most: int | None = None) -> int:
        value = self.facts.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(f"{name} is {value!r}, and must be a whole number above 0")
        if most is not None and value > most:
            raise self.wrong(f"{name} is {value:,}, larger than of any encoder that is read here ({most:,})")
        return value

    def activation(self, name: str, also: tuple[str, ...] = ()) -> Any:
        value = self.facts.get(name, "gelu")
        known = ACTIVATION_OF | {other: other for other in also}
        if not isinstance(value, str) or value not in known:
            raise self.wrong(f"{name} is {value!r}; known activations are {', '.join(known)}")
        return known[value]

    def must_be(self, name: str, wanted: Any, default: Any) -> None:
        value = self.facts.get(name, default)
        if value != wanted:
            raise self.wrong(f"{name} is {value!r}, and is read only where it is {wanted!r}")


def read_encoder(folder: Path) -> tuple[Encoder, dict[str, Tensor]]:
    """The encoder in float32, and the weights that are not its own (a classifier's), by their names."""
    config = read_config(folder)
    weights = read_weights(folder)
    family = FAMILIES[config.get("model_type")]
    try:
        encoder = Encoder(family.shape(config, weights))
    except ValueError as error:
        raise error if isinstance(error, JudgeError) else config.wrong(str(error)) from error
    used: set[str] = {"embeddings.position_ids", "embeddings.position_embeddings.weight"}
    names = [_their_names(name, family.names, weights) for name in encoder.state_dict()]
    own = {}
    for ours, parts in zip(encoder.state_dict(), names, strict=True):
        for part in parts:
            if part not in weights:
                raise JudgeError(f"{folder}: the weights have no {part}")
        used.update(parts)
        own[ours] = torch.cat([weights[part] for part in parts])
    if encoder.positions is not None:
        own["positions.weight"] = own["positions.weight"][_skipped_positions(config) :]
    types = weights.get("embeddings.token_type_embeddings.weight")
    if types is not None:
        used.add("embeddings.token_type_embeddings.weight")
        table = "tokens.weight" if encoder.positions is None else "positions.weight"
        own[table] = own[table] + types[0]
    try:
        encoder.load_state_dict(own)
    except RuntimeError as error:
        raise JudgeError(
            f"{folder}: the weights do not fit config.json: {str(error).splitlines()[-1].strip()}"
        ) from error
    return encoder, {name: tensor for name, tensor in weights.items() if name not in used}


def read_config(folder: Path) -> Config:
    if not (folder / "config.json").is_file():
        raise JudgeError(
            f"{folder}: no config.json; an encoder is a folder with config.json, *.safetensors and tokenizer.json"
        )
    path = own_file(folder, "config.json")
    facts = read_json(path)
    kind = facts.get("model_type") if isinstance(facts, dict) else None
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise JudgeError(f"{path}: model_type {kind!r} is not read here; known are {', '.join(FAMILIES)}")
    for name in CODE:
        if facts.get(name):
            raise JudgeError(f"{path}: {name} names code of the folder, which is not run here")
    for name, why in REFUSED.items():
        if facts.get(name):
            raise JudgeError(f"{path}: {name} is given: {why}")
    return Config(facts | {new: facts[old] for old, new in DISTILBERT_CALLS.items() if old in facts}, path)


def own_file(folder: Path, name: str) -> Path:
    """A file of the folder itself. Links lead out of it only as the hub's cache has them, to blobs of the same
    repository."""
    path = folder / name
    if not PLAIN_NAME.fullmatch(name):
        raise JudgeError(f"{folder}: {name[:60]!r} is no file of this folder")
    real, home = path.resolve(), folder.resolve()
    blobs = home.parents[1] / "blobs" if home.parent.name == "snapshots" else None
    if real.parent != home and (blobs is None or real.parent != blobs):
        raise JudgeError(f"{path}: a link out of the folder, which is not followed")
    return path


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors, with the model's prefix taken off and old names of norms made new."""
    for path in folder.glob("*.safetensors*"):
        own_file(folder, path.name)
    tensors: dict[str, Tensor] = {}
    try:
        with open_tensors(folder) as stored:
            for name, each in stored.items():
                tensor = each.tensor()
                name = PREFIX.sub("", name).replace("LayerNorm.gamma", "LayerNorm.weight")
                name = name.replace("LayerNorm.beta", "LayerNorm.bias")
                tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    except LlamaError as error:
        raise JudgeError(str(error)) from error
    return tensors


def _their_names(ours: str, names: Names, weights: dict[str, Tensor]) -> list[str]:
    """The tensors that make one of ours."""
    module, _, kind = ours.rpartition(".")
    if module.startswith("blocks."):
        _, layer, module = module.split(".")
        return [f"{names.layers}.{layer}.{name}.{kind}" for name in names.of_layer[module]]
    if module == "pooler.dense":
        return [f"{_pooler_of(weights)}.{kind}"]
    return [f"{'head.norm' if module == 'pooler.norm' else names.outside[module]}.{kind}"]


def _pooler_of(weights: dict[str, Tensor]) -> str | None:
    """RoBERTa's classifiers bring a dense layer of their own; many published ones still carry the pooler that they do
    not use."""
    known = ("classifier.dense", "pre_classifier", "head.dense", "pooler.dense")
    return next((name for name in known if f"{name}.weight" in weights), None)


def _sizes(config: Config) -> dict[str, Any]:
    return {
        "vocabulary": config.number("vocab_size", most=LARGEST_VOCABULARY),
        "width": config.number("hidden_size", most=LARGEST_WIDTH),
        "layers": config.number("num_hidden_layers", most=MOST_LAYERS),
        "heads": config.number("num_attention_heads"),
        "inner": config.number("intermediate_size"),
        "activation": config.activation("hidden_activation" if "hidden_activation" in config.facts else "hidden_act"),
    }


def _bert_shape(config: Config, weights: dict[str, Tensor]) -> EncoderShape:
    config.must_be("position_embedding_type", "absolute", "absolute")
    return EncoderShape(
        family="bert",
        positions=config.number("max_position_embeddings") - _skipped_positions(config),
        norm_eps=float(config.get("layer_norm_eps", 1e-12)),
        pooler="tanh" if _pooler_of(weights) else "none",
        **_sizes(config),
    )


DISTILBERT_CALLS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


def _distilbert_shape(config: Config, weights: dict[str, Tensor]) -> EncoderShape:
    """Positions by sines lie among the weights, like learned ones."""
    return EncoderShape(
        family="bert",
        positions=config.number("max_position_embeddings"),
        pooler="relu" if _pooler_of(weights) else "none",
        **_sizes(config),
    )


def _deberta_shape(config: Config, weights: dict[str, Tensor]) -> EncoderShape:
    """Attention as v2 and v3 were published: distances in both directions, through the maps of tokens."""
    config.must_be("relative_attention", True, False)
    config.must_be("share_att_key", True, False)
    parts = config.get("pos_att_type") or ()
    parts = parts.lower().split("|") if isinstance(parts, str) else parts
    if sorted(part.strip() for part in parts) != ["c2p", "p2c"]:
        raise config.wrong(f"pos_att_type is {config.get('pos_att_type')!r}, and is read only where it has p2c and c2p")
    sizes = _sizes(config)
    config.must_be("embedding_size", sizes["width"], sizes["width"])
    config.must_be("attention_head_size", sizes["width"] // sizes["heads"], sizes["width"] // sizes["heads"])
    if config.get("conv_kernel_size", 0):
        raise config.wrong("conv_kernel_size is given: DeBERTa with a convolution is not read")
    norms = str(config.get("norm_rel_ebd", "none")).lower()
    if norms not in ("none", "layer_norm"):
        raise config.wrong(f"norm_rel_ebd is {norms!r}; known are none and layer_norm")
    positions, buckets = config.number("max_position_embeddings"), config.get("position_buckets", -1)
    distances = config.get("max_relative_positions", -1)
    return EncoderShape(
        family="deberta",
        positions=positions,
        norm_eps=float(config.get("layer_norm_eps", 1e-7)),
        pooler=config.activation("pooler_hidden_act", ("tanh",)) if _pooler_of(weights) else "none",
        distances=distances if isinstance(distances, int) and distances >= 1 else positions,
        buckets=buckets if isinstance(buckets, int) and buckets > 0 else 0,
        distance_norm=norms == "layer_norm",
        absolute=bool(config.get("position_biased_input", True)),
        **sizes,
    )


def _modernbert_shape(config: Config, weights: dict[str, Tensor]) -> EncoderShape:
    for name in ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"):
        config.must_be(name, False, False)
    sizes = _sizes(config)
    layers, pooler = sizes["layers"], "norm" if _pooler_of(weights) else "none"
    if pooler == "norm" and config.activation("classifier_activation") != sizes["activation"]:
        raise config.wrong(
            "classifier_activation differs from hidden_activation, and is read only where they are equal"
        )
    every = config.get("global_attn_every_n_layers", 3)
    kinds = config.get("layer_types") or ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    rope = config.get("rope_parameters") or {}
    usual = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
    thetas = {kind: rope.get(kind, {}).get("rope_theta", config.get(*old)) for kind, old in usual.items()}
    half = config.get("local_attention", 128) // 2
    if len(kinds) != layers or any(kind not in thetas for kind in kinds):
        raise config.wrong(f"layer_types names full_attention or sliding_attention for each of the {layers} layers")
    return EncoderShape(
        family="modernbert",
        positions=config.number("max_position_embeddings", 8192),
        norm_eps=float(config.get("norm_eps", 1e-5)),
        pooling="mean" if config.get("classifier_pooling", "cls") == "mean" else "cls",
        pooler="norm" if pooler == "norm" else "none",
        windows=tuple(-1 if kind == "full_attention" else half for kind in kinds),
        thetas=tuple(float(thetas[kind]) for kind in kinds),
        **sizes,
    )


def _skipped_positions(config: Config) -> int:
    if config.get("model_type") in ("bert", "distilbert", "deberta-v2"):
        return 0
    padding = config.get("pad_token_id")
    return (1 if padding is None else int(padding)) + 1  # a padding token of 0 is one too


class Family(NamedTuple):
    names: Names
    shape: Callable[[Config, dict[str, Tensor]], EncoderShape]


OF_BERT = Family(BERT, _bert_shape)
FAMILIES = {
    "bert": OF_BERT,
    "roberta": OF_BERT,
    "xlm-roberta": OF_BERT,
    "camembert": OF_BERT,
    "distilbert": Family(DISTILBERT, _distilbert_shape),
    "modernbert": Family(MODERNBERT, _modernbert_shape),
    "deberta-v2": Family(DEBERTA, _deberta_shape),
}
