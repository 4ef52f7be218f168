"""What stages show of themselves, in a terminal and in report.html; the blocks are in `gristmill.stages.figures`."""

from __future__ import annotations

from gristmill.pipeline.figures.metrics import figures_of, kept_figures, token_counts_of
from gristmill.stages.figures import Block, FactList, Plane, Point, Table, Warnings

__all__ = [
    "Block", "FactList", "Plane", "Point", "Table", "Warnings", "figures_of", "kept_figures", "token_counts_of",
]  # fmt: skip
