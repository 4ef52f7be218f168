"""`gristmill estimate`: a run on a part against the real whole, and what a cluster's shape changes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.pipeline.cli import app as cli
from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.inputs.portion import Portion, find_inputs, part_sizes
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.recipe.recipe import Recipe
from gristmill.pipeline.run.forecast import Forecast, Shape, forecast, in_words, makespan
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import WORDS, Counting, lines, save

RECIPE = """
name: crawl
sources: {crawl: {jsonl: {path: in}}}
parts: {files: 1, small_file: 1}
stages: [gopher_repetition, exact_dedup, write]
prices: {core_hour: 0.04}
"""


def timed(record: RunRecord) -> RunRecord:
    """The same run on a machine where a document takes a stage a millisecond, and everything else nothing."""
    stages = []
    for stage in record.stages:
        sources = {
            name: replace(count, seconds=(count.kept if stage.kind == "read" else count.docs_in) / 1000)
            for name, count in stage.sources.items()
        }
        count = replace(stage.count, seconds=sum(its.seconds for its in sources.values()))
        stages.append(replace(stage, sources=sources, count=count))
    whole = sum(stage.count.seconds for stage in stages)
    return replace(record, stages=stages, seconds=whole + 3.0, start={"seconds": 3.0})


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, RunRecord, RunRecord, dict[str, list[int]]]:
    """A recipe, its run on a twentieth of the input, its run on all, and the sizes of all parts."""
    folder, chance = tmp_path_factory.mktemp("crawl"), random.Random(5)
    for n in range(160):
        many = chance.randint(5, 25)
        texts = [" ".join(chance.choices(WORDS, k=chance.randint(20, 200))) for _ in range(many)]
        lines(folder / "in" / f"{n}.jsonl", texts)
    recipe = recipes.load(save(folder / "r.yaml", RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        part = run(recipe, str(folder / "part"), Where(1), Counting(), Portion(share=0.05)).record
        whole = run(recipe, str(folder / "whole"), Where(1), Counting()).record
    return (
        recipe,
        timed(part),
        timed(whole),
        part_sizes(find_inputs(recipe, Store(str(folder / "part")), Portion(), contents=False)),
    )


def test_a_twentieth_tells_of_the_whole_within_its_interval(
    crawl: tuple[Recipe, RunRecord, RunRecord, dict[str, list[int]]],
) -> None:
    recipe, part, whole, sizes = crawl
    assert part.stages[0].count.kept < whole.stages[0].count.kept / 10 and len(sizes["crawl"]) == 160
    found = forecast(recipe, part, sizes, Shape(1))
    documents = whole.stages[0].count.kept
    assert found.sample.low is not None and found.sample.high is not None
    assert found.sample.low <= documents <= found.sample.high
    seconds = sum(stage.count.seconds for stage in whole.stages)
    assert found.low <= seconds + 3 <= found.high
    assert found.core_seconds == pytest.approx(seconds, rel=0.25)
    assert found.work == pytest.approx(seconds / 3600 * 0.04, rel=0.25)
    assert found.disk_bytes == pytest.approx(whole.disk_bytes, rel=0.5)
    assert found.scratch_bytes >= found.disk_bytes > 0


def of_shape(crawl: tuple[Recipe, RunRecord, RunRecord, dict[str, list[int]]], shape: Shape) -> Forecast:
    return forecast(crawl[0], crawl[1], crawl[3], shape)


def test_more_workers_are_faster_until_something_binds(
    crawl: tuple[Recipe, RunRecord, RunRecord, dict[str, list[int]]],
) -> None:
    one, four, many = (of_shape(crawl, Shape(workers)) for workers in (1, 4, 100_000))
    assert four.seconds < one.seconds and many.seconds < four.seconds
    assert many.parts == 160 and many.seconds >= many.overhead + many.longest
    assert one.rent is not None and many.rent is not None and many.rent > one.rent, "idle workers are paid too"
    assert one.core_seconds == four.core_seconds == many.core_seconds
    assert of_shape(crawl, Shape(4, cores=2)).rent == pytest.approx(2 * (four.rent or 0))
    assert of_shape(crawl, Shape(4, core_hour=0.4)).rent == pytest.approx(10 * (four.rent or 0))
    assert [of_shape(crawl, Shape(4, memory=size)).fits for size in (1 << 20, 1 << 40, None)] == [False, True, None]


def test_the_longest_part_binds() -> None:
    assert makespan([1.0] * 8, 4) == 2.0 and makespan([1.0] * 8, 100) == 1.0 and makespan([], 3) == 0.0


def test_requests_are_those_that_the_sample_counted(
    crawl: tuple[Recipe, RunRecord, RunRecord, dict[str, list[int]]],
) -> None:
    recipe, part, _, sizes = crawl
    assert of_shape(crawl, Shape(4, object_store=True)).requests is None, "on a disk nobody counts them"
    counted = replace(part, requests={"PUT": 8, "LIST": 2, "GET": 90, "HEAD": 10, "retries": 50})
    measured = forecast(recipe, counted, sizes, Shape(4, object_store=True))
    assert measured.requests is not None
    assert measured.requests["PUT"] == pytest.approx(8 / measured.sample.share, abs=1)
    assert measured.requests["GET"] == pytest.approx(90 / measured.sample.share, abs=1)
    assert forecast(recipe, counted, sizes, Shape(4)).requests is None, "the whole is to run on a disk"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From a run in a temporary folder, from one that is there, and not from one of another recipe."""
    work_here(monkeypatch)
    monkeypatch.setenv("COLUMNS", "80")
    for n in range(30):
        lines(tmp_path / "in" / f"{n}.jsonl", [f"text {n} {i} of some words" for i in range(10)])
    recipe = save(tmp_path / "r.yaml", RECIPE)
    before = set(tmp_path.rglob("*"))
    assert (
        asked("estimate", str(recipe), "--workers", "8", "--sample", "20%", "--memory", "100MB", "--object-store") == 0
    )
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80, shown
    for words in (
        "documents",
        "core hours",
        "USD",
        "more than the",
        "not on an object store",
        "of which the longest takes",
        "extrapolated from",
    ):
        assert words in " ".join(shown.split())
    assert set(tmp_path.rglob("*")) == before, "nothing is left"
    with monkeypatch.context() as patch:
        patch.setattr("sys.argv", [])
        run(recipes.load(recipe), str(tmp_path / "part"), Where(1), Counting(), Portion(share=0.2))
    assert asked("estimate", str(recipe), "--workers", "8", "--from", str(tmp_path / "part"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"]["workers"] == 8 and found["low"] < found["seconds"] < found["high"]
    assert [size["workers"] for size in found["other_sizes"]] == [2, 4, 8, 16, 32]
    assert found["sample"]["low"] <= 300 <= found["sample"]["high"]
    other = save(tmp_path / "s.yaml", RECIPE.replace("exact_dedup, ", ""))
    assert asked("estimate", str(other), "--workers", "8", "--from", str(tmp_path / "part")) == 2
    assert "other stages of crawl" in " ".join(capsys.readouterr().err.split())
    assert asked("estimate", str(recipe), "--workers", "8", "--memory", "lots") == 2
    assert "--memory lots: a size was expected" in " ".join(capsys.readouterr().err.split())


def asked(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["gristmill", *arguments])
        with pytest.raises(SystemExit) as leaving:
            cli.main()
    return int(leaving.value.code or 0)


def test_more_workers_than_were_measured_are_warned_of(
    crawl: tuple[Recipe, RunRecord, RunRecord, dict[str, list[int]]],
) -> None:
    recipe, part, _, sizes = crawl
    many, enough = (dict(in_words(forecast(recipe, part, sizes, Shape(count)))) for count in (6400, 2000))
    assert many["warning"].startswith("6,400 workers are more than the 2,000 that one scheduler was measured with")
    assert "warning" not in enough
