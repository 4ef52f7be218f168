"""A comparison as sections of lines and tables, on a page and in a terminal. The page has bars, what is folded, and
examples of documents besides.

compare.html is one file, without network and script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup
from rich.console import Group as Lines, RenderableType
from rich.text import Text

from gristmill.pipeline.compare.compare import Comparison, Difference, counted
from gristmill.pipeline.compare.join import JoinedDocuments, Sides, Way
from gristmill.pipeline.formatting import (
    as_amount,
    as_bytes,
    as_change,
    as_energy,
    as_growth,
    as_moment,
    as_money,
    as_number,
    as_seconds,
    as_share,
    as_tokens,
    one_line,
)
from gristmill.pipeline.look.funnel import READ, SourceLevel, Volume
from gristmill.pipeline.report.charts import key_of
from gristmill.pipeline.report.page import (
    Page,
    Section as PageSection,
    alarms,
    fold,
    fragment,
    page_of as page_with,
    paragraphs,
    tables,
)
from gristmill.pipeline.tables import Bar, Table, TerminalTable, as_html

LONG = 6  # entries of a list that are shown as they are
ROWS = 20  # of a table in a terminal; compare.html has all
STRIPES = (
    ("kept-shape", "kept in both"),
    ("series-3", "A only"),
    ("series-2", "B only"),
    ("all-shape", "neither"),
)
Cells = tuple[str, ...]


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    tables: list[Table]
    folded: Sequence[Table] = ()  # on the page alone
    lines: Sequence[str] = ()
    colours: Sequence[tuple[str, str]] = ()  # of bars: look, name
    ways: Sequence[Way] = ()  # with examples


def sections(found: Comparison) -> list[Section]:
    documents = [sides(found.documents)] if found.documents else []
    every = [totals(found), recipes(found), *documents, funnel(found), reasons(found), costs(found)]
    return [
        replace(section, tables=with_rows(section.tables), folded=with_rows(section.folded))
        for section in every
        if section.lines or with_rows(section.tables) or with_rows(section.folded)
    ]


def with_rows(tables: Sequence[Table]) -> list[Table]:
    return [table for table in tables if table.rows]


def totals(found: Comparison) -> Section:
    a, b = (one.overview.totals for one in found.runs)
    rows = [
        ("records read", *numbers(a.records, b.records)),
        ("documents", *numbers(a.documents, b.documents)),
        ("documents kept", *numbers(a.kept, b.kept)),
        ("kept of documents", as_share(a.kept, a.documents), as_share(b.kept, b.documents), ""),
        ("text kept", *measured(a.text_bytes, b.text_bytes, as_bytes)),
        ("tokens", *tokens(a.tokens, a.tokens_counted, b.tokens, b.tokens_counted)),
        ("time of the last command", *measured(found.runs[0].run.seconds, found.runs[1].run.seconds, as_seconds)),
        ("time of workers, all commands", *measured(a.worker_seconds, b.worker_seconds, as_seconds)),
        ("peak memory of a worker", *measured(a.peak_memory, b.peak_memory, as_bytes)),
        ("on disk", *measured(a.disk_bytes, b.disk_bytes, as_bytes)),
        ("energy", *measured(a.joules, b.joules, as_energy)),
        ("cost", as_money(a.cost, a.currency), as_money(b.cost, b.currency), ""),
    ]
    known = [row for row in rows if row[1:3] != ("–", "–")]
    return Section("overview", "Both runs", [Table.of("Totals", ("", "A", "B", "change"), known)])


# --- recipes ----------------------------------------------------------------------------------------------------------


def recipes(found: Comparison) -> Section:
    changed = [pair for pair in found.stages if pair.state == "changed"]
    alone = [pair for pair in found.stages if pair.state.startswith("only")]
    names = {pair.name: f"{pair.name} (inserted for a rule)" if pair.inserted else pair.name for pair in found.stages}
    rows = [("the recipe", *cells) for cells in settings(found.head)]
    rows += [(names[pair.name], *cells) for pair in changed for cells in settings(pair.differences)]
    rows += [("versions", *cells) for cells in settings(found.versions)]
    lines = [
        f"{title}: {', '.join(listed)}."
        for title, listed in (
            ("Only in A", [names[pair.name] for pair in alone if pair.state == "only in A"]),
            ("Only in B", [names[pair.name] for pair in alone if pair.state == "only in B"]),
            ("At another place in B", [pair.name for pair in found.stages if pair.moved]),
        )
        if listed
    ]
    same = [pair.name for pair in found.stages if pair.state == "same" and not pair.moved]
    note = f"The same in both: {', '.join(same)}." if same else ""
    tables = [Table.of("Settings that differ", ("stage", "field", "A", "B"), rows, words=4, note=note)]
    folded = [
        Table.of(f"{pair.name}, {pair.state}", ("field", "A", "B"), settings(pair.differences), words=3)
        for pair in alone
    ]
    if not rows and not lines:
        lines = ["The recipes are the same."]
    return Section("recipes", "Recipes", tables, folded, lines)


def settings(found: Sequence[Difference]) -> list[Cells]:
    return [(difference.field, *shortened(difference.a, difference.b)) for difference in found]


def shortened(a: str | None, b: str | None) -> tuple[str, str]:
    """Values as they are; of two long lists only what one has and the other has not."""
    ours, others = as_list(a), as_list(b)
    if max(len(ours), len(others)) <= LONG or not (ours and others):
        return a if a is not None else "–", b if b is not None else "–"
    same = f"{sum(value in others for value in ours)} the same, and "
    more, fewer = [value for value in ours if value not in others], [value for value in others if value not in ours]
    return tuple(same + (", ".join(map(str, own)) or "no more") for own in (more, fewer))  # type: ignore[return-value]


def as_list(value: str | None) -> list[object]:
    try:
        parsed = json.loads(value) if value and value.startswith("[") else None
    except ValueError:
        return []
    return parsed if isinstance(parsed, list) else []


# --- documents --------------------------------------------------------------------------------------------------------


def sides(found: JoinedDocuments) -> Section:
    whole, before = found.sides[-1], " before the mix" if found.before_mix else ""
    lines = [
        f"{counted(whole.changed)} changed sides{before}: {as_number(whole.only_a)} kept in A and dropped in B,"
        f" {as_number(whole.only_b)} the other way round. {as_number(whole.both_kept)} kept in both."
    ]
    tables = [by_side(f"Documents kept{before}", found.sides)]
    rows = [(way.dropped_by, way.a if way.dropped_by == "A" else way.b, way.documents) for way in found.ways]
    head = ("dropped in", "by", "documents")
    tables.append(Table.of("What dropped the documents that changed sides", head, rows, words=2))
    return Section("sides", "Documents that changed sides", tables, (), lines, STRIPES, found.ways)


def by_side(title: str, found: Sequence[Sides]) -> Table:
    """By source, where there are several; all of them last."""
    several = found if len(found) > 2 else found[-1:]
    apart = any(side.missing_a or side.missing_b for side in found)
    rows, bars = [], []
    for side in several:
        counts = (side.both_kept, side.only_a, side.only_b, side.both_gone)
        unread = (side.missing_b, side.missing_a) if apart else ()
        rows.append((side.source or "all", *counts, *unread))
        whole = sum(counts) or 1
        bars.append([[(count / whole, look) for count, (look, _) in zip(counts, STRIPES, strict=True)]])
    head = ("source", *(name for _, name in STRIPES), *(("read by A only", "read by B only") if apart else ()))
    return Table.of(title, head, rows, 1, bars)


# --- what run.json counts ---------------------------------------------------------------------------------------------

Levels = tuple[SourceLevel | None, SourceLevel | None]  # of A and B; None where the run has no such stage or source


def levels_of(found: Comparison) -> Iterator[tuple[str, str, Levels]]:
    """What is left after each stage: of all sources (""), then of each."""
    tables: list[dict[tuple[str, str], SourceLevel]] = [{}, {}]
    for table, run in zip(tables, found.runs, strict=True):
        for step in (step for step in run.overview.funnel.steps if step.passed):
            table |= {(step.name, ""): step.whole} | {(step.name, level.source): level for level in step.passed}
    sources = list(dict.fromkeys(reader.name for run in found.runs for reader in run.run.readers))
    for stage in [READ, *(pair.name for pair in found.stages if pair.name not in sources)]:
        for source in ["", *(sources if len(sources) > 1 else [])]:
            a, b = (table.get((stage, source)) for table in tables)
            if a or b:
                yield stage, source, (a, b)


def funnel(found: Comparison) -> Section:
    levels = list(levels_of(found))
    whole = {
        stage + (" (only in A)" if b is None else " (only in B)" if a is None else ""): (a, b)
        for stage, source, (a, b) in levels
        if not source
    }
    counts = [each(pair, "left") for pair in whole.values()]
    widest = max((count for pair in counts for count in pair if count), default=0) or 1
    bars = [
        [[(count / widest, look)] for count, look in zip(pair, ("series-3", "series-2"), strict=True) if count]
        for pair in counts
    ]
    left = [(name, *numbers(*each(pair, "left"))) for name, pair in whole.items()]
    folded = []
    volumes = {name: (a.volume if a else Volume(), b.volume if b else Volume()) for name, (a, b) in whole.items()}
    if any(volume.text_bytes is not None for both in volumes.values() for volume in both):
        rows = [(name, *measured(a.text_bytes, b.text_bytes, as_bytes)) for name, (a, b) in volumes.items()]
        folded.append(of_both("Text left after each stage", "after", rows))
    if any(volume.tokens is not None for both in volumes.values() for volume in both):
        rows = [(name, *tokens(a.tokens, a.counted, b.tokens, b.counted)) for name, (a, b) in volumes.items()]
        note = "~: estimated from the text, at the bytes that a token turned out to hold."
        folded.append(of_both("Tokens left after each stage", "after", rows, note=note))
    by_source = [(stage, source, *numbers(*each(pair, "left"))) for stage, source, pair in levels if source]
    folded.append(
        Table.of(
            "Documents left after each stage, by source", ("after", "source", "A", "B", "change"), by_source, words=2
        )
    )
    documents = of_both("Documents left after each stage", "after", left, bars)
    return Section("funnel", "Funnel", [documents], folded, colours=[("series-3", "A"), ("series-2", "B")])


def each(pair: tuple[object, object], name: str) -> tuple[Any, Any]:
    """A number of both, None where there is none."""
    a, b = (getattr(one, name, None) for one in pair)
    return a, b


def reasons(found: Comparison) -> Section:
    """Reasons for which both did not drop the same number, the largest change first."""
    drops = [{stage.name: stage.drops for stage in one.run.stages} for one in found.runs]
    rows = []
    for place, stage in enumerate(pair.name for pair in found.stages):
        a, b = (by_stage.get(stage, {}) for by_stage in drops)
        rows += [(place, stage, reason, a.get(reason, 0), b.get(reason, 0)) for reason in {**a, **b}]
    rows.sort(key=lambda row: (-abs(row[4] - row[3]), row[0], -max(row[3:]), row[2]))
    cells = [(stage, reason, *numbers(a, b)) for _, stage, reason, a, b in rows if a != b]
    head = ("stage", "reason", "A", "B", "change")
    return Section("reasons", "Reasons", [Table.of("Documents dropped, where counts differ", head, cells, words=2)])


def costs(found: Comparison) -> Section:
    currencies = {one.overview.totals.currency for one in found.runs} - {None}
    a, b = ({cost.stage: cost for cost in one.overview.costs} for one in found.runs)
    pairs = {pair.name: (a.get(pair.name), b.get(pair.name)) for pair in found.stages}
    measures: dict[str, tuple[str, Callable[[float | None], str]]] = {
        "Worker time": ("seconds", as_seconds),
        "Documents a second": ("documents_per_second", as_number),
        "Bytes passed on": ("bytes_out", as_bytes),
        "Peak memory": ("peak_memory", as_bytes),
        f"Cost, {currencies.pop()}" if len(currencies) == 1 else "Cost": ("cost", as_amount),
    }
    tables = [
        of_both(title, "stage", [(stage, *measured(*each(pair, name), words)) for stage, pair in pairs.items()])
        for title, (name, words) in measures.items()
        if any(number is not None for pair in pairs.values() for number in each(pair, name))
    ]
    return Section("costs", "Time and memory", tables[:1], tables[1:])


def of_both(title: str, head: str, rows: Sequence[Cells], bars: Sequence[Sequence[Bar]] = (), note: str = "") -> Table:
    return Table.of(title, (head, "A", "B", "change"), rows, bars=bars, note=note)


# --- numbers ----------------------------------------------------------------------------------------------------------


def numbers(a: int | None, b: int | None) -> tuple[str, str, str]:
    """Both, and by how much B has more."""
    return as_number(a), as_number(b), "" if a is None or b is None else as_change(b - a)


def measured(a: float | None, b: float | None, words: Callable[[float | None], str]) -> tuple[str, str, str]:
    return words(a), words(b), as_growth(a, b)


def tokens(a: int | None, counted_a: bool, b: int | None, counted_b: bool) -> tuple[str, str, str]:
    return as_tokens(a, counted_a), as_tokens(b, counted_b), as_growth(a, b)


# --- page -------------------------------------------------------------------------------------------------------------


def page_of(found: Comparison) -> str:
    """The text of compare.html; the caller writes it."""
    folders = [one.out.rstrip("/").rsplit("/", 1)[-1] for one in found.runs]
    head = fragment(HEAD, {"runs": found.runs, "alike": not found.unlike})
    care = alarms("unlike", "What cannot be compared, or only with care", found.unlike, "Take care")
    return page_with(Page("comparison", " and ".join(folders), head, FOOTER), [care, *map(on_page, sections(found))])


def on_page(section: Section) -> PageSection:
    html = paragraphs(section.lines) + key_of(section.colours) + tables(*section.tables)
    for table in section.folded:
        html += fold(table.title, as_html(table))
    for number, way in enumerate(way for way in section.ways if way.examples):
        title = f"{way.a} in A, {way.b} in B: {len(way.examples)} of {way.documents:,}"
        examples = fragment(EXAMPLES, {"way": way, "look": "went" if way.dropped_by == "B" else "stays"})
        html += fold(title, examples, is_open=number == 0)
    return PageSection(section.key, section.title, html)


HEAD = """\
<dl class="settings runs">
{% for one in runs %}
<dt><span class="letter run-{{ one.letter }}">{{ one.letter }}</span></dt><dd><bdi>{{ one.out }}</bdi> <span class="soft">{{ one.run.name }}, {{ one.run.status }}, {{ one.run.started | moment }}</span></dd>
{% endfor %}
</dl>
{% if alike %}<p class="soft">Both runs read the same documents, with the same package versions, on like machines.</p>{% endif %}"""

EXAMPLES = """\
{% for its in way.examples %}
{{ parts.sample(look, its.uid ~ ' · ' ~ its.source, its.url, way.dropped_by ~ ': ' ~ its.detail if its.detail else '', [(its.text, false)] if its.text else [], 'Its text was not kept.') }}
{% endfor %}
"""

FOOTER = Markup(
    "Made by Gristmill from both runs' <code>run.json</code>, Parquet files and rejects; documents are joined by uid."
    " Samples are crawled text, shown as it is; links leave without a referrer."
)


# --- terminal ---------------------------------------------------------------------------------------------------------


def render(found: Comparison) -> RenderableType:
    parts: list[RenderableType] = []
    for one in found.runs:
        about = "  ".join(map(one_line, (one.run.name, one.run.status, as_moment(one.run.started), one.out)))
        parts.append(Text.assemble((f"{one.letter}  ", "bold"), about))
    parts += [Text(f"take care: {one_line(line)}", style="bold yellow") for line in found.unlike]
    for section in sections(found):
        parts += [Text(), *(Text(one_line(line)) for line in section.lines)] if section.lines else []
        for table in section.tables:
            parts += [Text(), TerminalTable.showing(table.first(ROWS, "compare.html"))]
    return Lines(*parts)
