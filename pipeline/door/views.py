"""What a notebook or a terminal shows of a run. All of it goes through rich, which takes text as text: a crawled page
never becomes markup."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from gristmill.pipeline.formatting import as_number, as_short
from gristmill.pipeline.tables import TerminalTable

if TYPE_CHECKING:
    from gristmill.pipeline.report_data.histograms import SurveyRecord

WIDTH = 110  # characters of a notebook's cell
ROWS, BAR = 20, 40  # of a histogram, and characters of its longest bar
MARKUP = '<pre style="white-space:pre;overflow-x:auto;line-height:1.25;font-family:monospace">{code}</pre>'


@dataclass(frozen=True)
class View:
    """Facts, and how to show them. `data` is what `--json` of the command prints."""

    data: Any
    shown: RenderableType = field(repr=False)

    def __rich__(self) -> RenderableType:
        return self.shown

    def __repr__(self) -> str:
        console = Console(width=WIDTH, file=StringIO(), record=True)
        console.print(self.shown)
        return console.export_text().rstrip()

    def _repr_html_(self) -> str:
        console = Console(width=WIDTH, file=StringIO(), record=True, force_jupyter=False)
        console.print(self.shown)
        return console.export_html(inline_styles=True, code_format=MARKUP)


def render_signal(name: str, survey: SurveyRecord, title: str) -> RenderableType:
    """A histogram of at most `ROWS` rows. A threshold stands beside the row that it falls into."""
    signal, cuts = survey.signals[name], [cut for cut in survey.cuts if cut.signal == name]
    edges, counts = signal.edges, signal.counts
    bounds = [min(signal.low, edges[0]), *edges, max(signal.high, edges[-1])]  # of the counts
    each = -(-len(counts) // ROWS) or 1
    sums = [sum(counts[at : at + each]) for at in range(0, len(counts), each)]
    most = max(sums, default=0) or 1
    rows: list[tuple[str, str, str]] = []
    for place, count in enumerate(sums):
        low, high = bounds[place * each], bounds[min((place + 1) * each, len(counts))]
        marks = [
            f"{cut.stage}.{cut.field} {as_short(cut.value)}"
            for cut in cuts
            if low <= cut.value < high or (place == len(sums) - 1 and cut.value == high)
        ]
        bar = "█" * round(BAR * count / most) or ("▏" if count else "")
        if not (count or marks):  # a gap, of which one line is enough
            rows += [("…", "0", "")] if rows and rows[-1][0] != "…" else []
            continue
        rows.append((as_short(low), as_number(count), f"{bar}{'  ← ' if marks else ''}{', '.join(marks)}"))
    rows = rows[:-1] if rows and rows[-1][0] == "…" else rows
    return TerminalTable.of(title, ("from", "documents", ""), rows, words={2})
