"""`gristmill maintain schema`: the JSON schemas of recipes and plans."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from gristmill.pipeline.cli.command import UPKEEP, Command
from gristmill.pipeline.json_types import JSONObject


class Schema(StrEnum):
    """What there is a JSON schema of: recipes, and plans of these commands."""

    RECIPE = "recipe"
    TRAIN = "train"
    ABLATE = "ablate"
    JUDGE_TRAIN = "judge-train"
    JUDGE_LABEL = "judge-label"
    JUDGE_RATE = "judge-rate"


def schema(
    of: Annotated[
        Schema,
        typer.Argument(help="recipe, or the command whose plans it is of"),
    ] = Schema.RECIPE,
) -> None:
    """Print the JSON schema of recipes and plans, for editors."""
    print(json.dumps(schema_of(of.value), indent=1))


def schema_of(what: str) -> JSONObject:
    """The JSON schema of recipes, or of a command's plans."""
    from gristmill.kernels.common.settings import Settings
    from gristmill.pipeline.ablate.plan import AblationPlan
    from gristmill.pipeline.judging.judge_plan import JudgePlan
    from gristmill.pipeline.judging.labelling import LabelPlan
    from gristmill.pipeline.judging.medu import RatePlan
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.train.plan import TrainPlan

    if what == "recipe":
        return recipes.schema()
    plans: dict[str, type[Settings]] = {
        "train": TrainPlan,
        "ablate": AblationPlan,
        "judge-train": JudgePlan,
        "judge-label": LabelPlan,
        "judge-rate": RatePlan,
    }
    described = plans[what].model_json_schema()
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Plan of gristmill {what.replace('-', ' ')}",
    }
    return {**described, **head}


COMMAND = Command(schema, UPKEEP, ("maintain schema > recipe.schema.json", "maintain schema train > train.schema.json"))
