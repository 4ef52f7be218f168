#!/usr/bin/env python3
"""`refine` and `rephrase` by a real vLLM: documents a second through the stages, and dollars for a million of them.

    python -m benchmarks.judges.edits_vllm TEXT --work FOLDER [--documents 1000] [--hour 3.0] [--dummy] [--tiny]

Model and tokenizer are made as in `medu_vllm.py`: a Llama shape of 1.2B with random weights. Its answers are noise, so
all are refused, which is part of what is measured: asking, generating (up to --refine-tokens and --rephrase-tokens a
passage), reading and checking. Counts must balance. `--hour` is the price of the GPU. One JSON line a result; `--tiny`
runs all of it on a made-up engine, without a GPU.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.judges import medu_vllm
from gristmill.classifiers.llm.vllm import VllmModel, VllmSettings
from gristmill.stages import Refine, Rephrase
from gristmill.stages.edits import editor

BYTES = 2_000  # of a document


def documents(options: argparse.Namespace, seed: int) -> pa.RecordBatch:
    """Windows of the text, no two the same, in lines of about 120 characters."""
    text = " ".join(medu_vllm.text_of(options.text)[:4_000_000].split())
    step = max(1, (len(text) - BYTES) // options.documents)
    windows = [f"{seed} {row} {text[row * step : row * step + BYTES]}" for row in range(options.documents)]
    lines = ["\n".join(window[at : at + 120] for at in range(0, len(window), 120)) for window in windows]
    uids = pa.array(range(1, len(lines) + 1), pa.uint64())
    return pa.record_batch({"uid": uids, "text": pa.array(lines), "meta": pa.nulls(len(lines), pa.string())})


def measure(options: argparse.Namespace, stage: editor.Editor, prefix: str, seed: int) -> None:
    batch = documents(options, seed)
    start = time.perf_counter()
    done = stage.checked(batch)
    seconds = time.perf_counter() - start
    noted = {name.removeprefix(f"{prefix}_"): count for name, count in done.noted.items()}
    refused = sum(count for name, count in noted.items() if name.startswith(editor.REFUSED))
    if noted["documents"] != len(batch) or noted["asked"] != noted.get("accepted", 0) + refused:
        raise SystemExit(f"counts do not balance: {noted}")
    speed = len(batch) / seconds
    medu_vllm.tell(
        f"documents a second: {prefix}", machine=medu_vllm.machine(), versions=medu_vllm.versions(), documents=len(batch),
        passages=noted["asked"], seconds=round(seconds, 2), a_second=round(speed, 1),
        prompt_tokens=noted["prompt_tokens"], answer_tokens=noted["answer_tokens"],
        answer_tokens_a_second=round(noted["answer_tokens"] / seconds),
        dollars_a_million_documents=round(1e6 / speed / 3600 * options.hour, 2), dollars_an_hour=options.hour,
        refused={name: count for name, count in noted.items() if name.startswith(editor.REFUSED)},
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--refine-tokens", type=int, default=64)
    parser.add_argument("--rephrase-tokens", type=int, default=384)
    parser.add_argument("--hour", type=float, default=3.0)
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.documents, options.vocabulary = 20, 2000
    os.environ.update(medu_vllm.ENVIRONMENT)
    options.work.mkdir(parents=True, exist_ok=True)
    medu_vllm.prepare(options)
    start = time.perf_counter()
    settings = VllmSettings(
        chat=False, load_format="dummy" if options.dummy else "auto", longest_prompt=4096, engine_tokenizer=False,
        dtype="bfloat16",
    )  # fmt: skip
    model = VllmModel(str(options.work), settings, vllm=medu_vllm.vllm_module(options))
    medu_vllm.tell("engine ready", seconds=round(time.perf_counter() - start, 1))
    editor.opened = lambda back_end: model  # type: ignore[assignment]  # not by name: the engine is made here
    for seed in range(2):  # the first is for warming up
        refine = Refine(model="m", most_failures=1.0, max_tokens=options.refine_tokens)
        measure(options, refine, "refine", seed)
        rephrase = Rephrase(model="m", most_failures=1.0, max_tokens=options.rephrase_tokens, styles=["wiki"])
        measure(options, rephrase, "rephrase", seed)


if __name__ == "__main__":
    main()
