"""What must hold before anything is trained: shards are what was written, one tokenizer, a vocabulary that the model
has, no empty arm.

A fault of the control's sets, the base or the evaluation ends the run; one of an arm's own sets is that arm's, and the
others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.pipeline.ablate.length import Length, length_of, longer_than_control, stages_of, too_small
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Loaded
from gristmill.pipeline.ablate.protocols import Protocol
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.look.token_sets import the_set
from gristmill.pipeline.recipe.fingerprint import stamp
from gristmill.pipeline.train.checks import (
    check_evaluation,
    check_fit,
    check_layout,
    chosen_layout,
    model_source,
    opening_in,
    shape_for,
    tokenizer_of,
    unlike,
)
from gristmill.pipeline.train.facts import read_facts, write_facts
from gristmill.pipeline.train.feeding import SetSize, epochs_of, order_problem, shares_of_rows, size_of
from gristmill.pipeline.train.plan import TrainingPlan, facts_of, training_from
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.shards.verify import verify

if TYPE_CHECKING:
    from gristmill.trainer.model.shapes import DecoderShape

MOST_EPOCHS = 4.0  # repeats up to here are as good as new (Muennighoff et al. 2023)
VERIFIED = "verified.json"
CHECKPOINTS = 10  # along a run, unless its plan says


@dataclass(frozen=True)
class CheckedPlan:
    """A plan whose sets, tokenizer and model fit each other."""

    folders: dict[str, Path]
    fingerprints: dict[str, str]  # of those that could be opened
    sizes: dict[str, SetSize]  # after simulated epoching
    share: float  # of every set that simulated epoching keeps
    length: Length  # of the control's runs
    longer: dict[str, float]  # by arm, times the control's updates; once unless given
    meta: ShardMeta
    shape: DecoderShape  # of the model
    tokenizer: Path
    model: Path | None  # the base that is there already
    before: int | None  # the token that stands before every document of the control's first set
    problems: dict[str, str]  # by arm
    epochs: dict[str, dict[str, float]]  # by arm and set
    layout: dict[str, Any]  # fields of `training` that `parallel: auto` chose
    layout_of_base: dict[str, Any]  # the same, but for the rows of a step where its updates have others
    warnings: list[str]
    protocol: Protocol

    def length_of(self, arm: str) -> Length:
        return self.length.times(self.longer.get(arm, 1.0), self.protocol)


def check_plan(
    loaded: Loaded, out: Path, note: Callable[[str], None], on_gpu: bool = False, only_planned: bool = False
) -> CheckedPlan:
    plan = loaded.plan
    sets = _checked_sets(loaded, out, note)
    tokenizer = _tokenizer(loaded, sets)
    sets.compare()
    place: tuple[str, ...] = ("shape",)
    asked = plan.shape
    if plan.base is not None:
        place, asked = ("base", "model" if plan.base.model else "shape"), plan.base.model or plan.base.shape
    model = model_source(loaded, place, asked)
    if (model is not None) != (place == ("base", "model")):
        raise loaded.wrong(
            place, "a folder or hub id was expected" if model is None else "upcycle it with `train` first"
        )
    shape = shape_for(loaded, place, asked, sets.meta, model)
    check_fit(loaded, place, sets.meta, shape, sets.reference.folder)
    length = length_of(loaded, sets.meta.row_length)
    share = min(1.0, length.tokens / plan.stands_for) if plan.stands_for else 1.0
    sizes = {name: size_of(each, share) for name, each in sets.shards.items() if not sets.faults[name]}
    longer = longer_than_control(plan, sizes)
    lengths = {arm: length.times(longer.get(arm, 1.0), plan.protocol) for arm in (CONTROL, *plan.arms)}
    arms = _checked_arms(loaded, sets, lengths, sizes)
    layout, layout_of_base = _layout(loaded, sets, shape, length, on_gpu, only_planned, note)
    check_evaluation(loaded, plan.evaluate)
    return CheckedPlan(
        folders={name: sets.folder(name, loaded) for name in sets.needed},
        fingerprints={name: each.fingerprint for name, each in sets.shards.items()},
        sizes=sizes,
        share=share,
        length=length,
        longer=longer,
        protocol=plan.protocol,
        meta=sets.meta,
        shape=shape,
        tokenizer=tokenizer,
        model=model,
        before=opening_in(sets.reference),
        problems=arms.problems,
        epochs=arms.epochs,
        layout=layout,
        layout_of_base=layout_of_base,
        warnings=[*arms.warnings, *_tokenizer_warnings(model, tokenizer), *_plan_warnings(plan)],
    )


# --- sets -------------------------------------------------------------------------------------------------------------


def place_of(loaded: Loaded, name: str) -> Path:
    """The folder that a packed set is in."""
    return loaded.place(str(loaded.plan.sets[name].shards))


@dataclass
class _Sets:
    """The sets of a plan, and what is wrong with each ("" if nothing is). A fault of a vital one ends the run."""

    needed: list[str]
    vital: list[str]  # of the control and the base
    shards: dict[str, ShardSet]  # those that can be opened
    faults: dict[str, str]

    @property
    def reference(self) -> ShardSet:
        """The set that all others must be like: the control's first."""
        return self.shards[self.vital[0]]

    @property
    def meta(self) -> ShardMeta:
        return self.reference.meta

    def folder(self, name: str, loaded: Loaded) -> Path:
        return self.shards[name].folder if name in self.shards else place_of(loaded, name)

    def compare(self) -> None:
        """Adds as a fault where a set is unlike the control's; RunFailed of a vital one."""
        for name, each in self.shards.items():
            self.faults[name] = self.faults[name] or unlike(each.meta, self.meta, self.reference.folder)
            if name in self.vital and self.faults[name]:
                raise RunFailed(f"sets.{name}: {self.faults[name]}")


def _checked_sets(loaded: Loaded, out: Path, note: Callable[[str], None]) -> _Sets:
    """Opened and verified; RunFailed where a vital one is not what was written."""
    plan = loaded.plan
    of_base = (plan.base.mix or {}) if plan.base else {}
    vital = list(dict.fromkeys([*plan.control.weights, *of_base]))
    needed = list(dict.fromkeys([*vital, *(name for arm in plan.arms.values() for name in arm.weights)]))
    shards, faults = _opened(loaded, needed, vital)
    faults |= {name: _fault(each, out, note) for name, each in shards.items()}
    for name in vital:
        if faults[name]:
            raise RunFailed(f"sets.{name}: {faults[name]}. The control needs it, so nothing can be compared")
    return _Sets(needed, vital, shards, faults)


def _tokenizer(loaded: Loaded, sets: _Sets) -> Path:
    tokenizer, tokenizer_hash = tokenizer_of(loaded, sets.reference.folder)
    if tokenizer_hash != sets.meta.tokenizer_hash:
        raise RunFailed(
            f"evaluate.tokenizer: {tokenizer} is another tokenizer than that of {sets.reference.folder}"
            f" ({sets.meta.tokenizer}): hash {tokenizer_hash[:12]}, that of the shards {sets.meta.tokenizer_hash[:12]}"
        )
    return tokenizer


def training_at(
    loaded: Loaded, asked: TrainingPlan, updates: int, on_gpu: bool, *place: str, **more: Any
) -> dict[str, Any]:
    """The trainer's settings, as JSON has them; RecipeError names what it would refuse."""
    facts = facts_of(asked, updates, on_gpu, checkpoints=CHECKPOINTS, **more)
    facts.setdefault("metrics_every", max(1, min(10, updates // 50)))
    training_from(loaded.source, facts, *place, "training")
    return facts


def _layout(
    loaded: Loaded,
    sets: _Sets,
    shape: DecoderShape,
    length: Length,
    on_gpu: bool,
    only_planned: bool,
    note: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `parallel: auto` chooses for runs and base, from the control's documents. What a rank would refuse of any
    run is raised here."""
    from gristmill.trainer.parallel.planner import CHOICES
    from gristmill.trainer.run.settings import Training

    plan, row_length = loaded.plan, sets.meta.row_length
    ranks = plan.ranks or 1
    rate = plan.training.peak or (plan.base.training.peak if plan.base and plan.base.training else None)
    chosen: dict[str, Any] = {}
    training = Training.from_facts(training_at(loaded, plan.training, length.updates, on_gpu, rate=rate))
    if plan.parallel == "auto":
        shards = {name: sets.shards[name] for name in plan.control.weights}
        layout, ranks = chosen_layout(
            loaded, shards, plan.control.weights, shape, training, ranks, on_gpu, only_planned
        )
        for line in layout.why:
            note(f"parallel: auto: {line}")
        training = layout.training
        chosen = {name: getattr(training, name) for name in [*CHOICES, "rows_per_step"]}
    check_layout(loaded, training, shape, ranks, row_length)
    for arm in (CONTROL, *plan.arms):
        place = () if arm == CONTROL else ("arms", arm)
        facts = training_at(loaded, plan.training_of(arm), length.updates, on_gpu, *place, rate=rate)
        check_layout(loaded, Training.from_facts(facts | chosen), shape, ranks, row_length, *place)
    of_base = dict(chosen)
    if plan.base is not None and plan.base.training is not None and plan.base.tokens is not None:
        updates = plan.base.training.updates(plan.base.tokens, row_length)
        base = training_at(loaded, plan.base.training, updates, on_gpu, "base")
        if plan.base.training.rows_per_update != plan.training.rows_per_update:
            of_base.pop("rows_per_step", None)
        check_layout(loaded, Training.from_facts(base | of_base), shape, ranks, row_length, "base")
    return chosen, of_base


# --- arms -------------------------------------------------------------------------------------------------------------


@dataclass
class _Arms:
    """Arms that cannot be run, with the reason, and how often the others go through each set."""

    problems: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, dict[str, float]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _checked_arms(loaded: Loaded, sets: _Sets, lengths: Mapping[str, Length], sizes: Mapping[str, SetSize]) -> _Arms:
    plan, arms = loaded.plan, _Arms()
    arm_of_rows: dict[object, str] = {}
    for arm in (CONTROL, *plan.arms):
        mix = plan.arm(arm).weights
        broken = [f"sets.{name}: {sets.faults[name]}" for name in mix if sets.faults[name]]
        ordered = "unlocking" in plan.training_of(arm).more
        for name in mix if not broken else ():
            if problem := order_problem(sets.shards[name], "buckets" if ordered else plan.order_of(arm, name)):
                if arm == CONTROL:
                    raise loaded.wrong((CONTROL,), problem)
                broken.append(f"sets.{name}: {problem}")
        if broken:
            arms.problems[arm] = "; ".join(broken)
            continue
        reads = (_rows_of(mix, sets.shards), _ways_of(plan, arm))
        if (other := arm_of_rows.setdefault(reads, arm)) != arm:
            arms.problems[arm] = (
                f"its sets hold the rows of those of {other}, in the same shares and order, so that the runs of both"
                " would be the same"
            )
            continue
        stages = stages_of(plan, arm, lengths[arm])
        rare = [name for weights, _ in stages for name in too_small(shares_of_rows(weights, sizes))]
        if rare:
            problem = f"{rare[0]}: less than one row in 1,000 would be of it; give it more weight, or leave it out"
            if arm == CONTROL:
                raise loaded.wrong(("control",), problem)
            arms.problems[arm] = f"sets.{problem}"
            continue
        arms.epochs[arm] = epochs_of(stages, sizes)
        arms.warnings += [
            f"{arm}: {name} is gone through {times:.1f} times;"
            f" above {MOST_EPOCHS:g} repeats are worth less than new data"
            for name, times in arms.epochs[arm].items()
            if times > MOST_EPOCHS
        ]
    return arms


def _tokenizer_warnings(model: Path | None, tokenizer: Path) -> list[str]:
    beside_model = model / "tokenizer.json" if model is not None else None
    if beside_model is None or not beside_model.is_file() or beside_model.read_bytes() == tokenizer.read_bytes():
        return []
    return [
        f"base.model: its tokenizer.json is not that of the shards ({tokenizer});"
        " if it splits text in another way, the model reads noise"
    ]


def _plan_warnings(plan: AblationPlan) -> list[str]:
    warnings: list[str] = []
    if plan.proxies is not None:  # nothing is compared
        return warnings
    if plan.evaluate.guard is None:
        warnings.append("evaluate.guard: there is none, so that an arm may be adopted that makes general text worse")
    if len(plan.seeds) < 3:
        warnings.append(f"{len(plan.seeds)} seeds: intervals are four times as wide as of 3; take 5")
    return warnings


def _opened(loaded: Loaded, names: list[str], vital: list[str]) -> tuple[dict[str, ShardSet], dict[str, str]]:
    """Sets, and what is wrong with those that cannot be opened. A set that is not there at all is a fault of the
    plan."""
    shards, faults = {}, {}
    for name in names:
        try:
            shards[name] = open_shards(the_set(str(place_of(loaded, name)), None))
        except BadShards as error:
            if name in vital:
                raise loaded.wrong(("sets", name), str(error)) from error
            faults[name] = str(error)
        except RecipeError as error:
            raise loaded.wrong(("sets", name), str(error)) from error
    return shards, faults


def _fault(shards: ShardSet, out: Path, note: Callable[[str], None]) -> str:
    """What is wrong with a set; "" if nothing is. Bytes that were found whole are not read again while size and stamp
    of the files stay."""
    if len(shards) == 0:
        return f"{shards.folder}: holds no rows: an arm needs something to learn from"
    path = out / VERIFIED
    verified = read_facts(path, dict)
    stamps = {
        entry.path: list(stamp(shards.folder / entry.path))
        for entry in shards.index.shards
        if (shards.folder / entry.path).is_file()
    }
    if verified.get(str(shards.folder)) == [shards.fingerprint, stamps]:
        return ""
    note(f"{shards.folder}: verifying {shards.index.total('bytes') / 1e6:,.1f} MB")
    faults = verify(shards.folder)
    if faults:
        more = f" (and {len(faults) - 1:,} more faults; see gristmill maintain verify)" if len(faults) > 1 else ""
        return f"{shards.folder}: {faults[0]}{more}"
    write_facts(path, {**verified, str(shards.folder): [shards.fingerprint, stamps]})
    return ""


def _ways_of(plan: AblationPlan, arm: str) -> str:
    """The order of an arm's mix, and what of the training is its own."""
    orders = [plan.order_of(arm, name) for name in sorted(plan.arm(arm).weights)]
    return repr([orders[0], sorted(plan.arm(arm).training.items())])


def _rows_of(mix: Mapping[str, float], shards: Mapping[str, ShardSet]) -> frozenset[tuple[str, float]]:
    """What a mix reads, whatever its sets are called and wherever they lie."""
    shares: dict[str, float] = {}
    for name, weight in mix.items():
        shares[shards[name].fingerprint] = shares.get(shards[name].fingerprint, 0.0) + weight / sum(mix.values())
    return frozenset((fingerprint, round(share, 9)) for fingerprint, share in shares.items())
