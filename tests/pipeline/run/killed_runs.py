"""Runs that are killed and run again, held against a run that was left alone: what test_kill.py and
benchmarks/soak/kills.py share.

What must be equal: every file under write/, partitions/, stages/, shuffle/ and shards/ (less the card, which has times), byte
for byte, manifests and reports among them, and with them the uids of the survivors. No worker may be left three seconds
after its driver was killed.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from gristmill.pipeline.demo.crawl import write_crawl

READERS = {"warc": (".warc.gz", ".warc"), "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst")}
STAGES = """\
  - exact_dedup
  - minhash_dedup
  - paragraph_dedup
  - sample: {rate: 0.9}
  - write
  - tokenize: {vocab_size: 2000}
  - mix: {method: {temperature: {temperature: 2}}, budget: 200_000, max_epochs: 1000}
  - order: {by: mtld, schedule: stages}
  - pack: {row_length: [256, 512], window_tokens: 32768}
"""
GRACE = 3.0  # seconds in which workers must have followed their driver


@dataclass
class Outcome:
    """How one disturbed run came out."""

    what: str
    moment: float
    hit: bool  # was there still something to kill?
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """A recipe and the command that runs it."""

    recipe: Path
    workers: int

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "gristmill.pipeline.cli.app",
            "run",
            str(self.recipe),
            "--out",
            str(out),
            "--workers",
            str(self.workers),
            "--json",
        ]
        with out.with_name(f"{out.name}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)

    def finish(self, out: Path) -> float:
        """Run to the end; the seconds it took."""
        begin = time.monotonic()
        ended(self.start(out), out)
        return time.monotonic() - begin


def ended(driver: subprocess.Popen[bytes], out: Path) -> None:
    if driver.wait(timeout=600) != 0:
        raise RuntimeError(
            f"the run in {out} ended with code "
            f"{driver.returncode}:\n{out.with_name(f'{out.name}.log').read_text()[-2000:]}"
        )


def make_crawl(folder: Path, copies: int) -> Path:
    """Copies of the demo's crawl, of three seeds in turn, each under names of its own: most of its pages are duplicates
    of others'."""
    for copy in range(copies):
        made = folder / f"copy-{copy}"
        write_crawl(made, seed=copy % 3)
        for path in sorted(made.glob("*.warc.gz")):
            path.rename(folder / f"{copy:03d}-{path.name}")
        for path in made.iterdir():
            path.unlink()
        made.rmdir()
    return folder


def make_case(crawl: Path, folder: Path, workers: int, stages: str = STAGES) -> Case:
    """A recipe with segments before and after a global stage, and a part for each file."""
    names = [p.name.lower() for p in crawl.iterdir()]
    readers = [reader for reader, endings in READERS.items() if any(n.endswith(endings) for n in names)]
    if len(readers) != 1:
        raise SystemExit(
            f"{crawl}: files of one kind were expected ({', '.join(READERS)}), not {', '.join(readers) or 'none'}"
        )
    recipe = folder / "kill.yaml"
    recipe.write_text(
        "name: kill\n"
        "parts: {files: 1, small_file: 0, batch_bytes: 1000000}\n"
        f'sources:\n  crawl: {{{readers[0]}: {{path: "{crawl.resolve()}"}}}}\n'
        f"stages:\n{'  - extract' + chr(10) if readers[0] == 'warc' else ''}{stages}"
    )
    return Case(recipe, workers)


def contents(out: Path) -> dict[str, str]:
    """Path -> hash of every file that a run stands for."""
    files = [
        p
        for top in ("write", "partitions", "stages", "shuffle", "shards")
        for p in (out / top).rglob("*")
        if p.is_file()
    ]
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def survivors(out: Path) -> list[tuple[int, str]]:
    """uid and hash of the text of every document written, in order of uid."""
    rows = []
    for path in (out / "write").rglob("*.parquet"):
        table = pq.read_table(path, columns=["uid", "text"])
        texts = (hashlib.sha256((t or "").encode()).hexdigest() for t in table["text"].to_pylist())
        rows += list(zip(table["uid"].to_pylist(), texts, strict=True))
    return sorted(rows)


def differences(undisturbed: Path, other: Path) -> list[str]:
    """What is not the same in two runs, in words; nothing if they are equal."""
    expected, actual = contents(undisturbed), contents(other)
    unlike = [f"{path} is missing" for path in sorted(expected.keys() - actual.keys())]
    unlike += [f"{path} is too much" for path in sorted(actual.keys() - expected.keys())]
    unlike += [f"{path} differs" for path in sorted(expected.keys() & actual.keys()) if expected[path] != actual[path]]
    if survivors(undisturbed) != survivors(other):
        unlike.append("other survivors")
    return unlike


def workers_of(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The worker processes of a driver: its children, less Python's own helper."""
    try:
        children = psutil.Process(driver.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in children if "resource_tracker" not in " ".join(command_of(process))]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Moment:
    """So many seconds after the start; earlier where the run has made this share of its files by then, since machines
    have moods."""

    seconds: float
    files: int

    def wait(self, driver: subprocess.Popen[bytes], out: Path) -> float:
        """Wait for it; the seconds that passed."""
        begin = time.monotonic()
        while (
            (passed := time.monotonic() - begin) < self.seconds
            and driver.poll() is None
            and file_count(out) < self.files
        ):
            time.sleep(0.02)
        return round(passed, 3)


def file_count(out: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(out))


def kill_driver(case: Case, out: Path, moment: Moment, undisturbed: Path, rng: random.Random) -> Outcome:
    """kill -9 of the driver alone; its workers follow by themselves; the same command again."""
    driver = case.start(out)
    passed = moment.wait(driver, out)
    followers = workers_of(driver)
    outcome = Outcome("driver", passed, hit=driver.poll() is None)
    driver.kill()
    driver.wait()
    limit = time.monotonic() + GRACE
    while any(map(alive, followers)) and time.monotonic() < limit:
        time.sleep(0.05)
    left = [p for p in followers if alive(p)]
    outcome.differences += [f"process {p.pid} outlived its driver" for p in left]
    for process in left:
        process.kill()
    case.finish(out)
    outcome.differences += differences(undisturbed, out)
    return outcome


def kill_worker(case: Case, out: Path, moment: Moment, undisturbed: Path, rng: random.Random) -> Outcome:
    """kill -9 of a worker; the run goes on to its end."""
    driver = case.start(out)
    passed = moment.wait(driver, out)
    while not (found := workers_of(driver)) and driver.poll() is None:
        time.sleep(0.02)
    outcome = Outcome("worker", passed, hit=bool(found))
    if found:
        victim = rng.choice(sorted(found, key=lambda p: int(p.pid)))
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            outcome.hit = False
    ended(driver, out)
    outcome.differences += differences(undisturbed, out)
    return outcome


KILLS: dict[str, Callable[[Case, Path, Moment, Path, random.Random], Outcome]] = {
    "driver": kill_driver,
    "worker": kill_worker,
}


def disturb(
    case: Case, folder: Path, times: int, seed: int, tell: Callable[[str], None] = lambda line: None
) -> tuple[float, list[Outcome]]:
    """An undisturbed run, then `times` of each kind of kill; its seconds, and how each came out."""
    undisturbed = folder / "undisturbed"
    seconds = case.finish(undisturbed)
    if not survivors(undisturbed):
        raise RuntimeError("the undisturbed run wrote nothing; there is nothing to compare")
    files = file_count(undisturbed)
    rng = random.Random(seed)
    outcomes = []
    for number in range(times):
        for what, kill in KILLS.items():
            out = folder / f"{what}-{number}"
            share = rng.uniform(0.05, 0.8)
            outcome = kill(case, out, Moment(share * seconds, round(share * files)), undisturbed, rng)
            tell(
                f"{what} {number}: at {outcome.moment} s of {seconds:.1f}, {'hit' if outcome.hit else 'too late'}, "
                f"{outcome.differences or 'identical'}"
            )
            outcomes.append(outcome)
            if not outcome.differences:
                shutil.rmtree(out)
    return seconds, outcomes
