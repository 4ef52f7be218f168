#!/usr/bin/env python3
"""Main text out of pages, beside other extractors, on the same pages in one run: quality by type of page, and speed.
One JSON line a result.

    python -m benchmarks.text.extraction [--data ../shared/data] [--models FOLDER] [--rivals VENV/bin/python] [--limit
      N] [--without NAME...]
    python -m benchmarks.text.extraction --speed [--data ../shared/data] [--rounds 3] [--wheels WHEELS]

Quality: word-F1 (multiset of `\\w+`, lower case), mean over pages that have a reviewed text; shares of `must_have`
snippets found and of `must_not_have` snippets absent (without case). Ours is judged on sites that its model has not
seen: five models, each trained without a fifth of the sites, are read from --models, or trained first and written there
(some minutes). Speed is of the shipped model. Speed: pages and bytes of markup for each second of processor time, one
core, decoding included, the metadata that each finds anyway included.
`--speed`: races as `benchmarks.races` runs them, beside resiliparse's own function; then each page by both in turn, and
the least of four times of each, by size of page.
--rivals names the Python of an environment in which any of readability-lxml, jusText, newspaper4k, goose3, boilerpy3,
  rs-trafilatura and
magic-html are installed.
"""

from __future__ import annotations

import argparse
import base64
import cProfile
import json
import os
import pstats
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree

from benchmarks.races import Side, Work, processor, race
from gristmill.classifiers.blocks.model import BlockModel, load, save
from gristmill.classifiers.blocks.training import folds_of, train, word_f1, words_of
from gristmill.stages.extract.engines import extract, markup, resiliparse, trafilatura
from gristmill.stages.extract.gristmill import main_text, utf8
from gristmill.stages.extract.stage import Extract
from gristmill.stages.extract.train import FOLDS, examples_of
from gristmill.stages.extract.training_pages import known_pages, site_of

RIVAL_NAMES = ("readability", "justext", "boilerpy3", "rs_trafilatura", "magic_html", "newspaper4k", "goose3")
SIZES = (20_000, 60_000, 150_000, 400_000)  # bytes of markup
PATIENCE = 300  # seconds for one of them; some wait for the network
ROUNDS, BATCH = 4, 100
# What the functions of the way of a page do, for the causes of slow pages.
PARTS = {
    "utf8": "decoding", "rewrite_structure": "rewriting code and formulas", "read_page": "blocks and their choice",
    "metadata": "JSON-LD and meta tags", "with_ingredients": "ingredients", "_rendered": "rendering tables and code",
    "no_page": "reasons for no page",
}  # fmt: skip
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument(
        "--speed", action="store_true", help="nothing but the time of each page beside resiliparse's own function"
    )
    asked = parser.parse_args()
    source = asked.data / "pages.parquet"
    if not source.exists():
        raise SystemExit(f"{source}: no such file; --data names the folder with pages.parquet")
    if asked.speed:
        return show_speed(asked.data, asked.rounds, asked.wheels)
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
                "machine": processor(),
                "versions": versions(),
                "pages": len(pages),
                "megabytes": round(size / 1e6, 1),
            }
        ),
        flush=True,
    )

    unseen = [main_text(utf8(row["html"]), models[fold], "text") for row, fold in zip(pages, folds, strict=True)]
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


def seconds_of(function: Callable[[bytes], Any], page: bytes) -> float:
    started = time.perf_counter()
    function(page)
    return time.perf_counter() - started


def resiliparse_alone(page: bytes) -> str:
    """What its users call: its own detection of the encoding, its own extraction, no metadata."""
    tree = HTMLTree.parse_from_bytes(page, detect_encoding(page))
    text: str = extract_plain_text(tree, main_content=True)
    return text


def as_markdown(page: bytes) -> Any:
    return extract(page, form="markdown")


def seconds_of_batches(pages: list[bytes]) -> float:
    """Of the stage on batches of pages; the least of two rounds."""
    stage, took = Extract(), []
    rest = {name: pa.nulls(BATCH, pa.string()) for name in ("text", "meta", "url", "charset")}
    tables = [
        pa.record_batch({"html": chunk, **{name: nulls[: len(chunk)] for name, nulls in rest.items()}})
        for first in range(0, len(pages), BATCH)
        for chunk in [pa.array(pages[first : first + BATCH], pa.large_binary())]
    ]
    for _ in range(2):
        started = time.perf_counter()
        for table in tables:
            stage.rewrite(table)
        took.append(time.perf_counter() - started)
    return min(took)


def cause_of(page: bytes) -> str:
    """The part of our way of a page that takes longest, and its share."""
    profile = cProfile.Profile()
    for _ in range(5):
        profile.runcall(extract, page)
    took = {name: cumulative for (_, _, name), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    part = max(PARTS, key=lambda name: took.get(name, 0.0))
    return f"{PARTS[part]}, {100 * took.get(part, 0.0) / took['extract']:.0f} %"


def pages_of(path: Path | str) -> list[bytes]:
    pages: list[bytes] = pq.read_table(path, columns=["html"]).column(0).to_pylist()
    return pages


def page_by_page(function: Callable[[bytes], Any], path: str) -> Work:
    pages = pages_of(path)
    return Work(lambda: [function(page) for page in pages], len(pages), len)


def of_ours(path: str) -> Work:
    return page_by_page(extract, path)


def of_ours_as_markdown(path: str) -> Work:
    return page_by_page(as_markdown, path)


def of_resiliparse(path: str) -> Work:
    return page_by_page(resiliparse_alone, path)


SPEED_SIDES = {
    "ours": Side(of_ours),
    "ours, as Markdown": Side(of_ours_as_markdown),
    "resiliparse, its own function, no metadata": Side(of_resiliparse, ("resiliparse",)),
}


def show_speed(data: Path, rounds: int, wheels: Path | None) -> None:
    """Each page by ours and by resiliparse in turn, who is first by turns, four times; the least of each side counts."""
    names = [name for name in ("pages", "pages_more", "wild_pages") if (data / f"{name}.parquet").exists()]
    for name in names:
        where = {"path": str((data / f"{name}.parquet").resolve())}
        race(f"extraction, {name}", "pages", SPEED_SIDES, where, rounds, wheels)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps({"what": "speed", "machine": processor(), "versions": versions()}), flush=True)
    sides = (extract, resiliparse_alone)
    for name in names:
        pages = pages_of(data / f"{name}.parquet")
        for page in pages[:20]:
            for side in (*sides, as_markdown):
                side(page)
        took = np.full((2, len(pages)), np.inf)
        for turn in range(ROUNDS):
            for row, page in enumerate(pages):
                for side in (0, 1) if turn % 2 == 0 else (1, 0):
                    took[side, row] = min(took[side, row], seconds_of(sides[side], page))
        size = np.array([len(page) for page in pages])
        ours, theirs = took
        markdown = sum(min(seconds_of(as_markdown, page) for _ in range(2)) for page in pages)
        print(
            json.dumps(
                {
                    "what": f"resiliparse's seconds for ours, {name}",
                    "pages": len(pages),
                    "sum": round(theirs.sum() / ours.sum(), 2),
                    "median page": round(float(np.median(theirs / ours)), 2),
                    "by size": {
                        f"below {until // 1000} kB" if until else "above": round(
                            theirs[held].sum() / ours[held].sum(), 2
                        )
                        for since, until in pairwise([0, *SIZES, 0])
                        if (held := (size >= since) & (size < (until or np.inf))).any()
                    },
                    "our pages a second": round(len(pages) / ours.sum()),
                    "sum, ours as Markdown": round(theirs.sum() / markdown, 2),
                    "sum, ours in batches": round(theirs.sum() / seconds_of_batches(pages), 2),
                    "slower than 10 ms and 25 ms a MB": int((ours > 0.010 + 0.025 * size / 1e6).sum()),
                    "slower than resiliparse by 5 ms": int((ours > theirs + 0.005).sum()),
                    "worst (row, bytes, ms, theirs, what takes longest)": [
                        (int(row), int(size[row]), round(ours[row] * 1e3, 1), round(theirs[row] * 1e3, 1),
                         cause_of(pages[row]))
                        for row in np.argsort(theirs - ours)[:10].tolist()
                    ],
                }
            ),
            flush=True,
        )  # fmt: skip


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


def versions() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


if __name__ == "__main__":
    main()
