"""lm-evaluation-harness reads the folder that a run wrote, and gives the answers that our own evaluation gives."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gristmill.trainer.evaluation.harness import harness_model
from gristmill.trainer.evaluation.multiple_choice import Question, answer_questions
from gristmill.trainer.evaluation.scoring import plain_tokenizer
from gristmill.trainer.model.llama import save_llama
from gristmill.trainer.model.model import Decoder
from tests.trainer.tiny import TEXTS, bits_per_byte, byte_pairs, random_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model()


@pytest.fixture(scope="module")
def folder(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    byte_pairs().save(str(folder / "tokenizer.json"))
    save_llama(model.state_dict(), model.shape, folder / "model", folder / "tokenizer.json")
    return folder


class Stub:
    """As much of the harness's class as is told what to do."""

    def __init__(self, model: Any, tokenizer: Any, **settings: Any) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.add_bos_token = settings["add_bos_token"]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool) -> bool:
        return bool(self.add_bos_token)


def test_the_token_before_every_text_is_there_once(
    folder: Path, model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("lm_eval.models.huggingface")
    module.HFLM = Stub
    for name in ("lm_eval", "lm_eval.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    plain = plain_tokenizer(byte_pairs())
    for before, end, prefix in ((1, 0, 1), (None, 0, 0), (None, None, 0)):
        lm = harness_model(folder / "model", folder / "tokenizer.json", 64, CPU, torch.float32, before=before, end=end)
        assert lm.settings["max_length"] == 64 and lm.settings["prefix_token_id"] == prefix
        for text in TEXTS:
            expected = plain.encode(text, add_special_tokens=False).ids
            found = lm.tokenizer.encode(text, add_special_tokens=lm.add_bos_token)
            assert found == ([] if before is None else [before]) + expected
        assert lm.loglikelihood_rolling([]) is False and lm.add_bos_token == (before is not None)
    tokens = plain.encode(TEXTS[0], add_special_tokens=False).ids
    with torch.no_grad():
        theirs = lm.model(torch.tensor([tokens])).logits[0]
    from gristmill.trainer.model.packed import pack_documents

    assert torch.allclose(theirs, model.logits(pack_documents([tokens])), atol=1e-3)


def test_answers_are_ours(folder: Path, model: Decoder) -> None:
    pytest.importorskip("lm_eval.models.huggingface")
    lm = harness_model(folder / "model", folder / "tokenizer.json", 64, CPU, torch.float32, before=1, end=0)
    question = Question("1", "x", "the cat sat", (" on the mat", " on the log"), 0)
    pairs = [SimpleNamespace(args=(question.context, choice)) for choice in question.choices]
    ours = answer_questions(model, [question], byte_pairs(), 64, "cpu", before=1).log_probs[0].tolist()
    assert [answer[0] for answer in lm.loglikelihood(pairs, disable_tqdm=True)] == pytest.approx(ours, rel=1e-3)
    texts = [text for text in TEXTS if text]
    bits = bits_per_byte(model, texts, byte_pairs(), 64, before=1, stride=64).bits
    rolling = lm.loglikelihood_rolling([SimpleNamespace(args=(text,)) for text in texts], disable_tqdm=True)
    assert [-nats / math.log(2) for nats in rolling] == pytest.approx(bits.tolist(), rel=1e-3)
    (made,) = lm.generate_until(
        [SimpleNamespace(args=("the cat", {"until": [], "max_gen_toks": 6}), kwargs={})], disable_tqdm=True
    )
    assert made
