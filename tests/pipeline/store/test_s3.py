"""A run whose input and output lie in an object store: the same survivors as on a local disk, and nothing to do the
second time."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")

DOCUMENTS = [[f"text {i} of file {f}" for i in range(5)] + ["the same in every file"] for f in range(4)]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with socket.socket() as there:
                if there.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def settings(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def gristmill(recipe: Path, out: str, environment: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gristmill.pipeline.cli.app",
            "run",
            str(recipe),
            "--out",
            out,
            "--workers",
            "1",
            "--json",
        ],
        env=os.environ | environment | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, object] = json.loads(done.stdout)
    return record | {"anew": done.stderr.count('"anew": true')}


def recipe_for(path: Path, inputs: str) -> Path:
    path.write_text(
        f"name: s3\nparts: {{files: 1}}\nsources:\n  docs: {{jsonl: {{path: '{inputs}'}}}}\nstages: [exact_dedup, write]\n"
    )
    return path


@pytest.mark.slow
def test_an_object_store_holds_the_same_run(tmp_path: Path, endpoint: str) -> None:
    local = tmp_path / "in"
    local.mkdir()
    fs = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=endpoint, client_kwargs={"region_name": "us-east-1"})
    fs.call_s3("create_bucket", Bucket="mill")
    for f, texts in enumerate(DOCUMENTS):
        data = "".join(json.dumps({"text": t, "id": f"{f}-{i}"}) + "\n" for i, t in enumerate(texts)).encode()
        (local / f"{f}.jsonl").write_bytes(data)
        fs.pipe_file(f"mill/in/{f}.jsonl", data)
    gristmill(recipe_for(tmp_path / "local.yaml", str(local)), str(tmp_path / "out"), {})
    far = recipe_for(tmp_path / "far.yaml", "s3://mill/in/")
    first = gristmill(far, "s3://mill/out", settings(endpoint))
    assert first["status"] == "done"
    fs.invalidate_cache()

    def survivors(paths: list[str], open_: object) -> list[tuple[int, str]]:
        rows = []
        for path in paths:
            with open_(path) as file:  # type: ignore[operator]
                rows += [(r["uid"], r["text"]) for r in pq.read_table(file, columns=["uid", "text"]).to_pylist()]
        return sorted(rows)

    here = survivors([str(p) for p in (tmp_path / "out/write").glob("*.parquet")], fsspec.filesystem("file").open)
    there = survivors(fs.glob("mill/out/write/*.parquet"), fs.open)
    assert len(here) == 21
    assert there == here
    before = {p: fs.info(p)["LastModified"] for p in fs.find("mill/out")}
    second = gristmill(far, "s3://mill/out", settings(endpoint))
    fs.invalidate_cache()
    assert second["anew"] == 0
    assert second["stages"] == first["stages"]
    assert {p: fs.info(p)["LastModified"] for p in fs.find("mill/out")} == before
    assert b"report" in fs.cat_file("mill/out/report.html").lower()
