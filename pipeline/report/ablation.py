"""ablation.html: what came of an ablation, from its ablation.json and the metrics of its jobs (docs/ablations.md). Verdicts first.

One file, no network, no script. Names of arms and sets are anyone's: every value is escaped (`sections.environment`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.figures import Figures
from pipeline.inspect import Folder
from pipeline.report.ablation_curves import LOSS, ON_THE_WAY, Metrics, curve_of, metrics_of, top_of
from pipeline.report.blend import table
from pipeline.report.charts_lines import Curve, Curves, Estimate, Forest, forest, lines
from pipeline.report.compare_recipes import flat
from pipeline.report.sections import environment
from pipeline.words import as_bytes, as_number, as_seconds

CONTROL = "control"  # the name of its jobs
WORDS = ("adopt", "reject", "inconclusive", "failed", "not run")  # in the order in which they are shown
MARKS = {"adopt": "✓", "reject": "✕", "inconclusive": "?", "failed": "!", "not run": "–"}
REPEATS = 4  # epochs, above which data is worth less (Muennighoff et al. 2023)
TOGETHER = 5  # arms in one drawing, beside the control
JOULES_PER_KWH = 3.6e6

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """An arm and its verdict, in words."""

    name: str
    word: str
    mark: str
    why: str
    settle: str
    figures: list[tuple[str, str]]


def build_page(out: str) -> str:
    """The text of ablation.html for the folder of an ablation; the caller writes it."""
    folder = Folder.open(out)
    record = folder.json("ablation.json")
    return page_of(record, {str(job["folder"]): metrics_of(folder, str(job["metrics"])) for job in jobs_of(record)})


def page_of(record: Record, metrics: Mapping[str, Metrics]) -> str:
    arms = record.get("arms") or []
    said = sorted((said_of(arm, record) for arm in arms), key=lambda one: WORDS.index(one.word))
    order = [one.name for one in said]
    values = {
        "record": record,
        "facts": facts(record),
        "said": said,
        "counts": [(word, sum(one.word == word for one in said)) for word in WORDS],
        "failures": failures(record),
        "forests": [forest(one) for one in forests(record, order)],
        "differences": table(differences(record, order)) if record.get("measures") else None,
        "curves": [lines(one) for one in drawings(record, metrics, order)],
        "costs": table(costs(record, metrics, order)),
        "epochs": table(epochs(record, order)),
        "repeated": repeated(record),
        "jobs": table(jobs(record)),
        "settings": list(flat(record.get("plan") or {}).items()),
        "sets": table(sets(record)),
        "measures": table(measures(record)) if record.get("measures") else None,
        "machine": [*flat(record.get("machine") or {}).items(), *(record.get("versions") or {}).items()],
    }
    return environment().get_template("ablation.html").render(values)


def jobs_of(record: Record) -> list[Mapping[str, Any]]:
    return [*([record["base"]] if record.get("base") else []), *(record.get("jobs") or [])]


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


def said_of(arm: Mapping[str, Any], record: Record) -> Said:
    verdict, found = arm.get("verdict"), target_of(arm)
    name = str(arm["name"])
    if not verdict or found is None:
        word = "failed" if arm.get("status") == "failed" else "not run"
        return Said(name, word, MARKS[word], str(arm.get("error") or "no run of it was finished"), "", [])
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
    return Said(name, str(verdict["word"]), MARKS.get(str(verdict["word"]), "?"), str(verdict.get("why") or ""), settle, figures)


def target_of(arm: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((one for one in arm.get("differences") or [] if one["role"] == "target" and one["domain"] is None), None)


def relatively(found: Mapping[str, Any]) -> str:
    return f" ({percent(found['relative']['difference'])})" if found.get("relative") else ""


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
    of_jobs = [(f"{arm}, seed{'s' if len(its) > 1 else ''} {', '.join(its)}", error) for (arm, error), its in seeds.items()]
    return [*((name, error) for name, error in of_arms if name not in named), *of_jobs]


def in_order(record: Record, order: Sequence[str]) -> list[Mapping[str, Any]]:
    arms = {str(arm["name"]): arm for arm in record.get("arms") or []}
    return [arms[name] for name in order]


# --- differences -----------------------------------------------------------------------------------------------------


def forests(record: Record, order: Sequence[str]) -> list[Forest]:
    """The target with its domains, the guard against its budget, then each set that is only reported."""
    found: list[Forest] = []
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
                    Forest(
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
            found.append(Forest(title, f"{about}; {first['better']} is better", str(first["unit"]), str(first["better"]), estimates))
    return found


def of_difference(arm: Mapping[str, Any], one: Mapping[str, Any]) -> Estimate:
    name, minor = (str(arm["name"]), False) if one["domain"] is None else (str(one["domain"]), True)
    seeds = [float(value) for value in (one.get("by_seed") or {}).values() if value is not None]
    good, bad = one["high"], one["low"]
    if one["better"] == "higher":
        good, bad = (None if end is None else -end for end in (one["low"], one["high"]))
    return Estimate(name, "", float(one["difference"]), one["low"], one["high"], seeds, look(good, bad, 0.0), minor)


def of_guard(arm: Mapping[str, Any], measure: Mapping[str, Any]) -> Estimate:
    guard = arm["guard"]
    level = float(measure["control"]["mean"])
    found: Mapping[str, Any] = next((one for one in arm["differences"] if one["role"] == "guard" and one["domain"] is None), {})
    seeds = [value / level for value in (found.get("by_seed") or {}).values() if value is not None and level]
    return Estimate(
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


def differences(record: Record, order: Sequence[str]) -> Figures:
    rows = [
        (
            str(arm["name"]), str(one["task"]), str(one["role"]), signed(one["difference"]), span(one["low"], one["high"]),
            relatively(one).strip(" ()") or "–", chance(one["p"]), plain(one["seeds_error"]), plain(one["items_error"]), plain(one["detectable"]),
        )
        for arm in in_order(record, order)
        for one in arm.get("differences") or []
    ]  # fmt: skip
    head = ("arm", "measure", "role", "difference", "interval", "relative", "p", "error, seeds", "error, items", "detectable")
    note = "Errors are standard errors: of what seeds vary and of what items vary. Detectable is the smallest true difference found in 80% of cases."
    return Figures("All differences, arm less control", head, rows, words=3, note=note)


def measures(record: Record) -> Figures:
    rows = [
        (str(one["task"]), str(one["role"]), f"{one['unit']}, {one['better']} is better", plain(one["control"]["mean"]), as_number(one["items"]),
         as_number(one["clusters"]))
        for one in record["measures"]
    ]  # fmt: skip
    return Figures("What was measured", ("measure", "role", "unit", "control", "items", "clusters"), rows, words=3)


# --- curves ----------------------------------------------------------------------------------------------------------


def drawings(record: Record, metrics: Mapping[str, Metrics], order: Sequence[str]) -> list[Curves]:
    """Loss and the target on the way, a few arms at a time beside the control."""
    titles = ((LOSS, "Training loss", "mean of all seeds, and the band that they fill; nats a token"),
              (ON_THE_WAY, "Target on the way", "bits per byte on a part of the target's documents, so not the figure of the end"))  # fmt: skip
    found: list[Curves] = []
    for value, title, about in titles:
        curves = {arm: curve for arm in (CONTROL, *order) if (curve := curve_of(arm, runs_of(record, metrics, arm, value))) is not None}
        arms = [arm for arm in curves if arm != CONTROL]
        control = [curves[CONTROL]] if CONTROL in curves else []
        groups = [arms[k : k + TOGETHER] for k in range(0, len(arms), TOGETHER)] or ([[]] if control else [])
        for number, group in enumerate(groups):
            shown: list[Curve] = [*control, *(curves[arm] for arm in group)]
            part = f" ({number + 1} of {len(groups)})" if len(groups) > 1 else ""
            found.append(Curves(title + part, about, "updates", shown, top_of(shown)))
    return found


def runs_of(record: Record, metrics: Mapping[str, Metrics], arm: str, value: str) -> list[Mapping[int, float]]:
    return [
        metrics[str(job["folder"])].values[value] for job in record.get("jobs") or [] if job["arm"] == arm and str(job["folder"]) in metrics
    ]


# --- cost and epochs -------------------------------------------------------------------------------------------------


def costs(record: Record, metrics: Mapping[str, Metrics], order: Sequence[str]) -> Figures:
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs_of(record):
        by_arm.setdefault(str(job["arm"]), []).append(job)
    names = [name for name in dict.fromkeys(("base", CONTROL, *order)) if name in by_arm]
    rows = [(name, *cost(by_arm[name], metrics)) for name in names]
    rows.append(("all", *cost(jobs_of(record), metrics)))
    head = ("arm", "runs", "hours", "measuring", "tokens", "tokens/s", "peak memory", "energy", "CO2")
    return Figures(
        "What it took",
        head,
        rows,
        note="Tokens without padding; hours of training, and beside them those of measuring. A run that failed counts as none.",
    )


def cost(jobs: Sequence[Mapping[str, Any]], metrics: Mapping[str, Metrics]) -> tuple[str, ...]:
    done = [job for job in jobs if job["status"] == "done"]
    seconds, measuring, tokens = (sum(job[key] or 0 for job in done) for key in ("seconds", "seconds_measuring", "tokens"))
    joules = [job["joules"] for job in done]
    grams = [metrics[str(job["folder"])].grams if str(job["folder"]) in metrics else None for job in done]
    memory = max((job["peak_memory"] for job in done if job["peak_memory"]), default=None)
    return (
        f"{len(done)} of {len(jobs)}",
        hours(seconds),
        hours(measuring),
        as_number(tokens),
        as_number(tokens / seconds) if seconds else "–",
        as_bytes(memory),
        energy(sum(joules) if joules and None not in joules else None),
        weight(sum(g for g in grams if g is not None) if grams and None not in grams else None),
    )


def hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3f}" if seconds < 36000 else f"{seconds / 3600:,.1f}"


def energy(joules: float | None) -> str:
    if joules is None:
        return "not measured"
    kwh = joules / JOULES_PER_KWH
    return f"{kwh:,.3f} kWh" if kwh < 100 else f"{kwh:,.0f} kWh"


def weight(grams: float | None) -> str:
    return "not stated" if grams is None else f"{grams:,.1f} g" if grams < 1000 else f"{grams / 1000:,.2f} kg"


def epochs(record: Record, order: Sequence[str]) -> Figures:
    rows = [
        (name, set_, share(part), "–" if times is None else f"{times:,.2f}", "▲ above 4" if times is not None and times > REPEATS else "")
        for name, set_, part, times in epochs_of(record, order)
    ]
    return Figures("How often each arm goes through each set", ("arm", "set", "of its tokens", "epochs", "note"), rows, words=2)


def epochs_of(record: Record, order: Sequence[str]) -> list[tuple[str, str, float, float | None]]:
    arms = [(CONTROL, record.get("control") or {}), *((str(arm["name"]), arm) for arm in in_order(record, order))]
    return [
        (name, str(set_), float(part), (arm.get("epochs") or {}).get(set_))
        for name, arm in arms
        for set_, part in (arm.get("weights") or {}).items()
    ]


def repeated(record: Record) -> int:
    order = [str(arm["name"]) for arm in record.get("arms") or []]
    return len({name for name, _, _, times in epochs_of(record, order) if times is not None and times > REPEATS})


def jobs(record: Record) -> Figures:
    rows = [
        (str(job["arm"]), str(job["seed"]), str(job["status"]), plain(job["loss"]), as_number(job["updates"]), as_number(job["tokens"]),
         as_seconds(job["seconds"]), energy(job["joules"]), str(job["device"] or "–"))
        for job in jobs_of(record)
    ]  # fmt: skip
    return Figures("Every run", ("arm", "seed", "state", "loss", "updates", "tokens", "time", "energy", "device"), rows, words=3)


def sets(record: Record) -> Figures:
    rows = [
        (
            str(name),
            str(one["folder"]),
            "–" if one["share"] is None else share(one["share"]),
            as_number(one["rows"]),
            as_number(one["tokens"]),
        )
        for name, one in (record.get("sets") or {}).items()
    ]
    return Figures("Sets of token shards", ("set", "folder", "taken", "rows", "tokens"), rows, words=2)


# --- numbers in words ------------------------------------------------------------------------------------------------


def signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}".replace("-", "−")


def plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}".replace("-", "−")


def percent(value: float) -> str:
    return f"{100 * value:+.2f}%".replace("-", "−")


def share(part: float) -> str:
    return f"{100 * part:.4g}%"


def span(low: float | None, high: float | None) -> str:
    return " to ".join("unbounded" if end is None else signed(end) for end in (low, high))


def chance(value: float | None) -> str:
    return "–" if value is None else "<0.0001" if value < 0.0001 else f"{value:.4f}"
