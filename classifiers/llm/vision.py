"""A vision model by transformers in this process: a picture and a text in, text out. For trying things out; vLLM or an
endpoint is for many pages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gristmill.classifiers.llm.model import Answer, LanguageModelError, Request, model_identity
from gristmill.classifiers.llm.transformers import INSTALL


class VisionModel:
    """Of a folder or hub id, with its processor. Code that comes with a model is never run, and weights are read from
    safetensors alone. Answers are greedy."""

    def __init__(self, model: str, revision: str | None = None, device: str = "cpu", dtype: str = "auto") -> None:
        try:
            from transformers import AutoModelForImageTextToText, AutoProcessor
        except ImportError as error:
            raise LanguageModelError(INSTALL) from error
        options = {"revision": revision, "trust_remote_code": False}
        processors: Any = AutoProcessor
        self._processor = processors.from_pretrained(model, **options)
        loaded: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype, use_safetensors=True, **options)
        self._model = loaded.to(device).eval()
        self._name, self._device = model, device
        self._identity = {**model_identity(model, revision), "dtype": str(loaded.dtype), "vision": True}

    @property
    def name(self) -> str:
        return self._name

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        for i, request in enumerate(requests):
            yield i, self._answer(request)

    def _answer(self, request: Request) -> Answer:
        import torch

        if request.labels or request.temperature or not request.images:
            raise LanguageModelError("a vision model is asked about images, for text, at temperature 0")
        start = time.perf_counter()
        images = request.pictures()
        content = [*[{"type": "image"}] * len(images), {"type": "text", "text": request.shared + request.own}]
        prompt = self._processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = self._processor(images=images, text=prompt, return_tensors="pt").to(self._device, self._model.dtype)
        with torch.inference_mode():
            out = self._model.generate(
                **inputs, max_new_tokens=request.max_tokens, do_sample=False, temperature=None, top_p=None, top_k=None
            )
        asked = inputs["input_ids"].shape[1]
        generated = out[0, asked:].tolist()
        text = str(self._processor.decode(generated, skip_special_tokens=True))
        finish = "length" if len(generated) >= request.max_tokens else "stop"
        return Answer(text, None, asked, len(generated), 0, time.perf_counter() - start, finish)
