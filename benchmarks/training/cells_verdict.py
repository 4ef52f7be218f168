#!/usr/bin/env python3
"""A verdict: is a mix over cells better than a flat one by source? Fixed before the runs.

    python -m benchmarks.training.cells_verdict FOLDER --pages pages.parquet --prose prose.parquet   (on any machine)
    python -m gristmill.pipeline.cli.app ablate FOLDER/plan.yaml

The corpus is the reviewed main text of web pages of seven kinds, and prose of two (books, encyclopedia). Cells are kind
x bucket of quality (the share of stop words in three buckets of equal weight; no model of quality was trained). One
tokenizer, one run, `pack` by cell; mixes of the cells are then
    control   by tokens of each source, the flat mix that nobody has to choose
    sources   UniMax over the two sources
    cells     UniMax over the cells, at most 4 epochs of each
Target: held-out text of the nine kinds, the same bytes of each, for whoever mixes by kind wants all of them served;
guard: held-out text as it comes. Hosts, books and pieces of the encyclopedia are held out whole, by hash of their
names. `make` prints the power beforehand, from errors that an earlier verdict on such pages had.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
import yaml

from benchmarks.training.ablation_verdict import ROW, train_tokenizer
from gristmill.mixing.verdicts.power import power, seeds_needed
from gristmill.mixing.weights.supply import Supply
from gristmill.mixing.weights.unimax import unimax
from gristmill.pipeline.look.token_sets import sets_of_cells
from gristmill.shards.index import NAME

HELD_OUT = 4  # one in so many
EACH = 40_000  # bytes of each kind in the target
OF_A_CLUSTER = 4_000  # bytes of a host or book, so that none is a kind's figure
PIECE = 2_000  # characters of a document there, its beginning
SEED_SD, ITEMS_ERROR, CLUSTERS = (
    0.006,
    0.004,
    150.0,
)  # bits per byte: five seeds and 272 hosts gave 0.0093 of half width
CAP = 4.0

RECIPE = """name: cells
sources:
  web: {{parquet: {{path: {folder}/web.parquet}}}}
  prose: {{parquet: {{path: {folder}/prose.parquet}}}}
stages:
  - text_signals
  - from_meta: {{texts: [kind]}}
  - quantile_buckets: {{by: [stop_words], buckets: 3, tiers: {{low: 1, high: 3}}}}
  - tokenize: {{tokenizer: {folder}/tokenizer.json, eos_token: '<|endoftext|>'}}
  - pack: {{row_length: {row}, by: [source, kind, quality_bucket]}}
"""


def held_out(name: str) -> bool:
    return xxhash.xxh3_64_intdigest(name.encode()) % HELD_OUT == 0


def corpus(pages: Path, prose: Path) -> dict[str, list[dict[str, Any]]]:
    """Texts by source, with their kind and the cluster that is held out as one."""
    columns = [pq.read_table(pages)[name].to_pylist() for name in ("page", "url", "page_type", "main_content")]
    web = [
        {"text": text, "kind": kind, "cluster": urlsplit(url or "").hostname or page}
        for page, url, kind, text in zip(*columns, strict=True)
        if text and text.strip()
    ]
    written = [
        {
            "text": row["text"],
            "kind": row["source"],
            "cluster": row["work"] if row["source"] == "books" else f"{row['work']}-{number}",
        }
        for number, row in enumerate(pq.read_table(prose).to_pylist())
    ]
    return {"web": web, "prose": written}


def chosen(rows: list[dict[str, Any]], each: float) -> list[dict[str, Any]]:
    """Beginnings of documents, so many bytes of each kind at most and a few of each cluster, by hash."""
    found: list[dict[str, Any]] = []
    kinds: dict[str, int] = {}
    clusters: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: xxhash.xxh3_64_intdigest(row["text"].encode())):
        text, kind, cluster = row["text"][:PIECE], row["kind"], row["cluster"]
        if kinds.get(kind, 0) < each and clusters.get(cluster, 0) < OF_A_CLUSTER:
            kinds[kind] = kinds.get(kind, 0) + len(text.encode())
            clusters[cluster] = clusters.get(cluster, 0) + len(text.encode())
            found.append(row | {"text": text})
    return found


def make(args: argparse.Namespace) -> None:
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    unseen, sample = [], []
    for name, rows in corpus(args.pages, args.prose).items():
        known = [row for row in rows if not held_out(row["cluster"])]
        unseen += [row for row in rows if held_out(row["cluster"])]
        sample += [row["text"] for row in known]
        pq.write_table(pa.Table.from_pylist(known), folder / f"{name}.parquet")
    pq.write_table(pa.Table.from_pylist(chosen(unseen, EACH)), folder / "held_out_balanced.parquet")
    pq.write_table(pa.Table.from_pylist(chosen(unseen, math.inf)), folder / "held_out_all.parquet")
    train_tokenizer(sample, folder / "tokenizer.json")
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder, row=ROW))
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(folder / "recipe.yaml")]
    subprocess.run([*command, "--out", str(folder / "run"), "--workers", "1"], check=True)
    sets = sets_of_cells(folder / "run")
    tokens = {
        name: float(json.loads((Path(place) / str(ROW) / NAME).read_text())["tokens"]) for name, place in sets.items()
    }
    names = {name: name.replace("/", "-") for name in sets}
    plan = {
        "name": "cells_or_flat",
        "description": "UniMax over cells of kind x quality (arm) or over sources (arm), or the mix by tokens (control).",
        "sets": {names[name]: str(Path(place).relative_to(folder)) for name, place in sets.items()},
        **{"control": named(names, flat(tokens)), "arms": {}},
        "shape": args.shape,
        "protocol": "from_scratch",
        "tokens": args.tokens,
        "seeds": args.seeds,
        "training": {"rate": 0.003, "rows_per_update": 32, "rows_per_step": 32},
        "evaluate": {
            "texts": {
                "kinds": {"files": "held_out_balanced.parquet", "cluster": "cluster", "domain": "kind"},
                "all": {"files": "held_out_all.parquet", "cluster": "cluster"},
            },
            "target": "kinds",
            "guard": "all",
            "points": 0,
        },
    }
    by_source = {
        source: sum(n for name, n in tokens.items() if name.startswith(f"{source}/")) for source in ("web", "prose")
    }
    of_source = dict(zip(by_source, unimax(Supply.of(by_source, args.tokens, CAP)), strict=True))
    sources = {name: of_source[name.split("/")[0]] * n / by_source[name.split("/")[0]] for name, n in tokens.items()}
    cells = dict(zip(tokens, unimax(Supply.of(tokens, args.tokens, CAP)), strict=True))
    plan["arms"] = {"sources": named(names, sources), "cells": named(names, cells)}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    held = pq.read_table(folder / "held_out_balanced.parquet")
    facts = {"cells": len(tokens), "tokens": sum(tokens.values()), "held out": len(held)}
    print(json.dumps({"what": "corpus", **facts, "clusters": len(set(held["cluster"].to_pylist()))}))
    for name, n in sorted(tokens.items()):
        shares = {"control": n / sum(tokens.values()), "sources": sources[name], "cells": cells[name]}
        print(json.dumps({"cell": name, "tokens": int(n), **{k: round(float(v), 4) for k, v in shares.items()}}))
    for difference in (0.005, 0.01, 0.015, 0.02, 0.03):
        found = power(difference, SEED_SD, ITEMS_ERROR, args.seeds, CLUSTERS)
        needed = seeds_needed(difference, SEED_SD, ITEMS_ERROR, CLUSTERS)
        print(
            json.dumps(
                {
                    "what": "power",
                    "difference": difference,
                    "seeds": args.seeds,
                    "power": round(found, 3),
                    "seeds for 80 %": needed,
                }
            )
        )


def flat(tokens: dict[str, float]) -> dict[str, float]:
    total = sum(tokens.values())
    return {name: n / total for name, n in tokens.items()}


def named(names: dict[str, str], weights: dict[str, float]) -> dict[str, float]:
    """Without cells of less than a thousandth of a run, which no reader of rows could give."""
    usable = {names[name]: round(float(weight), 6) for name, weight in weights.items() if weight >= 0.0015}
    total = np.sum([*usable.values()])
    return {name: float(weight / total) for name, weight in usable.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in ("pages", "prose"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--shape", default="10m")
    parser.add_argument("--tokens", type=int, default=8_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    make(parser.parse_args())


if __name__ == "__main__":
    main()
