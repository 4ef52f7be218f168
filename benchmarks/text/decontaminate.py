#!/usr/bin/env python3
"""Decontamination: MB of text a second against an index of a million n-grams, and beside DataTrove's
NGramsDecontFilter. One JSON line a result.

    python -m benchmarks.text.decontaminate [TEXTS.parquet] [--items N] [--times N] [--datatrove PYTHON] [--peer-items
      N] [--peer-mb N]

Items are questions of 52 words drawn from the texts by a seed; one in fifty is planted at the end of a text. Seconds
are of the process's CPU. The peer judges the first texts with fewer items, at its own n of 12, which ours is then given
too; its index is made by its own functions in the format its filter reads, outside the time measured. Found are the
planted items of those whose text was judged.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages import BenchmarkOverlap, CutContamination, Decontaminate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "rule_verdicts.parquet"
SEED = 11
WORDS = 52

PEER = """
import json, sys, time
import numpy as np
from loguru import logger
logger.remove()
from datatrove.data import Document
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter, NGramsDecontIndexer
from datatrove.utils.text import ngrams, simplify_text
items, texts, folder = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), sys.argv[3]
rule = NGramsDecontFilter(folder, NGramsDecontConfig(n_grams=12))
hashes = set()
for item in items:
    words = rule.tokenizer.word_tokenize(simplify_text(item, rule.config.norm_config))
    hashes.update(rule.hash_func(" ".join(run)) for run in ngrams(words, 12))
np.array(sorted(hashes), rule.config.hash_config.np_descr).tofile(folder + "/made.index.hashes")
rule.filter(Document(text="nothing", id="0"))
started = time.process_time()
found = [row for row, text in enumerate(texts) if rule.filter(Document(text=text, id=str(row))) is not True]
print(json.dumps({"seconds": time.process_time() - started, "found": found, "ngrams": len(hashes)}))
"""


def made_items(texts: list[str], count: int) -> list[str]:
    rng = random.Random(SEED)
    words = sorted({word for text in texts for word in text.split() if word.isascii() and word.isalpha()})
    return [" ".join(rng.choices(words, k=WORDS)) for _ in range(count)]


def planted(texts: list[str], items: list[str]) -> tuple[list[str], set[int]]:
    rows = range(0, len(texts), 50)
    return [f"{text}\n{items[row % len(items)]}" if row in rows else text for row, text in enumerate(texts)], set(rows)


def settings(folder: str, items: list[str], ngram: int) -> dict:
    pq.write_table(pa.table({"question": items}), Path(folder) / "made.parquet")
    return {
        "benchmarks_path": folder,
        "ngram": ngram,
        "benchmarks": [{"name": "made", "path": "made.parquet", "fields": ["question"]}],
    }


def timed(
    stage: BenchmarkOverlap | CutContamination, batch: pa.RecordBatch, times: int
) -> tuple[list[float], pa.RecordBatch]:
    done, seconds = stage.apply(batch).batch, []
    for _ in range(times):
        started = time.process_time()
        stage.apply(batch)
        seconds.append(time.process_time() - started)
    return seconds, done


def line(what: str, sizes: dict, values: list[float], **more: object) -> None:
    versions = {name: version(name) for name in ("numba", "pyarrow", "numpy")}
    machine = f"{platform.machine()} {platform.system()} {os.cpu_count()} CPUs"
    row = {
        "what": what,
        "machine": machine,
        "versions": versions,
        "sizes": sizes,
        "median": round(statistics.median(values), 2),
    }
    print(json.dumps(row | {"spread": [round(min(values), 2), round(max(values), 2)]} | more), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=DATA, help="a Parquet file with a column `text`")
    parser.add_argument("--items", type=int, default=25_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--datatrove", help="the Python of an environment that has DataTrove and spaCy")
    parser.add_argument("--peer-items", type=int, default=1_000)
    parser.add_argument("--peer-mb", type=float, default=2.0)
    arguments = parser.parse_args()
    given = [text or "" for text in pq.read_table(arguments.file)["text"].to_pylist()]
    items = made_items(given, arguments.items)
    texts, rows = planted(given, items)
    batch, megabytes = pa.record_batch({"text": texts}), sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        for kind in (BenchmarkOverlap, CutContamination):
            stage = kind(**settings(folder, items, 13))
            started = time.perf_counter()
            sought = stage.sought()
            built = time.perf_counter() - started
            seconds, done = timed(stage, batch, arguments.times)
            signal = "contaminated_ngrams" if kind is BenchmarkOverlap else "contamination_cuts"
            found = {row for row, count in enumerate(done[signal].to_pylist()) if count}
            sizes = {
                "mb": round(megabytes, 1),
                "texts": len(texts),
                "items": len(items),
                "ngrams": len(sought.runs.places),
                "seed": SEED,
            }
            line(f"{kind.recipe_name()}: MB of text a second", sizes, [megabytes / s for s in seconds],
            index_seconds=round(built, 2),
                 planted=len(rows), found=len(found & rows), others=len(found - rows))  # fmt: skip
    if arguments.datatrove:
        beside(given, arguments)


def beside(given: list[str], arguments: argparse.Namespace) -> None:
    items = made_items(given, arguments.peer_items)
    texts, rows = planted(given, items)
    while sum(map(len, texts)) > arguments.peer_mb * 1e6:
        texts = texts[: len(texts) * 9 // 10]
    rows &= set(range(len(texts)))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        stage = BenchmarkOverlap(**settings(folder, items, 12))
        seconds, done = timed(stage, pa.record_batch({"text": texts}), arguments.times)
        gone = ~Decontaminate(at_least="any").apply(done).verdict.kept
        found = {row for row in range(len(texts)) if gone[row]}
        names = [Path(folder) / "items.json", Path(folder) / "texts.json"]
        for name, values in zip(names, (items, texts), strict=True):
            name.write_text(json.dumps(values))
        index = Path(folder) / "index"
        index.mkdir()
        run = [arguments.datatrove, "-c", PEER, *map(str, names), str(index)]
        peer = json.loads(subprocess.run(run, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    theirs = set(peer["found"])
    sizes = {
        "mb": round(megabytes, 2),
        "texts": len(texts),
        "items": len(items),
        "ngrams": peer["ngrams"],
        "seed": SEED,
    }
    line("benchmark_overlap at n = 12: MB of text a second", sizes, [megabytes / s for s in seconds],
         peer="datatrove NGramsDecontFilter", peer_median=round(megabytes / peer["seconds"], 3),
         ratio=round(peer["seconds"] / statistics.median(seconds), 1), planted=len(rows), found=len(found & rows),
         others=len(found - rows),
         peer_found=len(theirs & rows), peer_others=len(theirs - rows))  # fmt: skip


if __name__ == "__main__":
    main()
