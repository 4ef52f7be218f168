#!/usr/bin/env python3
"""Repeated runs of 50 tokens: speed, memory, what is sent between parts, hostile text; beside a suffix array of all
bytes. One JSON line a result.

    python -m benchmarks.dedup.substring [--data ../shared/data] [--times 3]

The whole work of `SubstringDedup` on one core, all of its rounds, without files: MB of text a second, the most memory
that it took beyond the text, and the bytes that it hands from round to round. In a tenth of the documents a passage of
60 to 400 tokens of another one is planted; all are found, or the benchmark fails. The peer is what tools of the field
begin with, a suffix array of all bytes, by libdivsufsort (the package pydivsufsort): it sorts, and no more. The tools
themselves (google-research/deduplicate-text-datasets, which DataTrove and text-dedup call) are Rust programs to build
from source and in no package index.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.duplicates.suffix import suffix_array
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.kernels.words.tokens import token_column
from gristmill.stages import SubstringDedup

PACKAGES = ("gristmill", "numba", "numpy", "pyarrow")
Work = Callable[[], Any]


def rounds(stage: SubstringDedup, parts: list[pa.Table]) -> tuple[list[pa.Table], dict[str, int]]:
    """All rounds, with one bucket: the documents of each part, and the bytes handed over."""
    sent: dict[str, int] = {}

    def together(name: str, tables: list[pa.Table]) -> pa.Table:
        homes = [
            t if "home" in t.column_names else t.append_column("home", pa.array(np.full(len(t), k, np.uint64)))
            for k, t in enumerate(tables)
        ]
        table = pa.concat_tables(homes)
        sent[name] = table.nbytes
        return table

    def home(rows: pa.Table, k: int) -> pa.Table:
        return rows.filter(pa.array(rows["home"].to_numpy() == k))

    shared = together("shared", [stage.shared(together("choose", [stage.choose(part) for part in parts]))])
    windows = together("compare", [stage.compare(home(shared, k), part) for k, part in enumerate(parts)])
    spans = together("judge", [stage.judge(windows)])
    return [stage.cut(home(spans, k), part) for k, part in enumerate(parts)], sent


def planted(texts: list[str], seed: int) -> tuple[list[str], int]:
    """A tenth of the texts with a passage of another one behind them; how many tokens these have."""
    chance, made, count = random.Random(seed), list(texts), 0
    for at in chance.sample(range(len(texts)), len(texts) // 10):
        source = texts[chance.randrange(len(texts))]
        places = [(a, b) for a, b, _ in tokens_plain(source[:20_000])]
        length = chance.randint(60, 400)
        if len(places) < length:
            continue
        begin = chance.randrange(len(places) - length + 1)
        passage = source[:20_000].encode()[places[begin][0] : places[begin + length - 1][1]].decode()
        made[at] = f"{made[at]}\n\nplanted{at} {passage}. planted{at}"
        count += length
    return made, count


def paragraphs(texts: list[str]) -> list[str]:
    """Books and articles cut into documents of about 4 kB."""
    made = []
    for text in texts:
        held: list[str] = []
        for paragraph in re.split(r"\n\s*\n", text):
            held.append(paragraph)
            if sum(map(len, held)) > 4000:
                made.append("\n\n".join(held))
                held = []
        made.append("\n\n".join(held))
    return [text for text in made if text]


def table_of(texts: list[str]) -> pa.Table:
    return pa.table(
        {
            "uid": pa.array(np.arange(1, len(texts) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)),
            "text": pa.array(texts, pa.string()),
        }
    )


def peak_of(work: Work) -> int:
    """Bytes of memory beyond what was held before, at the most."""
    Path("/proc/self/clear_refs").write_text("5")

    def held(line: str) -> int:
        return (
            next(
                int(text.split()[1])
                for text in Path("/proc/self/status").read_text().splitlines()
                if text.startswith(line)
            )
            * 1024
        )

    before = held("VmRSS")
    work()
    return held("VmHWM") - before


def timed(work: Work, times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return seconds


def report(**result: Any) -> None:
    versions = {p: version(p) for p in PACKAGES}
    print(
        json.dumps({**result, "machine": platform.processor() or platform.machine(), "versions": versions}), flush=True
    )


def speed(what: str, texts: list[str], times: int, parts: int, tokens_planted: int = 0) -> None:
    table, stage = table_of(texts), SubstringDedup()
    size = sum(len(text.encode()) for text in texts)
    cut = [
        table.slice(k * len(table) // parts, (k + 1) * len(table) // parts - k * len(table) // parts)
        for k in range(parts)
    ]
    made, sent = rounds(stage, cut)
    removed = sum(int(part["repeated_tokens"].fill_null(0).to_numpy().sum()) for part in made)
    if removed < tokens_planted:
        raise SystemExit(f"{what}: {removed:,} tokens cut out, though {tokens_planted:,} were planted")
    seconds = timed(lambda: rounds(stage, cut), times)
    count = len(token_column(text_column(table["text"])).hashes)
    each = {name: round(size / 1e6 / statistics.median(timed(work, times)), 1) for name, work in {
        "tokens": lambda: [token_column(text_column(part["text"])) for part in cut],
        "choose": lambda: [stage.choose(part) for part in cut],
    }.items()}  # fmt: skip
    report(
        what=f"substring dedup, {what}, MB/s of one core",
        sizes={"MB": round(size / 1e6, 1), "documents": len(texts), "tokens": count, "parts": parts},
        median=round(size / 1e6 / statistics.median(seconds), 1),
        spread=[round(size / 1e6 / s, 1) for s in (max(seconds), min(seconds))],
        share_cut=round(removed / count, 4), rounds_MB_per_s=each,
        memory_per_byte=round(peak_of(lambda: rounds(stage, cut)) / size, 2),
        sent_per_byte={name: round(n / size, 2) for name, n in sent.items()},
    )  # fmt: skip


def sorting(what: str, texts: list[str], times: int) -> None:
    """Suffix arrays alone: ours over all tokens (which the stage never does: only over what may be a repeat),
    divsufsort over all bytes."""
    data = np.frombuffer("\0".join(texts).encode(), np.uint8)
    tokens = token_column(text_column(pa.array(texts, pa.string())))
    mine = [len(data) / 1e6 / s for s in timed(lambda: suffix_array(tokens.hashes, 50), times)]
    common: dict[str, Any] = {
        "what": f"suffix array of all tokens to depth 50, {what}, MB/s of one core",
        "sizes": {"MB": round(len(data) / 1e6, 1), "tokens": len(tokens.hashes)},
        "median": round(statistics.median(mine), 1), "spread": [round(min(mine), 1), round(max(mine), 1)],
    }  # fmt: skip
    try:
        from pydivsufsort import divsufsort
    except ImportError:
        print("pydivsufsort is not here: its figures are left out", file=sys.stderr)
        return report(**common)
    peer = statistics.median(len(data) / 1e6 / s for s in timed(lambda: divsufsort(data.copy()), times))
    report(**common, peer=f"divsufsort of all bytes {peer:.1f}", ratio=round(statistics.median(mine) / peer, 2))


def hostile() -> None:
    words = [f"w{k}" for k in range(1000)]
    period = " ".join(words)
    for what, texts in (
        ("one word ten million times", ["a " * 10_000_000]),
        ("a period of 1,000 words in ten million", [f"{period} " * 10_000]),
        ("one text of 1,000 words in 10,000 documents", [period] * 10_000),
        (
            "one boilerplate of 80 words in 100,000 documents of 100",
            [" ".join([*words[:80], *(f"{k}x{j}" for j in range(20))]) for k in range(100_000)],
        ),
    ):
        stage, table, size = SubstringDedup(), table_of(texts), sum(map(len, texts))
        start = time.process_time()
        made, sent = rounds(stage, [table])
        seconds = time.process_time() - start
        left = sum(
            len(token_column(text_column(part.filter(part["reason"].is_null())["text"])).hashes) for part in made
        )
        report(
            what=f"substring dedup, {what}, seconds", sizes={"MB": round(size / 1e6, 1), "tokens_left": left},
            median=round(seconds, 2),
            MB_per_s=round(size / 1e6 / seconds, 1),
            memory_per_byte=round(peak_of(partial(rounds, stage, [table])) / size, 2),
            sent_per_byte={name: round(n / size, 2) for name, n in sent.items()},
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    rounds(SubstringDedup(), [table_of(["compile " * 100, "and once more"])])
    if arguments.data.exists():
        prose = paragraphs(pq.read_table(arguments.data / "prose.parquet")["text"].to_pylist())
        pages = pq.read_table(arguments.data / "rule_verdicts.parquet").to_pylist()
        main_texts = [page["text"] for page in pages if page["kind"] == "main" and page["text"]]
        with_repeats, count = planted(prose, 1)
        speed("prose, passages planted", with_repeats, arguments.times, 4, count)
        with_repeats, count = planted(main_texts, 2)
        speed("main texts of pages, passages planted", with_repeats, arguments.times, 4, count)
        speed(
            "pages and their main texts, half of it repeats",
            [page["text"] for page in pages if page["text"]],
            arguments.times,
            4,
        )
        sorting("prose", prose, arguments.times)
    else:
        print(f"{arguments.data} is not here: real text left out", file=sys.stderr)
    hostile()


if __name__ == "__main__":
    main()
