"""Near-deduplication from Parquet to Parquet, beside Daft's MinHash, on one core.

    python -m benchmarks.dedup.near_files [--documents 20000,100000] [--rounds 3] [--wheels WHEELS] [--folder FOLDER]

A race as `benchmarks.races` runs them; its `--install` fills WHEELS. Both read the same files of made documents (one in
fourteen is new; of its copies three have 1 % of their words changed and ten 25 %) and write the documents that stay.
Gristmill runs `minhash_dedup` from its command line, with journal, rejects, report and every pair checked; Daft
(`near_files_daft.py`) checks no pair and names no survivor. The answer is the number of documents that stay.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.races import installed, race_of_commands

WORDS, VOCABULARY, IN_A_FILE, FAMILY = 400, 50_000, 25_000, 14
CHANGED = [0.0] + [0.01] * 3 + [0.25] * 10  # of the words of each member of a family
RECIPE = """\
name: near
keep: {keep}
sources:
  made:
    parquet: {{path: "{folder}/*.parquet"}}
stages:
  - minhash_dedup: {{threshold: 0.8, ngram: 5}}
  - write
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--documents", default="20000,100000")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--keep", default="nothing", help="what the run of Gristmill keeps")
    arguments.add_argument("--wheels", type=Path, help="a folder that holds Daft")
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="near-files-"))
    for documents in map(int, given.documents.split(",")):
        made = folder / f"made-{documents}"
        if not made.exists():
            make(made, documents)
        recipe = folder / "near.yaml"
        recipe.write_text(RECIPE.format(folder=made, keep=given.keep))
        raced(documents, made, recipe, given.wheels, given.rounds)
    if given.folder is None:
        shutil.rmtree(folder)


def raced(documents: int, made: Path, recipe: Path, wheels: Path | None, rounds: int) -> None:
    def ours(out: Path) -> tuple[list[str], dict[str, str]]:
        run = ["-m", "gristmill.pipeline.cli.app", "run", str(recipe), "--out", str(out), "--workers", "1"]
        return [sys.executable, *run], dict(os.environ)

    def daft(out: Path) -> tuple[list[str], dict[str, str]]:
        run = [sys.executable, str(Path(__file__).with_name("near_files_daft.py")), str(made), str(out)]
        alone = {"PYTHONPATH": str(wheels), "DAFT_ANALYTICS_ENABLED": "0", "DO_NOT_TRACK": "1"}
        return run, os.environ | alone

    sides = {"ours": ours} | ({"daft": daft} if installed(wheels, "daft") else {})
    race_of_commands(
        f"near duplicates, from file to file, {documents:,} documents", "documents", documents, sides,
        lambda name, out: (out / "write" if name == "ours" else out).rglob("*.parquet"),
        {"ours": version("gristmill"), "daft": installed(wheels, "daft")}, rounds,
    )  # fmt: skip


def make(folder: Path, documents: int) -> None:
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    lengths = random.integers(2, 10, VOCABULARY)
    vocabulary = np.array(["".join(random.choice(letters, n)) for n in lengths], dtype=object)
    rank = 1 / (np.arange(VOCABULARY) + 10.0)
    rank /= rank.sum()
    original = np.empty(0, dtype=np.int64)
    rows: list[str] = []
    for number in range(documents):
        member = number % FAMILY
        if member == 0:
            original = random.choice(VOCABULARY, WORDS, p=rank)
        words = original.copy()
        changed = np.flatnonzero(random.random(WORDS) < CHANGED[member])
        words[changed] = random.integers(0, VOCABULARY, len(changed))
        rows.append(" ".join(vocabulary[words]))
    order = random.permutation(documents)
    for first in range(0, documents, IN_A_FILE):
        chosen = order[first : first + IN_A_FILE]
        table = pa.table({"id": [f"document {n}" for n in chosen], "text": [rows[n] for n in chosen]})
        pq.write_table(table, folder / f"{first // IN_A_FILE:04d}.parquet", compression="zstd")


if __name__ == "__main__":
    main()
