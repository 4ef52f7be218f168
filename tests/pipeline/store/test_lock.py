"""Two runs in one folder of an object store exclude each other, and a killed one stands in nobody's way for long."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from functools import cache

import psutil
import pytest

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.store import lock
from gristmill.pipeline.store.lock import HeldLease, one_run_at_a_time
from gristmill.pipeline.store.records import Task
from gristmill.pipeline.store.storage import Store
from tests.pipeline.store.object_store import Proxy

HOLDS = """
import time
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store
with one_run_at_a_time(Store("s3://mill/out")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_run_is_kept_out_and_told_by_whom(proxied: Proxy) -> None:
    with one_run_at_a_time(Store("s3://mill/out")):
        with (
            pytest.raises(
                RunFailed, match=rf"another run is at work here \({platform.node()}, process {os.getpid()}, since 2"
            ),
            one_run_at_a_time(Store("s3://mill/out")),
        ):
            pass
        with one_run_at_a_time(Store("s3://mill/elsewhere")):
            pass
    with one_run_at_a_time(Store("s3://mill/out")):
        pass
    assert Store("s3://mill/out").files("") == {}, "a run that has ended leaves no lock"


def test_a_run_killed_on_this_machine_is_followed_at_once(proxied: Proxy) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RunFailed, match=rf"process {holder.pid}"), one_run_at_a_time(Store("s3://mill/out")):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with one_run_at_a_time(Store("s3://mill/out")):
        held = json.loads(Store("s3://mill/out").read(".lock"))
        assert held["pid"] == os.getpid()


def test_a_lease_of_another_machine_ends_unless_it_is_renewed(proxied: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "LEASE", 2.0)
    monkeypatch.setattr(lock, "RENEWAL", 0.2)
    store = Store("s3://mill/out")
    gone = HeldLease(store)
    gone.facts |= {"machine": "another", "host": "far"}
    assert gone.take()
    with pytest.raises(RunFailed, match=r"\(far, process .*free in [12] s"):
        HeldLease(store).take()
    time.sleep(3.5)  # times of objects are whole seconds
    with one_run_at_a_time(store):
        time.sleep(3.5)
        other = HeldLease(store)
        with pytest.raises(RunFailed, match="another run is at work"):
            other.take()
        with pytest.raises(RunFailed, match="another run has taken over here"):
            gone.refresh()


def test_a_clock_that_is_set_costs_nobody_the_lock(proxied: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with one_run_at_a_time(Store("s3://mill/out")):
        at = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: at(process) + 0.01)  # as after a step of NTP
        monkeypatch.setattr(time, "time", lambda: 0.0)
        with pytest.raises(RunFailed, match="another run is at work"), one_run_at_a_time(Store("s3://mill/out")):
            pass


def test_a_process_of_another_container_is_not_taken_for_dead(proxied: Proxy) -> None:
    store = Store("s3://mill/out")
    holder = HeldLease(store)
    holder.facts |= {"pid": 2**22 + 1, "machine": holder.facts["machine"].replace("pid:[", "pid:[1")}
    assert holder.take()
    with pytest.raises(RunFailed, match=r"free in (59|60) s"):
        HeldLease(store).take()


def test_a_run_that_slept_past_its_lease_writes_only_if_nobody_has_taken_over(
    proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, slept = Store("s3://mill/out"), lock.clock, [0.0]
    monkeypatch.setattr(lock, "clock", lambda: clock() + slept[0])
    with pytest.raises(RunFailed, match="another run has taken over here"), one_run_at_a_time(store):
        slept[0] += 1000
        store.write("run.json", b"{}")
        slept[0] += 1000
        proxied.refuse = lambda method, path: (403, "AccessDenied") if method == "PUT" else None
        with pytest.raises(RunFailed, match="its lock cannot be renewed"):
            store.write("run.json", b"late")
        proxied.refuse = lambda method, path: None
        Store("s3://mill/out").write(".lock", b'{"token": "of another"}')
        for write in (lambda: store.write("run.json", b"late"), lambda: store.remove(["run.json"])):
            with pytest.raises(RunFailed, match="another run has taken over here"):
                write()
        store.check_lease()
    assert Store("s3://mill/out").read("run.json") == b"{}"


def test_a_request_that_waits_for_the_store_is_not_sent_after_the_lease(
    proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE", 2.0)
    monkeypatch.setattr(lock, "RENEWAL", 60.0)
    store = Store("s3://mill/out")
    with pytest.raises(RunFailed, match="another run has taken over"), one_run_at_a_time(store):
        proxied.share, proxied.faults = 1.0, ("reset",)
        heal = threading.Timer(2.0, setattr, (proxied, "share", 0.0))
        heal.start()
        with pytest.raises(RunFailed, match="could not be renewed in time"):
            store.write("part", b"late")
        heal.join()
        assert not store.exists("part")
        Store("s3://mill/out").write(".lock", b'{"token": "of another"}')
        store.check_lease()


def test_a_worker_writes_as_long_as_its_driver_renews_the_lease(
    proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE", 2.0)
    monkeypatch.setattr(lock, "RENEWAL", 0.2)
    store = Store("s3://mill/out")
    with one_run_at_a_time(store):
        monkeypatch.setattr(lock, "_leases", cache(dict))  # as in another process
        worker = lock.store_of(
            Task(kind="partition", task="t", node="n", key="k", cost=0, out=store.address, lease=str(store.lease_token))
        )
        for number in range(3):
            worker.write(f"part-{number}", b"of the run")
            time.sleep(1.0)
    with pytest.raises(RunFailed, match="another run has taken over here"):
        worker.write("part-3", b"late")
    assert sorted(store.files("")) == ["part-0", "part-1", "part-2"]


def test_a_worker_that_served_an_earlier_run_of_a_folder_serves_the_next(
    proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, clock, passed = Store("s3://mill/out"), lock.clock, [0.0]
    monkeypatch.setattr(lock, "clock", lambda: clock() + passed[0])
    for number in range(2):
        driver = HeldLease(store)
        assert driver.take()
        worker = lock.store_of(
            Task(kind="partition", task="t", node="n", key="k", cost=0, out=store.address, lease=driver.token)
        )
        worker.write(f"part-{number}", b"of the run")
        driver._delete()
        passed[0] += 1000
    assert sorted(store.files("")) == ["part-0", "part-1"]


def test_a_worker_whose_driver_does_not_renew_the_lease_writes_nothing(
    proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE", 2.0)
    store = Store("s3://mill/out")
    driver = HeldLease(store)
    assert driver.take()
    worker = lock.store_of(
        Task(kind="partition", task="t", node="n", key="k", cost=0, out=store.address, lease=driver.token)
    )
    time.sleep(3.0)
    with pytest.raises(RunFailed, match=r"last renewed \d s ago; another run may take over"):
        worker.write("part-0", b"late")
    assert not store.exists("part-0")


def test_a_run_whose_lease_was_taken_over_ends(proxied: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RENEWAL", 0.2)
    store = Store("s3://mill/out")
    with pytest.raises(RunFailed, match="another run has taken over here"), one_run_at_a_time(store):
        store.write(".lock", b'{"token": "of another"}')
        for _ in range(200):
            time.sleep(0.05)
            store.check_lease()
    assert json.loads(store.read(".lock")) == {"token": "of another"}, "its lock is left alone"


def test_an_answer_that_is_lost_on_its_way_costs_nobody_the_lock(proxied: Proxy) -> None:
    lease = HeldLease(Store("s3://mill/out"))
    proxied.first = ["lost"]
    assert lease.take()
    proxied.first = ["lost"]
    lease.refresh()
    lease.refresh()
    assert proxied.met["lost"] == 2


def test_a_lease_whose_reading_is_cut_off_is_read_again(proxied: Proxy) -> None:
    store = Store("s3://mill/out")
    driver = HeldLease(store)
    assert driver.take()
    worker = lock.store_of(
        Task(kind="partition", task="t", node="n", key="k", cost=0, out=store.address, lease=driver.token)
    )
    proxied.first = ["cut"]
    worker.write("part-0", b"of the run")
    assert proxied.met["cut"] == 1 and store.read("part-0") == b"of the run"


def test_a_store_without_conditional_writes_is_named_once(proxied: Proxy) -> None:
    notes: list[str] = []
    proxied.unheard = ("If-None-Match", "If-Match")
    with one_run_at_a_time(Store("s3://mill/out"), notes.append):
        pass
    with one_run_at_a_time(Store("memory://out"), notes.append):
        pass
    assert len(notes) == 2
    assert "no conditional writes" in notes[0] and "only local folders and s3:// have locks" in notes[1]
    assert Store("s3://mill/out").files("") == {}
