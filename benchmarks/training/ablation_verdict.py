#!/usr/bin/env python3
"""A real verdict: is the main text of web pages worth more than all their visible text? Fixed before the runs.

    python -m benchmarks.training.ablation_verdict make FOLDER --pages pages.parquet --texts rule_verdicts.parquet
      --prose prose.parquet     (once, on any machine)
    python -m gristmill.pipeline.cli.app ablate FOLDER/plan.yaml

The base learns from prose (books, encyclopedia); the control goes on with all visible text of pages, the arm with their
reviewed main text: equal tokens, rate to zero, five seeds. Held-out prose decides, since neither arm is written like
it; pages of held-out hosts are reported in both kinds of text. Hosts, books and pieces of the encyclopedia are held out
whole, by hash of their names. `make` writes shards by the mill itself (read, tokenize, pack), one tokenizer for all,
trained on equal shares of the three.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

HELD_OUT = 5  # one in so many
VOCABULARY = 8192
ROW = 1024

RECIPE = """name: {name}
sources:
  {name}: {{parquet: {{path: {path}}}}}
stages:
  - tokenize: {{tokenizer: {tokenizer}, eos_token: '<|endoftext|>'}}
  - pack: {{row_length: {row}}}
"""

PLAN = """name: main_text_or_all_text
description: Base trained on prose; goes on with all visible text of pages (control) or with their reviewed main text (arm). Held-out prose decides.
sets: {{prose: prose, all_text: page, main_text: main}}
control: all_text
arms: {{main_text: main_text}}
base:
  mix: prose
  shape: 10m
  tokens: {base_tokens}
  training: {{rate: 0.002, rows_per_update: 64, rows_per_step: 64}}
protocol: {{name: custom, share: 1.0}}
tokens: {tokens}
seeds: {seeds}
training: {{rows_per_update: 64, rows_per_step: 64}}
evaluate:
  texts:
    prose: {{files: held_out_prose.parquet, cluster: cluster, domain: domain}}
    main_text: {{files: held_out_main.parquet, cluster: cluster}}
    all_text: {{files: held_out_page.parquet, cluster: cluster}}
  target: prose
"""


def held_out(name: str) -> bool:
    return xxhash.xxh3_64_intdigest(name.encode()) % HELD_OUT == 0


def make(args: argparse.Namespace) -> None:
    folder: Path = args.folder.resolve()  # recipes read paths from where they lie
    folder.mkdir(parents=True, exist_ok=True)
    hosts = {
        page: urlsplit(url or "").hostname or page
        for page, url in zip(*(pq.read_table(args.pages)[name].to_pylist() for name in ("page", "url")), strict=True)
    }
    texts: dict[str, list[dict[str, Any]]] = {"prose": [], "main": [], "page": []}
    for row in pq.read_table(args.texts, columns=["page", "kind", "text"]).to_pylist():
        texts[row["kind"]].append({"text": row["text"], "cluster": hosts[row["page"]], "domain": row["kind"]})
    for number, row in enumerate(pq.read_table(args.prose).to_pylist()):
        work = (
            row["work"] if row["source"] == "books" else f"{row['work']}-{number}"
        )  # a book, or a piece of the encyclopedia
        texts["prose"].append({"text": row["text"], "cluster": work, "domain": row["source"]})
    sample: list[str] = []
    for name, rows in texts.items():
        known, unseen = (
            [row for row in rows if row["text"].strip() and held_out(row["cluster"]) is out] for out in (False, True)
        )
        pq.write_table(pa.Table.from_pylist(known), folder / f"{name}.parquet")
        pq.write_table(pa.Table.from_pylist(unseen), folder / f"held_out_{name}.parquet")
        share, size = [], 0
        for row in sorted(known, key=lambda row: xxhash.xxh3_64_intdigest(row["text"].encode())):
            if size < args.sample_bytes:
                share.append(row["text"])
                size += len(row["text"].encode())
        sample += share
        print(
            f"{name}: {len(known):,} texts, {sum(len(r['text'].encode()) for r in known):,} bytes; held out "
            f"{len(unseen):,}",
            flush=True,
        )
    train_tokenizer(sample, folder / "tokenizer.json")
    for name in texts:
        recipe = folder / f"{name}.yaml"
        recipe.write_text(
            RECIPE.format(name=name, path=folder / f"{name}.parquet", tokenizer=folder / "tokenizer.json", row=ROW)
        )
        subprocess.run(
            [
                sys.executable,
                "-m",
                "gristmill.pipeline.cli.app",
                "run",
                str(recipe),
                "--out",
                str(folder / f"run-{name}"),
                "--workers",
                "1",
            ],
            check=True,
        )
        shards = next((folder / f"run-{name}").rglob("index.json")).parent
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(shards.relative_to(folder))
    (folder / "plan.yaml").write_text(PLAN.format(base_tokens=args.base_tokens, tokens=args.tokens, seeds=args.seeds))


def train_tokenizer(texts: list[str], path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("make", choices=["make"])
    parser.add_argument("folder", type=Path)
    for name in ("pages", "texts", "prose"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--base-tokens", type=int, default=20_000_000)
    parser.add_argument("--tokens", type=int, default=6_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sample-bytes", type=int, default=3_000_000, help="of each kind of text, for the tokenizer")
    make(parser.parse_args())


if __name__ == "__main__":
    main()
