"""vLLM in this process: the offline engine, fed without a break, prompts as token ids (read against vLLM 0.26).

Labels are read with `logprob_token_ids` after one pass, exact over the whole vocabulary; a shared prompt is worked out
once (prefix caching, on whole blocks of 16 tokens). Texts become tokens and tokens texts here, so the engine's own
tokenizer does nothing. The engine batches as it likes, and in bf16 that moves the last digits: one document's
log-probabilities differ by some 1e-2 between runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from gristmill.classifiers.llm.feeding import TURN, Feeding, FeedingChoice
from gristmill.classifiers.llm.labels import LabelTree
from gristmill.classifiers.llm.model import Answer, LanguageModelError, Request, model_identity
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.kernels.common.extras import install

ENCODED_TOGETHER = 128
INSTALL = f"vLLM is needed for this: {install('llm')} (a Linux machine with a GPU)"


@dataclass(frozen=True)
class VllmSettings:
    """`engine_options` go to vLLM's `LLM` as they are (its EngineArgs). `quantization`, `load_format`, `dtype`: vLLM's
    words. `speculative`: "ngram" (tokens ahead are those that followed the last ones before), or a draft model.

    Which of vLLM's options leave answers alone is not for us to know, so all that are given count as part of the model.
    """

    revision: str | None = None
    chat: bool = True
    tensor_parallel: int = 1
    quantization: str | None = None
    dtype: str = "auto"
    load_format: str = "auto"
    prefix_caching: bool = True
    longest_prompt: int = 8192  # tokens, the answer's too
    gpu_memory: float = 0.9
    in_flight: int = 4096  # requests handed to the engine ahead
    measure_feeding: bool = False  # choose prefix caching, order and requests at a time by measurement
    speculative: str = ""
    speculative_tokens: int = 5  # guessed ahead
    engine_tokenizer: bool = True  # False: vLLM loads none (`skip_tokenizer_init`)
    seed: int = 0
    engine_options: Mapping[str, Any] = field(default_factory=dict)


class VllmModel:
    """`vllm` is the module, given by tests; `tokens` the model's own unless said otherwise."""

    def __init__(
        self,
        model: str,
        settings: VllmSettings | None = None,
        tokens: PromptTokens | None = None,
        vllm: ModuleType | Any = None,
    ) -> None:
        self.settings = settings or VllmSettings()
        self.tokens = tokens or PromptTokens.load(model, self.settings.revision, self.settings.chat)
        self._model = model
        options = _recorded(self.settings.engine_options)
        self._vllm = vllm if vllm is not None else _imported()
        self._llm = self._started()
        here = self.settings
        choices = {
            "chat": self.tokens.chat, "quantization": here.quantization, "dtype": here.dtype, "seed": here.seed,
            # it cuts answers, and some models (longrope) choose their positions by it
            "longest_prompt": here.longest_prompt,
        }  # fmt: skip
        self._identity: dict[str, Any] = {
            **model_identity(model, here.revision),
            **choices,
            "load_format": here.load_format,
        }
        if here.speculative:
            draft = {} if here.speculative == "ngram" else model_identity(here.speculative, None)
            named = {name: value for name, value in self._speculation().items() if name != "model"}
            self._identity["speculative"] = {**named, **draft}
        if options:  # without any, a kept answer's key is what it was before options counted
            self._identity["engine_options"] = options
        self._asked = 0
        self._choice = FeedingChoice(Feeding(here.prefix_caching, False, here.in_flight), here.measure_feeding)

    @property
    def feeding(self) -> str:
        """How requests are given to the engine, in words."""
        return "still measuring" if self._choice.measuring else str(self._choice.current)

    @property
    def name(self) -> str:
        return self._model

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        start = 0
        while start < len(requests):
            feeding = self._choice.next()
            stop = min(start + TURN, len(requests)) if self._choice.measuring else len(requests)
            rows = feeding.order(requests, range(start, stop))
            tokens, seconds, begin = 0, 0.0, time.perf_counter()
            for i, answer in self._fed([requests[row] for row in rows], feeding):
                tokens += answer.prompt_tokens + answer.completion_tokens
                seconds += time.perf_counter() - begin
                yield rows[i], answer
                begin = time.perf_counter()
            self._choice.measured(len(rows), tokens, seconds + time.perf_counter() - begin)
            start = stop

    def _fed(self, requests: Sequence[Request], feeding: Feeding) -> Iterator[tuple[int, Answer]]:
        self._asked += 1
        skip = self.settings.prefix_caching and not feeding.cached
        sampling = partial(self._sampling, skip_cache=skip)
        feed = _Feed(self._llm.llm_engine, f"{self._asked}", sampling, self.tokens)
        try:
            yield from feed.answers(requests, feeding.in_flight)
        finally:
            feed.abort()

    def _speculation(self) -> dict[str, Any]:
        """vLLM's `speculative_config`."""
        ahead = {"num_speculative_tokens": self.settings.speculative_tokens}
        if self.settings.speculative == "ngram":
            return {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, **ahead}
        return {"method": "draft_model", "model": self.settings.speculative, **ahead}

    def _started(self) -> Any:
        here = self.settings
        options = {
            "model": self._model,
            "revision": here.revision,
            "tensor_parallel_size": here.tensor_parallel,
            "dtype": here.dtype,
            "quantization": here.quantization,
            "load_format": here.load_format,
            "enable_prefix_caching": here.prefix_caching,
            "max_model_len": here.longest_prompt,
            "gpu_memory_utilization": here.gpu_memory,
            "seed": here.seed,
            "skip_tokenizer_init": not here.engine_tokenizer,
            "trust_remote_code": False,
            **({"speculative_config": self._speculation()} if here.speculative else {}),
        }
        twice = sorted(set(options) & set(here.engine_options))
        if twice:
            raise LanguageModelError(f"engine_options names {', '.join(twice)}, which our own settings say already")
        try:
            llm = self._vllm.LLM(**options, **here.engine_options)
            engine = llm.llm_engine
            lacking = [
                name
                for name in ("add_request", "step", "has_unfinished_requests", "abort_request")
                if not hasattr(engine, name)
            ]
        except (AttributeError, TypeError) as error:
            raise self._unlike(str(error)) from error
        if lacking:
            raise self._unlike(f"its engine has no {', '.join(lacking)}")
        return llm

    def _sampling(self, request: Request, wanted: tuple[int, ...], skip_cache: bool) -> Any:
        common = {
            **({"skip_reading_prefix_cache": True} if skip_cache else {}),
            "detokenize": False,
            "output_kind": self._last_only(),
            "seed": self.settings.seed if request.temperature else None,
        }
        try:
            if wanted:
                return self._vllm.SamplingParams(
                    max_tokens=1, temperature=0.0, logprob_token_ids=list(wanted), flat_logprobs=True, **common
                )  # fmt: skip
            return self._vllm.SamplingParams(
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                stop_token_ids=self.tokens.stop_ids,
                **common,
            )
        except TypeError as error:
            raise self._unlike(str(error)) from error

    def _last_only(self) -> Any:
        try:
            return self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        except AttributeError as error:
            raise self._unlike(str(error)) from error

    def _unlike(self, what: str) -> LanguageModelError:
        version = getattr(self._vllm, "__version__", "of an unknown version")
        return LanguageModelError(f"vLLM {version} is not like 0.26, for which this was written: {what}")


@dataclass
class _Open:
    """A request in the engine: its tree of labels, and what of it has come back."""

    request: Request
    tree: LabelTree | None
    start: float
    outputs: dict[int, Any]
    parts: int


class _Feed:
    """Keeps the engine supplied, and gathers what it hands back, for one call of `answers`."""

    def __init__(self, engine: Any, name: str, sampling: Any, tokens: PromptTokens) -> None:
        self.engine = engine
        self.name = name
        self.sampling = sampling
        self.tokens = tokens
        self.open: dict[int, _Open] = {}

    def answers(self, requests: Sequence[Request], in_flight: int) -> Iterator[tuple[int, Answer]]:
        next_request = 0
        while next_request < len(requests) or self.open:
            while next_request < len(requests) and len(self.open) < in_flight:
                some = requests[next_request : next_request + min(ENCODED_TOGETHER, in_flight - len(self.open))]
                for i, prompt in enumerate(self.tokens.prompts(some), start=next_request):
                    refused = self._add(i, requests[i], prompt)
                    if refused is not None:
                        yield i, refused
                next_request += len(some)
            if self.open:
                for output in self.engine.step():
                    yield from self._taken(output)

    def abort(self) -> None:
        names = [
            f"{self.name}/{i}/{part}"
            for i, pending in self.open.items()
            for part in range(pending.parts)
            if part not in pending.outputs
        ]
        if names:
            self.engine.abort_request(names)
            self.open.clear()

    def _add(self, i: int, request: Request, prompt: list[int]) -> Answer | None:
        tree = self.tokens.labels(request) if request.labels else None
        asked = [(question.path, question.tokens) for question in tree.questions] if tree else [((), ())]
        added: list[str] = []
        try:
            for part, (path, wanted) in enumerate(asked):
                name = f"{self.name}/{i}/{part}"
                self.engine.add_request(name, engine_prompt([*prompt, *path], request), self.sampling(request, wanted))
                added.append(name)
        except ValueError as error:  # too long, mostly
            if added:
                self.engine.abort_request(added)
            return Answer(failure="refused", detail=str(error)[:300])
        self.open[i] = _Open(request, tree, time.perf_counter(), {}, len(asked))
        return None

    def _taken(self, output: Any) -> Iterator[tuple[int, Answer]]:
        feed_name, i, part = output.request_id.split("/")
        pending = self.open.get(int(i)) if feed_name == self.name else None
        if pending is None or not output.finished:
            return
        pending.outputs[int(part)] = output
        if len(pending.outputs) == pending.parts:
            del self.open[int(i)]
            yield int(i), self._answer(pending)

    def _answer(self, pending: _Open) -> Answer:
        outputs = [pending.outputs[part] for part in range(pending.parts)]
        first = outputs[0].outputs[0]
        seconds = time.perf_counter() - pending.start
        if any(output.outputs[0].finish_reason not in ("stop", "length") for output in outputs):
            reasons = ", ".join(str(output.outputs[0].finish_reason) for output in outputs)
            return Answer(failure="engine", detail=f"the engine gave up ({reasons})", seconds=seconds)
        logprobs = None
        if pending.tree is not None:
            logprobs_of_parts = [output.outputs[0].logprobs[0] for output in outputs]
            questions = pending.tree.questions
            logprobs = pending.tree.logprobs(
                [
                    [float(likely[t].logprob) for t in q.tokens]
                    for q, likely in zip(questions, logprobs_of_parts, strict=True)
                ]
            )
        return Answer(
            text=self.tokens.decode(first.token_ids),
            logprobs=logprobs,
            prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
            completion_tokens=sum(len(output.outputs[0].token_ids) for output in outputs),
            cached_tokens=sum(output.num_cached_tokens or 0 for output in outputs),
            seconds=seconds,
            finish=first.finish_reason,
        )


def engine_prompt(ids: list[int], request: Request) -> dict[str, Any]:
    """Ids, and images for the places that the chat template left for them: vLLM widens each to the image's tokens."""
    if not request.images:
        return {"type": "token", "prompt_token_ids": ids}
    return {"prompt_token_ids": ids, "multi_modal_data": {"image": request.pictures()}}


def _recorded(options: Mapping[str, Any]) -> Any:
    """Options as JSON holds them; what it cannot hold has no name that is the same in every process."""
    try:
        return json.loads(json.dumps(dict(options), sort_keys=True))
    except (TypeError, ValueError, RecursionError) as error:
        raise LanguageModelError(
            "engine_options: expected plain data (numbers, text, lists, dictionaries by text), since answers are kept "
            f"by it: {error}"
        ) from error


def _imported() -> ModuleType:
    try:
        import_module("vllm.sampling_params")
        return import_module("vllm")
    except ImportError as error:
        raise LanguageModelError(INSTALL) from error
