"""Sections of benchmarks/judges/neural_judge.py beside the loop that people write: from text to scores, and documents
in their own lengths, cut at 8,192 tokens.

`text`: transformers' fast tokenizer (all cores, texts as they are, cut at 512), padded to the longest of a batch, the
model in bf16; ours from the same texts in memory. `whole`: the same shape with 8,192 positions (random weights cost the
same), lengths of pages' main texts; the loop's best batch of several.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.judges.neural_judge_data import CUT, say

LONGEST = 8192


def text(bench: Any) -> None:
    from transformers import PreTrainedTokenizerFast

    from gristmill.classifiers.neural.scoring import Pace
    from gristmill.classifiers.neural.text_tokens import Ahead

    few = pq.read_table(bench.args.folder / "texts.parquet")["text"].combine_chunks().cast(pa.large_string())
    order = np.random.default_rng(4).integers(0, len(few), 64 if bench.args.tiny else 12_000)
    texts = few.take(pa.array(order))
    torch, peer = bench.torch, bench.peer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(bench.args.folder / "tokenizer.json"),
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    strings = texts.to_pylist()

    def loop(most: int) -> int:
        seen, answers = 0, []
        for first in range(0, most, bench.batch):
            inputs = tokenizer(
                strings[first : first + bench.batch], padding=True, truncation=True, max_length=CUT, return_tensors="pt"
            )
            seen += int(inputs["attention_mask"].sum())
            sent = {name: inputs[name].to(bench.device) for name in ("input_ids", "attention_mask")}
            answers.append(peer(**sent).logits)
        torch.cat(answers).float().cpu()
        return seen

    with torch.inference_mode():
        loop(bench.batch)
        begin = time.perf_counter()
        seen = loop(len(strings))
        theirs = time.perf_counter() - begin
    say(
        "text to scores: transformers, padded batches as they come",
        documents_a_second=round(len(strings) / theirs),
        tokens_a_second=round(seen / theirs),
    )
    step = bench.steps[-1]
    pace, ahead = Pace(step_tokens=step, compiled=not bench.args.tiny), Ahead(processes=bench.args.cores)
    for precision in ("bf16",) if bench.args.tiny else ("bf16", "fp8"):
        judge = bench.judge().at(bench.device.type, precision, pace, ahead)
        judge.score(texts.slice(0, 2000))  # compiled, processes at work
        took = []
        for _ in range(3):
            begin = time.perf_counter()
            assert len(judge.score(texts)["quality"]) == len(texts)
            took.append(time.perf_counter() - begin)
        ours = statistics.median(took)
        say(
            "text to scores: ours",
            precision=precision,
            documents_a_second=round(len(texts) / ours),
            tokens_a_second=round(seen / ours),
            ratio=theirs / ours,
        )


def whole(bench: Any) -> None:
    import copy

    from transformers import BertConfig, BertForSequenceClassification

    from gristmill.classifiers.card import Head
    from gristmill.classifiers.neural.encoder import Encoder, EncoderShape
    from gristmill.classifiers.neural.fast_linear import fuse, prepare_inference
    from gristmill.classifiers.neural.network import Network
    from gristmill.classifiers.neural.scoring import Pace, run_steps, steps_of
    from gristmill.classifiers.neural.text_tokens import TextTokenizer, TextTokens

    torch, shape = bench.torch, bench.base
    few = pq.read_table(bench.args.folder / "texts.parquet")["text"].combine_chunks().cast(pa.large_string())
    few = few.slice(0, 50) if bench.args.tiny else few
    tokenizer = TextTokenizer((bench.args.folder / "tokenizer.json").read_text(encoding="utf-8"), LONGEST)
    lengths = (
        np.random.default_rng(5)
        .permutation(np.tile(tokenizer.tokens(few).lengths, 1 if bench.args.tiny else 3))
        .astype(np.int64)
    )
    ids = np.random.default_rng(1).integers(1000, shape.vocabulary, int(lengths.sum()), dtype=np.int32)
    ends = np.cumsum(lengths)
    say(
        "whole: lengths",
        documents=len(lengths),
        mean=float(lengths.mean()),
        median=float(np.median(lengths)),
        cut=float((lengths == LONGEST).mean()),
    )
    config = BertConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.inner,
        max_position_embeddings=LONGEST, num_labels=1, attn_implementation="sdpa",
    )  # fmt: skip
    with bench.device:
        peer: Any = BertForSequenceClassification(config).eval().to(torch.bfloat16)

    def padded(first: int, batch: int) -> tuple[int, Any]:
        mine = lengths[first : first + batch]
        rows, mask = np.zeros((len(mine), int(mine.max())), np.int64), np.arange(int(mine.max())) < mine[:, None]
        rows[mask] = ids[ends[first] - mine[0] : ends[first + len(mine) - 1]]
        sent = [torch.from_numpy(array).to(bench.device) for array in (rows, mask)]
        return int(mine.sum()), peer(sent[0], attention_mask=sent[1]).logits

    best = 0.0
    with torch.inference_mode():
        for batch in (2,) if bench.args.tiny else (4, 16, 64):
            padded(0, batch)
            bench.wait()
            begin = time.perf_counter()
            seen = sum(padded(first, batch)[0] for first in range(0, min(len(lengths), 1024), batch))
            bench.wait()
            rate = seen / (time.perf_counter() - begin)
            say("whole: transformers, padded batches as they come", batch=batch, tokens_a_second=round(rate))
            best = max(best, rate)
    network = Network(
        Encoder(EncoderShape("bert", shape.vocabulary, shape.width, shape.layers, shape.heads, shape.inner, LONGEST)),
        (Head("quality", "regression", (), "random", -100.0, 100.0),),
    )
    step = 16_384 if bench.args.tiny else 65_536
    for engine in ("bf16+fused",) if bench.args.tiny else ("bf16+fused", "fp8+fused"):
        ready = copy.deepcopy(network).to(bench.device)
        prepare_inference(ready.encoder, "fp8" if "fp8" in engine else "bf16")
        fuse(ready.encoder)
        if not bench.args.tiny:
            ready.encoder.compile_for(step)
        pace = Pace(step_tokens=step, compiled=not bench.args.tiny)
        found = []
        for _ in range(2 if bench.args.tiny else 4):
            pieces = [
                TextTokens(ids[ends[i] - lengths[i] : ends[min(i + CUT, len(ends)) - 1]], lengths[i : i + CUT])
                for i in range(0, len(ends), CUT)
            ]
            bench.wait()
            begin = time.perf_counter()
            assert sum(
                len(result.rows) for result in run_steps(steps_of(pieces, pace), ready.answers, bench.device, pace, CUT)
            ) == len(lengths)
            found.append(int(ends[-1]) / (time.perf_counter() - begin))
        rate = statistics.median(found[1:])
        say("whole: ours", engine=engine, step=step, tokens_a_second=round(rate), ratio=rate / best)
