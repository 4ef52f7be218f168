"""Proxy runs: mixes of cells drawn, run, killed and gone on with, and their table read by `mix`."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.mixing.weights import tables
from gristmill.mixing.weights.supply import Supply
from gristmill.pipeline.ablate.plan import CONTROL, Proxies, load
from gristmill.pipeline.ablate.proxies import LEAST, drawn, with_mixes
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation import build_page
from gristmill.stages.blend.methods import LogLinear, Regmix
from tests.pipeline.ablate.ablation_sets import make_set, tales

CELLS = {"science/0": "science-0-0a0b0c0d", "science/1": "science-1-0a0b0c0e", "(none)/<b>": "none-b-0a0b0c0f"}
PLAN = """\
name: cells
sets: run
protocol: from_scratch
shape: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, tied: true}
proxies: {runs: 6, seed: 3}
tokens: 4_096
training: {rate: 0.01, rows_per_update: 8, precision: float32, compile: false}
evaluate:
  texts:
    prose: {files: prose.parquet, cluster: host, domain: kind}
  target: prose
  points: 0
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    for number, folder in enumerate(CELLS.values()):
        make_set(tmp_path / "run" / "shards" / folder / "64", tales(60 * (number + 1), number, shuffled=number / 2))
    listed = {"by": ["topic", "quality_bucket"], "cells": CELLS}
    (tmp_path / "run" / "shards" / "cells.json").write_text(json.dumps(listed))
    hosts = [f"host{i % 30}" for i in range(60)]
    kinds = [f"kind{i % 2}" for i in range(60)]
    pq.write_table(pa.table({"text": tales(60, 9), "host": hosts, "kind": kinds}), tmp_path / "prose.parquet")
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


def test_runs_that_were_killed_go_on_and_mix_reads_their_table(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "gristmill.pipeline.cli.app",
        "ablate",
        str(plan),
        "--out",
        str(out),
        "--workers",
        "0",
    ]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    latest = time.monotonic() + 200
    while len(list(out.glob("jobs/*/*/result.json"))) < 2 and killed.poll() is None and time.monotonic() < latest:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    done = {path: path.stat().st_mtime_ns for path in out.glob("jobs/*/*/result.json")}
    assert 2 <= len(done) < 7 and not (out / "ablations.csv").exists()

    result = CliRunner().invoke(app, ["ablate", str(plan), "--out", str(out), "--workers", "0"])
    assert result.exit_code == 0, result.output
    assert "proxy runs of 6 mixes and of the one by tokens; a run is" in " ".join(result.output.split())
    assert len(list(out.glob("jobs/*/*/result.json"))) == 7
    assert {path: path.stat().st_mtime_ns for path in done} == done  # not run again
    record = json.loads((out / "ablation.json").read_text())
    assert record["status"] == "done" and len(record["proxies"]) == 7 and record["cost"]["jobs"] == 7
    assert [run["levels"]["prose"] for run in record["proxies"]] == sorted(
        run["levels"]["prose"] for run in record["proxies"]
    )

    table = tables.ablations((out / "ablations.csv").read_text())
    assert table.sources == tuple(sorted(CELLS)) and table.tasks == ("prose/kind0", "prose/kind1")
    assert table.weights_RN.shape == (7, 3) and len({*map(tuple, table.weights_RN.tolist())}) == 7
    rows = list(csv.DictReader((out / "ablations.csv").open()))
    for row in rows:  # each loss is that of the run's own items
        items = pq.read_table(out / "jobs" / row["run"] / f"seed-{row['seed']}" / "items.parquet").to_pylist()
        of_kind = [item for item in items if item["domain"] == "kind1"]
        loss = sum(item["value"] for item in of_kind) / sum(item["size"] for item in of_kind)
        assert float(row["loss:prose/kind1"]) == pytest.approx(loss, rel=1e-9)
        if row["run"] != CONTROL:
            mix = next(arm["mix"] for arm in record["arms"] if arm["name"] == row["run"])
            assert {name: float(row[f"weight:{name}"]) for name in mix} == pytest.approx(mix, abs=2e-6)
    supply = Supply.of(dict.fromkeys(CELLS, 1e6), 1e6, 4.0)
    for method in (
        Regmix(ablations_file=str(out / "ablations.csv"), regressor="ridge", candidates=200, best=5),
        LogLinear(ablations_file=str(out / "ablations.csv")),
    ):
        weights_N, facts = method.weigh(supply, 0)
        assert weights_N.sum() == pytest.approx(1) and facts["runs"] == 7

    page = build_page(RunFolder(out))
    assert page == (out / "ablation.html").read_text() and "7 proxy runs" in page


def test_a_dry_run_says_what_proxies_cost(plan: Path) -> None:
    result = CliRunner().invoke(app, ["ablate", str(plan), "--dry-run", "--workers", "0"])
    assert result.exit_code == 0 and "7 jobs" in " ".join(result.output.split()), result.output


def test_mixes_differ_keep_caps_and_are_the_same_for_a_seed() -> None:
    supply = Supply.of({f"cell{i}": 10.0 * (i + 1) for i in range(30)}, 4000.0, 2.0)
    mixes = drawn(supply, Proxies(runs=512))
    assert len(mixes) == 513 and mixes == drawn(supply, Proxies(runs=512)) and CONTROL in mixes
    assert mixes != drawn(supply, Proxies(runs=512, seed=1))
    caps = dict(zip(supply.names, supply.caps_N, strict=True))
    for name, mix in mixes.items():
        assert sum(mix.values()) == pytest.approx(1, abs=1e-4)
        assert min(mix.values()) >= LEAST
        assert name == CONTROL or all(weight <= caps[cell] * 1.07 for cell, weight in mix.items())
    assert len({frozenset(mix.items()) for mix in mixes.values()}) == 513
    more = drawn(supply, Proxies(runs=600))
    assert {name: more[name] for name in mixes} == mixes
    free = drawn(Supply.of(dict(zip(supply.names, supply.tokens_N, strict=True)), 100.0, 99.0), Proxies(runs=100))
    assert np.mean([len(mix) for mix in free.values()]) < 25  # most leave a cell out


def test_a_plan_says_what_is_wrong_with_it(plan: Path) -> None:
    def refused(text: str) -> str:
        plan.write_text(text)
        with pytest.raises(RecipeError) as error:
            with_mixes(load(plan))
        return str(error.value)

    assert "take this out" in refused(PLAN + "seeds: 3\n")
    assert "take this out" in refused(PLAN + "control: a\n")
    assert "no list of cells" in refused(PLAN.replace("sets: run", "sets: nowhere"))
    assert "mixes of these sets differ" in refused(
        PLAN.replace("sets: run", f"sets: {{a: run/shards/{CELLS['science/0']}}}")
    )
    assert "cannot be filled" in refused(PLAN.replace("seed: 3", "max_epochs: 0.01"))
    assert "greater than" in refused(PLAN.replace("runs: 6", "runs: 1"))
