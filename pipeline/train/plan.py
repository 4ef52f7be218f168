"""Plans of training: what `gristmill train` and `gristmill ablate` have in common, and the plan of one run. YAML to
checked settings; errors name file, line, field and a likely spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from gristmill.kernels.common.settings import PLACEMENT, Settings, did_you_mean
from gristmill.pipeline.json_types import JSON, Also
from gristmill.pipeline.recipe.plans import LoadedPlan, one_or_many, read_plan
from gristmill.pipeline.recipe.yaml_lines import Place
from gristmill.pipeline.recipe.yaml_settings import SettingsSource

if TYPE_CHECKING:
    from gristmill.mixing.curriculum.curriculum import Schedule
    from gristmill.trainer.run.settings import Training

EXAMPLE = "recipes/training/small_model.yaml"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
COUNT = re.compile(r"\d{1,20}(\.\d{1,20})?([eE]\+?\d{1,2})?")
ShapeNumbers = dict[str, Any]  # fields of `gristmill.trainer.model.shapes.DecoderShape`, which checks them
WORDS = ("shuffled", "as_written", "segments", "buckets")  # orders of rows that need no schedule
ADVISED = "advised"
OF_OPTIMIZER = ("rate", "weight_decay", "clip")


def _count_from(value: JSON) -> JSON:
    """5e8 is a text to YAML."""
    if not isinstance(value, str):
        return value
    if not COUNT.fullmatch(value):
        raise ValueError(f"a whole number was expected, such as 500_000_000 or 5e8, not {value!r}")
    count = Fraction(value)
    return int(count) if count.denominator == 1 else float(count)


def mix_from(value: JSON) -> JSON:
    """`web` is `{web: 1}`."""
    if not isinstance(value, str | dict) or not value:
        raise ValueError(f"the name of a set, or a mix {{set: weight}}, was expected, not {value!r}")
    return {value: 1.0} if isinstance(value, str) else value


def sets_from(value: JSON) -> JSON:
    """A folder is the one set."""
    return {"shards": value} if isinstance(value, str) else value


def _order_from(value: JSON) -> JSON:
    """One of `WORDS`, or a schedule of a recipe's `order` with all its settings."""
    if value in WORDS:
        return value
    from gristmill.mixing.curriculum.curriculum import Random
    from gristmill.stages.blend.order import AnySchedule
    from gristmill.stages.one_of import kinds_in

    kinds = kinds_in(AnySchedule)
    given = {value: None} if isinstance(value, str) else value
    if not isinstance(given, dict) or len(given) != 1:
        raise ValueError(f"one order was expected, as `NAME` or `{{NAME: {{...}}}}`, not {value!r}")
    [(name, settings)] = given.items()
    if name not in kinds:
        raise ValueError(f"no such order; {did_you_mean(str(name), [*WORDS, *kinds])}")
    try:
        schedule = kinds[name].model_validate(settings or {})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        message = fault["msg"].removeprefix("Value error, ")
        raise ValueError(f"{'.'.join([name, *map(str, fault['loc'])])}: {message}, not {fault['input']!r}") from error
    return WORDS[0] if isinstance(schedule, Random) else {name: schedule.model_dump(mode="json")}


Paths = Annotated[tuple[str, ...], BeforeValidator(one_or_many), Field(min_length=1), Also("string")]
Count = Annotated[int, BeforeValidator(_count_from), Field(gt=0), Also("string")]
Mix = Annotated[
    dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    BeforeValidator(mix_from),
    Field(min_length=1),
    Also("string"),
]
Order = Annotated[str | dict[str, Any], BeforeValidator(_order_from)]


def schedule_in(order: str | Mapping[str, Any]) -> Schedule | None:
    """The schedule that an order names; None: one of `WORDS`."""
    if isinstance(order, str):
        return None
    from gristmill.stages.blend.order import AnySchedule
    from gristmill.stages.one_of import kinds_in

    [(name, settings)] = order.items()
    schedule: Schedule = kinds_in(AnySchedule)[name].model_validate(settings)  # type: ignore[assignment]
    return schedule


class TextSet(Settings):
    """Held-out documents, scored in bits per byte."""

    files: Paths  # Parquet or JSON lines; globs
    text: Annotated[str, Field(description="the column with the text")] = "text"
    domain: Annotated[str | None, Field(description="a column whose values are reported apart")] = None
    cluster: Annotated[
        str | None, Field(description="a column (host, book) whose documents rise and fall together")
    ] = None
    most: Annotated[
        int | None, Field(ge=2, description="so many documents, by hash of their text; all unless given")
    ] = None
    unwrap: Annotated[
        bool,
        Field(description="each text in one line: a space for every run of white space, so that no line break counts"),
    ] = False


class Choices(Settings):
    """Multiple-choice questions (`gristmill.trainer.evaluation.multiple_choice` has the form), scored by the
    log-probability of the answers."""

    file: str  # JSON lines
    cluster: Annotated[
        Literal["question", "domain"], Field(description="what rises and falls together: put the passage into `domain`")
    ] = "question"
    score: Annotated[
        Literal["accuracy", "accuracy_by_byte", "accuracy_by_token", "bits_per_byte"],
        Field(description="bits per byte of the right answer tell small models apart sooner"),
    ] = "accuracy"


class Evaluation(Settings):
    """What a model is measured on."""

    texts: Annotated[dict[str, TextSet], Field(default_factory=dict, description="by name: held-out documents")]
    choices: Annotated[dict[str, Choices], Field(default_factory=dict, description="by name: multiple choice")]
    target: Annotated[str | None, Field(description="the name of one of texts or choices: what `patience` follows")] = (
        None
    )
    harness: Annotated[
        tuple[str, ...], Field(description="tasks of lm-evaluation-harness (the extra `harness`), at the end alone")
    ] = ()
    tokenizer: Annotated[
        str | None, Field(description="a tokenizer.json; unless given the one beside the first set's shards")
    ] = None
    every: Annotated[
        int | None, Field(ge=1, description="measured after so many updates too; at the end alone unless given")
    ] = None

    def check(self, file: SettingsSource) -> None:
        """Names that stand twice, and a target that is none of them."""
        for name in (*self.texts, *self.choices):
            if not NAME.fullmatch(name):
                place = ("evaluate", "texts" if name in self.texts else "choices", name)
                raise file.wrong(place, "letters, digits, '-', '_' and '.' were expected in a name")
        both = [name for name in self.choices if name in self.texts]
        if both:
            raise file.wrong(("evaluate", "choices", both[0]), "texts have this name already")
        self.check_named(file, "target", [*self.texts, *self.choices])

    def check_named(self, file: SettingsSource, field: str, names: list[str]) -> None:
        name = getattr(self, field)
        if name is not None and name not in names:
            raise file.wrong(
                ("evaluate", field), f"nothing that is evaluated is called {name}; {did_you_mean(name, names)}"
            )


class TrainingPlan(Settings):
    """How a run is trained: the fields of the trainer's `Training`, and short forms of some."""

    model_config = ConfigDict(extra="allow")

    rows_per_update: Annotated[int, Field(ge=1)] = 64  # of all ranks together
    rate: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="peak rate: `optimizer.rate`")] = None
    weight_decay: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False, description="of matrices: `optimizer.weight_decay`")
    ] = None
    clip: Annotated[
        float | None, Field(gt=0, allow_inf_nan=False, description="largest norm of all gradients: `optimizer.clip`")
    ] = None
    optimizer: Annotated[
        str | dict[str, Any] | None, Field(description="a name, or the optimizer's settings with its `name`")
    ] = None
    warmup: Annotated[float | None, Field(ge=0, lt=1, description="share of the updates: `schedule.warmup`")] = None
    schedule: Annotated[
        str | dict[str, Any] | None,
        Field(
            description="of the rate; `advised`: the one that goes with `order`; an ablation's protocol has one unless"
            " it is given"
        ),
    ] = None
    precision: Annotated[
        Literal["auto", "float32", "bf16", "fp16"], Field(description="auto: bf16 on a GPU, float32 elsewhere")
    ] = "auto"
    checkpoints: Annotated[
        int | None,
        Field(ge=1, json_schema_extra=PLACEMENT, description="written along a run, in place of `checkpoint_every`"),
    ] = None

    @property
    def more(self) -> dict[str, Any]:
        """The trainer's fields that have no short form."""
        return dict(self.model_extra or {})

    @property
    def peak(self) -> float | None:
        """The rate, where the plan says it."""
        return self.optimizer.get("rate") if isinstance(self.optimizer, dict) else self.rate

    def at_rate(self, rate: float) -> TrainingPlan:
        """The same at another peak rate."""
        if isinstance(self.optimizer, dict):
            return self.changed({"optimizer": {**self.optimizer, "rate": rate}})
        return self.changed({"rate": rate})

    def updates(self, tokens: int, row_length: int) -> int:
        """As many whole updates as come nearest, at least one: all runs of a plan have the same."""
        return max(1, round(tokens / (self.rows_per_update * row_length)))

    def changed(self, changes: Mapping[str, Any]) -> TrainingPlan:
        return TrainingPlan.model_validate({**self.model_dump(exclude_unset=True), **changes})


class RunPlan(Settings):
    """The keys of `train` and `ablate` alike."""

    name: str  # of the run or ablation, and of its folder
    out: str | None = None  # out/NAME beside the plan unless given
    description: str | None = None  # for the record
    order: Annotated[
        Order,
        Field(
            description="in which each set's rows are read: shuffled, as_written (the curriculum's), shuffled inside"
            " the curriculum's segments or buckets, or a schedule of a recipe's `order` by the rows' difficulty, such"
            " as {warm_up: {share: 0.1}}"
        ),
    ] = "shuffled"
    training: TrainingPlan = TrainingPlan()  # how a run is trained
    ranks: Annotated[
        int | None,
        Field(
            ge=1,
            json_schema_extra=PLACEMENT,
            description="processes of a run; `train`: one per GPU unless given, `ablate`: one",
        ),
    ] = None
    parallel: Annotated[
        Literal["auto"] | None,
        Field(
            json_schema_extra=PLACEMENT,
            description="auto chooses the fields of `training` that say how ranks share the work, unless given there",
        ),
    ] = None
    cards: Annotated[
        dict[str, Any] | None,
        Field(
            json_schema_extra=PLACEMENT,
            description="of parallel: auto, what is not to be measured: count, per_host, memory_gb, host_memory_gb",
        ),
    ] = None

    def check(self, file: SettingsSource) -> None:
        """What is wrong whatever the command."""
        if not NAME.fullmatch(self.name):
            raise file.wrong(("name",), f"letters, digits, '-', '_' and '.' were expected, not {self.name!r}")
        if self.cards is not None and self.parallel is None:
            raise file.wrong(("cards",), "are for `parallel: auto`, which is missing")
        check_training(file, self.training, self.order, "training")


class TrainPlan(RunPlan):
    """A training run as a person writes it down."""

    sets: Annotated[
        dict[str, str],
        BeforeValidator(sets_from),
        Field(min_length=1, description="a folder of token shards, or several by name; a run's folder works too"),
        Also("string"),
    ]
    mix: Annotated[
        Mix | None, Field(description="what each set gives, in shares of tokens; as many as it has unless given")
    ] = None
    model: Annotated[
        str | ShapeNumbers,
        Field(description="a shape's name (10m to 8b) or its numbers; or a folder or hub id of the Llama family"),
    ]
    tokens: Annotated[
        Count | None, Field(description="of the whole run, padding counted; or give training.updates")
    ] = None
    evaluate: Evaluation = Evaluation(texts={}, choices={})  # what the model is measured on
    keep_checkpoints: Annotated[bool, Field(description="after the end too")] = False


Loaded = LoadedPlan[TrainPlan]


def load(path: Path) -> Loaded:
    """A checked plan; RecipeError says where it is wrong."""
    file, data = read_plan(path, EXAMPLE, "name, sets, model and training")
    plan: TrainPlan = file.settings(TrainPlan, data, ())
    plan.check(file)
    plan.evaluate.check(file)
    if ("updates" in plan.training.more) == (plan.tokens is not None):
        raise file.wrong(("training",), "either `tokens` or `training.updates` was expected: how long the run is")
    for name in plan.mix or {}:
        if name not in plan.sets:
            raise file.wrong(("mix", name), f"no set is called {name}; {did_you_mean(name, plan.sets)}")
    if "unlocking" in plan.training.more and (len(plan.mix or plan.sets) > 1 or "order" in plan.model_fields_set):
        raise file.wrong(("training", "unlocking"), "opens the buckets of one set, and is its order: give no other")
    check_patience(file, plan.training, plan.evaluate, plan.evaluate.every is not None, "evaluate.every")
    return LoadedPlan(plan, file)


def check_training(file: SettingsSource, asked: TrainingPlan, order: Any, *place: str) -> None:
    """Names, and settings that are given twice."""
    from gristmill.trainer.run.settings import Training

    known = [*TrainingPlan.model_fields, *(field.name for field in fields(Training))]
    for name in asked.more:
        if name not in known:
            file.complain((*place, name), f"no such field; {did_you_mean(name, known)}")
    file.say_all()
    if isinstance(asked.optimizer, dict):
        for name in OF_OPTIMIZER:
            if getattr(asked, name) is not None:
                raise file.wrong((*place, name), f"belongs to `optimizer`, which has settings: {{{name}: ...}} there")
    if isinstance(asked.schedule, dict) and asked.warmup is not None:
        raise file.wrong((*place, "warmup"), "belongs to `schedule`, which has settings: {warmup: ...} there")
    if isinstance(asked.schedule, str) and asked.schedule != ADVISED:
        hint = f"`{ADVISED}`, or settings such as {{kind: {asked.schedule}}}, were expected"
        raise file.wrong((*place, "schedule"), f"{hint}, not {asked.schedule!r}")
    if asked.schedule == ADVISED and isinstance(order, str) and order != "shuffled":
        raise file.wrong(
            (*place, "schedule"),
            f"shards do not say which schedule `order: {order}` follows; name it in `order`, or give the rates",
        )
    if asked.checkpoints is not None and "checkpoint_every" in asked.more:
        raise file.wrong((*place, "checkpoints"), "stands beside checkpoint_every; leave one of them out")


def check_patience(
    file: SettingsSource, asked: TrainingPlan, evaluate: Evaluation, on_the_way: bool, needs: str
) -> None:
    """`patience` follows measurements of the target."""
    if asked.more.get("patience") is None:
        return
    if evaluate.target is None:
        names = ", ".join([*evaluate.texts, *evaluate.choices]) or "nothing is evaluated"
        raise file.wrong(("training", "patience"), f"follows `evaluate.target`, which is missing: one of {names}")
    if not on_the_way:
        raise file.wrong(("training", "patience"), f"follows measurements on the way, and there are none: give {needs}")


def facts_of(
    asked: TrainingPlan,
    updates: int,
    on_gpu: bool,
    *,
    order: str | Mapping[str, Any] = "shuffled",
    rate: float | None = None,
    schedule: Mapping[str, Any] | None = None,
    checkpoints: int | None = None,
    seed: int | None = None,
    data_seed: int | None = None,
) -> dict[str, Any]:
    """What `gristmill.trainer.run.settings.Training.from_facts` reads. `rate` and `schedule` are those of a plan that
    gives none, `checkpoints` how many are written where it does not say."""
    facts = {**asked.more, "updates": updates, "rows_per_update": asked.rows_per_update}
    facts |= {name: given for name, given in (("seed", seed), ("data_seed", data_seed)) if given is not None}
    rates = dict(asked.schedule) if isinstance(asked.schedule, dict) else dict(schedule or {})
    scheduled = schedule_in(order) if asked.schedule == ADVISED else None
    if scheduled is not None and scheduled.rates is not None:
        decay, floor = scheduled.rates
        rates |= {"kind": "stable", "decay": decay, "floor": floor, "fall": "linear"}
    if asked.warmup is not None:
        rates["warmup"] = asked.warmup
    if rates:
        facts["schedule"] = rates
    peak = asked.rate if asked.rate is not None else rate
    if isinstance(asked.optimizer, dict):
        facts["optimizer"] = {**({"rate": rate} if rate is not None else {}), **asked.optimizer}
    elif peak is not None or asked.optimizer or asked.weight_decay is not None or asked.clip is not None:
        facts["optimizer"] = _optimizer(asked, peak)
    facts["precision"] = ("bf16" if on_gpu else "float32") if asked.precision == "auto" else asked.precision
    count = asked.checkpoints if asked.checkpoints is not None else checkpoints
    if count is not None and "checkpoint_every" not in facts:
        facts["checkpoint_every"] = max(1, updates // count)
        facts.setdefault("keep", max(2, facts.get("average", 1)))
    return facts


def _optimizer(asked: TrainingPlan, rate: float | None) -> dict[str, Any]:
    """From the short forms; what Muon leaves to AdamW (embedding, head, norms) follows the plan too."""
    name = asked.optimizer if isinstance(asked.optimizer, str) else "adamw"
    shared: dict[str, Any] = {"weight_decay": 0.1 if asked.weight_decay is None else asked.weight_decay}
    if rate is not None:
        shared["rate"] = rate
    settings = {"name": name, **shared, "clip": 1.0 if asked.clip is None else asked.clip}
    betas = {"betas": [0.9, 0.95]}
    return settings | (betas if name == "adamw" else {"adamw": shared | betas})


def training_from(source: SettingsSource, facts: Mapping[str, Any], *place: str) -> Training:
    """RecipeError names what the trainer would refuse."""
    from gristmill.trainer.run.settings import Training

    try:
        return Training.from_facts(facts)
    except (ValueError, TypeError) as error:
        where, what = place_in(str(error), place)
        raise source.wrong(where, what) from error


def place_in(message: str, place: Place = ("training",)) -> tuple[Place, str]:
    """Where `training.guard.windov: no such field` stands in a plan, and what is wrong there; `zero 2 ...` is
    `training.zero`."""
    from gristmill.trainer.run.settings import Training

    named, _, what = message.partition(": ")
    steps = named.split(" ")[0].split(".")
    if steps[0] != "training" or not what:
        steps, what = ["training"], message
    if len(steps) == 1:
        steps += [word for word in [what.split(" ")[0]] if word in {field.name for field in fields(Training)}]
    return (*place, *steps[1:]), what
