"""report.html: what a run did, for eyes. One file that asks nobody for anything."""

from pipeline.report.build import build_report
from pipeline.report.makers import MAKERS
from pipeline.report.sections import Section, SectionMaker, bars, fragment

__all__ = ["MAKERS", "Section", "SectionMaker", "bars", "build_report", "fragment"]
