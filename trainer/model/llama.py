"""Decoders from and to Hugging Face folders of the Llama family: `config.json`, safetensors in one file or several, the
tokenizer beside them.

Needs no transformers. Files are memory-mapped and copied tensor by tensor to the device of the weights, so memory never
holds a model twice. Queries, keys and values, and the two inner matrices of the SwiGLU, are separate tensors there and
one matrix each here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gristmill.trainer.model.attention import Attend, attend
from gristmill.trainer.model.llama_config import LlamaError, config_of, family_of, shape_of
from gristmill.trainer.model.llama_files import (
    CONFIG,
    INDEX,
    ONE_FILE,
    TOKENIZER,
    TOKENIZER_FILES,
    Stored,
    check_place,
    model_folder,
    open_tensors,
    read_json,
    write_folder,
)
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.shapes import DecoderShape, Mixture

LARGEST_FILE = 5_000_000_000  # bytes, as transformers cuts
Names = tuple[str, str, str]
NAMES: Names = ("gate_proj", "up_proj", "down_proj")
FLOATS = ("F64", "F32", "BF16", "F16")
NOT_WEIGHTS = re.compile(r".*\.rotary_emb\.inv_freq")  # old folders store what follows from config.json
SIGNS = {  # of tensors that a decoder of this family does not have
    r".*(experts?|router|gate)\.\d*.*": "experts, and config.json speaks of none here",
    r".*\.[qk]_norm\..*": "normed queries and keys, and config.json speaks of none",
    r".*\.bias": "biases are not read here",
    r".*(_scale|_scale_inv|zeros|scales|absmax|lora_.*)": "quantised or adapted weights are not read here",
}


class TensorMapping(NamedTuple):
    """One tensor of a Hugging Face folder, and which rows of one of our tensors it is; of an expert's where ours holds
    all experts."""

    theirs: str
    ours: str
    first: int
    shape: tuple[int, ...]
    expert: int | None = None

    def of(self, tensor: Tensor) -> Tensor:
        if 0 in self.shape:  # shared experts of a folder that has none: transformers wants tensors without numbers
            return tensor.new_empty(self.shape)
        tensor = tensor if self.expert is None else tensor[self.expert]
        return tensor[self.first : self.first + self.shape[0]]

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of our tensor, if this is the last of its parts."""
        rows = (self.first + self.shape[0], *self.shape[1:])
        return rows if self.expert is None else (self.expert + 1, *rows)


def load_llama(
    folder_or_hub_id: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    attend: Attend = attend,
) -> Decoder:
    """The decoder of a folder, or of `owner/name` or `owner/name@revision` on the Hugging Face hub."""
    folder = model_folder(folder_or_hub_id)
    shape = shape_of(read_json(folder / CONFIG), str(folder / CONFIG))
    with open_tensors(folder) as stored:
        mappings = list(tensor_mappings(shape))
        _check(stored, {mapping.theirs: mapping for mapping in mappings}, shape, folder)
        with torch.device("meta"):
            model = Decoder(shape, attend)
        model = model.to(dtype).to_empty(device=device)
        tensors = model.state_dict()
        for mapping in mappings:
            _fill(mapping.of(tensors[mapping.ours]), stored[mapping.theirs])
        for router in model.routers:
            router.reset()
    return model


def save_llama(
    weights: Mapping[str, Tensor],
    shape: DecoderShape,
    folder: Path,
    tokenizer: Path | None = None,
    largest_file: int = LARGEST_FILE,
) -> None:
    """Writes what transformers reads as the family that has such a shape (`gristmill.trainer.model.llama_config`),
    whole or not at all.

    `weights` by a Decoder's names, in the dtype to be written. `tokenizer` is a `tokenizer.json` or the folder that
    holds it.
    """
    mappings = list(tensor_mappings(shape))
    _check_weights(weights, mappings)
    bos, eos = _special_tokens(tokenizer)
    config = config_of(shape, str(weights["embedding.weight"].dtype).removeprefix("torch."), bos, eos)

    def write(draft: Path) -> None:
        _write_weights(draft, weights, mappings, largest_file)
        _write_json(draft / CONFIG, config)
        if tokenizer is not None:
            _copy_tokenizer(tokenizer, draft)

    write_folder(Path(folder), write)


def check_save(shape: DecoderShape, folder: Path, tokenizer: Path | None = None) -> None:
    """Refuses what `save_llama` would refuse after the training: a shape that no family can express, no tokenizer at
    that path, a folder of something else."""
    config_of(shape, "float32", *_special_tokens(tokenizer))
    check_place(Path(folder))


def tensor_mappings(shape: DecoderShape) -> Iterator[TensorMapping]:
    """All tensors of a folder, in the order in which they are written."""
    C, D = shape.hidden, shape.head_size
    q, k = shape.heads * D, shape.kv_heads * D
    kind = family_of(shape)
    yield TensorMapping("model.embed_tokens.weight", "embedding.weight", 0, (shape.vocabulary, C))
    for layer in range(shape.layers):
        theirs, ours = f"model.layers.{layer}.", f"blocks.{layer}."
        yield TensorMapping(theirs + "input_layernorm.weight", ours + "attention_norm.weight", 0, (C,))
        yield TensorMapping(theirs + "self_attn.q_proj.weight", ours + "qkv.weight", 0, (q, C))
        yield TensorMapping(theirs + "self_attn.k_proj.weight", ours + "qkv.weight", q, (k, C))
        yield TensorMapping(theirs + "self_attn.v_proj.weight", ours + "qkv.weight", q + k, (k, C))
        yield TensorMapping(theirs + "self_attn.o_proj.weight", ours + "out.weight", 0, (C, q))
        yield TensorMapping(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight", 0, (C,))
        for role, numbers in zip("qk", shape.qk_norm_widths, strict=True):
            if numbers:
                yield TensorMapping(
                    theirs + f"self_attn.{role}_norm.weight", ours + f"{role}_norm.weight", 0, (numbers,)
                )
        if (experts := shape.experts_of(layer)) is None:
            yield from _mlp(theirs + "mlp.", ours, ".weight", shape.mlp, C)
        else:
            yield from _experts(theirs, ours, experts, C, kind)
    yield TensorMapping("model.norm.weight", "norm.weight", 0, (C,))
    if not shape.tied:
        yield TensorMapping("lm_head.weight", "head.weight", 0, (shape.vocabulary, C))


def _mlp(
    theirs: str, ours: str, weight: str, M: int, C: int, expert: int | None = None, names: Names = NAMES
) -> Iterator[TensorMapping]:
    gate, up, down = (theirs + name + ".weight" for name in names)
    yield TensorMapping(gate, ours + "gate_up" + weight, 0, (M, C), expert)
    yield TensorMapping(up, ours + "gate_up" + weight, M, (M, C), expert)
    yield TensorMapping(down, ours + "down" + weight, 0, (C, M), expert)


def _experts(theirs: str, ours: str, experts: Mixture, C: int, kind: str) -> Iterator[TensorMapping]:
    E, mixtral = experts.number, kind == "mixtral"
    theirs += "block_sparse_moe." if mixtral else "mlp."
    yield TensorMapping(theirs + "gate.weight", ours + "router.weight", 0, (E, C))
    if experts.router == "sigmoid":
        yield TensorMapping(theirs + "gate.e_score_correction_bias", ours + "router.bias", 0, (E,))
    for expert in range(E):
        names = ("w1", "w3", "w2") if mixtral else NAMES
        yield from _mlp(f"{theirs}experts.{expert}.", ours + "experts.", "", experts.width, C, expert, names)
    if experts.shared:
        yield from _mlp(theirs + "shared_experts.", ours, ".weight", experts.shared * experts.width, C)
    elif experts.router == "sigmoid":
        for name, shape in zip(NAMES, ((0, C), (0, C), (C, 0)), strict=True):
            yield TensorMapping(f"{theirs}shared_experts.{name}.weight", ours + "router.weight", 0, shape)


def _check(
    stored: Mapping[str, Stored], expected: Mapping[str, TensorMapping], shape: DecoderShape, folder: Path
) -> None:
    for name in sorted(stored.keys() - expected.keys()):
        if shape.tied and name == "lm_head.weight":
            _check_tied(stored[name], stored.get("model.embed_tokens.weight"))
        elif not NOT_WEIGHTS.fullmatch(name):
            reasons = [reason for sign, reason in SIGNS.items() if re.fullmatch(sign, name)] or [
                "it has no place in a decoder of this shape"
            ]
            raise LlamaError(f"{stored[name].path}: {name}: {reasons[0]}")
    for name, mapping in expected.items():
        if name not in stored:
            hint = (
                "; if the head is the embedding, config.json says tie_word_embeddings: true"
                if name == "lm_head.weight"
                else ""
            )
            raise LlamaError(f"{folder}: the weights have no {name}{hint}")
        tensor = stored[name]
        if tensor.shape != mapping.shape:
            raise LlamaError(
                f"{tensor.path}: {name} is {_dimensions(tensor.shape)}, and by {CONFIG} it must be "
                f"{_dimensions(mapping.shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise LlamaError(f"{tensor.path}: {name} is stored as {tensor.dtype}; read are {', '.join(FLOATS)}")


def _check_tied(head: Stored, embedding: Stored | None) -> None:
    if embedding is None or embedding.shape != head.shape or not torch.equal(embedding.tensor(), head.tensor()):
        raise LlamaError(
            f"{head.path}: tie_word_embeddings is true, but lm_head.weight is not the embedding; set it to false to "
            "keep both"
        )


def _check_weights(weights: Mapping[str, Tensor], mappings: list[TensorMapping]) -> None:
    wanted: dict[str, tuple[int, ...]] = {}
    for mapping in mappings:
        if 0 not in mapping.shape:
            wanted[mapping.ours] = mapping.whole
    if unexpected := sorted(weights.keys() ^ wanted.keys()):
        raise LlamaError(
            f"{unexpected[0]}: "
            f"{'not a weight of this shape' if unexpected[0] in weights else 'missing among the weights'}"
        )
    for name, tensor in weights.items():
        if tuple(tensor.shape) != wanted[name]:
            raise LlamaError(
                f"{name} is {_dimensions(tuple(tensor.shape))}, and by the shape it must be {_dimensions(wanted[name])}"
            )


def _dimensions(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape) or "a number"


def _fill(target: Tensor, stored: Stored) -> None:
    target.copy_(stored.tensor())
    if not bool(torch.isfinite(target).all()):
        raise LlamaError(
            f"{stored.path}: {stored.name} has values that are not finite as {str(target.dtype).removeprefix('torch.')}"
        )


def _write_weights(
    draft: Path, weights: Mapping[str, Tensor], mappings: list[TensorMapping], largest_file: int
) -> None:
    from safetensors.torch import save_file

    files: list[list[TensorMapping]] = [[]]
    room = largest_file
    for mapping in mappings:
        size = mapping.of(weights[mapping.ours]).nbytes
        if files[-1] and size > room:
            files.append([])
            room = largest_file
        files[-1].append(mapping)
        room -= size
    names = (
        [ONE_FILE]
        if len(files) == 1
        else [f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(1, len(files) + 1)]
    )
    for name, inside in zip(names, files, strict=True):
        tensors = {
            mapping.theirs: mapping.of(weights[mapping.ours].detach()).to("cpu", copy=True).contiguous()
            for mapping in inside
        }
        save_file(tensors, draft / name, metadata={"format": "pt"})
    if len(files) > 1:
        total = sum(tensor.nbytes for tensor in weights.values())
        weight_map = {mapping.theirs: name for name, inside in zip(names, files, strict=True) for mapping in inside}
        _write_json(draft / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _copy_tokenizer(tokenizer: Path, draft: Path) -> None:
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, draft / name)
    settings = draft / "tokenizer_config.json"
    if not settings.exists():  # else transformers takes it for the tokenizer of Llama 2 and splits text in another way
        _write_json(settings, {"tokenizer_class": "PreTrainedTokenizerFast"})


def _special_tokens(tokenizer: Path | None) -> tuple[int | None, int | None]:
    """The tokens that begin and end a text, where the tokenizer's settings name them."""
    if tokenizer is None:
        return None, None
    path = tokenizer / TOKENIZER if tokenizer.is_dir() else tokenizer
    if path.name != TOKENIZER or not path.is_file():
        raise LlamaError(f"{tokenizer}: a tokenizer is a file named {TOKENIZER}, or a folder with one")
    settings_path = path.parent / "tokenizer_config.json"
    if not settings_path.is_file():
        return None, None
    from tokenizers import Tokenizer

    settings, vocabulary = read_json(settings_path), Tokenizer.from_file(str(path))

    def id_of(role: str) -> int | None:
        token = settings.get(role) if isinstance(settings, dict) else None
        token = token.get("content") if isinstance(token, dict) else token
        token_id: int | None = vocabulary.token_to_id(token) if isinstance(token, str) else None
        return token_id

    return id_of("bos_token"), id_of("eos_token")
