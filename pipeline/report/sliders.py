"""Histograms of what rules decide on, with sliders on their thresholds; and the data by which the page's script moves
them.

All numbers come from partitions/NAME/survey.json (`gristmill.pipeline.report_data`), so they are `gristmill tune`'s:
exact for one threshold, from a sample for several at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypedDict

import numpy as np
from markupsafe import Markup

from gristmill.pipeline.formatting import as_number, as_share, as_short
from gristmill.pipeline.look.funnel import Volume, Volumes
from gristmill.pipeline.report.charts import TICKS, Histogram, ThresholdMark, histogram, round_step
from gristmill.pipeline.report.sections import Section, fragment
from gristmill.pipeline.report_data.histograms import CutCounts, SignalCounts, SurveyRecord, places_of_cut, side_by_side
from gristmill.pipeline.report_data.survey import OTHERS
from gristmill.pipeline.store.run_records import RunRecord, StageRecord
from gristmill.pipeline.tables import row_bar
from gristmill.stages.figures import longest_of

BARS = 56
PARTS_OF_DATA = ("segment", "weight", "sources", "reach", "stay", "rules", "sample")
PARTS_OF_CUT = ("stage", "field", "signal", "side", "value", "at", "free", "documents", "weights", "reached")
PLACES = 10_000  # of a slider, which lies on the scale of its histogram
NAMED = 4  # rules that a segment is called by; of more, the first and the last


def signal_sections(stage: StageRecord, surveys: Sequence[SurveyRecord]) -> list[Section]:
    """The histograms of a stage: of a rule, those of its thresholds; of a stage that measures, those of what it added
    and no rule asks for. Each segment has its own; where several have the stage, it is said whose documents they
    are."""
    name = stage.name
    if stage.kind == "rule":
        sections = [
            (survey, Section("Thresholds", thresholds_of(name, number, survey)))
            for number, survey in enumerate(surveys)
            if any(cut["stage"] == name for cut in survey["cuts"])
        ]
    else:
        passed = {*stage.sources, OTHERS}
        sections = signals_added(
            set(stage.adds), [survey for survey in surveys if not passed.isdisjoint(survey["sources"])]
        )
    if len(sections) == 1:
        return [sections[0][1]]
    return [
        replace(section, title=f"{section.title} of {and_so_on(survey['sources'])}") for survey, section in sections
    ]


def signals_added(added: set[str], surveys: Sequence[SurveyRecord]) -> list[tuple[SurveyRecord, Section]]:
    """By segment."""
    sections = []
    for survey in side_by_side([survey for survey in surveys if not added.isdisjoint(survey["signals"])]):
        signals, cuts = survey["signals"], survey["cuts"]
        cut_signals = {cut["signal"] for cut in cuts}
        plain = [signal for signal in signals if signal in added and signal not in cut_signals]
        governed = sorted(added & cut_signals)
        if plain or governed:
            flat = [(signal, in_words(signals[signal])) for signal in plain if is_flat(signals[signal])]
            charts = [
                histogram(chart_of(signal, signals[signal], [], "")) for signal in plain if not is_flat(signals[signal])
            ]
            rules = [(signal, sorted({cut["stage"] for cut in cuts if cut["signal"] == signal})) for signal in governed]
            values = {"charts": Markup("").join(charts), "rules": rules, "plain": len(plain), "flat": flat}
            sections.append((survey, Section("Signals", fragment(SIGNALS, values))))
    return sections


def and_so_on(sources: Sequence[str]) -> str:
    return ", ".join(sources[:NAMED]) + (" and others" if len(sources) > NAMED else "")


def is_flat(signal: SignalCounts) -> bool:
    """Do all documents lie in one bar?"""
    return sum(1 for count in signal["counts"] if count) < 2


def in_words(signal: SignalCounts) -> str:
    low, high = signal["low"], signal["high"]
    values = number(low) if low == high else f"{as_short(low)} to {as_short(high)}"
    return f"all {as_number(sum(signal['counts']))} documents: {values}"


SIGNALS = """\
{% if rules %}<p>Measured here and cut by rules: {% for signal, stages in rules %}<code>{{ signal }}</code> ({{ stages | join(', ') }}){{ '; ' if not loop.last }}{% endfor %}.</p>{% endif %}
{% if plain %}<details class="fold"{{ ' open' if plain <= 8 }}><summary>{{ plain }} signal{{ 's' if plain > 1 }} that no threshold cuts</summary>
{% if charts %}<div class="histograms small">{{ charts }}</div>{% endif %}
{% if flat %}<dl class="settings flat">{% for name, words in flat %}<dt class="mono">{{ name | breakable }}</dt><dd>{{ words }}</dd>{% endfor %}</dl>{% endif %}
</details>{% endif %}
"""

HOW_DRAWN = Markup(
    '<p class="soft note">Heights of bars are square roots of numbers of documents, so that the few are seen beside the many; '
    'behind a <span class="mono">//</span> on the axis the scale is a coarser one. The tables below have the counts.</p>'
)


def explained(sections: Sequence[Section], seen: set[str]) -> list[Section]:
    """How histograms are drawn, said where the first of their kind stand."""
    with_notes = []
    for section in sections:
        kind = section.title.split(" of ")[0]
        first = kind in ("Thresholds", "Signals") and kind not in seen and "<figure" in section.html
        with_notes.append(replace(section, html=HOW_DRAWN + section.html) if first else section)
        seen |= {kind} if first else set()
    return with_notes


def thresholds_of(stage: str, number: int, survey: SurveyRecord) -> Markup:
    """One histogram for each signal that the rule cuts, and a slider for each threshold on it."""
    of_stage = [(k, cut) for k, cut in enumerate(survey["cuts"]) if cut["stage"] == stage]
    charts = []
    for name in dict.fromkeys(cut["signal"] for _, cut in of_stage):
        of_signal = [(k, cut) for k, cut in of_stage if cut["signal"] == name]
        signal = survey["signals"][name]
        sliders = [(k, slider(cut, signal, survey)) for k, cut in of_signal]
        below = fragment(SLIDERS, {"segment": number, "places": PLACES, "sliders": sliders})
        identity = f"{number}-{of_signal[0][0]}"
        charts.append(histogram(chart_of(name, signal, [cut for _, cut in of_signal], identity, below)))
    return fragment('<div class="histograms">{{ charts }}</div>', {"charts": Markup("").join(charts)})


class Slider(CutCounts):
    """A threshold on the page."""

    shown: str  # its value
    alone: int  # documents that nothing but it takes
    whole: int  # documents that came to the rules
    place: int


def slider(cut: CutCounts, signal: SignalCounts, survey: SurveyRecord) -> Slider:
    whole = sum(documents for documents, _ in survey["reach"])
    place = round(PLACES * places_of_cut(signal, cut["side"])[cut["at"]])
    return {**cut, "shown": number(cut["value"]), "alone": alone_of(cut), "whole": whole, "place": place}


def alone_of(cut: CutCounts) -> int:
    """Documents that nothing but this threshold takes."""
    end = int(cut["at"]) + 1
    return sum(sum(row[:end] if cut["side"] == "low" else row[end:]) for row in cut["documents"])


SLIDERS = """\
{% for k, cut in sliders %}
<div class="slider">
<input type="range" id="cut-{{ segment }}-{{ k }}" data-segment="{{ segment }}" data-cut="{{ k }}" min="0" max="{{ places }}" step="1" value="{{ cut.place }}" aria-valuetext="{{ cut.shown }}" disabled>
<label for="cut-{{ segment }}-{{ k }}"><code>{{ cut.field }}</code> <span class="soft says">takes {{ 'below' if cut.side == 'low' else 'above' }} {{ cut.shown }}: {{ cut.takes | number }} ({{ share(cut.takes, cut.whole) }}), {{ cut.alone | number }} of them alone</span></label>
<input type="number" step="any" value="{{ '%.15g' % cut.value }}" aria-label="{{ cut.stage }}.{{ cut.field }}, as a number" disabled>
<span class="moved"></span></div>
{% endfor %}
"""


def chart_of(
    name: str, signal: SignalCounts, cuts: Sequence[CutCounts], identity: str, below: Markup | None = None
) -> Histogram:
    """A signal as bars; neighbouring steps make one bar where they are many."""
    edges, counts, places = signal["edges"], signal["counts"], [0.0, *signal["places"], 1.0]
    starts = [*bar_starts(places), len(counts)]
    bars = [sum(counts[a:b]) for a, b in pairwise(starts)]
    marks = [
        ThresholdMark(
            cut["side"],
            cut["value"],
            places_of_cut(signal, cut["side"])[cut["at"]],
            f"{'≥' if cut['side'] == 'low' else '≤'} {number(cut['value'])}",
        )
        for cut in cuts
    ]
    return Histogram(
        title=name,
        about="",
        edges=[edges[max(0, a - 1)] for a in starts[:-1]],
        places=[places[a] for a in starts],
        counts=bars,
        ticks=ticks_of(signal),
        thresholds=marks,
        identity=identity,
        knee=signal["knee"],
        below=below if below is not None else Markup(""),
    )


def bar_starts(places: Sequence[float]) -> list[int]:
    """The steps at which bars begin, so that bars are about equally wide, however the steps lie."""
    starts = [0]
    for step, place in enumerate(places[:-1]):
        if step and place - places[starts[-1]] >= 0.9 / BARS:
            starts.append(step)
    return starts


def number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


CLEAR = 0.13  # of the width between two labels, so that they stand apart on a phone


def ticks_of(signal: SignalCounts) -> list[tuple[float, str]]:
    """Round numbers, evenly apart where most documents lie, and the end of the tail; powers of ten where a signal spans
    decades."""
    edges, places = signal["edges"], signal["places"]
    if signal["decades"]:
        wanted = [10.0**k for k in range(-12, 13)]
        few = edges[0] <= 0 or edges[-1] / edges[0] < 2000
        wanted += [factor * power for power in wanted for factor in (3, 2, 5)] if few else []
    else:
        knee = edges[-1] if signal["knee"] is None else float(np.interp(signal["knee"], places, edges))
        step = round_step(max(knee - edges[0], 1e-12) / TICKS)
        step = max(step, 1.0) if all(float(edge).is_integer() for edge in edges) else step
        wanted = [step * k for k in range(math.ceil(edges[0] / step - 1e-9), math.floor(knee / step + 1e-9) + 1)]
    chosen: dict[float, str] = {}
    for value in [v for v in wanted if edges[0] <= v <= edges[-1]] + [edges[-1]]:
        place = float(np.interp(value, edges, places))
        if all(abs(place - other) > CLEAR for other in chosen):
            chosen[place] = tick(value)
    return sorted(chosen.items())


def tick(value: float) -> str:
    """A number as short as an axis needs it: 10k, 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if unit == "k" else 1):
            return f"{value / size:.4g}{unit}"
    return f"{value + 0.0:.4g}"


class Effect(CutCounts):
    """What a threshold takes, as a row of a table."""

    k: int  # its place in the survey
    shown: str
    alone: int
    bar: Markup


class SegmentEffects(TypedDict):
    called: str
    index: int
    whole: int
    stay: int
    rows: list[Effect]


def effects(surveys: Sequence[SurveyRecord], run: RunRecord) -> list[SegmentEffects]:
    """Each segment's thresholds by how much they alone take."""
    tables: list[SegmentEffects] = []
    for index, survey in enumerate(surveys):
        whole = sum(documents for documents, _ in survey["reach"])
        rows: list[Effect] = [
            {**cut, "k": k, "shown": number(cut["value"]), "alone": alone_of(cut), "bar": Markup("")}
            for k, cut in enumerate(survey["cuts"])
        ]
        rows.sort(key=lambda row: (-row["alone"], -row["takes"], row["k"]))
        most = longest_of([row["takes"] for row in rows], whole)
        for row in rows:
            row["bar"] = row_bar(
                [
                    (row["alone"] / most, "gone-shape"),
                    ((row["takes"] - row["alone"]) / most, "lost-shape"),
                ]
            )
        stay = sum(documents for documents, _ in survey["stay"])
        tables.append({"called": called(survey, run), "index": index, "whole": whole, "stay": stay, "rows": rows})
    return [table for table in tables if table["rows"]]


def called(survey: SurveyRecord, run: RunRecord) -> str:
    """A segment by its rules, and by the sources that come to them: its own name is that of one of them."""
    rules, last = list(survey["rules"]), last_stage(survey, run)
    names = ", ".join(rules) if len(rules) <= NAMED else f"{rules[0]} to {rules[-1]}, {len(rules)} rules"
    if elsewhere(survey, run):
        return f"{names}, of {and_so_on(survey['sources'])}"
    sources = len(last.sources) if last is not None else 0
    return f"{names}, of {sources} sources" if sources > 1 else names


def elsewhere(survey: SurveyRecord, run: RunRecord) -> list[str]:
    """Sources that come to its last rule in another segment."""
    last = last_stage(survey, run)
    return (
        []
        if last is None or OTHERS in survey["sources"]
        else [name for name, count in last.sources.items() if count.docs_in and name not in survey["sources"]]
    )


def last_stage(survey: SurveyRecord, run: RunRecord) -> StageRecord | None:
    """The last of its rules, as the run counted it."""
    name = list(survey["rules"])[-1] if survey["rules"] else ""
    return next((stage for stage in run.stages if stage.name == name), None)


def until(survey: SurveyRecord, run: RunRecord) -> str:
    """Up to where the answer counts: what later stages take is not in it."""
    last = last_stage(survey, run)
    if last is None:
        return ""
    later = [stage.name for stage in run.stages[run.stages.index(last) + 1 :] if stage.count.lost]
    some = ", ".join(later[:3]) + (f" and {len(later) - 3} more" if len(later) > 3 else "")
    others = elsewhere(survey, run)
    beside = f" Of {and_so_on(survey['sources'])} alone; another segment has {and_so_on(others)}." if others else ""
    return f"Counted after {last.name}" + (f", before {some}." if later else ".") + beside


def tokens_a_unit(survey: SurveyRecord, run: RunRecord, lefts: Volumes) -> list[float] | None:
    """For each group of sources the tokens that stand for a unit of what documents are weighed by, as the funnel
    estimates them; None where it does not."""
    last = last_stage(survey, run)
    after = lefts.get(last.name) if last is not None else None
    if last is None or after is None or survey["weight"] in (None, "tokens"):
        return None
    here = {source: after.get(source, Volume()) for source in [*last.sources, *survey["sources"]]}
    others = [volume for source, volume in here.items() if source not in survey["sources"]]
    groups = [Volume.of_all(others).tokens if name == OTHERS else here[name].tokens for name in survey["sources"]]
    counted = [
        (tokens, weight)
        for tokens, (_, weight) in zip(groups, survey["stay"], strict=True)
        if tokens is not None and weight
    ]
    if not counted:
        return None
    # Of a source of which nothing is left.
    usual = sum(tokens for tokens, _ in counted) / sum(weight for _, weight in counted)
    return [
        tokens / weight if tokens is not None and weight else usual
        for tokens, (_, weight) in zip(groups, survey["stay"], strict=True)
    ]


def languages(surveys: Sequence[SurveyRecord]) -> Section | None:
    """Documents by language, of the first segment that knows it and of those beside it."""
    with_languages = side_by_side([survey for survey in surveys if survey.get("languages")])
    if not with_languages:
        return None
    counts: dict[str, tuple[int, int]] = {}
    for name, came, stayed in (row for survey in with_languages for row in survey["languages"]):
        before = counts.get(name, (0, 0))
        counts[name] = before[0] + came, before[1] + stayed
    given = [(name, *counts[name]) for name in sorted(counts, key=lambda name: (-counts[name][0], name))]
    most = given[0][1]
    more = [survey["more_languages"] for survey in with_languages if survey["more_languages"][0]]
    if more:
        languages_more, came_more, stayed_more = zip(*more, strict=True)
        given.append((f"{max(languages_more)} more", sum(came_more), sum(stayed_more)))
    whole = sum(came for _, came, _ in given)
    rows = [
        (
            name,
            [
                ("came", as_number(came)),
                ("share", as_share(came, whole)),
                ("stay", as_number(stayed)),
                ("of them", as_share(stayed, came)),
            ],
            row_bar([(stayed / most, "kept-shape"), ((came - stayed) / most, "lost-shape")]),
        )
        for name, came, stayed in given
    ]
    return Section("", fragment(LANGUAGES, {"rows": rows}), topic="languages")


LANGUAGES = """\
<table class="stack"><caption>Documents that came to the rules, by language, and those that all rules of that segment keep</caption>
<thead><tr><th scope="col">language</th><th scope="col" class="n">came</th><th scope="col" class="n">share</th><th scope="col" class="n">stay</th><th scope="col" class="n">of them</th><td></td></tr></thead>
<tbody>{% for name, cells, bar in rows %}
<tr><th scope="row">{{ name }}</th>{% for head, cell in cells %}<td class="n" data-head="{{ head }}">{{ cell }}</td>{% endfor %}<td class="track">{{ bar }}</td></tr>
{% endfor %}</tbody></table>
"""


def data_of(surveys: Sequence[SurveyRecord], run: RunRecord, lefts: Volumes, where: str) -> Markup:
    """What the script needs, as JSON that cannot end the element it stands in."""
    segments = [
        chosen_of(survey, PARTS_OF_DATA)
        | {
            "cuts": [chosen_of(cut, PARTS_OF_CUT) for cut in survey["cuts"]],
            "signals": {
                cut["signal"]: chosen_of(survey["signals"][cut["signal"]], ("edges", "places", "whole"))
                for cut in survey["cuts"]
            },
            "until": until(survey, run),
            "tokens": tokens_a_unit(survey, run, lefts),
        }
        for survey in surveys
    ]
    text = json.dumps(
        {"where": where, "segments": segments}, separators=(",", ":")
    )  # ASCII: U+2028 and all others are escaped
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def chosen_of(data: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    return {name: data[name] for name in names}
