"""Why one document of a run was dropped: the reasons in its verdicts, with numbers as far as they can be had."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report_data.documents import Row
from gristmill.pipeline.report_data.histograms import CutCounts
from gristmill.pipeline.report_data.rejects import CANNOT_ASK, SIGNS, Held, reasons_in_part, rows_of
from gristmill.pipeline.store.records import Partition
from gristmill.pipeline.tasks.bound_rule import BoundRule


def why_it_went(folder: RunFolder, segment: str, key: str, verdicts: str, row: int) -> list[Held]:
    """Every reason that held of a document that a segment's rules took, as the verdicts have it, with numbers as far as
    they can be had.

    A rule from a file of the user's own is not run again here: its numbers are those of the survey.
    """
    reasons = stored_reasons(folder, verdicts, row)
    rules = folder.rules.get(segment)
    if not any(reasons.values()) or rules is None:
        return [Held(stage, reason) for stage, of_stage in reasons.items() for reason in of_stage]
    part = next((part for part in rules.parts if part.key == key), None)
    cuts = cuts_of(folder)
    asked: list[Held] = []
    for rule in rules.rules:
        if part is not None and rule.stage.get("code") is None:
            try:
                asked += reasons_in_part(folder.open, [BoundRule.of(rule)], part, [row])[0].held
            except CANNOT_ASK:  # it reads a table that is gone, say; the verdicts and the survey are there still
                continue
    held: list[Held] = []
    for stage, of_stage in reasons.items():
        answered = [answer for answer in asked if answer.stage == stage]
        if {answer.reason for answer in answered} == set(of_stage):
            held += answered
        elif of_stage:
            held += from_survey(folder, stage, of_stage, [cut for cut in cuts if cut["stage"] == stage], part, row)
    return held


def stored_reasons(folder: RunFolder, verdicts: str, row: int) -> dict[str, list[str]]:
    """For each rule of a segment, in their order, the reasons that held of a document."""
    schema = folder.schema(verdicts)
    try:
        names = dict(json.loads((schema.metadata or {}).get(b"gristmill.reasons", b"{}")))
    except ValueError:
        return {}
    bits = rows_of(folder.open, verdicts, [row], {f"failed:{stage}" for stage in names})
    failed = {name.removeprefix("failed:"): int(bits.column(name)[0].as_py() or 0) for name in bits.column_names}
    return {
        stage: [reason for bit, reason in enumerate(reasons) if failed.get(stage, 0) >> bit & 1]
        for stage, reasons in names.items()
    }


def cuts_of(folder: RunFolder) -> list[CutCounts]:
    """The thresholds that the survey of a run found, each once: where sources have segments of their own, a rule that
    they share is in each."""
    cuts = [cut for survey in folder.surveys for cut in survey["cuts"]]
    return list({(cut["stage"], cut["field"], cut["signal"], cut["side"]): cut for cut in cuts}.values())


def from_survey(
    folder: RunFolder, stage: str, reasons: Sequence[str], cuts: Sequence[CutCounts], part: Partition | None, row: int
) -> list[Held]:
    """Reasons of a rule that cannot be asked, with the thresholds that the document lies beyond."""
    values: Row = {}
    files = [part.documents, *part.signals] if part is not None else []
    for file in (file for file in files if file is not None):
        taken = rows_of(folder.open, file.path, [row], {str(cut["signal"]) for cut in cuts})
        values |= {name: taken.column(name)[0].as_py() for name in taken.column_names}
    beyond = []
    for cut in cuts:
        value, low, limit = values.get(str(cut["signal"])), cut["side"] == "low", cut["value"]
        if isinstance(value, int | float) and (value < limit if low else value > limit):
            signal, field = str(cut["signal"]), str(cut["field"])
            beyond.append(Held(stage, None, signal, value, SIGNS[cut["side"]], limit, field, signal))
    if len(beyond) == len(reasons) == 1:
        return [dataclasses.replace(beyond[0], reason=reasons[0])]
    return [*(Held(stage, reason) for reason in reasons), *beyond]
