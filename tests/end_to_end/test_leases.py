"""A run on s3:// that loses its folder writes nothing more there: not its driver, not its workers, not a late request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.pipeline.store import lock
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.storage import Store
from tests.pipeline.runs import lines, save
from tests.pipeline.store.object_store import Proxy, proxy_before, s3_server, settings

pytestmark = pytest.mark.run

SHORT_LEASE = """
from gristmill.pipeline.store import lock
lock.LEASE, lock.RENEWAL = 3.0, 0.5
from gristmill.pipeline.cli.app import command
command()
"""
WAIT = """
import time
from pathlib import Path
from gristmill.stages.stage import Annotate

class Wait(Annotate):
    def annotate(self, batch):
        Path("{here}/waiting").touch()
        while not Path("{here}/go").exists():
            time.sleep(0.05)
        return {{}}
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto")
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty one, that this process reaches."""
    s3fs = pytest.importorskip("s3fs")
    for name, value in settings(endpoint).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    if fs.exists("mill"):
        fs.rm("mill", recursive=True)
    else:
        fs.call_s3("create_bucket", Bucket="mill")
    yield "s3://mill"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("fate", ["its driver is suspended", "it cannot reach the store"])
def test_a_run_that_lost_its_folder_to_another_writes_nothing_more(
    fate: str, bucket: str, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE", 3.0)
    lines(tmp_path / "docs.jsonl", ["one text of many words", "another text of many words"])
    save(tmp_path / "wait.py", WAIT.format(here=tmp_path))
    recipe = save(
        tmp_path / "r.yaml", "name: r\nsources:\n  docs: {jsonl: {path: docs.jsonl}}\nstages: ['wait.py:Wait', write]\n"
    )
    with proxy_before(endpoint) as proxy:
        holder = subprocess.Popen(
            [sys.executable, "-c", SHORT_LEASE, "run", str(recipe), "--out", f"{bucket}/out", "--workers", "1"],
            env={**os.environ, **settings(proxy.address)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for(tmp_path / "waiting", holder)
            break_off(fate, holder, proxy)
            time.sleep(4.5)  # times of objects are whole seconds
            with one_run_at_a_time(Store(f"{bucket}/out")):
                before = objects(bucket)
                late: list[str] = []
                proxy.before_put = lambda path: not late.append(path)  # type: ignore[func-returns-value]
                deletions = proxy.met["DELETE"]
                (tmp_path / "go").touch()
                go_on(fate, holder, proxy)
                _, said = holder.communicate(timeout=120)
                assert holder.returncode == 1 and "another run has taken over here" in said, said
                assert [path for path in late if not path.endswith("/.lock")] == []
                assert proxy.met["DELETE"] == deletions
                assert {path: tag for path, tag in objects(bucket).items() if not path.endswith("/.lock")} == {
                    path: tag for path, tag in before.items() if not path.endswith("/.lock")
                }
        finally:
            holder.kill()
            holder.communicate()


def break_off(fate: str, holder: subprocess.Popen[str], proxy: Proxy) -> None:
    if fate == "its driver is suspended":
        holder.send_signal(signal.SIGSTOP)
    else:
        proxy.share, proxy.faults = 1.0, ("reset",)


def go_on(fate: str, holder: subprocess.Popen[str], proxy: Proxy) -> None:
    time.sleep(1.0)  # the worker wants to write
    proxy.share = 0.0
    holder.send_signal(signal.SIGCONT)


def wait_for(path: Path, holder: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert holder.poll() is None and time.monotonic() < until, holder.communicate()[1]
        time.sleep(0.05)


def objects(bucket: str) -> dict[str, tuple[str, str]]:
    store = Store(bucket)
    store.fs.invalidate_cache()
    listing = store.fs.find(f"{store.root}", detail=True)
    return {path: (facts["ETag"], str(facts["LastModified"])) for path, facts in listing.items()}
