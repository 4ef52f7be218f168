"""Embeddings by an encoder of the BERT or ModernBERT family, from its folder: on GPUs in bf16, on CPUs in float32.

Which token is pooled says `1_Pooling/config.json`, as sentence-transformers writes it; without one, config.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor, nn

from gristmill.classifiers.artifact import read_json
from gristmill.classifiers.card import JudgeError
from gristmill.classifiers.neural.encoder import Encoder, PackedTexts
from gristmill.classifiers.neural.encoder_weights import read_encoder
from gristmill.classifiers.neural.fast_linear import fuse, prepare_inference
from gristmill.classifiers.neural.network import check_fit
from gristmill.classifiers.neural.scoring import Pace, in_order, run_steps, steps_of
from gristmill.classifiers.neural.text_tokens import Ahead, TextTokenizer, read_tokenizer, tokenise
from gristmill.kernels.base.types import Array
from gristmill.trainer.step.precision import usual_precision

ON_CPU = Pace(step_tokens=4096, window_steps=8, under_way=0)


@dataclass(frozen=True)
class EncoderEmbedding:
    """An encoder as it infers on its device."""

    encoder: Encoder
    tokenizer: TextTokenizer
    device: torch.device

    @property
    def width(self) -> int:
        return self.encoder.shape.width

    def vectors(self, texts: pa.Array) -> Array:
        """float32_NW."""
        pace = Pace() if self.device.type == "cuda" else ON_CPU
        steps = steps_of(tokenise([texts], self.tokenizer, Ahead()), pace)
        results = run_steps(steps, self._answer, self.device, pace, self.tokenizer.most)
        return in_order(results, len(texts), self.width)

    @torch.inference_mode()
    def _answer(self, packed: PackedTexts) -> Tensor:
        vectors: Tensor = self.encoder(packed).float()
        return vectors


def read_embedding_encoder(folder: Path, most: int, device: str) -> EncoderEmbedding:
    """JudgeError where the folder is no encoder."""
    encoder, _ = read_encoder(folder)
    shape = replace(encoder.shape, pooler="none")
    pooling = folder / "1_Pooling" / "config.json"
    if pooling.is_file():
        facts = read_json(pooling)
        mean, cls = (bool(facts.get(f"pooling_mode_{name}")) for name in ("mean_tokens", "cls_token"))
        if mean == cls:
            raise JudgeError(f"{pooling}: texts are pooled by the mean of all tokens or by the first, and by one alone")
        shape = replace(shape, pooling="mean" if mean else "cls")
    encoder.shape, encoder.pooler = shape, nn.Identity()
    tokenizer = check_fit(read_tokenizer(folder / "tokenizer.json", min(most, shape.positions)), shape)
    where = torch.device(device)
    encoder = encoder.to(where).eval().requires_grad_(False)
    prepare_inference(encoder, usual_precision(where))
    if where.type == "cuda":
        fuse(encoder)
    return EncoderEmbedding(encoder, tokenizer, where)
