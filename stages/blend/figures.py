"""Figures of the mix of sources and of the order of training: what `mix` and `order` told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from gristmill.stages.blend.methods import AnyMethod
from gristmill.stages.figures import MOST, Block, FactList, Report, Samples, Table, Warnings, relative
from gristmill.stages.formatting import as_number, as_percent, as_share, as_short
from gristmill.stages.one_of import name_of

TITLES = {name_of(kind): kind.title for kind in get_args(AnyMethod)}
MEASURES = {"distance": "distance", "risk": "risk", "utility": "utility", "predicted_loss": "predicted loss"}


def mix_figures(report: Report) -> list[Block]:
    mix = report["mix"]
    blocks: list[Block] = [FactList("", mix_facts(mix))]
    blocks += [Warnings([str(line) for line in mix["warnings"]])] if mix.get("warnings") else []
    blocks.append(sources_mixed(mix))
    blocks += examples_of(mix)
    blocks += [frontier(mix)] if mix.get("frontier") else [beside_controls(mix)] if mix.get("controls") else []
    noisy = [("dropped", task) for task in mix.get("dropped_tasks") or []] + [
        ("flagged", t) for t in mix.get("flagged_tasks") or []
    ]
    blocks += [noisy_tasks(noisy)] if noisy else []
    blocks += [left_out(mix)] if "rank_correlation" in mix else []
    blocks += [FactList("How far to trust it", doubts(mix))] if "nearest_run" in mix else []
    blocks += [larger_runs(mix["larger_runs"])] if "larger_runs" in mix else []
    return blocks


def mix_facts(mix: Report) -> list[tuple[str, str]]:
    wanted, drawn = (sum(row[name] for row in mix["drawn"]) for name in ("wanted", "drawn"))
    pairs = [
        (
            "weights by",
            TITLES.get(mix["method"], str(mix["method"])) + (f", {mix['regressor']}" if mix.get("regressor") else ""),
        ),
        ("sources told apart by", ", ".join(map(str, mix["by"]))),
        ("tokens wanted", as_number(wanted)),
        ("tokens drawn", as_number(drawn)),
    ]
    if any(row["taking_part"] < row["there"] for row in mix["drawn"]):
        part, there = (sum(row[name] for row in mix["drawn"]) for name in ("taking_part", "there"))
        pairs.append(
            (
                "a proxy",
                (
                    f"for a run of {as_number(mix['budget'])} tokens; {as_share(part, there)} of the tokens "
                    "take part, to repeat as they will there"
                ),
            )
        )
    pairs += [("aversion to risk", as_short(mix["aversion"]))] if "aversion" in mix else []
    pairs += [("price of distance from the prior", as_short(mix["kl"]))] if "kl" in mix else []
    pairs += [("solved to within", f"{mix['gap']:.1e} of the objective")] if "gap" in mix else []
    if joined := mix.get("joined"):
        into = len(set(joined.values()))
        pairs.append(("small cells joined", f"{as_number(len(joined))} into {as_number(into)}"))
    pairs += [("tasks", ", ".join(map(str, mix["tasks"])))] if mix.get("tasks") else []
    return pairs


def sources_mixed(mix: Report) -> Table:
    there = sum(row["there"] for row in mix["drawn"])
    given = sorted(
        zip(mix["sources"], mix["drawn"], strict=True),
        key=lambda pair: (-round(pair[0]["weight"], 12), pair[0]["source"]),
    )
    rows = [
        (
            str(source["source"]),
            as_number(drawn["there"]),
            as_percent(drawn["there"] / there if there else 0.0),
            as_number(drawn["wanted"]),
            as_number(drawn["drawn"]),
            f"{source['epochs']:.2f}",
            as_percent(source["cap"]),
            as_percent(source["weight"]),
        )
        for source, drawn in given
    ]
    head = ("source", "tokens there", "share there", "wanted", "drawn", "epochs", "cap", "weight")
    note = "The weight of a source is its share of training; the cap is the most that its epochs allow."
    return Table.of(
        "What each source gives, in tokens",
        head,
        rows,
        1,
        relative([source["weight"] for source, _ in given]),
        note,
    ).first()


def examples_of(mix: Report) -> list[Samples]:
    """Documents of the cells with the largest weights."""
    examples: Mapping[str, Sequence[Mapping[str, Any]]] = mix.get("examples") or {}
    names = [str(s["source"]) for s in sorted(mix["sources"], key=lambda s: (-round(s["weight"], 12), s["source"]))]
    groups = [
        (name, [(str(e["uid"]), str(e["url"] or ""), str(e["text"] or "")) for e in examples[name]])
        for name in names
        if examples.get(name)
    ]
    more = f" (the first {MOST} of {len(groups):,} cells; report.json has all)" if len(groups) > MOST else ""
    return [Samples(f"Documents of each cell{more}", groups[:MOST])] if groups else []


def frontier(mix: Report) -> Table:
    """Mixes by their aversion to risk, and those that nobody had to choose."""
    rows = [
        (
            f"aversion {tilt['aversion']:g}" + (" (chosen)" if tilt["aversion"] == mix["aversion"] else ""),
            str(tilt["largest"]),
            as_percent(tilt["largest_weight"]),
            *placed(tilt),
        )
        for tilt in mix["frontier"]
    ]
    rows += [(str(name), "–", "–", *placed(control)) for name, control in (mix.get("controls") or {}).items()]
    head = ("mix", "largest source", "its weight", "distance", "risk")
    note = (
        "Distance: how far the mix is from the best at every task. Risk: 1 where all sources weigh the same, "
        "more where few make up most."
    )
    return Table.of("Distance against risk", head, rows, 2, note=note)


def placed(mix: Mapping[str, float]) -> tuple[str, str]:
    return f"{mix['distance']:.4f}", f"{mix['risk']:.4f}"


def beside_controls(mix: Report) -> Table:
    """The mix beside those that nobody had to choose, by the measure that it was chosen by."""
    names = [name for name in MEASURES if name in mix]
    mixes = {"this mix": mix, **mix["controls"]}
    rows = [(str(mix_name), *(f"{numbers[name]:.4f}" for name in names)) for mix_name, numbers in mixes.items()]
    return Table.of("Beside the mixes to beat", ("mix", *(MEASURES[name] for name in names)), rows)


def noisy_tasks(given: Sequence[tuple[str, Report]]) -> Table:
    rows = [
        (
            str(task["task"]),
            fate,
            str(task["reason"]),
            as_short(task["range"]),
            as_short(task["error"]),
            as_percent(task["chance"]),
        )
        for fate, task in given
    ]
    return Table.of(
        "Tasks that do not tell sources apart", ("task", "was", "because", "range", "error", "chance"), rows, 3
    ).first()


def left_out(mix: Report) -> Table:
    given = [("all that counts", mix["rank_correlation"]), *mix["rank_correlation_by_task"].items()]
    rows = [(str(name), f"{value:.3f}") for name, value in given]
    note = (
        f"{as_number(mix['runs'])} runs; {mix['left_out']} is left out: what the others predict of it, against "
        "what it gave."
    )
    bars = [min(1.0, max(0.0, value)) for _, value in given]
    return Table.of(
        "How well runs that were left out are ranked", ("loss", "rank correlation"), rows, 1, bars, note
    ).first()


def doubts(mix: Report) -> list[tuple[str, str]]:
    """The mix beside the runs that were measured."""
    sure, nearest, best = mix["interval"], mix["nearest_run"], mix["best_run"]
    told = f"{sure[0]:.4f} to {sure[1]:.4f} in 90 % of mixes drawn as the runs were" if sure else "too few runs to say"
    pairs = [
        ("predicted loss", f"{mix['predicted_loss']:.4f}; {told}"),
        (
            "nearest run",
            f"{nearest['run']}: {as_percent(nearest['distance'])} of its tokens would move; "
            f"{as_percent(nearest['farther_than'])} of the runs' mixes are nearer to another",
        ),
    ]
    pairs += [("best run within the caps", f"{best['run']}: {best['loss']:.4f}, measured")] if best else []
    if mix["advice"] == "run":
        weights = sorted(best["weights"].items(), key=lambda pair: (-pair[1], pair[0]))
        pairs.append(("advice", "take its mix: " + ", ".join(f"{name} {as_percent(w)}" for name, w in weights if w)))
    if ranked := mix.get("regressors"):
        pairs.append(("regressors", ", ".join(f"{name} {value:.3f}" for name, value in ranked.items())))
    return pairs


def larger_runs(larger: Report) -> Table:
    """Whether the ranking of small runs holds at a larger size, and what the runs near the mix had there."""
    low, high = larger["rank_correlation_interval"]
    best, sure = larger["best_run"], larger["interval"]
    rows = [("this mix (expected)", "0.0%", f"{larger['expected_loss']:.4f}", "–")]
    rows += [
        (str(run["run"]), as_percent(run["distance"]), f"{run['loss']:.4f}", as_number(run["place"]))
        for run in larger["nearest_runs"]
    ]
    if best["run"] not in {run["run"] for run in larger["nearest_runs"]}:
        rows.append((f"{best['run']} (best)", as_percent(best["distance"]), f"{best['loss']:.4f}", "1"))
    note = (
        f"The fit ranks {as_number(larger['runs'])} larger runs with a correlation of "
        f"{larger['rank_correlation']:.3f} ({low:.3f} to {high:.3f}); the best of them it puts at place "
        f"{as_number(best['predicted_place'])}."
    )
    note += f" The mix is expected at {sure[0]:.4f} to {sure[1]:.4f}." if sure else ""
    return Table.of("Larger runs near this mix", ("run", "tokens to move", "loss", "place"), rows, 1, note=note)


def order_figures(report: Report) -> list[Block]:
    order = report["order"]
    several = len(order["curricula"]) > 1
    parts = [curriculum(settings, several) for settings in order["curricula"]]
    pairs = [
        ("segments", f"{as_number(order['segments'])}: inside one, order is by chance and rows are packed together")
    ]
    if order["sampled"]:
        without = order["sampled_without_signal"]
        text = (
            f"{as_number(without)} of {as_number(order['sampled'])} documents of the sample "
            f"({as_share(without, order['sampled'])})"
        )
        pairs.append(("without the signal", f"{text}; they are placed by chance"))
    parts = [*parts, FactList("Altogether", pairs)] if several else [FactList("", parts[0].pairs + pairs)]
    return [*parts, deciles(order)] if order["deciles"] else [*parts]


def curriculum(settings: Report, several: bool) -> FactList:
    by = (
        "chance"
        if settings["by"] is None
        else f"{settings['by']}, {'the highest first' if settings['descending'] else 'the lowest first'}"
    )
    pairs = [
        ("schedule", str(settings["schedule"])),
        ("goes by", by),
        ("promise", str(settings["promise"])),
        ("advice", str(settings["advice"])),
        (
            "how sorted it is",
            (
                f"{settings['correlation']:.4f} by design, where 1 is sorted from first to last and 0 is by "
                "chance (the rank correlation of place and signal)"
            ),
        ),
    ]
    return FactList((str(settings["source"]) or "All other sources") if several else "", pairs)


def deciles(order: Report) -> Table:
    """The signal itself: where the highest come first the ranks are of its negative, and are turned back."""
    rows = []
    for group, values in sorted(order["deciles"].items()):
        settings = curriculum_of(order["curricula"], group)
        signal = [-value + 0.0 for value in values] if settings["descending"] else values
        rows.append(
            (
                group or ("all others" if len(order["curricula"]) > 1 else "all"),
                str(settings["by"]),
                *map(as_short, signal),
            )
        )
    head = ("documents", "signal", *(f"{tenth}%" for tenth in range(0, 101, 10)))
    return Table.of("The signal at each tenth of the tokens, in order of rank", head, rows, 2).first()


def curriculum_of(curricula: Sequence[Report], group: str) -> Report:
    """The one that a group goes by: that of the source which its name begins with, or else the one of all."""
    own = [
        settings
        for settings in curricula
        if settings["source"] and f"{group} ".startswith(f"source={settings['source']} ")
    ]
    return (
        max(own, key=lambda settings: len(settings["source"]))
        if own
        else next(settings for settings in curricula if not settings["source"])
    )
