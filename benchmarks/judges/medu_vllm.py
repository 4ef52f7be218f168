#!/usr/bin/env python3
"""Marks by a real vLLM: documents a second for both readings, prefix caching on and off, and the same requests against
its own server.

    python -m benchmarks.judges.medu_vllm TEXT --work FOLDER [--documents 2000] [--repeats 3] [--generated 1000]
      [--served 400] [--dummy]
                                   [--engine-options '{"max_num_seqs": 512}'] [--skip caching_off,serve] [--tiny]

TEXT is a Parquet file with a column `text`, or plain text. The model is a Llama shape of 1.2B with random weights,
written to FOLDER with a tokenizer trained on TEXT (with --dummy vLLM makes the weights up itself: as fast, but all its
log-probabilities are equal, and comparing them says nothing). Requests are 352 tokens of rubric and 512 of a document,
no two documents the same. Every part runs in a process of its own, so that the GPU is empty when it begins. One JSON
line a result. `--tiny` runs all of it on a made-up engine, without a GPU. Exits 1 where an answer is lost or the
server's differ from those in process by more than 1e-2.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gristmill.classifiers.llm.cache import AnswerCache
from gristmill.classifiers.llm.http import Endpoint, HttpModel
from gristmill.classifiers.llm.model import Answer, Request
from gristmill.classifiers.llm.tokens import PromptTokens
from gristmill.classifiers.llm.vllm import VllmModel, VllmSettings
from gristmill.classifiers.rating import medu, prompts as medu_prompts
from gristmill.classifiers.rating.rubric import ByDescription

RUBRIC_TOKENS, DOCUMENT_TOKENS, ANSWER_TOKENS = 352, 512, 200
CHARACTERS = 4_000  # of a window of text, more than 512 tokens
SHAPE = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "head_dim": 64,
}
TOLERANCE = 1e-2
LOGIT_SCALE = 0.4  # of embeddings: logits stay below 1, where bf16 steps by less than the tolerance
PARTS = ("prepare", "caching_on", "serve", "caching_off")
ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "true",
}  # fmt: skip


def tell(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, **facts}), flush=True)


def versions() -> dict[str, str]:
    found = {}
    for package in ("vllm", "torch", "transformers", "tokenizers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def machine() -> str:
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if shutil.which(asked[0]) is None:
        return "CPU"
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip().partition("\n")[0] or "CPU"


# --- the model and its documents


def text_of(path: Path) -> str:
    if path.suffix != ".parquet":
        return path.read_text(encoding="utf-8", errors="replace")
    import pyarrow.parquet as pq

    return "\n\n".join(text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text)


def prepare(options: argparse.Namespace) -> None:
    """A folder as a hub has it: config.json, the tokenizer, and weights unless vLLM makes them up."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    start = time.perf_counter()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=words, show_progress=False
    )  # fmt: skip
    text = text_of(options.text)[:8_000_000]
    rubric = (medu_prompts.TASK + medu_prompts.AT_ONCE + "Final Score: " + " ".join(medu_prompts.LABELS)) * 20
    tokenizer.train_from_iterator([text[at : at + 10_000] for at in range(0, len(text), 10_000)] + [rubric], trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    made.save_pretrained(options.work)
    config = LlamaConfig(
        **SHAPE, vocab_size=len(made), max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0, architectures=["LlamaForCausalLM"], dtype="bfloat16",
    )  # fmt: skip
    config.save_pretrained(options.work)
    if not (options.dummy or options.tiny):
        write_weights(config, options.work)
    tell(
        "model made",
        seconds=round(time.perf_counter() - start, 1),
        vocabulary=len(made),
        weights="made up by vLLM" if options.dummy else "random",
    )


def write_weights(config: Any, folder: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(LOGIT_SCALE)
    model.save_pretrained(folder)


def cut_to(text: str, most: int, tokenizer: Any) -> str:
    """Its first tokens."""
    encoding = tokenizer.encode(text, add_special_tokens=False)
    return text[: encoding.offsets[most - 1][1]] if len(encoding.ids) > most else text


def requests_of(options: argparse.Namespace, tokens: PromptTokens, count: int) -> list[Request]:
    """Of 352 and 512 tokens, each document another window of the text."""
    text = text_of(options.text)
    window = min(CHARACTERS, len(text) // 2)
    places = np.linspace(0, len(text) - window, count).astype(int)
    plain = tokens.tokenizer.backend_tokenizer
    rubric = (
        medu_prompts.TASK.format(description="a test of knowledge and reasoning in English") + medu_prompts.AT_ONCE
    ) * 4
    documents = [cut_to(f"{i} {text[at : at + window]}", DOCUMENT_TOKENS, plain) for i, at in enumerate(places)]
    shared = cut_to(rubric, RUBRIC_TOKENS, plain)
    return [
        Request(shared=shared, own=document, opening=medu_prompts.SCORE, labels=medu_prompts.LABELS)
        for document in documents
    ]


# --- in process


def vllm_module(options: argparse.Namespace) -> ModuleType | None:
    if not options.tiny:
        return None
    from tests.classifiers.llm import fake_vllm

    return fake_vllm


def started(options: argparse.Namespace, caching: bool) -> VllmModel:
    start = time.perf_counter()
    settings = VllmSettings(
        chat=False, load_format="dummy" if options.dummy else "auto", prefix_caching=caching, longest_prompt=2048,
        engine_tokenizer=False,
        dtype="bfloat16", engine_options=options.engine_options,
    )  # fmt: skip
    model = VllmModel(str(options.work), settings, vllm=vllm_module(options))
    tell("engine ready", seconds=round(time.perf_counter() - start, 1), prefix_caching=caching)
    return model


def answers_of(model: Any, requests: list[Request]) -> tuple[list[Answer], float]:
    start = time.perf_counter()
    found = dict(model.answers(requests))
    seconds = time.perf_counter() - start
    if len(found) < len(requests) or any(answer.failure for answer in found.values()):
        failed = [answer for answer in found.values() if answer.failure]
        raise SystemExit(f"{len(requests) - len(found)} requests lost, {len(failed)} failed: {failed[:3]}")
    return [found[i] for i in range(len(requests))], seconds


def speed(options: argparse.Namespace, what: str, runs: list[tuple[list[Answer], float]], **facts: Any) -> None:
    speeds = [len(answers) / seconds for answers, seconds in runs]
    last = runs[-1][0]
    tokens = [(a.prompt_tokens, a.cached_tokens, a.completion_tokens) for a in last]
    means = [round(float(value), 1) for value in np.mean(tokens, axis=0)]
    new = sum(prompt - cached for prompt, cached, _ in tokens) / runs[-1][1]
    tell(
        f"documents a second: {what}", machine=machine(), versions=versions(), **facts,
        sizes={"documents": len(last), "prompt_tokens": means[0], "cached_tokens": means[1], "answer_tokens": means[2]},
        median=round(statistics.median(speeds), 1), spread=[round(min(speeds), 1), round(max(speeds), 1)],
        new_prompt_tokens_a_second=round(new),
    )  # fmt: skip


def in_process(options: argparse.Namespace, caching: bool) -> None:
    model = started(options, caching)
    repeats = options.repeats if caching else 1
    count = options.documents * repeats + options.generated + options.warm
    requests = requests_of(options, model.tokens, count)
    passes = len(model.tokens.labels(requests[0]).questions)
    answers_of(model, requests[: options.warm])
    at, runs = options.warm, []
    for _ in range(repeats):
        runs.append(answers_of(model, requests[at : at + options.documents]))
        at += options.documents
    speed(options, "one pass, five labels", runs, prefix_caching=caching, passes_a_document=passes)
    if caching:
        keep = [
            {"text": request.own, "logprobs": answer.logprobs}
            for request, answer in zip(requests[options.warm :], runs[0][0], strict=False)
        ]
        (options.work / "in_process.json").write_text(json.dumps(keep[: options.served]))
    generated = [
        Request(shared=request.shared, own=request.own, opening=request.opening,
        max_tokens=ANSWER_TOKENS) for request in requests[at:]
    ]  # fmt: skip
    speed(options, f"{ANSWER_TOKENS} tokens of reasoning", [answers_of(model, generated)], prefix_caching=caching)
    if caching:
        whole_path(options, model, requests)


def whole_path(options: argparse.Namespace, model: VllmModel, requests: list[Request]) -> None:
    """`medu.label` with its own prompts, fences and kept answers, and again from what was kept."""
    documents = [
        medu.SampledDocument("text", i, request.own[2:], 512.0)
        for i, request in enumerate(requests[: options.documents])
    ]
    kept = options.work / "answers.jsonl"
    kept.unlink(missing_ok=True)
    for what in ("medu.label, at once", "medu.label, all answers kept"):
        with AnswerCache(kept) as cache:
            start = time.perf_counter()
            asking = ByDescription("a test of knowledge and reasoning in English")
            labels = medu.label(model, "knowledge", asking, documents, cache)
            seconds = time.perf_counter() - start
        tell(
            f"documents a second: {what}", machine=machine(), sizes={"documents": len(documents)},
            median=round(len(documents) / seconds, 1),
            account=labels.account.as_dict(), readable=int(labels.readable.sum()),
            mean_label_mass=float(np.mean(labels.mass)),
        )  # fmt: skip


# --- over HTTP


def serve(options: argparse.Namespace) -> None:
    tokens = PromptTokens.load(str(options.work), chat=False)
    kept = json.loads((options.work / "in_process.json").read_text())
    shared = requests_of(options, tokens, 2)[0].shared
    requests = [
        Request(shared=shared, own=one["text"], opening=medu_prompts.SCORE, labels=medu_prompts.LABELS) for one in kept
    ]
    server = TinyServer() if options.tiny else VllmServer(options)
    try:
        model = HttpModel(
            Endpoint(url=server.url, model=server.name, form="tokens", connections=options.connections), tokens
        )
        answers_of(model, requests[:8])
        found = answers_of(model, requests)
        speed(options, f"one pass over HTTP, {options.connections} connections", [found])
        apart = np.array([answer.logprobs for answer in found[0]]) - np.array([one["logprobs"] for one in kept])
        same = np.array([answer.logprobs for answer in found[0]]).argmax(1) == np.array(
            [one["logprobs"] for one in kept]
        ).argmax(1)
        tell(
            "server against in process", documents=len(kept), lost=0, largest_difference=float(np.abs(apart).max()),
            median_difference=float(np.median(np.abs(apart))), same_label=float(same.mean()),
            spread_of_labels=float(np.ptp([one["logprobs"] for one in kept], axis=1).mean()),
            within=bool(np.abs(apart).max() <= TOLERANCE),
        )  # fmt: skip
        some = [Request(shared=r.shared, own=r.own, opening=r.opening, max_tokens=32) for r in requests[:64]]
        speed(options, "32 generated tokens over HTTP", [answers_of(model, some)])
    finally:
        server.stop()
    if not np.abs(apart).max() <= TOLERANCE:
        raise SystemExit(f"log-probabilities differ by {np.abs(apart).max():.4f}, more than {TOLERANCE}")


class VllmServer:
    name = "random"

    def __init__(self, options: argparse.Namespace) -> None:
        start = time.perf_counter()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(options.work),
            "--served-model-name", self.name,
            "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "2048",
            "--enable-prefix-caching",
            "--load-format", "dummy" if options.dummy else "auto", "--gpu-memory-utilization", "0.9",
        ]  # fmt: skip
        self.url = f"http://127.0.0.1:{port}/v1"
        self._process = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
        while not self._healthy(f"http://127.0.0.1:{port}/health"):
            if self._process.poll() is not None or time.perf_counter() - start > options.start_seconds:
                self.stop()
                raise SystemExit(
                    f"the server did not start (exit {self._process.returncode}, {time.perf_counter() - start:.0f} s)"
                )
            time.sleep(0.5)
        tell("server ready", seconds=round(time.perf_counter() - start, 1))

    @staticmethod
    def _healthy(url: str) -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


class TinyServer:
    """The made-up engine behind the tests' own server."""

    name = "tiny"

    def __init__(self) -> None:
        from tests.classifiers.llm import fake_vllm
        from tests.classifiers.llm.llm_server import LanguageServer, text_reply

        def rule(path: str, body: dict[str, Any]) -> dict[str, Any]:
            wanted = body.get("logprob_token_ids")
            likely = fake_vllm.likely_of(body["prompt"], wanted) if wanted else {}
            return text_reply("x", {f"token_id:{token}": value for token, value in likely.items()})

        self._server = LanguageServer(rule)
        self._server.__enter__()
        self.url = self._server.url

    def stop(self) -> None:
        self._server.__exit__()


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--generated", type=int, default=1000)
    parser.add_argument("--served", type=int, default=400)
    parser.add_argument("--warm", type=int, default=128)
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--start-seconds", type=float, default=180, help="for the server")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="more arguments of vLLM's LLM, as JSON")
    parser.add_argument("--skip", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.tiny:
        options.documents, options.repeats, options.generated, options.served = 60, 2, 20, 30
        options.warm, options.vocabulary, options.connections = 8, 2000, 8
    return options


def main() -> None:
    options = options_of(None)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.part:
        os.environ.update(ENVIRONMENT)
        start = time.perf_counter()
        if options.part == "prepare":
            prepare(options)
        elif options.part == "serve":
            serve(options)
        else:
            in_process(options, caching=options.part == "caching_on")
        tell("part done", part=options.part, seconds=round(time.perf_counter() - start, 1))
        return
    failed = []
    for part in PARTS:
        if part not in options.skip.split(","):
            ended = subprocess.run(
                [sys.executable, "-m", "benchmarks.judges.medu_vllm", *sys.argv[1:], "--part", part], check=False
            )
            failed += [part] if ended.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
