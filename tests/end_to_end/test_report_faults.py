"""A run whose data are done is done, whatever befalls the report."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.report_data import survey
from tests.pipeline.runs import go, save

pytestmark = pytest.mark.run

FICKLE = """
import os, signal
from pathlib import Path
from gristmill.stages import Annotate, Rule, above


class Fickle(Rule):
    '''Drops long texts. Asked where that shows, for the report, it does something else.'''

    limits = (above("words", 3, "long"),)
    deed: str

    def place(self, what, text):
        if self.deed == "raises":
            raise KeyError("no place")
        if self.deed == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return 0, 1


class Vandal(Annotate):
    '''Spoils what a rule left for the report.'''

    adds = ("done",)
    rejects: str

    def annotate(self, batch):
        for path in Path(self.rejects).glob("*.parquet"):
            path.write_bytes(b"no table")
        return {"done": batch.column("uid")}
"""
DEEDS = ("raises", "dies", "is well")


def recipe(folder: Path) -> Path:
    (folder / "fickle.py").write_text(FICKLE)
    sources = []
    for number, deed in enumerate(DEEDS):
        texts = [f"This text is too long for {deed}.", "This stays.", "Short."]
        (folder / f"in{number}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
        sources.append(
            f"  s{number}: {{jsonl: {{path: in{number}.jsonl}},"
            f" stages: ['fickle.py:Fickle': {{name: e{number}, deed: {deed}}}]}}\n"
        )
    vandal = f"'fickle.py:Vandal': {{rejects: '{folder / 'out' / 'stages' / 'keep_where' / 'rejects'}'}}"
    return save(
        folder / "r.yaml",
        f"name: r\nsources:\n{''.join(sources)}"
        f"stages: [keep_where: {{signal: words, at_least: 2}}, exact_dedup, {vandal}, write]\n",
    )


def test_samples_that_cannot_be_read_cost_the_report_alone(tmp_path: Path) -> None:
    file, out = recipe(tmp_path), tmp_path / "out"
    summary, _ = go(file, out, workers=2)
    assert summary.record.done
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    texts = [row for path in (out / "write").glob("*.parquet") for row in pq.read_table(path)["text"].to_pylist()]
    assert texts == ["This stays."]
    reports = [json.loads((out / "stages" / f"e{n}" / "report.json").read_text()) for n in range(len(DEEDS))]
    assert [sum(map(len, report["samples"].values())) for report in reports] == [1, 0, 1]
    assert ["killed its worker" in " ".join(report.get("not_shown", [])) for report in reports] == [False, True, False]
    rules = json.loads((out / "stages" / "keep_where" / "report.json").read_text())
    assert sum(rules["dropped"].values()) == 3 and not rules["samples"]
    assert rules["not_shown"][0].startswith("rejects: ")
    assert (out / "report.html").read_text().count("Not shown: rejects:") == 2


def test_a_survey_that_fails_costs_the_report_its_thresholds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise RunFailed("signals.parquet: no such file")

    (tmp_path / "in.jsonl").write_text('{"text": "Short."}\n{"text": "One that is long enough to stay."}')
    file = save(
        tmp_path / "r.yaml",
        "name: r\nsources:\n  pages: {jsonl: {path: in.jsonl}}\n"
        "stages: [keep_where: {signal: words, at_least: 5}, write]\n",
    )
    monkeypatch.setattr(survey, "survey", fails)
    summary, _ = go(file, tmp_path / "out", workers=1)
    assert summary.record.done
    assert "Not shown: thresholds: signals.parquet: no such file" in (tmp_path / "out" / "report.html").read_text()
    assert not list((tmp_path / "out" / "partitions").glob("*/survey.json"))
