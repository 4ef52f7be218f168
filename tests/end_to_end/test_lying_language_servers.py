"""A language server that lies: no mark is taken from a bad answer, each is counted by its reason, and none is kept."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import gristmill
from tests.classifiers.llm.llm_server import LanguageServer, Reply, chat_reply, prompt_of

pytestmark = pytest.mark.usefixtures("here")

HONEST = {" Great": -0.05, " Poor": -4.0, "the": -5.0}


def reply(likely: list[tuple[str, Any]], text: str = " Great", finish: str = "length", **entry: Any) -> Reply:
    made = chat_reply(text, {}, finish)
    top = [{"token": token, "logprob": value, **entry} for token, value in likely]
    made["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = top
    return made


def with_choices(change: Any) -> Reply:
    made = reply(list(HONEST.items()))
    return {**made, "choices": change(made["choices"][0])}


LIES: dict[str, tuple[str, Reply]] = {  # a word of the document: the reason on record, and the reply
    "sum": ("no_labels", reply([(" Great", 0.0), (" Useless", 0.0)])),
    "positive": ("no_labels", reply([(" Great", 5.0), (" Useless", -9.0)])),
    "infinite": ("no_labels", reply([(" Great", math.inf), (" Useless", -9.0)])),
    "nan": ("no_labels", reply([(" Great", math.nan), (" Useless", -9.0)])),
    "string": ("no_labels", reply([(" Great", "-0.1"), (" Useless", "-9")])),
    "boolean": ("no_labels", reply([(" Great", False), (" Useless", -9.0)])),
    "contrary": ("no_labels", reply([(" Useless", -0.05), (" Great", -6.0)])),
    "absent": ("no_labels", reply([(" Useless", -0.05), (" Poor", -6.0)])),
    "bytes": ("no_labels", reply(list(HONEST.items()), bytes=list(b" Useless"))),
    "two": ("no_choices", with_choices(lambda choice: [choice, choice])),
    "second": ("no_choices", with_choices(lambda choice: [{**choice, "index": 1}])),
    "refusal": ("refusal", with_choices(lambda choice: [{**choice, "message": {"content": None, "refusal": "No."}}])),
    "parts": ("no_text", with_choices(lambda choice: [{**choice, "message": {"content": [{"text": " Great"}]}}])),
    "tools": ("aborted", reply(list(HONEST.items()), finish="tool_calls")),
    "resources": ("aborted", reply(list(HONEST.items()), finish="insufficient_system_resource")),
}  # fmt: skip


def lying(path: str, body: dict[str, Any]) -> Reply:
    prompt = prompt_of(body)
    for word, (_, lie) in LIES.items():
        if f"about {word} lies" in prompt:
            return lie
    return chat_reply(" Great", HONEST)


def honest(path: str, body: dict[str, Any]) -> Reply:
    return chat_reply(" Great", HONEST)


def recipe_in(folder: Path, server: LanguageServer, part: str = "1MB") -> Path:
    texts = [f"Page {row} is about {word} lies." for row, word in enumerate([*LIES, *["no"] * 5])]
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "kept").mkdir(exist_ok=True)
    asked = {
        "model": "m",
        "endpoint": server.url,
        "rubric": "Is it useful?",
        "most_failures": 1.0,
        "cache_path": "kept",
    }
    lines = [
        f"name: r\nsources:\n  a: {{jsonl: {{path: in.jsonl}}}}\nstages:\n  - llm_score: {json.dumps(asked)}\n  - write"
    ]
    (folder / "r.yaml").write_text("\n".join(lines) + "\n")
    return folder / "r.yaml"


def marks(out: Path) -> dict[str, float | None]:
    rows = [row for path in (out / "write").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    return {row["text"]: row["llm_score"] for row in rows}


def test_lies_give_no_mark_are_counted_by_reason_and_are_asked_again(tmp_path: Path) -> None:
    reasons = [reason for reason, _ in LIES.values()]
    with LanguageServer(lying) as server:
        gristmill.run(recipe_in(tmp_path, server), tmp_path / "lied", workers=1)
        assert sum(server.asked.values()) == len(LIES) + 5
    found = marks(tmp_path / "lied")
    assert len(found) == len(LIES) + 5
    assert {text for text, mark in found.items() if mark is not None} == {
        text for text in found if "about no lies" in text
    }
    noted = json.loads((tmp_path / "lied/stages/llm_score/report.json").read_text())["noted"]
    assert {name: n for name, n in noted.items() if "unread" in name} == {
        f"llm_unread:{reason}": reasons.count(reason) for reason in set(reasons)
    }
    assert (noted["llm_asked"], noted["llm_prompt_tokens"]) == (len(LIES) + 5, 7 * (len(LIES) + 5))
    assert "could not be read" in (tmp_path / "lied/report.html").read_text()
    with LanguageServer(honest) as server:  # the same answers' folder, another run
        gristmill.run(recipe_in(tmp_path, server), tmp_path / "honest", workers=1)
        assert sum(server.asked.values()) == len(LIES)
    assert len(set(marks(tmp_path / "honest").values())) == 1
    noted = json.loads((tmp_path / "honest/stages/llm_score/report.json").read_text())["noted"]
    assert noted["llm_kept_answers"] == 5 and not any("unread" in name for name in noted)
