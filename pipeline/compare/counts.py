"""What run.json counts of two runs, side by side: the funnel in documents, text and tokens, reasons, and what each
stage took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gristmill.pipeline.look.overview import Overview
from gristmill.pipeline.look.recipe_differences import StagePair
from gristmill.pipeline.look.run_folder import RecordedRun
from gristmill.pipeline.look.volume import Volume


@dataclass(frozen=True)
class LevelPair:
    """What is left after a stage in each run, of all sources or of one; null where the run has no such stage."""

    stage: str
    source: str | None
    a: int | None
    b: int | None
    gone_a: int | None
    gone_b: int | None
    volume_a: Volume
    volume_b: Volume


@dataclass(frozen=True)
class Reason:
    """How many documents a stage dropped for a reason, in each run."""

    stage: str
    reason: str
    a: int
    b: int


@dataclass(frozen=True)
class CostPair:
    """What a stage took in each run."""

    stage: str
    seconds: tuple[float | None, float | None]
    rate: tuple[float | None, float | None]
    bytes_out: tuple[int | None, int | None]
    memory: tuple[int | None, int | None]
    cost: tuple[float | None, float | None]  # at the prices of each recipe


@dataclass(frozen=True)
class Rest:
    """What is left after a stage, and what went there; nothing is known where the run has no such stage."""

    left: int | None = None
    gone: int | None = None
    volume: Volume = field(default_factory=Volume)


def levels(seen: tuple[Overview, Overview], pairs: Sequence[StagePair]) -> list[LevelPair]:
    """The funnel of both, stage by stage: all sources together, then each. What a stage does not see stays as it
    was."""
    tables = [funnel_table(overview) for overview in seen]
    sources = list(dict.fromkeys(reader.name for overview in seen for reader in overview.run.readers))
    pairs_of_levels = []
    for stage in ["read", *(pair.name for pair in pairs if pair.name not in sources)]:
        for source in [None, *(sources if len(sources) > 1 else [])]:
            a, b = (table.get(stage, {}).get(source, Rest()) for table in tables)
            if (a.left, b.left) != (None, None):
                pairs_of_levels.append(LevelPair(stage, source, a.left, b.left, a.gone, b.gone, a.volume, b.volume))
    return pairs_of_levels


def funnel_table(seen: Overview) -> dict[str, dict[str | None, Rest]]:
    """By stage, then by source (null: all), what is left and what went."""
    table: dict[str, dict[str | None, Rest]] = {}
    alive: dict[str | None, Rest] = {}
    for step in seen.funnel.steps:
        if not step.passed:
            continue
        rests: dict[str | None, Rest] = {
            level.source: Rest(level.left, level.gone, level.volume) for level in step.passed
        }
        alive |= rests
        whole = Rest(
            sum(rest.left or 0 for rest in alive.values()),
            sum(level.gone for level in step.passed),
            Volume.of_all(rest.volume for rest in alive.values()),
        )
        table[step.name] = {**rests, None: whole}
    return table


def reasons(runs: tuple[RecordedRun, RecordedRun], pairs: Sequence[StagePair]) -> list[Reason]:
    """Reasons for which both did not drop the same number, in the order of work."""
    counts = [
        {
            stage.name: stage.count.dropped | ({stage.troubled: q} if (q := stage.count.quarantined) else {})
            for stage in run.stages
        }
        for run in runs
    ]
    differing = []
    for stage in (pair.name for pair in pairs):
        a, b = (by_stage.get(stage, {}) for by_stage in counts)
        names = sorted({*a, *b}, key=lambda name: (-max(a.get(name, 0), b.get(name, 0)), name))
        differing += [
            Reason(stage, name, a.get(name, 0), b.get(name, 0)) for name in names if a.get(name, 0) != b.get(name, 0)
        ]
    return differing


def costs(seen: tuple[Overview, Overview], pairs: Sequence[StagePair]) -> list[CostPair]:
    a, b = ({cost.stage: cost for cost in overview.costs} for overview in seen)
    compared = []
    for name in (pair.name for pair in pairs):
        both = (a.get(name), b.get(name))
        numbers = [
            tuple(cost and getattr(cost, key) for cost in both)
            for key in ("seconds", "documents_per_second", "bytes_out", "peak_memory", "cost")
        ]
        compared.append(CostPair(name, *numbers))  # type: ignore[arg-type]
    return compared
