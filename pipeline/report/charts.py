"""Drawings of the pages as inline SVG: histograms with thresholds, lines with bands, intervals on one axis. Each has
its numbers as a table.

Nothing here names a color: shapes have classes, and style.css says how those look. Numbers alone go into attributes;
words go through `fragment`, which escapes them. Widths are in percent, so that a chart fits a phone without its letters
shrinking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

from gristmill.pipeline.formatting import as_share, as_short, with_minus
from gristmill.pipeline.report.page import fragment
from gristmill.pipeline.tables import Table, as_html

SERIES = 6  # colors; what comes after shares one
TICKS = 5
WIDE = 1000  # units from the left to the right of what is stretched
ABOVE = 16  # pixels over a histogram, for words
HEIGHT, BELOW = 84, 18  # of a histogram, and for the words under it
TALL = 220  # of a drawing of lines
ROOM = 0.04  # of its height, above and below all lines
ROWS = 6  # of the table below it
BARS = 24  # rows of the table below a histogram


# --- axes, colors, keys -----------------------------------------------------------------------------------------------


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
        """From the lowest value to the highest, with a little room."""
        low, high = min(values), max(values)
        if high - low <= 1e-9 * max(1.0, abs(low)):
            low, high = low - 0.5, high + 0.5
        step, room = round_step((high - low) / TICKS), (high - low) * ROOM
        low, high = low - room, high + room
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return cls(low, high, begin, end, tuple(step * k for k in range(first, last + 1)))

    def at(self, value: float) -> str:
        return f"{self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low):.1f}"

    def marks(self) -> list[tuple[str, str]]:
        """Places and labels of ticks, with as many digits after the point as the one that needs most."""
        texts = [f"{tick + 0.0:.6g}" for tick in self.ticks]
        digits = max((len(text.partition(".")[2]) for text in texts), default=0)
        return [(self.at(tick), f"{float(text):,.{digits}f}") for tick, text in zip(self.ticks, texts, strict=True)]


def round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def anchored(place: float) -> tuple[str, int]:
    """Words at the edges must not leave the drawing."""
    return ("start", 4) if place < 0.12 else ("end", -4) if place > 0.88 else ("middle", 0)


def series_class(index: int) -> str:
    return f"series-{index + 1}" if index < SERIES else "series-0"


def line_class(index: int) -> str:
    """Lines differ by their dashes too. The seventh looks like the first: callers draw at most six."""
    return f"line-{index % 6 + 1}"


def key_of(names: Sequence[tuple[str, str]]) -> Markup:
    """What colors mean: (look, name)."""
    return fragment(KEY, {"names": names}) if names else Markup("")


KEY = """\
<ul class="key">{% for look, name in names %}
<li><svg aria-hidden="true"><rect class="{{ look }}" width="100%" height="100%"/></svg><bdi>{{ name }}</bdi></li>{% endfor %}</ul>
"""

NUMBERS = '<details class="numbers"><summary>Numbers</summary>{{ numbers }}</details>\n'


# --- histograms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ThresholdMark:
    """Where a rule cuts a signal: what lies below (`low`) or above (`high`) of it goes."""

    side: Literal["low", "high"]
    place: float  # from 0 to 1, from left to right
    label: str


@dataclass(frozen=True)
class Histogram:
    """Documents by a signal. Bar k goes from places[k] to places[k + 1] (0 to 1) and begins at edges[k]."""

    title: str
    edges: Sequence[float]
    places: Sequence[float]
    counts: Sequence[int]
    ticks: Sequence[tuple[float, str]]  # place, label
    thresholds: Sequence[ThresholdMark] = ()
    identity: str = ""  # for the script that moves its thresholds
    below: Markup = field(default_factory=Markup)  # sliders


def histogram(found: Histogram) -> Markup:
    """Bars as one outline, drawn twice: as what stays, and, where a threshold cuts it off, as what goes. Heights are
    square roots."""
    highest = max(found.counts, default=0)
    tall = [HEIGHT * math.sqrt(count / highest) if highest else 0.0 for count in found.counts]
    cut = [
        (0, WIDE * mark.place) if mark.side == "low" else (WIDE * mark.place, WIDE - WIDE * mark.place)
        for mark in found.thresholds
    ]
    values = {
        "found": found,
        "path": outline(found.places, tall),
        "box": {"height": HEIGHT, "above": ABOVE, "wide": WIDE, "all": ABOVE + HEIGHT + BELOW, "foot": ABOVE + HEIGHT},
        "cut": [(f"{x:.1f}", f"{width:.1f}") for x, width in cut],
        "lines": [(f"{100 * mark.place:.2f}%", mark, *anchored(mark.place)) for mark in found.thresholds],
        "ticks": [(f"{100 * place:.2f}%", label, anchored(place)[0]) for place, label in found.ticks],
        "highest": highest,
        "numbers": as_html(numbers_of_bars(found)),
    }
    return fragment(HISTOGRAM, values)


def outline(places: Sequence[float], tall: Sequence[float]) -> str:
    """The outline of all bars as one path; a bar that holds anything is at least a hair high."""
    parts = []
    for left, right, height in zip(places, places[1:], tall, strict=False):
        if height > 0:
            x, width = WIDE * left, max(WIDE * (right - left) - 1.2, 0.6)
            parts.append(f"M{x:.1f} {HEIGHT}V{HEIGHT - max(height, 0.8):.1f}h{width:.1f}V{HEIGHT}z")
    return "".join(parts)


def numbers_of_bars(found: Histogram) -> Table:
    """Bars as rows, neighbors together where they are many."""
    each = -(-len(found.counts) // BARS) or 1
    whole = sum(found.counts)
    groups = [(found.edges[k], sum(found.counts[k : k + each])) for k in range(0, len(found.counts), each)]
    rows = [(as_short(edge), count, as_share(count, whole)) for edge, count in groups if count]
    return Table.of(f"Numbers of {found.title}", ("from", "documents", "share"), rows)


HISTOGRAM = (
    """\
<figure class="chart"{% if found.identity %} data-histogram="{{ found.identity }}"{% endif %}>
<figcaption><strong class="mono">{{ found.title }}</strong> <span class="soft highest">highest bar {{ highest | number }}</span></figcaption>
<svg height="{{ box.all }}" role="img" aria-label="Histogram of {{ found.title }}{% for mark in found.thresholds %}; {{ mark.label }}{% endfor %}. Its numbers are in the table below.">
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
{% for x, mark, anchor, shift in lines %}<g data-threshold="{{ loop.index0 }}"><line class="threshold" x1="{{ x }}" x2="{{ x }}" y1="{{ box.above - 2 }}" y2="{{ box.foot }}"/>
<text class="name" x="{{ x }}" dx="{{ shift }}" y="{{ box.above - 5 }}" text-anchor="{{ anchor }}">{{ mark.label }}</text></g>
{% endfor %}</svg>
{{ found.below }}
"""
    + NUMBERS
    + "</figure>\n"
)


# --- lines with bands -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A line with a band: at each of `at`, the mean, the lowest and the highest of the runs it stands for."""

    name: str
    at: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True)
class Curves:
    """Lines of one drawing. What lies above `top` leaves it: a loss begins so high that its end would be flat."""

    title: str
    about: str
    across: str
    curves: Sequence[Curve]
    top: float | None = None


def lines(found: Curves) -> Markup:
    """Means as lines, from the lowest to the highest as a band around each; in the order given, which decides looks."""
    ys = [y for curve in found.curves for y in (*curve.low, *curve.high)]
    across = Axis.of([x for curve in found.curves for x in curve.at], 0, WIDE)
    up = Axis.of([y for y in ys if found.top is None or y <= found.top] or ys, TALL, 0)
    percent = Axis(across.low, across.high, 0, 100, across.ticks)
    values = {
        "found": found,
        "drawn": [
            (curve, path(across, up, curve.at, curve.mean), band(across, up, curve), line_class(index))
            for index, curve in enumerate(found.curves)
        ],
        "box": {"wide": WIDE, "tall": TALL, "all": ABOVE + TALL + 22, "above": ABOVE, "foot": ABOVE + TALL},
        "ticks_across": [(x, label, anchored(float(x) / 100)[0]) for x, label in percent.marks()],
        "ticks_up": [(f"{ABOVE + float(y):.1f}", f"{ABOVE + float(y) - 3:.1f}", label) for y, label in up.marks()],
        "numbers": as_html(numbers_of_curves(found)),
    }
    return fragment(LINES, values)


def path(across: Axis, up: Axis, xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{across.at(x)},{up.at(y)}" for x, y in zip(xs, ys, strict=True))


def band(across: Axis, up: Axis, curve: Curve) -> str:
    """There along the highest, back along the lowest; nothing where one run stands for itself."""
    if all(low == high for low, high in zip(curve.low, curve.high, strict=True)):
        return ""
    return f"{path(across, up, curve.at, curve.high)} {path(across, up, curve.at[::-1], curve.low[::-1])}"


def numbers_of_curves(found: Curves) -> Table:
    """A few places from the first to the last, and every line there: mean, lowest and highest."""
    longest = max(found.curves, key=len)
    picked = sorted({round(k * (len(longest) - 1) / (ROWS - 1)) for k in range(ROWS)})
    rows = [(f"{longest.at[k]:,.0f}", *(value_at(curve, longest.at[k]) for curve in found.curves)) for k in picked]
    return Table.of(f"Numbers of {found.title}", (found.across, *(curve.name for curve in found.curves)), rows)


def value_at(curve: Curve, at: float) -> str:
    """The nearest that the line has; a dash where it ends before."""
    if at > curve.at[-1] * 1.02 or at < curve.at[0] * 0.98:
        return "–"
    nearest = min(range(len(curve)), key=lambda k: abs(curve.at[k] - at))
    mean, low, high = curve.mean[nearest], curve.low[nearest], curve.high[nearest]
    return f"{mean:.4g}" if low == high else f"{mean:.4g} ({low:.4g} to {high:.4g})"


LINES = (
    """\
<figure class="chart curves">
<figcaption><strong>{{ found.title }}</strong>{% if found.about %} <span class="soft">{{ found.about }}</span>{% endif %}
<ul class="key">{% for curve, line, band, look in drawn %}<li><svg class="stroke" aria-hidden="true"><line class="{{ look }}" x1="0" x2="100%" y1="50%" y2="50%"/></svg><bdi>{{ curve.name }}</bdi></li>{% endfor %}</ul>
</figcaption>
<svg height="{{ box.all }}" role="img" aria-label="{{ found.title }}, {{ drawn | length }} lines; their numbers are in the table below.">
{% for y, words, label in ticks_up %}<line class="grid" x1="0" x2="100%" y1="{{ y }}" y2="{{ y }}"/>
{% endfor %}
<svg class="clipped" y="{{ box.above }}" height="{{ box.tall }}" viewBox="0 0 {{ box.wide }} {{ box.tall }}" preserveAspectRatio="none">
{% for curve, line, band, look in drawn if band %}<polygon class="{{ look }}" points="{{ band }}"/>
{% endfor %}
{% for curve, line, band, look in drawn %}<polyline class="{{ look }}" points="{{ line }}"/>
{% endfor %}
</svg>
{% for y, words, label in ticks_up %}<text class="over" x="2" y="{{ words }}">{{ label }}</text>
{% endfor %}
<line class="axis" x1="0" x2="100%" y1="{{ box.foot }}" y2="{{ box.foot }}"/>
{% for x, label, anchor in ticks_across %}<line class="axis" x1="{{ x }}%" x2="{{ x }}%" y1="{{ box.foot }}" y2="{{ box.foot + 3 }}"/><text x="{{ x }}%" y="{{ box.foot + 16 }}" text-anchor="{{ anchor }}">{{ label }}{{ ' ' ~ found.across if loop.first }}</text>
{% endfor %}
</svg>
"""
    + NUMBERS
    + "</figure>\n"
)


# --- intervals on one axis --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IntervalEstimate:
    """A line of a forest plot: a difference with its interval (null: unbounded), and what each seed gave."""

    name: str
    value: float
    low: float | None
    high: float | None
    seeds: Sequence[float]
    look: str  # the class of what it says: better, worse, unsure
    minor: bool = False  # a part of the line above


@dataclass(frozen=True)
class ForestPlot:
    """Differences on one axis. `budget` is a second line beside that of no difference."""

    title: str
    about: str
    unit: str
    better: str  # lower or higher
    estimates: Sequence[IntervalEstimate]
    budget: float | None = None
    percent: bool = False

    def text(self, value: float) -> str:
        text = f"{100 * value:+.2f}%" if self.percent else f"{value:+.4f}"
        return text.lstrip("+-") if not float(text.rstrip("%")) else with_minus(text)

    def interval(self, one: IntervalEstimate) -> str:
        return " to ".join("unbounded" if end is None else self.text(end) for end in (one.low, one.high))


def forest(found: ForestPlot) -> Markup:
    """Rows of a table, each with its drawing on the axis that all share. An unbounded end runs to the edge."""
    ends = [end for one in found.estimates for end in (one.value, one.low, one.high, *one.seeds) if end is not None]
    axis = Axis.of([0.0, *ends, *([found.budget] if found.budget is not None else [])], 0, 100)
    rows = [
        (
            one,
            {
                "low": "0" if one.low is None else axis.at(one.low),
                "high": "100" if one.high is None else axis.at(one.high),
                "value": axis.at(one.value),
                "seeds": [axis.at(seed) for seed in one.seeds],
            },
        )
        for one in found.estimates
    ]
    values = {
        "found": found,
        "rows": rows,
        "zero": axis.at(0.0),
        "budget": None if found.budget is None else axis.at(found.budget),
        "ticks": [(axis.at(tick), found.text(tick), anchored(float(axis.at(tick)) / 100)[0]) for tick in axis.ticks],
    }
    return fragment(FOREST, values)


FOREST = """\
<figure class="chart forest">
<figcaption><strong>{{ found.title }}</strong>{% if found.about %} <span class="soft">{{ found.about }}</span>{% endif %}</figcaption>
<div class="scroll" role="region" aria-label="{{ found.title }}" tabindex="0">
<table><caption class="unseen">{{ found.title }}, {{ found.unit }}; {{ found.better }} is better</caption>
<thead><tr><th scope="col">arm</th><td class="track"><span class="sense">{{ '◂ better' if found.better == 'lower' else 'worse' }}</span><span class="sense right">{{ 'worse' if found.better == 'lower' else 'better ▸' }}</span></td>
<th scope="col" class="n">difference</th><th scope="col" class="n">interval</th></tr></thead>
<tbody>{% for one, at in rows %}
<tr{% if one.minor %} class="minor"{% endif %}><th scope="row"><bdi>{{ one.name }}</bdi></th>
<td class="track"><svg aria-hidden="true"><line class="zero" x1="{{ zero }}%" x2="{{ zero }}%" y1="0" y2="100%"/>{% if budget %}<line class="threshold" x1="{{ budget }}%" x2="{{ budget }}%" y1="0" y2="100%"/>{% endif %}
<g class="{{ one.look }}"><line class="reach" x1="{{ at.low }}%" x2="{{ at.high }}%" y1="50%" y2="50%"/>{% for seed in at.seeds %}<line class="seed" x1="{{ seed }}%" x2="{{ seed }}%" y1="25%" y2="75%"/>{% endfor %}<circle cx="{{ at.value }}%" cy="50%" r="4.5"/></g></svg></td>
<td class="n">{{ found.text(one.value) }}</td><td class="n">{{ found.interval(one) }}</td></tr>
{% endfor %}</tbody>
<tfoot aria-hidden="true"><tr><td class="soft">{{ found.unit }}</td><td class="track"><svg>{% for x, label, anchor in ticks %}<line class="axis" x1="{{ x }}%" x2="{{ x }}%" y1="0" y2="4"/><text x="{{ x }}%" y="17" text-anchor="{{ anchor }}">{{ label }}</text>{% endfor %}</svg></td><td colspan="2">{% if budget %}<span class="soft budget">line: budget {{ found.text(found.budget) }}</span>{% endif %}</td></tr></tfoot>
</table></div>
</figure>
"""
