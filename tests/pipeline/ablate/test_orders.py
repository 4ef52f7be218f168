"""Orders of rows in arms: which rows are read and when, and a planted effect of the order that an ablation finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.ablate.plan import load
from gristmill.pipeline.ablate.run import run
from gristmill.pipeline.ablate.show import AblationUi
from gristmill.pipeline.ablate.workers import Crew
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.train.feeding import order_problem, rows_and_order
from gristmill.shards.loader import Loader
from gristmill.shards.reader import open_shards
from tests.pipeline.ablate.ablation_sets import make_set, tales

PLAN = """
name: orders
sets: {web: web}
control: web
arms: {late: {order: as_written}}
protocol: from_scratch
shape: {hidden: 16, layers: 1, heads: 2, kv_heads: 1, mlp: 32, tied: true, windows: [16, 0]}
tokens: 19200
seeds: 3
training: {rate: 0.01, rows_per_update: 4, rows_per_step: 4, checkpoints: 1, schedule: {kind: constant}}
evaluate: {texts: {other: {files: other.parquet}}, target: other, points: 0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set that rises in difficulty, whose last tenth is of another source."""
    folder = tmp_path_factory.mktemp("orders")
    texts = tales(270, 1) + [text[::-1] for text in tales(30, 2)]
    make_set(folder / "web", texts, segments=(0, 150, 270), difficulty=np.arange(300) / 300)
    pq.write_table(pa.table({"text": [text[::-1] for text in tales(40, 3)]}), folder / "other.parquet")
    return folder


def numbers(folder: Path, order: Any, rows: int, seed: int = 0, share: float = 1.0) -> list[int]:
    stage: Any = {"weights": {str(folder / "web"): 1.0}, "orders": {str(folder / "web"): order}}
    sets, by = rows_and_order([stage], share, seed, rows)
    found: list[int] = Loader(sets, 4, by, seed).rows_at(np.arange(rows)).tolist()
    return found


@pytest.mark.parametrize("order", ["as_written", "segments", "buckets", {"ascending": {}}, {"stages": {"stages": 3}}])
def test_an_order_reads_the_rows_that_the_shuffled_one_reads(folder: Path, order: Any) -> None:
    shards = open_shards(folder / "web")
    assert order_problem(shards, order) is None
    for rows in (60, len(shards), len(shards) + 40):
        shuffled, found = numbers(folder, "shuffled", rows), numbers(folder, order, rows)
        last = rows - rows % len(shards) if rows > len(shards) else 0
        assert sorted(found) == sorted(shuffled) and found != shuffled
        assert np.corrcoef(found[last:], np.arange(rows - last))[0, 1] > 0.5
        assert found == numbers(folder, order, rows) and sorted(found[:last]) == sorted(shuffled[:last])
    assert numbers(folder, "as_written", 60) == sorted(numbers(folder, "shuffled", 60))
    if order not in ("as_written", {"ascending": {}}):  # which leave nothing to chance
        assert numbers(folder, order, len(shards), seed=1) != numbers(folder, order, len(shards))
    assert len(numbers(folder, order, 30, share=0.5)) == 30


def test_the_rest_of_a_schedule_is_random(folder: Path) -> None:
    rows = len(open_shards(folder / "web"))
    found = np.array(numbers(folder, {"warm_up": {"share": 0.5}}, rows))
    first, rest = found[: rows // 2], found[rows // 2 :]
    assert np.corrcoef(first, np.arange(len(first)))[0, 1] > 0.95
    assert abs(np.corrcoef(rest, np.arange(len(rest)))[0, 1]) < 0.3


def test_a_planted_effect_of_the_order_is_found(folder: Path) -> None:
    """Two arms of one mix: what is read last is known best."""
    (folder / "plan.yaml").write_text(PLAN)
    with (folder / "said.txt").open("w") as said:
        record = run(load(folder / "plan.yaml"), folder / "out", Crew(0, 1), AblationUi(folder / "out", said))
    assert record["status"] == "done" and record["arms"][0]["mix"] == {"web": 1.0}
    jobs = {(job["arm"], job["seed"]): job for job in record["jobs"]}
    assert all(jobs["control", seed]["tokens"] == jobs["late", seed]["tokens"] for seed in (0, 1, 2))
    print([(d["by_seed"], d["seeds_error"], d["items_error"]) for d in record["arms"][0]["differences"]])
    verdict = record["arms"][0]["verdict"]
    assert verdict is not None and verdict["word"] == "adopt", verdict
    assert record["arms"][0]["differences"][0]["difference"] < -0.1
    assert not (folder / "out" / "utilities.csv").exists()  # an order is no source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("{order: as_written}", "{order: as_writen}"), "arms.late.order: no such order; did you mean as_written?"),
        (("{order: as_written}", "{order: {warm_up: {share: 2}}}"), "warm_up.share: Input should be less than"),
        (("{order: as_written}", "{order: shuffled}"), "arms.late: is the mix of the control in the same order"),
        (("{order: as_written}", "{training: {rate: 1}}"), "arms.late.training.rate: is the same in all runs"),
        (
            ("{order: as_written}", "{order: as_written, training: {schedule: advised}}"),
            "arms.late.training.schedule: shards do not say which schedule",
        ),
        (
            ("control: web\n", "control: web\norder: segments\n"),
            None,
        ),
    ],
)
def test_what_is_wrong_with_an_order_is_one_line(folder: Path, change: tuple[str, str], message: str | None) -> None:
    path = folder / "wrong.yaml"
    path.write_text(PLAN.replace(*change))
    if message is None:
        plan = load(path).plan
        assert (plan.order_of("control", "web"), plan.order_of("late", "web")) == ("segments", "as_written")
        return
    with pytest.raises(RecipeError) as error:
        load(path)
    assert message in str(error.value) and "\n" not in str(error.value)
