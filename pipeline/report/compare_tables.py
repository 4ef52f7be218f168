"""The tables of a comparison, for the page and the terminal alike: A, B, and the difference in words that both can show."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.figures import Figures
from pipeline.report.compare import Comparison, Sides, Way
from pipeline.report.compare_recipes import Difference, StagePair
from pipeline.words import as_amount, as_bytes, as_energy, as_money, as_number, as_seconds, as_share, as_short, as_tokens

LONG = 6  # entries of a list that are shown as they are


def totals(found: Comparison) -> Figures:
    a, b = (one.totals for one in found.overviews)
    runs = [one.run for one in found.overviews]
    rows = [
        counted("records read", a.records, b.records),
        counted("documents", a.documents, b.documents),
        counted("documents kept", a.kept, b.kept),
    ]
    rows.append(("kept of documents", as_share(a.kept, a.documents), as_share(b.kept, b.documents), ""))
    rows.append(measured("text kept", a.text_bytes, b.text_bytes, as_bytes))
    if (a.tokens, b.tokens) != (None, None):
        said = (as_tokens(a.tokens, a.tokens_counted), as_tokens(b.tokens, b.tokens_counted))
        rows.append(("tokens", *said, percent(a.tokens, b.tokens)))
    rows.append(measured("time of the command", runs[0].seconds, runs[1].seconds, as_seconds))
    rows.append(measured("time of workers", a.worker_seconds, b.worker_seconds, as_seconds))
    rows.append(measured("peak memory of a worker", a.peak_memory, b.peak_memory, as_bytes))
    rows.append(measured("on disk", a.disk_bytes, b.disk_bytes, as_bytes))
    if (a.joules, b.joules) != (None, None):
        rows.append(measured("energy", a.joules, b.joules, as_energy))
    if (a.cost, b.cost) != (None, None):
        rows.append(
            (
                "cost",
                as_money(a.cost, a.currency),
                as_money(b.cost, b.currency),
                percent(a.cost, b.cost) if a.currency == b.currency else "",
            )
        )
    note = "A run that went on where it had stopped has the time of its last command; that of workers counts all."
    return Figures("Totals", ("total", "A", "B", "difference"), rows, note=note)


def settings(pair: StagePair) -> Figures:
    return differences(pair.name, pair.differences)


def differences(title: str, found: Sequence[Difference]) -> Figures:
    return Figures(title, ("field", "A", "B"), [(one.field, *shortened(one.a, one.b)) for one in found], words=3)


def shortened(a: str | None, b: str | None) -> tuple[str, str]:
    """Values as they are; of two long lists only what one has and the other has not."""
    lists = [listed(value) for value in (a, b)]
    if lists[0] is None or lists[1] is None or max(map(len, lists)) <= LONG:  # type: ignore[arg-type]
        return a if a is not None else "–", b if b is not None else "–"
    mine, others = lists[0], lists[1]
    same = sum(value in others for value in mine)
    return tuple(  # type: ignore[return-value]
        f"{same} the same, and {', '.join(map(str, own)) or 'no more'}"
        for own in ([value for value in one if value not in other] for one, other in ((mine, others), (others, mine)))
    )


def listed(value: str | None) -> list[Any] | None:
    try:
        found = json.loads(value) if value and value.startswith("[") else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def sides(every: Sequence[Sides]) -> Figures:
    """By source; all of them last."""
    shown = every if len(every) > 2 else every[-1:]
    rows = [
        (one.source or "all", *map(as_number, (one.both_kept, one.only_a, one.only_b, one.both_gone, one.missing_b, one.missing_a)))
        for one in shown
    ]
    head = ("source", "kept in both", "kept in A only", "kept in B only", "dropped in both", "read by A only", "read by B only")
    return Figures("Documents by what both runs did with them", head, rows)


def ways(title: str, found: Sequence[Way]) -> Figures:
    return Figures(title, ("in A", "in B", "documents"), [(way.a, way.b, as_number(way.documents)) for way in found], words=2)


def funnel(found: Comparison) -> Figures:
    rows = [
        (level.stage, level.source or "all", *numbers(level.a, level.b), *numbers(level.gone_a, level.gone_b))
        for level in found.funnel
    ]  # fmt: skip
    head = ("after", "source", "left in A", "left in B", "difference", "gone in A", "gone in B", "difference")
    return Figures("Documents left after each stage, by source", head, rows, words=2)


def reasons(found: Comparison) -> Figures:
    rows = [(one.stage, one.reason, *numbers(one.a, one.b)) for one in found.reasons]
    return Figures("Reasons that took more in one run than in the other", ("stage", "reason", "A", "B", "difference"), rows, words=2)


def medians(found: Comparison) -> Figures:
    """Only signals that are not the same in both."""
    rows = [
        (
            one.name,
            *(as_median(its.measured if its else None) for its in (one.a, one.b)),
            *(as_median(its.kept if its else None) for its in (one.a, one.b)),
        )
        for one in sorted(found.signals, key=lambda one: one.a is None or one.b is None)  # those of one run last
        if not one.same
    ]
    same = sum(one.same for one in found.signals)
    note = f"{same} more signals have the same medians in both." if same else ""
    if found.signals_of is not None:
        note += f" Medians of a sample of {as_number(found.signals_of)} documents, the same in both runs as far as both read them."
    head = ("signal", "measured, A", "measured, B", "kept, A", "kept, B")
    return Figures("Medians of signals, of all documents measured and of those kept", head, rows, note=note.strip())


def costs(found: Comparison) -> Figures:
    priced = any(cost is not None for one in found.costs for cost in one.cost)
    rows = [
        (
            one.stage,
            *pair(one.seconds, as_seconds),
            percent(*one.seconds),
            *pair(one.rate, as_number),
            *pair(one.bytes_out, as_bytes),
            *pair(one.memory, as_bytes),
            *(pair(one.cost, as_amount) if priced else ()),
        )
        for one in found.costs
    ]
    head: tuple[str, ...] = ("stage", "time A", "time B", "more", "docs/s A", "docs/s B", "out A", "out B", "memory A", "memory B")
    head += ("cost A", "cost B") if priced else ()
    return Figures("Time of workers, speed, bytes handed on and peak memory", head, rows)


def counted(name: str, a: int, b: int) -> tuple[str, str, str, str]:
    return (name, *numbers(a, b))


def numbers(a: int | None, b: int | None) -> tuple[str, str, str]:
    """Both, and by how much B has more."""
    return as_number(a), as_number(b), "" if a is None or b is None else signed(b - a)


def signed(value: int) -> str:
    return "0" if not value else f"{'+' if value > 0 else '−'}{abs(value):,}"


def measured(name: str, a: float | None, b: float | None, words: Callable[[float | None], str]) -> tuple[str, str, str, str]:
    return name, words(a), words(b), percent(a, b)


def percent(a: float | None, b: float | None) -> str:
    """How much more B is than A; nothing where one is not known, or nothing."""
    if not a or b is None:
        return ""
    change = 100 * (b - a) / a
    return "0%" if abs(change) < 0.5 else f"{'+' if change > 0 else '−'}{abs(change):,.0f}%"


def pair(values: tuple[Any, Any], words: Callable[[Any], str]) -> tuple[str, str]:
    return words(values[0]), words(values[1])


def as_median(value: float | None) -> str:
    return "–" if value is None else as_short(value).replace("-", "−")
