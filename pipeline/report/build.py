"""report.html of a run. A section is a function that takes `ReportData`; it stands in `SECTIONS`, and nowhere else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from gristmill.pipeline.formatting import plain
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation import ablations
from gristmill.pipeline.report.page import Page, fragment, page_of
from gristmill.pipeline.report.run_sections import (
    ReportData,
    SectionMaker,
    alarms_of_run,
    failure,
    funnel,
    overview,
    published,
    sources,
    time,
    trained,
)
from gristmill.pipeline.report.stage_sections import stage_by_stage
from gristmill.pipeline.report.what_if import ANSWER, data_of, languages, what_if

SECTIONS: tuple[SectionMaker, ...] = (
    failure,
    alarms_of_run,
    overview,
    funnel,
    published,
    time,
    sources,
    what_if,
    stage_by_stage,
    languages,
    trained,
)


def build_report(folder: RunFolder, sections: Sequence[SectionMaker] = SECTIONS) -> str:
    """The text of report.html for an output folder; the caller writes it."""
    where = shlex.quote(plain(folder.out))
    data = ReportData(folder.record, folder.reports(), folder.surveys, ablations(folder), where)
    return report_of(data, sections)


def report_of(data: ReportData, sections: Sequence[SectionMaker] = SECTIONS) -> str:
    """A stage without a report (of a run that failed) has its counts alone."""
    page = Page(
        "report",
        data.run.name,
        fragment(HEAD, {"run": data.run}),
        fragment(FOOTER, {"gristmill": data.run.gristmill}),
        (Path(__file__).parent / "script.js").read_text("utf-8"),
        data_of(data),
        ANSWER,
    )
    return page_of(page, (section(data) for section in sections))


HEAD = """\
<p><span class="status{{ ' done' if run.status == 'done' else ' wrong' if run.status in ('failed', 'interrupted') }}">{{ run.status }}</span>
<span class="soft">started {{ run.started | moment }}{% if run.finished %}, ended {{ run.finished | moment }}{% endif %}, Gristmill {{ run.gristmill }}</span></p>"""

FOOTER = """\
Made by Gristmill {{ gristmill }} from <code>run.json</code>, <code>stages/*/report.json</code> and <code>partitions/*/survey.json</code>. Samples are crawled text, shown as it is; links leave without a referrer. Every rejected document is in <code>stages/&lt;stage&gt;/rejects/</code>, unless the recipe says otherwise."""
