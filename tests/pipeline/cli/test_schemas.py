"""JSON schemas for editors: they take the plans that ship, and refuse a typo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.cli.maintain_schema import Schema

jsonschema = pytest.importorskip("jsonschema")
RECIPES = Path(__file__).parents[3] / "recipes"
PLANS = {
    "train": ["training/small_model.yaml"],
    "ablate": ["ablations/candidates.yaml", "ablations/corpora.yaml"],
    "judge-train": ["judges/quality.yaml", "judges/distilled.yaml"],
    "judge-label": ["judges/labels.yaml"],
    "judge-rate": ["mixing/utilities.yaml"],
    "recipe": ["fineweb.yaml", "dclm.yaml", "multilingual.yaml"],
}


def validator(of: str) -> Any:
    printed = CliRunner().invoke(app, ["maintain", "schema", *([of] if of != "recipe" else [])])
    schema = json.loads(printed.output)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def places(data: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Of every mapping in a plan."""
    if isinstance(data, dict):
        return [path, *(place for key, value in data.items() for place in places(value, (*path, key)))]
    if isinstance(data, list):
        return [place for number, value in enumerate(data) for place in places(value, (*path, number))]
    return []


@pytest.mark.parametrize(("of", "name"), [(of, name) for of, names in PLANS.items() for name in names])
def test_a_schema_takes_what_ships(of: str, name: str) -> None:
    plan = yaml.safe_load((RECIPES / name).read_text())
    assert len(plan) > 2 and [error.message for error in validator(of).iter_errors(plan)] == []


@pytest.mark.parametrize("of", PLANS)
def test_a_schema_refuses_a_typo(of: str) -> None:
    plan = yaml.safe_load((RECIPES / PLANS[of][0]).read_text())
    check = validator(of)
    assert not check.is_valid({**plan, "nmae": plan.get("name")})
    without = {key: value for key, value in plan.items() if key != check.schema["required"][0]}
    assert not check.is_valid(without)


@pytest.mark.parametrize(
    ("of", "place"),
    [
        ("train", ("evaluate",)),
        ("ablate", ("evaluate",)),
        ("judge-train", ("training_set",)),
        ("judge-rate", ("model",)),
    ],
)
def test_a_schema_refuses_a_typo_further_in(of: str, place: tuple[str, ...]) -> None:
    plan = yaml.safe_load((RECIPES / PLANS[of][0]).read_text())
    assert place in places(plan)
    inside = plan
    for key in place:
        inside = inside[key]
    check = validator(of)
    assert check.is_valid(plan)
    inside["fiels"] = "x"
    assert not check.is_valid(plan)


def test_there_is_a_schema_of_each_kind_of_plan() -> None:
    assert {kind.value for kind in Schema} == set(PLANS)
