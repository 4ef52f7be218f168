"""What the engine costs: one worker beside a plain loop, two workers beside two processes, empty parts, a run with
nothing to do.

    python -m benchmarks.pipeline.engine CRAWL [--rounds 5] [--only loop,two,empty,again,large]

CRAWL is a folder of WARC files. The plain loop does what the recipe does (read, extract, exact dedup, write, with the
same files written in between) as one would write it by hand, in one process, with no engine. Both include the start of
Python and of the workers. Prints one JSON line for each result.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("gristmill", "pyarrow", "dask", "distributed", "resiliparse")
GRISTMILL = [sys.executable, "-m", "gristmill.pipeline.cli.app"]
LOOP = """
import sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from gristmill.stages import ExactDedup, Extract, Warc, Write
from gristmill.stages.stage import Origin

out = Path(sys.argv[1]); out.mkdir(parents=True)
extract, warc, write, dedup = Extract(), Warc(path=""), Write(), ExactDedup()
names = []
for path in sys.argv[2:]:
    path = Path(path)
    writer = None
    with path.open("rb") as file:
        for reading in warc.read(file, Origin("crawl", path.name, path.stat().st_size)):
            if len(reading.documents) == 0:
                continue
            done = extract.apply(reading.documents)
            batch = done.batch.filter(pa.array(done.verdict.kept))
            name = out / (path.name + ".documents.parquet")
            writer = writer or pq.ParquetWriter(name, batch.schema, compression="zstd", compression_level=1)
            writer.write_batch(batch)
    if writer is not None:
        writer.close()
        names.append(name)
rows = []
for home, name in enumerate(names):
    for batch in pq.ParquetFile(name).iter_batches():
        made = dedup.sign(pa.Table.from_batches([batch]))
        rows.append(made.append_column("home", pa.array([home] * len(made), pa.uint64())))
duplicates = dedup.duplicates(pa.concat_tables(rows))
gone = set(duplicates.filter(pa.compute.is_valid(duplicates.column("reason"))).column("uid").to_pylist())
kept = 0
for home, name in enumerate(names):
    writer = None
    for batch in pq.ParquetFile(name).iter_batches():
        batch = batch.filter(pa.array([u not in gone for u in batch.column("uid").to_pylist()]))
        table = write.table(batch)
        writer = writer or pq.ParquetWriter(out / (name.name + ".write.parquet"), table.schema, compression="zstd", compression_level=1)
        writer.write_batch(table)
        kept += len(batch)
    if writer is not None:
        writer.close()
print(kept)
"""


def say(what: str, **facts: Any) -> None:
    line = {
        "what": what,
        "machine": f"{platform.processor() or platform.machine()}, {platform.system()}",
        "versions": {p: version(p) for p in PACKAGES},
    } | facts
    print(json.dumps(line), flush=True)


def recipe(folder: Path, inputs: list[Path], **parts: int) -> Path:
    path = folder / f"recipe-{len(list(folder.glob('recipe-*')))}.yaml"
    files = json.dumps([str(p) for p in inputs])
    path.write_text(
        f"name: bench\nparts: {json.dumps({'small_file': 0} | parts)}\nsources:\n  crawl: "
        f"{{warc: {{path: {files}}}}}\nstages: [extract, exact_dedup, write]\n"
    )
    return path


def timed(command: list[str]) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} …: {done.stderr[-2000:]}")
    return time.perf_counter() - start, done.stdout


def run_mill(given: Path, out: Path, workers: int) -> tuple[float, dict[str, Any]]:
    seconds, said = timed([*GRISTMILL, "run", str(given), "--out", str(out), "--workers", str(workers), "--json"])
    return seconds, json.loads(said)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "spread": round(max(values) - min(values), 3)}


def one_worker(folder: Path, crawl: list[Path], rounds: int) -> None:
    mill, loop, ratios, peak, kept = [], [], [], 0, 0
    for _ in range(rounds):
        shutil.rmtree(folder / "mill", ignore_errors=True)
        shutil.rmtree(folder / "loop", ignore_errors=True)
        seconds, record = run_mill(recipe(folder, crawl), folder / "mill", 1)
        mill.append(seconds)
        seconds, said = timed([sys.executable, "-c", LOOP, str(folder / "loop"), *map(str, crawl)])
        loop.append(seconds)
        ratios.append(mill[-1] / loop[-1])
        peak = max(peak, *(e["peak_memory"] for e in record["stages"]))
        kept = record["stages"][-1]["kept"]
        if kept != int(said):
            sys.exit(f"the mill keeps {kept}, the loop {said}")
    documents = record["stages"][0]["kept"]
    say(
        "one worker beside a plain loop (at most 1.10)",
        sizes={"pages": documents, "kept": kept, "bytes": sum(p.stat().st_size for p in crawl)},
        **spread(mill),
        peer=spread(loop),
        times_the_loop=round(statistics.median(ratios), 3),
        rounds=[round(r, 3) for r in ratios],
    )
    say("peak memory of a worker (under 1.5 GB)", bytes=peak)


def two_workers(folder: Path, crawl: list[Path], rounds: int) -> None:
    ratios, mill, pair = [], [], []
    halves = [crawl[0::2], crawl[1::2]]
    for _ in range(rounds):
        for name in ("two", "half-0", "half-1"):
            shutil.rmtree(folder / name, ignore_errors=True)
        seconds, _record = run_mill(recipe(folder, crawl), folder / "two", 2)
        mill.append(seconds)
        start = time.perf_counter()
        running = [
            subprocess.Popen(
                [sys.executable, "-c", LOOP, str(folder / f"half-{i}"), *map(str, half)], stdout=subprocess.DEVNULL
            )
            for i, half in enumerate(halves)
        ]
        if any(p.wait() for p in running):
            sys.exit("a plain process failed")
        pair.append(time.perf_counter() - start)
        ratios.append(pair[-1] / mill[-1])
    say(
        "two workers beside two independent processes (at least 0.92)",
        **spread(mill),
        peer=spread(pair),
        ratio=round(statistics.median(ratios), 3),
        rounds=[round(r, 3) for r in ratios],
    )


def empty_parts(folder: Path, count: int = 100_000) -> None:
    inputs = folder / "empty"
    inputs.mkdir()
    for i in range(count):
        (inputs / f"{i:06d}.jsonl").touch()
    path = folder / "empty.yaml"
    path.write_text(
        f"name: empty\nparts: {{files: 1}}\nsources:\n  docs: {{jsonl: {{path: {inputs}}}}}\nstages: [exact_dedup, "
        "write]\n"
    )
    seconds, record = run_mill(path, folder / "empty-out", 2)
    parts = len(json.loads((folder / "empty-out/partitions/docs/manifest.json").read_text())["parts"])
    say(
        "empty parts, planned and run (under 3 ms each)",
        sizes={"parts": parts},
        seconds=round(seconds, 1),
        milliseconds_each=round(seconds / parts * 1000, 3),
        kept=record["stages"][0]["kept"],
    )


def large_file(folder: Path, crawl: list[Path], size: int = 5 << 30) -> None:
    """One WARC of 5 GB: cut at record boundaries for two workers of 1.5 GB each."""
    big = folder / "big.warc.gz"
    with big.open("wb") as out:
        while out.tell() < size:
            for path in crawl:
                with path.open("rb") as file:
                    shutil.copyfileobj(file, out, 1 << 24)
    path = folder / "big.yaml"
    path.write_text(
        f"name: big\nmemory: 1.5GB\nrejects: {{keep: 0}}\nsources:\n  crawl: {{warc: {{path: {big}}}}}\nstages: "
        f"[{{sample: {{rate: 0.01}}}}, write]\n"
    )
    seconds, record = run_mill(path, folder / "big-out", 2)
    read = record["stages"][0]
    parts = len(json.loads((folder / "big-out/partitions/crawl/manifest.json").read_text())["parts"])
    peak = max(e["peak_memory"] for e in record["stages"])
    say(
        "one WARC of 5 GB on two workers of 1.5 GB",
        sizes={"bytes": big.stat().st_size, "pages": read["kept"], "parts": parts},
        seconds=round(seconds, 1),
        peak_memory=peak,
    )


def again(folder: Path, crawl: list[Path]) -> None:
    given, out = recipe(folder, crawl), folder / "again"
    run_mill(given, out, 2)
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    times = [run_mill(given, out, 2)[0] for _ in range(5)]
    after = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != ".lock"}
    say(
        "a run with nothing changed (under 3 s, nothing rewritten)",
        **spread(times),
        files=len(before),
        rewritten=sum(before.get(p) != t for p, t in after.items()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crawl", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="loop,two,empty,again,large")
    given = parser.parse_args()
    crawl = sorted(given.crawl.resolve().glob("*.warc.gz"))
    wanted = given.only.split(",")
    with tempfile.TemporaryDirectory(prefix="gristmill-bench-") as name:
        folder = Path(name)
        if "again" in wanted:
            again(folder, crawl)
        if "loop" in wanted:
            one_worker(folder, crawl, given.rounds)
        if "two" in wanted:
            two_workers(folder, crawl, given.rounds)
        if "large" in wanted:
            large_file(folder, crawl)
        if "empty" in wanted:
            empty_parts(folder)


if __name__ == "__main__":
    main()
