#!/usr/bin/env python3
"""Vectors of 256 numbers at scale: k-means and near pairs of a million on the CPU, nearest centres on a GPU. One JSON
line a result.

    python -m benchmarks.dedup.vectors cpu [--vectors 1000000] [--clusters 1000]
    python -m benchmarks.dedup.vectors gpu [--vectors 8000000] [--times 5]
    python -m benchmarks.dedup.vectors embed [--documents 20000]

`cpu`: the rounds of `semantic_clusters` and those of `semantic_dedup` up to its pairs, on made vectors (groups of 1 to
40 around 2,000 topics, so that there are near pairs to find), in one process; matmuls use the threads that
OPENBLAS_NUM_THREADS allows. `gpu`: vectors a second from the GPU's memory and from the machine's, and whether all
places equal the CPU's (exits 1 where one does not). `embed`: texts a second of `corpus_embed` and of a static model
that is made for it, on made texts of 300 words.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.vectors import int8

WIDTH = 256


def show(what: str, **facts: object) -> None:
    versions = {name: version(name) for name in ("numpy", "numba")}
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "all")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} BLAS threads"
    print(json.dumps({"what": what, **facts, "machine": machine, "versions": versions}), flush=True)


def made(count: int, topics: int = 2000, seed: int = 1) -> np.ndarray:
    """int8: groups of 1 to 40 near each other, around topics of uneven size."""
    dice = np.random.default_rng(seed)
    middles = dice.normal(size=(topics, WIDTH)).astype(np.float32)
    of_topic = np.minimum(dice.zipf(1.3, count // 4) - 1, topics - 1)
    sizes = np.minimum(dice.zipf(2.0, len(of_topic)), 40)
    groups = np.repeat(np.arange(len(sizes)), sizes)[:count]
    groups = np.concatenate([groups, dice.integers(0, len(sizes), count - len(groups))])
    out = np.empty((count, WIDTH), np.int8)
    own = dice.normal(size=(len(sizes), WIDTH)).astype(np.float32)
    for start in range(0, count, 100_000):
        rows = groups[start : start + 100_000]
        noise = dice.normal(size=(len(rows), WIDTH)).astype(np.float32)
        out[start : start + len(rows)] = int8.rounded(middles[of_topic[rows]] + 0.8 * own[rows] + 0.25 * noise)
    return out


def on_cpu(count: int, clusters: int) -> None:
    from gristmill.stages import SemanticClusters, SemanticDedup
    from gristmill.stages.local_flow import LocalDocuments, LocalFlow

    vectors = made(count)
    table = pa.table(
        {
            "uid": mixed_all(np.arange(1, count + 1, dtype=np.uint64)),
            "source": pa.array(["a"] * count).dictionary_encode(),
            "url": pa.array([""] * count),
            "date": pa.array([""] * count),
            "text": pa.array([""] * count),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), WIDTH),
        }
    )
    small = table.slice(0, 2000)
    SemanticClusters(clusters=4)(small)  # kernels are compiled before the clock runs
    int8.near_pairs(vectors[:50], 0.5, 64, 20_000)
    flow, start = LocalFlow(), time.perf_counter()
    after = SemanticClusters(clusters=clusters).run(LocalDocuments([table]), flow)
    learned = time.perf_counter()
    stage = SemanticDedup()
    columns = ("uid", "embedding", "cluster", "cluster_similarity")
    rows = flow.map(stage.sign, after, columns=columns, by="key")
    pairs = flow.reduce(stage.nominate, rows)
    end = time.perf_counter()
    facts = {name: value for name, value in flow.metrics["semantic_clusters"].items() if name != "sizes"}
    show("k-means of vectors", vectors=count, width=WIDTH, centres=clusters, seconds=round(learned - start, 1), **facts)
    show("near pairs in clusters", vectors=count, pairs=pairs.count, seconds=round(end - learned, 1))


def on_gpu(count: int, times: int) -> bool:
    import torch

    from gristmill.kernels.gpu import nearest as gpu

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
    base = made(min(count, 1_000_000))
    vectors = np.concatenate([base] * -(-count // len(base)))[:count]
    same = True
    for centres in (1024, 4096, 16384) if device.type == "cuda" else (16,):
        middles = made(centres, seed=2)
        some = base[:20_000] if device.type == "cuda" else base[:200]
        wanted, found = int8.nearest(some, middles), gpu.nearest(some, middles, device)
        equal = all(np.array_equal(one, other) for one, other in zip(wanted, found, strict=True))
        same &= equal
        on_device = [torch.from_numpy(array).to(device) for array in (vectors, middles, int8.inverse_lengths(middles))]
        taken: dict[str, list[float]] = {"GPU": [], "host": []}
        for _ in range(times + 1):
            start = time.perf_counter()
            gpu.nearest_on_device(*on_device)
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken["GPU"].append(time.perf_counter() - start)
        for _ in range(2):
            start = time.perf_counter()
            gpu.nearest(vectors, middles, device)
            taken["host"].append(time.perf_counter() - start)
        for memory, all_seconds in taken.items():
            seconds = statistics.median(all_seconds[1:])
            show(
                "nearest centre", device=name, memory=memory, vectors=count, centres=centres,
                million_a_second=round(count / seconds / 1e6, 2),
                tera_operations_a_second=round(2 * count * centres * WIDTH / seconds / 1e12, 1), equal_to_cpu=equal,
            )  # fmt: skip
    return same


def embeddings(count: int) -> None:
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    from gristmill.stages import CorpusEmbed, Embed

    dice = random.Random(1)
    words = [f"{dice.choice('bcdfgklmnprst')}{dice.choice('aeiou')}{n}" for n in range(20_000)]
    weights = [1 / (n + 5) for n in range(len(words))]
    texts = pa.table({"text": [" ".join(dice.choices(words, weights, k=300)) for _ in range(count)]})
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = {word: n for n, word in enumerate(["[UNK]", *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(f"{folder}/tokenizer.json")
        Path(f"{folder}/config.json").write_text('{"model_type": "model2vec"}', encoding="utf-8")
        table = np.random.default_rng(1).normal(size=(len(vocabulary), WIDTH)).astype(np.float32)
        save_file({"embeddings": table}, f"{folder}/model.safetensors")
        for stage in (CorpusEmbed(sample=2), Embed(model_path=folder)):
            stage(texts.slice(0, 10))
        for name, stage in (
            ("corpus_embed", CorpusEmbed(sample=5000)),
            ("embed, a static model", Embed(model_path=folder)),
        ):
            start, wall = time.process_time(), time.perf_counter()
            stage(texts)
            core, seconds = time.process_time() - start, time.perf_counter() - wall
            show("embedding", stage=name, texts=count, words=300, texts_a_core_second=round(count / core), seconds=round(seconds, 1))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cpu", "gpu", "embed"))
    parser.add_argument("--vectors", type=int)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    if given.what == "cpu":
        on_cpu(given.vectors or 1_000_000, given.clusters)
    elif given.what == "embed":
        embeddings(given.documents)
    elif not on_gpu(given.vectors or 8_000_000, given.times):
        sys.exit(1)


if __name__ == "__main__":
    main()
