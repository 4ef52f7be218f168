"""The plan of an ablation: YAML to checked settings. Errors name file, line, field and a likely spelling, as those of
recipes do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gristmill.kernels.common.paths import located
from gristmill.kernels.common.settings import PLACEMENT, Settings, did_you_mean, nearest
from gristmill.mixing.verdicts.verdict import CONFIDENCE, GUARD_BUDGET
from gristmill.pipeline.ablate.protocols import Protocol, protocol_from
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.json_types import JSON, Also
from gristmill.pipeline.look.token_sets import sets_of_cells
from gristmill.pipeline.recipe.plans import LoadedPlan, read_plan
from gristmill.pipeline.recipe.yaml_lines import YAML, Place
from gristmill.pipeline.recipe.yaml_settings import YamlFile
from gristmill.pipeline.train.plan import (
    NAME,
    Count,
    Evaluation,
    Mix,
    Order,
    Paths,
    RunPlan,
    ShapeNumbers,
    TextSet,
    TrainingPlan,
    check_patience,
    check_training,
    mix_from,
    sets_from,
)

EXAMPLE = "recipes/ablations/candidates.yaml"
CONTROL = "control"  # the name of its jobs
LEAST_ENTRIES = 259  # of a vocabulary: every byte has one, and three special tokens
LONGEST_CELL = 300
MANY_SEEDS = 1000
OF_AN_ARM = ("schedule", "average", "unlocking")  # of `training`, what an order may ask for


def _arm_from(value: JSON) -> JSON:
    """A set, or a mix, is an arm in the plan's order."""
    if isinstance(value, dict) and any(
        name in Arm.model_fields and not isinstance(below, int | float) for name, below in value.items()
    ):
        return value
    return {"mix": mix_from(value)}


def _arms_from(value: JSON) -> JSON:
    if not isinstance(value, dict) or not value:
        raise ValueError("at least one arm was expected, by name: the set, or the mix, that you ask about")
    return value


def _seeds_from(value: JSON) -> JSON:
    """5 is 0, 1, 2, 3, 4."""
    seeds = list(range(value)) if type(value) is int and 0 < value <= MANY_SEEDS else value
    if not isinstance(seeds, list | tuple):
        raise ValueError(f"how many (2 to {MANY_SEEDS:,}), or a list of seeds, was expected, not {value!r}")
    if len(seeds) < 2:
        raise ValueError("one seed says nothing about another; take at least 2, better 5")
    return seeds


Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 32)], ...], BeforeValidator(_seeds_from), Also("integer")]


class Corpus(Settings):
    """A set: shards, or documents that are tokenized and packed here, with one tokenizer for all."""

    shards: Annotated[str | None, Field(description="a folder of token shards, or a run that ends in `pack`")] = None
    documents: Annotated[
        Paths | None, Field(description="a folder, file or glob of JSON lines or Parquet, also .gz and .zst")
    ] = None
    text: Annotated[str, Field(description="the column with the text of the documents")] = "text"
    run: Annotated[
        str | None, Field(description="a run: its shards where they fit, else the documents that it keeps")
    ] = None

    @model_validator(mode="after")
    def is_one(self) -> Corpus:
        if sum(given is not None for given in (self.shards, self.documents, self.run)) != 1:
            raise ValueError("one of documents, run and shards was expected")
        if self.documents is None and "text" in self.model_fields_set:
            raise ValueError("text is the column of documents")
        return self


def _corpus_from(value: JSON) -> JSON:
    """`out/web` is `{shards: out/web}`."""
    return {"shards": value} if isinstance(value, str) else value


OneSet = Annotated[Corpus, BeforeValidator(_corpus_from), Also("string")]


class Arm(Settings):
    """What the runs of an arm, or of the control, read."""

    mix: Annotated[Mix | None, Field(description="a set, or {set: weight}; the control's unless given")] = None
    order: Annotated[Order | None, Field(description="of the mix's rows; the plan's `order` unless given")] = None
    training: Annotated[
        dict[str, Any],
        Field(default_factory=dict, description=f"what of `training` an order may ask for: {', '.join(OF_AN_ARM)}"),
    ]

    @property
    def weights(self) -> dict[str, float]:
        """The mix; a plan that was loaded has one in every arm."""
        return self.mix or {}


@dataclass(frozen=True)
class AlsoMix:
    """The shorter way to write an arm, for its JSON schema: weights by set."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        weights = {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}}
        return {"anyOf": [handler(core), weights]}


OneArm = Annotated[Arm, BeforeValidator(_arm_from), Also("string"), AlsoMix()]


class Evaluate(Evaluation):
    """What arms are measured on. `target` decides, `guard` must not rise, all others are reported."""

    texts: Annotated[dict[str, TextSet], Field(min_length=1)]  # by name: held-out documents
    target: Annotated[str, Field(description="the name of one of texts or choices")]
    guard: Annotated[str | None, Field(description="general text: the name of one of texts")] = None
    select: Annotated[
        str | None,
        Field(
            description="the name of one of texts or choices that picks the best arm, whose effect is told on the"
            " target; unless given, half of the target's clusters pick, by hash, and the other half tell"
        ),
    ] = None
    guard_budget: Annotated[float, Field(gt=0, lt=1, description="rise of its bits per byte, relative")] = GUARD_BUDGET
    points: Annotated[
        int,
        Field(
            ge=0,
            description="times at most that the target is measured on some documents as a run goes on, for curves;"
            " 0: only at the end, on all; `every` says it in updates",
        ),
    ] = 8
    point_documents: Annotated[int, Field(ge=2, description="of it that are looked at then")] = 256


class Base(Settings):
    """What all runs begin with: a model that is there (`model`), or one trained here (all the rest)."""

    model: Annotated[str | None, Field(description="a Hugging Face folder of the Llama family, or a hub id")] = None
    mix: Annotated[Mix | None, Field(description="sets that it is trained on")] = None
    shape: Annotated[str | ShapeNumbers | None, Field(description="a name (10m to 8b), or the numbers of one")] = None
    tokens: Count | None = None  # that it is trained on
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0  # of its weights and order
    training: TrainingPlan | None = None  # how it is trained; as the runs unless given


class Proxies(Settings):
    """Many runs of one seed, each on a mix drawn around the shares of tokens (RegMix): a table for `mix`."""

    runs: Annotated[int, Field(ge=2, le=9999, description="mixes beside the one by tokens")] = 512
    seed: Annotated[int, Field(ge=0, lt=1 << 32, description="of the mixes and of every run")] = 0
    max_epochs: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="of a set in a run, or in the run that it stands for")
    ] = 4.0


class AblationPlan(RunPlan):
    """An ablation as a person writes it down."""

    sets: Annotated[
        dict[str, OneSet],
        BeforeValidator(sets_from),
        Field(
            min_length=1, description="by name: {documents: FOLDER, text: COLUMN}, {run: FOLDER}, or a folder of shards"
        ),
        Also("string"),
    ]
    tokenizer: Annotated[
        str | None,
        Field(
            description="of sets that are packed here: a folder, tokenizer.json or hub id, or `train`; that of shards in"
            " the plan unless given, else `train`"
        ),
    ] = None
    vocabulary: Annotated[int, Field(ge=LEAST_ENTRIES, le=1 << 20, description="of a tokenizer that is trained")] = (
        32_768
    )
    row_length: Annotated[
        int | None,
        Field(ge=16, description="of sets that are packed here; that of shards in the plan unless given, else 1,024"),
    ] = None
    match: Annotated[
        Literal["tokens", "epochs"],
        Field(
            description="tokens: every run reads as many; epochs: every arm reads its data as often as the control its"
            " own, and `tokens` are the control's"
        ),
    ] = "tokens"
    control: Annotated[OneArm, Field(description="a set, or {set: weight}: what arms must beat")]
    arms: Annotated[
        dict[str, OneArm],
        BeforeValidator(_arms_from),
        Field(description="by name: the set, or the mix, that you ask about; or {mix, order, training}"),
    ]
    proxies: Proxies | None = None  # many small runs on drawn mixes, in place of arms
    base: Base | None = None  # what all runs begin with
    shape: Annotated[str | ShapeNumbers | None, Field(description="from_scratch: of every run")] = None
    protocol: Annotated[
        Protocol,
        BeforeValidator(protocol_from),
        Field(description="how new data come in, and how the rate falls"),
        Also("string"),
    ] = Protocol(name="llama3")
    tokens: Annotated[Count, Field(description="of each run, padding counted; whole updates, as many as come nearest")]
    seeds: Annotated[Seeds, Field(description="a number of them, or a list")] = (0, 1, 2, 3, 4)
    orders: Annotated[
        int, Field(ge=1, le=100, description="from_scratch: data orders of each seed; both variances are told")
    ] = 1
    second_rate: Annotated[
        float | None,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="another peak rate, such as 0.00001, at which all is run too; no arm is called better or worse"
            " where the two disagree",
        ),
    ] = None
    curve: Annotated[
        tuple[Annotated[float, Field(gt=0, le=10)], ...],
        Field(description="shares of `tokens` at which the control is run too, for the compute multiplier"),
    ] = ()
    hopeless: Annotated[
        int | None,
        Field(
            ge=2,
            description="after so many seeds and each one more, an arm whose interval leaves no room for a gain is given"
            " up; none is unless given",
        ),
    ] = None
    stands_for: Annotated[
        Count | None, Field(description="simulated epoching: the tokens of the large run that these runs stand for")
    ] = None
    evaluate: Evaluate  # what arms are measured on
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = CONFIDENCE  # of intervals
    keep_models: Annotated[bool, Field(json_schema_extra=PLACEMENT, description="keep what each run trained")] = False

    def arm(self, name: str) -> Arm:
        return self.control if name == CONTROL else self.arms[name]

    def order_of(self, arm: str, name: str) -> str | dict[str, Any]:
        """In which an arm reads a set: its own mix in its order, the rest in the control's."""
        owner = self.arm(arm) if name in self.arm(arm).weights else self.control
        return owner.order if owner.order is not None else self.order

    def training_of(self, arm: str) -> TrainingPlan:
        changes = self.arm(arm).training
        return self.training.changed(changes) if changes else self.training


Loaded = LoadedPlan[AblationPlan]


def load(path: Path, text: str | None = None) -> Loaded:
    """A checked plan, of its file or of a text that stands for it; RecipeError says where it is wrong."""
    file, data = read_plan(path, EXAMPLE, "sets, control, arms, tokens and evaluate", text)
    given = _with_places(file, data) if "proxies" in data else data
    if CONTROL not in given and not nearest(CONTROL, map(str, data)):
        raise file.wrong(
            (),
            "control is missing: without one nothing can be said of an arm. Name the set, or the mix, that arms"
            " must beat",
        )
    plan: AblationPlan = file.settings(AblationPlan, given, ())
    mix = plan.control.mix
    if mix is None:
        raise file.wrong(("control",), "`mix` is missing: the set, or {set: weight}, that arms must beat")
    arms = {name: arm if arm.mix else arm.model_copy(update={"mix": mix}) for name, arm in plan.arms.items()}
    plan = plan.model_copy(update={"arms": arms})
    plan.check(file)
    _check_names(file, plan)
    if plan.proxies is None:
        _check_arms(file, plan)
    _check_base(file, plan)
    if plan.match == "epochs" and (plan.proxies is not None or not plan.protocol.from_scratch):
        raise file.wrong(("match",), "epochs is for from_scratch: in other runs most of what is read is the control's")
    _check_repeats(file, plan)
    _check_training(file, plan)
    plan.evaluate.check(file)
    plan.evaluate.check_named(file, "guard", [*plan.evaluate.texts])
    if plan.evaluate.guard is not None and plan.evaluate.guard == plan.evaluate.target:
        raise file.wrong(("evaluate", "guard"), "the target cannot guard itself")
    plan.evaluate.check_named(file, "select", [*plan.evaluate.texts, *plan.evaluate.choices])
    if plan.evaluate.select is not None and plan.evaluate.select == plan.evaluate.target:
        raise file.wrong(
            ("evaluate", "select"), "is the target, which tells the effect; without `select` it is split in two halves"
        )
    if plan.stands_for is not None and plan.stands_for < plan.tokens:
        raise file.wrong(
            ("stands_for",), f"a run of {plan.stands_for:,} tokens is smaller than these of {plan.tokens:,}"
        )
    return LoadedPlan(plan, file)


def _check_training(file: YamlFile, plan: AblationPlan) -> None:
    """Of all runs, of the base, and what arms change."""
    of_base = plan.base.training if plan.base is not None else None
    everywhere: tuple[tuple[Place, TrainingPlan | None], ...] = (
        (("training",), plan.training), (("base", "training"), of_base)
    )  # fmt: skip
    for place, asked in everywhere:
        for name, what in (("updates", "`tokens` says how long a run is"), ("seed", "`seeds` says it")):
            if asked is not None and name in asked.more:
                raise file.wrong((*place, name), f"{what}; take this out")
    if plan.base is not None and plan.base.training is not None:
        check_training(file, plan.base.training, "shuffled", "base", "training")
        if "patience" in plan.base.training.more or "unlocking" in plan.base.training.more:
            raise file.wrong(("base", "training"), "a base is trained to its end, on shuffled rows")
    evaluated = plan.evaluate.points > 0 or plan.evaluate.every is not None
    check_patience(file, plan.training, plan.evaluate, evaluated, "evaluate.points")
    for place, name, arm in _arms(plan):
        for field in arm.training:
            if field not in OF_AN_ARM:
                what = f"is the same in all runs; of an arm's own are {', '.join(OF_AN_ARM)}"
                raise file.wrong((*place, "training", field), what)
        order = arm.order if arm.order is not None else plan.order
        asked = plan.training_of(name)
        check_training(file, asked, order, *((*map(str, place), "training") if arm.training else ("training",)))
        if "unlocking" in asked.more:
            where = (*place, "training", "unlocking") if "unlocking" in arm.training else ("training", "unlocking")
            if order != "shuffled":
                raise file.wrong(where, "is an order of its own: give no other")
            others = set(arm.weights) | (set() if plan.protocol.from_scratch else set(plan.control.weights))
            if len(others) > 1 or plan.stands_for is not None:
                raise file.wrong(where, "opens the buckets of one whole set, and this run reads several, or a share")
        if plan.protocol.before and order != (plan.control.order or plan.order):
            raise file.wrong(
                (*place, "order"), f"{plan.protocol.name} begins on the control's mix in its order, in all arms"
            )


def _arms(plan: AblationPlan) -> Iterable[tuple[Place, str, Arm]]:
    yield (CONTROL,), CONTROL, plan.control
    for name, arm in plan.arms.items():
        yield ("arms", name), name, arm


def _with_places(file: YamlFile, data: dict[str | int, YAML]) -> dict[str | int, YAML]:
    """A plan with proxies: its sets may be the cells of a run, and until mixes are drawn one set stands for each."""
    for name in (CONTROL, "arms", "seeds"):
        if name in data:
            raise file.wrong((name,), "`proxies` draws the mixes, and each is run once; take this out")
    sets = data.get("sets")
    if isinstance(sets, str):
        places = sets_of_cells(Path(located(sets, file.folder))).items()
        found: dict[str | int, YAML] = dict(places)
        sets = found
    first = str(next(iter(sets), "")) if isinstance(sets, dict) else "none"
    arms: dict[str | int, YAML] = {"mix-0001": first}
    return {**data, **({"sets": sets} if "sets" in data else {}), CONTROL: first, "arms": arms}


def _check_names(file: YamlFile, plan: AblationPlan) -> None:
    for name in plan.sets if plan.proxies is not None else ():
        if not name.strip() or len(name) > LONGEST_CELL or not name.isprintable():
            raise file.wrong(("sets",), f"the name of a cell, of up to {LONGEST_CELL} letters, was expected: {name!r}")
    named: dict[Place, Iterable[str]] = {
        ("sets",): plan.sets if plan.proxies is None else (),
        ("arms",): plan.arms,
    }
    for place, names in named.items():
        for name in names:
            if not NAME.fullmatch(name):
                raise file.wrong((*place, name), "letters, digits, '-', '_' and '.' were expected in a name")
    if CONTROL in plan.arms or "base" in plan.arms:
        raise file.wrong(
            ("arms", CONTROL if CONTROL in plan.arms else "base"), "this name is taken; call the arm something else"
        )
    mixes: dict[Place, dict[str, float]] = {place: arm.weights for place, _, arm in _arms(plan)}
    if plan.base is not None and plan.base.mix is not None:
        mixes["base", "mix"] = plan.base.mix
    for place, mix in mixes.items():
        for name in mix:
            if name not in plan.sets:
                raise file.wrong((*place, name), f"no set is called {name}; {did_you_mean(name, plan.sets)}")
    if len(set(plan.seeds)) < len(plan.seeds):
        raise file.wrong(("seeds",), "a seed stands twice")


def _check_arms(file: YamlFile, plan: AblationPlan) -> None:
    """Runs of one seed that read the same in the same order are the same run."""
    place_of: dict[object, str] = {}
    for place, name, arm in _arms(plan):
        order = arm.order if arm.order is not None else plan.order
        key = (_shares(arm.weights), repr(order), repr(sorted(arm.training.items())))
        if (other := place_of.setdefault(key, name)) != name:
            of = "the control" if other == CONTROL else f"arms.{other}"
            raise file.wrong(
                place,
                f"is the mix of {of} in the same order, so that their runs would be the same; take one of them out",
            )


def _shares(mix: dict[str, float]) -> frozenset[tuple[str, float]]:
    return frozenset((name, round(weight / sum(mix.values()), 9)) for name, weight in mix.items())


def _check_base(file: YamlFile, plan: AblationPlan) -> None:
    base = plan.base
    if plan.protocol.from_scratch:
        if base is not None:
            raise file.wrong(
                ("base",), "the protocol from_scratch begins with no base; take it out, or another protocol"
            )
        if plan.shape is None:
            raise file.wrong(("shape",), "from_scratch needs the shape of the model, such as 10m")
        if plan.training.peak is None:
            raise file.wrong(("training", "rate"), "from_scratch needs a peak rate, such as 0.001")
    elif base is None:
        raise file.wrong(
            ("base",),
            f"{plan.protocol.name} goes on with a nearly trained model: give base.model, or base.mix, shape and"
            " tokens to train one here",
        )
    elif (base.model is None) == (base.mix is None):
        raise file.wrong(
            ("base",), "either a model that is there (model), or one to train here (mix, shape, tokens) was expected"
        )
    elif base.model is not None:
        given = [name for name in ("shape", "tokens", "training") if getattr(base, name) is not None]
        if given:
            raise file.wrong(("base", given[0]), "says how a base is trained, but base.model is there already")
        if plan.training.peak is None:
            raise file.wrong(
                ("training", "rate"),
                "which rate had the base when it was left? An anneal goes on from it, and only falls",
            )
    else:
        for name in ("shape", "tokens"):
            if getattr(base, name) is None:
                raise file.wrong(("base", name), "is missing: the base is trained here")
        if (base.training or plan.training).peak is None:
            raise file.wrong(("training", "rate"), "is missing: the base is trained here")
    if not plan.protocol.from_scratch and plan.shape is not None:
        raise file.wrong(("shape",), "the base has a shape already; this one is for from_scratch")
    from gristmill.trainer.model.shapes import NAMED

    for place, shape in ((("shape",), plan.shape), (("base", "shape"), base.shape if base else None)):
        if isinstance(shape, str) and shape not in NAMED:
            raise file.wrong(place, f"no shape is named {shape!r}; there are {', '.join(NAMED)}")


def _check_repeats(file: YamlFile, plan: AblationPlan) -> None:
    """Orders, rates and lengths at which runs are repeated."""
    repeats = {"orders": plan.orders > 1, "second_rate": plan.second_rate is not None, "curve": bool(plan.curve)}
    for name, given in repeats.items():
        if given and plan.proxies is not None:
            raise file.wrong((name,), "`proxies` runs each mix once; take this out")
    if plan.orders > 1 and not plan.protocol.from_scratch:
        raise file.wrong(
            ("orders",),
            f"{plan.protocol.name} begins with one base, so that a seed decides the data order alone: ask for more"
            " seeds",
        )
    rate = plan.training.peak or (plan.base.training.peak if plan.base and plan.base.training else None)
    if plan.second_rate is not None and plan.second_rate == rate:
        raise file.wrong(("second_rate",), f"{plan.second_rate:g} is the rate of all runs already")
    if plan.curve and (len({*plan.curve, 1.0}) <= len(plan.curve) or len(plan.curve) < 2):
        raise file.wrong(
            ("curve",), "two or more different shares of `tokens` other than 1 were expected, such as [0.5, 0.75, 1.5]"
        )


def one_arm(loaded: Loaded, arm: str) -> Loaded:
    """Only this arm, beside the control."""
    if arm not in loaded.plan.arms:
        raise RecipeError(f"--only {arm}: no such arm; {did_you_mean(arm, loaded.plan.arms)}")
    return replace(loaded, plan=loaded.plan.model_copy(update={"arms": {arm: loaded.plan.arms[arm]}}))
