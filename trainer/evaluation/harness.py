"""lm-evaluation-harness over a decoder, where it is installed (`pip install lm_eval`): its tasks, asked of our model.

    lm = harness_model(decoder, tokenizer, row_length=4096, device="cuda", before=bos)
    lm_eval.simple_evaluate(model=lm, tasks=["hellaswag"])

Pairs of context and continuation are cut and scored as `gristmill.trainer.evaluation.multiple_choice` does, whole texts
as `gristmill.trainer.evaluation.evaluate` does with windows that do not overlap, which are the harness's own. `before`
stands before every text. Texts are generated greedily, each token by a pass over all before it: right, and slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from gristmill.trainer.evaluation.evaluate import HeldOut
from gristmill.trainer.evaluation.multiple_choice import encoded_pairs, pair_scores
from gristmill.trainer.evaluation.scoring import STEP_TOKENS, plain_tokenizer, tokenised
from gristmill.trainer.model.model import Decoder
from gristmill.trainer.model.packed import pack_documents

MOST_GENERATED = 256  # tokens, where a task does not say


class HarnessError(RuntimeError):
    """The harness is not there, or asks for what this model does not do."""


class Answering:
    """What the harness asks of a model. Its own base class stands behind this one (`harness_model`)."""

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
        encoded = encoded_pairs(
            pairs, self._tokenizer, self._before, self._row_length, lambda i: f"continuation {pairs[i][1][:60]!r}"
        )
        nats, greedy = pair_scores(self._model, encoded, self._where, self._step_tokens)
        found = [(-float(of_one), bool(hit)) for of_one, hit in zip(nats, greedy, strict=True)]
        for pair, answer in zip(pairs, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        texts = [str(request.args[0]) for request in requests]
        held_out = HeldOut.of(
            texts, [""] * len(texts), self._tokenizer, self._row_length, before=self._before, stride=self._row_length
        )
        bits = held_out.measured(self._model, self._where, self._step_tokens).bits
        found = [-float(of_one) * math.log(2) for of_one in bits]
        for text, answer in zip(texts, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), answer)
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        wishes = [_wish(request.args[1]) for request in requests]
        contexts = tokenised([str(request.args[0]) for request in requests], self._tokenizer)
        opening = [] if self._before is None else [self._before]
        lines: list[list[int]] = []
        for context, (_, most) in zip(contexts, wishes, strict=True):
            room = self._row_length - most
            if room < 1:
                raise HarnessError(
                    f"{most:,} tokens are to be generated; the model reads {self._row_length:,} at once, and one must be of the context"
                )
            lines.append([*opening, *context.tolist()][-room:])
            if not lines[-1]:
                raise HarnessError(
                    "a text is to be generated from nothing; give the model a token that stands before every text"
                )
        begun = [len(line) for line in lines]
        texts = [""] * len(lines)
        going = list(range(len(lines)))
        while going:
            for i, token in zip(going, self._next([lines[i] for i in going]), strict=True):
                lines[i].append(token)
            going = [i for i in going if not self._stops(i, lines[i][begun[i] :], *wishes[i], texts)]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _stops(self, i: int, made: list[int], until: list[str], most: int, texts: list[str]) -> bool:
        """Sets text i, up to what it was to stop at."""
        ended = made[-1] == self._end
        text = self._tokenizer.decode(made[:-1] if ended else made, skip_special_tokens=True)
        ends = [at for stop in until if (at := text.find(stop)) >= 0]
        texts[i] = text[: min(ends)] if ends else text
        return ended or bool(ends) or len(made) >= most

    @torch.no_grad()
    def _next(self, lines: list[list[int]]) -> list[int]:
        """The likeliest token behind each."""
        found: list[int] = []
        start = 0
        while start < len(lines):
            stop, held = start + 1, len(lines[start])
            while stop < len(lines) and held + len(lines[stop]) <= self._step_tokens:
                held += len(lines[stop])
                stop += 1
            ends = torch.from_numpy(np.cumsum([len(line) for line in lines[start:stop]]) - 1).to(self._where)
            hidden = self._model.hidden(pack_documents(lines[start:stop]).to(self._where))[ends]
            found += torch.nn.functional.linear(hidden, self._model.head_weight).argmax(-1).tolist()
            start = stop
        return found


def _wish(settings: Mapping[str, Any]) -> tuple[list[str], int]:
    """Where to stop, and after how many tokens at the latest."""
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
