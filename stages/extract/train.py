"""Trains the model of the engine `gristmill` from pages of several makers, and says what it reaches on sites it has not
seen.

    python -m gristmill.stages.extract.train DATA OUT.npz [--without SET...] [--cross-validate]

DATA holds pages.parquet, pages_more.parquet, wild_pages.parquet and prose.parquet; training_pages.py says what is
learned from each.
It takes some ten minutes on two cores and gives the same file, bit for bit, each time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gristmill.classifiers.blocks.model import BlockModel, load, save, untaught
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
from gristmill.stages.extract.gristmill import TooManyBlocks, look_at, utf8
from gristmill.stages.extract.training_pages import SETS, KnownPage, known_pages, mark_snippets, variant

FOLDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--without", nargs="*", default=[], choices=SETS, help="sets that are left out")
    parser.add_argument(
        "--cross-validate",
        action="store_true",
        help=f"first train {FOLDS} times without a fifth of the sites, and judge on the pages of `wcxb` there",
    )
    chosen = parser.parse_args()
    started = time.monotonic()
    sets = tuple(name for name in SETS if name not in chosen.without)
    pages = list(known_pages(chosen.data, sets))
    print(f"{len(pages):,} pages of {', '.join(sets)}, {time.monotonic() - started:.0f} s", flush=True)
    examples, kinds = examples_of(pages)
    print(f"{len(examples):,} examples, {time.monotonic() - started:.0f} s", flush=True)
    if chosen.cross_validate:
        judged = cross_validated(examples, kinds)
        print(f"word-F1 by cross-validation grouped by site: {np.mean(np.concatenate(list(judged.values()))):.4f}")
        for kind, scores in sorted(judged.items()):
            print(f"  {kind}: {np.mean(scores):.3f}")
    save(train(examples), chosen.out)
    load(chosen.out)
    print(f"{chosen.out}: {chosen.out.stat().st_size:,} bytes, {time.monotonic() - started:.0f} s")


def examples_of(pages: list[KnownPage]) -> tuple[list[Example], list[str]]:
    """Each page as it is and in a variant; and for each example the kind of a `wcxb` page as it is, else ``."""
    examples, kinds = [], []
    for page in pages:
        data = utf8(page.html)
        for markup, kind in ((data, page.kind if page.set == "wcxb" else ""), (variant(data, page.name), "")):
            try:
                examples.append(example_of(page, markup))
            except TooManyBlocks:
                continue
            kinds.append(kind)
    return examples, kinds


def example_of(page: KnownPage, data: bytes) -> Example:
    seen = look_at(data, untaught())
    words, gold = block_words(seen.page), words_of(page.text)
    labels = labels_of(words, gold) if gold else np.full(len(words), np.nan)
    mark_snippets(page, words, labels)
    return Example(seen.page, seen.measured, words, labels, gold, page.site)


def cross_validated(examples: list[Example], kinds: list[str]) -> dict[str, list[float]]:
    """word-F1 by kind of page, of models that have not seen the site."""
    scores: dict[str, list[float]] = {}
    for judged, model in held_out(examples):
        for i in judged:
            if kinds[i]:
                scores.setdefault(kinds[i], []).append(score(model, examples[i]))
    return scores


def held_out(examples: list[Example]) -> Iterator[tuple[list[int], BlockModel]]:
    """For each fold, the examples whose sites it keeps back, and the model that has not seen them."""
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
