"""Histograms of what rules decide on, with sliders on their thresholds; and the data by which the page's script moves them.

All numbers come from legs/NAME/survey.json (`pipeline.survey`), so they are `gristmill tune`'s: exact for one threshold, from a sample for several at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from pipeline.report.charts import Histogram, Piece, Threshold, histogram, round_step, row_bar
from pipeline.report.sections import Section, fragment
from pipeline.survey.edges import DRAWN
from pipeline.words import as_number, as_share

BARS = 56
TICKS = 5
Survey = Mapping[str, Any]
PARTS_OF_DATA = ("leg", "weight", "sources", "reach", "stay", "rules", "sample")
PARTS_OF_CUT = ("stage", "field", "signal", "side", "value", "at", "free", "documents", "weights")


def signal_sections(entry: Mapping[str, Any], surveys: Sequence[Survey]) -> list[Section]:
    """The histograms of a stage: of a rule, those of its thresholds; of a stage that measures, those of what it added and no rule asks for."""
    name, kind = entry["name"], entry.get("kind")
    if kind == "rule":
        return [
            Section("Thresholds", thresholds_of(name, number, its))
            for number, its in enumerate(surveys)
            if any(c["stage"] == name for c in its["cuts"])
        ]
    added = set(entry.get("adds") or ())
    if not added:
        return []
    for its in surveys:
        cut = {c["signal"] for c in its["cuts"]}
        plain = [signal for signal in its["signals"] if signal in added and signal not in cut]
        governed = sorted(added & cut)
        if plain or governed:
            charts = Markup("").join(histogram(drawn(signal, its["signals"][signal], [], "")) for signal in plain)
            rules = [(signal, sorted({c["stage"] for c in its["cuts"] if c["signal"] == signal})) for signal in governed]
            return [Section("Signals", fragment(SIGNALS, {"charts": charts, "rules": rules, "plain": len(plain)}))]
    return []


SIGNALS = """\
{% if rules %}<p>Measured here and cut by rules: {% for signal, stages in rules %}<code>{{ signal }}</code> ({{ stages | join(', ') }}){{ '; ' if not loop.last }}{% endfor %}.</p>{% endif %}
{% if plain %}<details class="fold"{{ ' open' if plain <= 8 }}><summary>{{ plain }} signal{{ 's' if plain > 1 }} that no threshold cuts</summary>
<div class="histograms small">{{ charts }}</div></details>{% endif %}
"""


def thresholds_of(stage: str, number: int, survey: Survey) -> Markup:
    """One histogram for each signal that the rule cuts, and a slider for each threshold on it."""
    its = [(k, cut) for k, cut in enumerate(survey["cuts"]) if cut["stage"] == stage]
    charts = []
    for signal in dict.fromkeys(cut["signal"] for _, cut in its):
        mine = [(k, cut) for k, cut in its if cut["signal"] == signal]
        found = survey["signals"][signal]
        sliders = fragment(
            SLIDERS, {"leg": number, "sliders": [(k, slider(cut, found, survey)) for k, cut in mine], "last": len(found["edges"]) - 1}
        )
        charts.append(histogram(drawn(signal, found, [cut for _, cut in mine], f"{number}-{mine[0][0]}", sliders)))
    return fragment('<div class="histograms">{{ charts }}</div>', {"charts": Markup("").join(charts)})


def slider(cut: Mapping[str, Any], found: Mapping[str, Any], survey: Survey) -> dict[str, Any]:
    alone = alone_of(cut)
    whole = sum(documents for documents, _ in survey["reach"])
    return {**cut, "shown": number(cut["value"]), "alone": alone, "whole": whole}


def alone_of(cut: Mapping[str, Any]) -> int:
    """Documents that nothing but this threshold takes."""
    at = int(cut["at"]) + 1
    return sum(sum(row[:at] if cut["side"] == "low" else row[at:]) for row in cut["documents"])


SLIDERS = """\
{% for k, cut in sliders %}
<div class="slider"><label for="cut-{{ leg }}-{{ k }}"><code>{{ cut.field }}</code> <span class="soft">takes {{ 'below' if cut.side == 'low' else 'above' }} {{ cut.shown }}:
{{ cut.takes | number }} ({{ share(cut.takes, cut.whole) }}), {{ cut.alone | number }} of them alone</span></label>
<input type="range" id="cut-{{ leg }}-{{ k }}" data-leg="{{ leg }}" data-cut="{{ k }}" min="0" max="{{ last }}" step="1" value="{{ cut.at }}" aria-valuetext="{{ cut.shown }}" disabled>
<output for="cut-{{ leg }}-{{ k }}">{{ cut.shown }}</output><span class="moved"></span></div>
{% endfor %}
"""


def drawn(
    signal: str, found: Mapping[str, Any], cuts: Sequence[Mapping[str, Any]], identity: str, below: Markup | None = None
) -> Histogram:
    """A signal as bars; neighbouring steps make one bar where they are many."""
    edges, counts, places = found["edges"], found["counts"], [0.0, *found["places"], 1.0]
    each = -(-len(counts) // BARS)
    starts = [*range(0, len(counts), each), len(counts)]
    bars = [sum(counts[a:b]) for a, b in pairwise(starts)]
    marks = [
        Threshold(cut["side"], cut["value"], found["places"][cut["at"]], f"{'≥' if cut['side'] == 'low' else '≤'} {number(cut['value'])}")
        for cut in cuts
    ]
    return Histogram(
        title=signal,
        about="",
        edges=[edges[max(0, a - 1)] for a in starts[:-1]],
        places=[places[a] for a in starts],
        counts=bars,
        ticks=ticks_of(edges, found["places"]),
        thresholds=marks,
        identity=identity,
        below=below if below is not None else Markup(""),
    )


def number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def ticks_of(edges: Sequence[float], places: Sequence[float]) -> list[tuple[float, str]]:
    """Round numbers, evenly apart where most documents lie, and the end of the tail; powers of ten where a signal spans decades."""
    middle = edges[min(len(edges) - 1, int(np.searchsorted(places, 0.5)))]
    spread = max(1e-12, edges[-1] - edges[0])
    if edges[0] >= 0 and len(edges) > 8 and middle - edges[0] < 0.1 * spread and edges[-1] >= 300 and places[-1] - places[-2] > 0.004:
        wanted = [10.0**k for k in range(-3, 13)]
    else:
        knee = edges[min(len(edges) - 1, int(np.searchsorted(places, DRAWN - 0.01)))]
        step = round_step(max(knee - edges[0], 1e-12) / TICKS)
        wanted = [step * k for k in range(math.ceil(edges[0] / step - 1e-9), math.floor(knee / step + 1e-9) + 1)]
    chosen: dict[float, str] = {}
    for value in [v for v in wanted if edges[0] <= v <= edges[-1]] + [edges[-1]]:
        place = float(np.interp(value, edges, places))
        if all(abs(place - other) > 0.09 for other in chosen):
            chosen[place] = tick(value)
    return sorted(chosen.items())


def tick(value: float) -> str:
    """A number as short as an axis needs it: 10k, 2.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if unit == "k" else 1):
            return f"{value / size:.4g}{unit}"
    return f"{value + 0.0:.4g}"


def effects(surveys: Sequence[Survey]) -> list[dict[str, Any]]:
    """Each leg's thresholds by how much they alone take."""
    found = []
    for index, its in enumerate(surveys):
        whole = sum(documents for documents, _ in its["reach"])
        rows = [{**cut, "k": k, "shown": number(cut["value"]), "alone": alone_of(cut)} for k, cut in enumerate(its["cuts"])]
        rows.sort(key=lambda row: (-row["alone"], -row["takes"], row["k"]))
        most = max((row["takes"] for row in rows), default=0) or 1
        for row in rows:
            row["bar"] = row_bar([Piece(row["alone"] / most, "gone-shape"), Piece((row["takes"] - row["alone"]) / most, "lost-shape")])
        found.append(
            {"leg": its["leg"], "index": index, "whole": whole, "stay": sum(documents for documents, _ in its["stay"]), "rows": rows}
        )
    return [one for one in found if one["rows"]]


def languages(surveys: Sequence[Survey]) -> Section | None:
    """Documents by language, of the first leg that knows it."""
    its = next((its for its in surveys if its.get("languages")), None)
    if its is None:
        return None
    most = max(came for _, came, _ in its["languages"])
    more = its["more_languages"]
    given = its["languages"] + ([[f"{more[0]} more", *more[1:]]] if more[0] else [])
    whole = sum(came for _, came, _ in given)
    rows = [
        (name, as_number(came), as_share(came, whole), as_number(left), as_share(left, came),
         row_bar([Piece(left / most, "kept-shape"), Piece((came - left) / most, "lost-shape")]))
        for name, came, left in given
    ]  # fmt: skip
    return Section("", fragment(LANGUAGES, {"rows": rows}), topic="languages")


LANGUAGES = """\
<table class="bars"><caption>Documents that came to the rules, by language, and those that all rules of that leg keep</caption>
<thead><tr><th scope="col">language</th><th scope="col" class="n">came</th><th scope="col" class="n">share</th><th scope="col" class="n">stay</th><th scope="col" class="n">of them</th><td></td></tr></thead>
<tbody>{% for name, came, share_came, left, share_left, bar in rows %}
<tr><th scope="row">{{ name }}</th><td class="n">{{ came }}</td><td class="n">{{ share_came }}</td><td class="n">{{ left }}</td><td class="n">{{ share_left }}</td><td class="track">{{ bar }}</td></tr>
{% endfor %}</tbody></table>
"""


def data_of(surveys: Sequence[Survey]) -> Markup:
    """What the script needs, as JSON that cannot end the element it stands in."""
    legs = [
        {name: its[name] for name in PARTS_OF_DATA}
        | {
            "cuts": [{name: cut[name] for name in PARTS_OF_CUT} for cut in its["cuts"]],
            "signals": {
                cut["signal"]: {"edges": s["edges"], "places": s["places"]} for cut in its["cuts"] for s in [its["signals"][cut["signal"]]]
            },
        }
        for its in surveys
    ]
    text = json.dumps({"legs": legs}, separators=(",", ":"))  # ASCII: U+2028 and all others are escaped
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
