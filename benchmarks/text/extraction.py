#!/usr/bin/env python3
"""Main text out of pages, beside other extractors, on the same pages in one run: quality by type of page, and speed.
One JSON line a result.

    python -m benchmarks.text.extraction [--data ../shared/data] [--models FOLDER] [--rivals VENV/bin/python] [--limit
      N] [--without NAME...] [--speed]

Quality: word-F1 (multiset of `\\w+`, lower case), mean over pages that have a reviewed text; shares of `must_have`
snippets found and of `must_not_have` snippets absent (without case). Ours is judged on sites that its model has not
seen: five models, each trained without a fifth of the sites, are read from --models, or trained first and written there
(some minutes). Speed is of the shipped model. Speed: pages and bytes of markup for each second of processor time, one
core, decoding included, the metadata that each finds anyway included.
--rivals names the Python of an environment in which any of readability-lxml, jusText, newspaper4k, goose3, boilerpy3,
  rs-trafilatura and
magic-html are installed.
"""

from __future__ import annotations

import argparse
import base64
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq

from benchmarks.paired import on_one_core
from gristmill.classifiers.blocks.model import BlockModel, load, save
from gristmill.classifiers.blocks.training import folds_of, train, word_f1, words_of
from gristmill.stages.extract.choices import Form
from gristmill.stages.extract.engines import extract, markup, resiliparse, trafilatura
from gristmill.stages.extract.gristmill import look_at, main_text, utf8
from gristmill.stages.extract.train import FOLDS, examples_of
from gristmill.stages.extract.training_pages import known_pages, site_of

RIVAL_NAMES = ("readability", "justext", "boilerpy3", "rs_trafilatura", "magic_html", "newspaper4k", "goose3")
SLICES = 24  # of the pages, in a run for speed
PATIENCE = 300  # seconds for one of them; some wait for the network
PACKAGES = ("gristmill", "resiliparse", "trafilatura", "numba")
RIVALS = r"""
import base64, json, sys, time, warnings, logging
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
def readability():
    from readability import Document; from lxml.html import fromstring
    return lambda html: fromstring(Document(html).summary()).text_content()
def justext():
    import justext; stop = justext.get_stoplist("English")
    return lambda html: "\n".join(p.text for p in justext.justext(html, stop) if not p.is_boilerplate)
def newspaper4k():
    import newspaper
    def run(html):
        article = newspaper.Article("http://a.org/"); article.download(input_html=html); article.parse(); return article.text
    return run
def goose3():
    from goose3 import Goose; goose = Goose({"enable_image_fetching": False})
    return lambda html: goose.extract(raw_html=html).cleaned_text
def boilerpy3():
    from boilerpy3.extractors import ArticleExtractor; reader = ArticleExtractor(raise_on_failure=False)
    return lambda html: reader.get_content(html)
def rs_trafilatura():
    import rs_trafilatura
    return lambda html: getattr(rs_trafilatura.extract(html), "content", None) or ""
def magic_html():
    from magic_html import GeneralExtractor; from lxml.html import fromstring; reader = GeneralExtractor()
    return lambda html: fromstring(reader.extract(html, base_url="http://a.org/")["html"]).text_content()
pages = [base64.b64decode(line).decode() for line in sys.stdin]
try:
    run = globals()[sys.argv[1]]()
except ImportError:
    sys.exit()
texts, started = [], time.process_time()
for page in pages:
    try:
        texts.append(run(page) or "")
    except Exception:
        texts.append("")
print(json.dumps({"seconds": time.process_time() - started, "texts": texts}), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--models", type=Path, default=Path("/tmp/gristmill-block-models"))
    parser.add_argument("--rivals", type=Path, help="the Python of an environment with other extractors")
    parser.add_argument("--limit", type=int, help="pages; every nth of them")
    parser.add_argument("--without", nargs="*", default=[], help="trafilatura takes a minute or more")
    parser.add_argument("--speed", action="store_true", help="nothing but five runs beside resiliparse on one core")
    asked = parser.parse_args()
    source = asked.data / "pages.parquet"
    if not source.exists():
        raise SystemExit(f"{source}: no such file; --data names the folder with pages.parquet")
    if asked.speed:
        return show_speed(source)
    rows = pq.read_table(source).to_pylist()
    reviewed = [row for row in rows if row["main_content"]]
    models = models_of(reviewed, asked.data, asked.models)
    folds = folds_of([site_of(row) for row in reviewed], FOLDS)
    step = max(len(reviewed) // asked.limit, 1) if asked.limit else 1
    pages, folds = reviewed[::step], folds[::step]
    size = sum(len(row["html"]) for row in pages)
    print(
        json.dumps(
            {
                "what": "pages",
                "machine": machine(),
                "versions": versions(),
                "pages": len(pages),
                "megabytes": round(size / 1e6, 1),
            }
        ),
        flush=True,
    )

    unseen = [
        main_text(look_at(utf8(row["html"])), models[fold], "text") for row, fold in zip(pages, folds, strict=True)
    ]
    speeds: dict[str, float] = {}
    for name, texts, seconds in results(pages, unseen, asked.without, asked.rivals):
        speeds[name] = len(pages) / seconds
        print(json.dumps({
            "what": name, **quality(pages, texts), "pages_per_second": round(speeds[name], 1),
            "megabytes_per_second": round(size / seconds / 1e6, 2), "peer": name,
            "ratio": round(speeds["gristmill"] / speeds[name], 2),
        }), flush=True)  # fmt: skip


def models_of(rows: list[dict[str, Any]], data: Path, folder: Path) -> list[BlockModel]:
    """A model for each fold of the sites, trained on all pages that may be learned from of other sites."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{fold}.npz" for fold in range(FOLDS)]
    if not all(path.exists() for path in paths):
        sites = [site_of(row) for row in rows]
        fold_of = dict(zip(sites, folds_of(sites, FOLDS).tolist(), strict=True))
        examples, _ = examples_of(list(known_pages(data)))
        for fold, path in enumerate(paths):
            save(train([example for example in examples if fold_of.get(example.site) != fold]), path)
    return [load(path) for path in paths]


def results(
    pages: list[dict[str, Any]], unseen: list[str], without: list[str], rivals: Path | None
) -> Iterator[tuple[str, list[str], float]]:
    engines: dict[str, Callable[[bytes, str | None], str]] = {
        "gristmill": lambda html, url: extract(html, url).text,
        "resiliparse": lambda html, url: resiliparse(markup(html), url).text,
        "trafilatura": lambda html, url: trafilatura(markup(html), url).text,
    }
    for name, engine in engines.items():
        if name in without:
            continue
        engine(pages[0]["html"], None)
        started = time.process_time()
        texts = [engine(page["html"], page["url"]) for page in pages]
        yield name, unseen if name == "gristmill" else texts, time.process_time() - started
    if rivals is not None:
        lines = b"\n".join(base64.b64encode(markup(page["html"]).encode()) for page in pages)
        for name in RIVAL_NAMES:
            try:
                done = subprocess.run(
                    [str(rivals), "-c", RIVALS, name], input=lines, capture_output=True, check=False, timeout=PATIENCE
                )
            except subprocess.TimeoutExpired:
                print(json.dumps({"what": name, "error": f"no answer in {PATIENCE} s"}), flush=True)
                continue
            if done.stdout.startswith(b"{"):
                said = json.loads(done.stdout)
                yield name, said["texts"], said["seconds"]


class Turns:
    """Pages in slices of 60; the sides are ours and resiliparse."""

    def __init__(self, source: Path, form: Form) -> None:
        self.source, self.form = source, form

    @cached_property
    def pages(self) -> list[dict[str, Any]]:
        rows = pq.read_table(self.source, columns=["html", "url", "main_content"]).to_pylist()
        return [row for row in rows if row["main_content"]]

    def __call__(self, side: int, number: int) -> float:
        pages = self.pages[number::SLICES] if number >= 0 else self.pages[:60]
        started = time.process_time()
        for page in pages:
            if side == 0:
                extract(page["html"], page["url"], form=self.form)
            else:
                resiliparse(markup(page["html"]), page["url"])
        return time.process_time() - started


def show_speed(source: Path) -> None:
    for form in get_args(Form):
        took = [on_one_core(Turns(source, form), SLICES, keep_busy=True) for _ in range(5)]
        ratios = [sum(theirs for _, theirs in run) / sum(ours for ours, _ in run) for run in took]
        facts = {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        print(
            json.dumps(
                {"what": f"resiliparse's seconds for ours, {form}"} | {key: round(v, 3) for key, v in facts.items()}
            ),
            flush=True,
        )


def quality(pages: list[dict[str, Any]], texts: list[str]) -> dict[str, Any]:
    scores = np.array(
        [word_f1(words_of(text), words_of(page["main_content"])) for page, text in zip(pages, texts, strict=True)]
    )
    kinds = np.array([page["page_type"] for page in pages])
    low = [text.lower() for text in texts]
    found = [
        snippet.lower() in text for page, text in zip(pages, low, strict=True) for snippet in page["must_have"] or []
    ]
    absent = [
        snippet.lower() not in text
        for page, text in zip(pages, low, strict=True)
        for snippet in page["must_not_have"] or []
    ]
    return {
        "word_f1": round(float(scores.mean()), 4),
        "by_type": {str(kind): round(float(scores[kinds == kind].mean()), 3) for kind in sorted(set(kinds))},
        "must_have": round(float(np.mean(found)), 4) if found else None,
        "must_not_have_absent": round(float(np.mean(absent)), 4) if absent else None,
    }


def machine() -> str:
    return f"{platform.machine()}, one core"


def versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


if __name__ == "__main__":
    main()
