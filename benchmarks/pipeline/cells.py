#!/usr/bin/env python3
"""A mix over cells from texts to shards on real pages and prose, recounted by other code.

    python -m benchmarks.pipeline.cells --pages pages.parquet --prose prose.parquet [--folder FOLDER]

Topics are by word lists (seven and null; a stand-in for a judge of yours), formats are the kinds that the data state
(seven of pages, books, encyclopedia), quality is the share of stop words in three tiers. The recount reads what the
run wrote (Parquet of the sink and of rejects, Arrow of the shards) with pyarrow and plain Python: cells joined again,
UniMax by another algorithm, caps by domain, copies and tokens by cell, each document in one place. Any difference ends
the program with an error. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from publicsuffixlist import PublicSuffixList

BY = ["topic", "format", "quality_tier"]
LEAST, SHARE, BUDGET, CAPS = 15_000, 0.1, 3_000_000, {"topic=science": 3.0, "quality_tier=low": 1.0, "others": 4.0}
TOPICS = {
    "business": "business market company price sale customer",
    "computing": "software code data server install user",
    "food": "recipe food cook eat restaurant kitchen",
    "history": "war king century army empire battle",
    "home": "house garden room home wood design",
    "science": "species energy cell theory water plant",
    "travel": "travel hotel city tour island beach",
}
RECIPE = """name: cells
keep: all
sources:
  web: {{{source}}}
stages:
  {labels}
  - text_signals
  - quantile_buckets: {{by: [stop_words], buckets: 3, tiers: {{low: 1, middle: 2, high: 3}}}}
  - tokenize: {{vocab_size: {vocabulary}}}
  - write: {{name: labelled}}
  - cap_domains: {{by: [topic, format], share: {share}}}
  - mix:
      by: {by}
      method: unimax
      budget: {budget}
      max_epochs: {caps}
      least_tokens: {least}
  - pack: {{row_length: 512}}
"""


def topic_of(text: str) -> str | None:
    """The list with the most words in the text, of two at least."""
    words = Counter(re.findall("[a-z]+", text.lower()))
    counts = {topic: sum(words[word] for word in known.split()) for topic, known in TOPICS.items()}
    best = max(counts, key=lambda topic: (counts[topic], topic))
    return best if counts[best] >= 2 else None


def labelled(pages: Path, prose: Path) -> list[dict[str, Any]]:
    columns = [pq.read_table(pages)[name].to_pylist() for name in ("url", "page_type", "main_content")]
    rows = [
        {"text": text, "url": url, "format": kind, "topic": topic_of(text)}
        for url, kind, text in zip(*columns, strict=True)
        if text and text.strip()
    ]
    written = pq.read_table(prose).to_pylist()
    return rows + [
        {"text": r["text"], "url": None, "format": r["source"], "topic": topic_of(r["text"])} for r in written
    ]


def recipe(source: str, labels: str, **changes: Any) -> str:
    settings = {"share": SHARE, "by": BY, "budget": BUDGET, "caps": CAPS, "least": LEAST, "vocabulary": 8192} | changes
    settings["caps"] = json.dumps(settings["caps"])
    return RECIPE.format(source=source, labels=labels, **settings)


# --- the recount: nothing of Gristmill below ---------------------------------------------------------------------------


def recount(out: Path, share: float, budget: float, caps: Mapping[str, float], least: float) -> dict[str, Any]:
    """AssertionError where a figure of the run is not what its files hold."""
    rows = {row["uid"]: row for path in (out / "labelled").rglob("*.parquet") for row in read(path)}
    taken: dict[str, set[int]] = {}
    for stage in ("cap_domains", "mix"):
        paths = (out / "stages" / stage / "rejects").rglob("*.parquet")
        taken[stage] = {row["uid"] for path in paths for row in read(path, ["uid"])}
    copies: Counter[int] = Counter()
    tokens_in_rows = 0
    for path in (out / "shards").rglob("*.arrow"):
        with pa.memory_map(str(path)) as file:
            for batch in pa.ipc.open_file(file).read_all().select(["doc_uids", "chunk", "seq_lens"]).to_pylist():
                copies.update(u for u, piece in zip(batch["doc_uids"], batch["chunk"], strict=True) if piece == 0)
                tokens_in_rows += sum(batch["seq_lens"])
    assert rows and {*rows} == taken["cap_domains"] | taken["mix"] | {*copies}
    assert len(rows) == len(taken["cap_domains"]) + len(taken["mix"]) + len(copies)
    check_domains(rows, taken["cap_domains"], share)

    left = {uid: row for uid, row in rows.items() if uid not in taken["cap_domains"]}
    cell_of = join_again(tokens_of(left), least)
    there: Counter[tuple[str, ...]] = Counter()
    drawn: Counter[tuple[str, ...]] = Counter()
    longest: Counter[tuple[str, ...]] = Counter()
    for uid, row in left.items():
        cell = cell_of[values(row)]
        there[cell] += row["token_count"]
        drawn[cell] += row["token_count"] * copies[uid]
        longest[cell] = max(longest[cell], row["token_count"])
    assert tokens_in_rows == sum(drawn.values())
    epochs = {cell: cap_of(cell, caps) for cell in there}
    level = water_level({cell: epochs[cell] * n for cell, n in there.items()}, budget)
    mix = json.loads((out / "stages" / "mix" / "report.json").read_text())["mix"]
    told = {tuple(parts): (s, d) for parts, s, d in zip(mix["parts"], mix["sources"], mix["drawn"], strict=True)}
    assert {*told} == {*there}
    for cell, (source, counts) in told.items():
        wanted = min(level, epochs[cell] * there[cell])
        assert counts["there"] == there[cell] and counts["drawn"] == drawn[cell]
        assert abs(source["weight"] * budget - wanted) <= 1e-6 * budget, (cell, source["weight"] * budget, wanted)
        assert abs(drawn[cell] - wanted) <= longest[cell] / 2 + 1, cell
    for name, examples in mix["examples"].items():
        assert 1 <= len(examples) <= 3
        for example in examples:
            row = left[int(example["uid"], 16)]
            assert cell_of[values(row)] in told and row["text"].startswith(example["text"]), name
    record = json.loads((out / "run.json").read_text())
    for stage in record["stages"]:
        gone = sum(stage["dropped"].values()) + stage["quarantined"]
        assert stage["kind"] == "read" or stage["docs_in"] == stage["kept"] + gone, stage["name"]
    return {
        "documents": len(rows), "over domain caps": len(taken["cap_domains"]), "not drawn": len(taken["mix"]),
        "in shards": len(copies), "tokens in shards": tokens_in_rows, "groups": len(cell_of), "cells": len(there),
        "at their cap": sum(epochs[c] * there[c] < level for c in there), "most copies": max(copies.values()),
    }  # fmt: skip


def read(path: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path, columns=columns).to_pylist()
    return found


def values(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple("(none)" if row[name] is None else str(row[name]) for name in BY)


def tokens_of(rows: Mapping[int, Mapping[str, Any]]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows.values():
        found[values(row)] += row["token_count"]
    return found


def check_domains(rows: Mapping[int, Mapping[str, Any]], dropped: set[int], share: float) -> None:
    suffixes, total = PublicSuffixList(), Counter[tuple[str, ...]]()
    by_domain: dict[tuple[tuple[str, ...], str], list[tuple[bool, int]]] = defaultdict(list)
    for uid, row in rows.items():
        total[values(row)[:2]] += row["token_count"]
        host = urlsplit(row["url"] or "").hostname
        if host:
            domain = suffixes.privatesuffix(host.removeprefix("www.")) or host
            by_domain[values(row)[:2], domain].append((uid in dropped, row["token_count"]))
        else:
            assert uid not in dropped
    for (cell, domain), documents in by_domain.items():
        kept = [tokens for gone, tokens in documents if not gone]
        gone = [tokens for is_gone, tokens in documents if is_gone]
        assert kept and (len(kept) == 1 or sum(kept) <= share * total[cell]), (cell, domain)
        assert not gone or sum(kept) + max(gone) > share * total[cell], (cell, domain)


def join_again(tokens: Counter[tuple[str, ...]], least: float) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Cells below the least number of tokens, pooled by ever shorter beginnings."""
    found: dict[tuple[str, ...], tuple[str, ...]] = {group: group for group in tokens}
    for shown in range(len(BY) - 1, -1, -1):
        pools: Counter[tuple[str, ...]] = Counter()
        for group, cell in found.items():
            pools[cell] += tokens[group]
        small = {cell for cell, n in pools.items() if n < least}
        found = {group: (*group[:shown], "(small)") if cell in small else cell for group, cell in found.items()}
    return found


def cap_of(cell: tuple[str, ...], caps: Mapping[str, float]) -> float:
    own = dict(zip(BY, cell, strict=False))
    fits = [cap for key, cap in caps.items() if key != "others" and own.get(key.split("=")[0]) == key.split("=")[1]]
    return min(fits) if fits else caps["others"]


def water_level(caps: Mapping[Any, float], budget: float) -> float:
    """What every cell gives that can: the level at which all together fill the budget, by halving."""
    low, high = 0.0, budget
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(min(middle, cap) for cap in caps.values()) < budget else (low, middle)
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pages", "prose"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    folder: Path = (args.folder or Path(tempfile.mkdtemp())).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(labelled(args.pages, args.prose)), folder / "labelled.parquet")
    text = recipe(f"parquet: {{path: {folder}/labelled.parquet}}", "- from_meta: {texts: [topic, format]}")
    (folder / "recipe.yaml").write_text(text)
    start = time.perf_counter()
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(folder / "recipe.yaml")]
    subprocess.run([*command, "--out", str(folder / "out")], check=True)
    print(json.dumps({"what": "run", "seconds": round(time.perf_counter() - start, 1)}))
    print(json.dumps({"what": "recounted", **recount(folder / "out", SHARE, BUDGET, CAPS, LEAST)}))
    print(f"report: {folder / 'out' / 'report.html'}")


if __name__ == "__main__":
    main()
