"""Drawings of measured differences: lines with bands over seeds, and forest plots; as inline SVG, each with its numbers
as a table.

Nothing here names a colour, lines differ by their dashes too, and widths are in percent, as in `charts.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gristmill.pipeline.report.charts import Axis, anchored
from gristmill.pipeline.report.sections import fragment

WIDE, TALL = 1000, 220  # units of a drawing of lines
ROOM = 0.04  # of the height, above and below all lines
ROWS = 6  # of the table below a drawing of lines


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
    across = Axis.of([0.0, *(x for curve in found.curves for x in curve.at)], 0, WIDE)
    values = [y for curve in found.curves for y in (*curve.low, *curve.high)]
    shown = [y for y in values if found.top is None or y <= found.top] or values
    up = within(shown, TALL, 0)
    drawn = [
        (curve, place(across, up, curve.at, curve.mean), band(across, up, curve), looks(index))
        for index, curve in enumerate(found.curves)
    ]
    facts = {
        "found": found,
        "drawn": drawn,
        "box": {"wide": WIDE, "tall": TALL, "all": TALL + 30, "above": 8, "foot": TALL + 8},
        "ticks_across": [
            (f"{float(x) / WIDE:.2%}", whole(label), anchored(float(x) / WIDE)[0]) for x, label in across.marks()
        ],
        "ticks_up": [(y, label) for y, label in aligned(up) if 0 <= float(y) <= TALL],
        "rows": numbers_of(found),
    }
    return fragment(LINES, facts)


def within(values: Sequence[float], begin: float, end: float) -> Axis:
    """An axis whose ends are the values', with a little room: ticks are round, ends need not be."""
    outer = Axis.of(values, begin, end)
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(1.0, abs(low)):
        return outer
    room = (high - low) * ROOM
    return Axis(low - room, high + room, begin, end, outer.ticks)


def aligned(axis: Axis) -> list[tuple[str, str]]:
    """Ticks with as many digits after the point as the one that needs most."""
    digits = max(len(label.partition(".")[2]) for _, label in axis.marks())
    return [(at, f"{float(label):.{digits}f}") for at, label in axis.marks()]


def looks(index: int) -> int:
    """Classes line-1 to line-6; the seventh looks like the second: callers draw so many in one."""
    return index % 6 + 1


def place(across: Axis, up: Axis, xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{across.at(x)},{up.at(y)}" for x, y in zip(xs, ys, strict=True))


def band(across: Axis, up: Axis, curve: Curve) -> str:
    """There along the highest, back along the lowest; nothing where one run stands for itself."""
    if all(low == high for low, high in zip(curve.low, curve.high, strict=True)):
        return ""
    return f"{place(across, up, curve.at, curve.high)} {place(across, up, curve.at[::-1], curve.low[::-1])}"


def whole(label: str) -> str:
    return f"{float(label):,.0f}"


def numbers_of(found: Curves) -> list[tuple[str, list[str]]]:
    """A few places from the first to the last, and every line there: mean, lowest and highest."""
    longest = max(found.curves, key=len, default=None)
    if longest is None or not len(longest):
        return []
    picked = sorted({round(k * (len(longest) - 1) / (ROWS - 1)) for k in range(ROWS)})
    rows = []
    for at in (longest.at[k] for k in picked):
        rows.append((f"{at:,.0f}", [value_at(curve, at) for curve in found.curves]))
    return rows


def value_at(curve: Curve, at: float) -> str:
    """The nearest that the line has; a dash where it ends before."""
    if not len(curve) or at > curve.at[-1] * 1.02 or at < curve.at[0] * 0.98:
        return "–"
    nearest = min(range(len(curve)), key=lambda k: abs(curve.at[k] - at))
    mean, low, high = curve.mean[nearest], curve.low[nearest], curve.high[nearest]
    return f"{mean:.4g}" if low == high else f"{mean:.4g} ({low:.4g} to {high:.4g})"


LINES = """\
<figure class="chart curves">
<figcaption><strong>{{ found.title }}</strong>{% if found.about %} <span class="soft">{{ found.about }}</span>{% endif %}
<ul class="key">{% for curve, line, band, look in drawn %}<li><svg class="stroke" aria-hidden="true"><line class="line-{{ look }}" x1="0" x2="100%" y1="50%" y2="50%"/></svg><bdi>{{ curve.name }}</bdi></li>{% endfor %}</ul>
</figcaption>
<svg height="{{ box.all }}" role="img" aria-label="{{ found.title }}, {{ drawn | length }} lines; their numbers are in the table below.">
{% for y, label in ticks_up %}<line class="grid" x1="0" x2="100%" y1="{{ '%.1f' % (box.above + y | float) }}" y2="{{ '%.1f' % (box.above + y | float) }}"/>
{% endfor %}
<svg class="clipped" y="{{ box.above }}" height="{{ box.tall }}" viewBox="0 0 {{ box.wide }} {{ box.tall }}" preserveAspectRatio="none">
{% for curve, line, band, look in drawn if band %}<polygon class="band-{{ look }}" points="{{ band }}"/>
{% endfor %}
{% for curve, line, band, look in drawn %}<polyline class="line-{{ look }}" points="{{ line }}"/>
{% endfor %}
</svg>
{% for y, label in ticks_up %}<text class="over" x="2" y="{{ '%.1f' % (box.above + y | float - 3) }}">{{ label }}</text>
{% endfor %}
<line class="axis" x1="0" x2="100%" y1="{{ box.foot }}" y2="{{ box.foot }}"/>
{% for x, label, anchor in ticks_across %}<line class="axis" x1="{{ x }}" x2="{{ x }}" y1="{{ box.foot }}" y2="{{ box.foot + 3 }}"/><text x="{{ x }}" y="{{ box.foot + 16 }}" text-anchor="{{ anchor }}">{{ label }}{{ ' ' ~ found.across if loop.first }}</text>
{% endfor %}
</svg>
<details class="numbers"><summary>Numbers</summary>
<div class="scroll" role="region" aria-label="Numbers of {{ found.title }}" tabindex="0"><table><caption class="unseen">{{ found.title }}</caption>
<thead><tr><th scope="col" class="n">{{ found.across }}</th>{% for curve, line, band, look in drawn %}<th scope="col" class="n"><bdi>{{ curve.name }}</bdi></th>{% endfor %}</tr></thead>
<tbody>{% for at, cells in rows %}<tr><th scope="row" class="n">{{ at }}</th>{% for cell in cells %}<td class="n">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>
</figure>
"""


@dataclass(frozen=True)
class IntervalEstimate:
    """A line of a forest plot: a difference with its interval (null: unbounded), and what each seed said."""

    name: str
    note: str
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
    digits: int = 4
    percent: bool = False


def forest(found: ForestPlot) -> Markup:
    """Rows of a table, each with its drawing on the axis that all share."""
    ends = [
        value for one in found.estimates for value in (one.value, one.low, one.high, *one.seeds) if value is not None
    ]
    axis = within([0.0, *ends, *([found.budget] if found.budget is not None else [])], 0, 100)
    rows = [(one, drawn_row(one, axis), said(one.value, found), interval(one, found)) for one in found.estimates]
    facts = {
        "found": found,
        "rows": rows,
        "zero": axis.at(0.0),
        "budget": None if found.budget is None else axis.at(found.budget),
        "said_budget": None if found.budget is None else said(found.budget, found),
        "ticks": [
            (x, said(float(label), found), anchored(float(x) / 100)[0])
            for x, label in axis.marks()
            if 0 <= float(x) <= 100
        ],
    }
    return fragment(FOREST, facts)


def drawn_row(one: IntervalEstimate, axis: Axis) -> dict[str, object]:
    """Places in percent. An end that is unbounded runs to the edge."""
    low = "0" if one.low is None else axis.at(one.low)
    high = "100" if one.high is None else axis.at(one.high)
    return {"low": low, "high": high, "value": axis.at(one.value), "seeds": [axis.at(seed) for seed in one.seeds]}


def said(value: float, found: ForestPlot) -> str:
    text = f"{100 * value:+.2f}%" if found.percent else f"{value:+.{found.digits}f}"
    zero = f"{0:+.{2 if found.percent else found.digits}f}".lstrip("+")
    return zero + ("%" if found.percent else "") if text.strip("+-%") == zero else text.replace("-", "−")


def interval(one: IntervalEstimate, found: ForestPlot) -> str:
    low, high = ("unbounded" if end is None else said(end, found) for end in (one.low, one.high))
    return f"{low} to {high}"


FOREST = """\
<figure class="chart forest">
<figcaption><strong>{{ found.title }}</strong>{% if found.about %} <span class="soft">{{ found.about }}</span>{% endif %}</figcaption>
<div class="scroll" role="region" aria-label="{{ found.title }}" tabindex="0">
<table><caption class="unseen">{{ found.title }}, {{ found.unit }}; {{ found.better }} is better</caption>
<thead><tr><th scope="col">arm</th><td class="track"><span class="sense">{{ '◂ better' if found.better == 'lower' else 'worse' }}</span><span class="sense right">{{ 'worse' if found.better == 'lower' else 'better ▸' }}</span></td>
<th scope="col" class="n">difference</th><th scope="col" class="n">interval</th></tr></thead>
<tbody>{% for one, at, value, interval in rows %}
<tr{% if one.minor %} class="minor"{% endif %}><th scope="row"><bdi>{{ one.name }}</bdi>{% if one.note %} <span class="soft">{{ one.note }}</span>{% endif %}</th>
<td class="track"><svg aria-hidden="true"><line class="zero" x1="{{ zero }}%" x2="{{ zero }}%" y1="0" y2="100%"/>{% if budget %}<line class="threshold" x1="{{ budget }}%" x2="{{ budget }}%" y1="0" y2="100%"/>{% endif %}
<g class="{{ one.look }}"><line class="reach" x1="{{ at.low }}%" x2="{{ at.high }}%" y1="50%" y2="50%"/>{% for seed in at.seeds %}<line class="seed" x1="{{ seed }}%" x2="{{ seed }}%" y1="25%" y2="75%"/>{% endfor %}<circle cx="{{ at.value }}%" cy="50%" r="4.5"/></g></svg></td>
<td class="n">{{ value }}</td><td class="n">{{ interval }}</td></tr>
{% endfor %}</tbody>
<tfoot aria-hidden="true"><tr><td class="soft">{{ found.unit }}</td><td class="track"><svg>{% for x, label, anchor in ticks %}<line class="axis" x1="{{ x }}%" x2="{{ x }}%" y1="0" y2="4"/><text x="{{ x }}%" y="17" text-anchor="{{ anchor }}">{{ label }}</text>{% endfor %}</svg></td><td colspan="2">{% if said_budget %}<span class="soft budget">line: budget {{ said_budget }}</span>{% endif %}</td></tr></tfoot>
</table></div>
</figure>
"""
