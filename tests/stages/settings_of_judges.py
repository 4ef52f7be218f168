"""Every setting of the stages that score texts with models, with a value that changes what they do."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.classifiers.card import Head, JudgeCard
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.classifiers.llm import (
    http as llm_http,
    transformers as llm_transformers,
    vision as llm_vision,
    vllm as llm_vllm,
)
from gristmill.stages import Ocr
from gristmill.stages.judge import llm_score, ocr
from gristmill.stages.judge.back_end import BackEnd
from gristmill.stages.judge.llm_score import AsksModel
from gristmill.stages.stage import Stage
from tests.classifiers.labelled import QUALITY, two_kinds
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply, prompt_of, text_reply
from tests.stages.pdf.made_pdfs import SCAN, column, pdf, prose
from tests.stages.settings_shown import Elsewhere, Lab, Subject, batch_of, to

TEXTS = {
    "uid": pa.array([1, 2, 3], pa.uint64()),
    "text": ["a lens bends light", "a shop sells carts", "a lens and more of it"],
}


@cache
def judge(folder: Path, name: str, seed: int) -> str:
    train_linear(two_kinds(30, seed), QUALITY, LinearRecipe(bits=10)).save(folder / name)
    return str(folder / name)


def neural(lab: Lab, kind: str = "probability") -> str:
    """What a neural judge says of itself, which is all that says where it runs."""
    card = {"kind": "neural", "heads": [{"name": "quality", "kind": kind}]}
    return str(Path(lab.file(f"neural_{kind}/judge.json", json.dumps(card))).parent)


def placement(lab: Lab, stage: Stage, given: Any) -> bool:
    return stage.gpu


def by_word(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a model says that finds a lens great; its answers hang on what it is asked and how."""
    prompt, model = prompt_of(body), body["model"]
    if "You sort" in prompt:
        return by_topic(prompt, body)
    sure = -0.9 - 0.01 * len(model) - 0.1 * prompt.count("use")
    likely = (
        {"Great": sure, "Useless": -4.0, "fine": -1.0}
        if "lens" in prompt
        else {"Useless": -0.3, "Great": -4.0, "fine": -2.0}
    )
    if "completions" in path and "chat" not in path:
        return text_reply("x", {name: score - 0.5 for name, score in likely.items()} if body.get("logprobs") else None)
    if body.get("logprobs"):
        return chat_reply("x", likely)
    return chat_reply(f"It speaks of something.\nFinal Score: {'2' if 'lens' in prompt else '0'}")


def by_topic(prompt: str, body: dict[str, Any]) -> dict[str, Any]:
    sure = 0.9 if "lens" in prompt else 0.4
    if body.get("logprobs"):
        shares = {"science": sure / 2, "technology": (1 - sure) / 2, "good": 0.45, "bad": 0.05}
        return chat_reply("x", {name: math.log(share) for name, share in shares.items()})
    return chat_reply("Well.\nFinal Label: science" if "lens" in prompt else "I do not know.")


@cache
def labeller(folder: Path, name: str, seed: int) -> str:
    """A judge of labels that has learned English alone, and is not sure of itself."""
    head = Head("kind", "labels", ("bad", "good"), "what it is like")
    judge = train_linear(two_kinds(30, seed), head, LinearRecipe(bits=10, looseness=1.0))
    card: JudgeCard = replace(judge.card, training={"languages": {"en": 60}})
    replace(judge, card=card).save(folder / name)
    return str(folder / name)


def asked(lab: Lab, stage: Stage, given: Any) -> Any:
    """The signals, and what the endpoint was asked and how."""
    assert isinstance(stage, AsksModel)
    with pytest.MonkeyPatch.context() as patch, LanguageServer(by_word) as server:
        patch.setenv("OWN_KEY", "sesame")
        stage = stage.model_copy(update={"endpoint": server.url})
        marks = {name: values.to_pylist() for name, values in stage.annotate(batch_of(given)).items()}
        llm_score.opened.cache_clear()
        headers = sorted(str(one["Authorization"]) for one in server.headers)
        return marks, sorted(json.dumps(body, sort_keys=True) for body in server.bodies), headers


def asked_twice(lab: Lab, stage: Stage, given: Any) -> int:
    """How many requests two runs over the same texts take."""
    assert isinstance(stage, AsksModel)
    with pytest.MonkeyPatch.context() as patch, LanguageServer(by_word) as server:
        patch.setattr(llm_score, "opened", lambda back_end: back_end.opened())
        stage = stage.model_copy(update={"endpoint": server.url})
        for _ in range(2):
            stage.annotate(batch_of(given))
        return len(server.bodies)


def opened(lab: Lab, stage: Stage, given: Any) -> Any:
    """Which model is opened, and with what."""
    assert isinstance(stage, BackEnd)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (llm_http, "HttpModel"),
            (llm_vllm, "VllmModel"),
            (llm_transformers, "TransformersModel"),
            (llm_vision, "VisionModel"),
        ):
            patch.setattr(module, name, lambda *given, name=name, **settings: (name, given, settings))
        return stage.opened()


def drawn(lab: Lab, stage: Stage, given: Any) -> Any:
    """What becomes of scans, what is noted of them, and what the endpoint was asked."""
    assert isinstance(stage, Ocr)
    with pytest.MonkeyPatch.context() as patch, LanguageServer(by_picture) as server:
        patch.setenv("OWN_KEY", "sesame")
        done = stage.model_copy(update={"endpoint": server.url}).apply(batch_of(given))
        ocr.opened.cache_clear()
        headers = sorted(str(one["Authorization"]) for one in server.headers)
        asked = sorted(json.dumps(body, sort_keys=True) for body in server.bodies)
        return done.batch.to_pylist(), done.verdict.details, dict(done.noted), asked, headers


def drawn_twice(lab: Lab, stage: Stage, given: Any) -> int:
    """How many requests two runs over the same scans take."""
    assert isinstance(stage, Ocr)
    with pytest.MonkeyPatch.context() as patch, LanguageServer(by_picture) as server:
        patch.setattr(ocr, "opened", lambda back_end: back_end.opened())
        stage = stage.model_copy(update={"endpoint": server.url})
        for _ in range(2):
            stage.apply(batch_of(given))
        return len(server.bodies)


def by_picture(path: str, body: dict[str, Any]) -> dict[str, Any]:
    if "unanswerable" in prompt_of(body):
        return {"choices": [{"index": 0, "message": {}, "finish_reason": "content_filter"}]}
    return chat_reply(f"Read by {body['model']}.")


def scanned(pages: int) -> pa.Table:
    texts = {name: pa.array([None], pa.string()) for name in ("charset", "text", "url", "meta")}
    slow = [column(prose(600, n), 72, 800, 80, 9)[0] for n in range(12)]
    return pa.table({"html": pa.array([pdf([SCAN, *slow[: pages - 1]])], pa.binary()), **texts})


LABEL_TEXTS = {
    "uid": pa.array([1, 2, 3], pa.uint64()),
    "text": [f"{text} {'because water measured theory river glass explains ' * 2}" for text in TEXTS["text"][:2]]
    + ["cart"],
    "language": ["en", "de", "en"],
}
OWN_TAXONOMY = "name: own\nquestion: Is it any good?\nlabels:\n" + "".join(
    f"  - {{name: {name}, definition: so it is}}\n" for name in ("good", "bad")
)
AT: dict[str, Any] = {"endpoint": "http://localhost:1/v1"}


@cache
def decoder(folder: Path, name: str, seed: int) -> str:
    """A decoder whose config.json names tokens that begin and end texts."""
    from gristmill.trainer.model.llama import save_llama
    from tests.trainer.model.llama_folders import decoder as random_decoder, tiny
    from tests.trainer.tiny import byte_pairs

    shape = tiny(vocabulary=300, context=32)
    tokenizer = folder / name / "tokenizer" / "tokenizer.json"
    tokenizer.parent.mkdir(parents=True)
    byte_pairs().save(str(tokenizer))
    specials = {"bos_token": "<|begin|>", "eos_token": "<|endoftext|>"}
    (tokenizer.parent / "tokenizer_config.json").write_text(json.dumps(specials))
    save_llama(random_decoder(shape, seed).state_dict(), shape, folder / name / "model", tokenizer)
    return str(folder / name / "model")


@cache
def fewer_words(folder: Path) -> str:
    from tests.trainer.tiny import byte_pairs

    byte_pairs(270).save(str(folder / "fewer_words.json"))
    return str(folder / "fewer_words.json")


def back_end_settings() -> dict[str, Any]:
    return {
        "model": to("another", **AT),
        "model_path": to("folder", along={"model": ""}, see=opened),
        "endpoint": to("http://localhost:2/v1", see=opened, **AT),
        "engine": to("transformers", see=opened),
        "form": to("completions", **AT),
        "revision": to("abc", see=opened),
        "quantization": to("fp8", see=opened),
        "dtype": to("float16", see=opened),
        "tensor_parallel": to(2, see=opened),
        "gpu_memory": to(0.5, see=opened),
        "engine_options": to({"kv_cache_dtype": "fp8"}, see=opened),
        "speculative": to("ngram", reading="reasoned", see=opened),
        "speculative_tokens": to(3, speculative="ngram", reading="reasoned", see=opened),
        "measure_feeding": to(True, see=opened),
        "longest_prompt": to(4096, see=opened),
        "key_variable": to("OWN_KEY", **AT),
        "connections": to(2, see=opened, **AT),
        "timeout": to(9.0, see=opened, **AT),
        "device": to("cuda", engine="transformers", device="cpu", see=opened),
    }


JUDGES = [
    Subject(
        "Judge",
        {
            "judge_path": to(lambda lab: judge(lab.folder, "another", 2)),
            "prefix": to("own_"),
            "device": to("cpu", judge_path=neural, see=placement),
            "precision": Elsewhere(
                "tests/classifiers/test_compression.py::test_the_command_writes_a_judge_that_the_stage_scores_with"
            ),
        },
        given=TEXTS,
        base={"judge_path": lambda lab: judge(lab.folder, "one", 1)},
    ),
    Subject(
        "Perplexity",
        {
            "model_path": to(lambda lab: decoder(lab.folder, "another_decoder", 2)),
            "tokenizer_path": to(lambda lab: fewer_words(lab.folder)),
            "prefix": to("own_"),
            "window": to(4),
            "before": to("eos"),
            "precision": to("bf16"),
            "device": to("cpu", device="auto", see=placement),
        },
        given=TEXTS,
        base={"model_path": lambda lab: decoder(lab.folder, "decoder", 1), "device": "cpu"},
    ),
    Subject(
        "Label",
        {
            "judge_path": to(lambda lab: labeller(lab.folder, "another_labeller", 2)),
            "least_chance": to(0.99),
            "fewest_words": to(1),
            "any_language": to(True),
            "device": to("cpu", judge_path=lambda lab: neural(lab, "labels"), see=placement),
        },
        given=LABEL_TEXTS,
        base={"judge_path": lambda lab: labeller(lab.folder, "labeller", 1), "fewest_words": 10},
    ),
    Subject(
        "KeepLabels",
        {"signal": to("format"), "keep": to(["money"]), "drop": to(["science"], along={"keep": []})},
        given=pa.table({"topic": ["science", "money", None], "format": ["news", "money", "news"]}),
        base={"signal": "topic", "keep": ["science"]},
    ),
    Subject(
        "LlmLabel",
        {
            **back_end_settings(),
            "reading": to("reasoned", **AT),
            "cut": to(1, **AT),
            "max_tokens": to(64, reading="reasoned", **AT),
            "most_failures": to(0.0, reading="reasoned", refuses="could not be read", **AT),
            "cache_path": to(lambda lab: str(lab.folder / "kept_labels"), see=asked_twice, **AT),
            "taxonomy": to(lambda lab: lab.file("own.yaml", OWN_TAXONOMY), **AT),
            "signal": to("about", **AT),
            "least_chance": to(0.7, **AT),
            "fewest_words": to(1, **AT),
        },
        given=LABEL_TEXTS,
        base={"model": "m", "taxonomy": "topic", "most_failures": 1.0, "fewest_words": 10},
        see=asked,
    ),
    Subject(
        "LlmScore",
        {
            **back_end_settings(),
            "rubric": to("Is it of any use?", **AT),
            "description_file": to(
                lambda lab: lab.file("description.txt", "Texts that teach optics."), along={"rubric": ""}, **AT
            ),
            "labels": to({"Great": 1.0, "fine": 0.5, "Useless": 0.0}, **AT),
            "reading": to("reasoned", **AT),
            "cut": to(1, **AT),
            "max_tokens": to(64, reading="reasoned", **AT),
            "signal": to("use", **AT),
            "most_failures": to(0.0, reading="reasoned", refuses="could not be read", **AT),
            "cache_path": to(lambda lab: str(lab.folder / "kept"), see=asked_twice, **AT),
        },
        given=TEXTS,
        base={"model": "m", "rubric": "Is it useful?", "most_failures": 1.0},
        see=asked,
    ),
    Subject(
        "Ocr",
        {
            "model": to("another"),
            "model_path": to("folder", along={"model": ""}, endpoint="", see=opened),
            "endpoint": to("http://localhost:2/v1", see=opened),
            "engine": to("transformers", endpoint="", see=opened),
            "form": to("thinking"),
            "revision": to("abc", see=opened),
            "quantization": to("fp8", endpoint="", see=opened),
            "dtype": to("float16", endpoint="", see=opened),
            "tensor_parallel": to(2, endpoint="", see=opened),
            "gpu_memory": to(0.5, endpoint="", see=opened),
            "engine_options": to({"kv_cache_dtype": "fp8"}, endpoint="", see=opened),
            "speculative": to("ngram", endpoint="", see=opened),
            "speculative_tokens": to(3, speculative="ngram", endpoint="", see=opened),
            "measure_feeding": to(True, endpoint="", see=opened),
            "longest_prompt": to(4096, endpoint="", see=opened),
            "key_variable": to("OWN_KEY"),
            "connections": to(2, see=opened),
            "timeout": to(9.0, see=opened),
            "device": to("cuda", engine="transformers", device="cpu", endpoint="", see=opened),
            "prompt": to("Read it."),
            "longest_side": to(100),
            "max_tokens": to(9),
            "max_pdf_seconds": to(0.01, given=lambda lab: scanned(13)),
            "max_pdf_pages": to(1, given=lambda lab: scanned(2)),
            "prompt_price": to(1.0),
            "completion_price": to(1.0),
            "most_failures": to(0.0, prompt="unanswerable", refuses="no answer"),
            "cache_path": to(lambda lab: str(lab.folder / "kept_pages"), see=drawn_twice),
        },
        given=lambda lab: scanned(1),
        base={"model": "m", "most_failures": 1.0, "longest_side": 64, **AT},
        see=drawn,
    ),
]
