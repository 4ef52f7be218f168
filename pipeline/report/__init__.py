"""report.html: what a run did, for eyes. One file that asks nobody for anything."""

from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.report.sections import MAKERS, Section, SectionMaker, fragment

__all__ = ["MAKERS", "Section", "SectionMaker", "build_report", "fragment"]
