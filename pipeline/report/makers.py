"""Which kinds of stages have sections of their own in the report, beside the figures that a stage makes itself."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.pipeline.report.sections import SectionMaker, reading, writing

MAKERS: Mapping[str, SectionMaker] = {"read": reading, "sink": writing}
