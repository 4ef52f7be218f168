"""A small run that loses its driver, a worker, its scheduler, or all of itself in the midst of a write to kill -9, on a
local disk and on S3 behind a proxy that fails 5 % of requests; the same command ends it with the bytes of a run that was
left alone.

`driver`: the driver alone; its workers follow by themselves. `worker`: one of two; the run goes on to its end.
`scheduler`: one of `--scheduler`, with its worker; others take their place, and the run goes on. `midwrite`: driver and
workers at once, as when a machine fails, while a draft lies on the disk, or while an object is on its way to the store,
which gets it in one case of two.

Equal must be every file under write/, partitions/, stages/, shuffle/ and shards/, byte for byte, and run.json but for its times,
costs and requests. Nothing may be left of drafts, uploads, folders that wait for names, or the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from gristmill.pipeline.run.record import without_times
from tests.pipeline.engine.elsewhere import elsewhere
from tests.pipeline.run.killed_runs import (
    Case,
    alive,
    contents,
    differences,
    file_count,
    make_case,
    survivors,
    workers_of,
)
from tests.pipeline.store.object_store import Proxy, proxy_before, s3_server, settings

SLICE = 2  # all kinds come by in four
FILES, TEXTS = 3, 40
FAILING = 0.05  # of the requests to S3
PATIENCE = 300.0  # seconds for a run to end
GRACE = 15.0  # seconds in which workers must have followed their driver; test_kill.py holds them to three
BUCKET = "mill"
STAGES = """\
  - exact_dedup
  - sample: {rate: 0.9}
  - write
  - tokenize: {vocab_size: 300}
  - pack: {row_length: 64, window_tokens: 2048}
"""


@dataclass(frozen=True)
class Undisturbed:
    case: Case
    folder: Path
    seconds: float
    files: int


@functools.cache
def undisturbed(folder: Path) -> Undisturbed:
    """A recipe, and a run of it on disk that is left alone."""
    rng = random.Random(0)
    texts = [" ".join(f"word{rng.randrange(200)}" for _ in range(rng.randrange(20, 80))) for _ in range(FILES * TEXTS)]
    (folder / "crawl").mkdir(parents=True)
    for at in range(FILES):
        chosen = [*texts[at::FILES], *rng.sample(texts, 5)]
        (folder / "crawl" / f"{at}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
    case = make_case(folder / "crawl", folder, 1, STAGES)
    case.finish(folder / "first")  # makes kernels and tables
    seconds = case.finish(folder / "undisturbed")
    if len(survivors(folder / "undisturbed")) < FILES * TEXTS / 2:
        raise RuntimeError("the undisturbed run wrote too little to compare")
    return Undisturbed(case, folder / "undisturbed", seconds, file_count(folder / "undisturbed"))


@functools.cache
def server() -> str:
    """An S3 server, for all cases of this process."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(s3_server())


@dataclass
class Run:
    """One run that is to be disturbed: on disk, or on S3 behind a proxy."""

    recipe: Path
    folder: Path  # the case's own
    proxy: Proxy | None = None
    more: tuple[str, ...] = ()  # arguments
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def out(self) -> str:
        return f"s3://{BUCKET}/{self.folder.name}" if self.proxy else str(self.folder / "out")

    def start(self, workers: int = 1) -> subprocess.Popen[bytes]:
        where = self.more or ("--workers", str(workers))
        command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(self.recipe), "--out", self.out]
        with (self.folder / "run.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *where, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                env=os.environ | self.environ, start_new_session=True,
            )  # fmt: skip

    def end(self, driver: subprocess.Popen[bytes] | None = None) -> None:
        """Wait for the driver, or the same command again."""
        code = (driver or self.start()).wait(timeout=PATIENCE)
        if code != 0:
            log = (self.folder / "run.log").read_text()
            raise AssertionError(f"the run ended with code {code}: {log[-1500:]}")

    def made(self) -> int:
        """How far it is: files, or requests that write."""
        return self.proxy.met["PUT"] if self.proxy else file_count(self.folder / "out")

    def wait(self, driver: subprocess.Popen[bytes], seconds: float, made: float) -> None:
        limit = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < limit and self.made() < made:
            time.sleep(0.02)

    def fetched(self) -> Path:
        """The run's folder, on this disk, read past the proxy."""
        there = self.folder / "out"
        if self.proxy:
            client = s3()
            if uploads := client.list_multipart_uploads(Bucket=BUCKET).get("Uploads"):
                raise AssertionError(f"{len(uploads)} uploads are left")
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{self.folder.name}/"):
                for entry in page.get("Contents", []):
                    path = there / entry["Key"].partition("/")[2]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    client.download_file(BUCKET, entry["Key"], str(path))
                    client.delete_object(Bucket=BUCKET, Key=entry["Key"])
        return there


def s3() -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=server(), **keys)


def kill_driver(run: Run, moment: tuple[float, float], rng: random.Random) -> bool:
    driver = run.start()
    run.wait(driver, *moment)
    followers, hit = workers_of(driver), driver.poll() is None
    driver.kill()
    driver.wait()
    limit = time.monotonic() + GRACE
    while any(map(alive, followers)) and time.monotonic() < limit:
        time.sleep(0.05)
    if left := [process for process in followers if alive(process)]:
        for process in left:
            process.kill()
        raise AssertionError(f"{len(left)} processes outlived their driver")
    run.end()
    return hit


def kill_worker(run: Run, moment: tuple[float, float], rng: random.Random) -> bool:
    driver = run.start(workers=2)
    run.wait(driver, *moment)
    while not (workers := workers_of(driver)) and driver.poll() is None:
        time.sleep(0.02)
    if workers:
        with contextlib.suppress(Exception):  # it may end by itself meanwhile
            rng.choice(sorted(workers, key=lambda process: int(process.pid))).kill()
    run.end(driver)
    return bool(workers)


def kill_scheduler(run: Run, moment: tuple[float, float], rng: random.Random) -> bool:
    with elsewhere(**run.environ) as machines:
        scheduler, worker = machines.scheduler(), machines.worker()
        run.more = ("--scheduler", machines.address)
        time.sleep(2)
        driver = run.start()
        run.wait(driver, *moment)
        hit = driver.poll() is None
        for process in (scheduler, worker):
            process.kill()
            process.wait()
        if hit:
            machines.scheduler()
            machines.worker()
        run.end(driver)
    return hit


def kill_midwrite(run: Run, moment: tuple[float, float], rng: random.Random) -> bool:
    """Hit: something was half written."""
    driver = run.start()
    seconds, made = moment
    if run.proxy is None:
        run.wait(driver, seconds, made)
        while driver.poll() is None and not drafts(run.folder / "out"):
            time.sleep(0.001)
        kill_all(driver)
        hit = bool(drafts(run.folder / "out"))
    else:
        arrives, hits = rng.random() < 0.5, []

        def kill(path: str) -> bool:
            if (
                hits
                or run.made() < made
                or ("/partitions/" not in path and "/shuffle/" not in path and "/shards/" not in path)
            ):
                return True
            hits.append(path)
            kill_all(driver)
            return arrives

        run.proxy.before_put = kill
        while driver.poll() is None:
            time.sleep(0.02)
        hit = bool(hits)
    run.end()
    return hit


def kill_all(driver: subprocess.Popen[bytes]) -> None:
    """The driver and all that it has started, template and workers, at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)


def drafts(out: Path) -> list[str]:
    """Of files; workers' trails in the journal's folder are none."""
    return [
        name
        for folder, _, names in os.walk(out)
        for name in names
        if name.startswith(".") and name.endswith(".tmp") and not folder.endswith("/journal")
    ]


KILLS: dict[str, Callable[[Run, tuple[float, float], random.Random], bool]] = {
    "driver": kill_driver, "worker": kill_worker, "scheduler": kill_scheduler, "midwrite": kill_midwrite,
}  # fmt: skip
KINDS = [("worker", "disk"), ("midwrite", "s3"), ("driver", "s3"), ("scheduler", "disk")]
KINDS += [("midwrite", "disk"), ("worker", "s3"), ("driver", "disk"), ("scheduler", "s3")]


def left_over(out: Path) -> list[str]:
    """What a finished run must not leave: drafts, folders that wait for names; on S3 the lock."""
    paths = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    return [
        str(path)
        for path in paths
        if path.name.endswith(".tmp") or (any(step.startswith(".") for step in path.parts) and path.name != ".lock")
    ]


def record(out: Path) -> str:
    return json.dumps(without_times(json.loads((out / "run.json").read_text())), sort_keys=True)


def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
    expected = undisturbed(folder.parent / "shared")
    what, where = KINDS[number % len(KINDS)]
    share = rng.uniform(0.05, 0.9)
    run = Run(expected.case.recipe, folder)
    with contextlib.ExitStack() as stack:
        if where == "s3":
            with contextlib.suppress(s3().exceptions.BucketAlreadyOwnedByYou):
                s3().create_bucket(Bucket=BUCKET)
            run.proxy = stack.enter_context(proxy_before(server(), share=FAILING, seed=rng.randrange(1 << 30)))
            run.environ = settings(run.proxy.address)
        # a run that is slow today makes its files later, one that is fast sooner; on S3 all takes longer
        longer = 4 if where == "s3" or what == "scheduler" else 1
        hit = KILLS[what](run, (longer * share * expected.seconds, share * expected.files), rng)
        faults = sum(run.proxy.met[fault] for fault in run.proxy.faults) if run.proxy else 0
        out = run.fetched()
    unlike = differences(expected.folder, out) + [f"{path} is left" for path in left_over(out)]
    unlike += ["the lock is left"] if where == "s3" and (out / ".lock").exists() else []
    unlike += ["run.json differs"] if record(out) != record(expected.folder) else []
    if unlike:
        raise AssertionError(f"{what} on {where}, hit {hit}: {len(unlike)} differences: {unlike[:5]}")
    kind = f"{what} on {where}"
    return {kind: 1, f"{kind}, hit": hit, "files_compared": len(contents(out)), "faults": faults}
