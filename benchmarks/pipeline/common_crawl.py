"""A false Common Crawl on loopback: what `cc` fetches, with and without faults, held against the least that its plan
needs and against `warc` on the same files in a folder.

    python -m benchmarks.pipeline.common_crawl [--files 50] [--records 60] [--faults 0.05] [--seeds 3]

Made: `--files` WARC files of `--records` pages each, their list and a columnar index (tests/pipeline/inputs/
false_crawl.py), and a server that fails a share of the requests: 503, 429, cut and stalled bodies, lengths that are too
small and too large, connections that end. Per line: requests and bytes that the server counted, those of the plan (each
list, a byte of each file, each file or merged range once), and whether every file of documents is the same byte for byte
as that of the folder. The last line kills the run while it fetches (SIGKILL to all of its processes), and runs it again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.pipeline.inputs.false_crawl import DUMP, Crawl, Server, make_crawl, serving

QUERY = "index: {languages: [deu], mime: [text/html]}"
RECIPE = "name: r\nparts: {{small_file: 0}}\nsources:\n  crawl: {{{reader}}}\nstages: [extract, write]\n"
CC = "cc: {{dump: {dump}, root: '{root}', cache: {cache}, limits: {{requests: 10000, pause: 0.01{limits}}}{more}}}"


def command(folder: Path, name: str, reader: str) -> list[str]:
    recipe = folder / f"{name}.yaml"
    recipe.write_text(RECIPE.format(reader=reader))
    out = str(folder / name)
    return [
        sys.executable,
        "-m",
        "gristmill.pipeline.cli.app",
        "run",
        str(recipe),
        "--out",
        out,
        "--workers",
        "1",
        "--json",
    ]


def run(folder: Path, name: str, reader: str) -> dict[str, Any]:
    done = subprocess.run(command(folder, name, reader), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr[-3000:]}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def written(folder: Path, name: str) -> dict[str, bytes]:
    """Files of documents by the part that they are of: their names end in a fingerprint, which knows the input's
    version."""
    return {path.name.split(".")[0]: path.read_bytes() for path in sorted((folder / name / "write").glob("*.parquet"))}


def same(folder: Path, one: str, other: str) -> bool:
    mine, others = written(folder, one), written(folder, other)
    return bool(mine) and mine == others


def size_of(crawl: Crawl, names: list[str]) -> int:
    return sum((crawl.root / name).stat().st_size for name in names)


def line(what: str, **facts: Any) -> None:
    versions = {name: version(name) for name in ("gristmill", "httpx2", "pyarrow")}
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"what": what, "machine": machine, "versions": versions, **facts}), flush=True)


def fetched(
    folder: Path, crawl: Crawl, name: str, near: str, more: str, least: tuple[int, int] | None, share: float, seed: int
) -> tuple[int, int]:
    """One run against the server; what it asked for."""
    with serving(crawl.root, share=share, seed=seed) as server:
        reader = CC.format(dump=DUMP, root=server.address, cache=folder / f"cache-{name}", limits="", more=more)
        begun = time.perf_counter()
        record = run(folder, name, reader)
        seconds = time.perf_counter() - begun
        plan = record["inputs"]["crawl"]["fetch"]
        facts = asked(server, plan) if least is None else {"least_requests": least[0], "least_bytes": least[1]}
        faults = {kind: count for kind, count in sorted(server.met.items()) if kind and count}
        line(
            f"cc {more.strip(', ') or 'whole files'}",
            faults=faults,
            costly_faults=server.costly,
            requests=server.requests,
            bytes=server.bytes,
            **facts,
            same=same(folder, name, near),
            kept=record["stages"][-1]["kept"],
            sent_again=(record["requests"] or {}).get("retries", 0),
            seconds=round(seconds, 1),
        )
        return server.requests, server.bytes


def asked(server: Server, plan: dict[str, Any]) -> dict[str, int]:
    """What the run itself said before it began: the list it had then, and the rest at most."""
    return {
        "least_requests": plan["requests"] + plan["listing_requests"],
        "least_bytes": plan["bytes"] + plan["listing_bytes"],
    }


def killed(folder: Path, crawl: Crawl) -> None:
    """Killed once a third has come, then run again."""
    size = size_of(crawl, crawl.files)
    with serving(crawl.root) as server:
        reader = CC.format(
            dump=DUMP, root=server.address, cache=folder / "cache-killed", limits=f", bytes: {size // 6}", more=""
        )
        process = subprocess.Popen(
            command(folder, "killed", reader),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 300
        while server.bytes < size // 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            sys.exit("it ended before it could be killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        before, asked_before = server.bytes, server.requests
        record = run(folder, "killed", reader)
        line(
            "killed once a third had come, and run again",
            bytes_before=before,
            bytes_after=server.bytes - before,
            twice=server.bytes - size,
            requests_before=asked_before,
            requests_after=server.requests - asked_before,
            same=same(folder, "killed", "folder"),
            kept=record["stages"][-1]["kept"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--words", type=int, default=500)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="common-crawl-") as name:
        folder = Path(name)
        crawl = make_crawl(folder / "crawl", given.files, given.records, given.words, news=False)
        run(folder, "folder", f"warc: {{path: {crawl.root}}}")
        lists = size_of(crawl, [f"crawl-data/{DUMP}/warc.paths.gz"])
        whole = 1 + 2 * given.files, lists + given.files + size_of(crawl, crawl.files)
        fetched(folder, crawl, "whole", "folder", "", whole, 0.0, 0)
        near = CC.format(dump=DUMP, root=crawl.root, cache=folder / "cache", limits="", more=f", {QUERY}")
        run(folder, "query-folder", near)
        least = fetched(folder, crawl, "query", "query-folder", f", {QUERY}", None, 0.0, 0)
        for seed in range(given.seeds):
            fetched(folder, crawl, f"whole-{seed}", "folder", "", whole, given.faults, seed)
            fetched(folder, crawl, f"query-{seed}", "query-folder", f", {QUERY}", least, given.faults, seed)
        killed(folder, crawl)


if __name__ == "__main__":
    main()
