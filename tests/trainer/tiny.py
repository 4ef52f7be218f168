"""Models and tokenizers small enough to work out by hand."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from gristmill.trainer.evaluation.evaluate import HeldOut, Measured
from gristmill.trainer.evaluation.scoring import STEP_TOKENS
from gristmill.trainer.model.model import Decoder, initialise
from gristmill.trainer.model.packed import pack_documents
from gristmill.trainer.model.shapes import DecoderShape
from gristmill.trainer.parallel.memory import MemoryEstimate, memory_of
from gristmill.trainer.run.settings import Training

TEXTS = [
    "the cat sat on the mat and the dog sat on the log",
    "a longer text about nothing at all, which goes on and on; it has commas, and a full stop at the end of it.",
    "x",
    "",
    "größer 猫 🙂 naïve",
    "special <|endoftext|> inside",
    "the the the the the the the the the",
]


def words(*vocabulary: str) -> Tokenizer:
    """A token for each word, none for the spaces between them."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def byte_pairs(size: int = 300) -> Tokenizer:
    """Byte-level, the end of a text is token 0, its beginning token 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>", "<|begin|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def random_model(vocabulary: int = 300, seed: int = 0) -> Decoder:
    """Far from uniform: its weights are 10 times the usual."""
    model = initialise(
        Decoder(DecoderShape(vocabulary=vocabulary, hidden=16, layers=2, heads=4, kv_heads=2, mlp=24)), seed
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(10.0 if "blocks" in name else 30.0)
    return model


@torch.no_grad()
def bigram_model(chances_VV: Tensor) -> Decoder:
    """Gives the token behind token i the chances of row i, whatever stood before."""
    size = len(chances_VV)
    model = Decoder(
        DecoderShape(vocabulary=size, hidden=size + size % 2, layers=1, heads=1, kv_heads=1, mlp=2, norm_eps=1e-30)
    )
    for parameter in model.parameters():
        parameter.fill_(1.0 if parameter.ndim == 1 else 0.0)
    model.embedding.weight[:, :size] = torch.eye(size)
    assert model.head is not None
    model.head.weight[:, :size] = chances_VV.log().T / math.sqrt(
        size + size % 2
    )  # what the norm makes of a one among zeros
    return model


def bits_per_byte(
    model: Decoder,
    texts: list[str],
    tokenizer: Tokenizer,
    row_length: int,
    *,
    step_tokens: int = STEP_TOKENS,
    **settings: Any,
) -> Measured:
    return HeldOut.of(texts, tokenizer, row_length, **settings).measured(model, "cpu", step_tokens)


@torch.no_grad()
def log_chances(model: Decoder, tokens: list[int]) -> Tensor:
    """Of every token after each of these, worked out alone in float64."""
    return copy.deepcopy(model).double().logits(pack_documents([tokens])).log_softmax(-1)


def memory(
    shape: DecoderShape,
    tokens: int,
    ranks: int = 1,
    passes: int = 1,
    fused_linears: bool = False,
    place: int | None = None,
    **settings: Any,
) -> MemoryEstimate:
    """Of a run with these fields of `Training`."""
    return memory_of(shape, Training(1, 64, **settings), tokens, ranks, passes, fused_linears, place)
