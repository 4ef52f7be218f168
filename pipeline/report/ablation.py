"""ablation.html: what came of an ablation, from its ablation.json and the metrics of its jobs (docs/ablations.md).
Verdicts first.

One file, no network, no script. Names of arms and sets are anyone's: every value is escaped (`sections.environment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.pipeline.formatting import as_number, as_seconds
from gristmill.pipeline.look.recipe_differences import flat
from gristmill.pipeline.look.run_folder import Folder
from gristmill.pipeline.report.ablation_curves import LOSS, ON_THE_WAY, JobMetrics, curve_of, metrics_of, top_of
from gristmill.pipeline.report.ablation_tables import (
    CONTROL,
    Record,
    chance,
    costs,
    differences,
    energy,
    epochs,
    in_order,
    jobs,
    jobs_of,
    measures,
    percent,
    relatively,
    repeated,
    sets,
    share,
    signed,
    span,
)  # fmt: skip
from gristmill.pipeline.report.charts_lines import Curve, Curves, ForestPlot, IntervalEstimate, forest, lines
from gristmill.pipeline.report.sections import environment
from gristmill.pipeline.report.stacked import stacked

WORDS = ("adopt", "reject", "inconclusive", "failed", "not run")  # in the order in which they are shown
MARKS = {"adopt": "✓", "reject": "✕", "inconclusive": "?", "failed": "!", "not run": "–"}
LONG = 150  # runs, above which they are not printed
NAMED = 8  # runs without a curve
TOGETHER = 5  # arms in one drawing, beside the control


@dataclass(frozen=True)
class ArmVerdict:
    """An arm and its verdict, in words."""

    name: str
    word: str
    mark: str
    why: str
    settle: str
    beside: list[
        tuple[str, str]
    ]  # worse or better, and where: what it does to sets that are only reported, where that is beyond chance
    figures: list[tuple[str, str]]


def build_page(out: str) -> str:
    """The text of ablation.html for the folder of an ablation; the caller writes it."""
    folder = Folder.open(out)
    record = folder.json("ablation.json")
    return page_of(record, {str(job["folder"]): metrics_of(folder, str(job["metrics"])) for job in jobs_of(record)})


def page_of(record: Record, metrics: Mapping[str, JobMetrics]) -> str:
    arms = record.get("arms") or []
    said = sorted((verdict_of(arm, record) for arm in arms), key=lambda one: WORDS.index(one.word))
    order = [one.name for one in said]
    values = {
        "record": record,
        "facts": facts(record),
        "said": said,
        "counted": counted(said),
        "long": len(jobs_of(record)) > LONG,
        "beside": any(one.beside for one in said),
        "failures": failures(record),
        "forests": [forest(one) for one in forests(record, order)],
        "differences": stacked(differences(record, order)) if record.get("measures") else None,
        "curves": [lines(one) for one in drawings(record, metrics, order)],
        "without": without(record, metrics),
        "costs": stacked(costs(record, metrics, order)),
        "epochs": stacked(epochs(record, order)),
        "repeated": repeated(record),
        "jobs": stacked(jobs(record)),
        "settings": list(flat(record.get("plan") or {}).items()),
        "sets": stacked(sets(record)),
        "measures": stacked(measures(record)) if record.get("measures") else None,
        "machine": [*flat(record.get("machine") or {}).items(), *(record.get("versions") or {}).items()],
    }
    return environment().get_template("ablation.html").render(values)


def counted(said: Sequence[ArmVerdict]) -> str:
    """How many arms came to what, as a sentence."""
    counts = {word: sum(one.word == word for one in said) for word in WORDS}
    parts = [f"{counts['adopt']} arm{'' if counts['adopt'] == 1 else 's'} to adopt", f"{counts['reject']} to reject"]
    return ", ".join(
        [*parts, *(f"{count} {word}" for word, count in counts.items() if count and word not in ("adopt", "reject"))]
    )


def without(record: Record, metrics: Mapping[str, JobMetrics]) -> str:
    """Which runs that are done have no curve, in words; nothing where all have."""
    done = [job for job in record.get("jobs") or [] if job["status"] == "done"]
    bare = [job for job in done if not metrics.get(str(job["folder"]), JobMetrics()).values[LOSS]]
    if not bare:
        return "" if done else "No run was finished."
    if len(bare) == len(done):
        return f"There is nothing to draw: no metrics.jsonl with losses lies in the folders of the {len(done)} runs that are done (jobs/ARM/seed-N/metrics.jsonl)."
    names = ", ".join(f"{job['arm']} (seed {job['seed']})" for job in bare[:NAMED]) + (
        " …" if len(bare) > NAMED else ""
    )
    return f"Without {len(bare)} of {len(done)} runs, in whose folders lies no metrics.jsonl with losses: {names}."


def facts(record: Record) -> list[tuple[str, str]]:
    """The ablation in a few numbers."""
    cost, model = record.get("cost") or {}, record.get("model") or {}
    protocol = record.get("protocol") or {}
    return [
        ("protocol", str(protocol.get("name") or "–")),
        ("new data", "–" if protocol.get("new") is None else share(protocol["new"])),
        ("tokens a run", as_number(record.get("tokens"))),
        ("parameters", as_number(model.get("parameters"))),
        ("training", as_seconds(cost.get("seconds"))),
        ("energy", energy(cost.get("joules"))),
    ]


def verdict_of(arm: Mapping[str, Any], record: Record) -> ArmVerdict:
    verdict, found = arm.get("verdict"), target_of(arm)
    name = str(arm["name"])
    if not verdict or found is None:
        word = "failed" if arm.get("status") == "failed" else "not run"
        return ArmVerdict(name, word, MARKS[word], str(arm.get("error") or "no run of it was finished"), "", [], [])
    seeds, of = len(arm.get("seeds") or []), len(record.get("seeds") or [])
    needed = verdict.get("seeds_needed")
    settle = f"{needed:,} seeds would settle it, if the difference is what it seems (now {seeds})" if needed else ""
    confidence = share(record.get("confidence") or 0.95)
    figures = [
        ("difference", f"{signed(found['difference'])} {found['unit']}{relatively(found)}"),
        (f"{confidence} interval", span(found["low"], found["high"])),
        ("p, corrected", chance(arm.get("p_holm"))),
        ("seeds", f"{seeds} of {of}"),
        ("guard", guarded(arm.get("guard"))),
    ]
    return ArmVerdict(
        name,
        str(verdict["word"]),
        MARKS.get(str(verdict["word"]), "?"),
        str(verdict.get("why") or ""),
        settle,
        beside(arm),
        figures,
    )


def beside(arm: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Losses first. The verdict is about the target and the guard, and stays what it is: here is what else its interval
    says for sure."""
    reported = [one for one in arm.get("differences") or [] if one["role"] == "reported" and one["domain"] is None]
    found = [(look_of(one), one) for one in reported]
    return [
        (word, f"{word} on {one['task']}, {signed(one['difference'])} {one['unit']}{relatively(one)}")
        for word in ("worse", "better")
        for look, one in found
        if look == word
    ]


def target_of(arm: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next(
        (one for one in arm.get("differences") or [] if one["role"] == "target" and one["domain"] is None), None
    )


def guarded(guard: Mapping[str, Any] | None) -> str:
    if guard is None:
        return "none"
    low, high = (percent(guard[end]) if guard[end] is not None else "unbounded" for end in ("low", "high"))
    state = "holds" if guard["holds"] else "is not shown to hold"
    return f"{percent(guard['rise'])} ({low} to {high}), {share(guard['budget'])} allowed: {state}"


def failures(record: Record) -> list[tuple[str, str]]:
    """Arms with an error, and jobs that failed: seeds of one arm with one error together."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for job in jobs_of(record):
        if job["status"] == "failed":
            seeds.setdefault((str(job["arm"]), str(job["error"] or "failed")), []).append(str(job["seed"]))
    named = {arm for arm, _ in seeds}
    of_arms = [(str(arm["name"]), str(arm["error"])) for arm in record.get("arms") or [] if arm.get("error")]
    of_jobs = [
        (f"{arm}, seed{'s' if len(its) > 1 else ''} {', '.join(its)}", error) for (arm, error), its in seeds.items()
    ]
    return [*((name, error) for name, error in of_arms if name not in named), *of_jobs]


# --- differences -----------------------------------------------------------------------------------------------------


def forests(record: Record, order: Sequence[str]) -> list[ForestPlot]:
    """The target with its domains, the guard against its budget, then each set that is only reported."""
    found: list[ForestPlot] = []
    confidence = share(record.get("confidence") or 0.95)
    about = f"arm less control, with the {confidence} interval over seeds and items; a tick for each seed"
    sets = dict.fromkeys((str(one["set"]), str(one["role"])) for one in record.get("measures") or [])
    for name, role in sorted(sets, key=lambda pair: ("target", "guard", "reported").index(pair[1])):
        measures = [one for one in record["measures"] if (one["set"], one["role"]) == (name, role)]
        first = measures[0]
        if role == "guard":
            estimates = [of_guard(arm, first) for arm in in_order(record, order) if arm.get("guard")]
            budget = next((arm["guard"]["budget"] for arm in record["arms"] if arm.get("guard")), None)
            if estimates:
                found.append(
                    ForestPlot(
                        f"Guard: {name}",
                        "its rise, relative to the control; it must stay below the budget",
                        "of the control's",
                        "lower",
                        estimates,
                        budget,
                        percent=True,
                    )
                )
            continue
        estimates = [
            of_difference(arm, one)
            for arm in in_order(record, order)
            for one in arm.get("differences") or []
            if (one["set"], one["role"]) == (name, role)
        ]
        if estimates:
            title = f"{'Target' if role == 'target' else 'Reported'}: {name}"
            found.append(
                ForestPlot(
                    title, f"{about}; {first['better']} is better", str(first["unit"]), str(first["better"]), estimates
                )
            )
    return found


def of_difference(arm: Mapping[str, Any], one: Mapping[str, Any]) -> IntervalEstimate:
    name, minor = (str(arm["name"]), False) if one["domain"] is None else (str(one["domain"]), True)
    seeds = [float(value) for value in (one.get("by_seed") or {}).values() if value is not None]
    return IntervalEstimate(name, "", float(one["difference"]), one["low"], one["high"], seeds, look_of(one), minor)


def look_of(one: Mapping[str, Any]) -> str:
    """On which side of no difference the interval lies."""
    good, bad = one["high"], one["low"]
    if one["better"] == "higher":
        good, bad = (None if end is None else -end for end in (one["low"], one["high"]))
    return look(good, bad, 0.0)


def of_guard(arm: Mapping[str, Any], measure: Mapping[str, Any]) -> IntervalEstimate:
    guard = arm["guard"]
    level = float(measure["control"]["mean"])
    found: Mapping[str, Any] = next(
        (one for one in arm["differences"] if one["role"] == "guard" and one["domain"] is None), {}
    )
    seeds = [value / level for value in (found.get("by_seed") or {}).values() if value is not None and level]
    return IntervalEstimate(
        str(arm["name"]),
        "",
        float(guard["rise"]),
        guard["low"],
        guard["high"],
        seeds,
        look(guard["high"], guard["low"], float(guard["budget"])),
    )


def look(high: float | None, low: float | None, line: float) -> str:
    """On which side of a line the whole interval lies, where lower is better."""
    if high is not None and high < line:
        return "better"
    return "worse" if low is not None and low > line else "unsure"


# --- curves ----------------------------------------------------------------------------------------------------------


def drawings(record: Record, metrics: Mapping[str, JobMetrics], order: Sequence[str]) -> list[Curves]:
    """Loss and the target on the way, a few arms at a time beside the control."""
    titles = ((LOSS, "Training loss", "mean of all seeds, and the band that they fill; nats a token"),
              (ON_THE_WAY, "Target on the way", "bits per byte on a part of the target's documents, so not the figure of the end"))  # fmt: skip
    found: list[Curves] = []
    for value, title, about in titles:
        curves = {
            arm: curve
            for arm in (CONTROL, *order)
            if (curve := curve_of(arm, runs_of(record, metrics, arm, value))) is not None
        }
        arms = [arm for arm in curves if arm != CONTROL]
        control = [curves[CONTROL]] if CONTROL in curves else []
        groups = [arms[k : k + TOGETHER] for k in range(0, len(arms), TOGETHER)] or ([[]] if control else [])
        for number, group in enumerate(groups):
            shown: list[Curve] = [*control, *(curves[arm] for arm in group)]
            part = f" ({number + 1} of {len(groups)})" if len(groups) > 1 else ""
            found.append(Curves(title + part, about, "updates", shown, top_of(shown)))
    return found


def runs_of(record: Record, metrics: Mapping[str, JobMetrics], arm: str, value: str) -> list[Mapping[int, float]]:
    return [
        metrics[str(job["folder"])].values[value]
        for job in record.get("jobs") or []
        if job["arm"] == arm and str(job["folder"]) in metrics
    ]
