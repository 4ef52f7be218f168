"""A decoder's shape from and to Hugging Face's `config.json`: which models of the Llama family are read, and why others
are not.

Missing keys have the defaults of transformers. Positions are read in the old form (`rope_theta`, `rope_scaling`) and in
that of transformers 5 (`rope_parameters`); both are written. `llama` has no windows, `mistral` one for all layers,
`ministral` one for some of them. `qwen3` norms queries and keys, each head by itself. Mixtures of experts:

    mixtral     a softmax router whose weights sum to 1; experts in every layer
    qwen3_moe   a softmax router; queries and keys normed by head; any layers may be dense
    olmoe       a softmax router; queries and keys normed over all heads; experts in every layer
    glm4_moe    a sigmoid router with a bias for each expert; shared experts; the first layers may be dense
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

from gristmill.trainer.model.shapes import DecoderShape, Mixture, RopeScaling

Json = Mapping[str, Any]

# Where config.json does not say; None: as many as query heads.
KEY_VALUE_HEADS = {
    "llama": None, "mistral": 8, "ministral": 8, "qwen3": 32, "mixtral": 8, "qwen3_moe": 4, "olmoe": None,
    "glm4_moe": 8,
}  # fmt: skip
CONTEXTS = {
    "llama": 2048, "mistral": 131_072, "ministral": 131_072, "qwen3": 32_768, "mixtral": 131_072, "qwen3_moe": 32_768,
    "olmoe": 4096, "glm4_moe": 131_072,
}  # fmt: skip
EPS = {"mixtral": 1e-5, "olmoe": 1e-5, "glm4_moe": 1e-5}  # elsewhere 1e-6
ROPE_BASES = {"mixtral": 1e6}  # elsewhere 1e4
LARGEST = sys.float_info.max  # JSON has whole numbers beyond it
MOST_LAYERS = 10_000  # before anything is made for each of them
WINDOW = 4096  # of a mistral that does not say
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "ministral": "MinistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}
MIXTURES = ("mixtral", "qwen3_moe", "olmoe", "glm4_moe")
UNLIKE = {
    r".*moe.*|llama4.*|deepseek.*|gpt_oss|jamba|dbrx": "it is a mixture of experts of another kind",
    r"qwen2(_vl.*)?|qwen2_5.*": "its queries, keys and values have biases",
    r"qwen3_.*": "it has other attention or other inputs",
    r"olmo2|olmo3": "its norms stand behind attention and MLP",
    r"gemma.*": "its norms, embeddings and activation are of another kind",
    r"granite.*": "its embeddings, residuals and logits are multiplied by numbers of their own",
    r"smollm3": "some of its layers know no positions",
    r"phi3|phi4.*": "its positions are scaled in another way, and its matrices are laid out differently",
    r"gpt2|gpt_neo.*|opt|bloom|falcon|mpt|phi|olmo": "it has other norms, biases or positions",
}


class LlamaError(ValueError):
    """A folder that holds no decoder that is read here, or a decoder that no folder can hold."""


def shape_of(config: Any, where: str) -> DecoderShape:
    """`where` is named in complaints."""
    if not isinstance(config, dict):
        raise LlamaError(f"{where}: not a JSON object")
    kind = _kind(config, where)

    def whole(name: str, default: int | None = None) -> int:
        value = config.get(name, default)
        if type(value) is not int or value < 1:
            raise LlamaError(f"{where}: {name} is {value!r}, and must be a whole number above 0")
        return value

    hidden, layers, heads = whole("hidden_size"), whole("num_hidden_layers"), whole("num_attention_heads")
    if layers > MOST_LAYERS:
        raise LlamaError(
            f"{where}: num_hidden_layers is {layers:,}; no decoder with more than {MOST_LAYERS:,} is read here"
        )
    kv_heads = config.get("num_key_value_heads", KEY_VALUE_HEADS[kind])
    context = whole("max_position_embeddings", CONTEXTS[kind])
    base, scaling = _positions(config, context, where, ROPE_BASES.get(kind, 10_000.0))
    facts = {
        "vocabulary": whole("vocab_size"),
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "mlp": whole("intermediate_size"),
        "head_size": _head_size(kind, hidden // heads) if config.get("head_dim") is None else whole("head_dim"),
        "context": context,
        "rope_base": base,
        "rope_scaling": scaling,
        "norm_eps": _number(config, "rms_norm_eps", EPS.get(kind, 1e-6), where),
        "tied": config.get("tie_word_embeddings") is True,
        "windows": _windows(config, kind, layers, where),
        "qk_norm": _qk_norm(config, kind),
        "experts": _mixture(config, kind, layers, where) if kind in MIXTURES else None,
    }
    try:
        return DecoderShape.from_facts(facts)
    except ValueError as error:
        raise LlamaError(f"{where}: {error}") from error


def config_of(shape: DecoderShape, dtype: str, bos: int | None = None, eos: int | None = None) -> dict[str, Any]:
    """A config.json that transformers reads as the same decoder. `dtype` is the name of a torch dtype, `bos` and `eos`
    are tokens."""
    kind, keys = _family(shape)
    rope: dict[str, Any] = {"rope_type": "default"}
    if scaling := shape.rope_scaling:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.context,
        }
    return {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "rope_scaling": rope if scaling else None,
        "rope_parameters": {
            **rope,
            "rope_theta": shape.rope_base,
            **({"partial_rotary_factor": 1.0} if kind == "glm4_moe" else {}),
        },
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": dtype,
        "use_cache": True,
        **keys,
    }


def family_of(shape: DecoderShape) -> str:
    """The `model_type` of its folder."""
    return _family(shape)[0]


def _head_size(kind: str, share: int) -> int:
    return 128 if kind == "qwen3" else share


def _qk_norm(config: Json, kind: str) -> Literal["head", "width"] | None:
    if kind == "olmoe":
        return "width"
    normed = kind in ("qwen3", "qwen3_moe") or (kind == "glm4_moe" and config.get("use_qk_norm") is True)
    return "head" if normed else None


def _mixture(config: Json, kind: str, layers: int, where: str) -> dict[str, Any]:
    def whole(names: tuple[str, ...], default: int, least: int = 1) -> int:
        name = next((name for name in names if config.get(name) is not None), names[0])
        value = config.get(name, default)
        if type(value) is not int or value < least:
            raise LlamaError(f"{where}: {name} is {value!r}, and must be a whole number from {least} up")
        return value

    for name, allowed in (
        ("clip_qkv", (None,)),
        ("router_jitter_noise", (None, 0, 0.0)),
        ("routed_scaling_factor", (None, 1, 1.0)),
        ("n_group", (None, 1)),
        ("topk_group", (None, 1)),
        ("decoder_sparse_step", (None, 1)),
    ):
        if config.get(name) not in allowed:
            raise LlamaError(f"{where}: {name} {config[name]!r} is not read here")
    sigmoid = kind == "glm4_moe"
    number, active = {"mixtral": (8, 2), "qwen3_moe": (128, 8), "olmoe": (64, 8), "glm4_moe": (128, 8)}[kind]
    width = ("moe_intermediate_size", "intermediate_size")[kind in ("mixtral", "olmoe")]
    dense: tuple[int, ...] = ()
    if sigmoid:
        dense = tuple(range(min(layers, whole(("first_k_dense_replace",), 1, 0))))
    elif kind == "qwen3_moe":
        given = config.get("mlp_only_layers") or []
        if not isinstance(given, list) or any(type(layer) is not int for layer in given):
            raise LlamaError(f"{where}: mlp_only_layers is {given!r}, and must be a list of layers")
        dense = tuple(layer for layer in given if 0 <= layer < layers)
    return {
        "number": whole(("num_experts", "num_local_experts", "n_routed_experts"), number),
        "active": whole(("num_experts_per_tok",), active),
        "width": whole((width,), {"qwen3_moe": 768, "glm4_moe": 1408}.get(kind, 0)),
        "router": "sigmoid" if sigmoid else "softmax",
        "normalised": kind == "mixtral" or config.get("norm_topk_prob", sigmoid) is True,
        "shared": whole(("n_shared_experts",), 1, 0) if sigmoid else 0,
        "dense": dense,
    }


def _family(shape: DecoderShape) -> tuple[str, dict[str, Any]]:
    """The simplest family that has such layers, and the keys that say them."""
    if shape.experts is not None:
        return _family_of_mixture(shape, shape.experts)
    if shape.qk_norm is None:
        return _dense_family(shape)
    if shape.qk_norm == "width":
        raise LlamaError("no family of transformers without experts has qk_norm 'width'; qk_norm 'head' is qwen3's")
    window = _dense_family(shape)[1].get("sliding_window")
    kinds = ["sliding_attention" if shape.window(layer) else "full_attention" for layer in range(shape.layers)]
    return "qwen3", {"use_sliding_window": window is not None, "sliding_window": window, "layer_types": kinds}


def _family_of_mixture(shape: DecoderShape, experts: Mixture) -> tuple[str, dict[str, Any]]:
    windows = {shape.window(layer) for layer in range(shape.layers)}
    first = experts.dense == tuple(range(len(experts.dense)))
    kind = (
        "glm4_moe"
        if experts.router == "sigmoid"
        else {None: "mixtral", "head": "qwen3_moe", "width": "olmoe"}[shape.qk_norm]
    )
    lacks = {
        "windows in some layers": len(windows) > 1,
        "windows": any(windows) and kind in ("olmoe", "glm4_moe"),
        "shared experts": experts.shared > 0 and kind != "glm4_moe",
        "dense layers": bool(experts.dense) and kind in ("mixtral", "olmoe"),
        "dense layers after sparse ones": not first and kind == "glm4_moe",
        "weights that do not sum to 1 (normalised)": not experts.normalised and kind == "mixtral",
        "qk_norm 'width'": shape.qk_norm == "width" and kind == "glm4_moe",
        "heads of a size of their own": kind == "olmoe" and shape.head_size * shape.heads != shape.hidden,
    }
    if wrong := [what for what, is_so in lacks.items() if is_so]:
        raise LlamaError(
            f"no family of transformers has such a mixture of experts; the nearest is {kind}, without {', '.join(wrong)}"
        )
    window, keys = max(windows) or None, {"num_experts_per_tok": experts.active, "norm_topk_prob": experts.normalised}
    if kind == "mixtral":
        del keys["norm_topk_prob"]
        return kind, {**keys, "num_local_experts": experts.number, "sliding_window": window}
    if kind == "olmoe":
        return kind, {**keys, "num_experts": experts.number, "clip_qkv": None}
    keys["moe_intermediate_size"] = experts.width
    if kind == "qwen3_moe":
        windowed = {"use_sliding_window": window is not None, "sliding_window": window}
        dense = {"mlp_only_layers": [*experts.dense], "decoder_sparse_step": 1}
        return kind, {**keys, **windowed, **dense, "num_experts": experts.number}
    return kind, {
        **keys,
        "n_routed_experts": experts.number,
        "n_shared_experts": experts.shared,
        "first_k_dense_replace": len(experts.dense),
        "use_qk_norm": shape.qk_norm == "head",
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "partial_rotary_factor": 1.0,
    }


def _dense_family(shape: DecoderShape) -> tuple[str, dict[str, Any]]:
    """The simplest of those that have these windows."""
    by_layer = [shape.window(layer) for layer in range(shape.layers)]
    sizes = {window for window in by_layer if window}
    if len(sizes) > 1:
        raise LlamaError(
            f"no family of transformers has windows of several sizes ({', '.join(map(str, sorted(sizes)))})"
        )
    if not sizes:
        # transformers' llama refuses a width that the heads do not share equally, its mistral does not
        return ("mistral", {"sliding_window": None}) if shape.hidden % shape.heads else ("llama", {})
    if all(by_layer):
        return "mistral", {"sliding_window": sizes.pop()}
    kinds = ["sliding_attention" if window else "full_attention" for window in by_layer]
    return "ministral", {"sliding_window": sizes.pop(), "layer_types": kinds}


def _kind(config: Json, where: str) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CLASSES:
        reasons = [reason for pattern, reason in UNLIKE.items() if re.fullmatch(pattern, str(kind))]
        because = f": {reasons[0]}" if reasons else ""
        raise LlamaError(f"{where}: model_type {kind!r} is not read here{because}; known are {', '.join(CLASSES)}")
    for name, reason in {
        "attention_bias": "its attention has biases",
        "mlp_bias": "its MLP has biases",
        "quantization_config": "its weights are quantised",
        **(
            {}
            if kind in MIXTURES
            else dict.fromkeys(("num_local_experts", "num_experts"), "it is a mixture of experts")
        ),
    }.items():
        if config.get(name):
            raise LlamaError(f"{where}: {name} is set: {reason}, which is not read here")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise LlamaError(f"{where}: hidden_act {activation!r} is not read here, only silu")
    return str(kind)


def _positions(config: Json, context: int, where: str, default: float) -> tuple[float, RopeScaling | None]:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise LlamaError(f"{where}: positions that differ between layers are not read here")
    base = _number(rope if rope.get("rope_theta") is not None else config, "rope_theta", default, where)
    if config.get("model_type") == "glm4_moe" and rope.get("partial_rotary_factor") is None:
        rope = {**rope, "partial_rotary_factor": config.get("partial_rotary_factor", 0.5)}
    for place in (rope, config):
        if place.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise LlamaError(
                f"{where}: partial_rotary_factor is set: only a part of each head has positions, which is not read here"
            )
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise LlamaError(
            f"{where}: positions scaled by {kind!r} are not read here, only those of llama3 and unscaled ones"
        )
    trained_for = config.get("original_max_position_embeddings") or rope.get(
        "original_max_position_embeddings", context
    )
    if type(trained_for) is not int or trained_for < 1:
        raise LlamaError(
            f"{where}: original_max_position_embeddings is {trained_for!r}, and must be a whole number above 0"
        )
    factor, low, high = (_number(rope, name, None, where) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise LlamaError(f"{where}: high_freq_factor {high} must be above low_freq_factor {low}")
    return base, RopeScaling(factor, low, high, trained_for)


def _windows(config: Json, kind: str, layers: int, where: str) -> tuple[int, ...]:
    window = _window(config, kind)
    if window is not None and (type(window) is not int or window < 1):
        raise LlamaError(f"{where}: sliding_window is {window!r}, and must be null or a whole number above 0")
    every = "sliding_attention" if window else "full_attention"
    kinds = config.get("layer_types") or [every] * layers
    if kind == "qwen3" and not config.get("layer_types"):
        full = config.get("max_window_layers", 28)
        kinds = ["full_attention" if layer < full else every for layer in range(layers)]
    if not isinstance(kinds, list):
        raise LlamaError(f"{where}: layer_types is {kinds!r}, and must be a list")
    if kind not in ("ministral", "qwen3") and any(kind_of_layer != every for kind_of_layer in kinds):
        raise LlamaError(
            f"{where}: {kind} cannot have layer_types other than {every}; transformers has ministral for those"
        )
    if len(kinds) != layers or any(
        kind_of_layer not in ("sliding_attention", "full_attention") for kind_of_layer in kinds
    ):
        raise LlamaError(
            f"{where}: layer_types names full_attention or sliding_attention for each of the {layers} layers"
        )
    if window is None and "sliding_attention" in kinds:
        raise LlamaError(f"{where}: layer_types has sliding_attention, but there is no sliding_window")
    by_layer = tuple((window or 0) if kind_of_layer == "sliding_attention" else 0 for kind_of_layer in kinds)
    return _shortest(by_layer) if any(by_layer) else ()


def _window(config: Json, kind: str) -> Any:
    if kind in ("qwen3", "qwen3_moe"):
        return config.get("sliding_window", WINDOW) if config.get("use_sliding_window") is True else None
    if kind == "mixtral":
        return config.get("sliding_window")
    return config.get("sliding_window", WINDOW) if kind in ("mistral", "ministral") else None


def _shortest(by_layer: tuple[int, ...]) -> tuple[int, ...]:
    """The period that repeats."""
    periods = range(1, len(by_layer) + 1)
    return next(by_layer[:n] for n in periods if all(window == by_layer[i % n] for i, window in enumerate(by_layer)))


def _number(facts: Json, name: str, default: float | None, where: str) -> float:
    value = facts.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise LlamaError(f"{where}: {name} is {value!r}, and must be a number above 0")
    return float(value)
