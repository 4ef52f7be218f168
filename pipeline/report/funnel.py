"""The funnel: documents of each source that are left after each stage, with tokens and bytes where the run knows them. From run.json and report.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.inspect import Run
from pipeline.report.charts import SERIES, Piece, key_of, row_bar, series_class

OTHERS = "other sources"


@dataclass(frozen=True)
class Level:
    """A line of the funnel."""

    name: str
    kept: int
    gone: int
    by_source: list[int]  # as the funnel names them
    tokens: int | None
    bytes_in: int | None
    seconds: float | None
    bar: Markup
    time_bar: Markup

    @property
    def sorting(self) -> float:
        return self.seconds or 0.0


@dataclass(frozen=True)
class Funnel:
    levels: list[Level]
    sources: list[str]
    key: Markup
    with_tokens: bool

    @classmethod
    def empty(cls) -> Funnel:
        return cls([], [], Markup(""), False)


def funnel(run: Run, entries: Sequence[Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]]) -> Funnel:
    """Source by source: a stage that only some sources pass leaves the others as they were."""
    alive = {stage.name: stage.count.kept for stage in run.readers}
    names = sorted(alive, key=lambda name: (-alive[name], name))
    shown = names if len(names) <= SERIES else [*names[: SERIES - 1], OTHERS]
    steps = [("read", dict(alive))] if alive else []
    for stage in run.stages:
        if stage.kind != "read":
            alive |= {source: its.kept for source, its in stage.sources.items()}
            steps.append((stage.name, dict(alive)))
    counted = run.steps()
    widest = max((step.kept + step.gone for step in counted), default=0) or 1
    slowest = max((stage.seconds or 0.0 for stage in run.stages), default=0.0) or 1.0
    given = {str(entry["name"]): entry for entry in entries}
    reading = [entry for entry in entries if entry.get("kind") == "read"]
    levels = []
    for (name, left), step in zip(steps, counted, strict=True):
        by_source = [left.get(source, 0) for source in shown if source != OTHERS]
        by_source += [sum(left.get(source, 0) for source in names[SERIES - 1 :])] if OTHERS in shown else []
        entry = given.get(name, {})
        read = name == "read" and name not in given
        size = sum(its.get("bytes_in") or 0 for its in reading) if read else entry.get("bytes_in")
        seconds = sum(its.get("seconds") or 0.0 for its in reading) if read else entry.get("seconds")
        looks = (
            [series_class(k) if source != OTHERS else "series-0" for k, source in enumerate(shown)] if len(shown) > 1 else ["kept-shape"]
        )
        parts = by_source if sum(by_source) == step.kept else [step.kept]  # sources that a stage does not tell apart
        pieces = [Piece(count / widest, look) for count, look in zip(parts, looks, strict=False)]
        bar = row_bar([*pieces, Piece(step.gone / widest, "lost-shape")])
        time_bar = row_bar([Piece((seconds or 0.0) / slowest, "all-shape")])
        levels.append(Level(name, step.kept, step.gone, by_source, tokens_of(reports.get(name, {})), size or None, seconds, bar, time_bar))
    key = (
        [(series_class(k) if source != OTHERS else "series-0", source) for k, source in enumerate(shown)]
        if len(shown) > 1
        else [("kept-shape", "left")]
    )
    return Funnel(levels, shown, key_of([*key, ("lost-shape", "gone here")]), any(level.tokens is not None for level in levels))


def tokens_of(report: Mapping[str, Any]) -> int | None:
    """Tokens that a stage counted: those of all documents, or those that were drawn or packed."""
    if "packing" in report:
        return int(report["packing"]["tokens"])
    if "mix" in report:
        return int(sum(row["drawn"] for row in report["mix"]["drawn"]))
    return int(report["tokens"]) if isinstance(report.get("tokens"), int) else None
