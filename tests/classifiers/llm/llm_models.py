"""Small stand-ins for tests: a tokenizer with a chat template, a tiny Llama, and models that answer by a rule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gristmill.classifiers.llm.model import Answer, Request

WORDS = "the cat sat on a mat Final Score: Great Good Okay Poor Useless Grey Grew document describes facts about trees and rivers. "
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained_tokenizer(texts: Sequence[str] = (WORDS * 20,), size: int = 400) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def chat_tokenizer(tokenizer: Tokenizer | None = None):
    """As transformers has it, with one added token that is not marked as special (`<think>`), as some models have."""
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer or trained_tokenizer(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE,
    )
    made.add_tokens(["<think>"], special_tokens=False)
    return made


def tiny_llama(folder: Path, seed: int = 0) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokenizer = chat_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class RuleModel:
    """Answers each request by a function, out of order, and counts what it was asked."""

    def __init__(self, rule: Callable[[Request], Answer], name: str = "rule") -> None:
        self.rule = rule
        self.name = name
        self.identity = {"model": name}
        self.asked: list[Request] = []

    def answers(self, requests: Sequence[Request]) -> Iterator[tuple[int, Answer]]:
        for i in sorted(range(len(requests)), key=lambda i: hashlib.sha256(str(i).encode()).digest()):
            self.asked.append(requests[i])
            yield i, self.rule(requests[i])
