"""What the driver and the scheduler can steer: many light workers, one core for both.

    python -m benchmarks.pipeline.control_plane [--workers 100,1000,2000] [--parts 16384] [--rounds 10] [--seconds 0]

Workers, many in a process, have the other cores; a task of theirs takes `--seconds` (of sleep) and comes back with the
record of a file, as a round's does. Each task travels alone: the engine would send small ones together. Printed for each
number of workers, one JSON line: how long connecting took and the scheduler's worst lag in it; then tasks a second, the
99th percentile of the lag of the scheduler's event loop (how late a timer of 20 ms rings), memory of driver and
scheduler after the first round and the last, and the share of worker time that was idle.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.store.records import FileRef, Result, RoundTask, StoredRows

TICK = 0.02
LOOKS = 25  # ticks between looks at memory and processor time


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--workers", default="100,1000,2000")
    arguments.add_argument("--parts", type=int, default=16_384)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--seconds", type=float, default=0.0)
    arguments.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.child:
        kind, folder, how = given.child
        (scheduler if kind == "scheduler" else workers if kind == "workers" else driver)(Path(folder), json.loads(how))
        return
    for count in map(int, given.workers.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            how = {"workers": count, "parts": given.parts, "rounds": given.rounds, "seconds": given.seconds}
            found = measured(Path(folder), how)
        found |= {
            "machine": f"{platform.machine()}, {psutil.cpu_count()} cores",
            "versions": {"gristmill": version("gristmill"), "distributed": version("distributed")},
        }
        print(json.dumps(found), flush=True)


def measured(folder: Path, how: dict[str, Any]) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    steering, working = {cores[0]}, set(cores[1:]) or {cores[0]}
    running = [child("scheduler", folder, how, steering)]
    try:
        wait_for(folder / "address")
        begun = time.time()
        each = -(-how["workers"] // len(working))
        for first in range(0, how["workers"], each):
            mine = {**how, "workers": min(each, how["workers"] - first)}
            running.append(child("workers", folder, mine, working))
        last = child("driver", folder, how, steering)
        running.append(last)
        if last.wait():
            raise SystemExit("the driver ended with an error, said above")
    finally:
        for process in running:
            process.kill()
            process.wait()
    rounds = [json.loads(line) for line in (folder / "rounds").read_text().splitlines()]
    lags = [json.loads(line) for line in (folder / "lags").read_text().splitlines()]
    connected = rounds[0]["begun"]
    storm = [late for at, late, *_ in lags if begun <= at < connected]
    work = [(late, memory, cpu) for at, late, memory, cpu in lags if connected <= at <= rounds[-1]["ended"]]
    first_round = [memory for at, _, memory, _ in lags if at <= rounds[0]["ended"]]
    seconds = sum(each["ended"] - each["begun"] for each in rounds)
    tasks = how["parts"] * len(rounds)
    return {
        "what": "control plane",
        **how,
        "connecting_seconds": round(connected - begun, 1),
        "connecting_worst_lag": round(max(storm, default=0), 2),
        "tasks_a_second": round(tasks / seconds),
        "driver_ms_a_task": round(1e3 * (rounds[-1]["cpu"] - rounds[0]["cpu_before"]) / tasks, 3),
        "scheduler_ms_a_task": round(1e3 * (work[-1][2] - work[0][2]) / tasks, 3),
        "by_round": [round(how["parts"] / (each["ended"] - each["begun"])) for each in rounds],
        "lag_p99": round(statistics.quantiles([late for late, *_ in work], n=100, method="inclusive")[98], 3),
        "lag_worst": round(max(late for late, *_ in work), 2),
        "driver_mb": [rounds[0]["memory"], rounds[-1]["memory"]],
        "scheduler_mb": [round(first_round[-1] / 1e6), round(work[-1][1] / 1e6)],
        "idle_share": round(1 - tasks * how["seconds"] / (seconds * how["workers"]), 3) if how["seconds"] else None,
    }


def child(kind: str, folder: Path, how: dict[str, Any], cores: set[int]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.pipeline.control_plane", "--child", kind, str(folder), json.dumps(how)]
    one_thread = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with (folder / "words").open("ab") as words:
        return subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, sorted(cores))), *command],
            env={**os.environ, **one_thread},
            stderr=words if kind != "driver" else None,
        )


def cpu_seconds() -> float:
    return round(time.process_time(), 3)


def wait_for(path: Path) -> str:
    while not path.exists() or not path.read_text():
        time.sleep(0.05)
    return path.read_text()


def scheduler(folder: Path, how: dict[str, Any]) -> None:
    """Dask's own, with the settings that the docs advise, and a look at how late its loop is."""
    import dask
    from distributed import Scheduler

    async def late(process: psutil.Process) -> None:
        with (folder / "lags").open("a", buffering=1) as file:
            for number in itertools.count():
                if number % LOOKS == 0:
                    seen = process.memory_info().rss, cpu_seconds()
                begun = time.perf_counter()
                await asyncio.sleep(TICK)
                over = time.perf_counter() - begun - TICK
                file.write(json.dumps([time.time(), round(over, 4), *seen]) + "\n")

    async def serve() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as served:
            (folder / "address").write_text(served.address)
            await late(psutil.Process())

    advised = {
        "distributed.scheduler.allowed-failures": 0,
        "distributed.scheduler.work-stealing": False,
        "distributed.admin.low-level-log-length": 20,
    }
    with dask.config.set(advised):
        asyncio.run(serve())


def workers(folder: Path, how: dict[str, Any]) -> None:
    import dask
    from distributed import Worker

    from gristmill.pipeline.engine import worker

    worker.run_round = light  # type: ignore[assignment]

    async def serve() -> None:
        settings = {"nthreads": 1, "memory_limit": 0, "dashboard": False, "local_directory": str(folder)}
        address = (folder / "address").read_text()
        made = [Worker(address, **settings) for _ in range(how["workers"])]
        await asyncio.gather(*(each for each in made))
        await asyncio.gather(*(each.finished() for each in made))

    quiet = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.system-monitor.interval": "60s",
        "distributed.admin.tick.interval": "60s",
        "distributed.comm.timeouts.connect": "120s",
        "distributed.diagnostics.nvml": False,
        "logging": {"distributed": "error"},
    }
    with dask.config.set(quiet):
        asyncio.run(serve())


def light(task: RoundTask) -> Result:
    time.sleep(float(task.method))
    path = f"shuffle/{task.node}/{task.round:02d}-light-{task.task[:16]}.arrow"
    return Result(files={"rows": FileRef(path, 1 << 20, task.task, rows=10_000)})


def driver(folder: Path, how: dict[str, Any]) -> None:
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.engine.engine import Engine
    from gristmill.pipeline.engine.executor import DaskExecutor
    from gristmill.pipeline.store.journal import Journal
    from gristmill.pipeline.store.storage import Store, digest

    class Quiet:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    store = Store(str(folder / "out"))
    store.make_root()
    where = Where(scheduler=(folder / "address").read_text())
    executor = DaskExecutor(store, where, Quiet(), folder / "r.yaml")
    with Engine(Journal(store), executor, Quiet()) as engine:
        executor.client.wait_for_workers(how["workers"], timeout=600)
        with (folder / "rounds").open("w") as file:
            for number in range(how["rounds"]):
                tasks = [
                    RoundTask(
                        task=digest([number, part]),
                        kind="map",
                        node="light",
                        key=f"part {part}",
                        cost=1 << 30,
                        out=store.anywhere,
                        stage=StageSpec(stage="light", settings={}, code=None),
                        method=str(how["seconds"]),
                        round=number,
                        rows=(
                            StoredRows(listed=FileRef(f"shuffle/light/{number:02d}.files.json", 0, digest([number]))),
                        ),
                    )
                    for part in range(how["parts"])
                ]
                begun, cpu_before = time.time(), cpu_seconds()
                results = engine.run(tasks)
                assert len(results) == how["parts"]
                memory = round(psutil.Process().memory_info().rss / 1e6)
                now = {"ended": time.time(), "cpu": cpu_seconds(), "memory": memory}
                file.write(json.dumps({"begun": begun, "cpu_before": cpu_before, **now}) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
