"""Cells of a mix as a heat map in SVG, and documents behind each; the table beside them has the numbers."""

from __future__ import annotations

from markupsafe import Markup

from gristmill.pipeline.report.sections import fragment
from gristmill.stages.figures import HeatMap

WIDE, HIGH = 78, 40  # of a field
LEFT, TOP = 190, 34  # around the fields
LONGEST = {"row": 28, "column": 11}  # letters of a name that fit


def heat_map(block: HeatMap) -> Markup:
    x = {name: LEFT + k * WIDE for k, name in enumerate(block.columns)}
    y = {name: TOP + k * HIGH for k, name in enumerate(block.rows)}
    filled = {(cell.row, cell.column) for cell in block.cells}
    values = {
        "map": block,
        "width": LEFT + len(x) * WIDE + 2,
        "height": TOP + len(y) * HIGH + 2,
        "wide": WIDE,
        "high": HIGH,
        "left": LEFT,
        "top": TOP,
        "columns": [(name, short(name, LONGEST["column"]), at + WIDE / 2) for name, at in x.items()],
        "rows": [(name, short(name, LONGEST["row"]), at + HIGH / 2 + 4) for name, at in y.items()],
        "cells": [(cell, x[cell.column], y[cell.row], look(cell.heat)) for cell in block.cells],
        "empty": [(x[c], y[r]) for r in block.rows for c in block.columns if (r, c) not in filled],
    }
    return fragment(HEAT_MAP, values)


def look(heat: int) -> str:
    return f"up-{heat}" if heat > 0 else f"down-{-heat}" if heat < 0 else "same"


def short(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


HEAT_MAP = """\
<figure class="heat"><figcaption><h4 dir="auto">{{ map.title }}</h4></figcaption>
<div class="scroll" role="region" aria-label="{{ map.title }}" tabindex="0">
<svg width="{{ width }}" height="{{ height }}" viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ map.title }}; the table below has the numbers">
<text class="soft" x="0" y="{{ top - 14 }}">{{ map.down }} ↓ {{ map.across }} →</text>
{% for name, label, x in columns %}<text x="{{ x }}" y="{{ top - 14 }}" text-anchor="middle"><title>{{ name }}</title>{{ label }}</text>
{% endfor %}
{% for name, label, y in rows %}<text x="{{ left - 8 }}" y="{{ y }}" text-anchor="end"><title>{{ name }}</title>{{ label }}</text>
{% endfor %}
{% for x, y in empty %}<rect class="none" x="{{ x + 1 }}" y="{{ y + 1 }}" width="{{ wide - 2 }}" height="{{ high - 2 }}"/>
{% endfor %}
{% for cell, x, y, look in cells %}<g><title>{{ cell.words }}</title><rect class="{{ look }}" x="{{ x }}" y="{{ y }}" width="{{ wide }}" height="{{ high }}"/>
<text x="{{ x + wide / 2 }}" y="{{ y + 17 }}" text-anchor="middle">{{ cell.lines[0] }}</text><text class="soft" x="{{ x + wide / 2 }}" y="{{ y + 32 }}" text-anchor="middle">{{ cell.lines[1] }}</text></g>
{% endfor %}</svg></div>
<p class="soft note">{{ map.note }}</p></figure>
"""

SAMPLES = """\
<h4 dir="auto">{{ title }}</h4>
{% for name, documents in groups %}
<details class="fold"><summary dir="auto">{{ name }}</summary>
{% for uid, url, text in documents %}
<div class="sample stays"><p class="mono soft">{{ uid }}{% if url is web %} <a href="{{ url }}" rel="noreferrer">{{ url }}</a>{% else %} {{ url }}{% endif %}</p>
<pre dir="auto">{{ text }}</pre></div>
{% endfor %}</details>
{% endfor %}
"""
