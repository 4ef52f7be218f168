"""What stages tell of themselves, for a terminal and for report.html."""

from __future__ import annotations

from gristmill.pipeline.figures.blocks import Block, Facts, Figures, Plane, Point, Warnings
from gristmill.pipeline.figures.metrics import Told, told_of

__all__ = ["Block", "Facts", "Figures", "Plane", "Point", "Told", "Warnings", "told_of"]
