"""Workers of a scheduler that has no part in the run: what they must share with the driver is checked before their first
task, since all that they make is stored under the driver's fingerprints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gristmill
from gristmill.pipeline.engine.executor import DaskExecutor
from gristmill.pipeline.errors import RunFailed
from tests.pipeline.engine.elsewhere import elsewhere
from tests.pipeline.engine.here import work_here
from tests.pipeline.run.killed_runs import differences
from tests.pipeline.runs import lines, save, written

RECIPE = "name: r\nparts: {files: 1, small_file: 0}\nsources: {a: {jsonl: {path: in}}}\nstages: [{sample: {rate: 0.5}}, write]\n"


def another_gristmill(folder: Path) -> Path:
    """A copy in which one rule decides otherwise; the folder for PYTHONPATH."""
    package = folder / "gristmill"
    package.mkdir(parents=True)
    root = Path(gristmill.__file__).parents[1]
    shutil.copy(gristmill.__file__, package)
    for floor in ("kernels", "mixing", "shards", "trainer", "classifiers", "pipeline"):
        (package / floor).symlink_to(root / floor)
    shutil.copytree(root / "stages", package / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    sample = package / "stages" / "sample.py"
    rule = "chances(signals.uid, self.seed) <"
    assert sample.read_text().count(rule) == 1
    sample.write_text(sample.read_text().replace(rule, rule.replace("<", ">=")))
    return folder


def test_a_worker_that_differs_from_the_driver_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        lines(tmp_path / f"in/{number}.jsonl", [f"text {number} {place}" for place in range(20)])
    recipe, out = save(tmp_path / "r.yaml", RECIPE), tmp_path / "out"
    with monkeypatch.context() as patch:
        work_here(patch)
        gristmill.run(recipe, tmp_path / "here")
    with elsewhere() as machines:
        machines.scheduler()
        ours = {**machines.environ}
        machines.environ |= {"PYTHONPATH": str(another_gristmill(tmp_path / "theirs")), "PYTHONSAFEPATH": "1"}
        theirs = machines.worker()
        with pytest.raises(RunFailed, match=r"has another Gristmill than the driver .*; install the same one there"):
            gristmill.run(recipe, out, scheduler=machines.address)
        theirs.kill()
        theirs.wait()
        machines.environ = ours
        machines.worker()
        with (
            monkeypatch.context() as patch,
            pytest.raises(RunFailed, match=r"sees another .*/in/0\.jsonl than the driver"),
        ):
            # the driver has listed its files by the time it connects
            patch.setattr(DaskExecutor, "wait_for_workers", lambda *_: lines(tmp_path / "in/0.jsonl", ["other words"]))
            gristmill.run(recipe, out, scheduler=machines.address)
        lines(tmp_path / "in/0.jsonl", [f"text 0 {place}" for place in range(20)])  # the same content at another time
        gristmill.run(recipe, out, scheduler=machines.address)
    assert 10 < len(written(out)) < 50 and differences(tmp_path / "here", out) == []
