"""What the report's sliders are made of comes from tasks on workers: the same for any grouping, and of one size."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from gristmill.pipeline.report_data import rejects, survey
from gristmill.pipeline.report_data.survey import survey_segments
from gristmill.pipeline.store.records import LookTask, Result
from gristmill.pipeline.store.run_records import rules_by_segment
from gristmill.pipeline.store.storage import Store
from tests.pipeline.runs import go, lines, save, sentences, tree

PARTS = 20


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("surveyed")
    chance = random.Random(7)
    for number in range(PARTS):
        texts = [" ".join(sentences(chance, chance.randint(1, 12), 12)) for _ in range(chance.randint(1, 40))]
        lines(folder / f"docs/{number:02}.jsonl", texts)
    recipe = save(
        folder / "r.yaml",
        "name: r\nparts: {files: 1}\nsources: {docs: {jsonl: {path: docs}}}\n"
        "stages: [gopher_quality: {min_words: 20}, gopher_repetition]\n",
    )
    go(recipe, folder / "out")
    return folder / "out"


def surveys(out: Path) -> dict[str, bytes]:
    return {path: content for path, content in tree(out, "partitions").items() if path.endswith("survey.json")}


@pytest.mark.parametrize(("least", "fan_in", "drawn"), [(1, 8, 2000), (1000, 2, 2000), (1000, 3, 50)])
def test_no_grouping_of_parts_changes_a_survey(
    out: Path, monkeypatch: pytest.MonkeyPatch, least: int, fan_in: int, drawn: int
) -> None:
    monkeypatch.setattr(survey, "SAMPLE", drawn)
    steps: Counter[str] = Counter()
    sizes: dict[str, int] = {}

    def look(asked: list[LookTask]) -> list[Result]:
        steps.update(task.step for task in asked)
        results = survey.here(asked)
        for task, result in zip(asked, results, strict=True):
            for file in result.files.values():
                sizes[task.step] = max(sizes.get(task.step, 0), file.bytes)
        return results

    store = Store(str(out))
    before = surveys(out)
    survey_segments(store)
    one_by_one = surveys(out)
    assert len(before) == 1 and (drawn != survey.SAMPLE or one_by_one != {})
    monkeypatch.setattr(survey, "LEAST_TASKS", least)
    monkeypatch.setattr(survey, "FAN_IN", fan_in)
    survey_segments(store, look=look)
    assert surveys(out) == one_by_one
    record = json.loads(next(iter(one_by_one.values())))
    documents = sum(len(path.read_text().splitlines()) for path in (out.parent / "docs").iterdir())
    assert record["reach"][0][0] == documents > 100 and sum(record["sample"]["groups"]) == min(drawn, documents)
    assert steps["sample"] == steps["counts"] == (1 if least == 1 else PARTS)
    assert (steps["sum of counts"] > PARTS // fan_in) == (least > 1)
    assert sizes.get("sum of counts", 0) <= 2 * sizes["counts"]
    assert not store.files(survey.BETWEEN)


def test_rejects_are_read_in_the_first_files_by_a_task_that_is_told_their_parts_alone(out: Path) -> None:
    store = Store(str(out))
    segments = [*rules_by_segment(store).values()]
    files = [path for path in store.files("stages/gopher_quality") if path.endswith(".parquet")]
    assert len(files) > 3
    task = rejects.task_of_samples(store, "gopher_quality", files[:3], segments, [])
    told = {part.key for segment in task.given["segments"] for part in segment.parts}
    assert told == {rejects.key_of(path) for path in files[:3]} and len(segments[0].parts) == PARTS
    seen = rejects.run_samples(task).seen
    assert seen and all(sample["detail"] for of_reason in seen.values() for sample in of_reason)
