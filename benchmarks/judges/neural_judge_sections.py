"""Sections of benchmarks/judges/neural_judge.py that are not about one forward pass: from disk to disk, a judge trained
and compared, int8 on a CPU."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.judges.neural_judge_data import CUT, say, trained_tokenizer


def disk(bench: Any) -> None:
    """From text on disk (Parquet) to scores on disk, against the same with tokens in memory. Texts of the file repeat
    until there are enough."""
    from gristmill.classifiers.neural.scoring import Pace, run_steps, steps_of
    from gristmill.classifiers.neural.text_tokens import Ahead, tokenise

    texts = pq.read_table(bench.args.folder / "texts.parquet")["text"].combine_chunks().cast(pa.large_string())
    order = np.random.default_rng(2).integers(0, len(texts), bench.texts_on_disk)
    step = bench.steps[-1]
    compiled = not bench.args.tiny
    cores = bench.args.cores
    ways = {"processes": Ahead(processes=cores), "threads": Ahead(workers=cores)}
    judge = bench.judge().at(bench.device.type, "bf16", Pace(step_tokens=step, compiled=compiled), ways["processes"])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.parquet"
        writer = pq.ParquetWriter(source, pa.schema([("text", pa.large_string())]))
        for start in range(0, len(order), 2000):
            writer.write_table(
                pa.table({"text": texts.take(pa.array(order[start : start + 2000]))}), row_group_size=1000
            )
        writer.close()
        say("disk: the file", texts=len(order), bytes=source.stat().st_size)
        judge.engine.answers(bench.rows(step))
        list(tokenise([texts[:64]] * cores, judge.tokenizer, Ahead(processes=cores, texts=16)))  # processes are at work
        bench.wait()

        def batches() -> Iterator[pa.Array]:
            for batch in pq.ParquetFile(source).iter_batches(batch_size=1000, columns=["text"]):
                yield batch.column(0)

        pieces, rates = [], {}
        for way, ahead in ways.items():
            begin = time.perf_counter()
            pieces = list(tokenise(batches(), judge.tokenizer, ahead))
            rates[way] = sum(len(piece.ids) for piece in pieces) / (time.perf_counter() - begin)
            say("disk: reading and tokenising alone", way=way, cores=cores, tokens_a_second=round(rates[way]))
        total = sum(len(piece.ids) for piece in pieces)
        begin = time.perf_counter()
        sum(
            len(result.rows)
            for result in run_steps(steps_of(pieces, judge.pace), judge.engine.answers, bench.device, judge.pace, CUT)
        )
        in_memory = total / (time.perf_counter() - begin)
        say("disk: tokens in memory", tokens_a_second=round(in_memory))
        for way, ahead in ways.items():
            begin = time.perf_counter()
            rows = 0
            with pq.ParquetWriter(Path(folder) / f"{way}.parquet", pa.schema([("quality", pa.float32())])) as sink:
                for scores in replace(judge, ahead=ahead).output_batches(batches()):
                    sink.write_table(pa.table({"quality": scores["quality"]}))
                    rows += len(scores["quality"])
            assert rows == len(order)
            rate = total / (time.perf_counter() - begin)
            say(
                "disk: text on disk to scores on disk",
                way=way,
                cores=cores,
                tokens_a_second=round(rate),
                share_of_memory=rate / in_memory,
            )


def train(bench: Any) -> None:
    """A small judge with two heads, trained here; scores in bf16 and fp8 against float32, and the order that fp8 keeps."""
    from gristmill.classifiers.card import Head
    from gristmill.classifiers.neural.training import NeuralRecipe, train_neural
    from gristmill.classifiers.training_sets import held_out, labelled_texts
    from gristmill.mixing.weights.spearman import spearman
    from gristmill.trainer.step.optim import AdamW

    table = pq.read_table(bench.args.folder / "labelled.parquet")
    heads = (
        Head("quality", "probability", ("page", "prose"), "reads like a book or an encyclopedia"),
        Head("common_words", "regression", (), "share of the most common English words"),
    )
    recipe = NeuralRecipe(epochs=bench.epochs, optimizer=AdamW(rate=3e-4, faster=(("heads.", 3.0),)), held_out=0.25)
    outside = held_out(labelled_texts(table, label="quality", group="host"), recipe.held_out, recipe.seed)
    inside = table.filter(pa.array(~outside))
    tokenizer = trained_tokenizer([text[:20_000] for text in inside["text"].to_pylist()], bench.small.vocabulary)
    begin = time.perf_counter()
    judge = train_neural(
        table, heads, tokenizer, bench.small, recipe, group="host", device=bench.device.type, log=lambda facts: None
    )
    took = time.perf_counter() - begin
    metrics, facts = judge.card.metrics, judge.card.training
    say(
        "train: held-out hosts", seconds=took, updates=facts["updates"], texts=facts["texts"],
        held_out=facts["held_out"],
        auc=metrics["quality"].get("auc"), spearman_of_common_words=metrics["common_words"]["spearman"],
    )  # fmt: skip
    texts = table["text"].filter(pa.array(outside))
    texts = texts.slice(0, 40) if bench.args.tiny else texts
    found = {(p, True): judge.at(bench.device.type, p).score(texts) for p in ("float32", "bf16", "fp8")}
    for precision in ("bf16", "fp8"):
        coarse = judge.at(bench.device.type, precision)
        coarse.engine.encoder.fine = None
        found[precision, False] = coarse.score(texts)
    theirs = {p: peer_scores(judge, texts, bench.device, p, 4 if bench.args.tiny else 32) for p in ("float32", "bf16")}
    for head in heads:
        exact = found["float32", True][head.name].astype(np.float64)
        for precision, fine in (("bf16", True), ("fp8", True), ("bf16", False), ("fp8", False)):
            now = found[precision, fine][head.name].astype(np.float64)
            say(
                "train: scores against float32", head=head.name, precision=precision, first_tokens_finer=fine,
                texts=len(exact),
                **differences(exact, now), spearman_to_bf16=spearman(found["bf16", fine][head.name], now),
            )  # fmt: skip
        for precision, scores in theirs.items():
            now = scores[head.name].astype(np.float64)
            say(
                "train: transformers against our float32",
                head=head.name,
                precision=precision,
                texts=len(exact),
                **differences(exact, now),
            )
    if bench.args.judge is not None:
        judge.save(bench.args.judge)


def differences(exact: Any, now: Any) -> dict[str, float]:
    from gristmill.mixing.weights.spearman import spearman

    off = np.abs(now - exact)
    return {
        "relative_norm": float(np.linalg.norm(off) / np.linalg.norm(exact)),
        "largest_relative": float((off / np.maximum(np.abs(exact), 1e-3)).max()),
        "largest_difference": float(off.max()),
        "spearman_to_float32": spearman(exact, now),
    }


def peer_scores(judge: Any, texts: Any, device: Any, precision: str, batch: int) -> dict[str, Any]:
    """The same weights in transformers' BertModel, padded batches, SDPA; the heads on its first vector in float32."""
    import torch
    from transformers import BertConfig, BertModel

    from gristmill.classifiers.neural.encoder_weights import BERT

    encoder, shape = judge.network.encoder, judge.network.encoder.shape
    config = BertConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner, max_position_embeddings=shape.positions, layer_norm_eps=shape.norm_eps,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False).eval()
    weights = {"embeddings.token_type_embeddings.weight": torch.zeros(config.type_vocab_size, shape.width)}
    outside = {
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
    }
    for name, tensor in encoder.state_dict().items():
        *where, kind = name.split(".")
        if where[0] == "blocks":
            theirs = [f"encoder.layer.{where[1]}.{part}" for part in BERT[where[2]]]
        else:
            theirs = [outside[where[0]]]
        weights |= {f"{part}.{kind}": some for part, some in zip(theirs, tensor.chunk(len(theirs)), strict=True)}
    model.load_state_dict(weights)
    model.to(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    heads = copy.deepcopy(judge.network.heads).to(device)
    answers = []
    with torch.inference_mode():
        for start in range(0, len(texts), batch):
            ids, lengths = judge.tokenizer.tokens(pa.array(texts.slice(start, batch).to_pylist(), pa.large_string()))
            mask = np.arange(lengths.max()) < lengths[:, None]
            padded = np.zeros(mask.shape, np.int64)
            padded[mask] = ids
            sent, there = torch.from_numpy(padded).to(device), torch.from_numpy(mask).to(device)
            answers.append(heads(model(sent, attention_mask=there.long()).last_hidden_state[:, 0].float()).cpu())
    columns = torch.cat(answers).double().unbind(-1)  # each head is one number
    return {
        head.name: (
            column.sigmoid()
            if head.kind == "probability"
            else (head.low + (head.high - head.low) * column).clamp(head.low, head.high)
        ).numpy()
        for head, column in zip(judge.card.heads, columns, strict=True)
    }


def cpu(bench: Any) -> None:
    """int8 against float32 on one core, alternating; the best of twelve, by the time that this process has used."""
    from gristmill.classifiers.neural.encoder import Encoder, EncoderShape, PackedTexts
    from gristmill.classifiers.neural.fast_linear import prepare_inference

    torch, length, texts = bench.torch, 256, 8
    torch.set_num_threads(1)
    packed = PackedTexts(
        torch.randint(0, 16_000, (texts * length,), dtype=torch.int32),
        torch.arange(length, dtype=torch.int32).repeat(texts),
        torch.arange(0, texts * length + 1, length, dtype=torch.int32),
        length,
    )
    for width, layers in ((384, 6), (768, 2)):
        plain = Encoder(EncoderShape("bert", 16_000, width, layers, width // 64, 4 * width, CUT))
        engines = {precision: prepare_inference(copy.deepcopy(plain), precision) for precision in ("float32", "int8")}
        best = dict.fromkeys(engines, float("inf"))
        with torch.inference_mode():
            for _ in range(3 if bench.args.tiny else 12):
                for name, engine in engines.items():
                    begin = time.process_time()
                    engine(packed)
                    best[name] = min(best[name], time.process_time() - begin)
        rates = {name: round(texts * length / took) for name, took in best.items()}
        say("one CPU core, tokens a second", width=width, layers=layers, **rates, ratio=best["float32"] / best["int8"])
