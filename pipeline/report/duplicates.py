"""What the report says of duplicates: how large clusters are, what bands nominate, and pairs with their differences
marked."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup

from gristmill.pipeline.report.sections import Section, bars, fragment

WORDS = 1500  # of each text that are held against each other
AROUND = 8  # words shown on both sides of a difference
PLACES = 8  # differences shown


def duplicates(entry: Mapping[str, Any], report: Mapping[str, Any]) -> Section | None:
    clusters = report.get("clusters")
    if clusters is None:
        return None
    parts = [sizes(clusters)] if clusters else [fragment("<p>No two documents were alike.</p>", {})]
    parts += [by_source(entry)] if len(entry.get("sources") or {}) > 1 else []
    parts += [chances(report["bands"])] if report.get("bands") else []
    parts += [fragment(EXAMPLE, with_differences(example)) for example in report.get("examples") or []]
    return Section("Clusters of duplicates", Markup("").join(parts), topic="duplicates")


def sizes(clusters: list[list[int]]) -> Markup:
    """Clusters by size, in powers of two from five on."""
    groups: dict[str, int] = {}
    for size, count in clusters:
        low = size if size < 5 else max(5, 1 << size.bit_length() - 1)
        high = size if size < 5 else (1 << size.bit_length()) - 1
        label = f"{low} documents" if low == high else f"{low:,} to {high:,} documents"
        groups[label] = groups.get(label, 0) + count
    whole = sum(count for _, count in clusters)
    members = sum(size * count for size, count in clusters)
    text = f"{whole:,} clusters of {members:,} documents, by size; the largest has {clusters[-1][0]:,}"
    return bars(text, "size", list(groups.items()), whole, "clusters")


def by_source(entry: Mapping[str, Any]) -> Markup:
    gone = [(str(name), sum(source["dropped"].values())) for name, source in entry["sources"].items()]
    return bars("Documents that went, by source", "source", sorted(gone, key=lambda g: -g[1]), sum(n for _, n in gone))


def chances(bands: Mapping[str, Any]) -> Markup:
    told = [(similarity, chance) for similarity, chance in bands["chances"] if 0.001 <= chance <= 0.9999]
    rows = [(f"{similarity:.2f}", f"{chance:.1%}", 100 * chance) for similarity, chance in told]
    return fragment(CURVE, {**bands, "rows_of_curve": rows})


CURVE = """\
<table class="bars"><caption>How likely two documents are to be held against each other, by how alike they are. Of each document {{ bands }} short fingerprints
are made, {{ rows }} hashes long ({{ bands }} bands of {{ rows }} rows); two documents that have one of them in common are compared, and if they are at least {{ threshold }} alike, one goes.</caption>
<thead><tr><th scope="col">similarity</th><th scope="col" class="n">chance</th><td></td></tr></thead>
<tbody>{% for similarity, chance, width in rows_of_curve %}
<tr><th scope="row">{{ similarity }}</th><td class="n">{{ chance }}</td>
<td class="track"><svg class="row-bar" aria-hidden="true"><rect class="kept-shape" width="{{ '%.2f' % width }}%" height="100%"/></svg></td></tr>
{% endfor %}</tbody></table>"""


def with_differences(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example with `hunks`: runs of (kind, words), kind being same, gone or stays."""
    gone, stays = (str(example[name] or "").split()[:WORDS] for name in ("text", "like_text"))
    hunks: list[list[tuple[str, str]]] = []
    last = 0
    for kind, a, b, c, d in SequenceMatcher(None, gone, stays, autojunk=False).get_opcodes():
        if kind == "equal":
            last = a
            continue
        if len(hunks) == PLACES:
            break
        before = ("same", " ".join(gone[max(last, a - AROUND) : a]))
        hunks.append(
            [
                before,
                ("gone", " ".join(gone[a:b])),
                ("stays", " ".join(stays[c:d])),
                ("same", " ".join(gone[b : b + AROUND])),
            ]
        )
    return {
        **example,
        "hunks": hunks,
        "cut": max(len(str(example[n] or "").split()) for n in ("text", "like_text")) > WORDS,
    }


EXAMPLE = """\
<p>{% if url is web %}<a href="{{ url }}" rel="noreferrer">{{ url }}</a>{% else %}{{ url or uid }}{% endif %} went,
{{ similarity }} like {% if like_url is web %}<a href="{{ like_url }}" rel="noreferrer">{{ like_url }}</a>{% else %}{{ like_url or like }}{% endif %}
 <span class="soft">{{ uid }} {{ like }}{% if cut %}; the first words of long texts{% endif %}</span></p>
{% for hunk in hunks %}
<pre class="difference" dir="auto">… {% for kind, words in hunk if words %}{% if kind == "gone" %}<del>{{ words }}</del>{% elif kind == "stays" %}<ins>{{ words }}</ins>{% else %}{{ words }}{% endif %} {% endfor %}…</pre>
{% else %}
<p class="soft">The same words{% if cut %} as far as they were compared{% endif %}.</p>
{% endfor %}"""
