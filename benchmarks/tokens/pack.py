#!/usr/bin/env python3
"""Best-fit packing: documents a second, fill, and rows above the lower bound, beside TRL's packer. One JSON line a
result.

    python -m benchmarks.tokens.pack [--data ../shared/data] [--trl PYTHON] [--times N] [--tokenizer FILE]

Lengths are token counts of a byte-level BPE of 32,000 tokens, trained here on pages and prose (`--tokenizer` keeps it),
with one token more for the end of a document: a million drawn from pages, with replacement; pages and prose, each once;
and a million log-normal ones. Ours takes lengths and gives the five columns of `Packed`: no token is moved. Speeds are
of processor time on one core. The lower bound is `fewest_rows`: max(tokens / row length, pieces longer than half a
row).

PYTHON has trl and datasets; it gets the first 100,000 documents of each, and ours packs the same as one window. The
peer is the quickest of TRL's paths that do the same (`bfd_split`, of which all tokens come out). Without PYTHON only
ours is shown. The program ends with 1 if a promise is broken.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gristmill.kernels.rows.pack import Packed, best_fit, concatenate, fewest_rows, one_each, windows

VOCABULARY, SEED = 32_000, 3
ROWS = (2048, 4096, 8192)
MILLION = 1_000_000
WINDOWS = (100_000, 30_000)
BESIDE_TRL = 100_000  # documents
CUT = "cut though they fit"
PAGES, BOTH, LOG_NORMAL = "a million drawn from pages", "pages and prose, each once", "log-normal, a million"
LEAST_FILL = {(PAGES, 2048): 0.999, (PAGES, 4096): 0.999}
MOST_OVER_BOUND = {(BOTH, 2048): 0.02, (BOTH, 4096): 0.06}
LEAST_SPEED = 3e6  # documents a second, of a million


def texts(data: Path, file: str, column: str) -> list[str]:
    return [text or "" for text in pq.read_table(data / file, columns=[column])[column].to_pylist()]


def tokenizer_of(corpus: list[str], kept: Path | None) -> Tokenizer:
    if kept is not None and kept.is_file():
        return Tokenizer.from_file(str(kept))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    if kept is not None:
        tokenizer.save(str(kept))
    return tokenizer


def lengths_of_all(data: Path, kept: Path | None) -> dict[str, np.ndarray]:
    pages, prose = texts(data, "pages.parquet", "main_content"), texts(data, "prose.parquet", "text")
    tokenizer = tokenizer_of(pages + prose, kept)
    of_pages, of_prose = (
        np.array([len(encoded.ids) + 1 for encoded in tokenizer.encode_batch_fast(some, add_special_tokens=False)])
        for some in (pages, prose)
    )
    random = np.random.default_rng(SEED)
    return {
        PAGES: random.choice(of_pages, MILLION),
        BOTH: random.permutation(np.concatenate([of_pages, of_prose])),
        LOG_NORMAL: np.exp(random.normal(6.3, 1.0, MILLION)).astype(np.int64) + 1,
    }


def seconds(work: Callable[[], object], times: int) -> list[float]:
    work()
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return taken


def line(
    what: str, lengths: np.ndarray, times: list[float], versions: dict[str, str] | None = None, **more: object
) -> None:
    speeds = sorted(len(lengths) / taken for taken in times)
    result = {
        "what": what,
        "machine": f"{platform.machine()} {platform.system()}",
        "versions": {name: version(name) for name in ("numba", "numpy", "tokenizers")} | (versions or {}),
        "sizes": {
            "documents": len(lengths),
            "tokens": int(lengths.sum()),
            "tokens a document": round(float(lengths.mean()), 1),
        },
        "median": round(statistics.median(speeds)),
        "spread": [round(speeds[0]), round(speeds[-1])],
    }
    print(json.dumps(result | more), flush=True)


def room(rows: int, tokens: int, row_length: int) -> dict[str, object]:
    return {"rows": rows, "fill": round(tokens / (rows * row_length), 5), "padding": rows * row_length - tokens}


def over_bound(rows: int, lengths: np.ndarray, row_length: int) -> dict[str, object]:
    fewest = fewest_rows(lengths, row_length)
    return {"lower bound": fewest, "over the bound, %": round(100 * (rows / fewest - 1), 4)}


def cut_though_they_fit(packed: Packed, lengths: np.ndarray, row_length: int) -> float:
    """Share of the documents that a row could hold whole."""
    fits = lengths <= row_length
    return round(float((np.bincount(packed.document, minlength=len(lengths))[fits] > 1).mean()), 4)


def order_left(lengths: np.ndarray, row_length: int) -> dict[str, float]:
    """In one window, correlation of a row's place with how many documents are in it: as rows stand, and as best fit
    opens them."""
    packed = best_fit(lengths, row_length, windows(len(lengths), len(lengths)))
    documents_in, longest = np.bincount(packed.row), np.zeros(packed.rows, np.int64)
    np.maximum.at(longest, packed.row, packed.length)
    place = np.arange(packed.rows)
    by_longest = documents_in[np.argsort(-longest, kind="stable")]
    return {
        "as they stand": round(float(np.corrcoef(place, documents_in)[0, 1]), 3),
        "as opened": round(float(np.corrcoef(place, by_longest)[0, 1]), 3),
    }


def ours(name: str, lengths: np.ndarray, row_length: int, times: int) -> list[str]:
    """What is promised and not kept."""
    broken = []
    for most in sorted({min(most, len(lengths)) for most in (*WINDOWS, MILLION)}):
        bounds = windows(len(lengths), most)
        taken = seconds(lambda bounds=bounds: best_fit(lengths, row_length, bounds), times)
        packed = best_fit(lengths, row_length, bounds)
        cut = cut_though_they_fit(packed, lengths, row_length)
        tokens = int(packed.length.sum(dtype=np.int64))
        bound = over_bound(packed.rows, lengths, row_length)
        line(
            f"{name}: best fit, rows of {row_length:,}, windows of {most:,}, documents a second, one core",
            lengths,
            taken,
            **room(packed.rows, tokens, row_length),
            **bound,
            **{CUT: cut},
        )
        whole = f"{name}, rows of {row_length:,}, windows of {most:,}"
        if cut or tokens != lengths.sum():
            broken.append(
                f"{whole}: {cut:.2%} of the documents that fit are cut, {lengths.sum() - tokens:,} tokens are lost"
            )
        if tokens / (packed.rows * row_length) < LEAST_FILL.get((name, row_length), 0):
            broken.append(f"{whole}: fill {tokens / (packed.rows * row_length)}")
        if packed.rows > fewest_rows(lengths, row_length) * (1 + MOST_OVER_BOUND.get((name, row_length), 1)):
            broken.append(f"{whole}: {bound['over the bound, %']} % over the bound")
        if len(lengths) == MILLION and len(lengths) / statistics.median(taken) < LEAST_SPEED:
            broken.append(f"{whole}: {len(lengths) / statistics.median(taken):,.0f} documents a second")
    for what, packer in (("concatenate and cut", concatenate), ("one document a row", one_each)):
        packed = packer(lengths, row_length)
        line(
            f"{name}: {what}, rows of {row_length:,}, documents a second, one core",
            lengths,
            seconds(lambda packer=packer: packer(lengths, row_length), times),
            **room(packed.rows, int(lengths.sum()), row_length),
            **{CUT: cut_though_they_fit(packed, lengths, row_length)},
        )
    return broken


def beside_trl(name: str, lengths: np.ndarray, row_length: int, times: int, python: str) -> None:
    bounds = windows(len(lengths), len(lengths))
    taken = seconds(lambda: best_fit(lengths, row_length, bounds), times)
    mine, tokens = best_fit(lengths, row_length, bounds), int(lengths.sum())
    theirs = trl(python, lengths, row_length)
    medians = {path: statistics.median(found["seconds"]) for path, found in theirs["paths"].items()}
    same = {path: found for path, found in theirs["paths"].items() if found["tokens"] == tokens and not found[CUT]}
    for path, found in same.items():
        if "one batch" in path and found["rows"] != mine.rows:
            sys.exit(f"{name}: {path} makes {found['rows']:,} rows of {row_length:,}, ours {mine.rows:,}")
    peer = min(same, key=lambda path: medians[path])
    line(
        f"{name}: best fit, rows of {row_length:,}, one window, beside TRL, documents a second, one core",
        lengths,
        taken,
        theirs["versions"],
        **room(mine.rows, tokens, row_length),
        **over_bound(mine.rows, lengths, row_length),
        correlation=order_left(lengths, row_length),
        peer={"name": peer, "median": round(len(lengths) / medians[peer])},
        ratio=round(medians[peer] / statistics.median(taken)),
        peers={
            path: {
                "median": round(len(lengths) / medians[path]),
                "ratio": round(medians[path] / statistics.median(taken)),
            }
            | room(found["rows"], found["tokens"], row_length)
            | (over_bound(found["rows"], lengths, row_length) if path in same else {})
            | {"tokens lost, %": round(100 * (1 - found["tokens"] / tokens), 2), CUT: found[CUT]}
            for path, found in theirs["paths"].items()
        },
    )


def trl(python: str, lengths: np.ndarray, row_length: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "lengths.npy", lengths)
        program = Path(__file__).with_name("pack_trl.py")
        done = subprocess.run(
            [python, program, Path(folder) / "lengths.npy", str(row_length)],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{python} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    arguments.add_argument("--trl", metavar="PYTHON", help="a Python that has trl and datasets")
    arguments.add_argument("--times", type=int, default=7)
    arguments.add_argument(
        "--tokenizer", type=Path, help="read from here; trained and written here where there is none"
    )
    asked = arguments.parse_args()
    broken = []
    for name, lengths in lengths_of_all(asked.data, asked.tokenizer).items():
        for row_length in ROWS:
            broken += ours(name, lengths, row_length, asked.times)
            if asked.trl:
                beside_trl(name, lengths[:BESIDE_TRL], row_length, asked.times, asked.trl)
    if broken:
        sys.exit("\n".join(broken))


if __name__ == "__main__":
    main()
