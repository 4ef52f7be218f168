"""lm-evaluation-harness over a decoder, where it is installed (`pip install lm_eval`): its tasks, asked of our
model.

    lm = harness_model(decoder, tokenizer, row_length=4096, device="cuda", before=bos)
    lm_eval.simple_evaluate(model=lm, tasks=["hellaswag"])

Pairs of context and continuation are split and scored as in `gristmill.trainer.evaluation.multiple_choice`, whole
texts as in `gristmill.trainer.evaluation.evaluate` with windows that do not overlap, which are the harness's own.
`before` precedes every text. Texts are generated greedily, each token by a pass over all before it: correct, and
slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from gristmill.trainer.evaluation.evaluate import HeldOut
from gristmill.trainer.evaluation.multiple_choice import encode_pairs, pair_scores
from gristmill.trainer.evaluation.scoring import STEP_TOKENS, plain_tokenizer, tokenise
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import pack_documents

MOST_GENERATED = 256  # tokens, where a task does not say


class HarnessError(RuntimeError):
    """The harness is not installed, or asks for something that this model cannot do."""


class Answering:
    """The methods that the harness calls. Its own base class is added by `harness_model`."""

    cache_hook: Any

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        row_length: int,
        where: torch.device | str,
        before: int | None,
        end: int | None,
        step_tokens: int,
    ) -> None:
        super().__init__()
        self._model, self._tokenizer, self._where = model, plain_tokenizer(tokenizer), torch.device(where)
        self._row_length, self._before, self._end, self._step_tokens = row_length, before, end, step_tokens

    @property
    def tokenizer_name(self) -> str:
        return "gristmill"

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        pairs = [(str(request.args[0]), str(request.args[1])) for request in requests]
        encoded = encode_pairs(
            pairs, self._tokenizer, self._before, self._row_length, lambda i: f"continuation {pairs[i][1][:60]!r}"
        )
        nats, greedy = pair_scores(self._model, encoded, self._where, self._step_tokens)
        answers = [(-float(nats_of_pair), bool(hit)) for nats_of_pair, hit in zip(nats, greedy, strict=True)]
        for pair, answer in zip(pairs, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        texts = [str(request.args[0]) for request in requests]
        held_out = HeldOut.of(
            texts, [""] * len(texts), self._tokenizer, self._row_length, before=self._before, stride=self._row_length
        )
        bits = held_out.measured(self._model, self._where, self._step_tokens).bits
        answers = [-float(bits_of_text) * math.log(2) for bits_of_text in bits]
        for text, answer in zip(texts, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return answers

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        conditions = [_stop_conditions(request.args[1]) for request in requests]
        contexts = tokenise([str(request.args[0]) for request in requests], self._tokenizer)
        opening = [] if self._before is None else [self._before]
        sequences: list[list[int]] = []
        for context, (_, most) in zip(contexts, conditions, strict=True):
            room = self._row_length - most
            if room < 1:
                raise HarnessError(
                    f"{most:,} tokens are to be generated; the model reads {self._row_length:,} at once, and one must "
                    "be of the context"
                )
            sequences.append([*opening, *context.tolist()][-room:])
            if not sequences[-1]:
                raise HarnessError(
                    "a text is to be generated from nothing; give the model a token that stands before every text"
                )
        prompt_lengths = [len(line) for line in sequences]
        texts = [""] * len(sequences)
        unfinished = list(range(len(sequences)))
        while unfinished:
            for i, token in zip(unfinished, self._next([sequences[i] for i in unfinished]), strict=True):
                sequences[i].append(token)
            unfinished = [
                i for i in unfinished if not self._stops(i, sequences[i][prompt_lengths[i] :], *conditions[i], texts)
            ]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _stops(self, i: int, generated: list[int], until: list[str], most: int, texts: list[str]) -> bool:
        """Whether text i is complete; sets it, up to its stop sequence."""
        ended = generated[-1] == self._end
        text = self._tokenizer.decode(generated[:-1] if ended else generated, skip_special_tokens=True)
        ends = [position for stop in until if (position := text.find(stop)) >= 0]
        texts[i] = text[: min(ends)] if ends else text
        return ended or bool(ends) or len(generated) >= most

    @torch.no_grad()
    def _next(self, lines: list[list[int]]) -> list[int]:
        """The likeliest next token of each sequence."""
        tokens: list[int] = []
        start = 0
        while start < len(lines):
            stop, total = start + 1, len(lines[start])
            while stop < len(lines) and total + len(lines[stop]) <= self._step_tokens:
                total += len(lines[stop])
                stop += 1
            ends = torch.from_numpy(np.cumsum([len(line) for line in lines[start:stop]]) - 1).to(self._where)
            hidden = self._model.hidden(pack_documents(lines[start:stop]).to(self._where))[ends]
            tokens += torch.nn.functional.linear(hidden, self._model.head_weight).argmax(-1).tolist()
            start = stop
        return tokens


def _stop_conditions(settings: Mapping[str, Any]) -> tuple[list[str], int]:
    """The stop sequences, and the largest number of tokens."""
    if settings.get("do_sample") or (settings.get("num_beams") or 1) > 1:
        raise HarnessError(
            "a task asks for sampled or beam-searched text (do_sample, num_beams); this model generates greedily alone"
        )
    until = settings.get("until") or []
    most = settings.get("max_gen_toks") or settings.get("max_new_tokens") or MOST_GENERATED
    return [until] if isinstance(until, str) else [stop for stop in until if stop], int(most)


def harness_model(
    model: Decoder,
    tokenizer: Tokenizer,
    row_length: int,
    device: torch.device | str,
    *,
    before: int | None = None,
    end: int | None = None,
    step_tokens: int = STEP_TOKENS,
) -> Any:
    """An `lm_eval.api.model.LM`. `before`: see `gristmill.trainer.evaluation.evaluate`; `end`: the token that ends a
    generated text."""
    try:
        from lm_eval.api.model import LM  # type: ignore[import-not-found]
    except ImportError as error:
        raise HarnessError(f"lm-evaluation-harness cannot be imported ({error}): pip install lm_eval") from error
    kind = type("GristmillModel", (Answering, LM), {})
    return kind(model, tokenizer, row_length, device, before, end, step_tokens)
