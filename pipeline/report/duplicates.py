"""Two like documents with their differences marked, as markup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup

from gristmill.pipeline.report.sections import fragment
from gristmill.stages.figures import TextPair

WORDS = 1500  # of each text that are held against each other
AROUND = 8  # words shown on both sides of a difference
PLACES = 8  # differences shown


def text_pair(pair: TextPair) -> Markup:
    return fragment(EXAMPLE, with_differences(asdict(pair)))


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
