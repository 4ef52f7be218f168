"""What a stage of a finished run shows of itself, from its report.json: the same in a terminal and in report.html.

Stages that come with the mill make their figures anew each time. Of any other the run kept them in its report.json, for
its code may be gone.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gristmill.pipeline.recipe import registry
from gristmill.stages.figures import Report, StageFigures, TokenCounts
from gristmill.stages.stage import Stage

FIGURES, TOKEN_COUNTS = "figures", "token_counts"  # keys of report.json
# Keys of report.json that all stages have, so that a stage which told nothing need not be imported.
COUNTED = frozenset(
    {
        "name", "stage", "kind", "about", "settings", "adds", "docs_in", "kept", "dropped", "quarantined", "bytes_in",
        "bytes_out", "text_bytes", "sources", "samples", "seconds", "peak_memory", "slowest", "cost", "absent", "noted",
        "nuls", "made",
    }
)  # fmt: skip


def figures_of(stage: str, report: Report) -> StageFigures | None:
    """Of the stage of this name in recipes."""
    if FIGURES in report:
        return StageFigures.from_data(report[FIGURES])
    kind = _stage_that_told(stage, report)
    return kind.figures(report) if kind is not None else None


def token_counts_of(stage: str, report: Report) -> TokenCounts | None:
    if TOKEN_COUNTS in report:
        return TokenCounts(**report[TOKEN_COUNTS])
    kind = _stage_that_told(stage, report)
    return kind.token_counts(report) if kind is not None else None


def kept_figures(kind: type[Stage], report: Report) -> dict[str, Any]:
    """What report.json keeps of a stage that does not come with the mill."""
    if registry.comes_with_the_mill(kind):
        return {}
    figures, counts = kind.figures(report), kind.token_counts(report)
    return ({FIGURES: figures.as_data()} if figures is not None else {}) | (
        {TOKEN_COUNTS: asdict(counts)} if counts is not None else {}
    )


def _stage_that_told(stage: str, report: Report) -> type[Stage] | None:
    # `Rule.tally`, and what a Rewrite counts
    told = report.keys() - COUNTED or (report.get("kind") in ("rule", "rewrite") and report.get("noted"))
    return registry.find(stage) if stage in registry.names() and told else None
