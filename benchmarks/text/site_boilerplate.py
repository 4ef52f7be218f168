#!/usr/bin/env python3
"""What the stage `site_boilerplate` does to extracted text, what it costs, and what it leaves alone. One JSON line a
result.

    python -m benchmarks.text.site_boilerplate [--data ../shared/data] [--only NAME...] [--sites N]

wcxb: sites of three pages and more of pages.parquet, text by models that have not seen the host (read from --models, or
trained first), and all visible text; the settings were chosen here and on planted crawls. waddle: Greek and Polish news of
pages_more.parquet, which chose nothing; by language, all hosts and without the largest, with a 95 % interval of the
difference by resampling hosts. planted: a crawl whose templates are known (tests/stages/dedup/planted_sites.py): how
much of them goes, and how many lines of main text that repeat are lost. scale: --sites sites of ten pages, through a run
with two workers.
Word-F1 as in `benchmarks.text.extraction`.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.text.extraction import models_of
from gristmill.classifiers.blocks.training import folds_of, word_f1, words_of
from gristmill.stages.dedup.site_boilerplate import SiteBoilerplate
from gristmill.stages.extract.engines import extract
from gristmill.stages.extract.gristmill import look_at, main_text, utf8, visible_text
from gristmill.stages.extract.train import FOLDS
from gristmill.stages.extract.training_pages import site_of
from gristmill.stages.text.sites import site_of_host, sites_of
from tests.stages.dedup.planted_sites import planted

DRAWS = 2000
PAGES_A_SITE, PAGES_A_FILE = 10, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--models", type=Path, default=Path("/tmp/gristmill-block-models"))
    parser.add_argument("--only", nargs="*", choices=list(RESULTS), default=list(RESULTS))
    parser.add_argument("--sites", type=int, default=10_000)
    asked = parser.parse_args()
    for name in asked.only:
        RESULTS[name](asked)


def say(**facts: Any) -> None:
    print(json.dumps({"machine": f"{platform.machine()}, one process", **facts}), flush=True)


def wcxb(asked: argparse.Namespace) -> None:
    rows = [row for row in pq.read_table(asked.data / "pages.parquet").to_pylist() if row["main_content"]]
    sites = sites_of(pa.array([row["url"] for row in rows])).tolist()
    pages = Counter(site for site in sites if site)
    folds, models = folds_of([site_of(row) for row in rows], FOLDS), models_of(rows, asked.data, asked.models)
    chosen = [(row, str(site)) for row, site in zip(rows, sites, strict=True) if pages[site] >= 3]
    unseen = [models[fold] for fold, site in zip(folds, sites, strict=True) if pages[site] >= 3]
    urls, gold = [row["url"] for row, _ in chosen], [row["main_content"] for row, _ in chosen]
    data = [utf8(row["html"]) for row, _ in chosen]
    texts: dict[str, list[str]] = {
        "extracted": [main_text(page, model, "text") for page, model in zip(data, unseen, strict=True)],
        "visible": [visible_text(look_at(page)) for page in data],
    }
    for name, given in texts.items():
        say(what=f"wcxb, {name}", **compared(urls, given, gold, [site for _, site in chosen]))


def waddle(asked: argparse.Namespace) -> None:
    table = pq.read_table(asked.data / "pages_more.parquet", columns=["set", "id", "html", "text", "language"])
    every = [row for row in table.to_pylist() if row["set"] == "waddle" and row["text"]]
    for language in sorted({row["language"] for row in every}):
        rows = [row for row in every if row["language"] == language]
        urls = [f"http://{row['id'].split('_')[1]}/{n}" for n, row in enumerate(rows)]
        sites = [site_of_host(row["id"].split("_")[1].removeprefix("www.")) for row in rows]
        texts = [extract(row["html"], url).text for row, url in zip(rows, urls, strict=True)]
        largest = Counter(sites).most_common(1)[0][0]
        for name, leave_out in (("all sites", ""), ("without the largest", largest)):
            kept = [n for n, site in enumerate(sites) if site != leave_out]
            of_kept = [[values[n] for n in kept] for values in (urls, texts, [row["text"] for row in rows], sites)]
            say(what=f"waddle, {language}, {name}", **compared(*of_kept))


def compared(urls: list[str], texts: list[str], gold: list[str], sites: list[str]) -> dict[str, Any]:
    """Word-F1 with and without the stage, and the difference with an interval over sites."""
    after = SiteBoilerplate()(pa.table({"url": urls, "text": texts}))
    reviewed = [words_of(text) for text in gold]
    pairs = zip(texts, after["text"].to_pylist(), reviewed, strict=True)
    scores = np.array([[word_f1(words_of(text), main) for text in (before, cut)] for before, cut, main in pairs])
    gain = scores[:, 1] - scores[:, 0]
    names, place = np.unique(sites, return_inverse=True)
    sums, counts = np.bincount(place, gain), np.bincount(place)
    drawn = np.random.default_rng(0).integers(0, len(names), (DRAWS, len(names)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "sites": len(names),
        "pages": len(urls),
        "word_f1_without": round(float(scores[:, 0].mean()), 4),
        "word_f1_with": round(float(scores[:, 1].mean()), 4),
        "gain": round(float(gain.mean()), 4),
        "interval": [round(float(low), 4), round(float(high), 4)],
        "pages_better": int((gain > 0).sum()),
        "pages_worse": int((gain < 0).sum()),
        "sites_worse": int((sums < -1e-9).sum()),
    }


def templates(asked: argparse.Namespace) -> None:
    rows = planted(300, (3, 40), seed=11)
    columns = {name: [row[name] for row in rows] for name in ("url", "text")}
    after = SiteBoilerplate()(pa.table(columns))["text"].to_pylist()
    for kind in sorted({row["kind"] for row in rows}):
        counts: Counter[str] = Counter()
        for row, text in zip(rows, after, strict=True):
            if row["kind"] == kind:
                left, main = Counter(text.split("\n")), Counter(row["main"])
                template = Counter(row["text"].split("\n")) - main
                counts += Counter(template=template.total(), left=(template & left).total())
                counts += Counter(main=main.total(), lost=(main - left).total())
        say(
            what=f"planted, {kind}",
            template_lines=counts["template"],
            template_gone=round(1 - counts["left"] / counts["template"], 4),
            main_lines=counts["main"],
            main_lost=round(counts["lost"] / counts["main"], 4),
        )


def scale(asked: argparse.Namespace) -> None:
    """Pages of 1.6 kB, a third of each the template of its site, in files where no site lies together, through a run
    with two workers."""
    dice = np.random.default_rng(3)
    vocabulary = [f"word{n}" for n in range(20_000)]
    pool = [" ".join(vocabulary[n] for n in dice.integers(0, len(vocabulary), 12)) for _ in range(50_000)]
    with tempfile.TemporaryDirectory() as name:
        folder, text_bytes, count = Path(name), 0, 0
        (folder / "in").mkdir()
        for start in range(0, asked.sites * PAGES_A_SITE, PAGES_A_FILE):
            sites = dice.integers(0, asked.sites, min(PAGES_A_FILE, asked.sites * PAGES_A_SITE - start)).tolist()
            own = dice.integers(0, len(pool), (len(sites), 12)).tolist()
            with (folder / "in" / f"{start:08d}.jsonl").open("w") as file:
                for row, site in enumerate(sites):
                    template = [pool[(site * 7 + k) % len(pool)] for k in range(6)]
                    body = [f"{pool[line]} {count} {n}" for n, line in enumerate(own[row])]
                    text = "\n".join([*template[:3], *body, *template[3:]])
                    file.write(json.dumps({"url": f"https://www.site{site}.org/{count}", "text": text}) + "\n")
                    count, text_bytes = count + 1, text_bytes + len(text)
        recipe = folder / "recipe.yaml"
        recipe.write_text("name: scale\nsources: {a: {jsonl: {path: in}}}\nstages: [site_boilerplate, write]\n")
        program = str(Path(sys.executable).with_name("gristmill"))
        command = [program, "run", str(recipe), "--out", str(folder / "out")]
        started = time.monotonic()
        subprocess.run([*command, "--workers", "2"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        whole = time.monotonic() - started
        record = json.loads((folder / "out" / "run.json").read_text())
        report = json.loads((folder / "out" / "stages" / "site_boilerplate" / "report.json").read_text())
    stage = next(entry for entry in record["stages"] if entry["name"] == "site_boilerplate")
    say(
        what="scale",
        machine=f"{platform.machine()}, two workers",
        sites=asked.sites,
        pages=count,
        megabytes=round(text_bytes / 1e6),
        seconds_of_run=round(whole, 1),
        worker_seconds_of_stage=round(stage["seconds"], 1),
        peak_memory_of_a_worker=stage.get("peak_memory") or report.get("peak_memory"),
        site_counts=report["site_counts"],
    )


RESULTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "wcxb": wcxb,
    "waddle": waddle,
    "planted": templates,
    "scale": scale,
}


if __name__ == "__main__":
    main()
