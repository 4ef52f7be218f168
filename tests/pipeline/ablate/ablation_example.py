"""A realistic ablation that never ran: ablation.json, metrics and items of simulated jobs, for tests of whatever reads
them.

record = write_example(folder)      three arms (one better, one worse, one that failed), a control, 5 seeds, a guard,
  two domains, one multiple choice
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.ablate.jobs import Job
from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationUi
from gristmill.pipeline.ablate.work import JobResult, items_of
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.train.evaluation import documents_of
from gristmill.pipeline.train.records import Run, run_of
from tests.pipeline.ablate.ablation_sets import PLAN, make_set, tales

EFFECTS = {"control": 0.0, "base": 0.2, "clean": -0.02, "noise": 0.03}  # bits per byte
FAILS = "torn"


def write_example(
    folder: Path, seeds: int = 5, joules: bool = True, more: str = "", flipped: Collection[str] = ()
) -> dict[str, Any]:
    """OUT is folder/out. `joules` False: no meter was there. `more` are lines of the plan; what an arm in `flipped` does
    has the other sign at the second rate."""
    folder.mkdir(parents=True, exist_ok=True)
    make_example_plan(folder, seeds)
    if more:
        plan = folder / "plan.yaml"
        plan.write_text(from_scratch(plan.read_text("utf-8")) + more, encoding="utf-8")
    return run(
        load(folder / "plan.yaml"),
        folder / "out",
        Crew(0, 1),
        AblationUi(folder / "out", (folder / "said.txt").open("w")),
        work=simulated(joules, flipped),
    )


def from_scratch(plan: str) -> str:
    """The same plan without a base."""
    before, _, rest = plan.partition("base:\n")
    shape = next(line for line in rest.splitlines() if line.startswith("  shape:")).strip()
    _, _, after = rest.partition("protocol:")
    rest = after.partition("\n")[2].replace("training: {", "training: {rate: 0.01, ", 1)
    return f"{before}{shape}\nprotocol: from_scratch\n{rest}"


def make_example_plan(folder: Path, seeds: int) -> None:
    for number, name in enumerate(("default", "clean", "noise", FAILS)):
        make_set(folder / "sets" / name, tales(200, number))
    hosts = [f"host{i % 25}" for i in range(150)]
    for name in ("prose", "general"):
        pq.write_table(
            pa.table({"text": tales(150, 9), "host": hosts, "kind": [f"kind{i % 2}" for i in range(150)]}),
            folder / f"{name}.parquet",
        )
    text = PLAN.format(protocol="llama3", tokens=200_000, seeds=seeds).replace(
        "  noise: noise\n", f"  noise: noise\n  {FAILS}: {FAILS}\n"
    )
    (folder / "plan.yaml").write_text(
        text.replace("  noise: sets/noise\n", f"  noise: sets/noise\n  {FAILS}: sets/{FAILS}\n", 1), encoding="utf-8"
    )


def simulated(joules: bool = True, flipped: Collection[str] = ()) -> Callable[[Job], JobResult]:
    """Work that trains nothing: scores with the variance of hosts, documents and seeds, and a loss that falls."""

    def work(job: Job) -> JobResult:
        if job["arm"] == FAILS:
            return {
                "arm": FAILS,
                "seed": job["seed"],
                "failed": "out of GPU memory: take a smaller training.rows_per_step",
                "trace": "",
                "anew": True,
            }
        folder = Path(job["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        repeat = [] if run_of(job) == Run(job["arm"], job["seed"]) else [*run_of(job).name.encode()]
        shared = np.random.default_rng(job["seed"])
        own = np.random.default_rng([job["seed"], *job["arm"].encode(), *repeat])
        effect = EFFECTS[job["arm"]] * (-1 if job["second_rate"] and job["arm"] in flipped else 1)
        level = 1.1 + 0.2 * (job["length"] ** -0.5 - 1) + effect + shared.normal(0, 0.004) + own.normal(0, 0.002)
        _write_metrics(folder / "metrics.jsonl", job["training"]["updates"], level, own, joules)
        if job["evaluate"] is not None:
            pq.write_table(
                pa.concat_tables([_items(name, texts, level, own) for name, texts in job["evaluate"]["texts"].items()]),
                folder / "items.parquet",
            )
        tokens = job["training"]["updates"] * job["training"]["rows_per_update"] * job["row_length"]
        result = {
            "arm": job["arm"], "seed": job["seed"], "fingerprint": job["fingerprint"], "loss": level * 0.9, "updates": job["training"]["updates"],
            "tokens": tokens * 97 // 100, "counted": tokens * 96 // 100, "seconds": 61.5 + own.random(), "tokens_per_second": tokens / 62,
            "joules": 21_000.0 + own.random() if joules else None, "peak_memory": 3_000_000_000, "refused": 0, "seconds_measuring": 2.5,
            "device": "NVIDIA H200", "versions": {"python": "3.12.3", "torch": "2.11.0"},
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "model").mkdir(exist_ok=True)
        return result | {"anew": True}

    return work


def _items(name: str, texts: dict[str, Any], level: float, own: np.random.Generator) -> pa.Table:
    documents = documents_of(name, texts)
    sizes = np.array([len(text.encode()) for text in documents.texts], np.float64)
    by_host = {host: np.random.default_rng(list(host.encode())).normal(0, 0.1) for host in documents.clusters}
    rates = level + np.array([by_host[host] for host in documents.clusters]) + own.normal(0, 0.01, len(sizes))
    return items_of(name, documents.domains, documents.clusters, rates * sizes, sizes)


def _write_metrics(path: Path, updates: int, level: float, own: np.random.Generator, joules: bool) -> None:
    """As the trainer writes them: a line every so many updates, and the target on the way."""
    lines: list[dict[str, Any]] = []
    for step in range(5, updates + 1, 5):
        loss = level * 0.9 + 0.8 * np.exp(-4 * step / updates) + own.normal(0, 0.01)
        lines.append(
            {
                "step": step, "tokens": step * 500, "loss": loss, "rate": 0.01 * (1 - step / updates), "norm": 0.9, "seconds": 0.8, "tokens_per_second": 3200.0,
                "matmul_flops_per_second": 3e14, "attention_flops_per_second": 2e13, "mfu": 0.41, "memory": 2_000_000_000, "peak_memory": 3_000_000_000,
                "joules": 270.0 if joules else None, "tokens_per_joule": 11.0 if joules else None, "processor_joules": None,
            }
        )  # fmt: skip
        if step % (updates // 8 // 5 * 5 or 5) == 0:
            lines.append({"step": step, "evaluation.target_bits_per_byte": level + 0.5 * np.exp(-4 * step / updates)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
