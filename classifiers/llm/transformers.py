"""A language model by transformers in this process, on CPU or GPU: for trying things out and for small models; vLLM is
for many documents.

One prompt at a time, so nothing depends on neighbours or padding.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gristmill.classifiers.llm.model import Answer, LanguageModelError, Request, model_identity
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.kernels.common.extras import install

INSTALL = f"torch and transformers are needed for this: {install('gpu')}"


class TransformersModel:
    """Of a folder or hub id. Code that comes with a model is never run, and weights are read from safetensors alone."""

    def __init__(
        self,
        model: str,
        revision: str | None = None,
        chat: bool = True,
        device: str = "cpu",
        dtype: str = "auto",
        seed: int = 0,
    ):
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise LanguageModelError(INSTALL) from error
        self.tokens = PromptTokens.load(model, revision, chat)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model, revision=revision, dtype=dtype, trust_remote_code=False, use_safetensors=True
        )  # fmt: skip
        self._model = loaded.to(device).eval()
        self._longest = int(getattr(loaded.config, "max_position_embeddings", 0) or 1 << 30)
        self._name = model
        self._seed = seed
        self._device = device
        self._identity = {**model_identity(model, revision), "chat": chat, "dtype": str(loaded.dtype), "seed": seed}

    @property
    def name(self) -> str:
        return self._name

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        for i, request in enumerate(requests):
            prompt = self.tokens.prompts([request])[0]
            if len(prompt) + (1 if request.labels else request.max_tokens) > self._longest:
                reason = f"a prompt of {len(prompt)} tokens and its answer are longer than {self._longest}"
                yield i, Answer(failure="refused", detail=reason)
            else:
                yield i, self._labels(request, prompt) if request.labels else self._generated(request, prompt)

    def _labels(self, request: Request, prompt: list[int]) -> Answer:
        import torch

        start = time.perf_counter()
        tree = self.tokens.labels(request)
        logprobs, best, spent = [], 0, 0
        with torch.inference_mode():
            for question in tree.questions:
                ids = torch.tensor([[*prompt, *question.path]], device=self._device)
                logits = self._model(ids, logits_to_keep=1).logits[0, -1].float()
                likely = torch.log_softmax(logits, dim=-1)
                best = best if question.path else int(likely.argmax())
                logprobs.append([float(likely[token]) for token in question.tokens])
                spent += ids.shape[1]
        text = self.tokens.decode([best])
        return Answer(
            text, tree.logprobs(logprobs), spent, len(tree.questions), 0, time.perf_counter() - start, "length"
        )

    def _generated(self, request: Request, prompt: list[int]) -> Answer:
        import torch

        start = time.perf_counter()
        ids = torch.tensor([prompt], device=self._device)
        sampling: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if request.temperature:
            sampling = {"do_sample": True, "temperature": request.temperature, "top_p": 1.0, "top_k": 0}
        with (
            torch.inference_mode(),
            torch.random.fork_rng(devices=[self._device] if self._device.startswith("cuda") else []),
        ):
            torch.manual_seed(self._seed)
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.max_tokens,
                pad_token_id=self._pad(),
                **sampling,
            )
        generated = out[0, len(prompt) :].tolist()
        finish = "length" if len(generated) >= request.max_tokens and generated[-1] not in self._ends() else "stop"
        return Answer(
            self.tokens.decode(generated), None, len(prompt), len(generated), 0, time.perf_counter() - start, finish
        )

    def _ends(self) -> list[int]:
        ends = self._model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [] if ends is None else [ends]

    def _pad(self) -> int:
        pad = self.tokens.tokenizer.pad_token_id
        return int(pad) if pad is not None else (self._ends() or [0])[0]
