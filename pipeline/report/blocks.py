"""Blocks of `gristmill.stages.figures`, by which a stage shows what it did, as markup."""

from __future__ import annotations

from dataclasses import asdict
from difflib import SequenceMatcher

from markupsafe import Markup

from gristmill.pipeline.report.page import fragment
from gristmill.pipeline.tables import as_html
from gristmill.stages.figures import (
    Block,
    FactList,
    Samples,
    Sentence,
    Table,
    TextPair,
    Warnings,
)

WORDS = 1500  # of each of two texts that are compared
AROUND = 8  # words shown on both sides of a difference
PLACES = 8  # differences shown


def drawn(block: Block) -> Markup:
    match block:
        case FactList():
            return fragment(FACTS, {"title": block.title, "pairs": block.pairs})
        case Warnings():
            return fragment(WARNINGS, {"lines": block.lines})
        case Sentence():
            return fragment("<p>{{ text }}</p>", {"text": block.text})
        case TextPair():
            return text_pair(block)
        case Samples():
            return fragment(SAMPLES, {"title": block.title, "groups": block.groups})
        case Table():
            return as_html(block)


def text_pair(pair: TextPair) -> Markup:
    """Two like documents with their differences marked."""
    texts = [str(text or "").split() for text in (pair.text, pair.like_text)]
    hunks = differences(*(words[:WORDS] for words in texts))
    return fragment(EXAMPLE, {**asdict(pair), "hunks": hunks, "cut": max(map(len, texts)) > WORDS})


def differences(gone: list[str], stays: list[str]) -> list[list[tuple[str, str]]]:
    """Runs of (kind, words), kind being same, gone or stays."""
    hunks: list[list[tuple[str, str]]] = []
    last = 0
    for kind, a, b, c, d in SequenceMatcher(None, gone, stays, autojunk=False).get_opcodes():
        if kind == "equal":
            last = a
        elif len(hunks) < PLACES:
            parts = (
                ("same", gone[max(last, a - AROUND) : a]),
                ("gone", gone[a:b]),
                ("stays", stays[c:d]),
                ("same", gone[b : b + AROUND]),
            )
            hunks.append([(kind, " ".join(words)) for kind, words in parts])
    return hunks


FACTS = """\
{% if title %}<h4 dir="auto">{{ title }}</h4>{% endif %}
{{ parts.settings(pairs, 'told') }}
"""

WARNINGS = """\
<ul class="alarms warned">{% for line in lines %}<li dir="auto">{{ line }}</li>{% endfor %}</ul>
"""

SAMPLES = """\
<h4 dir="auto">{{ title }}</h4>
{% for name, documents in groups %}
<details class="fold"><summary dir="auto">{{ name }}</summary>
{% for uid, url, text in documents %}{{ parts.sample('stays', uid, url, '', [(text, false)]) }}{% endfor %}
</details>
{% endfor %}
"""

EXAMPLE = """\
<p>{{ parts.address(url or uid) }} went, {{ similarity }} like {{ parts.address(like_url or like) }}
 <span class="soft">{{ uid }} {{ like }}{% if cut %}; the first words of long texts{% endif %}</span></p>
{% for hunk in hunks %}
<pre class="difference" dir="auto">… {% for kind, words in hunk if words %}{% if kind == "gone" %}<del>{{ words }}</del>{% elif kind == "stays" %}<ins>{{ words }}</ins>{% else %}{{ words }}{% endif %} {% endfor %}…</pre>
{% else %}
<p class="soft">The same words{% if cut %} as far as they were compared{% endif %}.</p>
{% endfor %}"""
