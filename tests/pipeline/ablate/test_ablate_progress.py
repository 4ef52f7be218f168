"""What an ablation says before it begins, while it works, and when it is stopped."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationEvents, AblationUi
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.train.progress import PROGRESS, RunClock, RunProgress, progress_in
from gristmill.pipeline.train.records import Job
from tests.pipeline.ablate.ablation_sets import held_out, make_plan

pytest.importorskip("torch")

SECONDS = r"(?:\d+ min \d\d s|[\d.]+ m?s|<1 ms)"


def job(folder: Path, arm: str = "control", measured: bool = True) -> Job:
    evaluate: Any = {"points": 2} if measured else None
    made: Any = {
        "folder": str(folder / arm), "arm": arm, "seed": 0, "order": 0, "second_rate": False, "length": 1.0,
        "training": {"updates": 100}, "evaluate": evaluate,
    }  # fmt: skip
    (folder / arm).mkdir(exist_ok=True)
    return made


def says(job: Job, update: int, spent: float, left: float, measuring: bool = False) -> None:
    facts = {"update": update, "loss": 3.25, "tokens_per_second": 10.0, "spent": spent, "left": left}
    (Path(job["folder"]) / PROGRESS).write_text(json.dumps(facts | {"measuring": measuring}))


def test_an_estimate_has_measuring_in_it_and_names_the_setting_that_makes_it_long(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, tokens=2048)
    command = ["ablate", str(plan), "--dry-run", "--workers", "0"]
    note = " ".join(CliRunner().invoke(app, command).stdout.split())
    assert re.search(
        rf"About {SECONDS} on 1 worker, as tried for a moment on this machine. All jobs together: training {SECONDS},"
        rf" measuring {SECONDS} \({SECONDS} of it on the way\), starting {SECONDS}",
        note,
    ), note
    held_out(tmp_path / "general.parquet", 4000, 5)
    shown = CliRunner().invoke(app, command)
    assert "warning  measuring would take" in shown.stderr
    assert "take fewer texts (evaluate.texts.general.most: all)" in shown.stderr
    plan.write_text(plan.read_text().replace("points: 2", "points: 9").replace("documents: 8", "documents: 4000"))
    held_out(tmp_path / "prose.parquet", 4000, 5)
    shown = CliRunner().invoke(app, command)
    assert "measure the target less often (evaluate.points: 9) or on fewer documents" in shown.stderr
    assert not (tmp_path / "out" / "tales" / "jobs").exists()


def test_what_does_not_fit_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    shown = CliRunner().invoke(app, ["ablate", str(make_plan(tmp_path)), "--dry-run", "--workers", "0"])
    assert shown.exit_code == 0 and "7 jobs" in shown.stdout and "About" not in shown.stdout
    assert "warning  no estimate of time: a run needs about " in shown.stderr and "1.0 kB are free here" in shown.stderr


def test_a_run_knows_what_is_left_of_it() -> None:
    clock = RunClock(updates=100, every=50, metrics_every=10)
    line = {"loss": 3.0, "tokens_per_second": 5.0, "seconds": 9.0}
    assert clock.read(line | {"step": 10}).left == pytest.approx(90 * 0.9)
    assert clock.read(line | {"step": 20, "seconds": 1.0}).left == pytest.approx(80 * 0.1)  # compiled in the first
    clock.measured += [4.0, 6.0]
    assert clock.read(line | {"step": 50, "seconds": 3.0}).left == pytest.approx(50 * 0.1 + 2 * 5.0)
    assert clock.read(line | {"step": 60, "seconds": 1.0}).left == pytest.approx(40 * 0.1 + 5.0)
    assert clock.read(line | {"step": 100, "seconds": 4.0}).left == pytest.approx(5.0)  # the last one is due
    resumed = RunClock(updates=100, every=None, metrics_every=10)
    assert resumed.read(line | {"step": 60, "seconds": 1.0}).left == pytest.approx(4.0)


def test_a_line_for_each_tenth_of_a_job_and_the_time_that_is_left_in_all(tmp_path: Path) -> None:
    stream, control, arm = io.StringIO(), job(tmp_path), job(tmp_path, "clean")
    ui = AblationUi(tmp_path, stream)
    with ui.watching([control, arm], 1):
        ui.begins(control)
        at_work = ui.at_work[control["folder"]]
        at_work.begun -= 30
        says(control, 30, 30.0, 70.0)
        at_work.look()
        ui.report(at_work)
        ui.report(at_work)
        assert stream.getvalue().splitlines()[1:] == [
            "control, seed 0: 30%, update 30 of 100, loss 3.2500; at least about 2.8 min left in all"
        ]
        at_work.begun -= 65
        says(control, 100, 95.0, 0.0, measuring=True)
        at_work.look()
        ui.report(at_work)
        assert "control, seed 0: 90%, measuring, loss 3.2500; at least" in stream.getvalue()
        done: Any = {"anew": True, "loss": 3.0, "tokens": 1000, "seconds": 60.0}
        ui.ends(control, done | {"seconds_measuring": 90.0, "seconds_on_the_way": 30.0})
        last = stream.getvalue().splitlines()[-1]
        assert last == (
            "control, seed 0: done, loss 3.0000, 1,000 tokens in 2 min 30 s (90.0 s of it measuring); 1 to come,"
            " about 95 s left in all"
        )
        ui.begins(arm)
        says(arm, 50, 1.0, 20.0)
        ui.at_work[arm["folder"]].look()
        assert ui.time_left() == "about 80 s left in all"  # 20 s of the run, 60 s of measuring it
    assert (tmp_path / "log.txt").read_text().count("control, seed 0:") == 4


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    stream = io.StringIO()
    run(load(make_plan(tmp_path, tokens=1024)), tmp_path / "out", Crew(0, 1), AblationEvents(tmp_path / "out", stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    done = [event for event in events if event["event"] == "done"]
    assert [(event["arm"], event["seed"]) for event in done] == [
        ("base", 0), *((arm, seed) for seed in (0, 1) for arm in ("control", "clean", "noise")),
    ]  # fmt: skip
    assert all(event["seconds"] > event["seconds_measuring"] > 0 for event in done[1:])
    assert done[1]["seconds_left"] > 0 and done[-1]["to_come"] == 0
    assert progress_in(tmp_path / "out" / "base") is None  # it is for jobs at work
    assert {event["event"] for event in events} <= {"note", "started", "progress", "done"}
    assert RunProgress(1, None, None, 1.0, 3.0).share == 0.25


def test_an_ablation_that_is_terminated_ends_with_one_line(tmp_path: Path) -> None:
    """SIGTERM to the whole process group, as `timeout` sends it, while a worker trains."""
    plan = make_plan(tmp_path, tokens=200_000)
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "ablate", str(plan), "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    latest = time.monotonic() + 120
    while not (tmp_path / "out" / "jobs" / "control" / "seed-0" / PROGRESS).exists() and time.monotonic() < latest:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == (
        f"interrupted; finished work is kept in {tmp_path / 'out'}. Run the same command to resume from the last"
        " checkpoints"
    )
    assert "Traceback" not in said and "leaked" not in said and "failed" not in said, said
