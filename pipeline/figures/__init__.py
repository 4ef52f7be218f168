"""What stages tell of themselves, for a terminal and for report.html."""

from __future__ import annotations

from pipeline.figures.blocks import Block, Facts, Figures, Plane, Point, Warnings
from pipeline.figures.told import Told, told_of

__all__ = ["Block", "Facts", "Figures", "Plane", "Point", "Told", "Warnings", "told_of"]
