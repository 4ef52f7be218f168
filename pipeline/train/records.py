"""One run of training as plain data, and what comes of it, as job.json and result.json have them: the keys are those on
disk. `gristmill train` has one job, `gristmill ablate` one for the base and one for each arm and seed."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from gristmill.pipeline.json_types import JSONObject

OrderSpec = str | dict[str, Any]  # shuffled, as_written, segments, buckets, or a schedule with its settings


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
    unwrap: bool
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
    target: str | None
    guard: str | None
    every: int | None  # updates; None: at the end alone
    watched: dict[str, str]  # what is measured as a run goes on and at its end, with the names of its values
    point_documents: int | None  # of a watched text; None: all
    harness: list[str]


class MixStage(TypedDict):
    """What a run reads, up to its end or for so many rows."""

    weights: dict[str, float]  # shares of tokens by folder
    identity: dict[str, float]  # the same by fingerprint of the set
    rows: NotRequired[int]
    orders: NotRequired[dict[str, OrderSpec]]  # by folder, of those that are not shuffled
    identity_of_orders: NotRequired[dict[str, OrderSpec]]  # the same by fingerprint


class Start(TypedDict, total=False):
    """What a run begins with: random weights of a shape and seed, or a model."""

    shape: JSONObject
    seed: int
    model: str  # its folder
    fingerprint: str


class Job(TypedDict):
    """A run of training: of an arm with a seed, of the base, or of `gristmill train`."""

    folder: str
    arm: str
    seed: int
    order: NotRequired[int]  # these three of an ablation's runs: `Run`
    second_rate: NotRequired[bool]
    length: NotRequired[float]
    fingerprint: str  # of what is learned and measured
    training_fingerprint: str  # of what is learned
    stages: list[MixStage]
    share: float  # of every set that simulated epoching keeps
    begin: Start
    training: dict[str, Any]  # what `gristmill.trainer.run.settings.Training.from_facts` reads
    ranks: int
    evaluate: EvaluationSpec | None
    tokenizer: str | None
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
    seconds_on_the_way: float  # of measuring
    evaluation: dict[str, float]  # the last values of what was watched


class JobResult(TrainingOutcome, total=False):
    """What came of a job."""

    arm: str
    seed: int
    fingerprint: str
    training_fingerprint: str
    seconds_measuring: float
    measured_in: str | None
    harness: dict[str, float]  # by task and metric
    device: str
    versions: dict[str, str]
    failed: str  # why there is no result
    trace: str
    anew: bool  # was it done now?


def run_of(job: Job) -> Run:
    return Run(job["arm"], job["seed"], job.get("order", 0), job.get("second_rate", False), job.get("length", 1.0))
