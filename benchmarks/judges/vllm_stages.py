#!/usr/bin/env python3
"""Every stage and plan that asks a language model, through a real vLLM on one GPU: does each run, and how fast.

    python -m benchmarks.judges.vllm_stages --work FOLDER [--text TEXT] [--documents 1000] [--hour 3.0]
      [--only llm_score,refine] [--engine real|fake]

Points: `llm_score` (one pass; prefix cache on), `reasoned`, `ngram` and `draft` (tokens guessed ahead, by what was read
and by the model itself), `feeding` (chosen by measurement), `options` (KV cache in fp8, half of the memory),
`llm_label`, `refine`, `rephrase`, `ocr` (a Gemma 3 of random weights on made scans), and the plans of `judge label` and
`judge rate` (by a description and by a rubric; a model of random weights cannot describe a development set). The model
is that of `medu_vllm.py`: a Llama shape of 1.2B with random weights and a tokenizer trained on TEXT (else on
docs/*.md), so answers are noise and reasoned ones are mostly refused; asking, generating, reading and checking is what
runs. One JSON line a point, with versions: documents a second (the second of two rounds, other documents each), dollars
for a million of them at --hour, and what the stage noted. A point whose counts do not balance, or that fails, has
`failed` and ends the command with 1. On a GPU each point has a process of its own. `--engine fake` runs all of it on
the tests' made-up engine, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.judges import medu_vllm
from gristmill.classifiers.llm import vllm as back_end
from gristmill.classifiers.llm.feeding import FEWEST
from gristmill.pipeline.judging import labelling, medu
from gristmill.stages import LlmLabel, LlmScore, Ocr, Refine, Rephrase
from gristmill.stages.edits.editor import REFUSED

ROOT = Path(__file__).resolve().parents[2]
BYTES = 2_000  # of a document
FED_TURNS = 15  # until the way of feeding is chosen
PAGES = 24  # scans
TEMPLATE = (
    "{% for m in messages %}<|endoftext|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|endoftext|>\n{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}"
)
VISION_TOKENS = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
RUBRIC = "How much does the text teach? Useless: nothing. Okay: something. Great: a lot."
Facts = dict[str, Any]


class Failed(Exception):
    """A point did not do what it should."""


# --- the models and their documents


def prepare(options: argparse.Namespace) -> None:
    """The model that answers and, for `ocr`, one that sees."""
    from transformers import PreTrainedTokenizerFast

    if options.text is None:
        options.text = options.work / "text.txt"
        pages = sorted((ROOT / "docs").glob("*.md"))
        options.text.write_text("\n\n".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")
    medu_vllm.prepare(options)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.work, extra_special_tokens=VISION_TOKENS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(options.vision)
    if not options.tiny:
        write_gemma(options.vision, tokenizer)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.work)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(options.work)


def write_gemma(folder: Path, tokenizer: Any) -> None:
    """A Gemma 3 of random weights: 16 tokens a picture; heads of 64, which all kernels take."""
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessorPil, Gemma3Processor

    torch.manual_seed(0)
    side, tokens = 112, 16
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Gemma3Config(
        text_config={
            **sizes, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": len(tokenizer),
            "max_position_embeddings": 8192, "query_pre_attn_scalar": 64,
        },
        vision_config={**sizes, "image_size": side, "patch_size": 14},
        mm_tokens_per_image=tokens,
        **{f"{name}_index": tokenizer.convert_tokens_to_ids(token) for name, token in VISION_TOKENS.items()},
    )  # fmt: skip
    Gemma3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    pictures = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    Gemma3Processor(pictures, tokenizer, chat_template=TEMPLATE, image_seq_length=tokens).save_pretrained(folder)


def documents(options: argparse.Namespace, seed: int, count: int | None = None) -> pa.RecordBatch:
    """Windows of the text, no two the same, in lines of about 120 characters."""
    count = count or options.documents
    text = " ".join(medu_vllm.text_of(options.text)[:4_000_000].split())
    step = max(1, (len(text) - BYTES) // count)
    windows = [f"{seed} {row} {text[row * step : row * step + BYTES]}" for row in range(count)]
    lines = ["\n".join(window[at : at + 120] for at in range(0, len(window), 120)) for window in windows]
    columns = {"uid": pa.array(range(1, count + 1), pa.uint64()), "text": pa.array(lines), "meta": pa.nulls(count)}
    return pa.record_batch({**columns, "meta": columns["meta"].cast(pa.string())})


def scans(options: argparse.Namespace, seed: int) -> pa.RecordBatch:
    """Files of one scanned page, each with another mark on it."""
    from tests.stages.pdf.made_pdfs import SCAN, pdf

    count = 4 if options.tiny else PAGES
    files = [pdf([SCAN + b" 0 g %d %d 90 90 re f" % (5 * number, 10 + 100 * seed)]) for number in range(count)]
    texts = {name: pa.array([None] * count, pa.string()) for name in ("charset", "text", "url", "meta")}
    columns = {"uid": pa.array(range(count), pa.uint64()), "html": pa.array(files, pa.binary()), **texts}
    return pa.table(columns).to_batches()[0]


# --- points


def scored(options: argparse.Namespace, count: int | None = None, **settings: Any) -> Facts:
    stage = LlmScore(
        model_path=str(options.work), rubric=RUBRIC, labels={"Useless": 0.0, "Okay": 0.5, "Great": 1.0},
        longest_prompt=2048, most_failures=1.0, max_tokens=options.answer_tokens, **settings,
    )  # fmt: skip
    facts = timed(options, stage, partial(documents, options, count=count))
    marks = facts.pop("batch").column("llm_score")
    unread = sum(number for name, number in facts["noted"].items() if name.startswith("llm_unread:"))
    balance(marks.null_count == unread, f"{marks.null_count} documents without a mark, {unread} unread answers")
    balance(settings.get("reading") == "reasoned" or not unread, f"{unread} answers of one pass could not be read")
    if settings.get("reading") == "reasoned":
        return facts | {"marks": len(marks) - unread}
    values, kept = marks.to_pylist(), options.work / "marks.json"
    if not settings:
        kept.write_text(json.dumps(values))
    plain = json.loads(kept.read_text()) if kept.is_file() else []
    apart = [abs(one - other) for one, other in zip(values, plain, strict=False)] if len(plain) == len(values) else []
    return facts | {"marks": len(values), "largest_difference_to_plain": max(apart, default=None)}


def labelled(options: argparse.Namespace) -> Facts:
    stage = LlmLabel(model_path=str(options.work), taxonomy="topic", longest_prompt=4096, most_failures=1.0)
    facts = timed(options, stage, partial(documents, options))
    column = facts.pop("batch").column("topic").to_pylist()
    return facts | {"labels": len({*column}), "unknown": column.count("unknown")}


def edited(options: argparse.Namespace, kind: type[Refine | Rephrase], prefix: str, **settings: Any) -> Facts:
    stage = kind(model_path=str(options.work), longest_prompt=4096, most_failures=1.0, **settings)
    facts = timed(options, stage, partial(documents, options))
    facts.pop("batch")
    noted = {name.removeprefix(f"{prefix}_"): number for name, number in facts["noted"].items()}
    refused = sum(number for name, number in noted.items() if name.startswith(REFUSED))
    balance(noted["documents"] == options.documents, f"{noted['documents']} documents of {options.documents}")
    balance(noted["asked"] == noted.get("accepted", 0) + refused, f"{noted['asked']} asked, {refused} refused")
    return facts


def read(options: argparse.Namespace) -> Facts:
    stage = Ocr(model_path=str(options.vision), longest_prompt=2048, max_tokens=options.answer_tokens, most_failures=0)
    facts = timed(options, stage, partial(scans, options))
    pages = facts.pop("batch")
    balance(facts["noted"]["ocr_pages"] == len(pages), f"{facts['noted']['ocr_pages']} pages of {len(pages)}")
    return facts


def timed(options: argparse.Namespace, stage: Any, batch: Callable[[int], pa.RecordBatch]) -> Facts:
    for seed in range(2):  # the first is for warming up
        given = batch(seed)
        start = time.perf_counter()
        done = stage.checked(given)
        seconds = time.perf_counter() - start
    speed = len(given) / seconds
    return {
        "batch": done.batch, "documents": len(given), "seconds": round(seconds, 2), "a_second": round(speed, 1),
        "dollars_a_million_documents": round(1e6 / speed / 3600 * options.hour, 2), "noted": dict(done.noted),
    }  # fmt: skip


def planned(options: argparse.Namespace, command: str) -> Facts:
    """`judge label` or `judge rate` by a plan, in a folder of its own."""
    folder = options.work / command
    folder.mkdir(exist_ok=True)
    texts = documents(options, 2).column("text").to_pylist()
    half = len(texts) // 2
    for name, some in (("a", texts[:half]), ("b", texts[half:])):
        pq.write_table(pa.table({"text": some}), folder / f"{name}.parquet")
    model = {"model_path": str(options.work), "longest_prompt": 4096}
    common = {"out": str(folder / "out"), "model": model, "most_failures": 1.0}
    tasks = {"educational": {"description": "Educational value."}, "depth": {"rubric": RUBRIC}}
    plans: Mapping[str, Facts] = {
        "label": {"texts": "*.parquet", "taxonomy": "format", "twice": 0.1},
        "rate": {"sources": {"a": "a.parquet", "b": "b.parquet"}, "tasks": tasks, "most": max(2, half)},
    }
    (folder / "plan.yaml").write_text(json.dumps(common | plans[command]))
    start = time.perf_counter()
    if command == "label":
        found = labelling.LabelJob.of(labelling.load(folder / "plan.yaml"), None).carry_out()
        account, figures = found.facts["account"], {"texts": found.facts["texts"]}
        balance(found.facts["texts"] == len(texts), f"{found.facts['texts']} texts of {len(texts)}")
    else:
        rated = medu.RateJob.of(medu.load(folder / "plan.yaml"), None).carry_out()
        account, figures = rated.account.as_dict(), {"tasks": list(rated.utilities.tasks)}
        balance(list(rated.utilities.tasks) == list(tasks), f"tasks {rated.utilities.tasks}")
    return {"seconds": round(time.perf_counter() - start, 2), "account": account, **figures}


def balance(holds: bool, counts: str) -> None:
    if not holds:
        raise Failed(f"counts do not balance: {counts}")


def points(options: argparse.Namespace) -> dict[str, Callable[[], Facts]]:
    reasoned = {"reading": "reasoned"}
    half = {
        "dtype": "bfloat16", "gpu_memory": 0.5, "engine_options": {"kv_cache_dtype": "fp8", "max_num_seqs": 128}
    }  # fmt: skip
    return {
        "llm_score": partial(scored, options),
        "reasoned": partial(scored, options, **reasoned),
        "ngram": partial(scored, options, **reasoned, speculative="ngram"),
        "draft": partial(scored, options, **reasoned, speculative=str(options.work), speculative_tokens=3),
        "feeding": partial(scored, options, count=FED_TURNS * back_end.TURN, measure_feeding=True),
        "options": partial(scored, options, **half),
        "llm_label": partial(labelled, options),
        "refine": partial(edited, options, Refine, "refine", max_tokens=options.refine_tokens),
        "rephrase": partial(edited, options, Rephrase, "rephrase", styles=["wiki"], max_tokens=options.rephrase_tokens),
        "ocr": partial(read, options),
        "judge label": partial(planned, options, "label"),
        "judge rate": partial(planned, options, "rate"),
    }


def run(options: argparse.Namespace, name: str) -> bool:
    """Measure a point, and tell it; False where it failed."""
    try:
        facts = points(options)[name]()
    except Exception as error:  # the other points are still worth having
        facts = {"failed": f"{type(error).__name__}: {error}"}
    medu_vllm.tell(
        f"stage: {name}", engine=options.engine, machine=medu_vllm.machine(), versions=medu_vllm.versions(), **facts
    )
    return "failed" not in facts


def options_of(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for the models; some 3 GB on a GPU")
    parser.add_argument("--text", type=Path, help="a Parquet file with a column `text`, or plain text")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--answer-tokens", type=int, default=128)
    parser.add_argument("--refine-tokens", type=int, default=64)
    parser.add_argument("--rephrase-tokens", type=int, default=384)
    parser.add_argument("--hour", type=float, default=3.0, help="dollars of the GPU")
    parser.add_argument("--vocabulary", type=int, default=32_768)
    parser.add_argument("--only", default="", help="points, separated by commas")
    parser.add_argument("--engine", choices=["real", "fake"], default="real")
    parser.add_argument("--point", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.vision, options.dummy, options.tiny = options.work / "vision", False, options.engine == "fake"
    if options.tiny:
        options.documents, options.vocabulary = 20, 2000
    return options


def main(words: list[str] | None = None) -> None:
    options = options_of(words)
    os.environ.update(medu_vllm.ENVIRONMENT)
    options.work.mkdir(parents=True, exist_ok=True)
    back_end.TURN = FEWEST
    if options.engine == "fake":
        back_end._imported = partial(medu_vllm.vllm_module, options)  # type: ignore[assignment]
    if options.point:
        options.text = options.text or options.work / "text.txt"
        raise SystemExit(0 if run(options, options.point) else 1)
    prepare(options)
    chosen = [name for name in points(options) if not options.only or name in options.only.split(",")]
    failed = []
    for name in chosen:
        if options.engine == "fake":
            failed += [] if run(options, name) else [name]
            continue
        command = [sys.executable, "-m", "benchmarks.judges.vllm_stages", *(words or sys.argv[1:]), "--point", name]
        failed += [name] if subprocess.run(command, check=False).returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
