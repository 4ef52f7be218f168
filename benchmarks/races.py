"""Every race against other packages, by one command: tokens, languages, exact duplicates, MinHash, near duplicates,
extraction, WARC.

    python -m benchmarks.races --wheels FOLDER [--install] [--rounds 3] [--only NAME...] [--data ../shared/data] [--small]

`--install` puts the rivals (WHEELS) into FOLDER with `pip install --target`. Each race is a benchmark of its own, which
is called here with data made for it; its lines of JSON come out as they are, and at the end a table of all of them in
Markdown. `--small`: texts of this checkout, some hundreds of them, which say nothing about speed.

How a race is run (`race`, which those benchmarks call): each side works in fresh processes on one core with one thread,
and the sides take turns, `--rounds` times. Cold is the first call of a process that has its data and packages loaded;
warm the calls after it. Seconds are the processor's, the system's included. Memory is what the process held at most in
its calls, above what it held before. A side whose package is absent, or that fails, is named with its complaint.
Packages of the environment go before those of FOLDER.
"""

from __future__ import annotations

import argparse
import compileall
import ctypes
import importlib
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import gristmill

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
WHEELS = (
    "fastokens==0.3.5", "gigatoken==0.10.0", "quicktok-v1==0.4.0", "tokenizers==0.23.3", "tiktoken",
    "eldc==0.4.0", "heliport==1.0.1", "py3langid==0.4.0", "fasttext-predict",
    "polars==2.1.0", "duckdb==2.0.1", "daft==0.7.26",
    "rensa==0.5.0", "datasketch==2.0.0", "fastsketchlsh==1.0.1",
    "resiliparse==2.0.1", "fastwarc==2.0.1",
)  # fmt: skip
OF_OURS = ("gristmill", "numba", "pyarrow")
WARM_CALLS = 3
ONE_THREAD = dict.fromkeys(
    ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), "1"
) | {"TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


# --- a race ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What a side does again and again, how much it is, and what tells whether two sides found the same."""

    call: Callable[[], Any]
    size: float
    answer: Callable[[Any], object] = lambda result: None


@dataclass(frozen=True)
class Side:
    """A contender: a function of the race's arguments that loads everything and returns its work."""

    prepare: Callable[..., Work]
    packages: tuple[str, ...] = OF_OURS


def race(
    what: str, unit: str, sides: dict[str, Side], arguments: dict[str, Any], rounds: int, wheels: Path | None
) -> dict[str, Any]:
    """Prints and returns one line: of each side `unit` a second, cold and warm, and MB. The first side is ours."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    refused: dict[str, str] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            if name not in refused:
                done = in_a_process(side, arguments, wheels)
                if isinstance(done, str):
                    refused[name] = done
                else:
                    found[name].append(done)
    of_sides = {name: in_short(each) for name, each in found.items() if each}
    return say(what, unit, rounds, of_sides, refused)


def say(
    what: str, unit: str, rounds: int, of_sides: dict[str, dict[str, Any]], refused: dict[str, str] | None = None
) -> dict[str, Any]:
    """`of_sides`: of each `cold`, `warm` and `memory_mb`, and more that is told as it is."""
    line: dict[str, Any] = {"race": what, "unit": unit, "rounds": rounds, "machine": processor(), "sides": of_sides}
    if refused:
        line["refused"] = refused
    rivals = [name for name in of_sides if not name.startswith("ours")]
    if rivals and len(rivals) < len(of_sides):
        ours = next(iter(of_sides))
        for state in ("cold", "warm"):
            best = max(rivals, key=lambda name: of_sides[name][state])
            line[f"{state}_of_the_best_rival"] = round(of_sides[ours][state] / of_sides[best][state], 2)
            line[f"best_{state}"] = best
    print(json.dumps(line), flush=True)
    return line


def in_short(results: list[dict[str, Any]]) -> dict[str, Any]:
    cold = [each["size"] / each["cold"] for each in results]
    warm = [each["size"] / seconds for each in results for seconds in each["warm"]]
    user = [each["size"] / each["warm_user"] for each in results]
    return {
        "cold": rounded(statistics.median(cold)),
        "warm": rounded(statistics.median(warm)),
        "warm_spread": [rounded(min(warm)), rounded(max(warm))],
        "warm_user": rounded(statistics.median(user)),
        "memory_mb": max(each["memory_mb"] for each in results),
        "process_mb": max(each["process_mb"] for each in results),
        "size": rounded(results[0]["size"]),
        "answer": results[0]["answer"],
        "versions": results[0]["versions"],
    }


def rounded(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}") if value < 1000 else round(value)


def in_a_process(side: Side, arguments: dict[str, Any], wheels: Path | None) -> dict[str, Any] | str:
    """What a process measured, or the last line of its complaint."""
    given = {
        "module": module_of(side.prepare),
        "prepare": side.prepare.__name__,
        "packages": side.packages,
        "arguments": arguments,
        "wheels": None if wheels is None else str(wheels.resolve()),
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.races", "--side"], input=json.dumps(given), capture_output=True, text=True,
        cwd=ROOT, env=os.environ | ONE_THREAD,
    )  # fmt: skip
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["killed"])[-1][:200]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def module_of(function: Callable[..., Any]) -> str:
    if function.__module__ != "__main__":
        return function.__module__
    return str(sys.modules["__main__"].__spec__.name)  # type: ignore[union-attr]


def measure(given: dict[str, Any]) -> dict[str, Any]:
    """One side, in this process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    if given["wheels"]:
        sys.path.append(given["wheels"])
    work: Work = getattr(importlib.import_module(given["module"]), given["prepare"])(**given["arguments"])
    before = reset_peak()
    cold, _ = timed(work.call)
    warm, of_user, result = [], [], None
    for _ in range(WARM_CALLS):
        result = None
        begun, user = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        result = work.call()
        warm.append(time.process_time() - begun)
        of_user.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - user)
    return {
        "cold": cold,
        "warm": warm,
        "warm_user": max(statistics.median(of_user), 1e-3),
        "memory_mb": (peak() - before) // 1024,
        "process_mb": peak() // 1024,
        "size": work.size,
        "answer": work.answer(result),
        "versions": {name: version_of(name) for name in given["packages"]},
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = call()
    return time.process_time() - begun, result


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def installed(wheels: Path | None, package: str) -> str:
    """The version of a package that lies in a folder; empty if it does not."""
    for found in (wheels or Path()).glob(f"{package.replace('-', '_')}-*.dist-info") if wheels else ():
        return found.name.removesuffix(".dist-info").rpartition("-")[2]
    return ""


def reset_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Kilobytes that the process held at most since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def processor() -> str:
    facts = dict(re.findall(r"(model name|cpu family|model)\s*: (.*)", Path("/proc/cpuinfo").read_text()))
    named = facts.get("model name", platform.machine())
    return f"{named} (family {facts.get('cpu family')}, model {facts.get('model')}), {os.cpu_count()} cores"


# --- from file to file: each side a command with processes of its own ------------------------------------------------


def race_of_commands(
    what: str,
    unit: str,
    size: float,
    sides: dict[str, Callable[[Path], tuple[list[str], dict[str, str]]]],
    written_by: Callable[[str, Path], Iterable[Path]],
    versions: dict[str, str],
    rounds: int,
) -> dict[str, Any]:
    """As `race`, of commands (and their environments) that write Parquet files to a folder. Cold is the first round:
    kernels are compiled unless they are in the cache, files may have to come from the disk; warm the others. Memory is
    the largest process's."""
    compile_package()
    figures: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    kept, written = {}, {}
    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        for _ in range(rounds):
            for name, side in sides.items():
                out = Path(folder) / name.replace(" ", "-")
                shutil.rmtree(out, ignore_errors=True)
                figures[name].append(measured(*side(out)))
                files = list(written_by(name, out))
                kept[name] = sum(pq.read_metadata(path).num_rows for path in files)
                written[name] = sum(path.stat().st_size for path in files) // 1_000_000
    return say(
        what, unit, rounds,
        {name: {
            "cold": rounded(size / each[0]["cpu"]),
            "warm": rounded(size / statistics.median(one["cpu"] for one in each[1:] or each)),
            "memory_mb": max(one["largest_process_mb"] for one in each),
            "answer": kept[name],
            "written_mb": written[name],
            "seconds_of_the_processor": [one["cpu"] for one in each],
            "seconds": [one["wall"] for one in each],
            "version": versions[name],
        } for name, each in figures.items()},
    )  # fmt: skip


def measured(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of the clock and of the processor, of a command and all processes that it starts, on one core."""
    adopt_orphans()
    core = min(os.sched_getaffinity(0))
    begun = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    cpu, wall, largest = 0.0, 0.0, 0
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu += used.ru_utime + used.ru_stime
        largest = max(largest, used.ru_maxrss)
        if pid == process.pid:
            wall = time.perf_counter() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {"wall": round(wall, 2), "cpu": round(cpu, 2), "largest_process_mb": largest // 1024}


def compile_package() -> None:
    """As pip does when it installs. A source tree under PYTHONDONTWRITEBYTECODE compiles every module at each start."""
    for folder in Path(gristmill.__path__[0]).iterdir():
        if folder.is_dir():
            compileall.compile_dir(folder.resolve(), quiet=1)


def adopt_orphans() -> None:
    """Processes of a run that outlive it count too."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


# --- all races -------------------------------------------------------------------------------------------------------


def commands(data: Path, folder: Path, wheels: Path, rounds: int, small: bool) -> dict[str, list[list[str]]]:
    """Of each race its commands: the module and its arguments. Those that make data come first."""
    common = ["--wheels", str(wheels), "--rounds", str(rounds)]
    given = ["--data", str(data)]
    texts, crawl = folder / "exact", folder / "crawl"
    pages = [str(path) for name in ("pages", "wild_pages") if (path := data / f"{name}.parquet").exists()]
    return {
        "tokens": [["tokens.tokenization", *given, *common, *(["--vocab-size", "600", "--only", "web"] if small else [])]],
        "languages": [["text.language", *given, *common]],
        "exact": [
            ["dedup.exact_texts", str(texts), *given, "--texts", "3000" if small else "450000"],
            ["dedup.exact_dedup", str(texts), *common],
        ],
        "minhash": [["dedup.minhash", "speed", *given, *common]],
        "near": [["dedup.near_files", "--documents", "400" if small else "20000,100000", *common]],
        "extraction": [["text.extraction", "--speed", *given, *common]],
        "warc": [
            ["pipeline.real_crawl", "parquet", str(crawl), *pages, *(["--pages", "40"] if small else [])],
            ["text.warc", str(crawl / ("crawl-40" if small else "crawl") / "pages-00000.warc.gz"), *common],
        ],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of races: those of the first line above, in one word")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    if asked.install:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", asked.wheels, *WHEELS], check=True)
    with tempfile.TemporaryDirectory(prefix="races-") as folder:
        data = make_small(Path(folder) / "data") if asked.small else asked.data
        if not data.exists():
            sys.exit(f"{data} is not here: --data names the folder with pages.parquet, or --small")
        races = commands(data.resolve(), Path(folder), asked.wheels.resolve(), asked.rounds, asked.small)
        if unknown := {*(asked.only or ())} - {*races}:
            sys.exit(f"no race is called {', '.join(sorted(unknown))}; there are {', '.join(races)}")
        lines = [line for name in asked.only or races for command in races[name] for line in lines_of(command)]
    print(table_of(lines))


def lines_of(command: list[str]) -> list[dict[str, Any]]:
    """The races that a benchmark prints, which are printed on."""
    module, *arguments = command
    found = []
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    for text in process.stdout:
        print(text, end="", flush=True)
        line = json.loads(text) if text.startswith("{") else {}
        if "race" in line:
            found.append(line)
    if process.wait():
        sys.exit(f"benchmarks.{module} {' '.join(arguments)} ended with {process.returncode}")
    return found


def table_of(lines: list[dict[str, Any]]) -> str:
    """Markdown."""
    rows = ["| race | side | cold | warm | memory, MB | ours over it, cold and warm |", "| - | - | -: | -: | -: | -: |"]
    for line in lines:
        ours, *_ = line["sides"]
        for name, side in line["sides"].items():
            ratio = [line["sides"][ours][state] / side[state] for state in ("cold", "warm")]
            told = "" if name == ours else " and ".join(f"{each:.2f}" for each in ratio)
            rows.append(
                f"| {line['race']}, {line['unit']} a second | {name} | {side['cold']:,} | {side['warm']:,} | "
                f"{side['memory_mb']:,} | {told} |"
            )
    return "\n".join(rows)


def make_small(data: Path) -> Path:
    """Files like those of the shared data, of the pages of this checkout's book."""
    data.mkdir(parents=True)
    books = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    texts = [part.strip() for book in books for part in book.split("\n\n") if len(part) > 200][:400]
    markup = (
        "<html><body><article><p>{}</p></article></body></html>".format("</p><p>".join(texts[i : i + 4]))
        for i in range(100)
    )
    tables = {
        "pages": {"html": [page.encode() for page in markup], "main_content": texts[:100]},
        "prose": {"work": [f"book {i % 5}" for i in range(200)], "text": texts[:200]},
        "rule_verdicts": {"kind": ["main", "page"] * 100, "text": texts[200:400]},
        "languages": {"language": ["en"] * 200, "text": texts[:200]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), data / f"{name}.parquet")
    return data


if __name__ == "__main__":
    if sys.argv[1:] == ["--side"]:
        print(json.dumps(measure(json.load(sys.stdin))))
    else:
        main()
