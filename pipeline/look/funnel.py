"""The funnel of a run: documents, text and tokens of each source that are left after each stage.

The overview, the report and the comparison of two runs all show this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gristmill.pipeline.look.volume import READ, Volume, Volumes
from gristmill.pipeline.store.counts import DocumentCounts
from gristmill.pipeline.store.run_records import RunRecord, StageRecord


@dataclass(frozen=True)
class SourceLevel:
    """What is left of one source after a stage that it passes, and what went there. `gone` counts all reasons and what
    was quarantined."""

    stage: str  # of a reader the name of its source
    source: str
    left: int
    gone: int
    text_bytes: int | None
    tokens: int | None
    tokens_counted: bool

    @property
    def volume(self) -> Volume:
        return Volume(self.text_bytes, self.tokens, self.tokens_counted)


@dataclass(frozen=True)
class FunnelStep:
    """A stage, or reading. A stage that only some sources pass leaves the others as they were."""

    name: str
    kept: int  # of all sources
    gone: int
    passed: list[SourceLevel]  # the sources that it saw
    left: dict[str, int]  # of every source
    volumes: dict[str, Volume]

    @property
    def volume(self) -> Volume:
        return Volume.of_all(self.volumes.values())

    @property
    def whole(self) -> SourceLevel:
        """All sources together, as if they were one."""
        volume = self.volume
        return SourceLevel(self.name, "", self.kept, self.gone, volume.text_bytes, volume.tokens, volume.counted)


@dataclass(frozen=True)
class Funnel:
    """Reading, then the stages in the order of the run."""

    steps: list[FunnelStep]

    @property
    def levels(self) -> list[SourceLevel]:
        """For each source its reader, then the stages that it passed, in order."""
        return [level for step in self.steps for level in step.passed]

    @property
    def left(self) -> dict[str, int]:
        """What is left of each source in the end."""
        return self.steps[-1].left if self.steps else {}

    @classmethod
    def of(cls, run: RunRecord, volumes: Volumes) -> Funnel:
        left = {reader.name: reader.count.kept for reader in run.readers}
        steps = []
        if run.readers:
            volume = volumes.get(READ, {})
            passed = [level for reader in run.readers for level in levels_of(reader.name, by_source(reader), volume)]
            kept, records = sum(left.values()), sum(reader.count.docs_in for reader in run.readers)
            steps.append(FunnelStep(READ, kept, records - kept, passed, dict(left), volume))
        for stage in (stage for stage in run.stages if stage.kind != "read"):
            volume = volumes.get(stage.name, {})
            passed = list(levels_of(stage.name, stage.sources, volume))
            left |= {level.source: level.left for level in passed}
            kept = sum(left.values()) if passed else stage.count.kept
            steps.append(FunnelStep(stage.name, kept, stage.count.gone, passed, dict(left), volume))
        return cls(steps)


def levels_of(stage: str, counts: Mapping[str, DocumentCounts], volumes: Mapping[str, Volume]) -> Iterable[SourceLevel]:
    for source, count in counts.items():
        volume = volumes.get(source, Volume())
        yield SourceLevel(stage, source, count.kept, count.gone, volume.text_bytes, volume.tokens, volume.counted)


def by_source(reader: StageRecord) -> Mapping[str, DocumentCounts]:
    return reader.sources or {reader.name: reader.count}
