"""The state of a run while it works, as plain data: what `logs/progress.json` holds, and what a terminal shows."""

from __future__ import annotations

from typing import TypedDict

from gristmill.pipeline.process_id import ProcessId
from gristmill.pipeline.store.records import CountsByStage
from gristmill.pipeline.store.run_records import NodeProgress


class ProcessFacts(TypedDict):
    """A run and the process that it is driven by."""

    name: str
    state: str
    message: str | None
    process: ProcessId
    started: float
    workers: int
    dashboard: str | None
    notes: list[str]


class Speed(TypedDict):
    """What was done in the last seconds."""

    documents: int
    bytes: int
    seconds: float


class WorkerMemory(TypedDict):
    """Of the workers that were heard of last."""

    workers: int
    largest: int  # of one worker, in bytes
    total: int
    limit: int | None  # of one worker


class ProgressFacts(ProcessFacts):
    """`logs/progress.json`."""

    updated: float
    documents: int
    bytes: int
    tasks: dict[str, int]  # done by this process, by kind
    deaths: int  # of workers
    peak_memory: dict[str, int]  # of a worker, by stage
    memory: WorkerMemory | None
    recently: Speed
    alarms: list[str]
    nodes: list[NodeProgress]
    stages: dict[str, CountsByStage]
    seconds_left: float | None  # None: nothing is known yet
