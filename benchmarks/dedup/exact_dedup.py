"""Exact dedup beside polars and duckdb on one core: byte for byte, normalised, and from Parquet to Parquet.

    python -m benchmarks.dedup.exact_texts FOLDER
    python -m benchmarks.dedup.exact_dedup FOLDER [--wheels WHEELS] [--rounds 3] [--only bytes,normalised,files]

Races as `benchmarks.races` runs them; its `--install` fills WHEELS. In memory: `ExactDedup` takes and gives the same
polars frame as polars, or an Arrow table, whose texts have to be copied. duckdb reads an Arrow table. The answer of a
side is the number of rows that stay. Unequal: ours gives each row a uid, says which one stays by a policy and counts
clusters. Normalised, rivals lower case, collapse `\\s+` and trim; ours compares by NFC and full case folding, so that
it finds more. From file to file ours keeps rejects, a journal and a report, and writes zstd at level 1, polars at its
default of 3; `normalise` as by default.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.races import ONE_THREAD, ROOT, Side, Work, installed, race, race_of_commands
from gristmill.stages import ExactDedup

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
DUCK_NORMAL = "trim(regexp_replace(lower(text), '\\s+', ' ', 'g'))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="bytes,normalised,files")
    parser.add_argument("--files-of", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.files_of:
        {"polars": polars_files, "duckdb": duckdb_files}[given.files_of](given.folder, given.out)
        return
    for name in given.only.split(","):
        if name == "files":
            from_files(given.folder.resolve(), given.wheels, given.rounds)
            continue
        arguments = {"folder": str(given.folder.resolve()), "normalised": name == "normalised"}
        race(f"exact duplicates, {name}", "rows", SIDES, arguments, given.rounds, given.wheels)


def frame(folder: str, normalised: bool) -> Work:
    import polars

    data, stage = polars.read_parquet(f"{folder}/*.parquet"), ExactDedup(normalise=normalised)
    return Work(lambda: len(stage(data)), len(data), int)


def table(folder: str, normalised: bool) -> Work:
    data, stage = pq.read_table(folder, use_threads=False), ExactDedup(normalise=normalised)
    return Work(lambda: len(stage(data)), len(data), int)


def of_polars(folder: str, normalised: bool) -> Work:
    import polars

    data = polars.read_parquet(f"{folder}/*.parquet")
    if normalised:
        return Work(lambda: len(polars_normalised(data)), len(data), int)
    return Work(lambda: len(data.unique(subset="text", keep="first")), len(data), int)


def of_duckdb(folder: str, normalised: bool) -> Work:
    import duckdb

    data = pq.read_table(folder, use_threads=False)
    connection = duckdb.connect(config={"threads": 1})
    connection.register("data", data)
    query = f"select distinct on ({DUCK_NORMAL if normalised else 'text'}) id, text from data"
    return Work(lambda: connection.sql(query).to_arrow_table().num_rows, len(data), int)


SIDES = {
    "ours, polars frame": Side(frame),
    "ours, Arrow table": Side(table),
    "polars": Side(of_polars, ("polars",)),
    "duckdb": Side(of_duckdb, ("duckdb",)),
}


def from_files(folder: Path, wheels: Path | None, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="exact-dedup-") as place:
        recipe = Path(place) / "exact.yaml"
        recipe.write_text(RECIPE.format(folder=folder))

        def ours(out: Path) -> tuple[list[str], dict[str, str]]:
            run = ["-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--workers", "1", "--out", str(out)]
            return [sys.executable, *run], dict(os.environ)

        def rival(name: str) -> Callable[[Path], tuple[list[str], dict[str, str]]]:
            run = [sys.executable, "-m", "benchmarks.dedup.exact_dedup", str(folder), "--files-of", name, "--out"]
            return lambda out: ([*run, str(out)], os.environ | ONE_THREAD | {"PYTHONPATH": f"{ROOT}:{wheels}"})

        sides = {"ours": ours} | {name: rival(name) for name in ("polars", "duckdb") if installed(wheels, name)}
        race_of_commands(
            "exact duplicates, from file to file", "rows",
            sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet")), sides,
            lambda name, out: (out / "write" if name == "ours" else out).glob("*.parquet"),
            {"ours": version("gristmill")} | {name: installed(wheels, name) for name in sides if name != "ours"}, rounds,
        )  # fmt: skip


def polars_normalised(frame: Any) -> Any:
    import polars

    key = polars.col("text").str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()
    return frame.with_columns(key=key).unique(subset="key", keep="first").drop("key")


def polars_files(folder: Path, out: Path) -> None:
    import polars

    out.mkdir()
    polars_normalised(polars.read_parquet(folder / "*.parquet")).write_parquet(out / "kept.parquet")


def duckdb_files(folder: Path, out: Path) -> None:
    import duckdb

    out.mkdir()
    duckdb.connect(config={"threads": 1}).execute(
        f"copy (select distinct on ({DUCK_NORMAL}) id, text from read_parquet('{folder}/*.parquet')) "
        f"to '{out}/kept.parquet' (format parquet, compression zstd)"
    )


if __name__ == "__main__":
    main()
