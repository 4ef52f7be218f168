"""Drawings of the report as inline SVG: bars, stacked bars, histograms with thresholds; each with its numbers as a
table.

Nothing here names a colour: shapes have classes, and style.css says what those look like. Numbers are all that goes
into attributes; words go through `fragment`, which escapes them. Widths are in percent, so that a chart fits a phone
without its letters shrinking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

from gristmill.pipeline.formatting import as_number, as_share, as_short
from gristmill.pipeline.report.sections import fragment

SERIES = 6  # colours; what comes after shares one
HEIGHT, ABOVE, BELOW = 84, 16, 18  # of a histogram, and of the words over and under it
WIDE = 1000  # units from the left to the right of a histogram
TICKS = 5


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high`, laid from `begin` to `end`, with ticks on round numbers."""

    low: float
    high: float
    begin: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], begin: float, end: float) -> Axis:
        """Wide enough for all of them, and never of no width."""
        low, high = min(values), max(values)
        if high - low <= 1e-9 * max(1.0, abs(low)):
            low, high = low - 0.5, high + 0.5
        step = round_step((high - low) / TICKS)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(step * k for k in range(first, last + 1))
        return cls(ticks[0], ticks[-1], begin, end, ticks)

    def at(self, value: float) -> str:
        return f"{self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low):.1f}"

    def marks(self) -> list[tuple[str, str]]:
        return [(self.at(tick), f"{tick + 0.0:.6g}") for tick in self.ticks]


def round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def series_class(index: int) -> str:
    return f"series-{index + 1}" if index < SERIES else "series-0"


def key_of(names: Sequence[tuple[str, str]]) -> Markup:
    """What the colours mean: (look, name)."""
    return fragment(KEY, {"names": names})


KEY = """\
<ul class="key">{% for look, name in names %}
<li><svg aria-hidden="true"><rect class="{{ look }}" width="100%" height="100%"/></svg><bdi>{{ name }}</bdi></li>{% endfor %}</ul>
"""


@dataclass(frozen=True)
class ThresholdMark:
    """Where a rule cuts a signal: what lies below (`low`) or above (`high`) of `value` goes."""

    side: Literal["low", "high"]
    value: float
    place: float  # from 0 to 1, from left to right
    label: str


@dataclass(frozen=True)
class Histogram:
    """Documents by a signal. Bar k goes from places[k] to places[k + 1] (0 to 1) and begins at edges[k]; `gone` of
    counts[k] go by a threshold."""

    title: str
    about: str
    edges: Sequence[float]
    places: Sequence[float]
    counts: Sequence[int]
    ticks: Sequence[tuple[float, str]]  # place, label
    thresholds: Sequence[ThresholdMark] = ()
    gone: Sequence[int] | None = None
    identity: str = ""  # for the script that moves its thresholds
    knee: float | None = None  # the place from which on the scale is another
    below: Markup = field(default_factory=Markup)  # sliders


def histogram(found: Histogram) -> Markup:
    """Bars as one outline, drawn twice: as what stays, and, where a threshold cuts it off, as what goes."""
    highest = math.sqrt(max(found.counts, default=0)) or 1.0
    tall = [HEIGHT * math.sqrt(count) / highest for count in found.counts]
    cut = [
        (0, WIDE * t.place) if t.side == "low" else (WIDE * t.place, WIDE - WIDE * t.place) for t in found.thresholds
    ]
    values = {
        "found": found,
        "path": outline(found.places, tall),
        "box": {"height": HEIGHT, "above": ABOVE, "wide": WIDE, "all": ABOVE + HEIGHT + BELOW, "foot": ABOVE + HEIGHT},
        "cut": [(f"{x:.1f}", f"{width:.1f}") for x, width in cut],
        "lines": [(f"{100 * t.place:.2f}%", t, *anchored(t.place)) for t in found.thresholds],
        "ticks": [(f"{100 * place:.2f}%", label, anchored(place)[0]) for place, label in found.ticks],
        "highest": max(found.counts, default=0),
        "knee": None if found.knee is None else f"{100 * found.knee:.2f}%",
        "rows": numbers_of(found),
    }
    return fragment(HISTOGRAM, values)


def anchored(place: float) -> tuple[str, int]:
    """Words at the edges must not leave the drawing."""
    return ("start", 4) if place < 0.12 else ("end", -4) if place > 0.88 else ("middle", 0)


def outline(places: Sequence[float], tall: Sequence[float]) -> str:
    """The outline of all bars as one path; a bar that holds anything is at least a hair high."""
    parts = []
    for left, right, height in zip(places, places[1:], tall, strict=False):
        if height > 0:
            x, width = WIDE * left, max(WIDE * (right - left) - 1.2, 0.6)
            parts.append(f"M{x:.1f} {HEIGHT}V{HEIGHT - max(height, 0.8):.1f}h{width:.1f}V{HEIGHT}z")
    return "".join(parts)


def numbers_of(found: Histogram, most: int = 24) -> list[tuple[str, str, str]]:
    """The table below: bars as rows, neighbours together where they are many."""
    each = -(-len(found.counts) // most) or 1
    whole = sum(found.counts)
    rows = []
    for k in range(0, len(found.counts), each):
        count = sum(found.counts[k : k + each])
        gone = "" if found.gone is None else as_number(sum(found.gone[k : k + each]))
        if count:
            rows.append((as_short(found.edges[k]), f"{as_number(count)} ({as_share(count, whole)})", gone))
    return rows


HISTOGRAM = """\
<figure class="chart"{% if found.identity %} data-histogram="{{ found.identity }}"{% endif %}>
<figcaption><strong class="mono">{{ found.title }}</strong>{% if found.about %} <span class="soft">{{ found.about }}</span>{% endif %}
<span class="soft highest">highest bar {{ highest | number }}</span></figcaption>
<svg height="{{ box.all }}" role="img" aria-label="Histogram of {{ found.title }}{% for t in found.thresholds %}; {{ t.label }}{% endfor %}. Its numbers are in the table below.">
<svg y="{{ box.above }}" height="{{ box.height }}" viewBox="0 0 {{ box.wide }} {{ box.height }}" preserveAspectRatio="none">
{% if found.thresholds %}
<defs><clipPath id="clip-{{ found.identity }}">{% for x, width in cut %}<rect data-cut="{{ loop.index0 }}" x="{{ x }}" y="0" width="{{ width }}" height="{{ box.height }}"/>{% endfor %}</clipPath></defs>
{% endif %}
<path class="kept-shape" d="{{ path }}"/>
{% if found.thresholds %}<path class="gone-shape" clip-path="url(#clip-{{ found.identity }})" d="{{ path }}"/>{% endif %}
</svg>
<line class="axis" x1="0" x2="100%" y1="{{ box.foot }}" y2="{{ box.foot }}"/>
{% for x, label, anchor in ticks %}<line class="axis" x1="{{ x }}" x2="{{ x }}" y1="{{ box.foot }}" y2="{{ box.foot + 3 }}"/><text x="{{ x }}" y="{{ box.foot + 15 }}" text-anchor="{{ anchor }}">{{ label }}</text>
{% endfor %}
{% if knee %}<text class="break" x="{{ knee }}" y="{{ box.foot + 4 }}" text-anchor="middle">//</text>
{% endif %}
{% for x, t, anchor, shift in lines %}<g data-threshold="{{ loop.index0 }}"><line class="threshold" x1="{{ x }}" x2="{{ x }}" y1="{{ box.above - 2 }}" y2="{{ box.foot }}"/>
<text class="name" x="{{ x }}" dx="{{ shift }}" y="{{ box.above - 5 }}" text-anchor="{{ anchor }}">{{ t.label }}</text></g>
{% endfor %}</svg>
{{ found.below }}
<details class="numbers"><summary>Numbers</summary>
<div class="scroll" role="group" aria-label="Numbers of {{ found.title }}" tabindex="0"><table><caption class="unseen">{{ found.title }}</caption>
<thead><tr><th scope="col">from</th><th scope="col" class="n">documents</th>{% if found.gone is not none %}<th scope="col" class="n">beyond</th>{% endif %}</tr></thead>
<tbody>{% for edge, count, gone in rows %}<tr><th scope="row">{{ edge }}</th><td class="n">{{ count }}</td>{% if found.gone is not none %}<td class="n">{{ gone }}</td>{% endif %}</tr>
{% endfor %}</tbody></table></div></details>
</figure>
"""
