"""The whole road from WARC files to deduplicated documents: recipes/fineweb.yaml beside DataTrove's own FineWeb steps,
on the same two cores.

    python -m benchmarks.pipeline.end_to_end CRAWL --rival PYTHON [--rounds 1] [--folder FOLDER]

PYTHON has datatrove with its extras for WARC files, extraction and filters. Both read the same files, keep what they
drop with its reason, and start their own workers; each runs alone. Prints pages a second of both, and where the two
keep different pages, who dropped them and why.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gristmill.stages.text.language import model_path

HERE = Path(__file__).parent
PUBLISHED = "crawl-data/CC-MAIN-*/segments/*/warc/*.warc.gz"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("crawl", type=Path)
    arguments.add_argument("--rival", help="a Python that has datatrove")
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="end-to-end-"))
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "fineweb.yaml"
    text = (HERE.parents[1] / "recipes" / "fineweb.yaml").read_text()
    assert PUBLISHED in text
    recipe.write_text(text.replace(PUBLISHED, f"{given.crawl.resolve()}/*.warc.gz"))
    ours, theirs = folder / "ours", folder / "theirs"
    seconds: dict[str, list[float]] = {"ours": [], "datatrove": []}
    for _ in range(given.rounds):
        seconds["ours"].append(
            timed(
                ours,
                [
                    sys.executable,
                    "-m",
                    "gristmill.pipeline.cli.app",
                    "run",
                    str(recipe),
                    "--out",
                    str(ours),
                    "--workers",
                    "2",
                ],
            )
        )
        if given.rival:
            command = [
                given.rival,
                str(HERE / "end_to_end_datatrove.py"),
                str(given.crawl),
                str(theirs),
                str(model_path(None)),
            ]
            seconds["datatrove"].append(timed(theirs, command))
    run = json.loads((ours / "run.json").read_text())
    pages = next(stage["docs_in"] for stage in run["stages"] if stage["name"] == "extract")
    found: dict[str, Any] = {
        "what": "WARC to deduplicated documents, recipes/fineweb.yaml, two workers",
        "pages": pages,
    }
    found |= {
        "machine": f"{platform.machine()} {platform.system()}",
        "versions": {n: version(n) for n in ("gristmill", "pyarrow", "dask")},
    }
    for name, took in seconds.items():
        if took:
            found[name] = {
                "pages_a_second": round(pages / statistics.median(took), 1),
                "median_seconds": round(statistics.median(took), 2),
                "rounds": [round(t, 2) for t in took],
            }
    if seconds["datatrove"]:
        found |= {
            "peer": "datatrove",
            "ratio": round(statistics.median(seconds["datatrove"]) / statistics.median(seconds["ours"]), 2),
        }
    print(json.dumps(found))
    if seconds["datatrove"]:
        print(json.dumps({"what": "pages kept"} | compared(fates(ours), fates_of_datatrove(theirs))))


def timed(out: Path, command: list[str]) -> float:
    shutil.rmtree(out, ignore_errors=True)
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return time.perf_counter() - begun


def fates(out: Path) -> dict[str, str]:
    """By url: `kept`, or the stage that dropped the page and why."""
    found = {}
    for path in (out / "stages").glob("*/rejects/*.parquet"):
        found |= {
            row["url"]: f"{row['stage']}: {row['reason']}"
            for row in pq.read_table(path, columns=["url", "stage", "reason"]).to_pylist()
        }
    for path in (out / "write").glob("*.parquet"):
        found |= {row["url"]: "kept" for row in pq.read_table(path, columns=["url"]).to_pylist()}
    return found


def fates_of_datatrove(out: Path) -> dict[str, str]:
    """As `fates`. What its extraction gives up leaves no record."""
    found = {}
    for path in out.glob("rejected/*/*.jsonl.gz"):
        for row in rows(path):
            found[row["metadata"]["url"]] = f"{path.parent.name}: {row['metadata'].get('filter_reason', 'dropped')}"
    for path in (out / "done").glob("*.jsonl.gz"):
        found |= {row["metadata"]["url"]: "kept" for row in rows(path)}
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def compared(ours: dict[str, str], theirs: dict[str, str]) -> dict[str, Any]:
    urls = ours.keys() | theirs.keys()
    both = {url: (ours.get(url, "no record"), theirs.get(url, "no text extracted")) for url in urls}
    kept = Counter((a == "kept", b == "kept") for a, b in both.values())
    return {
        "both": kept[True, True],
        "only_ours": kept[True, False],
        "only_datatrove": kept[False, True],
        "neither": kept[False, False],
        "kept_by_us_dropped_by_datatrove": Counter(
            b for a, b in both.values() if a == "kept" and b != "kept"
        ).most_common(),
        "kept_by_datatrove_dropped_by_us": Counter(
            a for a, b in both.values() if b == "kept" and a != "kept"
        ).most_common(),
    }


if __name__ == "__main__":
    main()
