"""ablation.json, as it is written and read (docs/ablations.md), the keys as on disk; and its figures in words, as the
screen and the page have them."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from gristmill.pipeline.json_types import JSONObject


class RelativeRecord(TypedDict):
    """A difference, relative to the control."""

    difference: float
    low: float | None
    high: float | None


class DeviationRecord(TypedDict):
    """A standard deviation with its 95 % interval."""

    sd: float
    low: float
    high: float | None
    degrees: float


class SpreadRecord(TypedDict):
    """How a run's difference varies; seed and order are null with one data order a seed."""

    run: DeviationRecord
    seed: DeviationRecord | None
    order: DeviationRecord | None


class DifferenceRecord(TypedDict):
    """An arm less the control on one measure."""

    set: str
    domain: str | None
    task: str
    role: str  # target, guard, reported
    better: str
    unit: str
    difference: float
    low: float | None
    high: float | None
    relative: RelativeRecord | None
    seeds_error: float | None
    items_error: float | None
    effective_clusters: NotRequired[float]
    spread: NotRequired[SpreadRecord | None]
    p: float
    detectable: float | None
    by_seed: dict[str, float]
    multiplier: NotRequired[MultiplierRecord | None]  # of the target and its domains; of all with lengths in the plan


class LevelRecord(TypedDict):
    mean: float
    by_seed: dict[str, float]


class MeasureRecord(TypedDict):
    """A set of the evaluation, or one domain of it."""

    set: str
    domain: str | None
    task: str
    role: str
    better: str
    unit: str
    items: int
    clusters: int
    control: LevelRecord


class GuardRecord(TypedDict):
    """The rise of the guard, relative to the control."""

    rise: float
    low: float | None
    high: float | None
    budget: float
    p: float
    p_holm: float
    holds: bool


class MultiplierRecord(TypedDict):
    """How many times the compute the control would need to reach the arm's loss."""

    value: float
    low: float
    high: float
    beyond: str | None  # more, less: the value is at an end of what the curve can tell
    least: float
    most: float
    curve: str  # lengths, on the way


class SecondRateRecord(TypedDict):
    """The target's difference at the second learning rate."""

    rate: float
    seeds: list[int]
    difference: float
    low: float | None
    high: float | None
    agrees: bool


class ReadingRecord(TypedDict):
    """What a run reads, by the rows of its sets: rows that two sets share count twice."""

    tokens: int
    unique_tokens: int
    most_epochs: float
    most_repeated: str  # the set of it


class WinnerRecord(TypedDict):
    """The best arm by the texts that select, and its effect on those that tell."""

    arm: str
    selected_on: str
    selected_difference: float
    told_on: str
    difference: float
    low: float | None
    high: float | None
    p: float


class PowerRecord(TypedDict):
    """What was to be expected before the runs, in the unit of the target."""

    run_sd: float
    cluster_sd: float
    clusters: float
    seeds: int
    confidence: float  # of the first step of Holm's correction
    detectable: float | None
    source: str


class VerdictRecord(TypedDict):
    word: str
    why: str
    seeds_needed: int | None


class ArmRecord(TypedDict):
    """An arm; most of it is null where it was not run."""

    name: str
    mix: dict[str, float]
    status: str
    error: str | None
    seeds: list[int]
    p: float | None
    p_holm: float | None
    guard: GuardRecord | None
    verdict: VerdictRecord | None
    differences: list[DifferenceRecord]
    weights: NotRequired[dict[str, float]]
    epochs: NotRequired[dict[str, float] | None]
    reading: NotRequired[ReadingRecord | None]
    tokens: NotRequired[int]  # of a run, padding counted
    second_rate: NotRequired[SecondRateRecord | None]


class JobRecord(TypedDict):
    """A run of an arm with a seed; what was not measured is null."""

    arm: str
    seed: int
    order: int
    second_rate: bool
    length: float
    status: str
    error: str | None
    folder: str
    metrics: str
    loss: float | None
    updates: int | None
    tokens: int | None
    counted: int | None
    seconds: float | None
    tokens_per_second: float | None
    joules: float | None
    peak_memory: int | None
    refused: int | None
    seconds_measuring: float | None
    measured_in: str | None
    harness: dict[str, float]  # tasks of lm-evaluation-harness, by task and metric
    device: str | None


class AblationCost(TypedDict, total=False):
    """Of all jobs that were done."""

    jobs: int
    tokens: int
    seconds: float
    seconds_measuring: float
    joules: float | None


class SetRecord(TypedDict):
    folder: str
    fingerprint: str
    share: float
    left_out: int | None  # documents with held-out texts; null: shards, which were not searched
    rows: int
    tokens: int


class ControlRecord(TypedDict, total=False):
    mix: dict[str, float]
    weights: dict[str, float]
    epochs: dict[str, float] | None
    reading: ReadingRecord | None


class ScheduleSpec(TypedDict, total=False):
    """Settings of `gristmill.trainer.run.schedule.Schedule`."""

    kind: str
    warmup: float
    decay: float
    floor: float
    fall: str


class ProtocolRecord(TypedDict, total=False):
    name: str
    new: float
    before: float
    schedule: ScheduleSpec | None


class ModelRecord(TypedDict, total=False):
    shape: JSONObject
    parameters: int
    base: str | None


class ProxyRecord(TypedDict):
    """What a proxy run came to, by task."""

    name: str
    levels: dict[str, float]


class CurveRecord(TypedDict):
    """The target, or a domain of it, as the runs of an arm go on: means over its runs, by tokens with padding."""

    arm: str
    task: str
    tokens: list[int]
    mean: list[float]


class AblationRecord(TypedDict, total=False):
    """All of it."""

    version: int
    name: str
    description: str | None
    status: str
    seconds: float
    plan: JSONObject
    protocol: ProtocolRecord
    model: ModelRecord
    tokens: int
    updates: int
    rows_per_update: int
    row_length: int
    seeds: list[int]
    confidence: float
    sets: dict[str, SetRecord]
    control: ControlRecord
    warnings: list[str]
    measures: list[MeasureRecord]
    arms: list[ArmRecord]
    match: str | None  # tokens, epochs; null with proxies
    curves: list[CurveRecord]
    proxies: list[ProxyRecord] | None
    winner: WinnerRecord | None
    power: PowerRecord | None
    changed_places: list[list[str]]
    base: JobRecord | None
    jobs: list[JobRecord]
    cost: AblationCost
    machine: JSONObject
    versions: dict[str, str]


def remarks(record: AblationRecord) -> list[str]:
    """What holds for the ablation as a whole: its winner, what it could have found, and arms that change places."""
    lines = [] if record.get("match") is None else [as_matched(record)]
    winner = record.get("winner")
    if winner is not None:
        lines.append(
            f"best on {winner['selected_on']}: {winner['arm']}; on {winner['told_on']} it differs by"
            f" {winner['difference']:+.5f} ({bound(winner['low'])} to {bound(winner['high'])}, p {winner['p']:.3g})"
        )
    found = [row for arm in record["arms"] for row in arm["differences"] if row["role"] == "target"]
    detected = [row["detectable"] for row in found if row["domain"] is None and row["detectable"] is not None]
    power = record.get("power")
    if detected and power is not None:
        expected = "unknown" if power["detectable"] is None else f"{power['detectable']:.2g}"
        lines.append(
            f"smallest effect found in 80% of cases: {max(detected):.2g} as measured, {expected} as expected before the"
            f" runs ({power['source']})"
        )
    for row in found:
        spread = row.get("spread")
        if row["domain"] is None and spread is not None:
            lines.append(f"differences of single runs vary by {as_spread(spread)}")
            break
    for one, other in record.get("changed_places") or []:
        lines.append(f"{one} and {other} change places at the second rate")
    return lines


def as_matched(record: AblationRecord) -> str:
    """By which rule runs were matched, and what each arm read."""
    arms = [(arm["name"], arm.get("reading")) for arm in record["arms"]]
    read = (
        f"{name} {reading['tokens']:,} ({reading['unique_tokens']:,} different, {reading['most_epochs']:.2f} epochs)"
        for name, reading in [("control", record["control"].get("reading")), *arms]
        if reading is not None
    )
    return f"matched in {record['match']}; tokens of a run: {', '.join(read)}"


def as_spread(found: SpreadRecord) -> str:
    """Standard deviations with their intervals."""

    def words(part: DeviationRecord) -> str:
        high = "unbounded" if part["high"] is None else f"{part['high']:.2g}"
        return f"{part['sd']:.2g} ({part['low']:.2g} to {high})"

    if found["seed"] is None or found["order"] is None:
        return f"{words(found['run'])} between seeds"
    return f"{words(found['seed'])} between seeds and {words(found['order'])} between data orders"


def as_compute(found: MultiplierRecord | None) -> str:
    """A compute multiplier with its interval."""
    if found is None:
        return ""
    value = f"{found['value']:.2f}"
    ends = f"{_from(found)} to {_to(found)}"
    return f"{found['beyond']} than {value} ({ends})" if found["beyond"] else f"{value} ({ends})"


def _from(found: MultiplierRecord) -> str:
    return f"{'<' if found['low'] <= found['least'] else ''}{found['low']:.2f}"


def _to(found: MultiplierRecord) -> str:
    return f"{'>' if found['high'] >= found['most'] else ''}{found['high']:.2f}"


def bound(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:+.5f}"
