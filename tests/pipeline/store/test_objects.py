"""Object stores that answer late, in part, or not: what is read and written is whole, or named in one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.inputs.files import open_input
from gristmill.pipeline.store import storage
from gristmill.pipeline.store.storage import REQUESTS, Store, requests_since
from gristmill.stages.read.parquet import Parquet
from gristmill.stages.stage import Origin
from tests.pipeline.store.object_store import Proxy, s3_server, settings

CONTENT = bytes(range(256)) * 40


def test_what_is_read_and_written_through_faults_is_whole(proxied: Proxy) -> None:
    store, before = Store("s3://mill/out"), dict(REQUESTS)
    proxied.first = ["503", "reset", "lost"] * 2  # answers to a PUT have no body to be cut
    for number in range(6):
        store.write(f"a/{number}", CONTENT + bytes([number]))
    of_gets = ["cut", "short", "slow", "reset", "lost", "503"]
    proxied.first = [*of_gets]
    for number in range(6):
        assert store.read(f"a/{number}") == CONTENT + bytes([number])
    assert store.files("a") == {f"a/{number}": len(CONTENT) + 1 for number in range(6)}
    sent = requests_since(before)
    assert [proxied.met[kind] for kind in of_gets] == [1, 1, 1, 3, 3, 3]
    # what aiohttp sends again by itself, where a connection that was kept open has ended, nobody sees
    assert 2 + 3 <= sent["retries"] <= 4 + 2 + 5
    assert 6 + 2 <= sent["PUT"] <= proxied.met["PUT"] <= 6 + 6
    assert 6 + 3 <= sent["GET"] + sent["LIST"] <= proxied.met["GET"]
    assert sent["bytes_out"] >= 6 * len(CONTENT) and sent["bytes_in"] >= 6 * len(CONTENT)


@pytest.mark.parametrize("fault", ["cut", "short"])
def test_a_body_that_never_comes_whole_is_no_shorter_file(
    fault: str, proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PAUSE", 0.0)
    store = Store("s3://mill/out")
    store.write("x", CONTENT)
    Store("s3://mill/in").write("t.parquet", parquet())
    proxied.share, proxied.faults = 1.0, (fault,)
    with pytest.raises(RunFailed, match=r"s3://mill/out/x: .*; tried 6 times"):
        store.read("x")
    with pytest.raises(RunFailed, match=r"s3://mill/in/t\.parquet: "), open_input("s3://mill/in/t.parquet") as file:
        list(Parquet(path="t.parquet").read(file, Origin("in", "t.parquet", len(parquet()), 0, None)))


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": [f"text {i}" for i in range(1000)]}), sink)
    return bytes(sink.getvalue())


def test_an_object_that_was_listed_is_looked_for_again(proxied: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PAUSE", 0.0)
    store = Store("s3://mill/out")
    store.write("x", CONTENT)
    missing = [2]

    def not_yet(method: str, path: str) -> tuple[int, str] | None:
        missing[0] -= 1
        return (404, "NoSuchKey") if missing[0] >= 0 else None

    proxied.refuse = not_yet
    with store.open("x") as file:
        assert file.read() == CONTENT
    proxied.refuse = lambda method, path: (404, "NoSuchKey") if path.endswith("/x") else None
    with pytest.raises(RunFailed, match="s3://mill/out/x: no such object, though it was there before; tried 6 times"):
        store.open("x")
    proxied.met.clear()
    with pytest.raises(FileNotFoundError):
        store.read("x")  # may be missing: nothing is tried again
    assert proxied.met["refused"] == 1


def test_expired_credentials_are_told_at_once_and_in_one_line(tmp_path: Path, proxied: Proxy) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one"}) + "\n")
    (tmp_path / "r.yaml").write_text("name: r\nsources: {a: {jsonl: {path: a.jsonl}}}\nstages: [write]\n")
    refused: Counter[tuple[str, str]] = Counter()

    def expired(method: str, path: str) -> tuple[int, str]:
        refused[method, path] += 1
        return 400, "ExpiredToken"

    proxied.refuse = expired
    command = [sys.executable, "-m", "gristmill.pipeline.cli.app", "run", str(tmp_path / "r.yaml")]
    done = subprocess.run(
        [*command, "--out", "s3://mill/out"], env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "s3://mill/out: " in done.stderr and "credentials" in done.stderr and "expired" in done.stderr
    assert refused and max(refused.values()) <= 2, "credentials that are refused are not tried again"


def test_a_person_hears_of_a_store_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        for name, value in settings(f"http://127.0.0.1:{taken.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(storage, "SILENCE", 0)
        monkeypatch.setitem(storage.S3["config_kwargs"]["retries"], "total_max_attempts", 3)
        storage.fsspec.get_filesystem_class("s3").clear_instance_cache()
        with pytest.raises(RunFailed, match="mill/out: cannot be reached: Could not connect"):
            Store("s3://mill/out").make_root()
        storage.fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert capsys.readouterr().err.count("waiting: Could not connect") == 1


def test_uploads_that_a_killed_run_left_are_cleared(proxied: Proxy) -> None:
    store = Store("s3://mill/out")
    for key in ("out/big", "other/big"):
        store.fs.call_s3("create_multipart_upload", Bucket="mill", Key=key)
    assert store.remove_temporary() == 1
    left = store.fs.call_s3("list_multipart_uploads", Bucket="mill")["Uploads"]
    assert [upload["Key"] for upload in left] == ["other/big"]


def test_no_other_process_is_given_the_port_of_a_server_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moto")
    start, refused = subprocess.Popen, list[str]()

    def with_a_rival(command: list[str], **how: Any) -> Any:
        with socket.socket() as rival, pytest.raises(OSError, match="in use"):
            rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rival.bind(("127.0.0.1", int(command[3])))
        refused.append(command[3])
        return start(command, **how)

    monkeypatch.setattr(subprocess, "Popen", with_a_rival)
    with s3_server() as address:
        assert refused == [address.rpartition(":")[2]]
