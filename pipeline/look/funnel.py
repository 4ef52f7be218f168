"""The funnel of a run: documents, text and tokens of each source that are left after each stage.

Documents and text (UTF-8 bytes of those that stay) are counted in run.json. Tokens are counted from the tokenizer on
(where mixing draws, those drawn); before it they are estimated from the text, at the bytes that a token of that source
turned out to hold. The overview, the report, the comparison of two runs and alarms all show this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.report_data.figures import token_counts_of
from gristmill.pipeline.store.counts import DocumentCounts
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.stages.figures import TokenCounts

READ = "read"  # the first step: all readers together


@dataclass(frozen=True)
class Volume:
    """What is left of one source, or of all; None where nobody knows."""

    text_bytes: int | None = None
    tokens: int | None = None
    counted: bool = False  # the tokens, and not estimated

    @classmethod
    def of_all(cls, parts: Iterable[Volume]) -> Volume:
        found = list(parts)
        known = bool(found) and all(its.tokens is not None for its in found)
        text = [its.text_bytes for its in found if its.text_bytes is not None]
        return cls(
            sum(text) if text else None,
            sum(its.tokens or 0 for its in found) if known else None,
            known and all(its.counted for its in found),
        )


Volumes = dict[str, dict[str, Volume]]  # after each stage, by source


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

    @property
    def volumes(self) -> Volumes:
        return {step.name: step.volumes for step in self.steps}

    @classmethod
    def of(cls, run: RunRecord, reports: Mapping[str, Told]) -> Funnel:
        """From run.json and what stages told of tokens."""
        return cls.counted(run, volumes_of(run.stages, reports))

    @classmethod
    def counted(cls, run: RunRecord, volumes: Volumes) -> Funnel:
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


# --- text and tokens --------------------------------------------------------------------------------------------------


def volumes_of(stages: Sequence[StageRecord], reports: Mapping[str, Told]) -> Volumes:
    """After reading, and after each stage; a stage that a source does not pass leaves it as it was."""
    counts = {stage.name: token_counts_of(stage.recipe_name, reports.get(stage.name, {})) for stage in stages}
    held = bytes_a_token(counts.values())
    now = {stage.name: read(stage.count, held.get(stage.name)) for stage in stages if stage.kind == "read"}
    found = {READ: dict(now)} if now else {}
    for stage in stages:
        if stage.kind != "read":
            counted = counts[stage.name]
            for source, its in stage.sources.items():
                before, text = now.get(source, Volume()), text_left(its)
                if counted is not None and counted.by_source is None:  # drawn by something else than the source
                    now[source] = Volume(text)
                else:
                    tokens = counted.by_source.get(source) if counted is not None and counted.by_source else None
                    now[source] = after(before, its, text, tokens, held.get(source))
            found[stage.name] = dict(now)
    return found


def read(its: DocumentCounts, held: float | None) -> Volume:
    """A source as it was read: text, unless its documents are pages that have yet to be extracted."""
    text = text_left(its)
    if not its.kept:
        return Volume(text, 0, True)
    return Volume(text, round(text / held) if text and held else None)


def text_left(its: DocumentCounts) -> int | None:
    """No bytes in documents that are there are pages that have yet to be extracted."""
    return None if its.text_bytes == 0 and its.kept else its.text_bytes


def after(before: Volume, its: DocumentCounts, text: int | None, told: int | None, held: float | None) -> Volume:
    """One source after one stage, from its counts and from what the stage tells of its tokens."""
    if told is not None:
        return Volume(text, told, True)
    if not its.kept:
        return Volume(text, 0, True)  # of a source of which nothing is left, no tokenizer tells
    same = its.docs_in == its.kept and not its.made
    if before.counted and same and text == before.text_bytes:
        return Volume(text, before.tokens, True)
    if before.counted and before.text_bytes and text is not None:
        return Volume(text, round((before.tokens or 0) * text / before.text_bytes), text == 0)
    return Volume(text, round(text / held) if text is not None and held else None)


def bytes_a_token(counts: Iterable[TokenCounts | None]) -> Mapping[str, float]:
    """What a token of each source holds, by the first tokenizer of the run."""
    return next((each.bytes_per_token for each in counts if each is not None and each.bytes_per_token), {})
