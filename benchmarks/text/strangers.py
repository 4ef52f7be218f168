#!/usr/bin/env python3
"""Main text from pages of other makers, each set by a model that was trained without it, beside other extractors.

    python -m benchmarks.text.strangers [--data ../shared/data] [--models FOLDER] [--rivals] [--sets NAME...]

`unseen` is the figure that counts: of a set that may be learned from, by a model trained without it (some minutes the
first time; models are kept in --models); of the others the shipped model, which has never seen them. `shipped` stands
beside it. word-F1 (multiset of `\\w+`, lower case) is a mean over the pages that have a text, `first_250` over the
first 250 of them; a set of snippets has the shares of `must_have` found and of `must_not_have` absent; `wild` the share
of ingredient lines that a page states in JSON-LD and shows (as `structure.py` compares them). Readers'
comments are left out, by trafilatura too. No evidence of other pages of a site is used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.text.structure import held, ingredients_of, words
from gristmill.classifiers.blocks.model import BlockModel, load, save
from gristmill.classifiers.blocks.training import Example, train, word_f1, words_of
from gristmill.stages.extract.engines import markup, resiliparse
from gristmill.stages.extract.gristmill import look_at, main_text, shipped_model, utf8, visible_text
from gristmill.stages.extract.train import examples_of
from gristmill.stages.extract.training_pages import SETS, known_pages, trafilatura_text

LEARNED = ("scrapinghub", "readability", "trafilatura", "wild")
JUDGED = (*LEARNED, "dragnet", "cleaneval-dev", "waddle-el", "waddle-pl")
FIRST = 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--models", type=Path, default=Path("/tmp/gristmill-strangers"))
    parser.add_argument("--rivals", action="store_true", help="resiliparse and trafilatura too")
    parser.add_argument("--sets", nargs="*", choices=JUDGED, default=JUDGED)
    asked = parser.parse_args()
    for name in ("pages_more.parquet", "wild_pages.parquet"):
        if not (asked.data / name).exists():
            raise SystemExit(f"{asked.data / name}: no such file; --data names the folder that has it")
    models = models_without([name for name in asked.sets if name in LEARNED], asked.data, asked.models)
    for name in asked.sets:
        rows = recipes_of(asked.data) if name == "wild" else rows_of(asked.data / "pages_more.parquet", name)
        engines: dict[str, Callable[[bytes], str]] = {
            "unseen": partial(ours, model=models.get(name) or shipped_model()),
            "shipped": partial(ours, model=shipped_model()),
        }
        if asked.rivals:
            engines |= {
                "resiliparse": lambda html: resiliparse(markup(html), None).text,
                "trafilatura": trafilatura_text,
            }
        for engine, text_of in engines.items():
            texts = [text_of(row["html"]) for row in rows]
            print(json.dumps({"set": name, "engine": engine, "pages": len(rows), **quality(rows, texts)}), flush=True)


def rows_of(source: Path, name: str) -> list[dict[str, Any]]:
    set_name, _, language = name.partition("-") if name.startswith("waddle") else (name, "", "")
    return [
        row
        for batch in pq.ParquetFile(source).iter_batches(64)
        for row in batch.to_pylist()
        if row["set"] == set_name
        and (not language or row["language"] == language)
        and (words_of(row["text"] or "") or row["must_have"])
    ]


def recipes_of(data: Path) -> list[dict[str, Any]]:
    """Pages that state a recipe's ingredients, with those that stand in their visible text."""
    rows: list[dict[str, Any]] = []
    for row in pq.read_table(data / "wild_pages.parquet", columns=["html"]).to_pylist():
        page = utf8(row["html"])
        there = set(words(visible_text(look_at(page))))
        shown = [item for item in ingredients_of(page.decode("utf-8", "replace")) if held(item, there)]
        rows += [row | {"ingredients": shown}] if shown else []
    return rows


def ours(html: bytes, model: BlockModel) -> str:
    return main_text(utf8(html), model, "text")


def quality(rows: list[dict[str, Any]], texts: list[str]) -> dict[str, Any]:
    if "ingredients" in rows[0]:
        pages = [(row["ingredients"], set(words(text))) for row, text in zip(rows, texts, strict=True)]
        kept = [float(np.mean([held(item, text) for item in shown])) for shown, text in pages]
        shown = sum(len(row["ingredients"]) for row in rows)
        lines = sum(round(share * len(row["ingredients"])) for share, row in zip(kept, rows, strict=True))
        return {"shown": shown, "in_the_text": round(lines / shown, 4), "worst_page": round(min(kept), 4)}
    if rows[0]["must_have"]:
        return snippets_found(rows, texts) | {
            f"{name}_first_{FIRST}": share for name, share in snippets_found(rows[:FIRST], texts[:FIRST]).items()
        }
    scores = [word_f1(words_of(text), words_of(row["text"])) for row, text in zip(rows, texts, strict=True)]
    return {
        "word_f1": round(float(np.mean(scores)), 4),
        "first_250": round(float(np.mean(scores[:FIRST])), 4),
    }


def snippets_found(rows: list[dict[str, Any]], texts: list[str]) -> dict[str, float]:
    pages = [(row, text.lower()) for row, text in zip(rows, texts, strict=True)]
    found = [part.lower() in text for row, text in pages for part in row["must_have"] or []]
    absent = [part.lower() not in text for row, text in pages for part in row["must_not_have"] or []]
    return {"must_have": round(float(np.mean(found)), 4), "must_not_have_absent": round(float(np.mean(absent)), 4)}


def models_without(names: list[str], data: Path, folder: Path) -> dict[str, BlockModel]:
    """A model for each of these sets, trained on the others."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"without-{name}.npz" for name in names}
    absent = [name for name, path in paths.items() if not path.exists()]
    if absent:
        by_set: dict[str, list[Example]] = {name: examples_of(list(known_pages(data, (name,))))[0] for name in SETS}
        for name in absent:
            save(train([e for other in SETS if other != name for e in by_set[other]]), paths[name])
    return {name: load(path) for name, path in paths.items()}


if __name__ == "__main__":
    main()
