"""The tables of ablation.html: differences, what was measured, cost, epochs, runs and sets; and how its numbers are
shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gristmill.pipeline.formatting import as_bytes, as_energy, as_number, as_seconds
from gristmill.pipeline.report.ablation_curves import JobMetrics
from gristmill.pipeline.report.ablation_record import (
    AblationRecord,
    ArmRecord,
    ControlRecord,
    DifferenceRecord,
    JobRecord,
)
from gristmill.pipeline.tables import Table

CONTROL = "control"  # the name of its jobs
REPEATS = 4  # epochs, above which data is worth less (Muennighoff et al. 2023)


def jobs_of(record: AblationRecord) -> list[JobRecord]:
    base = record.get("base")
    return [*([base] if base else []), *(record.get("jobs") or [])]


def in_order(record: AblationRecord, order: Sequence[str]) -> list[ArmRecord]:
    arms = {str(arm["name"]): arm for arm in record.get("arms") or []}
    return [arms[name] for name in order]


def differences(record: AblationRecord, order: Sequence[str]) -> Table:
    rows = [
        (
            str(arm["name"]),
            str(row["task"]),
            str(row["role"]),
            signed(row["difference"]),
            span(row["low"], row["high"]),
            relatively(row).strip(" ()") or "–",
            chance(row["p"]),
            plain(row["seeds_error"]),
            plain(row["items_error"]),
            plain(row["detectable"]),
        )
        for arm in in_order(record, order)
        for row in arm.get("differences") or []
    ]
    head = (
        "arm",
        "measure",
        "role",
        "difference",
        "interval",
        "relative",
        "p",
        "error, seeds",
        "error, items",
        "detectable",
    )
    note = (
        "Errors are standard errors: of what seeds vary and of what items vary. Detectable is the smallest true"
        " difference found in 80% of cases."
    )
    return Table.of("All differences, arm less control", head, rows, words=3, note=note)


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
        for measure in record["measures"]
    ]
    return Table.of("What was measured", ("measure", "role", "unit", "control", "items", "clusters"), rows, words=3)


def costs(record: AblationRecord, metrics: Mapping[str, JobMetrics], order: Sequence[str]) -> Table:
    by_arm: dict[str, list[JobRecord]] = {}
    for job in jobs_of(record):
        by_arm.setdefault(str(job["arm"]), []).append(job)
    names = [name for name in dict.fromkeys(("base", CONTROL, *order)) if name in by_arm]
    rows = [(name, *cost(by_arm[name], metrics)) for name in names]
    rows.append(("all", *cost(jobs_of(record), metrics)))
    head = ("arm", "runs", "hours", "measuring", "tokens", "tokens/s", "peak memory", "energy", "CO2")
    return Table.of(
        "What it took",
        head,
        rows,
        note="Tokens without padding; hours of training, and beside them those of measuring. A run that failed"
        " counts as none.",
    )


def cost(jobs: Sequence[JobRecord], metrics: Mapping[str, JobMetrics]) -> tuple[str, ...]:
    done = [job for job in jobs if job["status"] == "done"]
    seconds = sum(job["seconds"] or 0 for job in done)
    measuring = sum(job["seconds_measuring"] or 0 for job in done)
    tokens = sum(job["tokens"] or 0 for job in done)
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
        energy(sum_of(joules)),
        weight(sum_of(grams)),
    )


def sum_of(amounts: Sequence[float | None]) -> float | None:
    """None where one is not known, or there is none."""
    stated = [amount for amount in amounts if amount is not None]
    return sum(stated) if stated and len(stated) == len(amounts) else None


def hours(seconds: float) -> str:
    return f"{seconds / 3600:,.3f}" if seconds < 36000 else f"{seconds / 3600:,.1f}"


def energy(joules: float | None) -> str:
    return "not measured" if joules is None else as_energy(joules)


def weight(grams: float | None) -> str:
    return "not stated" if grams is None else f"{grams:,.1f} g" if grams < 1000 else f"{grams / 1000:,.2f} kg"


def epochs(record: AblationRecord, order: Sequence[str]) -> Table:
    rows = [
        (
            name,
            set_,
            share(part),
            "–" if times is None else f"{times:,.2f}",
            "▲ above 4" if times is not None and times > REPEATS else "",
        )
        for name, set_, part, times in epochs_of(record, order)
    ]
    return Table.of(
        "How often each arm goes through each set", ("arm", "set", "of its tokens", "epochs", "note"), rows, words=2
    )


def epochs_of(record: AblationRecord, order: Sequence[str]) -> list[tuple[str, str, float, float | None]]:
    control: ControlRecord = record.get("control") or {}
    arms = [(CONTROL, control.get("weights"), control.get("epochs"))]
    arms += [(arm["name"], arm.get("weights"), arm.get("epochs")) for arm in in_order(record, order)]
    return [
        (name, str(set_), float(part), (epochs or {}).get(set_))
        for name, weights, epochs in arms
        for set_, part in (weights or {}).items()
    ]


def repeated(record: AblationRecord) -> int:
    order = [str(arm["name"]) for arm in record.get("arms") or []]
    return len({name for name, _, _, times in epochs_of(record, order) if times is not None and times > REPEATS})


def proxy_runs(record: AblationRecord, best: Sequence[str]) -> Table:
    """The best proxy runs and the mix by tokens, with the largest weights of each."""
    levels = {found["name"]: found["levels"] for found in record.get("proxies") or ()}
    mixes = {arm["name"]: arm["mix"] for arm in record.get("arms") or ()}
    mixes[CONTROL] = (record.get("control") or {}).get("mix") or {}
    tasks = [str(measure["task"]) for measure in record.get("measures") or ()][:4]
    rows = []
    for name in dict.fromkeys([*best, *([CONTROL] if CONTROL in levels else [])]):
        largest = sorted(mixes[name].items(), key=lambda item: (-item[1], item[0]))[:3]
        most = ", ".join(f"{each} {share(weight)}" for each, weight in largest)
        rows.append(("by tokens" if name == CONTROL else name, most, *(plain(levels[name][task]) for task in tasks)))
    return Table.of("The best proxy runs by the target", ("mix", "largest weights", *tasks), rows, words=2)


def jobs(record: AblationRecord) -> Table:
    rows = [
        (
            str(job["arm"]),
            str(job["seed"]),
            str(job["status"]),
            plain(job["loss"]),
            as_number(job["updates"]),
            as_number(job["tokens"]),
            as_seconds(job["seconds"]),
            energy(job["joules"]),
            str(job["device"] or "–"),
        )
        for job in jobs_of(record)
    ]
    return Table.of(
        "Every run", ("arm", "seed", "state", "loss", "updates", "tokens", "time", "energy", "device"), rows, words=3
    )


def sets(record: AblationRecord) -> Table:
    rows = [
        (
            str(name),
            str(entry["folder"]),
            "–" if entry["share"] is None else share(entry["share"]),
            as_number(entry["rows"]),
            as_number(entry["tokens"]),
        )
        for name, entry in (record.get("sets") or {}).items()
    ]
    return Table.of("Sets of token shards", ("set", "folder", "taken", "rows", "tokens"), rows, words=2)


# --- numbers in words -------------------------------------------------------------------------------------------------


def relatively(difference: DifferenceRecord) -> str:
    relative = difference.get("relative")
    return f" ({percent(relative['difference'])})" if relative else ""


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
