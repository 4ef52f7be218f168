"""Ctrl-C while workers start: one line, the exit code, and nobody left. SIGTERM ends a run in the same way
(tests/pipeline/run/test_broken_off.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.pipeline.crawls import RUN
from tests.pipeline.runs import lines, save

pytestmark = pytest.mark.run


def test_a_run_that_is_interrupted_while_its_workers_start_ends_with_one_line(tmp_path: Path) -> None:
    lines(tmp_path / "docs.jsonl", ["one text of many words", "another text of many words"])
    recipe = save(
        tmp_path / "r.yaml", "name: r\nsources:\n  docs: {jsonl: {path: docs.jsonl}}\nstages: [exact_dedup, write]\n"
    )
    driver = subprocess.Popen(
        [*RUN, "run", str(recipe), "--out", str(tmp_path / "out"), "--workers", "3"],
        env={**os.environ, "COLUMNS": "500"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        family = wait_for_workers(driver)
        driver.send_signal(signal.SIGINT)
        said, _ = driver.communicate(timeout=90)
    finally:
        driver.kill()
    told = [line for line in said.splitlines() if not line.startswith("stopping the workers")]
    assert driver.returncode == 130, said
    assert len(told) == 1 and told[0].startswith("interrupted; finished work is kept in"), said
    _, alive = psutil.wait_procs(family, timeout=3)
    assert alive == []


def wait_for_workers(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a run as soon as the first worker is forked, which has not reported by then."""
    until = time.monotonic() + 60
    while time.monotonic() < until and driver.poll() is None:
        family = psutil.Process(driver.pid).children(recursive=True)
        if any(process.ppid() != driver.pid for process in family):
            return family
        time.sleep(0.01)
    raise AssertionError(driver.communicate()[0])
