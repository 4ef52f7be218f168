"""Whatever is killed, the run comes out the same, byte for byte. benchmarks/soak/kills.py does this at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.run import killed_runs

pytestmark = pytest.mark.run

STAGES = """\
  - exact_dedup
  - minhash_dedup
  - write
  - tokenize: {vocab_size: 500}
  - pack: {row_length: 256, window_tokens: 32768}
"""


def test_a_killed_run_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    crawl = killed_runs.make_crawl(tmp_path / "crawl", copies=1)
    case = killed_runs.make_case(crawl, tmp_path, workers=2, stages=STAGES)
    _, outcomes = killed_runs.disturb(case, tmp_path, times=1, seed=5, tell=print)
    assert [o.what for o in outcomes] == ["driver", "worker"]
    assert all(o.hit for o in outcomes if o.what == "driver"), "nothing was left to kill"
    assert [o.differences for o in outcomes] == [[], []]
