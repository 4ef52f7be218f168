"""A run beside what the publishers of its recipe report: share dropped by step, tokens a document, documents and tokens
in all; and which of these are far off.

FineWeb-2's published pipeline gave a thousandth of the published documents for months before anybody saw it. A share
that a step dropped is far off where it differs by more than 15 points, or where what stays differs threefold; and by
more than chance (four standard errors) either way. Sizes are far off from a factor of three, tokens a document from
two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gristmill.pipeline.formatting import as_number
from gristmill.pipeline.look.funnel import Funnel
from gristmill.pipeline.store.run_records import RunRecord

WITHIN = 0.15  # of a share
TIMES_STAYING, TIMES_SIZE, TIMES_LENGTH = 3.0, 3.0, 2.0
ERRORS = 4.0  # standard errors
ENOUGH = 100  # documents whose mean length means something
DROPPED = "dropped, documents"


@dataclass(frozen=True)
class Beside:
    """One figure. None: not published, or not known of the run."""

    what: str
    measure: str
    published: float | None
    ours: float | None
    source: str
    far: bool = False

    @property
    def is_share(self) -> bool:
        return self.measure == DROPPED

    def in_words(self, value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}" if self.is_share else as_number(round(value))


def beside_published(run: RunRecord, funnel: Funnel) -> list[Beside]:
    """All figures, steps first, in the order of the run; none where the recipe tells of no publisher."""
    told = published_in(run)
    return [*steps(told, run, funnel), *sizes(told, funnel)] if told else []


def published_in(run: RunRecord) -> Mapping[str, Any]:
    told: Mapping[str, Any] = run.recipe.get("published") or {}
    return told


def steps(told: Mapping[str, Any], run: RunRecord, funnel: Funnel) -> Iterator[Beside]:
    """Each stage that its publisher tells of."""
    published = told.get("steps") or {}
    came = {stage.name: stage.count.docs_in for stage in run.stages}
    for step in funnel.steps:
        if given := published.get(step.name):
            theirs, documents = given["dropped"], came.get(step.name, 0)
            ours = step.gone / documents if documents else None
            source = given.get("source") or told.get("source", "")
            yield Beside(step.name, DROPPED, theirs, ours, source, is_far(theirs, ours, documents))


def is_far(theirs: float, ours: float | None, documents: int) -> bool:
    """Do two shares of documents dropped differ, by much and by more than chance?"""
    if ours is None:
        return False
    apart = abs(theirs - ours)
    error = math.sqrt(max(theirs * (1 - theirs), ours * (1 - ours), 1 / documents) / documents)
    stays = sorted((1 - theirs, 1 - ours))
    other = stays[1] > TIMES_STAYING * stays[0]
    return (apart > WITHIN or other) and apart > ERRORS * error


def sizes(told: Mapping[str, Any], funnel: Funnel) -> Iterator[Beside]:
    """Of the data set as a whole."""
    share, source, of = told.get("input_share"), str(told.get("source") or ""), str(told.get("of") or "") or "in all"
    last = funnel.steps[-1] if funnel.steps else None
    ours = {"documents": last.kept if last else None, "tokens": last.volume.tokens if last else None}
    theirs = {name: told.get(name) for name in ours}
    if theirs["documents"] and theirs["tokens"]:
        length = theirs["tokens"] / theirs["documents"]
        mean = ours["tokens"] / ours["documents"] if ours["tokens"] and ours["documents"] else None
        enough = (ours["documents"] or 0) >= ENOUGH
        yield Beside(of, "tokens a document", length, mean, source, enough and differ(length, mean, TIMES_LENGTH))
    for name, whole in theirs.items():
        if whole:
            expected = whole * share if share else None
            far = differ(expected, ours[name], TIMES_SIZE)
            measure = f"{name}, of {share:g} of the input" if share else f"{name}, of the whole input"
            yield Beside(of, measure, expected if share else whole, ours[name], source, far)


def differ(theirs: float | None, ours: float | None, times: float) -> bool:
    if theirs is None or ours is None:
        return False
    return max(theirs, ours) > times * min(theirs, ours)


def alarms_of_published(found: list[Beside]) -> list[str]:
    return [
        f"{each.what}: {each.measure}: {each.in_words(each.ours)}, where its publisher reports"
        f" {each.in_words(each.published)} ({each.source})"
        for each in found
        if each.far
    ]
