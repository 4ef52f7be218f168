"""Files for people: reports of stages, cards of data sets, the log, run.json and report.html."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.plan.plan import Plan
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import Recipe, Step
from gristmill.pipeline.report_data.documents import names_places
from gristmill.pipeline.report_data.figures import kept_figures
from gristmill.pipeline.report_data.rejects import task_of_samples
from gristmill.pipeline.report_data.scores import ScoreRecord, task_of_scores
from gristmill.pipeline.report_data.survey import Look
from gristmill.pipeline.run.record import Findings, record_up_to, without_times
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.records import Failure, LookResult
from gristmill.pipeline.store.run_records import RunRecord, read_if_whole, rules_by_segment
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.stages.stage import Global, Rule, Stage

SUMMARY = "summary"  # the folder of the public summary


def write_reports(
    store: Store,
    journal: Journal,
    recipe: Recipe,
    plan: Plan,
    findings: Findings,
    record: RunRecord,
    not_shown: Callable[[str, str], None],
    look: Look,
) -> None:
    """All files for people, out of the record and the findings. Files whose content stays are not written again.
    `look` runs the tasks that read documents; `not_shown` gets a stage and what its report lacks."""
    from gristmill.pipeline.look.run_folder import RunFolder
    from gristmill.pipeline.report.build import build_report

    steps = {name: thing for name, thing in plan.stage_order() if isinstance(thing, Step)}
    samples, scores = seen_of(store, findings, record, steps, not_shown, look)
    stages = {name: step.stage for name, step in steps.items()}
    for entry in record.stages:
        name = entry.name
        report: dict[str, Any] = without_times(
            entry.to_json()
        )  # the counts of run.json; the stage's metrics are added below
        report |= {"samples": samples.get(name, {})}
        report |= findings.metrics.get(name, {})
        if name in scores:
            report |= {"scores": {**scores[name], "of": entry.count.docs_in - entry.count.quarantined}}
        if name in stages:
            report |= figures_of(name, stages[name], report, not_shown)
        if missing := findings.not_shown.get(name):
            report |= {"not_shown": missing}
        journal.keep(f"stages/{name}/report.json", json_bytes(report))
    for name, metrics in findings.metrics.items():
        stage = cast(Global, stages[name])
        path = stage.readme_path(metrics)
        if path is not None:
            passed = record_up_to(name, record, plan, recipe)
            text = stage.readme(metrics, findings.shared_up_to[name], passed.to_json())
            journal.keep(path, text.encode("utf-8", "replace"))
    if findings.log:
        lines = "".join(f"{one_line(line)}\n" for line in findings.log)
        store.write("logs/run.log", lines.encode("utf-8", "replace"))
    journal.keep("run.json", json_bytes(record.to_json()))
    store.write("report.html", build_report(RunFolder(store.address)).encode("utf-8", "replace"))


def remove_stale_summary(
    store: Store, record: RunRecord, sink_files: Collection[str], note: Callable[[str], None]
) -> None:
    """A public summary is of the documents and counts that it was made of, and of no others."""
    from gristmill.pipeline.summary.files import files_of_other_documents

    before = read_if_whole(store, "run.json", RunRecord) or RunRecord()
    a, b = ([without_times(stage.to_json()) for stage in each.stages] for each in (before, record))
    counted_alike = a == b
    if stale := files_of_other_documents(store, () if not counted_alike else sink_files):
        store.remove(stale)
        note("the public summary was of other documents and is removed; `gristmill report OUT --for eu` makes it again")


def seen_of(
    store: Store,
    findings: Findings,
    record: RunRecord,
    steps: Mapping[str, Step],
    not_shown: Callable[[str, str], None],
    look: Look,
) -> tuple[dict[str, Any], dict[str, ScoreRecord]]:
    """Rejected documents and scores, by stage."""
    names, segments = [entry.name for entry in record.stages], list(rules_by_segment(store).values())
    rejects: dict[str, list[str]] = {}
    for path in store.files("stages"):
        stage, _, rest = path.removeprefix("stages/").partition("/")
        if rest.startswith("rejects/"):
            rejects.setdefault(stage, []).append(path)
    asked = []
    for name in names:
        specs = [
            step.spec
            for other, step in steps.items()
            if names_places(step.stage) or (other == name and isinstance(step.stage, Rule))
        ]
        asked.append((name, "rejects", task_of_samples(store, name, rejects.get(name, []), segments, specs)))
    for name in names if record.done else ():
        if name in findings.scored:
            step, parts = findings.scored[name]
            asked.append((name, "scores", task_of_scores(store, name, step.spec, parts)))
    seen: dict[str, dict[str, Any]] = {"rejects": {}, "scores": {}}
    for (name, what, _), result in zip(asked, look([task for *_, task in asked]), strict=True):
        if isinstance(result, Failure):
            not_shown(name, f"{what}: {result.message}")
        elif isinstance(result, LookResult):
            seen[what][name] = result.seen
    return seen["rejects"], seen["scores"]


def figures_of(
    name: str, stage: Stage, report: dict[str, Any], not_shown: Callable[[str, str], None]
) -> dict[str, Any]:
    """What report.json keeps of the figures of a stage from outside. A fault in them costs the figures alone."""
    try:
        return kept_figures(type(stage), report)
    except Exception as error:
        not_shown(name, f"figures of {registry.named(stage)}: {type(error).__name__}: {error}")
        return {}
