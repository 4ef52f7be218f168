"""Speed of `tokenize` beside DataTrove's `DocumentTokenizer`, with the same tokenizer on the same texts; and of training.

    python benchmarks/tokenization.py --datatrove /path/to/venv

DataTrove runs in its own virtual environment, through its own class, written to a folder and not shuffled. Both on one core (RAYON_NUM_THREADS=1), in seconds
of the processor, so that other work on the machine does not count. The peer's have its writing of the file in them, ours the Arrow column of ids.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stages import Tokenize
from stages.tokens.encoding import Encoder
from stages.tokens.training import SPECIALS, trained
from stages.tokens.vocabulary import Vocabulary

PACKAGES = ("gristmill", "tokenizers", "pyarrow")
DATATROVE = """
import json, sys, tempfile, time
from loguru import logger
logger.remove()
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer
texts, tokenizer = json.load(sys.stdin), sys.argv[1]
documents = [Document(text=text, id=str(i)) for i, text in enumerate(texts)]
for times in range(int(sys.argv[2])):
    with tempfile.TemporaryDirectory() as folder:
        step = DocumentTokenizer(folder, tokenizer_name_or_path=tokenizer, eos_token="<|endoftext|>", shuffle_documents=False)
        step.tokenizer
        start = time.process_time()
        step.run(iter(documents))
        print(time.process_time() - start)
"""


def timed(function: Callable[[], Any], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return seconds


def report(**result: Any) -> None:
    facts = {"machine": platform.processor() or platform.machine(), "versions": {package: version(package) for package in PACKAGES}}
    print(json.dumps(result | facts), flush=True)


def in_mb(megabytes: float, seconds: list[float]) -> dict[str, Any]:
    speeds = [megabytes / s for s in seconds]
    return {"median": round(statistics.median(speeds), 2), "spread": [round(min(speeds), 2), round(max(speeds), 2)]}


def training(texts: list[str], vocab_size: int) -> str:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    made: list[str] = []
    seconds = timed(lambda: made.append(trained(texts, vocab_size, 2, list(SPECIALS.values()))), 1)
    report(what=f"training a vocabulary of {vocab_size:,}, MB/s", sizes={"MB": round(megabytes, 1)}, **in_mb(megabytes, seconds))
    return made[0]


def encoding(name: str, texts: list[str], tokenizer: str, times: int, datatrove: Path | None) -> None:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    stage, rows = Tokenize(), Vocabulary("bench", tokenizer, dict(SPECIALS)).table()
    docs = pa.table({"uid": np.arange(len(texts), dtype=np.uint64), "text": texts})
    tokens = int(np.sum(stage.encode(docs, rows)["tokens"].to_numpy()))
    mine = in_mb(megabytes, timed(lambda: stage.encode(docs, rows), times))
    common: dict[str, Any] = {
        "what": f"tokenize, {name}, MB/s of one core",
        "sizes": {"MB": round(megabytes, 1), "documents": len(texts), "tokens": tokens},
        "bytes_per_token": round(megabytes * 1e6 / (tokens - len(texts)), 3),
    }
    if datatrove is None:
        report(**common, **mine)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(tokenizer)
        file.flush()
        command = [datatrove / "bin" / "python", "-c", DATATROVE, file.name, str(times)]
        done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    peer = in_mb(megabytes, [float(line) for line in done.stdout.split()])
    report(**common, **mine, peer=f"DataTrove DocumentTokenizer {peer['median']}", ratio=round(mine["median"] / peer["median"], 2))


def one_line(texts: list[str], tokenizer: str) -> None:
    """A document of 10 MB without a line end: memory is why long texts are cut."""
    text = " ".join(texts).replace("\n", " ")
    text = (text * (10_000_000 // len(text) + 1))[:10_000_000]
    encoder, megabytes = Encoder(tokenizer), len(text.encode()) / 1e6
    seconds = timed(lambda: encoder.encode([text]), 1)
    report(
        what="one document on one line, MB/s",
        sizes={"MB": round(megabytes, 1), "pieces": len(list(encoder.pieces(text)))},
        **in_mb(megabytes, seconds),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--datatrove", type=Path, help="a virtual environment with datatrove and tokenizers")
    arguments = parser.parse_args()
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    files = {"prose": "prose.parquet", "web pages": "rule_verdicts.parquet", "sentences of 75 languages": "languages.parquet"}
    found = {name: arguments.data / file for name, file in files.items() if (arguments.data / file).exists()}
    for name in files.keys() - found.keys():
        print(f"{arguments.data / files[name]} is not here: {name} left out", file=sys.stderr)
    texts = {name: pq.read_table(path)["text"].to_pylist() for name, path in found.items()}
    if not texts:
        sys.exit(f"nothing to measure on in {arguments.data}")
    tokenizer = training([text for several in texts.values() for text in several], arguments.vocab_size)
    for name, several in texts.items():
        encoding(name, several[:10_000], tokenizer, arguments.times, arguments.datatrove)
    one_line(next(iter(texts.values())), tokenizer)


if __name__ == "__main__":
    main()
