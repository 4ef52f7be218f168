"""A run whose input and output lie in an object store: the same survivors as on a local disk, and nothing to do the
second time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from gristmill.pipeline.look.overview import overview, render
from gristmill.pipeline.look.run_folder import RunFolder
from tests.pipeline.store.object_store import settings

pytestmark = pytest.mark.run

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")

DOCUMENTS = [[f"text {i} of file {f}" for i in range(5)] + ["the same in every file"] for f in range(4)]


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
        f"name: s3\nparts: {{files: 1}}\nprices: {{thousand_puts: 1000, thousand_gets: 100}}\nsources:\n  docs: {{jsonl: {{path: '{inputs}'}}}}\nstages: [exact_dedup, write]\n"
    )
    return path


def test_an_object_store_holds_the_same_run(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "in"
    local.mkdir()
    fs = s3fs.S3FileSystem(key="test", secret="test", endpoint_url=endpoint, client_kwargs={"region_name": "us-east-1"})
    fs.call_s3("create_bucket", Bucket="mill")
    for f, texts in enumerate(DOCUMENTS):
        data = "".join(json.dumps({"text": t, "id": f"{f}-{i}"}) + "\n" for i, t in enumerate(texts)).encode()
        name = f"{f}::part.jsonl"  # no chain of file systems
        (local / name).write_bytes(data)
        fs.pipe_file(f"mill/in/{name}", data)
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
    local_record = json.loads((tmp_path / "out/run.json").read_text())
    assert local_record["requests"] is None and local_record["cost"]["amount"] == 0
    sent = first["requests"]
    assert isinstance(sent, dict)
    # four parts are read, written, given their names and decided on; the driver alone sends about a hundred
    assert sent["PUT"] >= 20 and sent["GET"] >= 20 and sent["LIST"] >= 5 and sent["DELETE"] >= 4, sent
    assert sent["bytes_in"] > sum(len(json.dumps(t)) for texts in DOCUMENTS for t in texts), sent
    cost = sent["PUT"] + sent["LIST"] + 0.1 * (sent["GET"] + sent["HEAD"])
    assert first["cost"] == {"amount": pytest.approx(cost), "currency": "USD"}
    before = {p: fs.info(p)["LastModified"] for p in fs.find("mill/out")}
    second = gristmill(far, "s3://mill/out", settings(endpoint))
    fs.invalidate_cache()
    assert second["anew"] == 0
    assert second["stages"] == first["stages"]
    assert {p: fs.info(p)["LastModified"] for p in fs.find("mill/out")} == before
    page, words = fs.cat_file("mill/out/report.html").decode(), f"{sent['GET']:,} GET"
    assert page.count(words) == 1 and words not in (tmp_path / "out/report.html").read_text()
    for name, value in settings(endpoint).items():
        monkeypatch.setenv(name, value)
    console = Console(width=300)
    with console.capture() as shown:
        console.print(render(overview(RunFolder("s3://mill/out"))))
    assert f"requests: {words}, " in shown.get()
