"""Measure the tests: which lines they run, and how many of 300 seeded mutants they notice.

    pip install coverage
    python -m benchmarks.mutants cover [--folder .bench/mutants]   run the tests of all areas, note which test ran which line
    python -m benchmarks.mutants run [--seed 1] [--count 300]      mutate covered lines, run the tests that cover them
    python -m benchmarks.mutants report [--json FILE]              the share killed by area, and the mutants that live

Both work on a copy of the committed files, without data that lies beside the checkout. `run` resumes where it stopped.
A mutant changes one expression or drops one statement. It is killed if a test that covers its line fails or takes five
times as long as before; it lives if all pass. Tests run fastest first, up to TESTS tests and SECONDS seconds.

Kernels run uncompiled (NUMBA_DISABLE_JIT=1), so that their lines are covered; tests that fail so are left out, as are
lines that only worker processes run. An area is a list of folders of code and one of tests (AREAS).
benchmarks/mutants.json holds the baseline: lines covered by file, and each mutant with its fate.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings

ROOT = Path(__file__).resolve().parents[1]
TESTS, SECONDS = 20, 10.0  # at most, for one mutant
ONE_TEST = 6  # seconds of the processor that a test may take while lines are noted; slower ones are left out
EXAMPLES = 6  # of hypothesis, where kernels run uncompiled

# area: (folders and files of code, folders and files of tests, environment)
AREAS: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "kernels": (["kernels"], ["tests/kernels"], {"NUMBA_DISABLE_JIT": "1"}),
    "mixing": (["mixing"], ["tests/mixing"], {}),
    "rules": (["stages/rules"], ["tests/stages/rules", "tests/stages/test_every_setting.py"], {}),
    "engine": (
        [
            *(f"pipeline/{room}" for room in ("engine", "inputs", "plan", "run", "shuffle", "store", "tasks")),
            "pipeline/recipe/fingerprint.py",
        ],
        [*(f"tests/pipeline/{room}" for room in ("engine", "inputs", "run", "store")), "tests/end_to_end"],
        {},
    ),
}

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
CALCULATED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the text between two places of it, and what stands there instead."""

    area: str
    file: str
    line: int
    kind: str
    start: tuple[int, int]  # line, byte
    end: tuple[int, int]
    before: str
    after: str


class _Places(ast.NodeVisitor):
    """Collect the nodes of a module that a mutant may change, each with what replaces it."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.expr | ast.stmt, ast.AST]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
            self.visit(default)
        for statement in node.body:  # neither annotations nor decorators
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.found.append(("drop raise", node, ast.Pass()))  # words of messages are not mutated

    def visit_Assert(self, node: ast.Assert) -> None:
        return

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.found.append(("negate if", node.test, ast.UnaryOp(ast.Not(), node.test)))
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            operator = COMPARED[type(node.ops[0])]()
            self.found.append(("compare", node, ast.Compare(node.left, [operator], node.comparators)))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in CALCULATED and not isinstance(node.left, ast.Constant | ast.JoinedStr | ast.List):
            self.found.append(("arithmetic", node, ast.BinOp(node.left, CALCULATED[type(node.op)](), node.right)))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.found.append(("and or", node, ast.BoolOp(other, node.values)))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.found.append(("drop not", node, node.operand))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.found.append(("constant", node, ast.Constant(not node.value)))
        elif isinstance(node.value, int):
            self.found.append(("constant", node, ast.Constant(node.value + 1)))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.found.append(("drop call", node, ast.Pass()))
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.found.append(("drop update", node, ast.Pass()))
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.found.append(("break or continue", node, ast.Break()))

    def visit_Break(self, node: ast.Break) -> None:
        self.found.append(("break or continue", node, ast.Continue()))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.found.append(("return nothing", node, ast.Return(ast.Constant(None))))
        self.generic_visit(node)


def mutants_of(area: str, file: str, source: str, lines: set[int]) -> Iterator[Mutant]:
    """Yield every mutant of a file that begins on one of the lines."""
    places = _Places()
    places.visit(ast.parse(source))
    for kind, node, other in places.found:
        if node.lineno in lines and node.end_lineno is not None and node.end_col_offset is not None:
            after = ast.unparse(ast.fix_missing_locations(other))
            yield Mutant(
                area, file, node.lineno, kind, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset),
                ast.get_source_segment(source, node) or "", f"({after})" if isinstance(other, ast.expr) else after,
            )  # fmt: skip


def mutated(source: str, mutant: Mutant) -> str:
    """The source with the mutant in it."""
    lines = source.encode().split(b"\n")
    (first, begin), (last, end) = mutant.start, mutant.end
    joined = lines[first - 1][:begin] + mutant.after.encode() + lines[last - 1][end:]
    return b"\n".join([*lines[: first - 1], joined, *lines[last:]]).decode()


# -- in the processes that run tests (`-p benchmarks.mutants`)


def run_kernels_in_python() -> None:
    """Give uncompiled kernels the attribute `py_func` that compiled ones have, and intrinsics a Python function."""
    import numba
    import numba.extending

    njit = numba.njit

    def uncompiled(*arguments: Any, **options: Any) -> Any:
        result = njit(*arguments, **options)
        if not arguments:
            return lambda function: uncompiled(result(function))
        result.py_func = result
        return result

    def in_python(make: Any) -> Any:
        return INTRINSICS[make.__name__](**inspect.getclosurevars(make).nonlocals)

    numba.njit = uncompiled
    numba.extending.intrinsic = in_python


def _bits(flags: np.ndarray) -> np.uint64:
    return np.uint64(sum(1 << int(place) for place in np.flatnonzero(flags)))


def _first(flags: np.ndarray) -> int:
    return int(flags.argmax()) if flags.any() else len(flags)


def _is_word(data: np.ndarray, at: int, words: tuple[bytes, ...]) -> bool:
    return any(bytes(data[at : at + len(word)] | 32) == bytes(byte | 32 for byte in word) for word in words)


def _write_lower(data: np.ndarray, i: int, out: np.ndarray, at: int) -> None:
    chunk = data[int(i) : int(i) + 64]
    out[int(at) : int(at) + 64] = np.where((chunk >= 0x41) & (chunk <= 0x5A), chunk + 32, chunk)


def _byte_ranges(width: int, ranges: tuple[tuple[int, int], ...], with_bits: int, **_: Any) -> Any:
    def count(data: np.ndarray, i: int) -> int:
        chunk = data[int(i) : int(i) + width] | np.uint8(with_bits)
        return _first(np.logical_or.reduce([(chunk >= first) & (chunk <= last) for first, last in ranges]))

    return count


# What each intrinsic computes, by its name; those that a function makes are given its variables.
INTRINSICS: dict[str, Callable[..., Any]] = {
    "eight_bytes": lambda: lambda data, i: np.uint64(int.from_bytes(bytes(data[int(i) : int(i) + 8]), "little")),
    "count": _byte_ranges,
    "lowest": lambda: lambda bits: (int(bits) & -int(bits)).bit_length() - 1 if bits else 64,
    "how_many": lambda: lambda bits: int(bits).bit_count(),
    "larger": lambda: lambda a, b: max(a, b),
    "ascii_inside": lambda: lambda data, i: _bits(np.char.isalnum(data[int(i) : int(i) + 64].view("S1"))),
    "beyond_ascii": lambda: lambda data, i: _bits(data[int(i) : int(i) + 64] >= 0x80),
    "write_lower": lambda: _write_lower,
    "first_of_32": lambda: lambda data, at, byte: _first(data[int(at) : int(at) + 32] == byte),
    "first": lambda words: lambda data, at: _first(np.array([_is_word(data, int(at) + n, words) for n in range(32)])),
    "float_at": lambda: lambda data, at: np.frombuffer(bytes(data[int(at) : int(at) + 4]), np.float32)[0],
    "_ask_for": lambda: lambda words, i: None,
    "prefetch": lambda: lambda data, at: None,
}


if os.environ.get("NUMBA_DISABLE_JIT") == "1":
    run_kernels_in_python()


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":  # after tests/conftest.py has loaded its own
        few = settings(settings.get_profile("project"), max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
        settings.register_profile("few", few)
        settings.load_profile("few")
        warnings.simplefilter("ignore", RuntimeWarning)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    file = os.environ.get("MUTANTS_OUTCOMES")
    if file and (report.when == "call" or report.outcome != "passed"):
        with Path(file).open("a") as out:
            out.write(json.dumps([report.nodeid, report.outcome, round(report.duration, 3)]) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    limit = int(os.environ.get("MUTANTS_LIMIT", "0"))

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {limit} s of the processor")

    before = signal.signal(signal.SIGPROF, stop) if limit else None
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if limit:
            signal.signal(signal.SIGPROF, before)


# -- the copy


def copy_of_checkout(folder: Path, areas: list[str]) -> Path:
    """Copy the committed and changed files and links, so that the copy imports itself."""
    copy = folder / f"checkout-{'-'.join(areas)}" / "gristmill"
    shutil.rmtree(copy.parent, ignore_errors=True)
    files = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in files.split("\0"):
        if name and ((ROOT / name).is_file() or (ROOT / name).is_symlink()):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def run_tests(
    copy: Path, tests: list[str], environment: dict[str, str], timeout: float | None, cover: Path | None = None
) -> int | None:
    """Run tests in the copy; the exit code of pytest, or None if it took too long."""
    environ = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable]
    if cover is not None:
        settings = cover.with_suffix(".ini")
        settings.write_text(f"[run]\ndata_file = {cover}\ndynamic_context = test_function\nsource = {copy}\n")
        command += ["-m", "coverage", "run", f"--rcfile={settings}"]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.mutants", "--no-header", "--tb=no"]
    command += [*(["-x"] if cover is None else []), *tests]
    process = subprocess.Popen(
        command, cwd=copy, env=environ, stdout=subprocess.DEVNULL if cover is None else None,
        stderr=subprocess.STDOUT if cover is None else None, start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- commands


def cover(folder: Path, areas: list[str]) -> None:
    """Run the tests of each area; keep which test that passes runs which line, and how long it takes."""
    copy = copy_of_checkout(folder, areas)
    for area in areas:
        _, tests, environment = AREAS[area]
        data_file, outcomes = folder / f"{area}.coverage", folder / f"{area}.outcomes"
        for old in (data_file, outcomes):
            old.unlink(missing_ok=True)
        noted = {**environment, "MUTANTS_OUTCOMES": str(outcomes), "MUTANTS_LIMIT": str(ONE_TEST)}
        began = time.time()
        run_tests(copy, [test for test in tests if (copy / test).exists()], noted, None, data_file)
        covered = tests_by_line(folder, area, copy)
        (folder / f"{area}.json").write_text(json.dumps(covered))
        lines = [tests for by_line in covered["lines"].values() for tests in by_line.values()]
        facts = {
            "what": f"tests of {area}",
            "tests": len(covered["seconds"]),
            "failed": len(covered["failed"]),
            "lines": len(lines),
            "run": sum(tests is not None for tests in lines),
            "seconds": round(time.time() - began),
        }
        print(json.dumps(facts), flush=True)


def tests_by_line(folder: Path, area: str, copy: Path) -> dict[str, Any]:
    """For each line of an area at which a statement begins: the tests that run it, [] if only imports do, None if
    nothing does."""
    import coverage

    seconds: dict[str, float] = defaultdict(float)
    broken, functions = set(), {}
    for line in (folder / f"{area}.outcomes").read_text().splitlines():
        node, outcome, took = json.loads(line)
        file, _, name = node.partition("::")
        name = name.partition("[")[0]
        context = f"{Path(file).stem}.{name.replace('::', '.')}"  # as coverage names it
        functions[context] = f"{file}::{name}"
        seconds[functions[context]] += took
        if outcome == "failed":
            broken.add(context)
    data = coverage.CoverageData(str(folder / f"{area}.coverage"))
    data.read()
    lines: dict[str, dict[int, list[str] | None]] = {}
    for path in sorted(data.measured_files()):
        file = path.partition("/gristmill/")[2] if path.startswith(str(folder)) else ""
        if not file.endswith(".py") or not any(file == part or file.startswith(part + "/") for part in AREAS[area][0]):
            continue
        by_line = data.contexts_by_lineno(path)
        statements = (node for node in ast.walk(ast.parse((copy / file).read_text())) if isinstance(node, ast.stmt))
        for number in sorted({statement.lineno for statement in statements}):
            known = {functions[context] for context in by_line.get(number, ()) if context in functions.keys() - broken}
            lines.setdefault(file, {})[number] = sorted(known) if number in by_line else None
    return {
        "seconds": {test: round(took, 3) for test, took in seconds.items()},
        "failed": sorted(functions[context] for context in broken),
        "lines": lines,
    }


def run(folder: Path, areas: list[str], seed: int, count: int) -> None:
    """Draw mutants, equally many of each area, and run the tests that cover each."""
    copy = copy_of_checkout(folder, areas)
    results = folder / f"mutants-{seed}.jsonl"
    done = {}
    if results.exists():
        done = {json.dumps(row["mutant"]): row for row in map(json.loads, results.read_text().splitlines())}
    for area in areas:
        covered = json.loads((folder / f"{area}.json").read_text())
        environment = AREAS[area][2]
        candidates = []
        for file, lines in sorted(covered["lines"].items()):
            tested = {int(number) for number, tests in lines.items() if tests}
            candidates += list(mutants_of(area, file, (copy / file).read_text(), tested))
        random.Random(f"{seed} {area}").shuffle(candidates)
        for mutant in candidates[: count // len(AREAS)]:
            if json.dumps(asdict(mutant)) in done:
                continue
            seconds = covered["seconds"]
            tests, total = [], 0.0
            for test in sorted(covered["lines"][mutant.file][str(mutant.line)], key=lambda t: (seconds[t], t)):
                if tests and (len(tests) == TESTS or total + seconds[test] > SECONDS):
                    break
                tests.append(test)
                total += seconds[test]
            path = copy / mutant.file
            source = path.read_text()
            path.write_text(mutated(source, mutant))
            began = time.time()
            try:
                code = run_tests(copy, tests, environment, timeout=60 + 5 * total)
            finally:
                path.write_text(source)
            fate = "timeout" if code is None else "lives" if code == 0 else "killed" if code == 1 else f"exit {code}"
            row = {
                "mutant": asdict(mutant),
                "tests": len(tests),
                "fate": fate,
                "seconds": round(time.time() - began, 1),
            }
            with results.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


def report(folder: Path, seed: int, file: Path | None) -> None:
    """Print the share killed by area and the mutants that live; write the baseline to a file."""
    rows = [json.loads(line) for line in (folder / f"mutants-{seed}.jsonl").read_text().splitlines()]
    summary: dict[str, dict[str, Any]] = {}
    areas = [area for area in AREAS if (folder / f"{area}.json").exists()]
    for area in areas:
        covered = json.loads((folder / f"{area}.json").read_text())["lines"]
        mine = [row for row in rows if row["mutant"]["area"] == area]
        alive = sum(row["fate"] == "lives" for row in mine)
        summary[area] = {
            "lines": sum(map(len, covered.values())),
            "lines_run": sum(tests is not None for by in covered.values() for tests in by.values()),
            "mutants": len(mine),
            "live": alive,
            "killed": round(1 - alive / max(len(mine), 1), 4),
        }
        print(json.dumps({"area": area, **summary[area]}))
    for row in rows:
        if row["fate"] == "lives":
            m = row["mutant"]
            print(f"{m['file']}:{m['line']}: {m['kind']}: {m['before']!r} -> {m['after']!r} ({row['tests']} tests)")
    if file is not None:
        by_file = {}
        for area in areas:
            for name, lines in json.loads((folder / f"{area}.json").read_text())["lines"].items():
                by_file[name] = [sum(tests is not None for tests in lines.values()), len(lines)]
        keys = ("area", "file", "line", "kind", "before", "after")
        listed = [{**{key: row["mutant"][key] for key in keys}, "fate": row["fate"]} for row in rows]
        body = {"seed": seed, "areas": summary, "lines_run_of": by_file, "mutants": listed}
        text = json.dumps(body, indent=0, ensure_ascii=False)
        file.write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("cover", "run", "report"))
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench" / "mutants")
    parser.add_argument("--areas", nargs="*", default=list(AREAS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.command == "cover":
        cover(folder, arguments.areas)
    elif arguments.command == "run":
        run(folder, arguments.areas, arguments.seed, arguments.count)
    else:
        report(folder, arguments.seed, arguments.json)


if __name__ == "__main__":
    main()
