"""The plan of an ablation: YAML to checked settings. Errors name file, line, field and a likely spelling, as those of
recipes do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gristmill.kernels.common.paths import located
from gristmill.kernels.common.settings import PLACEMENT, Settings, did_you_mean, nearest
from gristmill.mixing.verdicts.verdict import CONFIDENCE, GUARD_BUDGET
from gristmill.pipeline.ablate.protocols import Protocol, protocol_from
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.json_types import JSON, Also
from gristmill.pipeline.look.token_sets import sets_of_cells
from gristmill.pipeline.recipe.plans import LoadedPlan, one_or_many, read_plan
from gristmill.pipeline.recipe.yaml_lines import YAML, Place
from gristmill.pipeline.recipe.yaml_settings import YamlFile

EXAMPLE = "recipes/ablations/candidates.yaml"
ShapeNumbers = dict[str, Any]  # fields of `gristmill.trainer.model.shapes.DecoderShape`, which checks them
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
CONTROL = "control"  # the name of its jobs
LONGEST_CELL = 300
MANY_SEEDS = 1000
COUNT = re.compile(r"\d{1,20}(\.\d{1,20})?([eE]\+?\d{1,2})?")


def _mix_from(value: JSON) -> JSON:
    """`web` is `{web: 1}`."""
    if not isinstance(value, str | dict) or not value:
        raise ValueError(f"the name of a set, or a mix {{set: weight}}, was expected, not {value!r}")
    return {value: 1.0} if isinstance(value, str) else value


def _arms_from(value: JSON) -> JSON:
    if not isinstance(value, dict) or not value:
        raise ValueError("at least one arm was expected, by name: the set, or the mix, that you ask about")
    return value


def _count_from(value: JSON) -> JSON:
    """5e8 is a text to YAML."""
    if not isinstance(value, str):
        return value
    if not COUNT.fullmatch(value):
        raise ValueError(f"a whole number was expected, such as 500_000_000 or 5e8, not {value!r}")
    count = Fraction(value)
    return int(count) if count.denominator == 1 else float(count)


def _seeds_from(value: JSON) -> JSON:
    """5 is 0, 1, 2, 3, 4."""
    seeds = list(range(value)) if type(value) is int and 0 < value <= MANY_SEEDS else value
    if not isinstance(seeds, list | tuple):
        raise ValueError(f"how many (2 to {MANY_SEEDS:,}), or a list of seeds, was expected, not {value!r}")
    if len(seeds) < 2:
        raise ValueError("one seed says nothing about another; take at least 2, better 5")
    return seeds


Paths = Annotated[tuple[str, ...], BeforeValidator(one_or_many), Field(min_length=1), Also("string")]
Mix = Annotated[
    dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]],
    BeforeValidator(_mix_from),
    Field(min_length=1),
    Also("string"),
]
Count = Annotated[int, BeforeValidator(_count_from), Field(gt=0), Also("string")]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 32)], ...], BeforeValidator(_seeds_from), Also("integer")]


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


class Evaluate(Settings):
    """What arms are measured on. `target` decides, `guard` must not rise, all others are reported."""

    texts: Annotated[dict[str, TextSet], Field(min_length=1)]  # by name: held-out documents
    choices: Annotated[dict[str, Choices], Field(default_factory=dict)]  # by name: multiple-choice questions
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
    tokenizer: Annotated[
        str | None, Field(description="a tokenizer.json; unless given the one beside the control's shards")
    ] = None
    points: Annotated[
        int,
        Field(
            ge=0,
            description="times at most that the target is measured on some documents as a run goes on, for curves;"
            " 0: only at the end, on all",
        ),
    ] = 8
    point_documents: Annotated[int, Field(ge=2, description="of it that are looked at then")] = 256


class TrainingPlan(Settings):
    """How every run is trained; all runs alike."""

    rate: Annotated[
        float | None,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="peak rate; a run that goes on with a base trained here takes the base's",
        ),
    ] = None
    rows_per_update: Annotated[int, Field(ge=1)] = 64  # of all ranks together
    rows_per_step: Annotated[int | None, Field(ge=1, description="at a time; the largest that fits unless given")] = (
        None
    )
    optimizer: Literal["adamw", "muon"] = "adamw"  # for matrices of blocks; muon leaves the rest to adamw
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1  # of matrices
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # largest norm of all gradients
    warmup: Annotated[
        float | None, Field(ge=0, lt=1, description="share of the updates; the protocol's unless given")
    ] = None
    precision: Annotated[
        Literal["auto", "float32", "bf16", "fp16"], Field(description="auto: bf16 on a GPU, float32 elsewhere")
    ] = "auto"
    linears: Literal["bf16", "fp8"] = "bf16"  # the blocks' matmuls
    recompute: Annotated[
        Literal["none", "selective", "full"],
        Field(json_schema_extra=PLACEMENT, description="activations in the backward pass"),
    ] = "none"
    compile: Annotated[bool | None, Field(json_schema_extra=PLACEMENT, description="on a GPU unless given")] = None
    deterministic: bool = False  # the same bits each time on one GPU
    average: Annotated[
        int, Field(ge=1, description="the model that is measured is the mean of so many last checkpoints")
    ] = 1
    checkpoints: Annotated[
        int,
        Field(
            ge=1,
            json_schema_extra=PLACEMENT,
            description="written along a run, to go on from after a kill; `average` takes the last of them",
        ),
    ] = 10

    def updates(self, tokens: int, row_length: int) -> int:
        """As many whole updates as come nearest, at least one: all runs of a plan have the same."""
        return max(1, round(tokens / (self.rows_per_update * row_length)))


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


class AblationPlan(Settings):
    """An ablation as a person writes it down."""

    name: str  # of the ablation, and of its folder
    out: str | None = None  # out/NAME beside the plan unless given
    description: str | None = None  # for the record
    sets: Annotated[dict[str, str], Field(min_length=1, description="folders of token shards by name")]
    control: Annotated[Mix, Field(description="a set, or {set: weight}: what arms must beat")]
    arms: Annotated[dict[str, Mix], BeforeValidator(_arms_from)]  # by name: the set, or the mix, that you ask about
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
    training: TrainingPlan = TrainingPlan()  # how every run is trained
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
    stands_for: Annotated[
        Count | None, Field(description="simulated epoching: the tokens of the large run that these runs stand for")
    ] = None
    evaluate: Evaluate  # what arms are measured on
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = CONFIDENCE  # of intervals
    keep_models: Annotated[bool, Field(json_schema_extra=PLACEMENT, description="keep what each run trained")] = False


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
    _check_names(file, plan)
    if plan.proxies is None:
        _check_arms(file, plan)
    _check_base(file, plan)
    _check_evaluate(file, plan)
    _check_repeats(file, plan)
    if plan.stands_for is not None and plan.stands_for < plan.tokens:
        raise file.wrong(
            ("stands_for",), f"a run of {plan.stands_for:,} tokens is smaller than these of {plan.tokens:,}"
        )
    return LoadedPlan(plan, file)


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
        ("evaluate", "texts"): plan.evaluate.texts,
    }
    for place, names in (named | {("evaluate", "choices"): plan.evaluate.choices}).items():
        for name in names:
            if not NAME.fullmatch(name):
                raise file.wrong((*place, name), "letters, digits, '-', '_' and '.' were expected in a name")
    if not NAME.fullmatch(plan.name):
        raise file.wrong(("name",), f"letters, digits, '-', '_' and '.' were expected, not {plan.name!r}")
    if CONTROL in plan.arms or "base" in plan.arms:
        raise file.wrong(
            ("arms", CONTROL if CONTROL in plan.arms else "base"), "this name is taken; call the arm something else"
        )
    mixes: dict[Place, dict[str, float]] = {
        ("control",): plan.control,
        **{("arms", name): mix for name, mix in plan.arms.items()},
    }
    if plan.base is not None and plan.base.mix is not None:
        mixes["base", "mix"] = plan.base.mix
    for place, mix in mixes.items():
        for name in mix:
            if name not in plan.sets:
                raise file.wrong((*place, name), f"no set is called {name}; {did_you_mean(name, plan.sets)}")
    if len(set(plan.seeds)) < len(plan.seeds):
        raise file.wrong(("seeds",), "a seed stands twice")


def _check_arms(file: YamlFile, plan: AblationPlan) -> None:
    """Runs of one seed that read the same are the same run."""
    name_of = {_shares(plan.control): "the control"}
    for name, mix in plan.arms.items():
        shares = _shares(mix)
        if shares in name_of:
            raise file.wrong(
                ("arms", name),
                f"is the mix of {name_of[shares]}, so that their runs would be the same; take one of them out",
            )
        name_of[shares] = f"arms.{name}"


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
        if plan.training.rate is None:
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
        if plan.training.rate is None:
            raise file.wrong(
                ("training", "rate"),
                "which rate had the base when it was left? An anneal goes on from it, and only falls",
            )
    else:
        for name in ("shape", "tokens"):
            if getattr(base, name) is None:
                raise file.wrong(("base", name), "is missing: the base is trained here")
        if (base.training or plan.training).rate is None:
            raise file.wrong(("training", "rate"), "is missing: the base is trained here")
    if not plan.protocol.from_scratch and plan.shape is not None:
        raise file.wrong(("shape",), "the base has a shape already; this one is for from_scratch")
    from gristmill.trainer.model.shapes import NAMED

    for place, shape in ((("shape",), plan.shape), (("base", "shape"), base.shape if base else None)):
        if isinstance(shape, str) and shape not in NAMED:
            raise file.wrong(place, f"no shape is named {shape!r}; there are {', '.join(NAMED)}")


def _check_evaluate(file: YamlFile, plan: AblationPlan) -> None:
    evaluate = plan.evaluate
    both = [name for name in evaluate.choices if name in evaluate.texts]
    if both:
        raise file.wrong(("evaluate", "choices", both[0]), "texts have this name already")
    everything = [*evaluate.texts, *evaluate.choices]
    for field, names in (("target", everything), ("select", everything), ("guard", [*evaluate.texts])):
        name = getattr(evaluate, field)
        if name is not None and name not in names:
            raise file.wrong(
                ("evaluate", field), f"nothing that is evaluated is called {name}; {did_you_mean(name, names)}"
            )
    if evaluate.guard is not None and evaluate.guard == evaluate.target:
        raise file.wrong(("evaluate", "guard"), "the target cannot guard itself")
    if evaluate.select is not None and evaluate.select == evaluate.target:
        raise file.wrong(
            ("evaluate", "select"), "is the target, which tells the effect; without `select` it is split in two halves"
        )


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
    rate = plan.training.rate or (plan.base.training.rate if plan.base and plan.base.training else None)
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
