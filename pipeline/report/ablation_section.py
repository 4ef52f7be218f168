"""Ablations in a run's report: the verdicts of those that lie in its folder, below ablations/, with the way to each
page."""

from __future__ import annotations

from typing import cast
from urllib.parse import quote

from markupsafe import Markup

from gristmill.pipeline.formatting import as_number
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation import ArmVerdict, verdict_of
from gristmill.pipeline.report.ablation_record import AblationRecord, ProtocolRecord
from gristmill.pipeline.report.sections import Section, fragment
from gristmill.pipeline.tables import Table, as_html

PLACE = "ablations"


def ablations(folder: RunFolder) -> list[Section]:
    """One for each, by name of its folder; one that cannot be read says so."""
    sections = []
    for name in folder.names(PLACE):
        path = f"{PLACE}/{name}/ablation.json"
        if folder.has(path):
            try:
                html = verdicts(cast(AblationRecord, folder.json(path)), name)
            except (ValueError, LookupError, TypeError, AttributeError):
                html = fragment("<p>{{ path }} cannot be read.</p>", {"path": path})
            sections.append(Section(name, html, topic="ablations"))
    return sections


def verdicts(record: AblationRecord, name: str) -> Markup:
    arms = [verdict_of(arm, record) for arm in record.get("arms") or []]
    heads = tuple(dict.fromkeys(head for arm in arms for head, _ in arm.figures))
    rows = [
        (arm.name, f"{arm.mark} {arm.word}", why_of(arm), *(dict(arm.figures).get(head, "–") for head in heads))
        for arm in arms
    ]
    protocol: ProtocolRecord = record.get("protocol") or {}
    values = {
        "record": record,
        "protocol": protocol.get("name"),
        "tokens": as_number(record.get("tokens")),
        "seeds": len(record.get("seeds") or []),
        "table": as_html(Table.of("Arm less control", ("arm", "verdict", "why", *heads), rows, words=3)),
        "page": f"{PLACE}/{quote(name, safe='')}/ablation.html",
    }
    return fragment(VERDICTS, values)


def why_of(arm: ArmVerdict) -> str:
    """With what else is beyond chance, on sets that are only reported."""
    return "; beside it: ".join([arm.why, *([", ".join(what for _, what in arm.beside)] if arm.beside else [])])


VERDICTS = """\
<h3 dir="auto"><a href="{{ page }}">{{ record.name }}</a></h3>
{% if record.description %}<p dir="auto">{{ record.description }}</p>{% endif %}
<p class="soft">{{ protocol }}, {{ tokens }} tokens a run, {{ seeds }} seeds</p>
{{ table }}
"""
