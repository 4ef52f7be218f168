"""A part whose documents kill whatever works on it keeps one worker busy; the others go on with theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.runs import go, lines, save, written

pytestmark = pytest.mark.run

DEADLY = """
import os, time
from pathlib import Path
from gristmill.stages.stage import Applied, Rewrite, Verdict

class Deadly(Rewrite):
    def rewrite(self, batch):
        for text in batch["text"].to_pylist():
            with Path({log!r}).open("a") as log:
                log.write(f"{{time.time()}} {{text}}\\n")
            if "CULPRIT" in text:
                os._exit(7)
        time.sleep(0.3)
        return Applied(batch, Verdict.keep(len(batch)))
"""
OTHERS = 16


def test_a_part_that_kills_again_and_again_idles_nobody_else(tmp_path: Path) -> None:
    """Two culprits, four deaths of children and one of a worker; meanwhile the other worker does all other parts."""
    lines(tmp_path / "docs/a.jsonl", [f"bad {n}{' CULPRIT' if n in (3, 11) else ''}" for n in range(20)])
    for number in range(OTHERS):
        lines(tmp_path / f"docs/b{number:02}.jsonl", [f"good {number} {n}" for n in range(5)])
    log = tmp_path / "log"
    save(tmp_path / "deadly.py", DEADLY.format(log=str(log)))
    recipe = save(
        tmp_path / "r.yaml",
        "name: r\nparts: {files: 1}\nsources: {docs: {jsonl: {path: docs}}}\nstages: ['deadly.py:Deadly', write]\n",
    )
    go(recipe, tmp_path / "out", workers=2)
    texts = [text for _, text in written(tmp_path / "out")]
    assert len(texts) == 18 + 5 * OTHERS and not any("CULPRIT" in text for text in texts)
    counts = json.loads((tmp_path / "out/stages/deadly/report.json").read_text())
    assert counts["quarantined"] == 2 and counts["kept"] == len(texts)
    seen = [(float(line.split()[0]), line.split(maxsplit=1)[1]) for line in log.read_text().splitlines()]
    first_death = min(at for at, text in seen if "CULPRIT" in text)
    bad_end = max(at for at, text in seen if text.startswith("bad"))
    ends = {text.split()[1]: at for at, text in seen if text.startswith("good")}
    meanwhile = [number for number, at in ends.items() if first_death < at < bad_end]
    assert len(ends) == OTHERS and len(meanwhile) >= OTHERS - 4, (first_death, bad_end, ends)
