"""Prompts as token ids: the model's own chat frame around text in which no control token can stand.

A back end that hands a rendered prompt to a tokenizer lets `<|im_end|>` in a web page end the page and speak for the
  user. Here the
frame alone is read for control tokens; everything else is encoded with them as plain text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

from tokenizers import Tokenizer

from gristmill.classifiers.llm.labels import LabelTree, label_tree
from gristmill.classifiers.llm.model import LanguageModelError, Request
from gristmill.kernels.common.extras import install

MESSAGE = "\ue000message\ue001"  # stands for the message while the chat template is rendered
# for templates that write today's date (Llama 3.2, Mistral): answers do not hang on the day, and this one is Llama's
# where none is known
SAME_DAY = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(
        f" | replace('%{letter}', '{value}')"
        for letter, value in {
            "d": "26",
            "b": "Jul",
            "B": "July",
            "m": "07",
            "Y": "2024",
            "y": "24",
            "A": "Friday",
            "a": "Fri",
        }.items()
    )
    + " }}{%- endmacro %}"
)
KEPT_PREFIXES = 64


class PromptTokens:
    """`tokenizer` is a fast one of transformers. Without `chat` a prompt is its bare text (base models)."""

    def __init__(self, tokenizer: Any, chat: bool) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise LanguageModelError(
                f"{tokenizer.__class__.__name__}: a fast tokenizer is needed (a tokenizer.json in the model's folder)"
            )
        if chat and not tokenizer.chat_template:
            raise LanguageModelError("the tokenizer has no chat template: a base model? Ask it without chat")
        self.chat = chat
        self.tokenizer = tokenizer
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._plain.no_truncation()
        self._plain.no_padding()
        added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items()}
        # some vocabularies list runs of spaces or plain words as added tokens; those are text
        self._control = {
            content: number for content, number in added.items() if content[:1] in "<[" and content[-1:] in ">]"
        }
        self._control_ids = frozenset(self._control.values())
        self._frames: dict[int, tuple[list[int], list[int]]] = {}
        self._shared = lru_cache(maxsize=KEPT_PREFIXES)(lambda text: tuple(self.plain([text])[0]))

    @staticmethod
    def load(model: str, revision: str | None = None, chat: bool = True) -> PromptTokens:
        """Of a folder or hub id. Code that comes with a model is never run."""
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise LanguageModelError(f"tokenizers of models are read with transformers: {install('gpu')}") from error
        return PromptTokens(AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False), chat)

    @cached_property
    def fingerprint(self) -> str:
        """Of all that turns a request into token ids: the tokenizer and the frame."""
        content = json.dumps([self._plain.to_str(), *self.frame(0), sorted(self._control.items())])
        return hashlib.sha256(content.encode()).hexdigest()

    def prompts(self, requests: Sequence[Request]) -> list[list[int]]:
        owns = self.plain([request.own for request in requests])
        prompts = []
        for request, own in zip(requests, owns, strict=True):
            shared = self._shared(request.shared) if request.shared else ()
            opening = self._shared(request.opening) if request.opening else ()
            head, tail = self.frame(len(request.images))
            prompts.append([*head, *shared, *own, *tail, *opening])
        return prompts

    def frame(self, images: int) -> tuple[list[int], list[int]]:
        """What stands before and behind the text of a message with so many images."""
        if images not in self._frames:
            self._frames[images] = self._frame(images)
        return self._frames[images]

    def plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts, none of them a control token."""
        encoded = [encoding.ids for encoding in self._plain.encode_batch(list(texts), add_special_tokens=False)]
        return [
            ids if self._control_ids.isdisjoint(ids) else self._spelled_out(text)
            for ids, text in zip(encoded, texts, strict=True)
        ]

    def labels(self, request: Request) -> LabelTree:
        return self._tree(request.opening, request.labels)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def stop_ids(self) -> list[int]:
        return [self.tokenizer.eos_token_id] if self.tokenizer.eos_token_id is not None else []

    def _tree(self, opening: str, labels: tuple[str, ...]) -> LabelTree:
        if not opening:
            return label_tree(labels, [tuple(ids) for ids in self.plain(labels)])
        before = self.plain([opening])[0]
        tokens = []
        for label, ids in zip(labels, self.plain([f"{opening} {label}" for label in labels]), strict=True):
            if ids[: len(before)] != before or len(ids) == len(before):
                raise LanguageModelError(
                    f"this tokenizer joins {opening!r} and the label {label!r} into one token; use another opening"
                )
            tokens.append(tuple(ids[len(before) :]))
        return label_tree(labels, tokens)

    def _spelled_out(self, text: str) -> list[int]:
        """Control tokens that the vocabulary does not mark as special are broken by a space."""
        while True:
            for content in sorted(self._control, key=len, reverse=True):
                text = text.replace(content, f"{content[0]} {content[1:]}")
            ids = self._plain.encode(text, add_special_tokens=False).ids
            if self._control_ids.isdisjoint(ids):
                return list(ids)
            text = text.replace("<", "< ").replace("[", "[ ")

    def _frame(self, images: int) -> tuple[list[int], list[int]]:
        if not self.chat:
            if images:
                raise LanguageModelError("images are for chat; a base model takes none")
            with_special = self.tokenizer("a").input_ids
            begins = with_special[:1] == [self.tokenizer.bos_token_id]
            return ([self.tokenizer.bos_token_id] if begins else []), []
        template = self.tokenizer.get_chat_template()
        template = SAME_DAY + template if "strftime_now" in template else template
        content = [*[{"type": "image"}] * images, {"type": "text", "text": MESSAGE}] if images else MESSAGE
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], chat_template=template, tokenize=False, add_generation_prompt=True
        )  # fmt: skip
        head, message, tail = rendered.partition(MESSAGE)
        if not message or MESSAGE in tail:
            raise LanguageModelError("the chat template does not hold the message once, as it is")
        return self._framed(head), self._framed(tail)

    def _framed(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids) if text else []
