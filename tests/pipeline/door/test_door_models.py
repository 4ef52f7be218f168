"""Judges and ablations from Python: trained, opened again, shown, and errors that say what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import gristmill
from gristmill.pipeline.errors import RecipeError, RunFailed
from tests.pipeline.ablate.ablation_example import FAILS, write_example
from tests.pipeline.ablate.ablation_sets import make_plan

PROSE = "The river {} turns the mill, and the miller listens to the stones in the night."
LISTS = "Home | Login | Cart {} | Best price | Free shipping | All rights reserved"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "labelled.parquet"
    rows = [
        {"text": text.format(i), "label": label, "url": f"https://{label}{i % 8}.org/{i}"}
        for text, label in ((PROSE, "good"), (LISTS, "bad"))
        for i in range(40)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def plan_of(files: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "linear", "labelled": {"files": str(files), "good": ["good"]}, "hold_out": 0.3, **more}


def test_a_judge_is_trained_and_opened(labelled: Path, tmp_path: Path) -> None:
    judge = gristmill.train_judge(plan_of(labelled, head="prose", meaning="is it prose?"), tmp_path / "judge")
    good, bad = judge.score([PROSE, LISTS])["prose"]
    assert good > 0.8 and bad < 0.2 and judge.card["metrics"]["prose"]["auc"] == 1
    assert "is it prose?" in repr(judge.figures) and "held out whole" in judge._repr_html_()
    assert judge.explain(LISTS, most=3)[0][1] < 0 and repr(judge).endswith("linear: prose)")
    again = gristmill.open_judge(judge.folder)
    assert again.score([PROSE]) == {"prose": [good]}
    assert judge.score(pa.array([PROSE])) == judge.score((PROSE,)) == {"prose": [good]}
    for wrong, says in (
        (PROSE, r"a list of texts was expected, not one str: score\(\[text\]\)"),
        (None, "not one NoneType"),
        ([PROSE, None], "text 1 is None: leave it out"),
        ([3], "text 0 is int, no text"),
        (pa.array([PROSE, None]), "text 1 is null"),
        (pa.chunked_array([[PROSE], [None]]), "text 1 is null"),
    ):
        with pytest.raises(TypeError, match=says):
            judge.score(wrong)  # type: ignore[arg-type]
    table = gristmill.stages.Judge(judge_path=judge.folder)(pa.table({"text": [PROSE, LISTS]}))
    assert table["prose"].to_pylist() == pytest.approx([good, bad], abs=1e-6)


def test_a_plan_in_a_file_is_the_same_judge(labelled: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan_of(labelled, out="from_file")))
    file = gristmill.train_judge(tmp_path / "plan.yaml")
    assert file.folder == str(tmp_path / "from_file")
    code = gristmill.train_judge(plan_of(labelled), tmp_path / "from_code")
    assert file.score([PROSE]) == code.score([PROSE])


def test_what_is_wrong_with_a_judge_is_said(labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="hold: no such field; did you mean hold_out"):
        gristmill.train_judge(plan_of(labelled, hold=0.3), tmp_path / "judge")
    with pytest.raises(RecipeError, match="`out` is missing"):
        gristmill.train_judge(plan_of(labelled))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("")
    with pytest.raises(RecipeError, match="name a new folder"):
        gristmill.train_judge(plan_of(labelled), tmp_path / "taken")
    with pytest.raises(RecipeError, match="taken: no folder of a judge"):
        gristmill.open_judge(tmp_path / "taken")


def test_an_ablation_runs_from_a_dictionary_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    plan = yaml.safe_load(make_plan(tmp_path, tokens=2000).read_text())
    monkeypatch.chdir(tmp_path)
    ablation = gristmill.ablate(plan, "out", workers=0, only="noise", progress=False)
    assert ablation.verdict("noise") in ("adopt", "reject", "inconclusive")
    assert capfd.readouterr().err.count("started") == 0
    assert (ablation.out / "log.txt").read_text().count("done, loss") == 5  # the base, and two arms of two seeds
    assert repr(ablation).endswith("partial)")
    with pytest.raises(RunFailed, match="clean: not run"):
        ablation.verdict("clean")
    again = gristmill.ablate(plan, "out", workers=0, only="noise", progress=False)
    assert (again.out / "log.txt").read_text().count("is already done") == 5
    plan["arms"]["noise"] = "nois"
    with pytest.raises(RecipeError, match=r"<plan>:\d+: arms.noise.nois: no set is called nois; did you mean noise"):
        gristmill.ablate(plan, "out", workers=0)


def test_a_finished_ablation_shows_its_verdicts(tmp_path: Path) -> None:
    record = write_example(tmp_path, seeds=3)
    ablation = gristmill.open_ablation(tmp_path / "out")
    assert ablation.record["arms"] == record["arms"] and ablation.verdict("clean") == "adopt"
    shown = repr(ablation.verdicts)
    assert "adopt" in shown and "reject" in shown and "the guard holds" in shown and "<table" not in shown
    assert "(guard)" in repr(ablation.others) and "adopt" in ablation._repr_html_()
    assert len(ablation.others.data) == len(ablation.verdicts.data) == len(record["arms"])
    with pytest.raises(RunFailed, match="out of GPU memory"):
        ablation.verdict(FAILS)
    with pytest.raises(RecipeError, match="did you mean clean"):
        ablation.verdict("cleen")
    with pytest.raises(RecipeError, match="no ablation is here"):
        gristmill.open_ablation(tmp_path)


def test_the_demo_crawl_is_one_that_its_recipe_reads(tmp_path: Path) -> None:
    crawl = gristmill.demo_crawl(tmp_path / "crawl")
    assert sorted(path.name for path in crawl.iterdir()) == [
        "demo-00000.warc.gz", "demo-00001.warc.gz", "demo.yaml", "truth.json",
    ]  # fmt: skip
    assert gristmill.Recipe({"crawl": gristmill.stages.Warc(path=f"{crawl}/*.warc.gz")}, ["extract"]).checked.name
