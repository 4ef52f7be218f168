"""Month after month: each run against all months before it, by one line of the recipe; and who kept what is on record."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.shuffle import shuffle
from gristmill.pipeline.store.journal import Journal
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import go, lines, save, written

RECIPE = """
name: crawl-{month}
sources:
  crawl-{month}: {{jsonl: {{path: in/{month}}}}}
parts: {{files: 1, small_file: 1}}
stages:
  - exact_dedup: {{against: [exact], save_index: exact/{month}}}
  - minhash_dedup: {{against: [near/], save_index: near/{month}}}
  - write
"""
MONTHS = ("2024-8", "2024-9", "2024-10")


def month(folder: Path, name: str) -> Path:
    """A recipe that names its month alone, and its inputs: 40 texts of its own, and of each month before 10 word for
    word and 10 with a word more."""
    own = {m: [" ".join(random.Random(f"{m}/{n}").choices(WORDS, k=80)) for n in range(40)] for m in MONTHS}
    texts = list(own[name])
    for before in MONTHS[: MONTHS.index(name)]:
        texts += own[before][:10] + [f"{text} again" for text in own[before][10:20]]
    for n in range(8):
        lines(folder / "in" / name / f"{n}.jsonl", texts[n::8])
    return save(folder / f"{name}.yaml", RECIPE.format(month=name))


WORDS = [f"word{n}" for n in range(400)]


def all_months(folder: Path) -> dict[str, list[str]]:
    return {
        name: [text for _, text in written(folder / name)] for name in MONTHS if go(month(folder, name), folder / name)
    }


@pytest.fixture(scope="module", autouse=True)
def in_this_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        yield


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("months")
    return folder, all_months(folder)


def dropped(out: Path, stage: str) -> int:
    record = json.loads((out / "run.json").read_text())
    return sum(next(entry["dropped"] for entry in record["stages"] if entry["name"] == stage).values())


def test_each_month_is_held_against_all_before_it(usual: tuple[Path, dict[str, list[str]]]) -> None:
    folder, kept = usual
    assert {name: len(texts) for name, texts in kept.items()} == dict.fromkeys(MONTHS, 40), "what is its own"
    assert [dropped(folder / name, "exact_dedup") for name in MONTHS] == [0, 10, 30]
    assert [dropped(folder / name, "minhash_dedup") for name in MONTHS] == [0, 10, 10]
    again, anew = go(folder / f"{MONTHS[0]}.yaml", folder / MONTHS[0])
    assert again.worked == 0 and not anew, "a month that is run again does not see later ones"
    whys = {seen.why for seen in foresee(recipes.load(folder / "2024-10.yaml"), str(folder / "2024-10"))}
    assert whys == {"up to date"}, "nor is a later one run again for an index that was saved again"


def test_records_name_the_runs_that_kept_what(usual: tuple[Path, dict[str, list[str]]]) -> None:
    folder, _ = usual
    record = json.loads((folder / "2024-10" / "run.json").read_text())
    for stage in ("exact_dedup", "minhash_dedup"):
        runs = next(entry for entry in record["stages"] if entry["name"] == stage)["earlier_runs"]
        assert [(run["index"], run["name"], run["documents"]) for run in runs] == [
            ("2024-8", "crawl-2024-8", 40),
            ("2024-9", "crawl-2024-9", 50 if stage == "exact_dedup" else 40),
        ]
        assert all(len(run["fingerprint"]) == 32 and run["saved"].endswith("+00:00") for run in runs)
    report = (folder / "2024-10" / "report.html").read_text()
    assert "crawl-2024-9" in report and "Earlier runs" in report
    gone = rejects(folder / "2024-10")
    assert Counter(row["detail"].rpartition(", kept by ")[2] for row in gone) == {"2024-8": 10, "2024-9": 30}
    row = next(row for row in gone if row["stage"] == "minhash_dedup")
    story = history(RunFolder(folder / "2024-10"), row["uid"])
    assert story.verdicts[-1].detail == row["detail"], "what `inspect` shows"
    like, _, kept_by = row["detail"].partition(", kept by ")
    assert history(RunFolder(folder / kept_by), int(like.split()[-1], 16)).outcome == "kept"


def rejects(out: Path) -> list[dict[str, Any]]:
    paths = sorted((out / "stages").glob("*/rejects/*.parquet"))
    return [row for path in paths for row in pq.read_table(path, columns=["uid", "stage", "detail"]).to_pylist()]


def test_indexes_have_few_files_and_the_same_answers_in_many(
    tmp_path: Path, usual: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.parent.name: 0 for path in (usual[0] / "near").glob("*/*/index.json")}
    assert files.keys() == {"bands", "sketches"}
    for index in (usual[0]).glob("*/*/*/index.json"):
        named = {file["path"] for file in json.loads(index.read_text())["files"]}
        assert len(named) == 1 and {path.name for path in index.parent.glob("*.arrow")} == named
    monkeypatch.setattr(shuffle, "BYTES_SAVED", 1)
    assert all_months(tmp_path) == usual[1]
    assert len(list((tmp_path / "near" / "2024-10" / "bands").glob("*.arrow"))) == 4
    monkeypatch.setattr(shuffle, "files_saved", lambda rows: 1 << 20)
    shutil.rmtree(tmp_path / "near")
    shutil.rmtree(tmp_path / "exact")
    for name in MONTHS:
        shutil.rmtree(tmp_path / name)
    assert all_months(tmp_path) == usual[1]
    assert len(list((tmp_path / "near" / "2024-10" / "bands").glob("*.arrow"))) == 8, "a file for each part"


def test_a_run_that_is_killed_while_it_saves_resumes(
    tmp_path: Path, usual: tuple[Path, dict[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of compaction, and between the files and the index that names them."""
    monkeypatch.setattr(shuffle, "BYTES_SAVED", 2000)
    recipe = month(tmp_path, "2024-8")
    add, seen = Journal.add, Counter[str]()

    def killed(self: Journal, task: str, result: dict[str, object]) -> None:
        add(self, task, result)  # type: ignore[arg-type]
        seen["regrouped"] += "-regroup-" in str(result.files)
        if seen["regrouped"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "add", killed)
        go(recipe, tmp_path / "2024-8")
    assert not list((tmp_path / "near").glob("*/*/index.json"))

    def full(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("gristmill.pipeline.shuffle.saved_index.write_index", full)
        go(recipe, tmp_path / "2024-8")
    _, anew = go(recipe, tmp_path / "2024-8")
    assert not anew["minhash_dedup", "map"] or not anew["exact_dedup", "map"], "finished rounds are not done again"
    for name in MONTHS[1:]:
        go(month(tmp_path, name), tmp_path / name)
    assert {name: [text for _, text in written(tmp_path / name)] for name in MONTHS} == usual[1]


def test_what_a_folder_of_indexes_lacks_is_said(tmp_path: Path) -> None:
    recipe = month(tmp_path, "2024-8")
    none = save(tmp_path / "none.yaml", recipe.read_text().replace(", save_index: near/2024-8", ""))
    with pytest.raises(RecipeError, match=r"near/+bands holds no saved index"):
        go(none, tmp_path / "none")
    go(recipe, tmp_path / "2024-8")
    renamed = none.read_text().replace("exact/2024-8", "exact/2024-9").replace("  crawl-2024-8:", "  other:")
    after = save(tmp_path / "after.yaml", renamed)
    summary, _ = go(after, tmp_path / "after")
    assert summary.record.to_json()["stages"][-1]["docs_in"] == 0, "one that saves elsewhere takes all that there are"
