"""All races run by one command: on small data, without rivals that are not installed, which are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.races import commands, in_short, table_of

ROOT = Path(__file__).resolve().parents[2]


def test_each_race_is_a_benchmark_that_is_there(tmp_path):
    races = commands(tmp_path, tmp_path, tmp_path, 1, small=True)
    assert [*races] == ["tokens", "languages", "exact", "minhash", "near", "extraction", "warc"]
    for module, *_ in (command for each in races.values() for command in each):
        assert (ROOT / "benchmarks" / f"{module.replace('.', '/')}.py").is_file()


def test_speeds_are_medians_of_rounds_and_of_warm_calls():
    rounds = [
        {"size": 10.0, "cold": cold, "warm": warm, "warm_user": 1.0, "memory_mb": memory, "process_mb": 9,
         "answer": 3, "versions": {"a": "1"}}
        for cold, warm, memory in ((2.0, [1.0, 0.5], 1), (4.0, [0.5, 0.25], 5), (5.0, [1.0, 1.0], 2))
    ]  # fmt: skip
    told = in_short(rounds)
    assert (told["cold"], told["warm"], told["warm_spread"], told["memory_mb"]) == (2.5, 15, [10, 40], 5)
    assert told["answer"] == 3 and told["versions"] == {"a": "1"}
    line = {"race": "r", "unit": "rows", "sides": {"ours": told, "theirs": told | {"warm": 30}}}
    assert table_of([line]).splitlines()[-1] == "| r, rows a second | theirs | 2.5 | 30 | 5 | 1.00 and 0.50 |"


@pytest.mark.soak
def test_the_races_run_on_small_data(tmp_path):
    names = ["languages", "exact", "near", "warc"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.races", "--wheels", str(tmp_path), "--small", "--rounds", "1", "--only", *names],
        cwd=ROOT, capture_output=True, text=True, timeout=550,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"race"')]
    assert [line["race"].split(",")[0] for line in lines] == [
        *["languages"] * 3, *["exact duplicates"] * 3, "near duplicates", *["WARC"] * 2,
    ]  # fmt: skip
    for line in lines:
        assert line["machine"] and line["rounds"] == 1
        ours = next(side for name, side in line["sides"].items() if name.startswith("ours"))
        assert ours["cold"] > 0 and ours["warm"] > 0 and ours["memory_mb"] >= 0 and ours["answer"] > 0
    assert "polars" in lines[3]["refused"] and "ours, Arrow table" in lines[3]["sides"]
    assert sum(row.startswith("| ") for row in done.stdout.splitlines()) > 15
