"""On a machine with several memory nodes each local worker is bound to a core; on one node nothing is bound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.pipeline.cli.doctor import this_machine
from gristmill.pipeline.engine import cluster
from gristmill.pipeline.engine.cluster import Where, connected
from gristmill.pipeline.processes import CORES, assign_cores, describe_nodes, nodes_here
from tests.pipeline.runs import save

pytestmark = pytest.mark.run


def made(root: Path, *cores: str) -> Path:
    for number, text in enumerate(cores):
        (root / f"node{number}").mkdir()
        save(root / f"node{number}" / "cpulist", f"{text}\n")
    save(root / "online", "0-1\n")
    return root


def test_nodes_are_read_with_what_this_process_may_use(tmp_path: Path) -> None:
    root = made(tmp_path, "0-3,8-11", "4-7,12-15", "", "16-17")
    assert nodes_here(root, set(range(18))) == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15], [16, 17]]
    assert nodes_here(root, {1, 2, 5}) == [[1, 2], [5]]
    assert nodes_here(root, {1, 2}) == [[1, 2]]
    assert nodes_here(tmp_path / "nowhere", {0}) == []


def test_workers_get_a_core_each_from_node_after_node() -> None:
    nodes = [[0, 1, 2], [8]]
    assert assign_cores(4, nodes) == ["0", "8", "1", "2"]
    assert assign_cores(2, nodes) == ["0", "8"]
    assert assign_cores(5, nodes) == ["0,1,2", "8", "0,1,2", "8", "0,1,2"]
    assert assign_cores(3, [[0, 1, 2]]) == assign_cores(3, []) == [None] * 3


def test_doctor_says_what_is_done() -> None:
    said = {str(name): str(value) for name, value in this_machine([]).rows}
    assert said["memory nodes"] == describe_nodes(nodes_here())
    assert describe_nodes([[0, 1]]) == "one: workers are not bound to cores"
    assert describe_nodes([[0, 1], [2]]) == "2, of 2, 1 cores: each local worker is bound to one"


def test_a_process_binds_itself_and_its_threads() -> None:
    core = max(os.sched_getaffinity(0))
    code = (
        "import os, threading; from gristmill.pipeline.processes import bind_to_cores\n"
        "stay = threading.Event(); thread = threading.Thread(target=stay.wait, daemon=True); thread.start()\n"
        "bind_to_cores(); print(*(sorted(os.sched_getaffinity(t)) for t in (0, thread.native_id)))"
    )
    for place, expected in ((str(core), {core}), ("", os.sched_getaffinity(0))):
        environ = os.environ | {CORES: place}
        answer = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert answer.stdout.strip() == f"{sorted(expected)} {sorted(expected)}"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_local_workers_are_bound_where_there_are_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(cluster, "nodes_here", lambda: [[first], [second]])
    with connected(Where(workers=2), tmp_path / "r.yaml") as client:
        client.wait_for_workers(2, timeout=120)
        assert sorted(client.run(lambda: sorted(os.sched_getaffinity(0))).values()) == [[first], [second]]
    monkeypatch.setattr(cluster, "nodes_here", lambda: [[first, second]])
    with connected(Where(workers=1), tmp_path / "r.yaml") as client:
        client.wait_for_workers(1, timeout=120)
        assert list(client.run(lambda: sorted(os.sched_getaffinity(0))).values()) == [sorted(os.sched_getaffinity(0))]
