"""Folders that are not read, and damaged ones, say what is wrong and where."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gristmill.trainer.model.llama import LlamaError, load_llama, save_llama
from tests.trainer.model.llama_folders import LLAMA3, SHAPES, changed, decoder, leave, saved

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "qwen2": (
        {"model_type": "qwen2"},
        "model_type 'qwen2' is not read here: its queries, keys and values have biases; known are llama",
    ),
    "norms that are not there": ({"model_type": "qwen3", "head_dim": 8}, r"the weights have no .*q_norm\.weight"),
    "experts that are not there": ({"model_type": "mixtral"}, r"block_sparse_moe\.gate\.weight|mlp\.down_proj\.weight"),
    "experts of deepseek": ({"model_type": "deepseek_v3"}, "mixture of experts of another kind"),
    "experts of llama": ({"num_local_experts": 8}, "num_local_experts is set: it is a mixture of experts"),
    "groups of experts": (
        {"model_type": "glm4_moe", "partial_rotary_factor": 1.0, "n_group": 2},
        "n_group 2 is not read",
    ),
    "scaled experts": (
        {"model_type": "glm4_moe", "partial_rotary_factor": 1.0, "routed_scaling_factor": 2.5},
        r"routed_scaling_factor 2\.5 is not read here",
    ),
    "positions of glm": ({"model_type": "glm4_moe"}, "only a part of each head has positions"),
    "experts by halves": (
        {"model_type": "qwen3_moe", "num_experts": 0},
        "num_experts is 0, and must be a whole number",
    ),
    "more than there are": (
        {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 5},
        r"experts: active 5 is more than the 4 experts",
    ),
    "layers of experts": (
        {"model_type": "qwen3_moe", "mlp_only_layers": 3},
        "mlp_only_layers is 3, and must be a list",
    ),
    "smollm3": ({"model_type": "smollm3"}, "some of its layers know no positions"),
    "unknown": ({"model_type": "mamba"}, "model_type 'mamba' is not read here; known"),
    "no family": ({"model_type": leave}, "model_type None is not read here"),
    "biases": ({"attention_bias": True}, "attention_bias is set: its attention has biases"),
    "biases inside": ({"mlp_bias": True}, "mlp_bias is set"),
    "quantised": ({"quantization_config": {"bits": 4}}, "its weights are quantised"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not read here, only silu"),
    "yarn": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "positions scaled by 'yarn' are not read here"),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "positions scaled by 'linear'"),
    "dynamic": (
        {"rope_scaling": None, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        "positions scaled by 'dynamic'",
    ),
    "by layer": ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between layers"),
    "in part": ({"partial_rotary_factor": 0.5}, "only a part of each head has positions"),
    "scaling cut short": ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is None"),
    "scaling upside down": (
        {"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}},
        r"high_freq_factor 0\.5 must be above",
    ),
    "a width of text": ({"hidden_size": "32"}, "hidden_size is '32', and must be a whole number above 0"),
    "no layers": ({"num_hidden_layers": leave}, "num_hidden_layers is None"),
    "heads that do not share": ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key-value heads equally"),
    "eps": ({"rms_norm_eps": 0}, "rms_norm_eps is 0, and must be a number above 0"),
    "more layers": ({"num_hidden_layers": 4}, r"the weights have no model\.layers\.3\.input_layernorm\.weight"),
    "far more layers": (
        {"num_hidden_layers": 1_000_000_000},
        "num_hidden_layers is 1,000,000,000; no decoder with more than 10,000",
    ),
    "fewer layers": (
        {"num_hidden_layers": 2},
        r"model\.layers\.2\.[a-z_.]+: it has no place in a decoder of this shape",
    ),
    "another vocabulary": (
        {"vocab_size": 51},
        r"model\.embed_tokens\.weight is 50 x 32, and by config\.json it must be 51 x 32",
    ),
    "more key heads": (
        {"num_key_value_heads": 4},
        r"k_proj\.weight is 16 x 32, and by config\.json it must be 32 x 32",
    ),
    "tied to another": ({"tie_word_embeddings": True}, r"lm_head\.weight is not the embedding"),
    "a family of lists": ({"model_type": ["llama"]}, "model_type .* is not read here"),
    "layers that are a number": ({"layer_types": 3}, "layer_types is 3, and must be a list"),
    "eps beyond all": ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000.*, and must be a number above 0"),
    "windows of llama": (
        {"layer_types": ["sliding_attention"] * 3},
        "llama cannot have layer_types other than full_attention",
    ),
    "windows of nothing": (
        {"model_type": "ministral", "sliding_window": None, "layer_types": ["sliding_attention"] * 3},
        "no sliding_window",
    ),
    "windows by halves": ({"model_type": "ministral", "layer_types": ["full_attention"]}, "for each of the 3 layers"),
    "window": ({"model_type": "mistral", "sliding_window": -1}, "sliding_window is -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_says_why(name: str, tmp_path: Path) -> None:
    changes, says = REFUSED[name]
    saved(tmp_path, SHAPES["llama 3"])
    changed(tmp_path, **changes)
    with pytest.raises(LlamaError, match=says) as caught:
        load_llama(tmp_path)
    assert str(tmp_path) in str(caught.value)


def weights_changed(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def of(folder: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return of


def poisoned(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = math.nan


LAYER = "model.layers.1."
WRONG_WEIGHTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = {
    "bias": (
        lambda t: t.update({LAYER + "self_attn.q_proj.bias": torch.ones(32)}),
        r"q_proj\.bias: biases are not read here",
    ),
    "norm": (
        lambda t: t.update({LAYER + "self_attn.q_norm.weight": torch.ones(8)}),
        "normed queries and keys, and config.json speaks of none",
    ),
    "expert": (
        lambda t: t.update({LAYER + "mlp.experts.0.up_proj.weight": torch.ones(8)}),
        "experts, and config.json speaks of none",
    ),
    "other": (
        lambda t: t.update({"score.weight": torch.ones(2, 32)}),
        r"score\.weight: it has no place in a decoder of this shape",
    ),
    "missing": (
        lambda t: t.pop(LAYER + "mlp.up_proj.weight"),
        r"the weights have no model\.layers\.1\.mlp\.up_proj\.weight",
    ),
    "no head": (
        lambda t: t.pop("lm_head.weight"),
        r"no lm_head\.weight; if the head is the embedding, config\.json says tie_word_embeddings",
    ),
    "whole numbers": (
        lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}),
        "is stored as I8; read are F64",
    ),
    "not a number": (poisoned, r"up_proj\.weight has values that are not finite as float32"),
}


@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_weights_that_do_not_fit_are_named(name: str, tmp_path: Path) -> None:
    change, says = WRONG_WEIGHTS[name]
    saved(tmp_path, SHAPES["llama 3"])
    weights_changed(change)(tmp_path)
    with pytest.raises(LlamaError, match=says):
        load_llama(tmp_path)


def test_leftovers_of_old_folders_do_no_harm(tmp_path: Path) -> None:
    model = saved(tmp_path, SHAPES["smollm2"])
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": model.embedding.weight.detach(),
    }
    weights_changed(lambda tensors: tensors.update(extra))(tmp_path)
    assert torch.equal(load_llama(tmp_path).embedding.weight, model.embedding.weight)


def test_bf16_that_overflows_fp16_is_refused(tmp_path: Path) -> None:
    model = decoder(SHAPES["llama 3"])
    model.norm.weight.data[0] = 1e6
    save_llama(model.state_dict(), model.shape, tmp_path)
    assert load_llama(tmp_path).norm.weight[0] == 1e6
    with pytest.raises(LlamaError, match="not finite as float16"):
        load_llama(tmp_path, dtype=torch.float16)


@pytest.mark.parametrize("kept", [0, 5, 100, 3000, -1])
def test_a_file_cut_off_is_named(kept: int, tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"])
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(LlamaError, match=r"model\.safetensors: damaged or cut off \("):
        load_llama(tmp_path)


def test_a_damaged_beginning_is_named(tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"])
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])
    with pytest.raises(LlamaError, match="damaged or cut off"):
        load_llama(tmp_path)


def test_a_missing_file_of_several_is_named(tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"], largest_file=9_000)
    gone = sorted(tmp_path.glob("*.safetensors"))[2]
    gone.unlink()
    with pytest.raises(LlamaError, match=rf"{gone.name}: missing; model\.safetensors\.index\.json lists it"):
        load_llama(tmp_path)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (
            "../model.safetensors",
            r"is said to be in '\.\./model\.safetensors'; files are \*\.safetensors of the same folder",
        ),
        ("/etc/passwd", "files are"),
        ("pytorch_model-00001.bin", "can run any code"),
        (3, "files are"),
        ("a file without it", r"has no lm_head\.weight, which model\.safetensors\.index\.json says it has"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(place: Any, says: str, tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"], largest_file=9_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = (
        index["weight_map"]["model.embed_tokens.weight"] if place == "a file without it" else place
    )
    path.write_text(json.dumps(index))
    with pytest.raises(LlamaError, match=says):
        load_llama(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": {}}', "[" * 100_000])
def test_an_index_that_says_nothing_is_refused(text: str, tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"], largest_file=9_000)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(LlamaError, match=r"index\.json"):
        load_llama(tmp_path)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"])
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(LlamaError, match=r"it has pytorch_model\.bin; weights that are pickled .* can run any code"):
        load_llama(tmp_path)


def test_what_is_no_model_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(LlamaError, match=r"no config\.json; a model is a folder with"):
        load_llama(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LlamaError, match="cannot be read as JSON"):
        load_llama(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(LlamaError, match="not a JSON object"):
        load_llama(tmp_path)
    with pytest.raises(LlamaError, match="there is no such folder, nor is it the name of a model"):
        load_llama(tmp_path / "nowhere")
