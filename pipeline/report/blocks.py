"""Blocks of `gristmill.stages.figures` as markup: tables with bars, mixes drawn by risk and distance, pages beside what
was extracted."""

from __future__ import annotations

from markupsafe import Markup

from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.report.charts import Axis
from gristmill.pipeline.report.duplicates import text_pair
from gristmill.pipeline.report.heat_map import SAMPLES, heat_map
from gristmill.pipeline.report.sections import Section, fragment
from gristmill.pipeline.report_data.figures import figures_of
from gristmill.pipeline.store.run_records import StageRecord
from gristmill.pipeline.tables import as_html
from gristmill.stages.figures import (
    Block,
    FactList,
    HeatMap,
    PagePairs,
    Plane,
    Point,
    Samples,
    Sentence,
    Table,
    TextPair,
    Warnings,
)

WIDTH, HEIGHT = 560, 300  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 14, 46  # around the plane
KINDS = {"frontier": "UtiliMax, by aversion", "chosen": "chosen", "proportional": "proportional", "unimax": "UniMax"}


def section_of(stage: StageRecord, report: Told) -> Section | None:
    """What a stage shows of itself, from its report.json."""
    figures = figures_of(stage.recipe_name, report)
    if figures is None:
        return None
    return Section(figures.title, Markup("").join(map(drawn, figures.blocks)), topic=figures.topic)


def drawn(block: Block) -> Markup:
    match block:
        case FactList():
            return fragment(FACTS, {"title": block.title, "pairs": block.pairs})
        case Warnings():
            return fragment(WARNINGS, {"lines": block.lines})
        case Plane():
            return plane(block) + as_html(block.table)
        case Sentence():
            return fragment("<p>{{ text }}</p>", {"text": block.text})
        case TextPair():
            return text_pair(block)
        case HeatMap():
            return heat_map(block)
        case Samples():
            return fragment(SAMPLES, {"title": block.title, "groups": block.groups})
        case PagePairs():
            return fragment(PAGES, {"pages": block.pages})
        case Table():
            return as_html(block)


def plane(found: Plane) -> Markup:
    """Risk to the right, distance up: the frontier as a line, what was chosen marked on it, the controls beside it."""
    risk = Axis.of([point.risk for point in found.points], LEFT, WIDTH - RIGHT)
    distance = Axis.of([point.distance for point in found.points], HEIGHT - BOTTOM, TOP)
    tilts = [point for point in found.points if point.kind in ("frontier", "chosen")]
    seen = [kind for kind in KINDS if any(point.kind == kind for point in found.points)]
    values = {
        "line": " ".join(f"{risk.at(point.risk)},{distance.at(point.distance)}" for point in tilts),
        "points": [
            (point, risk.at(point.risk), distance.at(point.distance)) for point in sorted(found.points, key=nearness)
        ],
        "across": risk.marks(),
        "up": distance.marks(),
        "key": [(kind, KINDS[kind]) for kind in seen],
        "box": {
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "right": WIDTH - RIGHT,
            "top": TOP,
            "bottom": HEIGHT - BOTTOM,
        },
    }
    return fragment(PLANE, values)


def nearness(point: Point) -> int:
    """What was chosen is drawn last, above all that it meets."""
    return ("frontier", "proportional", "unimax", "chosen").index(point.kind) if point.kind in KINDS else 0


FACTS = """\
{% if title %}<h4 dir="auto">{{ title }}</h4>{% endif %}
<dl class="settings told">{% for name, value in pairs %}<dt>{{ name }}</dt><dd dir="auto">{{ value }}</dd>{% endfor %}</dl>
"""

WARNINGS = """\
<ul class="alarms warned">{% for line in lines %}<li dir="auto">{{ line }}</li>{% endfor %}</ul>
"""

PAGES = """\
{% for page in pages %}
<article class="page">
<p class="mono soft">{{ page.uid }}</p>
<p class="mono">{% if page.url is web %}<a href="{{ page.url }}" rel="noreferrer">{{ page.url }}</a>{% else %}{{ page.url }}{% endif %}</p>
<div class="beside">
<div><h5>Extracted <span class="soft">{{ page.extracted_characters | number }} characters</span></h5><pre dir="auto" tabindex="0" role="group" aria-label="Extracted text">{{ page.extracted }}</pre></div>
<div><h5>Visible <span class="soft">{{ page.visible_characters | number }} characters</span></h5><pre dir="auto" tabindex="0" role="group" aria-label="Visible text">{{ page.visible }}</pre></div>
</div>
</article>
{% endfor %}"""

MARK = """\
{% macro mark(kind, x, y) %}
{% if kind == "chosen" %}<circle class="mark chosen" cx="{{ x }}" cy="{{ y }}" r="7"/>
{% elif kind == "proportional" %}<rect class="mark control" x="{{ x }}" y="{{ y }}" width="10" height="10" transform="translate(-5 -5)"/>
{% elif kind == "unimax" %}<path class="mark control" d="M0 -7 L6.5 5 L-6.5 5 Z" transform="translate({{ x }} {{ y }})"/>
{% else %}<circle class="mark" cx="{{ x }}" cy="{{ y }}" r="4"/>{% endif %}
{% endmacro %}
"""

PLANE = (
    MARK
    + """\
<figure class="plane"><svg viewBox="0 0 {{ box.width }} {{ box.height }}" role="img" aria-label="Mixes by risk and distance; the table below has the numbers">
{% for x, label in across %}<path class="grid" d="M{{ x }} {{ box.top }} V{{ box.bottom }}"/>
<text x="{{ x }}" y="{{ box.bottom + 18 }}" text-anchor="middle">{{ label }}</text>{% endfor %}
{% for y, label in up %}<path class="grid" d="M{{ box.left }} {{ y }} H{{ box.right }}"/>
<text x="{{ box.left - 8 }}" y="{{ y }}" dy="4" text-anchor="end">{{ label }}</text>{% endfor %}
<text class="name" x="{{ (box.left + box.right) / 2 }}" y="{{ box.height - 6 }}" text-anchor="middle">risk</text>
<text class="name" transform="translate(14 {{ (box.top + box.bottom) / 2 }}) rotate(-90)" text-anchor="middle">distance</text>
<polyline class="frontier" points="{{ line }}"/>
{% for point, x, y in points %}<g><title>{{ point.name }}: risk {{ '%.4f' % point.risk }}, distance {{ '%.4f' % point.distance }}</title>{{ mark(point.kind, x, y) }}</g>
{% endfor %}</svg>
<figcaption class="soft">{% for kind, name in key %}<span><svg viewBox="-9 -9 18 18" aria-hidden="true">{{ mark(kind, 0, 0) }}</svg>{{ name }}</span>{% endfor %}</figcaption>
</figure>
"""
)
