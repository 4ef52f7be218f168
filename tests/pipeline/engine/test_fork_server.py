"""Workers are forked from a template that has loaded their stages: it saves time, follows its driver, and is never
needed for a result."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import urllib.request
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from gristmill.pipeline import processes
from gristmill.pipeline.engine import cluster
from gristmill.pipeline.engine.cluster import Where, connected
from tests.pipeline.crawls import RUN
from tests.pipeline.runs import go, save, shared_texts, written

pytestmark = [
    pytest.mark.usefixtures("own_fork_server"),
    pytest.mark.run,
]

PAGES = "name: p\nsources:\n  crawl: {warc: {path: '*.warc.gz'}}\nstages: [extract, exact_dedup, write]\n"
TEXTS = "name: t\nparts: {files: 1}\nsources:\n  docs: {jsonl: {path: docs}}\nstages: [exact_dedup, write]\n"
OWN = """
import os
from pathlib import Path
from gristmill.stages.stage import Rule, Verdict
class Mine(Rule):
    def prepare(self):
        with Path("{log}").open("a") as log:
            log.write(str(os.getpid()) + " ")
        {deed}
    def verdict(self, signals):
        return Verdict.keep(len(signals))
"""


def facts(answer: Connection) -> None:
    """What a process that was forked from the template finds."""
    held = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    answer.send(
        (sorted(sys.modules), held, os.environ.get("MALLOC_ARENA_MAX"), os.environ.get("OMP_NUM_THREADS"), os.getppid())
    )


def forked() -> tuple[list[str], bool, str, str, int]:
    here, there = multiprocessing.Pipe(duplex=False)
    process = processes.ForkedProcess(target=facts, args=(there,))
    process.start()
    there.close()
    said: tuple[list[str], bool, str, str, int] = here.recv()
    process.join()
    return said


def of_driver(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())]


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_what_is_forked_has_the_stages_loaded_and_leaves_interrupts_to_the_driver(tmp_path: Path) -> None:
    before = dict(os.environ)
    processes.start_fork_server(save(tmp_path / "p.yaml", PAGES))
    modules, held, arenas, threads, parent = forked()
    assert {
        "gristmill.stages.extract.stage",
        "gristmill.stages.dedup.exact",
        "numba",
        "distributed.worker",
        "gristmill.pipeline.engine.worker",
    } <= set(modules)
    assert (held, arenas, threads) == (True, "1", "1")
    assert parent != os.getpid() and psutil.Process(parent).ppid() == os.getpid()
    assert dict(os.environ) == before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    processes.start_fork_server(tmp_path / "p.yaml")
    assert forked()[-1] == parent, "there is one template"
    processes.stop_fork_server()
    assert not psutil.pid_exists(parent)
    processes.stop_fork_server()


@pytest.mark.parametrize("text", ["name: [", "name: x\nsources: {a: {nothing: {}}}\n"])
def test_a_template_minds_no_wrong_recipe(tmp_path: Path, text: str) -> None:
    processes.start_fork_server(save(tmp_path / "wrong.yaml", text))
    assert "gristmill.pipeline.engine.worker" in forked()[0]


@pytest.mark.parametrize("deed", ["pass", "raise ValueError('no')", "os.kill(os.getpid(), 9)"])
def test_a_stage_from_outside_is_prepared_in_a_process_of_its_own(tmp_path: Path, deed: str) -> None:
    shared_texts(tmp_path / "docs", files=2)
    save(tmp_path / "mine.py", OWN.format(log=tmp_path / "log", deed=deed))
    processes.start_fork_server(save(tmp_path / "t.yaml", TEXTS.replace("exact_dedup", "'mine.py:Mine'")))
    parent = forked()[-1]
    [prepared] = (tmp_path / "log").read_text().split()
    assert int(prepared) not in (parent, os.getpid())


def test_a_template_ends_with_its_driver(tmp_path: Path) -> None:
    shared_texts(tmp_path / "docs", files=2)
    save(tmp_path / "mine.py", OWN.format(log=tmp_path / "log", deed="import time; time.sleep(60)"))
    recipe = save(tmp_path / "t.yaml", TEXTS.replace("exact_dedup", "'mine.py:Mine'"))
    driver = subprocess.Popen(
        [*RUN, "run", str(recipe), "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while not (tmp_path / "log").exists() and time.monotonic() < until:
        time.sleep(0.05)
    followers = of_driver(driver.pid)
    assert len(followers) >= 2, "the template, and the process in which it prepares the stage"
    driver.kill()
    driver.wait()
    until = time.monotonic() + 5
    while any(map(alive, followers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, followers))


def test_a_run_whose_template_is_killed_comes_out_the_same(tmp_path: Path) -> None:
    shared_texts(tmp_path / "docs", files=6)
    slow = "name: t\nparts: {files: 1}\nsources:\n  docs: {jsonl: {path: docs}}\nstages: ['slow.py:Slow', exact_dedup, write]\n"
    save(
        tmp_path / "slow.py",
        "import time\nfrom gristmill.stages.stage import Rewrite, Applied, Verdict\nclass Slow(Rewrite):\n    def rewrite(self, batch):\n"
        "        time.sleep(0.7)\n        return Applied(batch, Verdict.keep(len(batch)))\n",
    )
    recipe, out = save(tmp_path / "t.yaml", slow), tmp_path / "out"
    driver = subprocess.Popen(
        [*RUN, "run", str(recipe), "--out", str(out), "--workers", "2"], stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while not list(out.glob("partitions/*/*.parquet")) and time.monotonic() < until:
        time.sleep(0.05)
    [parent] = {p.ppid() for p in of_driver(driver.pid)} - {driver.pid}
    os.kill(parent, signal.SIGKILL)
    assert driver.wait(timeout=120) == 0
    go(recipe, tmp_path / "undisturbed")
    assert len(written(out)) == 6 * 5 + 3
    assert written(out) == written(tmp_path / "undisturbed")


def test_a_run_with_nothing_to_do_has_no_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_texts(tmp_path / "docs", files=2)
    recipe, out = save(tmp_path / "t.yaml", TEXTS), tmp_path / "out"
    summary, _ = go(recipe, out)
    assert summary.worked > 0

    def never(recipe: Path) -> None:
        raise AssertionError("a template was started")

    monkeypatch.setattr(processes, "start_fork_server", never)
    again, anew = go(recipe, out)
    assert again.worked == 0 and not anew


def test_without_the_dashboards_package_there_is_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "has_dashboard", lambda: False)
    with connected(Where(1), save(tmp_path / "t.yaml", TEXTS)) as client:
        scheduler = client.cluster.scheduler
        assert len(scheduler.http_application.applications) == 0
        client.gather(client.map(str, range(200), pure=False))
        [stream] = scheduler.stream_comms.values()
        assert 0 < len(stream.recent_message_log) <= 20, "no thousand messages, with their tasks, for each worker"


def test_the_dashboard_answers_where_its_package_is_there(tmp_path: Path) -> None:
    with (
        connected(Where(1), save(tmp_path / "t.yaml", TEXTS)) as client,
        urllib.request.urlopen(client.dashboard_link, timeout=30) as page,
    ):
        assert page.status == 200 and b"Dask" in page.read()
