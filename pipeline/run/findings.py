"""What a run learns as it goes, for its record and its reports: counts, times, logs, metrics, and its own files.

`run.py` drives the work and hands every result in here; `reports.py` writes from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gristmill.pipeline.inputs.portion import Inputs
from gristmill.pipeline.recipe.recipe import Step
from gristmill.pipeline.run.estimate import PartRead, documents_in_all
from gristmill.pipeline.shuffle.shuffle import Shuffle
from gristmill.pipeline.store.counts import RunAccount, Slowest
from gristmill.pipeline.store.journal import Packed
from gristmill.pipeline.store.records import (
    FileRef,
    Files,
    MapTask,
    PagesTask,
    Partition,
    PhaseResult,
    StageMetrics,
)
from gristmill.pipeline.store.run_records import InputRecord
from gristmill.stages.stage import Global


@dataclass
class Findings:
    """All that is known of a run so far."""

    inputs: dict[str, InputRecord]  # by source, as run.json has them
    account: RunAccount = field(default_factory=RunAccount)
    slowest: Slowest = field(default_factory=Slowest)
    log: list[str] = field(default_factory=list)
    metrics: dict[str, StageMetrics] = field(default_factory=dict)  # by global stage, for its report
    shared_values: StageMetrics = field(default_factory=dict)  # by global stages, for those after them
    # By global stage, all that was shared up to its end.
    shared_up_to: dict[str, StageMetrics] = field(default_factory=dict)
    own_files: set[str] = field(default_factory=set)  # of this version of the run
    read_here: set[str] = field(default_factory=set)  # of these, what global stages read themselves in every run
    written: Packed[FileRef] = field(default_factory=lambda: Packed(FileRef))  # by path, what tasks wrote
    sink_files: set[str] = field(default_factory=set)  # of these, the ones in sinks
    cards: set[str] = field(default_factory=set)  # of data sets; written last, out of the record
    # By stage that extracts, looks at a few of its pages.
    pages: dict[str, list[PagesTask]] = field(default_factory=dict)
    not_shown: dict[str, list[str]] = field(default_factory=dict)  # by stage, what its report lacks, and why
    # By stage that scores or cuts by scores, the documents that it had.
    scored: dict[str, tuple[Step, list[Partition]]] = field(default_factory=dict)

    def take(self, source: str, result: PhaseResult) -> None:
        """The result of a phase on one partition."""
        self.account.add(source, result.counts, result.peak_memory)
        self.slowest.add(result.slowest)
        self.log += result.log
        self.take_files(result.files)
        self.sink_files |= {facts.path for role, facts in result.files.items() if role.startswith("sink/")}

    def take_files(self, files: Files) -> None:
        self.own_files |= {facts.path for facts in files.values()}
        self.written.update({facts.path: facts for facts in files.values()})

    def take_flow(self, name: str, stage: Global, flow: Shuffle) -> None:
        """What a global stage reported and shared."""
        self.read_here |= flow.gathered
        self.metrics[name] = flow.metrics
        self.shared_values |= flow.run.values
        self.shared_up_to[name] = dict(self.shared_values)
        readme = stage.readme_path(flow.metrics)
        if readme is not None:
            self.cards.add(readme)

    def extrapolate(
        self, source: str, inputs: Inputs, tasks: Iterable[MapTask], results: Mapping[str, PhaseResult]
    ) -> None:
        """Of a run on some parts of a source: how many documents the whole has."""
        if inputs.sizes:
            parts = [PartRead.of(task, results[task.phases[0].task].counts[source]) for task in tasks]
            self.inputs[source]["estimate"] = documents_in_all(parts, inputs.sizes).as_json()

    def note_scores(self, called: str, step: Step, parts: list[Partition]) -> None:
        """Note the documents whose scores the report shows: those that were scored, or that are to be cut by score;
        rules come after."""
        if step.stage.scored_signals:
            before = self.scored.get(called, (step, []))[1]
            self.scored[called] = (step, before + parts)
