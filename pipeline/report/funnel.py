"""The funnel: documents, text and tokens of each source that are left after each stage. From run.json and
report.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gristmill.pipeline.look.funnel import READ, Funnel, Volume
from gristmill.pipeline.report.charts import SERIES, key_of, series_class
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.tables import row_bar

OTHERS = "other sources"


@dataclass(frozen=True)
class FunnelLine:
    """A line of the funnel. `by_source` and `volumes` are in the order in which the funnel names the sources."""

    name: str
    kept: int
    gone: int
    by_source: list[int]
    whole: Volume
    volumes: list[Volume]
    seconds: float | None
    cost: float | None
    bar: Markup
    time_bar: Markup

    @property
    def sorting(self) -> float:
        return self.seconds or 0.0


@dataclass(frozen=True)
class FunnelTable:
    levels: list[FunnelLine]
    sources: list[str]
    key: Markup

    @classmethod
    def empty(cls) -> FunnelTable:
        return cls([], [], Markup(""))

    @property
    def with_tokens(self) -> bool:
        return any(level.whole.tokens is not None for level in self.levels)

    @property
    def with_text(self) -> bool:
        return any(level.whole.text_bytes is not None for level in self.levels)


def funnel(run: RunRecord, counted: Funnel) -> FunnelTable:
    """Source by source, with a bar for each."""
    steps = counted.steps
    read = {stage.name: stage.count.kept for stage in run.readers}
    names = sorted(read, key=lambda name: (-read[name], name))
    sources = names if len(names) <= SERIES else [*names[: SERIES - 1], OTHERS]
    looks = (
        [series_class(k) if source != OTHERS else "series-0" for k, source in enumerate(sources)]
        if len(sources) > 1
        else ["kept-shape"]
    )
    widest = max((step.kept + step.gone for step in steps), default=0) or 1
    took: dict[str, tuple[float | None, float | None]] = {
        stage.name: (stage.count.seconds, stage.cost) for stage in run.stages
    }
    if read and READ not in took:
        took[READ] = (
            sum(stage.count.seconds for stage in run.readers),
            total([stage.cost for stage in run.readers]),
        )
    longest = max((seconds or 0.0 for seconds, _ in took.values()), default=0.0) or 1.0
    lines = []
    for step in steps:
        groups = [[source] if source != OTHERS else names[SERIES - 1 :] for source in sources]
        by_source = [sum(step.left.get(source, 0) for source in group) for group in groups]
        by_volume = [Volume.of_all(step.volumes.get(source, Volume()) for source in group) for group in groups]
        parts = by_source if sum(by_source) == step.kept else [step.kept]  # sources that a stage does not tell apart
        pieces = [(count / widest, look) for count, look in zip(parts, looks, strict=False)]
        bar = row_bar([*pieces, (step.gone / widest, "lost-shape")])
        seconds, cost = took.get(step.name, (None, None))
        time_bar = row_bar([((seconds or 0.0) / longest, "all-shape")])
        lines.append(
            FunnelLine(step.name, step.kept, step.gone, by_source, step.volume, by_volume, seconds, cost, bar, time_bar)
        )
    key = list(zip(looks, sources, strict=True)) if len(sources) > 1 else [("kept-shape", "left")]
    return FunnelTable(lines, sources, key_of([*key, ("lost-shape", "gone here")]))


def total(costs: Sequence[float | None]) -> float | None:
    stated = [cost for cost in costs if cost is not None]
    return sum(stated) if stated else None
