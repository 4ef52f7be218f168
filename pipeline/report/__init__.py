"""report.html: what a run did, for eyes. One file that asks nobody for anything.

`page` is the engine of all pages; `charts` draws; `build.SECTIONS` is the list of what the report shows.
"""

from gristmill.pipeline.report.build import build_report

__all__ = ["build_report"]
