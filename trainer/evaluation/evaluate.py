"""Bits per byte of held-out texts: how well a model predicts them, whatever its tokenizer, by document.

Every byte of a text is counted. Where training documents began with a token of their own (bos; or, where documents
were trained end to end, the separator token), the model predicts the first token from it: pass it as `before`. A
model that never saw anything before a first token cannot predict it, and a token that it does not know there would
disturb what follows: with `before` None the first token costs log2(vocabulary) bits, the same for every model with
this vocabulary, and each other token is predicted from the text before it, as in training. An end-of-text token is
no text and is not scored.

A text longer than `row_length` is read in windows of that many tokens, which move on by `stride`: each token is
scored once, with at least row_length - stride + 1 tokens before it (except at the beginning of the text). The
default stride is half of row_length. With stride = row_length windows do not overlap, as in lm-evaluation-harness.
The last window is moved back until it is full.

A text that the tokenizer reduces to nothing has no bits and counts no bytes. What a tokenizer changes or does not
know is scored as the tokens it became (one token for the unknown, say), while the bytes are the text's: between
tokenizers compare only lossless ones, such as byte-level ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from gristmill.kernels.base.types import Array
from gristmill.shards.pieces import piece_starts
from gristmill.shards.rows import Rows
from gristmill.trainer.evaluation.scoring import (
    STEP_TOKENS,
    Continuation,
    plain_tokenizer,
    score_continuations,
    tokenise,
)
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.parallel.ranks import ALONE, RankGroup


@dataclass(frozen=True)
class Measured:
    """By document, in the order in which they were given: bits (float64), bytes of UTF-8 and tokens (int64)."""

    bits: Array
    bytes: Array
    tokens: Array

    def bits_per_byte(self) -> float:
        """Of all together: long documents weigh more."""
        if not self.bytes.sum():
            raise ValueError("there is no text to measure")
        return float(self.bits.sum() / self.bytes.sum())


@dataclass(frozen=True)
class HeldOut:
    """Texts as continuations; number i is of document `document[i]`; of the `unforeseen` documents the first token
    costs log2(vocabulary)."""

    pieces: tuple[Continuation, ...]
    document: Array
    unforeseen: Array
    bytes: Array
    tokens: Array

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        row_length: int,
        *,
        before: int | None = None,
        stride: int | None = None,
    ) -> HeldOut:
        tokens = tokenise(texts, plain_tokenizer(tokenizer))
        sequences = (
            tokens
            if before is None
            else [np.concatenate([[before], of_text]) if len(of_text) else of_text for of_text in tokens]
        )
        pieces = [list(windows(sequence, row_length, stride)) for sequence in sequences]
        counts = np.array([len(of_text) for of_text in tokens], np.int64)
        return cls(
            tuple(piece for of_text in pieces for piece in of_text),
            np.repeat(np.arange(len(texts)), [len(of_text) for of_text in pieces]),
            (counts > 0) & (before is None),
            np.array([len(text.encode()) for text in texts], np.int64) * (counts > 0),
            counts,
        )

    def measured(
        self, model: Decoder, device: torch.device | str, step_tokens: int = STEP_TOKENS, ranks: RankGroup = ALONE
    ) -> Measured:
        """`ranks` share the work, and all get the whole result (see
        `gristmill.trainer.evaluation.scoring.score_continuations`)."""
        of_pieces = score_continuations(model, self.pieces, device, step_tokens, ranks)
        nats = np.bincount(self.document, of_pieces, len(self.bytes)).astype(np.float64)
        nats += np.where(self.unforeseen, math.log(model.shape.vocabulary), 0.0)
        return Measured(nats / math.log(2), self.bytes, self.tokens)


def windows(sequence: Array, row_length: int, stride: int | None = None) -> Iterator[Continuation]:
    """All tokens but the first, each scored once, with at most `row_length` tokens before the last."""
    stride = max(1, row_length // 2) if stride is None else stride
    if not 1 <= stride <= row_length:
        raise ValueError(f"stride {stride:,}: between 1 and the row length of {row_length:,}")
    done = min(len(sequence), row_length + 1)
    if done > 1:
        yield Continuation(sequence[:done], 1)
    while done < len(sequence):
        stop = min(done + stride, len(sequence))
        start = stop - row_length - 1
        yield Continuation(sequence[start:stop], done - start)
        done = stop


def opening_of(rows: Rows, bos: int | None) -> int | None:
    """The token before each document in these rows of shards: `bos` if every document that begins here begins with
    it. Pass it as `before` for models trained on them."""
    begins = rows.chunk == 0
    if bos is None or not begins.any():
        return None
    starts = piece_starts(rows.seq_lens, rows.first_piece, rows.input_ids.shape[1])
    return bos if (rows.input_ids.reshape(-1)[starts[begins]] == bos).all() else None
