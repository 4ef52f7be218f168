"""ablation.html: what came of an ablation, from its ablation.json and the metrics of its jobs (docs/ablations.md).
Verdicts first.

One file, no network, no script. Names of arms and sets are anyone's: every value is escaped (`sections.environment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gristmill.pipeline.formatting import as_number, as_seconds, flat
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation_curves import LOSS, ON_THE_WAY, JobMetrics, curve_of, metrics_of, top_of
from gristmill.pipeline.report.ablation_record import (
    AblationCost,
    AblationRecord,
    ArmRecord,
    DifferenceRecord,
    GuardRecord,
    MeasureRecord,
    ModelRecord,
    ProtocolRecord,
)
from gristmill.pipeline.report.ablation_tables import (
    CONTROL,
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
    proxy_runs,
    relatively,
    repeated,
    sets,
    share,
    signed,
    span,
)
from gristmill.pipeline.report.charts_lines import Curve, Curves, ForestPlot, IntervalEstimate, forest, lines
from gristmill.pipeline.report.sections import environment
from gristmill.pipeline.tables import as_html

WORDS = ("adopt", "reject", "inconclusive", "failed", "not run")  # in the order in which they are shown
MARKS = {"adopt": "✓", "reject": "✕", "inconclusive": "?", "failed": "!", "not run": "–"}
BEST = 10  # proxy runs that are shown
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


def build_page(folder: RunFolder) -> str:
    """The text of ablation.html for the folder of an ablation; the caller writes it."""
    record = cast(AblationRecord, folder.json("ablation.json"))
    return page_of(record, {str(job["folder"]): metrics_of(folder, str(job["metrics"])) for job in jobs_of(record)})


def page_of(record: AblationRecord, metrics: Mapping[str, JobMetrics]) -> str:
    proxies = record.get("proxies")
    best = [found["name"] for found in proxies or ()][:BEST]
    arms = [arm for arm in record.get("arms") or [] if proxies is None or arm["name"] in best]
    verdicts = sorted((verdict_of(arm, record) for arm in arms), key=lambda verdict: WORDS.index(verdict.word))
    order = [verdict.name for verdict in verdicts]
    values = {
        "record": record,
        "facts": facts(record),
        "proxies": None if proxies is None else as_html(proxy_runs(record, best)),
        "said": verdicts if proxies is None else [],
        "counted": counted(verdicts) if proxies is None else f"{len(proxies):,} proxy runs; ablations.csv has all",
        "long": len(jobs_of(record)) > LONG,
        "beside": any(verdict.beside for verdict in verdicts),
        "failures": failures(record),
        "forests": [forest(plot) for plot in forests(record, order)],
        "differences": as_html(differences(record, order)) if record.get("measures") else None,
        "curves": [lines(drawing) for drawing in drawings(record, metrics, order)],
        "without": without(record, metrics),
        "costs": as_html(costs(record, metrics, order)),
        "epochs": as_html(epochs(record, order)),
        "repeated": repeated(record),
        "jobs": as_html(jobs(record)),
        "settings": list(flat(record.get("plan") or {}).items()),
        "sets": as_html(sets(record)),
        "measures": as_html(measures(record)) if record.get("measures") else None,
        "machine": [*flat(record.get("machine") or {}).items(), *(record.get("versions") or {}).items()],
    }
    return environment().get_template("ablation.html").render(values)


def counted(verdicts: Sequence[ArmVerdict]) -> str:
    """How many arms came to what, as a sentence."""
    counts = {word: sum(verdict.word == word for verdict in verdicts) for word in WORDS}
    parts = [f"{counts['adopt']} arm{'' if counts['adopt'] == 1 else 's'} to adopt", f"{counts['reject']} to reject"]
    return ", ".join(
        [*parts, *(f"{count} {word}" for word, count in counts.items() if count and word not in ("adopt", "reject"))]
    )


def without(record: AblationRecord, metrics: Mapping[str, JobMetrics]) -> str:
    """Which runs that are done have no curve, in words; nothing where all have."""
    done = [job for job in record.get("jobs") or [] if job["status"] == "done"]
    bare = [job for job in done if not metrics.get(str(job["folder"]), JobMetrics()).values[LOSS]]
    if not bare:
        return "" if done else "No run was finished."
    if len(bare) == len(done):
        return (
            f"There is nothing to draw: no metrics.jsonl with losses lies in the folders of the {len(done)} runs"
            " that are done (jobs/ARM/seed-N/metrics.jsonl)."
        )
    names = ", ".join(f"{job['arm']} (seed {job['seed']})" for job in bare[:NAMED]) + (
        " …" if len(bare) > NAMED else ""
    )
    return f"Without {len(bare)} of {len(done)} runs, in whose folders lies no metrics.jsonl with losses: {names}."


def facts(record: AblationRecord) -> list[tuple[str, str]]:
    """The ablation in a few numbers."""
    cost: AblationCost = record.get("cost") or {}
    model: ModelRecord = record.get("model") or {}
    protocol: ProtocolRecord = record.get("protocol") or {}
    new = protocol.get("new")
    return [
        ("protocol", str(protocol.get("name") or "–")),
        ("new data", "–" if new is None else share(new)),
        ("tokens a run", as_number(record.get("tokens"))),
        ("parameters", as_number(model.get("parameters"))),
        ("training", as_seconds(cost.get("seconds"))),
        ("energy", energy(cost.get("joules"))),
    ]


def verdict_of(arm: ArmRecord, record: AblationRecord) -> ArmVerdict:
    verdict, target = arm.get("verdict"), target_of(arm)
    name = str(arm["name"])
    if not verdict or target is None:
        word = "failed" if arm.get("status") == "failed" else "not run"
        return ArmVerdict(name, word, MARKS[word], str(arm.get("error") or "no run of it was finished"), "", [], [])
    seeds, of = len(arm.get("seeds") or []), len(record.get("seeds") or [])
    needed = verdict.get("seeds_needed")
    settle = f"{needed:,} seeds would settle it, if the difference is what it seems (now {seeds})" if needed else ""
    confidence = share(record.get("confidence") or 0.95)
    figures = [
        ("difference", f"{signed(target['difference'])} {target['unit']}{relatively(target)}"),
        (f"{confidence} interval", span(target["low"], target["high"])),
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


def beside(arm: ArmRecord) -> list[tuple[str, str]]:
    """Losses first. The verdict is about the target and the guard, and stays what it is: here is what else its interval
    says for sure."""
    reported = [row for row in arm.get("differences") or [] if row["role"] == "reported" and row["domain"] is None]
    looks = [(look_of(row), row) for row in reported]
    return [
        (word, f"{word} on {row['task']}, {signed(row['difference'])} {row['unit']}{relatively(row)}")
        for word in ("worse", "better")
        for look, row in looks
        if look == word
    ]


def target_of(arm: ArmRecord) -> DifferenceRecord | None:
    return next(
        (row for row in arm.get("differences") or [] if row["role"] == "target" and row["domain"] is None), None
    )


def guarded(guard: GuardRecord | None) -> str:
    if guard is None:
        return "none"
    low, high = ("unbounded" if end is None else percent(end) for end in (guard["low"], guard["high"]))
    state = "holds" if guard["holds"] else "is not shown to hold"
    return f"{percent(guard['rise'])} ({low} to {high}), {share(guard['budget'])} allowed: {state}"


def failures(record: AblationRecord) -> list[tuple[str, str]]:
    """Arms with an error, and jobs that failed: seeds of one arm with one error together."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for job in jobs_of(record):
        if job["status"] == "failed":
            seeds.setdefault((str(job["arm"]), str(job["error"] or "failed")), []).append(str(job["seed"]))
    named = {arm for arm, _ in seeds}
    of_arms = [(str(arm["name"]), str(arm["error"])) for arm in record.get("arms") or [] if arm.get("error")]
    of_jobs = [
        (f"{arm}, seed{'s' if len(failed) > 1 else ''} {', '.join(failed)}", error)
        for (arm, error), failed in seeds.items()
    ]
    return [*((name, error) for name, error in of_arms if name not in named), *of_jobs]


# --- differences ------------------------------------------------------------------------------------------------------


def forests(record: AblationRecord, order: Sequence[str]) -> list[ForestPlot]:
    """The target with its domains, the guard against its budget, then each set that is only reported."""
    plots: list[ForestPlot] = []
    confidence = share(record.get("confidence") or 0.95)
    about = f"arm less control, with the {confidence} interval over seeds and items; a tick for each seed"
    sets = dict.fromkeys((measure["set"], measure["role"]) for measure in record.get("measures") or [])
    for name, role in sorted(sets, key=lambda pair: ("target", "guard", "reported").index(pair[1])):
        measures = [each for each in record["measures"] if (each["set"], each["role"]) == (name, role)]
        first = measures[0]
        if role == "guard":
            estimates = [of_guard(arm, guard, first) for arm in in_order(record, order) if (guard := arm.get("guard"))]
            budget = next((guard["budget"] for arm in record["arms"] if (guard := arm.get("guard"))), None)
            if estimates:
                plots.append(
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
            of_difference(arm, row)
            for arm in in_order(record, order)
            for row in arm.get("differences") or []
            if (row["set"], row["role"]) == (name, role)
        ]
        if estimates:
            title = f"{'Target' if role == 'target' else 'Reported'}: {name}"
            plots.append(
                ForestPlot(
                    title, f"{about}; {first['better']} is better", str(first["unit"]), str(first["better"]), estimates
                )
            )
    return plots


def of_difference(arm: ArmRecord, row: DifferenceRecord) -> IntervalEstimate:
    name, minor = (arm["name"], False) if row["domain"] is None else (row["domain"], True)
    seeds = [float(value) for value in (row.get("by_seed") or {}).values() if value is not None]
    return IntervalEstimate(name, "", float(row["difference"]), row["low"], row["high"], seeds, look_of(row), minor)


def look_of(row: DifferenceRecord) -> str:
    """On which side of no difference the interval lies."""
    good, bad = row["high"], row["low"]
    if row["better"] == "higher":
        good, bad = (None if end is None else -end for end in (row["low"], row["high"]))
    return look(good, bad, 0.0)


def of_guard(arm: ArmRecord, guard: GuardRecord, measure: MeasureRecord) -> IntervalEstimate:
    level = float(measure["control"]["mean"])
    by_seed: dict[str, float] = next(
        (row.get("by_seed") or {} for row in arm["differences"] if row["role"] == "guard" and row["domain"] is None), {}
    )
    seeds = [value / level for value in by_seed.values() if value is not None and level]
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


# --- curves -----------------------------------------------------------------------------------------------------------


def drawings(record: AblationRecord, metrics: Mapping[str, JobMetrics], order: Sequence[str]) -> list[Curves]:
    """Loss and the target on the way, a few arms at a time beside the control."""
    titles = (
        (LOSS, "Training loss", "mean of all seeds, and the band that they fill; nats a token"),
        (
            ON_THE_WAY,
            "Target on the way",
            "bits per byte on a part of the target's documents, so not the figure of the end",
        ),
    )
    charts: list[Curves] = []
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
            together: list[Curve] = [*control, *(curves[arm] for arm in group)]
            part = f" ({number + 1} of {len(groups)})" if len(groups) > 1 else ""
            charts.append(Curves(title + part, about, "updates", together, top_of(together)))
    return charts


def runs_of(
    record: AblationRecord, metrics: Mapping[str, JobMetrics], arm: str, value: str
) -> list[Mapping[int, float]]:
    return [
        metrics[str(job["folder"])].values[value]
        for job in record.get("jobs") or []
        if job["arm"] == arm and str(job["folder"]) in metrics
    ]
