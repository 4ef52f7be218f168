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
import os, signal, time
from pathlib import Path
from gristmill.stages.extract.stage import Extract
from gristmill.stages.read.html import Html
from gristmill.stages.stage import Annotate


class Fickle(Html):
    '''Reads its file once, for the data. Read again, for the report, it does something else.'''

    second: str
    marks: str

    def read(self, file, origin):
        mark = Path(self.marks) / self.second
        again = mark.exists()
        mark.touch()
        if again and self.second == "raises":
            raise KeyError("no second time")
        if again and self.second == "has no memory":
            raise MemoryError
        if again and self.second == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if again and self.second == "hangs":
            time.sleep(600)
        yield from super().read(file, origin)
        if self.second == "is gone":
            Path(file.name).unlink()


class Impatient(Extract):
    patience = 2.0


class Vandal(Annotate):
    '''Spoils what a rule left for the report.'''

    adds = ("done",)
    rejects: str

    def annotate(self, batch):
        for path in Path(self.rejects).glob("*.parquet"):
            path.write_bytes(b"no table")
        return {"done": batch.column("uid")}
"""
FAULTS = ("raises", "has no memory", "dies", "hangs", "is gone", "is well")
PAGE = "<html><body><p>A page about the old mill and its river, long enough to be taken for text. {}</p></body></html>"


def recipe(folder: Path) -> Path:
    (folder / "fickle.py").write_text(FICKLE)
    (folder / "marks").mkdir()
    sources = []
    for number, fault in enumerate(FAULTS):
        (folder / f"in{number}").mkdir()
        (folder / f"in{number}" / "page.html").write_text(PAGE.format(fault))
        reader = f"{{path: in{number}, second: {fault}, marks: '{folder / 'marks'}'}}"
        sources.append(
            f"  s{number}: {{'fickle.py:Fickle': {reader}, stages: ['fickle.py:Impatient': {{name: e{number}}}]}}\n"
        )
    (folder / "in").mkdir()
    (folder / "in" / "short.jsonl").write_text('{"text": "Short."}')
    sources.append("  short: {jsonl: {path: in}}\n")
    vandal = f"'fickle.py:Vandal': {{rejects: '{folder / 'out' / 'stages' / 'keep_where' / 'rejects'}'}}"
    return save(
        folder / "r.yaml",
        f"name: r\nsources:\n{''.join(sources)}stages: [keep_where: {{signal: words, at_least: 5}}, exact_dedup, {vandal}, write]\n",
    )


def test_a_page_that_does_not_survive_its_second_reading_costs_the_report_alone(tmp_path: Path) -> None:
    file, out = recipe(tmp_path), tmp_path / "out"
    summary, _ = go(file, out, workers=2)
    assert summary.record.done
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    texts = [row for path in (out / "write").glob("*.parquet") for row in pq.read_table(path)["text"].to_pylist()]
    assert len(texts) == len(FAULTS)
    reports = [json.loads((out / "stages" / f"e{n}" / "report.json").read_text()) for n in range(len(FAULTS))]
    assert [len(report["pages"]) for report in reports] == [0, 0, 0, 0, 0, 1]
    reasons = [" ".join(report.get("not_shown", [])) for report in reports]
    for reason, words in zip(
        reasons,
        ("no second time", "MemoryError", "killed its worker", "took too long", "No such file", ""),
        strict=True,
    ):
        assert words in reason if words else not reason
    rules = json.loads((out / "stages" / "keep_where" / "report.json").read_text())
    assert sum(rules["dropped"].values()) == 1 and not rules["samples"]
    assert rules["not_shown"][0].startswith("rejects: ")
    page = (out / "report.html").read_text()
    assert page.count("Not shown: pages:") == 5
    (tmp_path / "in4" / "page.html").write_text(PAGE.format(FAULTS[4]))
    again, anew = go(file, out, workers=2)  # tries again, but not what nothing survives
    assert again.record.done
    assert sorted(name for name, kind in anew if kind == "pages") == ["s0", "s1", "s4"]
    assert {kind for _, kind in anew} == {"pages", "rules"}  # a rule's file is written again


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
