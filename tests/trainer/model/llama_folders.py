"""Small models of the family, and their folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from gristmill.trainer.model.llama import save_llama
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.shapes import DecoderShape, Mixture, RopeScaling

SCALING = RopeScaling(factor=8.0, low=1.0, high=4.0, context=16)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def tiny(**changes: Any) -> DecoderShape:
    sizes = {"vocabulary": 50, "hidden": 32, "layers": 3, "heads": 4, "kv_heads": 2, "mlp": 40, "context": 64}
    return DecoderShape(**{**sizes, **changes})


SHAPES = {
    "llama 2": tiny(kv_heads=4, rope_base=10_000.0),
    "llama 3": tiny(rope_base=500_000.0),
    "llama 3.1": tiny(rope_base=500_000.0, rope_scaling=SCALING),
    "smollm2": tiny(heads=3, kv_heads=1, hidden=24, tied=True, rope_base=100_000.0),
    "heads of their own size": tiny(head_size=12),
    "a width that heads do not share": tiny(hidden=30, head_size=8),
    "mistral": tiny(windows=(5,)),
    "ministral": tiny(windows=(0, 4), tied=True),
    "qwen3": tiny(qk_norm="head", head_size=12, windows=(0, 4, 4)),
    "mixtral": tiny(experts=Mixture(4, 2, 24), windows=(6,)),
    "qwen3_moe": tiny(experts=Mixture(5, 3, 24, normalised=False, dense=(1,)), qk_norm="head", head_size=12),
    "olmoe": tiny(experts=Mixture(6, 2, 24, normalised=False), qk_norm="width", tied=True),
    "glm4_moe": tiny(experts=Mixture(6, 2, 24, "sigmoid", shared=2, dense=(0,)), qk_norm="head"),
    "glm4_moe of sparse layers": tiny(experts=Mixture(4, 2, 24, "sigmoid")),
}


def decoder(shape: DecoderShape, seed: int = 0) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(shape)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if weight.ndim == 1 else noise * 1.2 / math.sqrt(weight.shape[-1]))
        for router in model.routers:
            if router.bias is not None:
                router.bias.copy_(0.2 * torch.randn(router.bias.shape, generator=generator))
    return model


def saved(folder: Path, shape: DecoderShape, dtype: torch.dtype = torch.float32, **how: Any) -> Decoder:
    model = decoder(shape).to(dtype)
    save_llama(model.state_dict(), shape, folder, **how)
    return model


def tokens_of(length: int = 30) -> list[int]:
    return torch.randint(0, 50, (length,), generator=torch.Generator().manual_seed(5)).tolist()


def changed(folder: Path, **changes: Any) -> None:
    """config.json with keys set, or left out where None is the function `leave`."""
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        if value is leave:
            config.pop(key, None)
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def leave() -> None:
    """Stands for a key that is not there."""
