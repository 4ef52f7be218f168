"""Exact dedup beside polars and duckdb on one core: byte for byte, normalised, and from Parquet to Parquet.

    python -m benchmarks.dedup.exact_texts FOLDER
    python -m benchmarks.dedup.exact_dedup FOLDER [--rivals PYTHON_PATH] [--rounds 3] [--races bytes,normalised,files]

`--rivals`: a folder that holds polars and duckdb, as `pip install --target PYTHON_PATH polars duckdb` makes it; without
it `exact_dedup` runs alone, on an Arrow table. The sides take turns, each in a fresh process on one core with one
thread. Rows a second are of the processor's time. Cold is the first call of a process, which loads kernels too (and in
the first round may compile them); warm the fastest of three more; both are medians over rounds. Memory is what a
process holds at most while it works, above what it held before; of `files` the largest process.

In memory: `ExactDedup` takes and gives the same polars frame as polars (`frame`), or an Arrow table, whose texts have to
be copied (`table`). duckdb reads the frame's Arrow table. Unequal: ours gives each row a uid, says which one stays by a
policy and counts clusters. Normalised, rivals lower case, collapse `\\s+` and trim; ours compares by NFC and full case
folding, so that it finds more. From file to file ours keeps rejects, a journal and a report, and writes zstd at level
1, polars at its default of 3; `normalise` as by default. Prints a JSON line for each race.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.dedup.near_files import PR_SET_CHILD_SUBREAPER, measured, processor

MODULE = "benchmarks.dedup.exact_dedup"
SIDES = {"frame": "gristmill, polars frame", "table": "gristmill, Arrow table", "polars": "polars", "duckdb": "duckdb"}
WARM_CALLS = 3
DUCK_NORMAL = "trim(regexp_replace(lower(text), '\\s+', ' ', 'g'))"
RECIPE = """\
name: exact
keep: nothing
sources:
  made:
    parquet: {{path: "{folder}/*.parquet"}}
stages:
  - exact_dedup
  - write
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rivals")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--races", default="bytes,normalised,files")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        work(given.side, given.races, given.folder, given.out)
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes of a run that outlive it count too
    sides = [side for side in SIDES if given.rivals or side == "table"]
    for race in given.races.split(","):
        raced = from_files if race == "files" else in_memory
        print(json.dumps({"race": race, **facts(given.folder, given.rivals), **raced(race, sides, given)}), flush=True)


def facts(folder: Path, rivals: str | None) -> dict[str, Any]:
    names = ("polars", "duckdb") if rivals else ()
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = subprocess.run(
        [sys.executable, "-c", script, *names], env=with_rivals(rivals), capture_output=True, text=True, check=True
    )
    return {
        "rows": sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")),
        "processor": processor(),
        "versions": {"gristmill": version("gristmill"), **dict(zip(names, found.stdout.split(), strict=True))},
    }


def with_rivals(rivals: str | None) -> dict[str, str]:
    return {**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONPATH": rivals or ""}


def command(side: str, race: str, folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", MODULE, str(folder), "--side", side, "--races", race, *more]


def in_memory(race: str, sides: list[str], given: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(given.rounds):
        for side in sides:
            done = subprocess.run(
                command(side, race, given.folder), env=with_rivals(given.rivals), stdout=subprocess.PIPE, check=True
            )
            figures[side].append(json.loads(done.stdout))
    return {SIDES[side]: in_short(each) for side, each in figures.items()}


def in_short(figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kept": figures[0]["kept"],
        "cold_rows_a_second": round(statistics.median(each["cold"] for each in figures)),
        "warm_rows_a_second": round(statistics.median(each["warm"] for each in figures)),
        "memory_mb": max(each["memory_mb"] for each in figures),
        "all_warm": [round(each["warm"]) for each in figures],
    }


def from_files(race: str, sides: list[str], given: argparse.Namespace) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(prefix="exact-dedup-"))
    recipe = place / "exact.yaml"
    recipe.write_text(RECIPE.format(folder=given.folder.resolve()))
    commands = {"gristmill": ["-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--workers", "1", "--out"]}
    commands |= {side: command(side, race, given.folder, "--out")[1:] for side in sides if side in ("polars", "duckdb")}
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for _ in range(given.rounds):
        for name, words in commands.items():
            out = place / name
            shutil.rmtree(out, ignore_errors=True)
            found = measured([sys.executable, *words, str(out)], with_rivals(given.rivals))
            written = [*(out / "write" if name == "gristmill" else out).glob("*.parquet")]
            found["kept"] = sum(pq.read_metadata(path).num_rows for path in written)
            found["written_mb"] = sum(path.stat().st_size for path in written) // 1_000_000
            figures[name].append(found)
    shutil.rmtree(place)
    rows = facts(given.folder, None)["rows"]
    return {name: files_in_short(each, rows) for name, each in figures.items()}


def files_in_short(figures: list[dict[str, Any]], rows: int) -> dict[str, Any]:
    warm = statistics.median(each["cpu"] for each in figures[1:] or figures)
    return {
        "kept": figures[0]["kept"],
        "written_mb": figures[0]["written_mb"],
        "cold_rows_a_second": round(rows / figures[0]["cpu"]),
        "warm_rows_a_second": round(rows / warm),
        "largest_process_mb": max(each["largest_process_mb"] for each in figures),
        "all_seconds": [each["cpu"] for each in figures],
        "all_wall": [each["wall"] for each in figures],
    }


# --- one side, in a process of its own --------------------------------------------------------------------------------


def work(side: str, race: str, folder: Path, out: Path | None) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    if race == "files":
        assert out is not None
        out.mkdir()
        {"polars": polars_files, "duckdb": duckdb_files}[side](folder, out / "kept.parquet")
        return
    call, rows = {"frame": ours, "table": ours, "polars": polars_call, "duckdb": duckdb_call}[side](side, race, folder)
    before = reset_peak()
    seconds, kept = timed(call)
    warm = min(timed(call)[0] for _ in range(WARM_CALLS))
    memory = (peak() - before) // 1024
    print(json.dumps({"cold": rows / seconds, "warm": rows / warm, "kept": kept, "memory_mb": memory}))


def timed(call: Callable[[], int]) -> tuple[float, int]:
    begun = time.process_time()
    kept = call()
    return time.process_time() - begun, kept


def ours(side: str, race: str, folder: Path) -> tuple[Callable[[], int], int]:
    from gristmill.stages import ExactDedup

    stage = ExactDedup(normalise=race == "normalised")
    if side == "frame":
        import polars

        data = polars.read_parquet(folder / "*.parquet")
    else:
        data = pq.read_table(folder, use_threads=False)
    return lambda: len(stage(data)), len(data)


def polars_call(side: str, race: str, folder: Path) -> tuple[Callable[[], int], int]:
    import polars

    frame = polars.read_parquet(folder / "*.parquet")
    if race == "bytes":
        return lambda: len(frame.unique(subset="text", keep="first")), len(frame)
    return lambda: len(polars_normalised(frame)), len(frame)


def polars_normalised(frame: Any) -> Any:
    import polars

    key = polars.col("text").str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()
    return frame.with_columns(key=key).unique(subset="key", keep="first").drop("key")


def polars_files(folder: Path, out: Path) -> None:
    import polars

    polars_normalised(polars.read_parquet(folder / "*.parquet")).write_parquet(out)


def duckdb_call(side: str, race: str, folder: Path) -> tuple[Callable[[], int], int]:
    import duckdb

    data = pq.read_table(folder, use_threads=False)
    connection = duckdb.connect(config={"threads": 1})
    connection.register("data", data)
    key = "text" if race == "bytes" else DUCK_NORMAL
    query = f"select distinct on ({key}) id, text from data"
    return lambda: connection.sql(query).to_arrow_table().num_rows, len(data)


def duckdb_files(folder: Path, out: Path) -> None:
    import duckdb

    duckdb.connect(config={"threads": 1}).execute(
        f"copy (select distinct on ({DUCK_NORMAL}) id, text from read_parquet('{folder}/*.parquet')) "
        f"to '{out}' (format parquet, compression zstd)"
    )


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Kilobytes that the process held at most since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
