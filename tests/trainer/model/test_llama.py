"""Folders of the Llama family: what transformers computes from them is computed here, both ways; what is written is
whole."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from gristmill.trainer.model import llama
from gristmill.trainer.model.llama import LlamaError, load_llama, model_folder, save_llama
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import pack_documents
from tests.trainer.model.llama_folders import LLAMA3, SHAPES, changed, decoder, leave, saved, tiny, tokens_of


def theirs(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    transformers = pytest.importorskip("transformers")
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    return model.eval()


def same_answers(ours: Decoder, theirs: Any) -> None:
    tokens = tokens_of()
    batch = pack_documents([tokens])
    with torch.no_grad():
        answer = theirs(torch.tensor([tokens]), labels=torch.tensor([tokens]))
        logits = ours.logits(batch)
        assert logits.std() > 0.5
        torch.testing.assert_close(logits, answer.logits[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.loss(batch) / batch.counted, answer.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_computes_the_same_from_our_folder(name: str, tmp_path: Path) -> None:
    ours = saved(tmp_path / "model", SHAPES[name])
    model = theirs(tmp_path / "model")
    kinds = {"a width that heads do not share": "mistral", "glm4_moe of sparse layers": "glm4_moe"}
    known = ("mistral", "ministral", "qwen3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe")
    assert model.config.model_type == kinds.get(name, name if name in known else "llama")
    same_answers(ours, model)
    assert load_llama(tmp_path / "model").shape == SHAPES[name]


def configuration(name: str) -> Any:
    transformers = pytest.importorskip("transformers")
    shape = SHAPES[name]
    sizes = {
        "vocab_size": 50, "hidden_size": shape.hidden, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": shape.tied,
        "head_dim": shape.head_size, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.2,
    }  # fmt: skip
    rope = {"rope_type": "default"} if name != "llama 3.1" else dict(LLAMA3)
    rope["rope_theta"] = shape.rope_base
    if name == "mistral":
        return transformers.MistralConfig(**sizes, rope_parameters=rope, sliding_window=5)
    if name == "ministral":
        kinds = ["full_attention", "sliding_attention", "full_attention"]
        return transformers.MinistralConfig(**sizes, rope_parameters=rope, sliding_window=4, layer_types=kinds)
    sparse = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "rope_parameters": rope}
    if name == "qwen3":
        kinds = ["full_attention", "sliding_attention", "sliding_attention"]
        windows = {"use_sliding_window": True, "sliding_window": 4, "layer_types": kinds}
        return transformers.Qwen3Config(**sizes, rope_parameters=rope, **windows)
    if name == "mixtral":
        sizes["intermediate_size"] = 24
        return transformers.MixtralConfig(**sizes, **sparse, num_local_experts=4, sliding_window=6)
    if name == "qwen3_moe":
        sparse |= {"num_experts_per_tok": 3, "mlp_only_layers": [1]}
        return transformers.Qwen3MoeConfig(**sizes, **sparse, num_experts=5)
    if name == "olmoe":
        sizes["intermediate_size"] = 24
        return transformers.OlmoeConfig(**sizes, **sparse, num_experts=6)
    if name == "glm4_moe":
        rope["partial_rotary_factor"] = 1.0
        sparse |= {"partial_rotary_factor": 1.0}  # from which some versions of transformers take it
        sparse |= {"n_shared_experts": 2, "first_k_dense_replace": 1, "use_qk_norm": True, "n_routed_experts": 6}
        return transformers.Glm4MoeConfig(**sizes, **sparse)
    return transformers.LlamaConfig(**sizes, rope_parameters=rope)


FROM_THEM = [name for name in SHAPES if name not in ("a width that heads do not share", "glm4_moe of sparse layers")]


@pytest.mark.parametrize("name", FROM_THEM)
def test_we_compute_the_same_from_a_folder_of_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configuration(name), attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = load_llama(tmp_path)
    assert ours.shape == SHAPES[name]
    same_answers(ours, model)


def test_positions_are_read_as_they_were_and_are_told(tmp_path: Path) -> None:
    shape = SHAPES["llama 3.1"]
    for way in (
        {"rope_parameters": leave},
        {"rope_scaling": leave, "rope_theta": leave},
        {
            "rope_parameters": leave,
            "rope_scaling": {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"},
        },
    ):
        saved(tmp_path, shape)
        changed(tmp_path, **way)
        ours = load_llama(tmp_path)
        assert ours.shape == shape
        same_answers(ours, theirs(tmp_path))
    changed(tmp_path, rope_scaling=leave, rope_theta=leave)
    assert load_llama(tmp_path).shape.rope_scaling is None
    assert load_llama(tmp_path).shape.rope_base == 10_000.0


def test_what_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    shape = tiny(kv_heads=4, context=2048, norm_eps=1e-6)
    saved(tmp_path, shape)
    keys = """num_key_value_heads max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters head_dim hidden_act
        tie_word_embeddings attention_bias mlp_bias bos_token_id eos_token_id"""
    absent = dict.fromkeys(re.split(r"\s+", keys), leave)
    changed(tmp_path, **absent)
    ours = load_llama(tmp_path)
    assert ours.shape == shape
    same_answers(ours, theirs(tmp_path))
    changed(tmp_path, model_type="mistral", num_key_value_heads=4, sliding_window=leave)
    assert load_llama(tmp_path).shape.windows == (4096,)
    changed(tmp_path, sliding_window=None)
    assert load_llama(tmp_path).shape.windows == ()


def test_bf16_differs_by_rounding_alone(tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3.1"], torch.bfloat16)
    ours, model, exact = (
        load_llama(tmp_path, dtype=torch.bfloat16),
        theirs(tmp_path, torch.bfloat16),
        load_llama(tmp_path),
    )
    assert model.dtype == ours.embedding.weight.dtype == torch.bfloat16
    batch = pack_documents([tokens_of()])
    with torch.no_grad():
        truth = exact.logits(batch)
        of_ours = (ours.logits(batch).float() - truth).square().mean().sqrt()
        of_theirs = (model(batch.ids_T[None]).logits[0].float() - truth).square().mean().sqrt()
    assert 0 < of_ours < 1.25 * of_theirs < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("largest_file", [1 << 40, 9_000])
@pytest.mark.parametrize("name", ["smollm2", "ministral"])
def test_weights_come_back_bit_for_bit(name: str, largest_file: int, dtype: torch.dtype, tmp_path: Path) -> None:
    shape = SHAPES[name]
    model = saved(tmp_path / "a", shape, dtype, largest_file=largest_file)
    back = load_llama(tmp_path / "a", dtype=dtype)
    assert back.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True))
    save_llama(back.state_dict(), back.shape, tmp_path / "b", largest_file=largest_file)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)


def test_large_models_are_cut_into_files_that_an_index_lists(tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"], largest_file=9_000)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 5 and not (tmp_path / "model.safetensors").exists()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found = {path.name: load_file(path) for path in files}
    assert index["weight_map"] == {name: file for file, tensors in found.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(
        tensor.nbytes for tensors in found.values() for tensor in tensors.values()
    )
    assert all(sum(t.nbytes for t in tensors.values()) <= 9_000 for tensors in found.values())
    for path in files:
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}


def test_a_folder_of_theirs_is_written_back_as_it_was(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(configuration("llama 3.1"))
    model.save_pretrained(tmp_path / "theirs")
    ours = load_llama(tmp_path / "theirs")
    save_llama(ours.state_dict(), ours.shape, tmp_path / "ours")
    before, after = (load_file(tmp_path / who / "model.safetensors") for who in ("theirs", "ours"))
    assert before.keys() == after.keys() and len(before) == 3 + 3 * 9
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_loading_leaves_random_numbers_alone_and_weights_can_learn(tmp_path: Path) -> None:
    saved(tmp_path, SHAPES["llama 3"])
    before = torch.get_rng_state()
    model = load_llama(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    model.loss(pack_documents([tokens_of()])).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
    assert all(not weight.is_meta for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("blocks.0.out.weight", None, r"blocks\.0\.out\.weight: missing among the weights"),
        ("extra", (2, 2), "extra: not a weight of this shape"),
        ("norm.weight", (31,), r"norm\.weight is 31, and by the shape it must be 32"),
        ("blocks.1.qkv.weight", (32, 64), r"blocks\.1\.qkv\.weight is 32 x 64, and by the shape it must be 64 x 32"),
    ],
)
def test_weights_of_another_shape_are_not_written(
    name: str, shape: tuple[int, ...] | None, says: str, tmp_path: Path
) -> None:
    weights = decoder(SHAPES["llama 3"]).state_dict()
    if shape is None:
        del weights[name]
    else:
        weights[name] = torch.zeros(shape)
    with pytest.raises(LlamaError, match=says):
        save_llama(weights, SHAPES["llama 3"], tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_windows_that_no_family_has_are_not_written(tmp_path: Path) -> None:
    shape = tiny(windows=(3, 5))
    with pytest.raises(LlamaError, match=r"windows of several sizes \(3, 5\)"):
        save_llama(decoder(shape).state_dict(), shape, tmp_path / "model")


def test_a_folder_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = saved(tmp_path / "model", SHAPES["llama 3"], largest_file=9_000)
    other = decoder(SHAPES["llama 3"], seed=9)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(llama, "_write_json", full)
        with pytest.raises(OSError, match="no space"):
            save_llama(other.state_dict(), other.shape, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert torch.equal(load_llama(tmp_path / "model").norm.weight, first.norm.weight)
    save_llama(other.state_dict(), other.shape, tmp_path / "model")
    assert torch.equal(load_llama(tmp_path / "model").norm.weight, other.norm.weight)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    model = decoder(SHAPES["llama 3"])
    with pytest.raises(LlamaError, match="there is something else here already"):
        save_llama(model.state_dict(), model.shape, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def tokenizer_folder(folder: Path, config: bool) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        about = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|end|>",
            "bos_token": {"__type": "AddedToken", "content": "<|begin|>"},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize("config", [True, False])
def test_the_tokenizer_comes_along(config: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tokenizer_folder(tmp_path / "tokenizer", config)
    shape = tiny(vocabulary=258)
    for given in (folder, folder / "tokenizer.json"):
        saved(tmp_path / "model", shape, tokenizer=given)
        assert (tmp_path / "model" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
        about = json.loads((tmp_path / "model" / "config.json").read_text())
        assert (about["bos_token_id"], about["eos_token_id"]) == ((256, 257) if config else (None, None))
    from tokenizers import Tokenizer

    text = " Ünïcode  and <|end|> of\ttext\n"
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")(text)["input_ids"]
    assert ids == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids and len(ids) > 20
    # the model's own folder may be where the tokenizer lies
    saved(tmp_path / "model", shape, tokenizer=tmp_path / "model")
    assert (tmp_path / "model" / "tokenizer.json").is_file()


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a")
    for given in (tmp_path, tmp_path / "vocab.txt"):
        with pytest.raises(LlamaError, match=r"a tokenizer is a file named tokenizer\.json, or a folder with one"):
            saved(tmp_path / "model", SHAPES["llama 3"], tokenizer=given)


def test_the_hub_gives_configuration_safetensors_and_tokenizer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "there", SHAPES["llama 3"])
    (tmp_path / "there" / "pytorch_model.bin").write_bytes(b"pickle")
    asked: list[Any] = []

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        if name == "owner/gone":
            raise OSError("404")
        asked.append((name, revision))
        (tmp_path / "here").mkdir(exist_ok=True)
        for path in (tmp_path / "there").iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copy(path, tmp_path / "here")
        return str(tmp_path / "here")

    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert torch.equal(load_llama("owner/model-1.5B").norm.weight, model.norm.weight)
    assert model_folder("owner/model@refs/pr/1") == tmp_path / "here"
    assert asked == [("owner/model-1.5B", None), ("owner/model", "refs/pr/1")]
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(LlamaError, match="owner/gone: no folder here, and the Hugging Face hub did not give it: 404"):
        load_llama("owner/gone")
    for odd in ("../owner/model", "/nowhere/model", "model", "owner/model/more"):
        with pytest.raises(LlamaError, match="there is no such folder, nor is it the name"):
            load_llama(odd)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(LlamaError, match="pip install huggingface_hub"):
        load_llama("owner/model")
