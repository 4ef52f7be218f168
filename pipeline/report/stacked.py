"""Tables of compare.html and ablation.html: columns in groups under one head, and on a phone rows as lines that name
each number.

Every number stays in sight: what a phone would have to scroll to is stacked, and a table that is too wide for its place
shows a shadow there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gristmill.pipeline.figures import Figures
from gristmill.pipeline.report.sections import fragment

Group = tuple[str, int]  # its name, and how many columns of numbers it spans


@dataclass(frozen=True)
class Cell:
    """A number with the head of its column; the first of a group has the group's name, where groups have names."""

    text: str
    head: str
    group: str


def stacked(found: Figures, groups: Sequence[Group] = (), tracks: Sequence[Markup] = ()) -> Markup:
    """`groups` cover all columns of numbers, `tracks` are drawings, one a row."""
    begins = [name if at == 0 else "" for name, columns in groups for at in range(columns)] or [""] * (
        len(found.head) - found.words
    )
    rows = [
        (
            row[0],
            list(zip(row[1 : found.words], found.head[1 : found.words], strict=True)),
            [Cell(*its) for its in zip(row[found.words :], found.head[found.words :], begins, strict=True)],
            tracks[at] if tracks else None,
        )
        for at, row in enumerate(found.rows)
    ]
    even = len(begins) % 2 == 0
    return fragment(
        STACKED,
        {"found": found, "rows": rows, "groups": groups, "begins": begins, "tracks": bool(tracks), "halves": even},
    )


STACKED = """\
<figure class="stacked{{ ' grouped' if groups else ' halves' if halves }}"><figcaption>{{ found.title }}</figcaption>
<div class="scroll" role="region" aria-label="{{ found.title }}" tabindex="0">
<table>
<thead>{% if groups %}<tr class="groups"><td colspan="{{ found.words + tracks }}"></td>{% for name, columns in groups %}<th scope="colgroup" colspan="{{ columns }}">{{ name }}</th>{% endfor %}</tr>{% endif %}
<tr>{% for name in found.head[:found.words] %}<th scope="col">{{ name }}</th>{% endfor %}{% if tracks %}<td></td>{% endif %}
{% for name in found.head[found.words:] %}<th scope="col" class="n{{ ' begins' if begins[loop.index0] }}">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for head, words, cells, track in rows %}
<tr><th scope="row" dir="auto"{% if words %} data-head="{{ found.head[0] }}"{% endif %}>{{ head }}</th>{% for word, name in words %}<td dir="auto" data-head="{{ name }}">{{ word }}</td>{% endfor %}
{% if track is not none %}<td class="track" aria-hidden="true">{{ track }}</td>{% endif %}
{% for cell in cells %}<td class="n{{ ' begins' if cell.group }}{{ ' change' if cell.head == 'change' }}" data-head="{{ cell.head }}"{% if cell.group %} data-group="{{ cell.group }}"{% endif %}>{{ cell.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% if found.note %}<p class="soft note">{{ found.note }}</p>{% endif %}
</figure>
"""
