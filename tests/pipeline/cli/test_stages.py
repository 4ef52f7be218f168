"""`gristmill stages`: what it lists and shows is what the classes have, and it imports no engine."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gristmill.stages as stages
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe import catalog, registry
from gristmill.pipeline.recipe.meanings import REASONS, REASONS_OF

RULE = '''
from pydantic import Field
from gristmill.stages import Rule, above

class FewPrices(Rule):
    """Drop price lists. They teach little."""

    max_words: int = Field(default=9, ge=1, description="words that may be prices")
    limits = (above("words", "max_words", "too_many_prices"),)
'''


def test_every_stage_is_listed_once_with_its_first_sentence() -> None:
    groups = json.loads(CliRunner().invoke(app, ["stages", "--json"]).stdout)
    listed = {name: about for names in groups.values() for name, about in names.items()}
    assert len(listed) == sum(map(len, groups.values())) == len(registry.names()) > 60
    kinds = registry.built_in()
    assert listed == {name: catalog.first_sentence(kind.__doc__) for name, kind in kinds.items()}
    assert all(groups.values()) and "minhash_dedup" in groups["Deduplication and decontamination"]


@pytest.mark.parametrize("name", registry.names())
def test_a_stage_shows_all_its_settings_and_limits(name: str) -> None:
    facts = json.loads(CliRunner().invoke(app, ["stages", name, "--json"]).stdout)
    kind = registry.find(name)
    assert {each["name"] for each in facts["settings"]} | {"name"} == {*kind.model_fields} | {"name"}
    assert facts["about"] == inspect.cleandoc(kind.__doc__ or "")
    assert {limit.reason for limit in catalog.declared_limits(kind)} <= facts["reasons"].keys()
    assert all(facts["adds"].values()) and all(facts["reasons"].values())
    shown = CliRunner().invoke(app, ["stages", name], env={"COLUMNS": "200"}).stdout
    assert [word for word in (*facts["reasons"], *facts["adds"], *facts["reads"]) if word not in shown] == []
    assert "`" not in shown


def test_every_reason_that_is_listed_is_given_somewhere() -> None:
    rooms = (Path(stages.__file__).parent, Path(stages.__file__).parents[1] / "kernels")
    code = "\n".join(path.read_text(encoding="utf-8") for room in rooms for path in room.rglob("*.py"))
    listed = {reason for reasons in REASONS_OF.values() for reason in reasons.split()}
    assert len(listed) > 60 and listed == set(REASONS)
    assert [reason for reason in listed if reason.islower() and f'"{reason}"' not in code] == []
    assert set(REASONS_OF) <= set(registry.names())


BARE = """
from gristmill.stages import Applied, Map, Verdict

class Pass(Map):
    def apply(self, batch):
        return Applied(batch, Verdict.keep(len(batch)))
"""


def test_a_stage_without_a_word_or_a_setting_is_shown(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    shown = CliRunner().invoke(app, ["stages", f"{tmp_path}/bare.py:Pass"])
    assert shown.exit_code == 0 and shown.stdout.endswith("bare.py:Pass  works on a batch\n")


def test_a_stage_in_a_file_is_shown_as_others_are(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text(RULE)
    shown = CliRunner().invoke(app, ["stages", f"{tmp_path}/prices.py:FewPrices"]).stdout
    assert "Drop price lists" in shown and "words that may be prices" in shown and "at least 1" in shown
    assert "too_many_prices  words above max_words" in shown and "reads:  words" in shown


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("gopher_qualty", "did you mean gopher_quality?"),
        ("GopherQualityFilter", "did you mean gopher_quality?"),
        ("language_score", "is a signal; language adds it"),
        ("qqq", "`gristmill stages` lists all there are"),
    ],
)
def test_another_name_is_answered_with_what_was_meant(name: str, answer: str) -> None:
    said = CliRunner().invoke(app, ["stages", name]).exception
    assert isinstance(said, RecipeError) and said.exit_code == 2 and answer in str(said)


def test_no_engine_is_imported() -> None:
    script = (
        "import sys; from gristmill.pipeline.cli.stages import stages; stages(); stages('text_signals');"
        "print([m for m in ('dask', 'distributed', 'numba', 'gristmill.pipeline.engine') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")
