"""Kernels answer the same on another machine and another Python: hashes of their answers on inputs made from seeds.

    python -m benchmarks.soak.other_machine write FILE [--only NAME ...] [--seeds 0 1 2 3]
    python -m benchmarks.soak.other_machine compare FILE [OTHER] [--only NAME ...]    OTHER: else this machine's answers
    python -m benchmarks.soak.other_machine compare tests/fixtures/kernel_answers.json --portable

`write` on one machine and `compare` on the other, or `compare` two files; the committed reference, which a test holds,
is tests/fixtures/kernel_answers.json (x86-64; renew it with `write` where an answer was changed on purpose). `--portable`
answers by kernels that are compiled as a wheel has them. Exit code 1 where answers differ. As a proof of soak.py a case is a seed and a quarter of the kernels: the answers of this processor
against those of a process whose kernels are compiled for the least processor of its kind, without vectors beyond the
baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path

from gristmill.kernels.base import portable
from tests.kernel_answers import ANSWERS, SEEDS, answers

REFERENCE = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "kernel_answers.json"
LEAST = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
SLICE = 1
QUARTERS = 4  # compiling all kernels anew takes minutes

Answers = dict[str, dict[str, str]]


def differences(one: Answers, other: Answers) -> list[str]:
    """`name, seed` of each answer that both have and that differs; an error where they have none in common."""
    both = [(name, seed) for name in one for seed in one[name] if seed in other.get(name, ())]
    if not both:
        raise ValueError("the two have no answer in common")
    return [f"{name}, seed {seed}" for name, seed in both if one[name][seed] != other[name][seed]]


def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.soak.other_machine", "write", str(folder / "least.json")]
    seed, names = number // QUARTERS, tuple(ANSWERS)[number % QUARTERS :: QUARTERS]
    command += ["--seeds", str(seed), "--only", *names]
    subprocess.run(command, env=os.environ | LEAST, check=True, stdout=subprocess.DEVNULL)
    here = answers([seed], names)
    unlike = differences(here, json.loads((folder / "least.json").read_text()))
    if seed in SEEDS:
        unlike += [f"{where} (reference)" for where in differences(here, json.loads(REFERENCE.read_text()))]
    if unlike:
        raise AssertionError(f"other answers of {'; '.join(unlike)}")
    return {"answers": len(here)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=tuple(ANSWERS), default=tuple(ANSWERS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--portable", action="store_true")
    given = parser.parse_args()
    if given.portable:
        os.environ.update(portable.ENVIRONMENT)  # numba is not imported yet
    if given.what == "write":
        [file] = given.files
        file.write_text(json.dumps(answers(given.seeds, given.only), indent=1) + "\n")
        return
    first, *others = (json.loads(file.read_text()) for file in given.files)
    other = others[0] if others else answers(given.seeds, given.only)
    unlike = differences({name: first[name] for name in given.only if name in first}, other)
    kind = "for any processor of its kind" if given.portable else "for this processor"
    machine = f"{platform.machine()} {platform.system()}, Python {platform.python_version()}, kernels {kind}"
    print(json.dumps({"what": "kernels on another machine", "machine": machine, "differ": unlike}))
    sys.exit(bool(unlike))


if __name__ == "__main__":
    main()
