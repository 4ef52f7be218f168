"""lm-evaluation-harness over a folder that a run wrote: the harness's own model of transformers, with the token that
stands before every text where training documents began with one.

    lm = harness_model(folder, tokenizer, row_length=4096, device=device, dtype=torch.bfloat16, before=bos, end=eos)
    lm_eval.simple_evaluate(model=lm, tasks=["hellaswag"])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

BATCH = 16  # sequences of a forward pass


def harness_model(
    folder: Path,
    tokenizer: Path,
    row_length: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    before: int | None = None,
    end: int | None = None,
) -> Any:
    """An `lm_eval.models.huggingface.HFLM`. `end`: the token that ends a generated text."""
    from lm_eval.models.huggingface import HFLM  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    class Model(HFLM):  # type: ignore[misc]
        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            """Whole texts, which the harness itself begins with the prefix token."""
            self.add_bos_token, asked = False, self.add_bos_token
            try:
                return super().loglikelihood_rolling(requests, disable_tqdm)
            finally:
                self.add_bos_token = asked

    words = Tokenizer.from_file(str(tokenizer))
    named = {
        name: words.id_to_token(token)
        for name, token in (("bos_token", before), ("eos_token", end))
        if token is not None
    }
    if before is not None:
        words.post_processor = TemplateProcessing(
            single=[named["bos_token"], "$A"], special_tokens=[(named["bos_token"], before)]
        )
    first = before if before is not None else end if end is not None else 0
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    kind: Any = PreTrainedTokenizerFast
    return Model(
        model.to(device).eval(),
        tokenizer=kind(tokenizer_object=words, split_special_tokens=True, **named),
        max_length=row_length,
        batch_size=BATCH,
        add_bos_token=before is not None,
        prefix_token_id=first,
    )
