"""What must hold before anything is trained: shards are what was written, one tokenizer, a vocabulary that the model
has, no two arms that are the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.pipeline.ablate.length import Length, length_of, lengths_of, stages_of, too_small
from gristmill.pipeline.ablate.plan import CONTROL, AblationPlan, Loaded
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.recipe.fingerprint import stamp
from gristmill.pipeline.train.checks import (
    check_evaluation,
    check_fit,
    check_layout,
    chosen_layout,
    model_source,
    open_set,
    opening_in,
    shape_for,
    tokenizer_of,
    unlike,
)
from gristmill.pipeline.train.facts import read_facts, write_facts
from gristmill.pipeline.train.feeding import SetSize, epochs_of, order_problem, shares_of_rows, size_of
from gristmill.pipeline.train.plan import TrainingPlan, facts_of, training_from
from gristmill.shards.format import ShardMeta
from gristmill.shards.reader import ShardSet
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
    lengths: dict[str, Length]  # of the runs of the control and of each arm
    meta: ShardMeta
    shape: DecoderShape  # of the model
    tokenizer: Path
    model: Path | None  # the base that is there already
    before: int | None  # the token that stands before every document of the control's first set
    epochs: dict[str, dict[str, float]]  # by arm and set
    layout: dict[str, Any]  # fields of `training` that `parallel: auto` chose
    layout_of_base: dict[str, Any]  # the same, but for the rows of a step where its updates have others
    warnings: list[str]

    @property
    def length(self) -> Length:
        """Of the control's runs."""
        return self.lengths[CONTROL]


def check_plan(
    loaded: Loaded, out: Path, note: Callable[[str], None], on_gpu: bool = False, only_planned: bool = False
) -> CheckedPlan:
    plan = loaded.plan
    shards = _opened(loaded, out, note)
    reference = next(iter(shards.values()))
    meta, tokenizer = reference.meta, _tokenizer(loaded, reference)
    place: tuple[str, ...] = ("shape",)
    asked = plan.shape
    if plan.base is not None:
        place, asked = ("base", "model" if plan.base.model else "shape"), plan.base.model or plan.base.shape
    model = model_source(loaded, place, asked)
    if (model is not None) != (place == ("base", "model")):
        raise loaded.wrong(place, "a folder or hub id was expected" if model is None else "a shape was expected")
    shape = shape_for(loaded, place, asked, meta, model)
    check_fit(loaded, place, meta, shape, reference.folder)
    length = length_of(loaded, meta.row_length)
    share = min(1.0, length.tokens / plan.stands_for) if plan.stands_for else 1.0
    sizes = {name: size_of(each, share) for name, each in shards.items()}
    lengths = lengths_of(plan, length, sizes)
    epochs = _epochs_of_arms(loaded, shards, lengths, sizes)
    layout, layout_of_base = _layout(loaded, shape, length, on_gpu, only_planned, note)
    check_evaluation(loaded, plan.evaluate)
    return CheckedPlan(
        folders={name: each.folder for name, each in shards.items()},
        fingerprints={name: each.fingerprint for name, each in shards.items()},
        sizes=sizes,
        share=share,
        lengths=lengths,
        meta=meta,
        shape=shape,
        tokenizer=tokenizer,
        model=model,
        before=opening_in(reference),
        epochs=epochs,
        layout=layout,
        layout_of_base=layout_of_base,
        warnings=[*_repeats(epochs), *_tokenizer_warnings(model, tokenizer), *_plan_warnings(plan)],
    )


# --- sets -------------------------------------------------------------------------------------------------------------


def _opened(loaded: Loaded, out: Path, note: Callable[[str], None]) -> dict[str, ShardSet]:
    """The sets that runs read, the control's first; all are as they were written, and like that one."""
    plan, shards = loaded.plan, {}
    of_base = (plan.base.mix or {}) if plan.base else {}
    of_arms = (name for arm in plan.arms.values() for name in arm.weights)
    for name in dict.fromkeys([*plan.control.weights, *of_base, *of_arms]):
        shards[name] = each = open_set(loaded, name, str(plan.sets[name].shards))
        reference = next(iter(shards.values()))
        if what := unlike(each.meta, reference.meta, reference.folder):
            raise loaded.wrong(("sets", name), what)
        if fault := _fault(each, out, note):
            raise RunFailed(f"sets.{name}: {fault}")
    return shards


def _tokenizer(loaded: Loaded, reference: ShardSet) -> Path:
    tokenizer, tokenizer_hash = tokenizer_of(loaded, reference.folder)
    if tokenizer_hash != reference.meta.tokenizer_hash:
        raise RunFailed(
            f"evaluate.tokenizer: {tokenizer} is another tokenizer than that of {reference.folder}"
            f" ({reference.meta.tokenizer}): hash {tokenizer_hash[:12]}, that of the shards"
            f" {reference.meta.tokenizer_hash[:12]}"
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
    shape: DecoderShape,
    length: Length,
    on_gpu: bool,
    only_planned: bool,
    note: Callable[[str], None],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `parallel: auto` chooses for runs and base. What a rank would refuse of any run is raised here."""
    from gristmill.trainer.parallel.planner import CHOICES
    from gristmill.trainer.run.settings import Training

    plan, row_length = loaded.plan, length.row_length
    ranks = plan.ranks or 1
    rate = plan.training.peak or (plan.base.training.peak if plan.base and plan.base.training else None)
    chosen: dict[str, Any] = {}
    training = Training.from_facts(training_at(loaded, plan.training, length.updates, on_gpu, rate=rate))
    if plan.parallel == "auto":
        layout, ranks = chosen_layout(loaded, shape, training, ranks, row_length, on_gpu, only_planned)
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


def _epochs_of_arms(
    loaded: Loaded, shards: Mapping[str, ShardSet], lengths: Mapping[str, Length], sizes: Mapping[str, SetSize]
) -> dict[str, dict[str, float]]:
    """How often each arm goes through each set; RecipeError where one cannot be run."""
    plan, epochs = loaded.plan, {}
    arm_of_rows: dict[object, str] = {}
    for arm, length in lengths.items():
        place = (CONTROL,) if arm == CONTROL else ("arms", arm)
        mix = plan.arm(arm).weights
        ordered = "unlocking" in plan.training_of(arm).more
        for name in mix:
            if problem := order_problem(shards[name], "buckets" if ordered else plan.order_of(arm, name)):
                raise loaded.wrong(place, problem)
        if (other := arm_of_rows.setdefault((_rows_of(mix, shards), _ways_of(plan, arm)), arm)) != arm:
            what = f"its sets hold the rows of those of {other}, in the same shares and order"
            raise loaded.wrong(place, f"{what}, so that the runs of both would be the same")
        stages = stages_of(plan, arm, length)
        for rare in (name for weights, _ in stages for name in too_small(shares_of_rows(weights, sizes))):
            what = "less than one row in 1,000 would be of it; give it more weight, or leave it out"
            raise loaded.wrong(place, f"{rare}: {what}")
        epochs[arm] = epochs_of(stages, sizes)
    return epochs


def _repeats(epochs: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"{arm}: {name} is gone through {times:.1f} times; above {MOST_EPOCHS:g} repeats are worth less than new data"
        for arm, of_sets in epochs.items()
        for name, times in of_sets.items()
        if times > MOST_EPOCHS
    ]


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


def _fault(shards: ShardSet, out: Path, note: Callable[[str], None]) -> str:
    """What is wrong with a set; "" if nothing is. Bytes that were found whole are not read again while size and stamp
    of the files stay."""
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
