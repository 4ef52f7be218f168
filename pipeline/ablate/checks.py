"""What must hold before anything is trained: shards are what was written, one tokenizer, a vocabulary that the model
has, no empty arm.

A fault of the control's sets, the base or the evaluation ends the run; one of an arm's own sets is that arm's, and the
others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gristmill.pipeline.ablate.evaluation import tokenizer_of
from gristmill.pipeline.ablate.facts import read_facts, write_facts
from gristmill.pipeline.ablate.feeding import SetSize, epochs_of, shares_of_rows, size_of
from gristmill.pipeline.ablate.length import Length, length_of, stages_of, too_small
from gristmill.pipeline.ablate.plan import CONTROL, Loaded
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.fingerprint import stamp
from gristmill.pipeline.look.token_sets import the_set
from gristmill.shards.format import BadShards, ShardMeta
from gristmill.shards.reader import ShardSet, open_shards
from gristmill.shards.verify import verify
from gristmill.trainer.model.shapes import DecoderShape, shape_named

MOST_EPOCHS = 4.0  # repeats up to here are as good as new (Muennighoff et al. 2023)
VOCABULARY_STEP = 64  # matrices of a GPU like round sizes
VERIFIED = "verified.json"
LOOKED_AT = 64  # rows


@dataclass(frozen=True)
class CheckedPlan:
    """What was found. `problems` are by arm; `shape` is the model's."""

    folders: dict[str, Path]
    fingerprints: dict[str, str]  # of those that could be opened
    sizes: dict[str, SetSize]  # after simulated epoching
    share: float  # of every set that simulated epoching keeps
    length: Length
    meta: ShardMeta
    shape: DecoderShape
    tokenizer: Path
    model: Path | None  # the base that is there already
    before: int | None  # the token that stands before every document of the control's first set
    problems: dict[str, str]
    epochs: dict[str, dict[str, float]]  # by arm and set
    warnings: list[str]


def check_plan(loaded: Loaded, out: Path, note: Callable[[str], None]) -> CheckedPlan:
    plan = loaded.plan
    needed = list(
        dict.fromkeys(
            [
                *plan.control,
                *((plan.base.mix or {}) if plan.base else {}),
                *(n for mix in plan.arms.values() for n in mix),
            ]
        )
    )
    vital = list(dict.fromkeys([*plan.control, *((plan.base.mix or {}) if plan.base else {})]))
    shards, faults = _opened(loaded, needed, vital)
    faults |= {name: _fault(each, out, note) for name, each in shards.items()}
    for name in vital:
        if faults[name]:
            raise RunFailed(f"sets.{name}: {faults[name]}. The control needs it, so nothing can be compared")
    meta = shards[vital[0]].meta
    tokenizer, found = tokenizer_of(loaded, shards[vital[0]].folder)
    if found != meta.tokenizer_hash:
        raise RunFailed(
            f"evaluate.tokenizer: {tokenizer} is another tokenizer than that of {shards[vital[0]].folder} ({meta.tokenizer}): hash {found[:12]}, "
            f"that of the shards {meta.tokenizer_hash[:12]}"
        )
    for name, each in shards.items():
        faults[name] = faults[name] or _unlike(each.meta, meta, shards[vital[0]].folder)
        if name in vital and faults[name]:
            raise RunFailed(f"sets.{name}: {faults[name]}")
    model = model_of(loaded)
    shape = _shape(loaded, meta, model)
    if meta.vocab_size > shape.vocabulary:
        raise RunFailed(
            f"the shards' vocabulary of {meta.vocab_size:,} is larger than the model's of {shape.vocabulary:,}: tokens would have no embedding"
        )
    if meta.row_length > shape.context:
        raise RunFailed(f"rows of {meta.row_length:,} tokens are longer than the model's context of {shape.context:,}")
    length = length_of(loaded, meta.row_length)
    share = min(1.0, length.tokens / plan.stands_for) if plan.stands_for else 1.0
    sizes = {name: size_of(each, share) for name, each in shards.items() if not faults[name]}
    problems, epochs, warnings = {}, {}, []
    known: dict[frozenset[tuple[str, float]], str] = {}
    for arm, mix in ((CONTROL, plan.control), *plan.arms.items()):
        broken = [f"sets.{name}: {faults[name]}" for name in mix if faults[name]]
        if broken:
            problems[arm] = "; ".join(broken)
            continue
        if (other := known.setdefault(_rows_of(mix, shards), arm)) != arm:
            problems[arm] = (
                f"its sets hold the rows of those of {other}, in the same shares, so that the runs of both would be the same"
            )
            continue
        stages = stages_of(plan, arm, length)
        rare = [name for weights, _ in stages for name in too_small(shares_of_rows(weights, sizes))]
        if rare and arm == CONTROL:
            raise RecipeError(
                f"{loaded.path}: control: {rare[0]}: less than one row in 1,000 would be of it; give it more weight, or leave it out"
            )
        if rare:
            problems[arm] = (
                f"sets.{rare[0]}: less than one row in 1,000 would be of it; give it more weight, or leave it out"
            )
            continue
        epochs[arm] = epochs_of(stages, sizes)
        warnings += [
            f"{arm}: {name} is gone through {times:.1f} times; above {MOST_EPOCHS:g} repeats are worth less than new data"
            for name, times in epochs[arm].items()
            if times > MOST_EPOCHS
        ]
    if (
        model is not None
        and (model / "tokenizer.json").is_file()
        and (model / "tokenizer.json").read_bytes() != tokenizer.read_bytes()
    ):
        warnings.append(
            f"base.model: its tokenizer.json is not that of the shards ({tokenizer}); if it splits text in another way, the model reads noise"
        )
    if plan.evaluate.guard is None:
        warnings.append("evaluate.guard: there is none, so that an arm may be adopted that makes general text worse")
    if len(plan.seeds) < 3:
        warnings.append(f"{len(plan.seeds)} seeds: intervals are four times as wide as of 3; take 5")
    fingerprints = {name: each.fingerprint for name, each in shards.items()}
    return CheckedPlan(
        {name: shards[name].folder if name in shards else loaded.place(plan.sets[name]) for name in needed},
        fingerprints,
        sizes,
        share,
        length,
        meta,
        shape,
        tokenizer,
        model,
        _before(shards[vital[0]]),
        problems,
        epochs,
        warnings,
    )


def _opened(loaded: Loaded, names: list[str], vital: list[str]) -> tuple[dict[str, ShardSet], dict[str, str]]:
    """Sets, and what is wrong with those that cannot be opened. A set that is not there at all is a fault of the plan."""
    shards, faults = {}, {}
    for name in names:
        try:
            shards[name] = open_shards(the_set(str(loaded.place(loaded.plan.sets[name])), None))
        except BadShards as error:
            if name in vital:
                raise RecipeError(f"{loaded.path}: sets.{name}: {error}") from error
            faults[name] = str(error)
        except RecipeError as error:
            raise RecipeError(f"{loaded.path}: sets.{name}: {error}") from error
    return shards, faults


def _fault(shards: ShardSet, out: Path, note: Callable[[str], None]) -> str:
    """What is wrong with a set; "" if nothing is. Bytes that were found whole are not read again while size and stamp
    of the files stay."""
    if len(shards) == 0:
        return f"{shards.folder}: holds no rows: an arm needs something to learn from"
    path = out / VERIFIED
    known = read_facts(path)
    stamps = {
        entry.path: list(stamp(shards.folder / entry.path))
        for entry in shards.index.shards
        if (shards.folder / entry.path).is_file()
    }
    if known.get(str(shards.folder)) == [shards.fingerprint, stamps]:
        return ""
    note(f"{shards.folder}: looking at every byte of {shards.index.total('bytes') / 1e6:,.1f} MB")
    faults = verify(shards.folder)
    if faults:
        more = f" (and {len(faults) - 1:,} more faults; see gristmill verify)" if len(faults) > 1 else ""
        return f"{shards.folder}: {faults[0]}{more}"
    write_facts(path, {**known, str(shards.folder): [shards.fingerprint, stamps]})
    return ""


def _rows_of(mix: Mapping[str, float], shards: Mapping[str, ShardSet]) -> frozenset[tuple[str, float]]:
    """What a mix reads, whatever its sets are called and wherever they lie."""
    found: dict[str, float] = {}
    for name, weight in mix.items():
        found[shards[name].fingerprint] = found.get(shards[name].fingerprint, 0.0) + weight / sum(mix.values())
    return frozenset((fingerprint, round(share, 9)) for fingerprint, share in found.items())


def _before(shards: ShardSet) -> int | None:
    from gristmill.trainer.evaluation.evaluate import opening_of

    return opening_of(shards.take(range(min(LOOKED_AT, len(shards)))), shards.meta.bos_id)


def _unlike(meta: ShardMeta, control: ShardMeta, where: Path) -> str:
    for field, what in (
        ("tokenizer_hash", "tokenizer"),
        ("vocab_size", "vocabulary"),
        ("row_length", "length of rows"),
        ("pad_id", "padding"),
    ):
        ours, theirs = getattr(meta, field), getattr(control, field)
        if ours != theirs:
            named = f" ({meta.tokenizer}, not {control.tokenizer})" if field == "tokenizer_hash" else ""
            return f"another {what} than {where}: {str(ours)[:12]}, not {str(theirs)[:12]}{named}"
    return ""


def _shape(loaded: Loaded, meta: ShardMeta, model: Path | None) -> DecoderShape:
    """Of a model that is there, or of one trained here."""
    plan = loaded.plan
    if model is not None:
        from gristmill.trainer.model.llama_config import LlamaError, shape_of
        from gristmill.trainer.model.llama_files import read_json

        try:
            return shape_of(read_json(model / "config.json"), str(model / "config.json"))
        except (LlamaError, OSError) as error:
            raise RecipeError(f"base.model: {error}") from error
    asked = plan.shape if plan.base is None else plan.base.shape
    vocabulary = -(-meta.vocab_size // VOCABULARY_STEP) * VOCABULARY_STEP
    try:
        if isinstance(asked, str):
            return shape_named(asked, vocabulary, context=meta.row_length)
        return DecoderShape.from_facts({"vocabulary": vocabulary, "context": meta.row_length, **(asked or {})})
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{loaded.path}: shape: {error}") from error


def model_of(loaded: Loaded) -> Path | None:
    """The folder of a base that is there: beside the plan, or fetched from the hub."""
    if loaded.plan.base is None or loaded.plan.base.model is None:
        return None
    from gristmill.trainer.model.llama_config import LlamaError
    from gristmill.trainer.model.llama_files import model_folder

    beside = loaded.place(loaded.plan.base.model)
    try:
        return model_folder(beside if beside.exists() else loaded.plan.base.model)
    except (LlamaError, OSError) as error:
        raise RecipeError(f"base.model: {error}") from error
