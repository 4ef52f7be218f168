"""Trains the model of the engine `gristmill` from a file of reviewed pages, and says what it reaches on sites it has
not seen.

    python -m gristmill.stages.extract.train PAGES.parquet OUT.npz [--cross-validate]

The file has columns `html` (bytes), `main_content` (the reviewed text), `url`, `page`, `page_type`. Training takes some
minutes on two cores and gives the same file, bit for bit, each time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq

from gristmill.classifiers.blocks.model import BlockModel, load, save
from gristmill.classifiers.blocks.training import (
    Example,
    block_words,
    folds_of,
    kept_words,
    labels_of,
    train,
    word_f1,
    words_of,
)
from gristmill.stages.extract.gristmill import look_at, utf8

COLUMNS = ["page", "url", "page_type", "html", "main_content"]
FOLDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help=f"first train {FOLDS} times without a fifth of the sites, and judge on those",
    )
    chosen = parser.parse_args()
    started = time.monotonic()
    rows = list(reviewed(chosen.pages))
    examples = [example_of(row) for row in rows]
    print(
        f"{len(examples):,} pages, {sum(len(e.words) for e in examples):,} blocks, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    if chosen.cross_validate:
        scores = np.zeros(len(examples))
        for judged, model in cross_validated(examples):
            scores[judged] = [score(model, examples[i]) for i in judged]
            print(
                (
                    f"word-F1 on {len(judged):,} pages of other sites {scores[judged].mean():.4f}, "
                    f"{time.monotonic() - started:.0f} s"
                ),
                flush=True,
            )
        print(f"word-F1 by cross-validation grouped by site: {scores.mean():.4f}")
        for kind in sorted({row["page_type"] for row in rows}):
            print(f"  {kind}: {scores[[row['page_type'] == kind for row in rows]].mean():.3f}")
    save(train(examples), chosen.out)
    load(chosen.out)
    print(f"{chosen.out}: {chosen.out.stat().st_size:,} bytes, {time.monotonic() - started:.0f} s")


def reviewed(path: Path) -> Iterator[dict[str, Any]]:
    for batch in pq.ParquetFile(path).iter_batches(64, columns=COLUMNS):
        yield from (row for row in batch.to_pylist() if row["main_content"])


def example_of(row: dict[str, Any]) -> Example:
    seen = look_at(utf8(row["html"]))
    words, gold = block_words(seen.page), words_of(row["main_content"])
    return Example(seen.page, seen.measured, words, labels_of(words, gold), gold, site_of(row))


def site_of(row: dict[str, Any]) -> str:
    return urlsplit(row["url"] or "").hostname or str(row["page"])


def cross_validated(examples: list[Example]) -> Iterator[tuple[list[int], BlockModel]]:
    """For each fold, the pages whose sites it keeps back, and the model that has not seen them."""
    folds = folds_of([example.site for example in examples], FOLDS)
    for fold in range(FOLDS):
        yield (
            np.flatnonzero(folds == fold).tolist(),
            train([e for e, f in zip(examples, folds, strict=True) if f != fold]),
        )


def score(model: BlockModel, example: Example) -> float:
    kept = model.keep(model.probabilities(example.page, example.measured), example.measured)
    return word_f1(kept_words(example, kept), example.gold)


if __name__ == "__main__":
    main()
