"""ablation.json, as it is written and read: the keys are those on disk (docs/ablations.md)."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from gristmill.pipeline.json_types import JSONObject


class RelativeRecord(TypedDict):
    """A difference, relative to the control."""

    difference: float
    low: float | None
    high: float | None


class BoundsRecord(TypedDict):
    """An interval; null where it is unbounded."""

    low: float | None
    high: float | None


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
    bootstrap: BoundsRecord
    seeds_error: float | None
    items_error: float | None
    p: float
    detectable: float | None
    by_seed: dict[str, float]


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


class JobRecord(TypedDict):
    """A run of an arm with a seed; what was not measured is null."""

    arm: str
    seed: int
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
    fingerprint: str | None
    share: float | None
    rows: int | None
    tokens: int | None


class ControlRecord(TypedDict, total=False):
    mix: dict[str, float]
    weights: dict[str, float]
    epochs: dict[str, float] | None


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
    proxies: list[ProxyRecord] | None
    base: JobRecord | None
    jobs: list[JobRecord]
    cost: AblationCost
    machine: JSONObject
    versions: dict[str, str]
