"""Jobs of an ablation and what comes of them, as job.json and result.json have them: the keys are those on disk."""

from __future__ import annotations

from typing import Literal, NamedTuple, NotRequired, TypedDict

from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.report.ablation_record import ScheduleSpec


class Run(NamedTuple):
    """Which run of an ablation: everything that its runs differ in."""

    arm: str
    seed: int  # of initial weights
    order: int = 0  # of the seed's data orders
    second_rate: bool = False
    length: float = 1.0  # share of the plan's tokens; another than 1 for the control's curve

    @property
    def name(self) -> str:
        """Of its folder: `seed-3`, `seed-3-order-1-second-rate`."""
        return (
            f"seed-{self.seed}"
            + (f"-order-{self.order}" if self.order else "")
            + ("-second-rate" if self.second_rate else "")
            + (f"-length-{self.length:g}" if self.length != 1 else "")
        )

    @property
    def words(self) -> str:
        """For people: `clean, seed 3, order 1`."""
        parts = [f"{self.arm}, seed {self.seed}"]
        parts += [f"order {self.order}"] if self.order else []
        parts += ["second rate"] if self.second_rate else []
        parts += [f"{self.length:g} of the tokens"] if self.length != 1 else []
        return ", ".join(parts)


class TextsSpec(TypedDict):
    """Held-out documents of the evaluation."""

    files: list[str]
    text: str
    domain: str | None
    cluster: str | None
    most: int | None
    content: list[str]  # hashes of the files


class ChoicesSpec(TypedDict):
    """Multiple-choice questions of the evaluation."""

    file: str
    cluster: str
    score: Literal["accuracy", "accuracy_by_byte", "accuracy_by_token", "bits_per_byte"]
    content: str


class EvaluationSpec(TypedDict):
    """What a run is measured on."""

    texts: dict[str, TextsSpec]
    choices: dict[str, ChoicesSpec]
    target: str
    guard: str | None
    points: int
    point_documents: int


class MixStage(TypedDict):
    """What a run reads, up to its end or for so many rows."""

    weights: dict[str, float]  # shares of tokens by folder
    identity: dict[str, float]  # the same by fingerprint of the set
    rows: NotRequired[int]


class Start(TypedDict, total=False):
    """What a run begins with: random weights of a shape and seed, or a model."""

    shape: JSONObject
    seed: int
    model: str
    fingerprint: str


class TrainingSpec(TypedDict):
    """What `gristmill.trainer.run.settings.Training.from_facts` reads."""

    updates: int
    rows_per_update: int
    rows_per_step: int | None
    optimizer: JSONObject
    schedule: ScheduleSpec
    precision: str
    linears: str
    recompute: str
    compile: bool | None
    deterministic: bool
    seed: int
    average: int
    keep: int
    checkpoint_every: int
    metrics_every: int


class Job(TypedDict):
    """A run of an arm with a seed, or of the base."""

    folder: str
    arm: str
    seed: int
    order: int
    second_rate: bool
    length: float
    data_seed: int  # of the order in which rows come, and of which
    fingerprint: str  # of what is learned and measured
    training_fingerprint: str  # of what is learned
    stages: list[MixStage]
    share: float  # of every set that simulated epoching keeps
    begin: Start
    training: TrainingSpec
    evaluate: EvaluationSpec | None
    tokenizer: str
    row_length: int
    before: int | None  # the token that stands before every document
    keep_model: bool
    device: str
    threads: int


class TrainingOutcome(TypedDict, total=False):
    """What came of training."""

    loss: float
    updates: int
    tokens: int
    counted: int
    seconds: float
    tokens_per_second: float
    joules: float | None
    peak_memory: int | None
    refused: int
    seconds_on_the_way: float  # of measuring, for curves


class JobResult(TrainingOutcome, total=False):
    """What came of a job."""

    arm: str
    seed: int
    fingerprint: str
    training_fingerprint: str
    seconds_measuring: float
    measured_in: str | None
    device: str
    versions: dict[str, str]
    failed: str  # why there is no result
    trace: str
    anew: bool  # was it done now?


def run_of(job: Job) -> Run:
    return Run(job["arm"], job["seed"], job["order"], job["second_rate"], job["length"])
