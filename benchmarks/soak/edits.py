"""A recipe and its inputs are edited between runs, and the runs in between are killed; the last run must leave what a
fresh folder has.

A case draws a recipe, then some rounds of edits: stages added, removed, moved and set otherwise, sources added, removed
and renamed, `keep`, parts and record limits changed, input files edited, replaced, renamed, added and removed, a
`--limit` run in between. Each round asks `gristmill plan` first, then runs, and some rounds kill the driver (SIGKILL,
SIGTERM, SIGINT) or a worker on the way.

Equal must be every file of the folder but the journal and logs, byte for byte, and run.json but for its times;
`gristmill maintain verify` must pass. Where a run came to its end, what `plan` called up to date was not repeated,
and the segment tasks and global stages that it called due were done.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import yaml

from gristmill.pipeline.run.record import without_times
from tests.pipeline.run.killed_runs import workers_of

SLICE = 1
ROUNDS = 4
WORDS = [
    "mill",
    "stone",
    "grain",
    "water",
    "wheel",
    "flour",
    "bread",
    "sack",
    "rope",
    "cart",
    "river",
    "sluice",
    "the",
    "and",
    "of",
    "to",
    "that",
    "with",
    "have",
    "be",
]
BEFORE = (
    "gopher_quality",
    "keep_languages",
    "sample",
    "exact_dedup",
    "paragraph_dedup",
    "minhash_dedup",
    "text_signals",
)
AFTER = ("tokenize", "mix", "order", "pack")
EDITS = ("stage",) * 3 + ("setting", "keep", "file", "edit file") * 2
EDITS += (
    "move",
    "tail",
    "parts",
    "limit of records",
    "source",
    "rename source",
    "rename file",
    "remove file",
    "swap",
    "touch",
)
UNCOMPARED = ("journal/", "logs/", "report.html", ".lock", "shards/README.md")  # times, and the order of tasks


class Draft:
    """A recipe that can be edited, and the inputs beside it."""

    def __init__(self, folder: Path, rng: random.Random, pool: list[str]) -> None:
        self.folder, self.rng, self.pool = folder, rng, pool
        self.serial = 0
        self.head: dict[str, Any] = {"parts": {"files": 1, "small_file": 0}, "keep": "all"}
        self.sources: dict[str, dict[str, Any]] = {}
        self.stages = [name for name in BEFORE if rng.random() < 0.4]
        self.tail = list(AFTER[: rng.choice((0, 1, 4))])
        self.tail = ["tokenize", "pack"] if self.tail == ["tokenize"] else self.tail
        self.settings = {name: self.draw(name) for name in (*BEFORE, *AFTER)}
        for _ in range(2):
            self.add_source()

    def draw(self, stage: str) -> dict[str, Any]:
        rng = self.rng
        choices: dict[str, dict[str, Any]] = {
            "gopher_quality": {"min_words": rng.choice((5, 20, 60)), "min_stop_words": rng.choice((0, 1))},
            "keep_languages": {"languages": ["en"], "at_least": rng.choice((0, 0.3))},
            "sample": {"rate": rng.choice((0.5, 0.8, 0.95))},
            "paragraph_dedup": {"copies": rng.choice((1, 2))},
            "minhash_dedup": {"threshold": rng.choice((0.7, 0.8))},
            "tokenize": {"vocab_size": rng.choice((300, 320))},
            "mix": {
                "method": rng.choice(("proportional", {"temperature": {"temperature": 2}})),
                "budget": 20_000,
                "max_epochs": 100,
            },
            "order": {"by": "mtld", "schedule": "stages"},
            "pack": {"row_length": rng.choice((64, 128)), "window_tokens": 4096},
        }
        return choices.get(stage, {})

    def add_source(self) -> None:
        self.serial += 1
        name = f"s{self.serial}"
        (self.folder / name).mkdir()
        self.sources[name] = {"path": name}
        for _ in range(self.rng.randint(1, 3)):
            self.add_file(name)

    def add_file(self, source: str) -> None:
        self.serial += 1
        self.write(self.folder / self.sources[source]["path"] / f"f{self.serial}.jsonl")

    def write(self, path: Path) -> None:
        texts = self.rng.choices(self.pool, k=self.rng.randint(5, 40))
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def files(self) -> list[Path]:
        return [p for s in self.sources.values() for p in sorted((self.folder / s["path"]).iterdir())]

    def edit(self) -> str:
        """Make one change; what it was."""
        rng = self.rng
        what = rng.choice(EDITS)
        source, file = rng.choice(sorted(self.sources)), rng.choice(self.files())
        if what == "stage":
            name = rng.choice(BEFORE)
            if name in self.stages:
                self.stages.remove(name)
            else:
                self.stages.insert(rng.randint(0, len(self.stages)), name)
            what = f"{name} in or out"
        elif what == "setting":
            name = rng.choice([*self.stages, *self.tail] or list(BEFORE))
            self.settings[name] = self.draw(name)
            what = f"{name} {self.settings[name]}"
        elif what == "move":
            rng.shuffle(self.stages)
        elif what == "tail":
            self.tail = rng.choice(([], ["tokenize", "pack"], list(AFTER), ["tokenize", "mix", "pack"]))
        elif what == "keep":
            self.head["keep"] = rng.choice(("all", "signals", "nothing"))
            what = f"keep {self.head['keep']}"
        elif what == "parts":
            self.head["parts"] = {
                "files": rng.choice((1, 2)),
                "small_file": rng.choice((0, 4000)),
                "batch_bytes": rng.choice((3000, 1_000_000)),
            }
        elif what == "limit of records":
            self.sources[source]["max_record_bytes"] = rng.choice((1500, 10_000_000))
        elif what == "source":
            if len(self.sources) > 2:
                del self.sources[source]
            else:
                self.add_source()
        elif what == "rename source":
            self.serial += 1
            self.sources = {f"r{self.serial}" if n == source else n: s for n, s in self.sources.items()}
        elif what == "file":
            self.add_file(source)
        elif what == "edit file":
            with file.open("a") as more:
                more.write(json.dumps({"text": rng.choice(self.pool) + " edited"}) + "\n")
        elif what == "rename file":
            self.serial += 1
            file.rename(file.with_name(f"g{self.serial}.jsonl"))
        elif what == "remove file" and len(list(file.parent.iterdir())) > 1:
            file.unlink()
        elif what == "swap":  # the same size, and the same modification time
            facts, data = file.stat(), file.read_bytes()
            file.write_bytes(b"".join(sorted(data.splitlines(keepends=True), reverse=True)))
            os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        elif what == "touch":
            os.utime(file, (1, 1) if rng.random() < 0.5 else (4e9, 4e9))
        return what

    def save(self) -> Path:
        stages = [{name: self.settings[name]} if self.settings[name] else name for name in self.stages]
        tail = [{name: self.settings[name]} for name in self.tail]
        recipe = {"name": "edits", **self.head, "sources": {n: {"jsonl": s} for n, s in self.sources.items()}}
        path = self.folder / "edits.yaml"
        path.write_text(yaml.safe_dump({**recipe, "stages": [*stages, "write", *tail]}, sort_keys=False))
        return path


def command(what: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "gristmill.pipeline.cli.app", what, *more]


def foreseen(recipe: Path, out: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        command("plan", str(recipe), "--out", str(out), "--json"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AssertionError(f"plan ended with {done.returncode}: {done.stderr[-500:]}")
    return {node["name"]: node for node in json.loads(done.stdout)}


def run(recipe: Path, out: Path, rng: random.Random, kill: str = "", limit: int = 0) -> tuple[int, str, bool]:
    """Exit code, standard error, and whether there was still something to kill."""
    log = out.with_name(f"{out.name}.log")
    with log.open("wb") as stderr:
        more = ["--limit", str(limit)] if limit else []
        driver = subprocess.Popen(
            command("run", str(recipe), "--out", str(out), "--workers", "2", "--json", *more),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        hit = False
        if kill:
            events, end = rng.randint(1, 60), time.monotonic() + rng.uniform(2, 60)
            while driver.poll() is None and time.monotonic() < end and log.read_bytes().count(b'"anew": true') < events:
                time.sleep(0.02)
            hit = disturb(driver, kill, rng)
        driver.wait(timeout=300)
    return driver.returncode, log.read_text(), hit


def disturb(driver: subprocess.Popen[bytes], kill: str, rng: random.Random) -> bool:
    if driver.poll() is not None:
        return False
    if kill == "worker":
        victims = sorted(workers_of(driver), key=lambda process: int(process.pid))
        if not victims:
            return False
        try:
            rng.choice(victims).kill()
        except psutil.NoSuchProcess:
            return False
        return True
    driver.send_signal({"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}[kill])
    return True


def untruths(nodes: dict[str, dict[str, Any]], log: str) -> list[str]:
    """Where a run that came to its end did not do what `plan` had said."""
    anew: Counter[tuple[str, str]] = Counter()
    for line in log.splitlines():
        if '"finished"' in line and (event := json.loads(line))["anew"]:
            anew[event["node"], event["kind"]] += 1
    wrong = []
    for name, node in nodes.items():
        kinds = {kind: count for (owner, kind), count in anew.items() if owner == name}
        done = kinds.get("partition", 0)
        if node["why"] == "up to date" and kinds:
            wrong.append(f"{name} was up to date, and {kinds} were done")
        if node["parts"] is not None and node["kind"] == "map" and node["parts"] > node["up_to_date"] and not done:
            wrong.append(f"{name}: {node['why']}, and nothing was done ({kinds})")
    return wrong


def contents(out: Path) -> dict[str, str]:
    files = {
        str(p.relative_to(out)): p
        for p in out.rglob("*")
        if p.is_file() and not str(p.relative_to(out)).startswith(UNCOMPARED)
    }
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if name != "run.json"}
    record = json.dumps(without_times(json.loads((out / "run.json").read_text())), sort_keys=True)
    return found | {"run.json": record}


def texts() -> list[str]:
    rng = random.Random(2)
    made = [" ".join(rng.choices(WORDS, k=rng.randint(4, 90))) + "." for _ in range(120)]
    return made + [f"{text}\n{other}" for text, other in zip(made[:40], made[40:80], strict=True)]


def case(number: int, rng: random.Random, folder: Path, pool: list[str] | None = None) -> dict[str, float]:
    draft, out = Draft(folder, rng, pool or texts()), folder / "out"
    edits: list[str] = []
    tally: Counter[str] = Counter()
    for _ in range(rng.randint(2, ROUNDS)):
        edits += ["|", *(draft.edit() for _ in range(rng.randint(0 if edits else 1, 3)))]
        recipe = draft.save()
        if rng.random() < 0.2:
            run(recipe, out, rng, limit=20)
            edits.append("limit")
            tally["limited"] += 1
        nodes = foreseen(recipe, out)
        kill = rng.choice(("", "SIGKILL", "SIGTERM", "SIGINT", "worker"))
        code, log, hit = run(recipe, out, rng, kill)
        edits.append(f"{kill if hit else 'run'}={code}")
        tally[f"{kill} hit" if hit else "not killed"] += 1
        if (not hit or kill == "worker") and code != 0:
            raise AssertionError(f"{edits}: the run ended with {code}: {log[-1500:]}")
        if code == 0 and not hit and (wrong := untruths(nodes, log)):
            raise AssertionError(f"{edits}: plan was wrong: {wrong}")
        tally["plans held against runs"] += code == 0 and not hit
    edits += ["|", draft.edit()]
    recipe = draft.save()
    nodes = foreseen(recipe, out)
    code, log, _ = run(recipe, out, rng)
    if code == 0:
        subprocess.run(
            command("maintain", "clean", str(out), "--no-shuffle", "--unused"), capture_output=True, check=False
        )
        code, _, _ = run(recipe, out, rng)
    if code != 0:
        raise AssertionError(f"{edits}: the last run ended with {code}: {log[-1500:]}")
    if wrong := untruths(nodes, log):
        raise AssertionError(f"{edits}: plan was wrong: {wrong}")
    fresh = folder / "fresh"
    code, log, _ = run(recipe, fresh, rng)
    if code != 0:
        raise AssertionError(f"{edits}: the fresh run ended with {code}: {log[-1500:]}")
    left, right = contents(out), contents(fresh)
    unlike = [
        f"{p} ({'only edited' if p not in right else 'only fresh' if p not in left else 'differs'})"
        for p in sorted(left.keys() | right.keys())
        if left.get(p) != right.get(p)
    ]
    if unlike:
        raise AssertionError(f"{edits}: {len(unlike)} differences: {unlike[:6]}")
    verified = subprocess.run(command("maintain", "verify", str(out)), capture_output=True, text=True, check=False)
    if verified.returncode:
        raise AssertionError(f"{edits}: verify: {(verified.stdout + verified.stderr)[-800:]}")
    shutil.rmtree(folder / "out")
    return {
        **tally,
        "edits": sum(e not in ("|", "limit") and "=" not in e for e in edits),
        "files_compared": len(right),
    }
