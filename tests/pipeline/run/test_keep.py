"""What a run keeps of its intermediates (`keep`) changes no result, and what is gone is made again when it is needed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.cli.maintain_verify import check_files
from gristmill.pipeline.errors import RecipeError, in_words
from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.tune import tune
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.plan.signals import pieces
from gristmill.pipeline.recipe.recipe import Step, load
from gristmill.pipeline.run import map_tasks
from gristmill.pipeline.run.run import Execution
from gristmill.pipeline.store.storage import Store
from gristmill.stages import Extract, GopherQuality, KeepWhere, TextSignals, Write
from gristmill.stages.stage import Annotate
from tests.pipeline.runs import go, lines, save, sentences, tree

STAGES = """
  - repair
  - gopher_quality: {min_words: MIN, min_stop_words: 0, min_mean_word_length: 2}
  - gopher_repetition: {max_top_2gram_share: 0.5, max_top_3gram_share: 0.5, max_top_4gram_share: 0.5}
  - minhash_dedup: {threshold: 0.7}
  - personal_data
  - write
"""


def recipe(folder: Path, keep: str, least: int = 12) -> Path:
    stages = STAGES.replace("MIN", str(least))
    text = f"name: kept\nkeep: {keep}\nsources: {{a: {{jsonl: {{path: in}}}}}}\nstages:{stages}"
    return save(folder / f"{keep}.yaml", text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("keep"), random.Random(4)
    for k in range(3):
        texts = sentences(chance, 60, 40)
        lines(folder / "in" / f"{k}.jsonl", [*texts, *texts[:9], "few words"])
    for keep in ("all", "signals", "nothing"):
        go(recipe(folder, keep), folder / f"out-{keep}")
    return folder


def written(out: Path) -> list[dict[str, Any]]:
    table = pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("write/*.parquet"))])
    return sorted(table.to_pylist(), key=lambda row: row["uid"])


def files(out: Path, *ends: str) -> int:
    return sum(path.name.endswith(ends) for path in out.rglob("*.*"))


@pytest.mark.parametrize("keep", ["signals", "nothing"])
def test_results_are_those_of_a_run_that_keeps_all(folder: Path, keep: str) -> None:
    rows = written(folder / f"out-{keep}")
    assert rows == written(folder / "out-all") and len(rows) > 50
    record, other = (json.loads((folder / f"out-{k}" / "run.json").read_text()) for k in (keep, "all"))
    dropped = [{s["name"]: s["dropped"] for s in r["stages"] if s["dropped"]} for r in (record, other)]
    assert dropped[0] == dropped[1] and len(dropped[0]) >= 2
    assert record["bytes_written"]["results"] == other["bytes_written"]["results"] > 0


def test_only_what_was_asked_for_is_left(folder: Path) -> None:
    assert files(folder / "out-all", ".documents.parquet") >= 1 and files(folder / "out-all", ".arrow") > 0
    assert files(folder / "out-signals", ".documents.parquet") == 0
    # Small tables that the stage itself reads in every run stay.
    assert files(folder / "out-signals", ".arrow") < files(folder / "out-all", ".arrow")
    assert files(folder / "out-signals", ".signals.parquet") >= 1
    assert [p for p in (folder / "out-nothing/partitions").rglob("*.*") if p.suffix != ".json"] == []
    for path in (folder / "out-signals/partitions").rglob("*.signals.parquet"):
        assert {"text", "html"}.isdisjoint(name.split("@")[0] for name in pq.read_schema(path).names)
    sizes = {k: json.loads((folder / f"out-{k}/run.json").read_text()) for k in ("all", "signals", "nothing")}
    assert sizes["all"]["disk_bytes"] > sizes["signals"]["disk_bytes"] > sizes["nothing"]["disk_bytes"] > 0


def test_results_have_the_same_names_whatever_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a global stage names follow what is stored between. Neither `keep` nor the size of the inputs, which say
    whether that is compressed, may change them."""
    lines(tmp_path / "a.jsonl", [f"text {number % 40} of some words" for number in range(60)])
    results, stored = {}, {}
    for keep in ("all", "signals", "nothing"):
        for little in (0, map_tasks.LITTLE_INPUT):
            monkeypatch.setattr(map_tasks, "LITTLE_INPUT", little)
            out = tmp_path / f"{keep}-{little}"
            text = f"name: r\nkeep: {keep}\nsources: {{a: {{jsonl: {{path: a.jsonl}}}}}}\nstages: [exact_dedup, write]"
            go(save(tmp_path / "r.yaml", text), out)
            results[out.name] = tree(out, "write")
            stored[keep, little > 0] = json.loads((out / "run.json").read_text())["bytes_written"]["intermediates"]
    assert all(found == results["all-0"] != {} for found in results.values())
    assert stored["nothing", True] > stored["nothing", False] == stored["all", True] == stored["all", False]
    assert stored["signals", True] == stored["signals", False]


def test_documents_of_a_run_that_was_broken_off_are_compressed_once_they_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines(tmp_path / "a.jsonl", [f"text {number % 40} of some words" for number in range(60)])

    def compressions() -> set[str]:
        [path] = (tmp_path / "out").rglob("*.documents.parquet")
        group = pq.read_metadata(path).row_group(0)
        return {group.column(number).compression for number in range(group.num_columns)}

    def go_on(keep: str) -> None:
        text = f"name: r\nkeep: {keep}\nsources: {{a: {{jsonl: {{path: a.jsonl}}}}}}\nstages: [exact_dedup, write]"
        go(save(tmp_path / "r.yaml", text), tmp_path / "out")

    with monkeypatch.context() as patched:
        patched.setattr(Execution, "work_global", broken_off)
        with pytest.raises(KeyboardInterrupt):
            go_on("nothing")
    assert compressions() == {"UNCOMPRESSED"}
    go_on("all")
    assert compressions() == {"ZSTD"}


def broken_off(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("keep", ["signals", "nothing"])
def test_a_run_again_does_nothing_and_its_files_are_whole(folder: Path, keep: str) -> None:
    out = folder / f"out-{keep}"
    before = {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*.*")
        if path.name != ".lock" and "journal" not in path.parts
    }
    summary, anew = go(folder / f"{keep}.yaml", out)
    assert summary.worked == 0 and not anew
    assert {
        path: path.stat().st_mtime_ns
        for path in out.rglob("*.*")
        if path.name != ".lock" and "journal" not in path.parts
    } == before
    files = check_files(Store(str(out)))
    assert files.there > 5 and files.faults == []


@pytest.mark.parametrize("keep", ["signals", "nothing"])
def test_another_threshold_and_another_file_are_what_they_are_where_all_is_kept(
    folder: Path, keep: str, tmp_path: Path
) -> None:
    (tmp_path / "in").symlink_to(folder / "in")
    outs = {k: tmp_path / f"out-{k}" for k in ("all", keep)}
    for k, out in outs.items():
        go(recipe(tmp_path, k), out)
        go(recipe(tmp_path, k, least=20), out)
    assert written(outs[keep]) == written(outs["all"]) and len(written(outs[keep])) > 30
    assert len(written(outs[keep])) < len(written(folder / "out-all"))
    (tmp_path / "in").unlink()
    (tmp_path / "in").mkdir()
    for path in sorted((folder / "in").iterdir()):
        (tmp_path / "in" / path.name).write_bytes(path.read_bytes())
    lines(tmp_path / "in" / "more.jsonl", sentences(random.Random(9), 30, 40))
    for k, out in outs.items():
        go(tmp_path / f"{k}.yaml", out)
    assert written(outs[keep]) == written(outs["all"])
    assert len(written(outs[keep])) > 60


def test_signals_that_stay_are_tuned_as_if_all_was_kept(folder: Path) -> None:
    one, other = (tune(RunFolder(folder / f"out-{k}"), ["gopher_quality.min_words=25"]) for k in ("signals", "all"))
    assert one.sources == other.sources and one.drops_after == other.drops_after
    assert one.total.newly_dropped > 5
    with pytest.raises(RecipeError, match="kept no signals"):
        tune(RunFolder(folder / "out-nothing"), ["gopher_quality.min_words=25"])


def test_the_report_of_signals_has_its_sliders(folder: Path) -> None:
    surveys = [json.loads(path.read_text()) for path in (folder / "out-signals").glob("partitions/*/survey.json")]
    assert surveys and any(survey["cuts"] for survey in surveys)
    assert not list((folder / "out-nothing").glob("partitions/*/survey.json"))
    assert "a document (results" in (folder / "out-nothing/report.html").read_text()


def test_a_story_that_needs_what_is_gone_says_so(folder: Path) -> None:
    [path] = sorted((folder / "out-nothing/stages/gopher_quality/rejects").glob("*.parquet"))[:1]
    uid = pq.read_table(path)["uid"][0].as_py()
    with pytest.raises(OSError) as caught:
        history(RunFolder(folder / "out-nothing"), uid=uid)
    assert "`keep` in the recipe" in in_words(caught.value)


def test_a_run_that_keeps_nothing_has_to_write_something(tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", ["words"])
    text = "name: n\nkeep: nothing\nsources: {a: {jsonl: {path: in.jsonl}}}\nstages: [gopher_quality]\n"
    with pytest.raises(RecipeError, match="no stage writes anything"):
        make_plan(load(save(tmp_path / "r.yaml", text)))


def test_only_a_gpu_cuts_where_nothing_is_kept(folder: Path) -> None:
    """Text lies on disk before a stage on a GPU, and after it only if costly work of the CPU follows."""

    class OnGpu(Annotate):
        costly: ClassVar[bool] = True
        adds: ClassVar[tuple[str, ...]] = ("score",)

        @property
        def gpu(self) -> bool:
            return True

        def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
            return {}

    stages = [Extract(), TextSignals(), GopherQuality(), OnGpu(), KeepWhere(signal="score", at_least=1), Write()]
    steps = [Step(stage, stage.called, folder, 1, at_once=True) for stage in stages]
    cut = [[step.called for step in piece] for piece in pieces(steps)]
    assert cut == [["extract", "text_signals", "gopher_quality"], ["on_gpu", "keep_where", "write"]]
    again = [[step.called for step in piece] for piece in pieces([*steps[3:4], *steps[:1]])]
    assert again == [["on_gpu"], ["extract"]]
