"""Histograms of what rules decide on, with sliders on their thresholds; and the data by which the page's script moves
them.

All numbers come from legs/NAME/survey.json (`gristmill.pipeline.survey`), so they are `gristmill tune`'s: exact for one
threshold, from a sample for several at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from gristmill.pipeline.formatting import as_number, as_share, as_short
from gristmill.pipeline.look.run_folder import RecordedRun, StageCount
from gristmill.pipeline.look.volume import Left, Volume
from gristmill.pipeline.report.charts import TICKS, BarPiece, Histogram, ThresholdMark, histogram, round_step, row_bar
from gristmill.pipeline.report.sections import Section, fragment, longest_of
from gristmill.pipeline.survey.survey import OTHERS

BARS = 56
Survey = Mapping[str, Any]
PARTS_OF_DATA = ("leg", "weight", "sources", "reach", "stay", "rules", "sample")
PARTS_OF_CUT = ("stage", "field", "signal", "side", "value", "at", "free", "documents", "weights", "reached")
PLACES = 10_000  # of a slider, which lies on the scale of its histogram
NAMED = 4  # rules that a leg is called by; of more, the first and the last


def signal_sections(entry: Mapping[str, Any], surveys: Sequence[Survey]) -> list[Section]:
    """The histograms of a stage: of a rule, those of its thresholds; of a stage that measures, those of what it added
    and no rule asks for. Each leg has its own; where several have the stage, it is said whose documents they are."""
    name, kind = entry["name"], entry.get("kind")
    if kind == "rule":
        made = [
            (its, Section("Thresholds", thresholds_of(name, number, its)))
            for number, its in enumerate(surveys)
            if any(c["stage"] == name for c in its["cuts"])
        ]
    else:
        passed = {*(entry.get("sources") or ()), OTHERS}
        made = signals_added(
            set(entry.get("adds") or ()), [its for its in surveys if not passed.isdisjoint(its["sources"])]
        )
    return [
        section if len(made) == 1 else replace(section, title=f"{section.title} of {and_so_on(its['sources'])}")
        for its, section in made
    ]


def signals_added(added: set[str], surveys: Sequence[Survey]) -> list[tuple[Survey, Section]]:
    """By leg."""
    made = []
    for its in abreast([its for its in surveys if not added.isdisjoint(its["signals"])]):
        cut = {c["signal"] for c in its["cuts"]}
        plain = [signal for signal in its["signals"] if signal in added and signal not in cut]
        governed = sorted(added & cut)
        if plain or governed:
            flat = [(signal, in_words(its["signals"][signal])) for signal in plain if is_flat(its["signals"][signal])]
            drawings = [
                drawn(signal, its["signals"][signal], [], "") for signal in plain if not is_flat(its["signals"][signal])
            ]
            rules = [
                (signal, sorted({c["stage"] for c in its["cuts"] if c["signal"] == signal})) for signal in governed
            ]
            charts = Markup("").join(map(histogram, drawings))
            made.append(
                (
                    its,
                    Section(
                        "Signals",
                        fragment(SIGNALS, {"charts": charts, "rules": rules, "plain": len(plain), "flat": flat}),
                    ),
                )
            )
    return made


def abreast(surveys: Sequence[Survey]) -> list[Survey]:
    """The first leg, and those that have other sources: they are beside it. What is behind it has the same documents
    again."""
    found: list[Survey] = []
    for its in surveys:
        if all(set(its["sources"]).isdisjoint(other["sources"]) for other in found):
            found.append(its)
    return found


def and_so_on(sources: Sequence[str]) -> str:
    return ", ".join(sources[:NAMED]) + (" and others" if len(sources) > NAMED else "")


def is_flat(found: Mapping[str, Any]) -> bool:
    """Do all documents lie in one bar?"""
    return sum(1 for count in found["counts"] if count) < 2


def in_words(found: Mapping[str, Any]) -> str:
    values = (
        number(found["low"])
        if found["low"] == found["high"]
        else f"{as_short(found['low'])} to {as_short(found['high'])}"
    )
    return f"all {as_number(sum(found['counts']))} documents: {values}"


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
    found = []
    for section in sections:
        kind = section.title.split(" of ")[0]
        first = kind in ("Thresholds", "Signals") and kind not in seen and "<figure" in section.html
        found.append(replace(section, html=HOW_DRAWN + section.html) if first else section)
        seen |= {kind} if first else set()
    return found


def thresholds_of(stage: str, number: int, survey: Survey) -> Markup:
    """One histogram for each signal that the rule cuts, and a slider for each threshold on it."""
    its = [(k, cut) for k, cut in enumerate(survey["cuts"]) if cut["stage"] == stage]
    charts = []
    for signal in dict.fromkeys(cut["signal"] for _, cut in its):
        mine = [(k, cut) for k, cut in its if cut["signal"] == signal]
        found = survey["signals"][signal]
        sliders = fragment(
            SLIDERS, {"leg": number, "places": PLACES, "sliders": [(k, slider(cut, found, survey)) for k, cut in mine]}
        )
        charts.append(histogram(drawn(signal, found, [cut for _, cut in mine], f"{number}-{mine[0][0]}", sliders)))
    return fragment('<div class="histograms">{{ charts }}</div>', {"charts": Markup("").join(charts)})


def slider(cut: Mapping[str, Any], found: Mapping[str, Any], survey: Survey) -> dict[str, Any]:
    whole = sum(documents for documents, _ in survey["reach"])
    place = round(PLACES * found["places"][cut["at"]])
    return {**cut, "shown": number(cut["value"]), "alone": alone_of(cut), "whole": whole, "place": place}


def alone_of(cut: Mapping[str, Any]) -> int:
    """Documents that nothing but this threshold takes."""
    at = int(cut["at"]) + 1
    return sum(sum(row[:at] if cut["side"] == "low" else row[at:]) for row in cut["documents"])


SLIDERS = """\
{% for k, cut in sliders %}
<div class="slider">
<input type="range" id="cut-{{ leg }}-{{ k }}" data-leg="{{ leg }}" data-cut="{{ k }}" min="0" max="{{ places }}" step="1" value="{{ cut.place }}" aria-valuetext="{{ cut.shown }}" disabled>
<label for="cut-{{ leg }}-{{ k }}"><code>{{ cut.field }}</code> <span class="soft says">takes {{ 'below' if cut.side == 'low' else 'above' }} {{ cut.shown }}: {{ cut.takes | number }} ({{ share(cut.takes, cut.whole) }}), {{ cut.alone | number }} of them alone</span></label>
<input type="number" step="any" value="{{ '%.15g' % cut.value }}" aria-label="{{ cut.stage }}.{{ cut.field }}, as a number" disabled>
<span class="moved"></span></div>
{% endfor %}
"""


def drawn(
    signal: str, found: Mapping[str, Any], cuts: Sequence[Mapping[str, Any]], identity: str, below: Markup | None = None
) -> Histogram:
    """A signal as bars; neighbouring steps make one bar where they are many."""
    edges, counts, places = found["edges"], found["counts"], [0.0, *found["places"], 1.0]
    starts = [*bar_starts(places), len(counts)]
    bars = [sum(counts[a:b]) for a, b in pairwise(starts)]
    marks = [
        ThresholdMark(
            cut["side"],
            cut["value"],
            found["places"][cut["at"]],
            f"{'≥' if cut['side'] == 'low' else '≤'} {number(cut['value'])}",
        )
        for cut in cuts
    ]
    return Histogram(
        title=signal,
        about="",
        edges=[edges[max(0, a - 1)] for a in starts[:-1]],
        places=[places[a] for a in starts],
        counts=bars,
        ticks=ticks_of(found),
        thresholds=marks,
        identity=identity,
        knee=found["knee"],
        below=below if below is not None else Markup(""),
    )


def bar_starts(places: Sequence[float]) -> list[int]:
    """The steps at which bars begin, so that bars are about equally wide, however the steps lie."""
    starts = [0]
    for at, place in enumerate(places[:-1]):
        if at and place - places[starts[-1]] >= 0.9 / BARS:
            starts.append(at)
    return starts


def number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


CLEAR = 0.13  # of the width between two labels, so that they stand apart on a phone


def ticks_of(found: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Round numbers, evenly apart where most documents lie, and the end of the tail; powers of ten where a signal spans
    decades."""
    edges, places = found["edges"], found["places"]
    if found["decades"]:
        wanted = [10.0**k for k in range(-12, 13)]
        few = edges[0] <= 0 or edges[-1] / edges[0] < 2000
        wanted += [factor * power for power in wanted for factor in (3, 2, 5)] if few else []
    else:
        knee = edges[-1] if found["knee"] is None else float(np.interp(found["knee"], places, edges))
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


def effects(surveys: Sequence[Survey], run: RecordedRun) -> list[dict[str, Any]]:
    """Each leg's thresholds by how much they alone take."""
    found = []
    for index, its in enumerate(surveys):
        whole = sum(documents for documents, _ in its["reach"])
        rows = [
            {**cut, "k": k, "shown": number(cut["value"]), "alone": alone_of(cut)} for k, cut in enumerate(its["cuts"])
        ]
        rows.sort(key=lambda row: (-row["alone"], -row["takes"], row["k"]))
        most = longest_of([row["takes"] for row in rows], whole)
        for row in rows:
            row["bar"] = row_bar(
                [
                    BarPiece(row["alone"] / most, "gone-shape"),
                    BarPiece((row["takes"] - row["alone"]) / most, "lost-shape"),
                ]
            )
        stay = sum(documents for documents, _ in its["stay"])
        found.append({"called": called(its, run), "index": index, "whole": whole, "stay": stay, "rows": rows})
    return [one for one in found if one["rows"]]


def called(survey: Survey, run: RecordedRun) -> str:
    """A leg by its rules, and by the sources that come to them: its own name is that of one of them."""
    rules, last = list(survey["rules"]), last_stage(survey, run)
    names = ", ".join(rules) if len(rules) <= NAMED else f"{rules[0]} to {rules[-1]}, {len(rules)} rules"
    if elsewhere(survey, run):
        return f"{names}, of {and_so_on(survey['sources'])}"
    sources = len(last.sources) if last is not None else 0
    return f"{names}, of {sources} sources" if sources > 1 else names


def elsewhere(survey: Survey, run: RecordedRun) -> list[str]:
    """Sources that come to its last rule in another leg."""
    last = last_stage(survey, run)
    return (
        []
        if last is None or OTHERS in survey["sources"]
        else [name for name, count in last.sources.items() if count.docs_in and name not in survey["sources"]]
    )


def last_stage(survey: Survey, run: RecordedRun) -> StageCount | None:
    """The last of its rules, as the run counted it."""
    name = list(survey["rules"])[-1] if survey["rules"] else ""
    return next((stage for stage in run.stages if stage.name == name), None)


def until(survey: Survey, run: RecordedRun) -> str:
    """Up to where the answer counts: what later stages take is not in it."""
    last = last_stage(survey, run)
    if last is None:
        return ""
    later = [stage.name for stage in run.stages[run.stages.index(last) + 1 :] if stage.count.lost]
    some = ", ".join(later[:3]) + (f" and {len(later) - 3} more" if len(later) > 3 else "")
    others = elsewhere(survey, run)
    beside = f" Of {and_so_on(survey['sources'])} alone; another leg has {and_so_on(others)}." if others else ""
    return f"Counted after {last.name}" + (f", before {some}." if later else ".") + beside


def tokens_a_unit(survey: Survey, run: RecordedRun, lefts: Sequence[Left]) -> list[float] | None:
    """For each group of sources the tokens that stand for a unit of what documents are weighed by, as the funnel
    estimates them; None where it does not."""
    last = last_stage(survey, run)
    left = next((left for left in lefts if last is not None and left.stage == last.name), None)
    if last is None or left is None or survey["weight"] in (None, "tokens"):
        return None
    here = {source: left.by_source.get(source, Volume()) for source in [*last.sources, *survey["sources"]]}
    others = [its for source, its in here.items() if source not in survey["sources"]]
    groups = [Volume.of_all(others).tokens if name == OTHERS else here[name].tokens for name in survey["sources"]]
    known = [
        (tokens, weight)
        for tokens, (_, weight) in zip(groups, survey["stay"], strict=True)
        if tokens is not None and weight
    ]
    if not known:
        return None
    usual = sum(tokens for tokens, _ in known) / sum(
        weight for _, weight in known
    )  # of a source of which nothing is left to tell
    return [
        tokens / weight if tokens is not None and weight else usual
        for tokens, (_, weight) in zip(groups, survey["stay"], strict=True)
    ]


def languages(surveys: Sequence[Survey]) -> Section | None:
    """Documents by language, of the first leg that knows it and of those beside it."""
    found = abreast([its for its in surveys if its.get("languages")])
    if not found:
        return None
    counts: dict[str, tuple[int, int]] = {}
    for name, came, left in (row for its in found for row in its["languages"]):
        before = counts.get(name, (0, 0))
        counts[name] = before[0] + came, before[1] + left
    given = [(name, *counts[name]) for name in sorted(counts, key=lambda name: (-counts[name][0], name))]
    most = given[0][1]
    more = [its["more_languages"] for its in found if its["more_languages"][0]]
    given += (
        [(f"{max(its[0] for its in more)} more", sum(its[1] for its in more), sum(its[2] for its in more))]
        if more
        else []
    )
    whole = sum(came for _, came, _ in given)
    rows = [
        (name, [("came", as_number(came)), ("share", as_share(came, whole)), ("stay", as_number(left)), ("of them", as_share(left, came))],
         row_bar([BarPiece(left / most, "kept-shape"), BarPiece((came - left) / most, "lost-shape")]))
        for name, came, left in given
    ]  # fmt: skip
    return Section("", fragment(LANGUAGES, {"rows": rows}), topic="languages")


LANGUAGES = """\
<table class="stack"><caption>Documents that came to the rules, by language, and those that all rules of that leg keep</caption>
<thead><tr><th scope="col">language</th><th scope="col" class="n">came</th><th scope="col" class="n">share</th><th scope="col" class="n">stay</th><th scope="col" class="n">of them</th><td></td></tr></thead>
<tbody>{% for name, cells, bar in rows %}
<tr><th scope="row">{{ name }}</th>{% for head, cell in cells %}<td class="n" data-head="{{ head }}">{{ cell }}</td>{% endfor %}<td class="track">{{ bar }}</td></tr>
{% endfor %}</tbody></table>
"""


def data_of(surveys: Sequence[Survey], run: RecordedRun, lefts: Sequence[Left], where: str) -> Markup:
    """What the script needs, as JSON that cannot end the element it stands in."""
    legs = [
        {name: its[name] for name in PARTS_OF_DATA}
        | {
            "cuts": [{name: cut[name] for name in PARTS_OF_CUT} for cut in its["cuts"]],
            "signals": {
                cut["signal"]: {"edges": s["edges"], "places": s["places"]}
                for cut in its["cuts"]
                for s in [its["signals"][cut["signal"]]]
            },
            "until": until(its, run),
            "tokens": tokens_a_unit(its, run, lefts),
        }
        for its in surveys
    ]
    text = json.dumps({"where": where, "legs": legs}, separators=(",", ":"))  # ASCII: U+2028 and all others are escaped
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
