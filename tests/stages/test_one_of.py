"""A setting that is one of several kinds: by name or by itself, back from what it writes, and in the schema of editors."""

from __future__ import annotations

import json

import pytest

from gristmill.pipeline.recipe import recipe as recipes
from gristmill.stages import Mix, Order
from gristmill.stages.blend.methods import Given, Proportional, Temperature, Unimax
from gristmill.stages.blend.order import AnySchedule, Curriculum
from gristmill.stages.one_of import choices_in, kinds_in


@pytest.mark.parametrize(
    ("written", "method"),
    [
        ("unimax", Unimax()),
        ({"unimax": None}, Unimax()),
        ({"temperature": {"temperature": 2}}, Temperature(temperature=2)),
        ({"given": {"weights": {"a": 1}}}, Given(weights={"a": 1})),
    ],
)
def test_a_kind_is_written_by_its_name_or_given_itself(written, method):
    stage = Mix(method=written)
    assert stage.method == method and type(stage.method) is type(method) and stage == Mix(method=method)


def test_what_is_written_is_read_again():
    order = Order(
        by="hard", schedule="pacing", sources={"code": Curriculum(by="hard", schedule={"stages": {"stages": 2}})}
    )
    plain = order.model_dump()
    assert plain["schedule"] == {"pacing": {"power": 2.0, "start": 0.01, "until": 0.5}}
    assert plain["sources"]["code"]["schedule"] == {"stages": {"stages": 2}}
    assert json.loads(order.model_dump_json()) == plain and Order(**plain) == order
    assert Mix().method == Proportional() and Mix().model_dump()["method"] == {"proportional": {}}


def test_the_kinds_of_a_setting_are_known_by_name():
    [(field, (mark, kinds))] = choices_in(Order).items()
    assert (field, mark.noun, kinds) == ("schedule", "schedule", kinds_in(AnySchedule))
    assert [*kinds] == ["random", "ascending", "stages", "warm_up", "interleaved", "pacing", "steps", "anneal"]


def test_an_editor_is_told_each_kind_with_its_own_settings():
    definitions = recipes.schema()["$defs"]
    [names, *by_name] = definitions["mix"]["properties"]["method"]["anyOf"]
    assert names == {"enum": ["proportional", "unimax"]}  # the others cannot do without settings
    assert [one["required"] for one in by_name] == [[name] for name in choices_in(Mix)["method"][1]]
    utilimax = next(one for one in by_name if "utilimax" in one["properties"])
    assert utilimax["properties"]["utilimax"] == {"$ref": "#/$defs/Utilimax"} and not utilimax["additionalProperties"]
    assert definitions["Utilimax"]["required"] == ["utilities_file"]
    assert [*definitions["Utilimax"]["properties"]] == ["utilities_file", "noise", "scale", "aversion"]
