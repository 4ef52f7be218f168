"""Speed of `tokenize` beside the package `tokenizers`, DataTrove's `DocumentTokenizer` and tiktoken, with the same
tokenizer on the same texts; and of training.

    python -m benchmarks.tokens.tokenization --datatrove /path/to/venv --tiktoken /path/to/venv

Peers run in virtual environments of their own: DataTrove through its own class, written to a folder and not shuffled;
tiktoken by `encode_ordinary` of one text after another. All on one core (RAYON_NUM_THREADS=1), in seconds of the
processor, so that other work on the machine does not count. DataTrove's have its writing of the file in them, ours the
Arrow column of ids. Ours is `cold` in a process that has not seen a text, `warm` when it has seen these.
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

from gristmill.kernels.bpe.piece_memo import empty_memo
from gristmill.stages import Tokenize
from gristmill.stages.tokens.byte_level import byte_of
from gristmill.stages.tokens.encoding import TextEncoder, encoder_of
from gristmill.stages.tokens.training import SPECIALS, trained
from gristmill.stages.tokens.vocabulary import TokenizerVocabulary

PACKAGES = ("gristmill", "tokenizers", "pyarrow", "numba")
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
TIKTOKEN = """
import json, sys, time
import tiktoken
texts = json.load(sys.stdin)
with open(sys.argv[1]) as file:
    given = json.load(file)
ranks = {bytes(content): number for content, number in given["ranks"]}
encoding = tiktoken.Encoding("same", pat_str=given["pattern"], mergeable_ranks=ranks, special_tokens={})
for times in range(int(sys.argv[2])):
    start = time.process_time()
    for text in texts:
        encoding.encode_ordinary(text)
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
    facts = {
        "machine": platform.processor() or platform.machine(),
        "versions": {package: version(package) for package in PACKAGES},
    }
    print(json.dumps(result | facts), flush=True)


def in_mb(megabytes: float, seconds: list[float]) -> dict[str, Any]:
    speeds = [megabytes / s for s in seconds]
    return {"median": round(statistics.median(speeds), 2), "spread": [round(min(speeds), 2), round(max(speeds), 2)]}


def training(texts: list[str], vocab_size: int) -> str:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    made: list[str] = []
    seconds = timed(lambda: made.append(trained(texts, vocab_size, 2, list(SPECIALS.values()))), 1)
    report(
        what=f"training a vocabulary of {vocab_size:,}, MB/s",
        sizes={"MB": round(megabytes, 1)},
        **in_mb(megabytes, seconds),
    )
    return made[0]


def encoding(name: str, texts: list[str], tokenizer: str, times: int, peers: dict[str, tuple[Path, str, str]]) -> None:
    """Ours warm and cold, the package as `tokenize` calls it where it must, and the peers: (virtual environment,
    program, what it is given)."""
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    stage, rows, encoder = (
        Tokenize(),
        TokenizerVocabulary("bench", tokenizer, dict(SPECIALS)).table(),
        encoder_of(tokenizer),
    )
    assert encoder.kernels is not None
    docs = pa.table({"uid": np.arange(len(texts), dtype=np.uint64), "text": texts})
    ids = encoder.encode(docs["text"]).ids
    if not np.array_equal(ids, encoder.by_package(texts).ids):
        sys.exit(f"{name}: ids are not those of the package")
    common: dict[str, Any] = {
        "sizes": {"MB": round(megabytes, 1), "documents": len(texts), "tokens": len(ids)},
        "bytes_per_token": round(megabytes * 1e6 / len(ids), 3),
    }
    cold = []
    for _ in range(times):
        encoder.kernels.memo = empty_memo()
        cold += timed(lambda: stage.encode(docs, rows), 1)
    seconds = {"warm": timed(lambda: stage.encode(docs, rows), times), "cold": cold}
    others = {"tokenizers": timed(lambda: encoder.by_package(texts), times)}
    others |= {peer: elsewhere(texts, times, *how) for peer, how in peers.items()}
    mine = {state: in_mb(megabytes, each) for state, each in seconds.items()}
    for state, speed in mine.items():
        report(what=f"tokenize, {name}, {state}, MB/s of one core", **common, **speed)
    for peer, each in others.items():
        theirs = in_mb(megabytes, each)
        ratio = round(mine["warm"]["median"] / theirs["median"], 1)
        report(what=f"tokenize, {name}, {peer}, MB/s of one core", **common, **theirs, peer=peer, ratio=ratio)


def elsewhere(texts: list[str], times: int, environment: Path, program: str, given: str) -> list[float]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(given)
        file.flush()
        command = [environment / "bin" / "python", "-c", program, file.name, str(times)]
        done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def for_tiktoken(tokenizer: str) -> str:
    """The vocabulary as tiktoken wants it: tokens by rank, which are the ids, for later merges have larger ones."""
    settings = json.loads(tokenizer)
    byte, specials = byte_of(), {token["content"] for token in settings["added_tokens"]}
    ranks = [
        ([byte[c] for c in token], number)
        for token, number in settings["model"]["vocab"].items()
        if token not in specials
    ]
    pattern = settings["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    return json.dumps({"ranks": ranks, "pattern": pattern})


def one_line(texts: list[str], tokenizer: str) -> None:
    """A document of 10 MB without a line end: memory is why long texts are cut."""
    text = " ".join(texts).replace("\n", " ")
    text = (text * (10_000_000 // len(text) + 1))[:10_000_000]
    encoder, megabytes = TextEncoder(tokenizer), len(text.encode()) / 1e6
    column = pa.chunked_array([pa.array([text], pa.large_string())])
    seconds = timed(lambda: encoder.encode(column), 1)
    report(
        what="one document on one line, MB/s",
        sizes={"MB": round(megabytes, 1)},
        **in_mb(megabytes, seconds),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--datatrove", type=Path, help="a virtual environment with datatrove and tokenizers")
    parser.add_argument("--tiktoken", type=Path, help="a virtual environment with tiktoken")
    arguments = parser.parse_args()
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    files = {
        "prose": "prose.parquet",
        "web pages": "rule_verdicts.parquet",
        "sentences of 75 languages": "languages.parquet",
    }
    found = {name: arguments.data / file for name, file in files.items() if (arguments.data / file).exists()}
    for name in files.keys() - found.keys():
        print(f"{arguments.data / files[name]} is not here: {name} left out", file=sys.stderr)
    texts = {name: pq.read_table(path)["text"].to_pylist() for name, path in found.items()}
    if not texts:
        sys.exit(f"nothing to measure on in {arguments.data}")
    tokenizer = training([text for several in texts.values() for text in several], arguments.vocab_size)
    report(what="loading a tokenizer, s", median=round(timed(lambda: TextEncoder(tokenizer), 2)[1], 2))
    peers = {
        "DataTrove": (arguments.datatrove, DATATROVE, tokenizer),
        "tiktoken": (arguments.tiktoken, TIKTOKEN, for_tiktoken(tokenizer)),
    }
    there = {peer: how for peer, how in peers.items() if how[0] is not None}
    for name, several in texts.items():
        encoding(name, several[:10_000], tokenizer, arguments.times, there)
    one_line(next(iter(texts.values())), tokenizer)


if __name__ == "__main__":
    main()
