"""Alarms of a run: stages that dropped more than they expect, documents that broke a stage, damaged or empty sources
and their files."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.pipeline.look.funnel import Funnel
from gristmill.pipeline.look.published import alarms_of_published, beside_published
from gristmill.pipeline.plan.plan import Plan
from gristmill.pipeline.recipe.recipe import Source
from gristmill.pipeline.store.counts import Counts, RunAccount
from gristmill.pipeline.store.records import StageMetrics
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.stages.read.payload import MARKUP
from gristmill.stages.stage import Map, Stage

MOST_MARKUP = 0.01  # share of a source's texts: a text about HTML may begin with a tag

# What readers and stages note of documents: the share of a source from which on it is an alarm, and what it means.
NOTED = {
    "replacement_characters": (
        0.01,
        "hold U+FFFD for characters that were lost; few_replacement_characters drops texts with many",
    ),
    "truncated": (
        0.05,
        "are cut off, by the crawler or where a gzip body breaks off; `keep_truncated: false` drops them",
    ),
    "charset_overruled": (0.05, "are not in the encoding that they declare, so that it was detected"),
    "charset_detected": (0.10, "declare no encoding and are not UTF-8, so that it was detected"),
}


def alarms(plan: Plan, account: RunAccount, ended: bool) -> list[str]:
    """All alarms of a run that has ended, or of as much of it as there is."""
    raised = alarms_of_stages(plan, account)
    for name, thing in plan.stage_order():
        if not isinstance(thing, Source) or not (ended or name in account.stages):
            continue
        read = account.total(name)
        if read.quarantined:
            where = read.faults.of_damage()
            raised.append(
                f"{name}: {read.quarantined:,} damaged record{'s' if read.quarantined > 1 else ''} in its files"
                f"{where and ': '}{where}"
            )
        raised += [f"{name}: {remark}" for remark in read.faults.of_remarks()]
        raised += [f"{name}: {line}" for line in alarms_of_notes(read)]
        if read.kept == 0:
            raised.append(f"{name} gave no documents")
        if (raw := raw_markup(name, account)) > MOST_MARKUP * read.kept:
            raised.append(
                f"{name}: {raw:,} of {read.kept:,} texts are markup; name the field with `html:` in its reader "
                "(or read .html files with `html`), and put `extract` first"
            )
    return raised


def raw_markup(source: str, account: RunAccount) -> int:
    """Texts of a source that are markup, where no stage made text of such."""
    noted = [
        counts[source].noted[MARKUP] for name, counts in account.stages.items() if name != source and source in counts
    ]
    return 0 if any(noted) else account.total(source).noted[MARKUP]


def alarms_of_stages(plan: Plan, account: RunAccount) -> list[str]:
    """Stages that dropped more of a source than they expect, and documents that broke them; also asked during a run."""
    raised = []
    for name, thing in plan.stage_order():
        if isinstance(thing, Source):
            continue
        for origin, count in sorted(account.stages.get(name, {}).items()):
            gone = count.dropped.total() + count.quarantined  # not docs_in - kept: a stage may make documents
            if count.docs_in and gone / count.docs_in > thing.stage.expect_drops:
                most = max([*count.dropped.items(), ("quarantined", count.quarantined)], key=lambda x: x[1])
                raised.append(
                    f"{name} dropped {gone / count.docs_in:.0%} of {origin} ({gone:,} of {count.docs_in:,}), "
                    f"most as {most[0]}; {usual_drops(thing.stage)}"
                )
            for signal, times in sorted(count.absent.items()):
                if times == count.kept > 0:
                    raised.append(
                        f"{name} found {signal} in none of {count.kept:,} documents of {origin}; "
                        "look at where it is read from"
                    )
            raised += thing.stage.alarms(origin, count.docs_in, count.noted) if isinstance(thing.stage, Map) else []
            raised += [f"{name}, {origin}: {line}" for line in alarms_of_notes(count)]
            if count.quarantined:
                raised.append(
                    f"{name} quarantined {count.quarantined:,} document{'s' if count.quarantined > 1 else ''} "
                    f"of {origin} that broke it"
                )
    return raised


def usual_drops(stage: Stage) -> str:
    """Who expects how much, and how to say otherwise."""
    share = f"{stage.expect_drops:.0%}"
    if "alarm_above" in type(stage).model_fields:
        return f"above {share} its setting `alarm_above` raises this alarm: set it higher, if the cut is meant so"
    return f"Gristmill expects {share} at most of this stage"


def alarms_of_run(record: RunRecord, metrics: Mapping[str, StageMetrics]) -> list[str]:
    """Figures of a run that are far from those that its recipe's publishers report."""
    return alarms_of_published(beside_published(record, Funnel.of(record, metrics)))


def alarms_of_notes(count: Counts) -> list[str]:
    """What was noted of more documents than is usual."""
    shares = {note: count.noted[note] / count.kept for note in NOTED if count.kept and count.noted[note]}
    return [
        f"{count.noted[note]:,} of {count.kept:,} documents ({share:.1%}) {NOTED[note][1]}"
        for note, share in shares.items()
        if share > NOTED[note][0]
    ]
