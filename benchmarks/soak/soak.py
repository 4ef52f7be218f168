"""Long proofs in slices: cases drawn from a seed, run for as long as one likes, resumed where they stopped.

    python -m benchmarks.soak.soak [NAME ...] [--seconds 600] [--seed 0]     from the root of the checkout; without a
      name all proofs, one after the other
    python -m benchmarks.soak.soak NAME --only 4211 [--seed 0]               one case alone; its folder is kept if it
      fails

A proof is a module of this folder that PROOFS names, with

    def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]

A case raises if something does not hold, and returns numbers for the summary: they are added up, those named `max_...`
are maxima. All that it draws comes from `rng`, which is seeded by (name, seed, number). `folder` is empty and the
case's own; what cases share (a run to damage, a corpus) they keep below `folder.parent`, which is the same for all of
an invocation. SLICE, if the file has it, is how many cases are a slice.

Each slice prints one JSON line, which is also kept in .bench/soak/NAME.jsonl; the next call goes on behind the last one
of its seed. Cases that failed are run again first: those that hold now count as mended. The last line is a summary;
exit code 1 if a failure is left.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

Numbers = Mapping[str, float]
ROOT = Path(__file__).resolve().parents[2]
PROGRESS = ROOT / ".bench" / "soak"
PROOFS = ("edits", "flips", "forget", "html", "kills", "other_machine")  # modules beside this one


@dataclass(frozen=True)
class Proof:
    name: str
    case: Callable[[int, random.Random, Path], Numbers]
    slice: int = 20  # cases


@dataclass
class Tally:
    """What the cases of a slice, or of several, came to."""

    cases: int = 0
    failed: list[int] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)

    def add(self, numbers: Numbers) -> None:
        for name, value in numbers.items():
            before = self.numbers.get(name, 0)
            self.numbers[name] = max(before, value) if name.startswith("max_") else before + value

    def facts(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "failed": self.failed,
            **{name: round(value, 3) for name, value in self.numbers.items()},
        }


class Soak:
    """One proof with one seed. `path` holds a line for each slice, and one for each failure that was mended."""

    def __init__(self, proof: Proof, seed: int, progress: Path, tell: Callable[[str], None] = print) -> None:
        self.proof, self.seed, self.tell = proof, seed, tell
        self.path = progress / f"{proof.name}.jsonl"
        text = self.path.read_text() if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # killed while it wrote the last line
            self.path.write_text(whole)
        self.lines = [line for line in map(json.loads, whole.splitlines()) if line["seed"] == seed]

    @property
    def failures(self) -> list[int]:
        """Numbers of the cases that failed and were not mended since."""
        mended = {line["mended"] for line in self.lines if "mended" in line}
        return [number for line in self.lines for number in line.get("failed", []) if number not in mended]

    def go(self, seconds: float) -> dict[str, Any]:
        """Slices until the time is up, at least one; the summary of all that were ever run with this seed."""
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"soak-{self.proof.name}-") as shared:
            for number in self.failures:
                if self._run(number, Path(shared), Tally()):
                    self._keep({"mended": number})
            while True:
                self._slice(Path(shared))
                if time.monotonic() - begun >= seconds:
                    break
        summary = self.summary()
        self.tell(json.dumps(summary))
        return summary

    def only(self, number: int, folder: Path) -> None:
        """One case, in a folder below this one; what it raises goes up, and leaves the folder as it was then."""
        case_folder = folder / f"case-{number}"
        case_folder.mkdir(parents=True)
        self.tell(json.dumps({"what": self.proof.name, "seed": self.seed, "only": number, "folder": str(folder)}))
        self.tell(json.dumps(self.proof.case(number, self._dice(number), case_folder)))
        shutil.rmtree(folder)

    def _slice(self, shared: Path) -> None:
        done = [line for line in self.lines if "slice" in line]
        first = sum(line["cases"] for line in done)
        tally, begun = Tally(), time.monotonic()
        for number in range(first, first + self.proof.slice):
            self._run(number, shared, tally)
        self._keep(
            {
                "slice": len(done),
                "first": first,
                **tally.facts(),
                "seconds": round(time.monotonic() - begun, 1),
                "commit": commit(),
            }
        )

    def _run(self, number: int, shared: Path, tally: Tally) -> bool:
        folder = shared / f"case-{number}"
        folder.mkdir()
        tally.cases += 1
        try:
            tally.add(self.proof.case(number, self._dice(number), folder))
        except Exception as error:
            tally.failed.append(number)
            again = f"python -m benchmarks.soak.soak {self.proof.name} --seed {self.seed} --only {number}"
            self.tell(
                json.dumps(
                    {
                        "failed": number,
                        "seed": self.seed,
                        "error": f"{type(error).__name__}: {error}"[:2000],
                        "again": again,
                    }
                )
            )
            return False
        else:
            shutil.rmtree(folder)
            return True

    def _dice(self, number: int) -> random.Random:
        return random.Random(f"{self.proof.name} {self.seed} {number}")

    def _keep(self, facts: Mapping[str, Any]) -> None:
        line = {"what": self.proof.name, "seed": self.seed, **facts}
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.tell(json.dumps(line))

    def summary(self) -> dict[str, Any]:
        tally, now = Tally(), commit()
        slices = [line for line in self.lines if "slice" in line]
        for line in slices:
            tally.add(
                {
                    name: value
                    for name, value in line.items()
                    if name not in ("what", "seed", "slice", "first", "cases", "failed", "commit")
                }
            )
        return {
            "what": f"soak {self.proof.name}",
            "seed": self.seed,
            "slices": len(slices),
            "cases": sum(line["cases"] for line in slices),
            "cases_of_this_commit": sum(line["cases"] for line in slices if line["commit"] == now),
            "failures": self.failures,
            "mended": sum("mended" in line for line in self.lines),
            **{name: round(value, 3) for name, value in tally.numbers.items()},
            "machine": f"{platform.machine()} {platform.system()}",
            "versions": {"gristmill": version("gristmill"), "python": platform.python_version()},
        }


def commit() -> str:
    """That of the checkout, with a `+` where files differ from it; nothing where git is not there."""
    try:
        made = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return made.stdout.strip()


def proof_of(name: str) -> Proof:
    module = importlib.import_module(f"benchmarks.soak.{name}")
    return Proof(name, module.case, getattr(module, "SLICE", Proof.slice))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROOFS)}")
    parser.add_argument("--seconds", type=float, default=600, help="for each proof; a slice that has begun is ended")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this case alone")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(PROOFS)):
        parser.error(f"no proof {', '.join(unknown)}; there are {', '.join(PROOFS)}")
    if given.only is not None and len(given.names) != 1:
        parser.error("--only is of one proof; name it")
    failed = False
    for name in given.names or PROOFS:
        soak = Soak(proof_of(name), given.seed, PROGRESS, lambda line: print(line, flush=True))
        if given.only is not None:
            soak.only(given.only, Path(tempfile.mkdtemp(prefix=f"soak-{name}-")))
        else:
            failed |= bool(soak.go(given.seconds)["failures"])
    sys.exit(failed)


if __name__ == "__main__":
    main()
