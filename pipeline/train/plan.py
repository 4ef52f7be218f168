"""The plan of a training run: YAML to checked settings. `training` takes the trainer's own settings; errors name file,
line, field and a likely spelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gristmill.kernels.common.settings import Settings, did_you_mean
from gristmill.pipeline.ablate.plan import NAME, Choices, Count, Mix, ShapeNumbers, TextSet
from gristmill.pipeline.json_types import JSON, Also
from gristmill.pipeline.recipe.plans import LoadedPlan, read_plan
from gristmill.pipeline.recipe.yaml_settings import check_names

if TYPE_CHECKING:
    from gristmill.trainer.parallel.cards import Cards
    from gristmill.trainer.parallel.planner import Layout, Task
    from gristmill.trainer.run.settings import Training

EXAMPLE = "recipes/training/small_model.yaml"
Order = Literal["shuffled", "as_written", "segments", "buckets"]


def _sets_from(value: JSON) -> JSON:
    """A folder is the one set."""
    return {"shards": value} if isinstance(value, str) else value


class TrainEvaluation(Settings):
    """What the model is measured on, at the end and on the way."""

    texts: Annotated[dict[str, TextSet], Field(default_factory=dict, description="bits per byte of held-out documents")]
    choices: Annotated[dict[str, Choices], Field(default_factory=dict, description="multiple-choice questions")]
    harness: Annotated[
        tuple[str, ...], Field(description="tasks of lm-evaluation-harness (the extra `harness`), at the end alone")
    ] = ()
    every: Annotated[
        int | None,
        Field(ge=1, description="texts and choices after so many updates too; at the end alone unless given"),
    ] = None


class TrainPlan(Settings):
    """A training run as a person writes it down."""

    name: str  # of the run, and of its folder
    out: str | None = None  # out/NAME beside the plan unless given
    description: str | None = None  # for the record
    sets: Annotated[
        dict[str, str],
        BeforeValidator(_sets_from),
        Field(min_length=1, description="a folder of token shards, or several by name; a run's folder works too"),
        Also("string"),
    ]
    mix: Annotated[
        Mix | None, Field(description="what each set gives, in shares of tokens; as many as it has unless given")
    ] = None
    order: Annotated[
        Order,
        Field(
            description="of the rows of one set: shuffled, as written (the curriculum's), or shuffled inside the"
            " curriculum's segments or buckets"
        ),
    ] = "shuffled"
    model: Annotated[
        str | ShapeNumbers,
        Field(
            description="a shape's name (10m to 8b) or its numbers; a folder or hub id of the Llama family; or"
            " {upcycle: FOLDER, experts: {number: 8, active: 2}}, which makes experts of a dense one"
        ),
    ]
    tokens: Annotated[
        Count | None, Field(description="of the whole run, padding counted; or give training.updates")
    ] = None
    training: Annotated[dict[str, Any], Field(description="settings of the trainer (chapter Training)")]
    parallel: Annotated[
        Literal["auto"] | None,
        Field(
            description="auto chooses the fields of `training` that say how ranks share the work, unless given there"
        ),
    ] = None
    cards: Annotated[
        dict[str, Any] | None,
        Field(
            description="of parallel: auto, what is not to be measured: count, per_host, kind, memory_gb, tflops,"
            " link_gb_s, network_gb_s, host_memory_gb"
        ),
    ] = None
    evaluate: TrainEvaluation = TrainEvaluation(texts={}, choices={})  # what the model is measured on
    keep_checkpoints: Annotated[bool, Field(description="after the end too")] = False


Loaded = LoadedPlan[TrainPlan]


def training_of(loaded: Loaded, row_length: int, on_gpu: bool) -> Training:
    """The trainer's settings of these rows; RecipeError names what it would refuse."""
    from gristmill.trainer.run.settings import Training

    facts = dict(loaded.plan.training)
    if loaded.plan.tokens is not None:
        facts["updates"] = 1  # until rows_per_update is known to be one
    check_names(loaded.source, Training, facts, "training")
    rows = facts["rows_per_update"]
    if loaded.plan.tokens is not None and type(rows) is int and rows > 0:
        facts["updates"] = max(1, round(loaded.plan.tokens / (rows * row_length)))
    facts.setdefault("precision", "bf16" if on_gpu else "float32")
    try:
        return Training.from_facts(facts)
    except (ValueError, TypeError) as error:
        place, what = _place_in(str(error), facts)
        raise loaded.wrong(place, what) from error


def lay_out(loaded: Loaded, task: Callable[[Cards], Task], ranks: int, only_planned: bool) -> tuple[Layout, int]:
    """What `parallel: auto` chooses, and over how many ranks; RecipeError says why there is nothing to choose."""
    from gristmill.trainer.parallel.cards import cards_from
    from gristmill.trainer.parallel.planner import NoLayout, choose

    try:
        cards = cards_from(loaded.plan.cards or {}, ranks)
    except ValueError as error:
        place, _, what = str(error).partition(": ")
        raise loaded.wrong(tuple(place.split(".")), what) from error
    if cards.count != ranks and not only_planned:
        raise loaded.wrong(("cards",), f"count is {cards.count:,}, the run has {ranks:,}; --dry-run plans for others")
    try:
        return choose(task(cards)), cards.count
    except NoLayout as error:
        raise loaded.wrong(("parallel",), str(error)) from error


def load(path: Path) -> Loaded:
    """A checked plan; RecipeError says where it is wrong."""
    file, data = read_plan(path, EXAMPLE, "name, sets, model and training")
    plan: TrainPlan = file.settings(TrainPlan, data, ())
    if not NAME.fullmatch(plan.name):
        raise file.wrong(("name",), f"letters, digits, '-', '_' and '.' were expected, not {plan.name!r}")
    if ("updates" in plan.training) == (plan.tokens is not None):
        if plan.tokens is None:
            from gristmill.trainer.run.settings import Training

            check_names(file, Training, {"rows_per_update": 1, **plan.training}, "training", lacking=False)
        raise file.wrong(("training",), "either `tokens` or `training.updates` was expected: how long the run is")
    for name in plan.mix or {}:
        if name not in plan.sets:
            raise file.wrong(("mix", name), f"no set is called {name}; {did_you_mean(name, plan.sets)}")
    if len(plan.mix or plan.sets) > 1 and plan.order != "shuffled":
        raise file.wrong(("order",), f"several sets are shuffled into each other; {plan.order} is for one")
    if "unlocking" in plan.training and (len(plan.mix or plan.sets) > 1 or "order" in plan.model_fields_set):
        raise file.wrong(("training", "unlocking"), "opens the buckets of one set, and is its order: give no other")
    if plan.cards is not None and plan.parallel is None:
        raise file.wrong(("cards",), "are for `parallel: auto`, which is missing")
    both = [name for name in plan.evaluate.choices if name in plan.evaluate.texts]
    if both:
        raise file.wrong(("evaluate", "choices", both[0]), "texts have this name already")
    return LoadedPlan(plan, file)


def _place_in(message: str, facts: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Where `training.guard.windov: no such field` stands in the plan, and what is wrong there."""
    named, _, what = message.partition(": ")
    place = named.split(" ")[0].split(".")
    return (tuple(place), what) if place[0] == "training" and what else (("training",), message)
