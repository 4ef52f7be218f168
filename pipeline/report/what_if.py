"""What if a threshold were another: histograms of what rules decide on, with sliders, a table of what each threshold
takes, and the data by which the page's script moves them.

All numbers come from partitions/NAME/survey.json (`gristmill.pipeline.report_data`), so they are `gristmill tune`'s:
exact for one threshold, from a sample for several at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from gristmill.pipeline.formatting import as_number, as_share
from gristmill.pipeline.look.funnel import Volume, Volumes
from gristmill.pipeline.report.charts import TICKS, Histogram, ThresholdMark, histogram
from gristmill.pipeline.report.page import Section, fold, fragment, paragraphs, tables
from gristmill.pipeline.report.run_sections import ReportData
from gristmill.pipeline.report_data.histograms import CutCounts, SignalCounts, SurveyRecord, side_by_side
from gristmill.pipeline.report_data.survey import OTHERS
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.store.serialize import plain
from gristmill.pipeline.tables import Table
from gristmill.stages.figures import longest_of

BARS = 56
PARTS_OF_DATA = ("segment", "weight", "sources", "reach", "stay", "rules", "sample")
PARTS_OF_CUT = ("stage", "field", "signal", "side", "value", "at", "free", "documents", "weights", "reached")
NAMED = 4  # rules that a segment is called by; of more, the first and the last
FEW = 8  # signals that are shown at once
CLEAR = 0.13  # of the width between two labels, so that they stand apart on a phone

ANSWER = Markup('<section id="answer" class="answer live" aria-label="Answer to what if" hidden></section>')
HOW_DRAWN = Markup(
    '<p class="soft note">In histograms, heights of bars are square roots of numbers of documents, so that the few are'
    " seen beside the many. Each stop of a slider has the same width, so that scales are not even.</p>"
)
ABOUT = (
    "Each threshold has a slider below its histogram. Moving one counts, on all documents, what would stay after these"
    " rules; moving several does so too, on 2,000 documents where there are more. This table is where to begin: what each"
    " threshold takes, and what it takes alone, that nothing else would."
)
NO_SCRIPT = Markup(
    '<noscript><p class="soft">The sliders need the script of this page, which makes no requests; the histograms and'
    " tables do not.</p></noscript>"
)


# --- the table of thresholds ------------------------------------------------------------------------------------------


def what_if(data: ReportData) -> Section | None:
    """Each segment's thresholds by how much they alone take."""
    found = [effects(number, survey) for number, survey in enumerate(data.surveys) if survey.cuts]
    html = paragraphs([ABOUT]) + NO_SCRIPT + fragment('<div class="takes">{{ found }}</div>', {"found": tables(*found)})
    return Section("what-if", "What if", html) if found else None


def effects(number: int, survey: SurveyRecord) -> Table:
    whole = sum(documents for documents, _ in survey.reach)
    stay = sum(documents for documents, _ in survey.stay)
    cuts = [(k, cut, alone_of(cut)) for k, cut in enumerate(survey.cuts)]
    cuts.sort(key=lambda each: (-each[2], -each[1].takes, each[0]))
    full = longest_of([cut.takes for _, cut, _ in cuts], whole)
    rows, bars = [], []
    for k, cut, alone in cuts:
        values = {"place": f"{number}-{k}", "name": f"{cut.stage}.{cut.field}"}
        link = fragment('<a href="#cut-{{ place }}">{{ name }}</a>', values)
        limit = f"{'<' if cut.side == 'low' else '>'} {number_of(cut.value)}"
        rows.append((link, cut.signal, limit, as_number(cut.takes), as_number(alone)))
        bars.append([[(alone / full, "gone-shape"), ((cut.takes - alone) / full, "lost-shape")]])
    title = f"{called(survey)}: {whole:,} documents come to these rules, {stay:,} stay"
    return Table.of(title, ("threshold", "signal", "at", "takes", "alone"), rows, words=2, bars=bars)


def alone_of(cut: CutCounts) -> int:
    """Documents that nothing but this threshold takes."""
    end = int(cut.at) + 1
    return sum(sum(row[:end] if cut.side == "low" else row[end:]) for row in cut.documents)


def called(survey: SurveyRecord) -> str:
    """A segment by its rules, and by the sources that come to them: its own name is that of one of them."""
    rules = list(survey.rules)
    names = ", ".join(rules) if len(rules) <= NAMED else f"{rules[0]} to {rules[-1]}, {len(rules)} rules"
    return f"{names}, of {and_so_on(survey.sources)}"


def and_so_on(sources: Sequence[str]) -> str:
    return ", ".join(sources[:NAMED]) + (" and others" if len(sources) > NAMED else "")


def last_stage(survey: SurveyRecord, run: RunRecord) -> StageRecord | None:
    """The last of its rules, as the run counted it."""
    name = list(survey.rules)[-1] if survey.rules else ""
    return next((stage for stage in run.stages if stage.name == name), None)


# --- histograms of a stage --------------------------------------------------------------------------------------------


def signals_of_stage(stage: StageRecord, surveys: Sequence[SurveyRecord]) -> list[tuple[str, Markup]]:
    """The histograms of a stage: of a rule, those of its thresholds; of a stage that measures, those of what it added
    and no rule asks for. Each segment has its own; where several have the stage, it is said whose documents they
    are."""
    if stage.kind == "rule":
        kind, own = (
            "Thresholds",
            [
                (survey, thresholds_of(stage.name, number, survey))
                for number, survey in enumerate(surveys)
                if any(cut.stage == stage.name for cut in survey.cuts)
            ],
        )
    else:
        passed = {*stage.sources, OTHERS}
        there = [survey for survey in surveys if not passed.isdisjoint(survey.sources)]
        kind, own = "Signals", signals_added(set(stage.adds), there)
    if len(own) == 1:
        return [(kind, own[0][1])]
    return [(f"{kind} of {and_so_on(survey.sources)}", html) for survey, html in own]


def thresholds_of(stage: str, number: int, survey: SurveyRecord) -> Markup:
    """One histogram for each signal that the rule cuts, and a slider for each threshold on it."""
    of_stage = [(k, cut) for k, cut in enumerate(survey.cuts) if cut.stage == stage]
    charts = []
    for name in dict.fromkeys(cut.signal for _, cut in of_stage):
        of_signal = [(k, cut) for k, cut in of_stage if cut.signal == name]
        signal = survey.signals[name]
        below = sliders(number, survey, of_signal)
        identity = f"{number}-{of_signal[0][0]}"
        charts.append(histogram(chart_of(name, signal, [cut for _, cut in of_signal], identity, below)))
    return beside_each_other(charts)


def beside_each_other(charts: Iterable[Markup], look: str = "") -> Markup:
    return fragment(
        '<div class="histograms{{ look }}">{{ charts }}</div>', {"charts": Markup("").join(charts), "look": look}
    )


def sliders(number: int, survey: SurveyRecord, cuts: Sequence[tuple[int, CutCounts]]) -> Markup:
    whole = sum(documents for documents, _ in survey.reach)
    rows = [
        {
            "key": f"{number}-{k}",
            "k": k,
            "cut": cut,
            "shown": number_of(cut.value),
            "place": survey.signals[cut.signal].place(cut.at, cut.side),
            "places": len(survey.signals[cut.signal].counts),
            "takes": f"{cut.takes:,} ({as_share(cut.takes, whole)}), {alone_of(cut):,} of them alone",
        }
        for k, cut in cuts
    ]
    return fragment(SLIDERS, {"segment": number, "rows": rows})


SLIDERS = """\
{% for row in rows %}
<div class="slider">
<input type="range" id="cut-{{ row.key }}" data-segment="{{ segment }}" data-cut="{{ row.k }}" min="0" max="{{ row.places }}" step="1" value="{{ row.place }}" aria-valuetext="{{ row.shown }}" disabled>
<label for="cut-{{ row.key }}"><code>{{ row.cut.field }}</code> <span class="soft says">takes {{ 'below' if row.cut.side == 'low' else 'above' }} {{ row.shown }}: {{ row.takes }}</span></label>
<input type="number" step="any" value="{{ '%.15g' % row.cut.value }}" aria-label="{{ row.cut.stage }}.{{ row.cut.field }}, as a number" disabled>
<span class="moved"></span></div>
{% endfor %}
"""


def signals_added(added: set[str], surveys: Sequence[SurveyRecord]) -> list[tuple[SurveyRecord, Markup]]:
    """By segment."""
    sections = []
    for survey in side_by_side([survey for survey in surveys if not added.isdisjoint(survey.signals)]):
        signals, cut_signals = survey.signals, {cut.signal for cut in survey.cuts}
        uncut = [signal for signal in signals if signal in added and signal not in cut_signals]
        if uncut:
            title = f"{len(uncut)} signal{'s' if len(uncut) > 1 else ''} that no threshold cuts"
            charts = beside_each_other((histogram(chart_of(name, signals[name], [], "")) for name in uncut), " small")
            sections.append((survey, fold(title, charts, is_open=len(uncut) <= FEW)))
    return sections


def chart_of(
    name: str, signal: SignalCounts, cuts: Sequence[CutCounts], identity: str, below: Markup | None = None
) -> Histogram:
    """A signal as bars, each as wide as the others; neighboring steps make one bar where they are many."""
    steps = len(signal.counts)
    each = -(-steps // BARS)
    starts = range(0, steps, each)
    marks = [
        ThresholdMark(
            cut.side,
            signal.place(cut.at, cut.side) / steps,
            f"{'≥' if cut.side == 'low' else '≤'} {number_of(cut.value)}",
        )
        for cut in cuts
    ]
    return Histogram(
        title=name,
        edges=[signal.edges[max(0, start - 1)] for start in starts],
        places=[*(start / steps for start in starts), 1.0],
        counts=[sum(signal.counts[start : start + each]) for start in starts],
        ticks=ticks_of(signal),
        thresholds=marks,
        identity=identity,
        below=below if below is not None else Markup(""),
    )


def number_of(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def ticks_of(signal: SignalCounts) -> list[tuple[float, str]]:
    """In each of a few stretches the edge that is the roundest number, and the last."""
    edges, chosen = signal.edges, list[tuple[float, str]]()
    each = -(-len(edges) // TICKS)
    roundest = [
        min(range(start, min(start + each, len(edges))), key=lambda at: (digits_of(edges[at]), at))
        for start in range(0, len(edges), each)
    ]
    for at in [len(edges) - 1, *roundest]:
        place = (at + 1) / len(signal.counts)
        if all(abs(place - other) > CLEAR for other, _ in chosen):
            chosen.append((place, tick(edges[at])))
    return sorted(chosen)


def digits_of(value: float) -> int:
    """How many digits tell a number, but for its zeros: 1 of 40 and of 0.05."""
    return len(f"{value:g}".replace(".", "").strip("-0"))


def tick(value: float) -> str:
    """A number as short as an axis needs it: 10k, 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if unit == "k" else 1):
            return f"{value / size:.4g}{unit}"
    return f"{value + 0.0:.4g}"


# --- languages --------------------------------------------------------------------------------------------------------


def languages(data: ReportData) -> Section | None:
    """Documents by language, of the first segment that knows it and of those beside it."""
    with_languages = side_by_side([survey for survey in data.surveys if survey.languages])
    if not with_languages:
        return None
    counts: dict[str, tuple[int, int]] = {}
    for name, came, stayed in (row for survey in with_languages for row in survey.languages):
        before = counts.get(name, (0, 0))
        counts[name] = before[0] + came, before[1] + stayed
    given = [(name, *counts[name]) for name in sorted(counts, key=lambda name: (-counts[name][0], name))]
    most = given[0][1]
    whole = sum(came for _, came, _ in given)
    rows = [
        (name, as_number(came), as_share(came, whole), as_number(stayed), as_share(stayed, came))
        for name, came, stayed in given
    ]
    bars = [[[(stayed / most, "kept-shape"), ((came - stayed) / most, "lost-shape")]] for _, came, stayed in given]
    title = "Documents that came to the rules, by language, and those that all rules of that segment keep"
    table = Table.of(title, ("language", "came", "share", "stay", "of them"), rows, bars=bars)
    return Section("languages", "Languages", tables(table))


# --- what the script needs --------------------------------------------------------------------------------------------


def data_of(data: ReportData) -> Markup:
    """JSON that cannot end the element it stands in."""
    segments = [
        {
            **{name: plain(getattr(survey, name)) for name in PARTS_OF_DATA},
            "cuts": [{name: getattr(cut, name) for name in PARTS_OF_CUT} for cut in survey.cuts],
            "signals": {
                name: {"edges": survey.signals[name].edges, "whole": survey.signals[name].whole}
                for name in {cut.signal: None for cut in survey.cuts}
            },
            "until": until(survey, data.run),
            "tokens": tokens_a_unit(survey, data.run, data.seen.funnel.volumes),
        }
        for survey in data.surveys
    ]
    text = json.dumps(
        {"where": data.where, "segments": segments}, separators=(",", ":")
    )  # ASCII: U+2028 and all others are escaped
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def until(survey: SurveyRecord, run: RunRecord) -> str:
    """Up to where the answer counts: what later stages take is not in it."""
    last = last_stage(survey, run)
    if last is None:
        return ""
    later = [stage.name for stage in run.stages[run.stages.index(last) + 1 :] if stage.count.lost]
    some = ", ".join(later[:3]) + (f" and {len(later) - 3} more" if len(later) > 3 else "")
    return f"Counted after {last.name}" + (f", before {some}." if later else ".")


def tokens_a_unit(survey: SurveyRecord, run: RunRecord, lefts: Volumes) -> list[float] | None:
    """For each group of sources the tokens that stand for a unit of what documents are weighed by, as the funnel
    estimates them; None where it does not."""
    last = last_stage(survey, run)
    after = lefts.get(last.name) if last is not None else None
    if last is None or after is None or survey.weight in (None, "tokens"):
        return None
    here = {source: after.get(source, Volume()) for source in [*last.sources, *survey.sources]}
    others = [volume for source, volume in here.items() if source not in survey.sources]
    groups = [Volume.of_all(others).tokens if name == OTHERS else here[name].tokens for name in survey.sources]
    counted = [
        (tokens, weight)
        for tokens, (_, weight) in zip(groups, survey.stay, strict=True)
        if tokens is not None and weight
    ]
    if not counted:
        return None
    # Of a source of which nothing is left.
    usual = sum(tokens for tokens, _ in counted) / sum(weight for _, weight in counted)
    return [
        tokens / weight if tokens is not None and weight else usual
        for tokens, (_, weight) in zip(groups, survey.stay, strict=True)
    ]
