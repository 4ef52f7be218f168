"""What of vLLM 0.26 our back end uses, without a model: log-probabilities are a hash of the prompt, answers are tokens
of it.

It takes no argument that the real one would not take (`test_llm_vllm.py` holds it against an installed vLLM), refuses
prompts that are too long as it does, hands results back out of order, and counts what it was given.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

BLOCK = 16
LLM_ARGUMENTS = {
    "model", "revision", "tensor_parallel_size", "dtype", "quantization", "load_format", "enable_prefix_caching", "max_model_len",
    "gpu_memory_utilization", "seed", "skip_tokenizer_init", "trust_remote_code", "enforce_eager", "max_num_seqs",
    "kv_cache_dtype", "hf_overrides", "speculative_config", "block_size", "calculate_kv_scales", "cpu_offload_gb",
    "disable_cascade_attn", "disable_custom_all_reduce", "enable_chunked_prefill", "enable_expert_parallel",
    "kv_cache_memory_bytes", "limit_mm_per_prompt", "max_num_batched_tokens", "max_parallel_loading_workers",
    "mm_processor_kwargs", "num_gpu_blocks_override",
}  # fmt: skip

__version__ = "0.26.0 (made up)"


class RequestOutputKind(Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


sampling_params = SimpleNamespace(RequestOutputKind=RequestOutputKind)


@dataclass
class SamplingParams:
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None


@dataclass
class Logprob:
    logprob: float


def chance(prompt: list[int], token: int) -> float:
    """A log-probability that hangs on all of the prompt."""
    digest = hashlib.sha256(repr((tuple(prompt), token)).encode()).digest()
    return -1.0 - int.from_bytes(digest[:4], "big") / 2**30


def likely_of(prompt: list[int], tokens: list[int]) -> dict[int, float]:
    """As the real one: the sampled token first, then those that were asked for."""
    return {prompt[-1]: -0.5, **{token: chance(prompt, token) for token in tokens}}


@dataclass
class Engine:
    longest: int
    caching: bool
    waiting: dict[str, tuple[list[int], SamplingParams]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    added: int = 0
    aborted: list[str] = field(default_factory=list)
    pictures: list[Any] = field(default_factory=list)

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> str:
        ids = prompt["prompt_token_ids"]
        pictures = prompt.get("multi_modal_data", {}).get("image", [])
        assert prompt.keys() == ({"prompt_token_ids", "multi_modal_data"} if pictures else {"type", "prompt_token_ids"})
        assert prompt.get("type", "token") == "token" and all(type(i) is int for i in ids)
        self.pictures += pictures
        if len(ids) + (params.max_tokens or 1) > self.longest:
            raise ValueError(f"the prompt of {len(ids)} tokens is longer than the model's {self.longest}")
        assert request_id not in self.waiting
        self.waiting[request_id] = (ids, params)
        self.added += 1
        return request_id + "-internal"

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        for name in request_ids:
            self.waiting.pop(name, None)
            self.aborted.append(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        out = []
        for name in list(self.waiting)[: 5 + self.added % 3][::-1]:
            ids, params = self.waiting.pop(name)
            assert params.output_kind is RequestOutputKind.FINAL_ONLY and not params.detokenize
            logprobs = None
            if params.logprob_token_ids:
                assert params.max_tokens == 1 and params.flat_logprobs
                logprobs = [
                    {token: Logprob(value) for token, value in likely_of(ids, params.logprob_token_ids).items()}
                ]
            said = [ids[-1 - i % len(ids)] for i in range(params.max_tokens or 1)]
            completion = SimpleNamespace(token_ids=said, finish_reason="length", logprobs=logprobs)
            out.append(SimpleNamespace(
                request_id=name, finished=True, prompt_token_ids=ids, outputs=[completion], num_cached_tokens=self._cached(ids, params),
            ))  # fmt: skip
        return out

    def _cached(self, ids: list[int], params: SamplingParams) -> int:
        blocks = [hash(tuple(ids[: end + BLOCK])) for end in range(0, len(ids) - BLOCK, BLOCK)]
        known = next((i for i, block in enumerate(blocks) if block not in self.seen), len(blocks))
        self.seen.update(blocks)
        return known * BLOCK if self.caching and not params.skip_reading_prefix_cache else 0


class LLM:
    def __init__(self, **arguments: Any) -> None:
        unknown = set(arguments) - LLM_ARGUMENTS
        if unknown:
            raise TypeError(f"LLM() got an unexpected keyword argument {sorted(unknown)[0]!r}")
        self.arguments = arguments
        self.llm_engine = Engine(arguments["max_model_len"], arguments["enable_prefix_caching"])
