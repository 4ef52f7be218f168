"""The child that tries a part again after it killed its worker."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.pipeline.recipe.registry import spec_of
from gristmill.pipeline.store.partitions import new_part, write_table
from gristmill.pipeline.store.records import MapTask, Phase, RejectsSettings, RuleSpec
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.isolation import command, run_isolated
from gristmill.pipeline.tasks.map_task import run_map_task
from gristmill.stages import Sample

pytestmark = pytest.mark.run

THEIRS = ("pipeline", "stages", "kernels")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's who has packages of our names, and a module of his own."""
    folder = tmp_path / "shell"
    for name in THEIRS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the user')\n")
    (folder / "helper_of_mine.py").write_text("LIMIT = 3\n")
    monkeypatch.chdir(folder)
    return folder


def rule_task(folder: Path) -> MapTask:
    store = Store(str(folder))
    rows = {"uid": pa.array([1, 1 << 63, 2], pa.uint64()), "url": pa.nulls(3, pa.string()), "text": ["a", "b", "c"]}
    facts = write_table(store, "documents.parquet", pa.table(rows))
    part = replace(new_part("k", "s", 3, 3, facts, []), node="a")
    rules = (RuleSpec(spec_of(Sample(rate=0.5), "sample"), {}, []),)
    phase = Phase("0" * 32, "a", (), rules, documents=True, beside=False, measured_again={}, texts_kept=[])
    return MapTask(
        task="0" * 32,
        node="a",
        key="k",
        source="s",
        out=str(folder),
        part=part,
        phases=(phase,),
        rejects=RejectsSettings(1.0, True),
        batch_bytes=1 << 20,
        cost=3,
    )


def test_it_takes_our_packages_wherever_it_is_started(shell: Path, tmp_path: Path) -> None:
    result = run_isolated(run_map_task, rule_task(tmp_path / "out"), None, None, print)
    assert result.phases[0] is not None
    count = result.phases[0].counts["sample"]
    assert (count.docs_in, count.quarantined) == (3, 0) and count.kept + sum(count.dropped.values()) == 3


def test_it_still_finds_modules_of_the_user(shell: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "kept_elsewhere.py").write_text("NAME = 'elsewhere'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    start = command(str(tmp_path))
    start[3] = start[3].replace(
        "run_child(folder)",
        "import json, helper_of_mine, kept_elsewhere; from gristmill import stages; print(json.dumps([helper_of_mine.LIMIT, kept_elsewhere.NAME, stages.__file__]))",
    )
    done = subprocess.run(start, capture_output=True, text=True, check=True)
    limit, name, ours = json.loads(done.stdout)
    assert (limit, name) == (3, "elsewhere") and not Path(ours).is_relative_to(shell)
