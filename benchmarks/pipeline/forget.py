"""`gristmill forget` of a part of a run's documents: what of their texts is left, and how long it takes.

    python -m benchmarks.pipeline.forget [--documents 3600] [--forget 1000]

The run has two sources, exact and near duplicates, a saved index, a judge that was trained on some of its texts (which
lie in OUT too), shards, and three exports. Forgotten are documents that were kept, some of which others were dropped
for. Looked for is every stretch of 32 bytes of theirs that no other document holds, in all files below OUT and in the
export beside it: columns unpacked, tokens decoded, JSON unescaped. Then the run is verified, and run again: its outputs
must equal those of a run whose inputs never had the documents. A second measurement finds a passage of each of a
hundred documents.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gristmill.pipeline.look.find import find_in_run
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.token_sets import exported
from gristmill.shards.export.export import Options
from tests.pipeline.forget.forgetting import (
    contents,
    documents,
    inputs_without,
    make_run,
    places,
    results,
    tokens_of,
    windows,
)
from tests.pipeline.runs import go

EXPORTS = (("megatron", "out/exports/megatron"), ("mds", "out/exports/mds"), ("trl", "elsewhere"))
FOUND = 100


def gristmill(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gristmill.pipeline.cli.app", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def texts_of(out: Path) -> list[dict[str, Any]]:
    paths = sorted((out / "partitions").rglob("*.documents.parquet"))
    return [row for path in paths for row in pq.read_table(path, columns=["uid", "text"]).to_pylist()]


def say(what: str, **facts: Any) -> None:
    machine = f"{platform.machine()} {platform.system()}"
    versions = {"gristmill": version("gristmill"), "python": platform.python_version()}
    print(json.dumps({"what": what, **facts, "machine": machine, "versions": versions}), flush=True)


def all_contents(folder: Path) -> dict[str, bytes]:
    return contents(folder, ("in/", "ids.txt", "r.yaml"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=3600)
    parser.add_argument("--forget", type=int, default=1000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="forget-"))
    try:
        out = make_run(folder, given.documents // 4)
        (out / "judge.yaml").write_text(
            "out: judge\nkind: linear\nhold_out: 0\ngood: judge-texts/a.parquet\nbad: judge-texts/b.jsonl\n"
        )
        gristmill("judge", "train", str(out / "judge.yaml"))
        for to, place in EXPORTS:
            exported(str(out), to, str(folder / place), None, Options(), lambda done, of: None)
        before, tokens = documents(out), tokens_of(out)
        rejected = {row["detail"].rsplit(" ", 1)[-1] for row in rejects_of(out)}
        gone = sorted(before, key=lambda row: (f"{row['uid']:016x}" not in rejected, row["uid"]))[: given.forget]
        uids = {row["uid"] for row in gone}
        theirs = windows(str(row["text"]) for row in gone)
        theirs -= windows(row["text"] for row in texts_of(out) if row["uid"] not in uids)
        places_before = places(all_contents(folder), theirs)
        passages = [str(row["text"])[30:110] for row in before[:FOUND]]
        list(find_in_run(RunFolder(out), passages[0], 1))
        begin = time.perf_counter()
        hits = [{hit.uid for hit in find_in_run(RunFolder(out), passage, 10)} for passage in passages]
        seconds = time.perf_counter() - begin
        right = sum(f"{row['uid']:016x}" in some for row, some in zip(before, hits, strict=False))
        say("find", passages=FOUND, found=right, seconds_each=round(seconds / FOUND, 4))
        (folder / "ids.txt").write_text("".join(f"{row['uid']:016x}\n" for row in gone))
        begin = time.perf_counter()
        receipt = json.loads(gristmill("forget", str(out), "--list", str(folder / "ids.txt"), "--json"))
        seconds = time.perf_counter() - begin
        places_after = places(all_contents(folder), theirs)
        gristmill("maintain", "verify", str(out))
        stays = [row for row in before if row["uid"] not in uids]
        same = documents(out) == stays and tokens_of(out) == {u: ids for u, ids in tokens.items() if u not in uids}
        begin = time.perf_counter()
        _, anew = go(folder / "r.yaml", out)
        next_run = time.perf_counter() - begin
        came = {f"{row['uid']:016x}" for row in documents(out)} - {f"{row['uid']:016x}" for row in stays}
        left = places(all_contents(folder), theirs)
        inputs_without(folder / "in", folder / "fresh/in", uids)
        shutil.copy(folder / "r.yaml", folder / "fresh")
        go(folder / "fresh/r.yaml", folder / "fresh/out")
        fresh = results(folder / "fresh")
        say(
            "forget",
            documents=given.documents,
            kept=len(before),
            forgotten=receipt["documents"],
            may_return=len(receipt["may_return"]),
            copies=len(receipt["copies"]),
            stretches=len(theirs),
            places_before=sum(places_before.values()),
            files_before=len(places_before),
            places_after=sum(places_after.values()),
            left_in=places_after,
            all_else_equal=same,
            tasks_of_the_next_run=sum(anew.values()),
            returned=len(came),
            all_returned_were_listed=came <= set(receipt["may_return"]),
            left_after_the_next_run=left,
            equal_to_a_fresh_run=results(folder) == fresh,
            files_compared=len(fresh),
            seconds=round(seconds, 1),
            seconds_of_the_next_run=round(next_run, 1),
        )
    finally:
        shutil.rmtree(folder)


def rejects_of(out: Path) -> list[dict[str, Any]]:
    paths = [path for name in ("exact_dedup", "minhash_dedup") for path in (out / f"stages/{name}/rejects").iterdir()]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


if __name__ == "__main__":
    main()
