#!/usr/bin/env python3
"""What each way of serving gains `llm_score` on one card, by a real vLLM: rank correlation to the plain engine's marks
against documents a second.

    python -m benchmarks.judges.serving_vllm TEXT --work FOLDER [--model FOLDER] [--draft FOLDER]
      [--checkpoint NAME=FOLDER ...] [--documents 4000] [--generated 1000] [--only NAME,...] [--tiny]

Points: `plain`; `feeding` (prefix cache, order and requests at a time chosen by measurement, then timed); `fp8`
(quantised when it is loaded); `ngram` (tokens guessed ahead by what was read); `draft` (by the model of `--draft`); and
one for each `--checkpoint` (GPTQ, compressed-tensors with 2:4 sparse weights: vLLM reads how from the folder). Model,
tokenizer and requests are those of `medu_vllm.py` unless `--model` names a folder; random weights guess tokens as badly
as can be, so give a real model for `ngram` and `draft`. Every point runs in a process of its own. One JSON line a
result. `--tiny` runs all of it on a made-up engine, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.judges import medu_vllm
from gristmill.classifiers.llm import vllm as back_end
from gristmill.classifiers.llm.model import Answer
from gristmill.classifiers.llm.vllm import VllmModel, VllmSettings
from gristmill.mixing.weights.spearman import spearman

FEEDING_TURNS = 14  # of the three choices, and one for warming up


def points_of(options: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """By name: the model's folder and settings of the engine."""
    model = str(options.model or options.work)
    points: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": (model, {}),
        "feeding": (model, {"measure_feeding": True}),
        "fp8": (model, {"quantization": "fp8"}),
        "ngram": (model, {"speculative": "ngram"}),
    }
    if options.draft:
        points["draft"] = (model, {"speculative": str(options.draft)})
    return points | {name: (folder, {}) for name, _, folder in (given.partition("=") for given in options.checkpoint)}


def marks_of(answers: list[Answer]) -> np.ndarray:
    """The expected mark, from the best label (1) to the worst (0)."""
    chances = np.exp(np.array([answer.logprobs for answer in answers], np.float64))
    return np.asarray(chances / chances.sum(1, keepdims=True) @ np.linspace(1, 0, chances.shape[1]))


def measure(options: argparse.Namespace, name: str) -> None:
    folder, given = points_of(options)[name]
    settings = VllmSettings(
        chat=False, load_format="dummy" if options.dummy else "auto", longest_prompt=2048, engine_tokenizer=False,
        dtype="bfloat16", **given,
    )  # fmt: skip
    model = VllmModel(folder, settings, vllm=medu_vllm.vllm_module(options))
    warm = FEEDING_TURNS * back_end.TURN if given.get("measure_feeding") else options.warm
    # every point is asked the same documents, and has seen none of them before
    requests = medu_vllm.requests_of(options, model.tokens, options.documents + options.generated)
    asked, reasoned = requests[: options.documents], requests[options.documents :]
    before = [replace(one, own=f"before {one.own}") for one in medu_vllm.requests_of(options, model.tokens, warm)]
    medu_vllm.answers_of(model, before)
    facts = {"point": name, "feeding": model.feeding, "settings": given}
    if not settings.speculative:
        answers, seconds = medu_vllm.answers_of(model, asked)
        marks = marks_of(answers)
        kept = options.work / "plain_marks.json"
        if name == "plain":
            kept.write_text(json.dumps(marks.tolist()))
        plain = np.array(json.loads(kept.read_text())) if kept.is_file() else marks
        order = {"spearman_to_plain": spearman(plain, marks), "largest_difference": float(np.abs(plain - marks).max())}
        medu_vllm.speed(options, "one pass, five labels", [(answers, seconds)], **facts, **order)
    generated = [
        replace(request, labels=(), max_tokens=options.answer_tokens) for request in reasoned
    ]  # as `reading: reasoned` asks
    medu_vllm.speed(options, "reasoning", [medu_vllm.answers_of(model, generated)], **facts)


def main(words: list[str] | None = None) -> None:
    options = options_of(words)
    os.environ.update(medu_vllm.ENVIRONMENT)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.point:
        measure(options, options.point)
        return
    if options.model is None:
        medu_vllm.prepare(options)
    chosen = [name for name in points_of(options) if not options.only or name in options.only.split(",")]
    if options.tiny:
        back_end.TURN = 64
        for name in chosen:
            measure(options, name)
        return
    for name in chosen:
        command = [sys.executable, "-m", "benchmarks.judges.serving_vllm", *sys.argv[1:], "--point", name]
        if subprocess.run(command, check=False).returncode:
            medu_vllm.tell("documents a second", point=name, error="this point failed; see above")


def options_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a model's folder in place of the one that is made")
    parser.add_argument("--draft", type=Path, help="a smaller model with the same tokenizer")
    parser.add_argument("--checkpoint", action="append", default=[], help="NAME=FOLDER of a quantised or sparse one")
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--generated", type=int, default=1000)
    parser.add_argument("--answer-tokens", type=int, default=medu_vllm.ANSWER_TOKENS)
    parser.add_argument("--warm", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--only", default="", help="points, separated by commas")
    parser.add_argument("--point", default="", help=argparse.SUPPRESS)
    parser.add_argument("--dummy", action="store_true", help="vLLM makes weights up itself")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(words)
    if options.tiny:
        options.documents, options.generated, options.answer_tokens = 30, 20, 6
        options.warm, options.vocabulary = 8, 2000
    return options


if __name__ == "__main__":
    main()
