"""The whole way from WARC files to deduplicated documents: recipes/fineweb.yaml against DataTrove's own FineWeb steps,
on the same two cores.

    python -m benchmarks.pipeline.end_to_end CRAWL [--rival PYTHON] [--rounds 3] [--timeout 1] [--folder FOLDER]

PYTHON has datatrove with its extras for WARC files, extraction and filters. Both read the same files, keep what they
drop with its reason, and start their own workers; they run in turns, start-up included. Without --rival ours runs
alone. Prints pages a second of both by wall clock and by processor time (all their processes), the processor time that
others took meanwhile, and where the two keep different pages, who dropped them and why.

CRAWL: benchmarks/pipeline/real_crawl.py makes one. --timeout is DataTrove's limit for a page and for the start of an
extractor (1 s in its example); a busy machine needs more, or it loses pages and restarts its extractor for each.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.races import compile_package, processor as name_of_processor
from gristmill.stages.text.language import model_path

HERE = Path(__file__).parent
PUBLISHED = "crawl-data/CC-MAIN-*/segments/*/warc/*.warc.gz"
SUBREAPER = 36  # of prctl(2)


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds by the clock, of the processor for all its processes, and of the processor for
    everything else that ran on the machine meanwhile."""

    wall: float
    processor: float
    others: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("crawl", type=Path)
    arguments.add_argument("--rival", help="a Python that has datatrove")
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--timeout", type=float, default=1.0, help="DataTrove's seconds for a page (default: 1)")
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="end-to-end-"))
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "fineweb.yaml"
    text = (HERE.parents[1] / "recipes" / "fineweb.yaml").read_text()
    assert PUBLISHED in text
    recipe.write_text(text.replace(PUBLISHED, f"{given.crawl.resolve()}/*.warc.gz"))
    ours, theirs = folder / "ours", folder / "theirs"
    run = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(ours), "--workers", "2"]
    rival = HERE / "end_to_end_datatrove.py"
    peer = [given.rival, str(rival), str(given.crawl), str(theirs), str(model_path(None)), str(given.timeout)]
    compile_package()
    ctypes.CDLL(None).prctl(SUBREAPER, 1)  # orphans of a command are counted too
    costs: dict[str, list[Cost]] = {"ours": [], "datatrove": []}
    for _ in range(given.rounds):
        costs["ours"].append(measure(ours, run))
        if given.rival:
            costs["datatrove"].append(measure(theirs, peer))
    record = json.loads((ours / "run.json").read_text())
    pages = next(stage["docs_in"] for stage in record["stages"] if stage["name"] == "extract")
    found: dict[str, Any] = {
        "what": "WARC to deduplicated documents, recipes/fineweb.yaml, two workers",
        "pages": pages,
        "machine": name_of_processor(),
        "versions": {n: version(n) for n in ("gristmill", "pyarrow", "dask")},
    }
    for name, took in costs.items():
        if took:
            wall, processor = (
                statistics.median(getattr(cost, field) for cost in took) for field in ("wall", "processor")
            )
            found[name] = {
                "pages_a_second": round(pages / wall, 1),
                "pages_a_second_of_processor": round(pages / processor, 1),
                "median_seconds": round(wall, 2),
                "rounds": [{field: round(seconds, 2) for field, seconds in asdict(cost).items()} for cost in took],
            }
    if costs["datatrove"]:
        wall, processor = (
            statistics.median(getattr(cost, field) for cost in costs["datatrove"])
            / statistics.median(getattr(cost, field) for cost in costs["ours"])
            for field in ("wall", "processor")
        )
        found |= {"peer": "datatrove", "ratio": round(wall, 2), "ratio_of_processor": round(processor, 2)}
    print(json.dumps(found))
    if costs["datatrove"]:
        print(json.dumps({"what": "pages kept"} | compared(fates(ours), fates_of_datatrove(theirs))))


def measure(out: Path, command: list[str]) -> Cost:
    shutil.rmtree(out, ignore_errors=True)
    begun, busy, own = time.perf_counter(), busy_seconds(), processor_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    reap_orphans()
    processor = processor_seconds() - own
    cost = Cost(wall, processor, busy_seconds() - busy - processor)
    print(out.name, {field: round(seconds, 2) for field, seconds in asdict(cost).items()}, file=sys.stderr, flush=True)
    return cost


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def busy_seconds() -> float:
    """Of all cores since the machine started, time stolen by other guests of the host included."""
    user, nice, system, _idle, _wait, *interrupts_and_stolen = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + sum(interrupts_and_stolen)) / os.sysconf("SC_CLK_TCK")


def reap_orphans() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def fates(out: Path) -> dict[str, str]:
    """By url: `kept`, or the stage that dropped the page and why."""
    found: dict[str, str] = {}
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
