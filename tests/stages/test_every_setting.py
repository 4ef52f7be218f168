"""Every setting of every stage changes something: with another value of it, and nothing else changed, a small input has
another outcome.

A stage or a setting that is added without a line in the tables fails here, and so does one that the code no longer
looks at.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gristmill import stages
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.recipe import fingerprint, recipe as recipes
from gristmill.pipeline.run.alarms import alarms_of_stages
from gristmill.pipeline.store.counts import Counts, RunAccount
from gristmill.stages.others.blocks import OtherBlock
from gristmill.stages.stage import CannotRun, Reader, snake_case
from tests.stages.settings_of_edits import EDITS
from tests.stages.settings_of_globals import BLEND, DEDUP, TOKENS
from tests.stages.settings_of_judges import JUDGES
from tests.stages.settings_of_maps import READERS, RULES, TEXT
from tests.stages.settings_of_rights import RIGHTS
from tests.stages.settings_of_semantic import SEMANTIC
from tests.stages.settings_shown import Change, Elsewhere, Lab, Subject, settings_of

SUBJECTS = {
    subject.stage: subject
    for subject in [*READERS, *TEXT, *RULES, *RIGHTS, *DEDUP, *BLEND, *TOKENS, *JUDGES, *SEMANTIC, *EDITS]
}
ROOT = Path(__file__).parents[2]

# Of a class, not of a recipe: a stage of one's own sets it.
PATIENCE = Elsewhere(
    "tests/pipeline/recipe/test_bad_input.py::test_one_document_that_breaks_a_stage_is_put_aside_and_the_others_go_on"
)
SHOWN = [
    (name, setting)
    for name, subject in SUBJECTS.items()
    for setting, change in subject.changes.items()
    if isinstance(change, Change)
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("lab"))


@pytest.mark.parametrize("stage", sorted(stages.HOMES))
def test_each_setting_has_a_line_in_the_tables(stage: str) -> None:
    assert stage in SUBJECTS, f"{stage} is in no table"
    wanted = {name for name in settings_of(SUBJECTS[stage].kind) if name != "name"}
    assert set(SUBJECTS[stage].changes) == wanted


@pytest.fixture(scope="module")
def seen() -> dict[tuple[Any, ...], Any]:
    """Outcomes of stages as they are: many settings of a stage are changed beside the same one."""
    return {}


@pytest.mark.parametrize(("stage", "setting"), SHOWN, ids=[f"{stage}.{setting}" for stage, setting in SHOWN])
def test_the_setting_changes_the_outcome(stage: str, setting: str, lab: Lab, seen: dict[tuple[Any, ...], Any]) -> None:
    subject, change = SUBJECTS[stage], change_of(stage, setting)
    as_it_is, other = subject.both(lab, setting, change)
    key = (stage, as_it_is.model_dump_json(), id(change.given), change.see)
    if key not in seen:
        seen[key] = subject.look(lab, as_it_is, change)
        assert subject.look(lab, as_it_is, change) == seen[key], "an outcome that is another each time shows nothing"
    if change.refuses:
        with pytest.raises(CannotRun, match=change.refuses):
            subject.look(lab, other, change)
    else:
        assert subject.look(lab, other, change) != seen[key]


@pytest.mark.parametrize(("stage", "setting"), SHOWN, ids=[f"{stage}.{setting}" for stage, setting in SHOWN])
def test_work_is_done_anew_for_settings_that_change_it_and_for_no_others(stage: str, setting: str, lab: Lab) -> None:
    """Where work is done (`PLACEMENT`) is in no fingerprint, nor is where files lie."""
    as_it_is, other = SUBJECTS[stage].both(lab, setting, change_of(stage, setting))
    field = as_it_is.__class__.model_fields[setting.partition(".")[0]]
    placed = isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("placement"))
    prints = {
        fingerprint.identity_of(one, {"stage": stage, "settings": {}, "code": None}).fingerprint
        for one in (as_it_is, other)
    }
    assert len(prints) == (1 if placed or (isinstance(as_it_is, Reader) and setting == "path") else 2)


def change_of(stage: str, setting: str) -> Change:
    change = SUBJECTS[stage].changes[setting]
    assert isinstance(change, Change)
    return change


@pytest.mark.parametrize("stage", SUBJECTS)
def test_a_stage_goes_by_the_name_that_a_recipe_gives_it(stage: str, lab: Lab) -> None:
    subject: Subject = SUBJECTS[stage]
    settings = lab.filled(subject.base)
    unnamed = subject.kind(**settings)
    own = snake_case(unnamed.kind.__name__) if isinstance(unnamed, OtherBlock) else subject.kind.recipe_name()
    assert (unnamed.called, subject.kind(name="mine", **settings).called) == (own, "mine")


def test_the_tests_that_tables_name_are_there() -> None:
    named = {
        PATIENCE,
        *(
            change
            for subject in SUBJECTS.values()
            for change in subject.changes.values()
            if isinstance(change, Elsewhere)
        ),
    }
    assert len(named) >= 3
    for test in sorted(one.test for one in named):
        file, _, name = test.partition("::")
        functions = {
            node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, test


@pytest.mark.parametrize(("expected", "alarms"), [(0.5, 1), (0.7, 0)])
def test_a_stage_says_how_many_drops_are_no_alarm(expected: float, alarms: int, tmp_path: Path) -> None:
    source = f"from gristmill.stages import Sample\n\nclass Few(Sample):\n    expect_drops = {expected}\n"
    (tmp_path / "s.py").write_text(source)
    (tmp_path / "r.yaml").write_text(
        "name: r\nsources:\n  a: {jsonl: {path: in}}\nstages:\n  - s.py:Few: {rate: 0.4}\n"
    )
    account = RunAccount()
    account.of("few", "a").add(Counts(docs_in=10, kept=4, dropped=Counter({"not_sampled": 6})))
    assert len(alarms_of_stages(make_plan(recipes.load(tmp_path / "r.yaml")), account)) == alarms
