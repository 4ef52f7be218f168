"""Whatever is killed, the run comes out the same, byte for byte. benchmarks/kill.py does this at length."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "kill.py"
spec = importlib.util.spec_from_file_location("benchmarks_kill", FILE)
assert spec is not None and spec.loader is not None
kill = importlib.util.module_from_spec(spec)
sys.modules["benchmarks_kill"] = kill
spec.loader.exec_module(kill)


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    crawl = kill.make_crawl(tmp_path / "crawl", copies=2)
    _, outcomes = kill.disturb(kill.make_case(crawl, tmp_path, workers=2), tmp_path, times=2, seed=5, tell=print)
    assert [o.what for o in outcomes] == ["driver", "worker"] * 2
    assert all(o.hit for o in outcomes if o.what == "driver"), "nothing was left to kill"
    assert [o.differences for o in outcomes] == [[]] * 4
