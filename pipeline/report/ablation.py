"""ablation.html: what won, by how much, how sure that is, and what it cost; from ablation.json and the metrics of its
jobs (docs/ablations.md). And the verdicts of the ablations in a run's folder, for its report.

Names of arms and sets are anyone's: every value is escaped (`page.environment`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from gristmill.pipeline.formatting import as_bytes, as_change, as_energy, as_number, as_seconds, flat, with_minus
from gristmill.pipeline.json_types import JSON, JSONObject
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.report.ablation_record import (
    AblationCost,
    AblationRecord,
    ArmRecord,
    ControlRecord,
    DifferenceRecord,
    GuardRecord,
    JobRecord,
    MeasureRecord,
    ModelRecord,
    ProtocolRecord,
    as_compute,
    remarks,
)
from gristmill.pipeline.report.charts import Curve, Curves, ForestPlot, IntervalEstimate, forest, lines
from gristmill.pipeline.report.page import (
    Page,
    Section,
    alarms,
    facts,
    fold,
    fragment,
    page_of as page_with,
    paragraphs,
    settings,
    tables,
)
from gristmill.pipeline.tables import Table

PLACE = "ablations"  # in a run's folder
CONTROL = "control"  # the name of its jobs
WORDS = ("adopt", "reject", "disagree", "inconclusive", "failed", "not run")  # in the order in which they are shown
MARKS = {"adopt": "✓", "reject": "✕", "disagree": "≠", "inconclusive": "?", "failed": "!", "not run": "–"}
ROLES = ("target", "guard", "reported")
BEST = 10  # proxy runs that are shown
TOGETHER = 5  # arms in one drawing, beside the control
POINTS = 300  # of a curve; more than a screen shows
EARLY = 0.1  # of a run, whose losses are too high to draw the rest beside
LOSS, ON_THE_WAY = "loss", "evaluation.target_bits_per_byte"
DRAWN = {  # by their name in metrics.jsonl: title, and what they are
    LOSS: ("Training loss", "mean of all seeds, and the band that they fill; nats a token"),
    ON_THE_WAY: (
        "Target on the way",
        "bits per byte on a part of the target's documents, so not the figure of the end",
    ),
}


# --- the page and its sections ----------------------------------------------------------------------------------------


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
    warnings = record.get("warnings") or []
    result = counted(verdicts) if proxies is None else f"{len(proxies):,} proxy runs; ablations.csv has all"
    head = fragment(HEAD, {"record": record, "result": result})
    sections = (
        verdicts_section(record, verdicts) if proxies is None else proxies_section(record),
        alarms("warnings", f"{len(warnings)} warning{'s' if len(warnings) > 1 else ''}", warnings, "Warnings"),
        failures_section(record),
        differences_section(record, order),
        curves_section(record, metrics, order),
        Section("cost", "Cost", tables(costs(record, order))),
        settings_section(record, order),
    )
    return page_with(Page("ablation", str(record["name"]), head, FOOTER), sections)


HEAD = """\
{% if record.description %}<p dir="auto">{{ record.description }}</p>{% endif %}
<p><span class="status{{ ' done' if record.status == 'done' }}">{{ record.status }}</span> <span class="soft">{{ result }}</span></p>"""

FOOTER = Markup(
    "Made by Gristmill from <code>ablation.json</code> and <code>metrics.jsonl</code> of every run. A verdict is about"
    " this base and these seeds: confirm a winner at a larger size before you pay for it."
)


def verdicts_section(record: AblationRecord, verdicts: Sequence[ArmVerdict]) -> Section:
    values = {"verdicts": verdicts, "beside": any(verdict.beside for verdict in verdicts)}
    html = fragment(VERDICTS, values) + paragraphs(remarks(record)) + facts(in_short(record))
    return Section("verdicts", "Verdicts", html)


VERDICTS = """\
{% for one in verdicts %}
<article class="verdict {{ one.word | replace(' ', '-') }}">
<h3><span class="word"><span aria-hidden="true">{{ one.mark }}</span> {{ one.word }}</span> <bdi>{{ one.name }}</bdi></h3>
<p dir="auto">{{ one.why[:1] | upper }}{{ one.why[1:] }}.{% if one.settle %} <strong>{{ one.settle }}.</strong>{% endif %}</p>
{% if one.beside %}<ul class="beside-it">{% for word, what in one.beside %}<li dir="auto" class="{{ word }}">{{ '▼' if word == 'worse' else '△' }} {{ 'beside it: ' if loop.first }}{{ what }}</li>{% endfor %}</ul>{% endif %}
{% if one.figures %}<dl>{% for name, value in one.figures %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>{% endfor %}</dl>{% endif %}
</article>
{% else %}<p>No arm is in this ablation.</p>{% endfor %}
{% if beside %}<p class="soft">▼ and △: sets that are only reported, whose own interval holds no zero; not corrected for how many there are. A verdict is about the target and the guard alone.</p>{% endif %}
"""


def proxies_section(record: AblationRecord) -> Section:
    about = "Each run had a mix of its own, and nothing is compared: `mix` reads their table (`regmix`, `log_linear`)."
    return Section("verdicts", "Proxy runs", paragraphs([about]) + facts(in_short(record)))


def failures_section(record: AblationRecord) -> Section | None:
    found = failures(record)
    return Section("failures", "Failures", settings(found, "")) if found else None


def differences_section(record: AblationRecord, order: Sequence[str]) -> Section | None:
    plots = forests(record, order)
    if not plots:
        return None
    numbers = tables(differences(record, order), measures(record))
    html = Markup("").join(map(forest, plots))
    html += fold("All differences in numbers, and what was measured", numbers)
    return Section("differences", "Differences to the control", html, "Differences")


def curves_section(record: AblationRecord, metrics: Mapping[str, JobMetrics], order: Sequence[str]) -> Section:
    html = Markup("").join(map(lines, drawings(record, metrics, order)))
    return Section("curves", "On the way", html or paragraphs(["No run left losses."]), "Curves")


def settings_section(record: AblationRecord, order: Sequence[str]) -> Section:
    plan = settings(flat(record.get("plan") or {}).items())
    html = fold("How often each arm goes through each set", tables(epochs(record, order)))
    return Section("settings", "Settings", html + fold("The plan, with every default", plan))


def jobs_of(record: AblationRecord) -> list[JobRecord]:
    base = record.get("base")
    return [*([base] if base else []), *(record.get("jobs") or [])]


def in_order(record: AblationRecord, order: Sequence[str]) -> list[ArmRecord]:
    arms = {str(arm["name"]): arm for arm in record.get("arms") or []}
    return [arms[name] for name in order]


# --- verdicts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArmVerdict:
    """An arm and its verdict, in words."""

    name: str
    word: str
    mark: str
    why: str
    settle: str
    beside: list[tuple[str, str]]  # worse or better, and where: sets that are only reported, beyond chance
    figures: list[tuple[str, str]]


def verdict_of(arm: ArmRecord, record: AblationRecord) -> ArmVerdict:
    verdict, target = arm.get("verdict"), target_of(arm)
    name = str(arm["name"])
    if not verdict or target is None:
        word = "failed" if arm.get("status") == "failed" else "not run"
        return ArmVerdict(name, word, MARKS[word], str(arm.get("error") or "no run of it was finished"), "", [], [])
    seeds, of = len(arm.get("seeds") or []), len(record.get("seeds") or [])
    needed = verdict.get("seeds_needed")
    settle = f"{needed:,} seeds would settle it, if the difference is what it seems (now {seeds})" if needed else ""
    figures = [
        ("difference", f"{signed(target['difference'])} {target['unit']}{relatively(target)}"),
        (f"{share(record.get('confidence') or 0.95)} interval", span(target["low"], target["high"])),
        ("compute", as_compute(target.get("multiplier")) or "–"),
        ("p, corrected", chance(arm.get("p_holm"))),
        ("seeds", f"{seeds} of {of}"),
        ("guard", guarded(arm.get("guard"))),
    ]
    second = arm.get("second_rate")
    if second is not None:
        ends = span(second["low"], second["high"])
        figures.append((f"at the rate {second['rate']:g}", f"{signed(second['difference'])} ({ends})"))
    word = str(verdict["word"])
    return ArmVerdict(name, word, MARKS.get(word, "?"), str(verdict.get("why") or ""), settle, beside(arm), figures)


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
    rows = arm.get("differences") or []
    return next((row for row in rows if row["role"] == "target" and row["domain"] is None), None)


def guarded(guard: GuardRecord | None) -> str:
    if guard is None:
        return "none"
    low, high = ("unbounded" if end is None else percent(end) for end in (guard["low"], guard["high"]))
    state = "holds" if guard["holds"] else "is not shown to hold"
    return f"{percent(guard['rise'])} ({low} to {high}), {share(guard['budget'])} allowed: {state}"


def counted(verdicts: Sequence[ArmVerdict]) -> str:
    """How many arms came to what, as a sentence."""
    counts = {word: sum(verdict.word == word for verdict in verdicts) for word in WORDS}
    parts = [f"{counts['adopt']} arm{'' if counts['adopt'] == 1 else 's'} to adopt", f"{counts['reject']} to reject"]
    rest = [f"{count} {word}" for word, count in counts.items() if count and word not in ("adopt", "reject")]
    return ", ".join([*parts, *rest])


def in_short(record: AblationRecord) -> list[tuple[str, str | None]]:
    """The ablation in a few numbers."""
    cost: AblationCost = record.get("cost") or {}
    model: ModelRecord = record.get("model") or {}
    protocol: ProtocolRecord = record.get("protocol") or {}
    new, joules = protocol.get("new"), cost.get("joules")
    return [
        ("protocol", str(protocol.get("name") or "–")),
        ("new data", "–" if new is None else share(new)),
        ("tokens a run", as_number(record.get("tokens"))),
        ("parameters", as_number(model.get("parameters"))),
        ("training", as_seconds(cost.get("seconds"))),
        ("energy", None if joules is None else as_energy(joules)),
    ]


def failures(record: AblationRecord) -> list[tuple[str, str]]:
    """Arms with an error, and jobs that failed: seeds of one arm with one error together."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for job in jobs_of(record):
        if job["status"] == "failed":
            seeds.setdefault((str(job["arm"]), str(job["error"] or "failed")), []).append(seed_of(job))
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
    whole: dict[tuple[str, str], MeasureRecord] = {}  # of each set, before its domains
    for measure in record.get("measures") or []:
        whole.setdefault((measure["set"], measure["role"]), measure)
    plots = [
        guard_plot(record, order, measure) if measure["role"] == "guard" else difference_plot(record, order, measure)
        for measure in sorted(whole.values(), key=lambda measure: ROLES.index(measure["role"]))
    ]
    return [plot for plot in plots if plot.estimates]


def difference_plot(record: AblationRecord, order: Sequence[str], measure: MeasureRecord) -> ForestPlot:
    estimates = []
    for arm in in_order(record, order):
        for row in arm.get("differences") or []:
            if (row["set"], row["role"]) == (measure["set"], measure["role"]):
                name = arm["name"] if row["domain"] is None else row["domain"]
                seeds = [float(value) for value in (row.get("by_seed") or {}).values() if value is not None]
                ends = float(row["difference"]), row["low"], row["high"]
                estimates.append(IntervalEstimate(name, *ends, seeds, look_of(row), row["domain"] is not None))
    about = (
        f"arm less control, with the {share(record.get('confidence') or 0.95)} interval over seeds and items; a tick for"
        f" each seed; {measure['better']} is better"
    )
    title = f"{measure['role'].capitalize()}: {measure['set']}"
    return ForestPlot(title, about, str(measure["unit"]), str(measure["better"]), estimates)


def guard_plot(record: AblationRecord, order: Sequence[str], measure: MeasureRecord) -> ForestPlot:
    level, estimates, budget = float(measure["control"]["mean"]), [], None
    for arm in in_order(record, order):
        guard = arm.get("guard")
        if guard is not None:
            budget = float(guard["budget"])
            rows = [row for row in arm["differences"] if row["role"] == "guard" and row["domain"] is None]
            by_seed = (rows[0].get("by_seed") or {}) if rows else {}
            seeds = [value / level for value in by_seed.values() if value is not None and level]
            ends = guard["low"], guard["high"]
            state = look(guard["high"], guard["low"], budget)
            estimates.append(IntervalEstimate(str(arm["name"]), float(guard["rise"]), *ends, seeds, state))
    about = "its rise, relative to the control; it must stay below the budget"
    return ForestPlot(f"Guard: {measure['set']}", about, "of the control's", "lower", estimates, budget, percent=True)


def look_of(row: DifferenceRecord) -> str:
    """On which side of no difference the interval lies."""
    good, bad = row["high"], row["low"]
    if row["better"] == "higher":
        good, bad = (None if end is None else -end for end in (row["low"], row["high"]))
    return look(good, bad, 0.0)


def look(high: float | None, low: float | None, line: float) -> str:
    """On which side of a line the whole interval lies, where lower is better."""
    if high is not None and high < line:
        return "better"
    return "worse" if low is not None and low > line else "unsure"


def differences(record: AblationRecord, order: Sequence[str]) -> Table:
    rows = [
        (
            str(arm["name"]),
            str(row["task"]),
            str(row["role"]),
            signed(row["difference"]),
            span(row["low"], row["high"]),
            relatively(row).strip(" ()") or "–",
            as_compute(row.get("multiplier")) or "–",
            chance(row["p"]),
            *(plain(row[name]) for name in ("seeds_error", "items_error", "detectable")),
            *(deviation(row, part) for part in ("seed", "order")),
        )
        for arm in in_order(record, order)
        for row in arm.get("differences") or []
    ]
    head = (
        "difference",
        "interval",
        "relative",
        "compute",
        "p",
        "error, seeds",
        "error, items",
        "detectable",
        "seeds vary",
        "orders vary",
    )
    note = (
        "Errors are standard errors: of what seeds vary and of what items vary. Detectable is the smallest true"
        " difference found in 80% of cases. The last columns are standard deviations of single runs; with one data"
        " order a seed, seeds and orders vary together."
    )
    title = "All differences, arm less control"
    return Table.of(title, ("arm", "measure", "role", *head), rows, words=3, note=note)


def measures(record: AblationRecord) -> Table:
    rows = [
        (
            str(measure["task"]),
            str(measure["role"]),
            f"{measure['unit']}, {measure['better']} is better",
            plain(measure["control"]["mean"]),
            as_number(measure["items"]),
            as_number(measure["clusters"]),
        )
        for measure in record.get("measures") or []
    ]
    return Table.of("What was measured", ("measure", "role", "unit", "control", "items", "clusters"), rows, words=3)


# --- curves -----------------------------------------------------------------------------------------------------------


JobMetrics = dict[str, dict[int, float]]  # values of a job by update


def metrics_of(folder: RunFolder, path: str) -> JobMetrics:
    """A job's lines; of one that was killed the last may be torn, and is left out. No file, no lines."""
    metrics: JobMetrics = {LOSS: {}, ON_THE_WAY: {}}
    for line in metrics_lines(folder, path):
        step = line.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            continue
        for name in line:
            is_drawn = name in metrics or name.startswith(f"{ON_THE_WAY}/")
            if is_drawn and (value := number(line[name])) is not None:
                metrics.setdefault(name, {})[step] = value
    return metrics


def metrics_lines(folder: RunFolder, path: str) -> Iterator[JSONObject]:
    """Lines of a file below the folder, never of one outside."""
    if path.startswith("/") or ".." in path.split("/") or not folder.has(path):
        return
    with folder.open(path) as file:
        for raw in file:
            try:
                line = json.loads(raw)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def number(value: JSON) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def drawings(record: AblationRecord, metrics: Mapping[str, JobMetrics], order: Sequence[str]) -> list[Curves]:
    """Loss and the target on the way, by domain too, a few arms at a time beside the control."""
    charts: list[Curves] = []
    of_update = (record.get("rows_per_update") or 1) * (record.get("row_length") or 1)
    for value in dict.fromkeys([*DRAWN, *(name for job in metrics.values() for name in job)]):
        title, about = DRAWN.get(value) or (
            f"{DRAWN[ON_THE_WAY][0]}: {value[len(ON_THE_WAY) + 1 :]}",
            DRAWN[ON_THE_WAY][1],
        )
        by_arm = {arm: curve_of(arm, runs_of(record, metrics, arm, value), of_update) for arm in (CONTROL, *order)}
        curves = {arm: curve for arm, curve in by_arm.items() if curve is not None}
        arms = [arm for arm in curves if arm != CONTROL]
        control = [curves[CONTROL]] if CONTROL in curves else []
        groups = [arms[k : k + TOGETHER] for k in range(0, len(arms), TOGETHER)] or ([[]] if control else [])
        for place, group in enumerate(groups, 1):
            together: list[Curve] = [*control, *(curves[arm] for arm in group)]
            part = f" ({place} of {len(groups)})" if len(groups) > 1 else ""
            charts.append(Curves(title + part, about, "tokens", together, top_of(together)))
    return charts


def runs_of(
    record: AblationRecord, metrics: Mapping[str, JobMetrics], arm: str, value: str
) -> list[Mapping[int, float]]:
    of_arm = [
        str(job["folder"])
        for job in record.get("jobs") or []
        if job["arm"] == arm and not job.get("second_rate") and (job.get("length") or 1) == 1
    ]
    return [metrics[folder].get(value, {}) for folder in of_arm if folder in metrics]


def curve_of(name: str, runs: Sequence[Mapping[int, float]], of_update: int = 1) -> Curve | None:
    """One line for all seeds: in each of at most `POINTS` stretches of updates, the mean of every seed's mean, and the
    lowest and highest; by tokens, if an update has so many."""
    runs = [run for run in runs if run]
    if not runs:
        return None
    steps = np.unique(np.concatenate([np.fromiter(run, np.int64) for run in runs]))
    starts = steps[np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).astype(np.int64))]
    sums, counts = np.zeros((len(runs), len(starts))), np.zeros((len(runs), len(starts)))
    for row, run in enumerate(runs):
        places = np.searchsorted(starts, np.fromiter(run, np.int64), side="right") - 1
        np.add.at(sums[row], places, np.fromiter(run.values(), np.float64))
        np.add.at(counts[row], places, 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    there = ~np.isnan(means).all(axis=0)
    bands = (fold(means[:, there], axis=0).tolist() for fold in (np.nanmean, np.nanmin, np.nanmax))
    return Curve(name, (starts[there] * of_update).tolist(), *bands)


def top_of(curves: Sequence[Curve]) -> float | None:
    """The highest value after the first tenth of the longest run."""
    late = max((curve.at[-1] for curve in curves), default=0) * EARLY
    return max(
        (high for curve in curves for update, high in zip(curve.at, curve.high, strict=True) if update >= late),
        default=None,
    )


# --- cost and settings ------------------------------------------------------------------------------------------------


def costs(record: AblationRecord, order: Sequence[str]) -> Table:
    by_arm: dict[str, list[JobRecord]] = {}
    for job in jobs_of(record):
        by_arm.setdefault(str(job["arm"]), []).append(job)
    names = [name for name in dict.fromkeys(("base", CONTROL, *order)) if name in by_arm]
    rows = [(name, *cost(by_arm[name])) for name in names]
    rows.append(("all", *cost(jobs_of(record))))
    head = ("arm", "runs", "hours", "measuring", "tokens", "tokens/s", "peak memory", "energy")
    note = "Tokens without padding; hours of training, and beside them those of measuring. A run that failed counts as none."
    return Table.of("What it took", head, rows, note=note)


def cost(jobs: Sequence[JobRecord]) -> tuple[str, ...]:
    done = [job for job in jobs if job["status"] == "done"]
    seconds = sum(job["seconds"] or 0 for job in done)
    measuring = sum(job["seconds_measuring"] or 0 for job in done)
    tokens = sum(job["tokens"] or 0 for job in done)
    memory = max((job["peak_memory"] for job in done if job["peak_memory"]), default=None)
    return (
        f"{len(done)} of {len(jobs)}",
        hours(seconds),
        hours(measuring),
        as_number(tokens),
        as_number(tokens / seconds) if seconds else "–",
        as_bytes(memory),
        energy(sum_of([job["joules"] for job in done])),
    )


def sum_of(amounts: Sequence[float | None]) -> float | None:
    """None where one is not known, or there is none."""
    stated = [amount for amount in amounts if amount is not None]
    return sum(stated) if stated and len(stated) == len(amounts) else None


def seed_of(job: JobRecord) -> str:
    """The seed of a run, and what else tells it from the others."""
    parts = [str(job["seed"])]
    parts += [f"order {job['order']}"] if job.get("order") else []
    parts += ["second rate"] if job.get("second_rate") else []
    parts += [f"{job['length']:g} of the tokens"] if (job.get("length") or 1) != 1 else []
    return ", ".join(parts)


def epochs(record: AblationRecord, order: Sequence[str]) -> Table:
    control: ControlRecord = record.get("control") or {}
    arms = [(CONTROL, control.get("weights"), control.get("epochs"))]
    arms += [(arm["name"], arm.get("weights"), arm.get("epochs")) for arm in in_order(record, order)]
    rows = [
        (name, str(set_), share(float(part)), "–" if (times := (epochs or {}).get(set_)) is None else f"{times:,.2f}")
        for name, weights, epochs in arms
        for set_, part in (weights or {}).items()
    ]
    return Table.of("Epochs", ("arm", "set", "of its tokens", "epochs"), rows, words=2)


# --- in the report of a run -------------------------------------------------------------------------------------------


def ablations(folder: RunFolder) -> Markup:
    """The verdicts of each in the run's folder, with the way to its page; one that cannot be read says so."""
    parts = []
    for name in folder.names(PLACE):
        path = f"{PLACE}/{name}/ablation.json"
        if folder.has(path):
            try:
                parts.append(verdicts_of(cast(AblationRecord, folder.json(path)), name))
            except (ValueError, LookupError, TypeError, AttributeError):
                parts.append(paragraphs([f"{path} cannot be read."]))
    return Markup("").join(parts)


def verdicts_of(record: AblationRecord, name: str) -> Markup:
    """What its arms came to, and the way to its page."""
    arms = sorted((verdict_of(arm, record) for arm in record.get("arms") or []), key=lambda arm: WORDS.index(arm.word))
    values = {"record": record, "page": f"{PLACE}/{quote(name, safe='')}/ablation.html", "arms": arms}
    return fragment(IN_REPORT, values | {"result": counted(arms)})


IN_REPORT = """\
<h3 dir="auto"><a href="{{ page }}">{{ record.name }}</a></h3>
<p class="soft">{{ result }}</p>
<dl class="settings">{% for arm in arms %}<dt>{{ arm.mark }} {{ arm.word }}</dt><dd dir="auto">{{ arm.name }}: {{ arm.why }}</dd>{% endfor %}</dl>
"""


# --- numbers in words -------------------------------------------------------------------------------------------------


def relatively(difference: DifferenceRecord) -> str:
    relative = difference.get("relative")
    return f" ({percent(relative['difference'])})" if relative else ""


def signed(value: float | None) -> str:
    return "–" if value is None else as_change(value, ".4f")


def plain(value: float | None) -> str:
    return "–" if value is None else with_minus(f"{value:.4f}")


def deviation(row: DifferenceRecord, part: Literal["seed", "order"]) -> str:
    """A standard deviation; with one order a seed the first is of both."""
    spread = row.get("spread")
    if spread is None:
        return "–"
    found = spread[part] if spread["order"] else spread["run"] if part == "seed" else None
    return "–" if found is None else plain(found["sd"])


def percent(value: float) -> str:
    return as_change(value, ".2%")


def share(part: float) -> str:
    return f"{100 * part:.4g}%"


def span(low: float | None, high: float | None) -> str:
    return " to ".join("unbounded" if end is None else signed(end) for end in (low, high))


def chance(value: float | None) -> str:
    return "–" if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"


def hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3f}" if seconds < 36000 else f"{seconds / 3600:,.1f}"


def energy(joules: float | None) -> str:
    return "not measured" if joules is None else as_energy(joules)
