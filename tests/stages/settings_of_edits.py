"""Every setting of the stages that edit with language models, with a value that changes what they do."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from gristmill.stages.edits.editor import Editor
from gristmill.stages.judge import llm_score
from gristmill.stages.stage import Stage
from tests.classifiers.llm.llm_server import LanguageServer, chat_reply, prompt_of
from tests.stages.settings_of_judges import opened
from tests.stages.settings_shown import Lab, Subject, batch_of, to

LENS = "A lens bends light toward a point behind it. The image is never larger than the plate."
PAGE = f"Home | About | Cart\n{LENS}\n\n{LENS.replace('lens', 'mirror')}\nShare this page"
TEXTS = {
    "uid": pa.array([1, 2], pa.uint64()),
    "text": [PAGE, "unanswerable"],
    "meta": pa.array([None, None], pa.string()),
}
AT: dict[str, Any] = {"endpoint": "http://localhost:1/v1"}


def by_prompt(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Drops the first line; says a passage again less its first line, and denies what a wiki would say."""
    prompt = prompt_of(body)
    passage = prompt.split("]\n", 1)[1].rsplit("\n[END", 1)[0]
    if "unanswerable" in passage:
        return chat_reply("I'm sorry, but I cannot help with that.")
    if "name edits" in prompt:
        return chat_reply("drop 1\nend")
    text = passage.replace("Home | About | Cart", "").replace("Share this page", "").strip()
    return chat_reply(text.replace("is never larger", "is larger") if "encyclopedia" in prompt else text)


def edited(lab: Lab, stage: Stage, given: Any) -> Any:
    """What becomes of the documents, what is noted of them, and what the endpoint was asked and how."""
    assert isinstance(stage, Editor)
    with pytest.MonkeyPatch.context() as patch, LanguageServer(by_prompt) as server:
        patch.setenv("OWN_KEY", "sesame")
        done = stage.model_copy(update={"endpoint": server.url}).checked(batch_of(given))
        llm_score.opened.cache_clear()
        headers = sorted(str(one["Authorization"]) for one in server.headers)
        asked = sorted(json.dumps(body, sort_keys=True) for body in server.bodies)
        made = done.made.batch.to_pylist() if done.made is not None else []
        return done.batch.to_pylist(), made, done.verdict.kept.tolist(), dict(done.noted), asked, headers


def edited_twice(lab: Lab, stage: Stage, given: Any) -> int:
    """How many requests two runs over the same documents take."""
    assert isinstance(stage, Editor)
    with pytest.MonkeyPatch.context() as patch, LanguageServer(by_prompt) as server:
        patch.setattr("gristmill.stages.edits.editor.opened", lambda back_end: back_end.opened())
        stage = stage.model_copy(update={"endpoint": server.url})
        for _ in range(2):
            stage.apply(batch_of(given))
        return len(server.bodies)


def forecast(lab: Lab, stage: Stage, given: Any) -> Any:
    assert isinstance(stage, Editor)
    return stage.cost_ahead(1000, 4e6)


SHARED = {
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
    "passage_tokens": to(16),
    "max_tokens": to(99),
    "most_failures": to(0.0, refuses="answers were refused"),
    "prompt_price": to(1.0),
    "completion_price": to(1.0),
    "tokens_per_second": to(1.0, see=forecast),
}
EDITS = [
    Subject(
        "Refine",
        SHARED
        | {
            "most_removed": to(0.01),
            "cache_path": to(lambda lab: str(lab.folder / "kept_edits"), see=edited_twice),
        },
        given=TEXTS,
        base={"model": "m", "most_failures": 1.0, **AT},
        see=edited,
    ),
    Subject(
        "Rephrase",
        SHARED
        | {
            "styles": to(["wiki", "summary"]),
            "originals": to("drop"),
            "least_accepted": to(1.0, passage_tokens=16),
            "negations": to("refuse"),
            "cache_path": to(lambda lab: str(lab.folder / "kept_texts"), see=edited_twice),
        },
        given=TEXTS,
        base={"model": "m", "most_failures": 1.0, "styles": ["wiki"], **AT},
        see=edited,
    ),
]
