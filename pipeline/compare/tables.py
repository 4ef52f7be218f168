"""The tables of a comparison, for the page and the terminal alike: A, B, and the difference in words that both can
show."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from gristmill.pipeline.compare.compare import Comparison
from gristmill.pipeline.compare.counts import LevelPair
from gristmill.pipeline.compare.sides import JoinedDocuments, Sides, Way
from gristmill.pipeline.compare.signals import as_median
from gristmill.pipeline.figures import Figures
from gristmill.pipeline.formatting import (
    as_amount,
    as_bytes,
    as_energy,
    as_money,
    as_number,
    as_seconds,
    as_share,
    as_tokens,
)
from gristmill.pipeline.json_types import JSON
from gristmill.pipeline.look.recipe_differences import Difference, StagePair
from gristmill.pipeline.report.stacked import Group

LONG = 6  # entries of a list that are shown as they are


def totals(found: Comparison) -> Figures:
    a, b = (overview.totals for overview in found.overviews)
    runs = [overview.run for overview in found.overviews]
    rows = [
        counted("records read", a.records, b.records),
        counted("documents", a.documents, b.documents),
        *reached_mix(found),
        counted("documents kept", a.kept, b.kept),
    ]
    rows.append(("kept of documents", as_share(a.kept, a.documents), as_share(b.kept, b.documents), ""))
    rows.append(measured("text kept", a.text_bytes, b.text_bytes, as_bytes))
    if (a.tokens, b.tokens) != (None, None):
        tokens = (as_tokens(a.tokens, a.tokens_counted), as_tokens(b.tokens, b.tokens_counted))
        rows.append(("tokens", *tokens, percent(a.tokens, b.tokens)))
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


def reached_mix(found: Comparison) -> list[tuple[str, str, str, str]]:
    """What was left when the mix drew; unknown where a run kept but a share of its rejects."""
    documents = found.documents
    if documents is None or documents.share < 1 or not documents.before_mix:
        return []
    whole = documents.sides[-1]
    name = "documents before the mix" + (", of those both read" if whole.missing_a or whole.missing_b else "")
    return [counted(name, whole.both_kept + whole.only_a, whole.both_kept + whole.only_b)]


def settings(pair: StagePair) -> Figures:
    return differences(pair.name, pair.differences)


def differences(title: str, found: Sequence[Difference]) -> Figures:
    return Figures(
        title,
        ("field", "A", "B"),
        [(difference.field, *shortened(difference.a, difference.b)) for difference in found],
        words=3,
    )


def shortened(a: str | None, b: str | None) -> tuple[str, str]:
    """Values as they are; of two long lists only what one has and the other has not."""
    lists = [listed(value) for value in (a, b)]
    if lists[0] is None or lists[1] is None or max(map(len, lists)) <= LONG:  # type: ignore[arg-type]
        return a if a is not None else "–", b if b is not None else "–"
    ours, others = lists[0], lists[1]
    same = sum(value in others for value in ours)
    return tuple(  # type: ignore[return-value]
        f"{same} the same, and {', '.join(map(str, own)) or 'no more'}"
        for own in (
            [value for value in values if value not in other] for values, other in ((ours, others), (others, ours))
        )
    )


def listed(value: str | None) -> list[JSON] | None:
    try:
        parsed = json.loads(value) if value and value.startswith("[") else None
    except ValueError:
        return None
    return parsed if isinstance(parsed, list) else None


def headline(found: JoinedDocuments) -> str:
    """How many changed sides, in words."""
    whole = found.sides[-1]
    if not found.before_mix:
        return (
            f"{documents(whole.changed)} changed sides: {as_number(whole.only_a)} {are(whole.only_a)} kept in A "
            f"and dropped in B, "
            f"{as_number(whole.only_b)} the other way round. {as_number(whole.both_kept)} {are(whole.both_kept)} "
            f"kept in both."
        )
    return (
        f"{documents(whole.changed)} changed sides before the mix: {as_number(whole.only_b)} {was(whole.only_b)} "
        f"dropped in A only, "
        f"{as_number(whole.only_a)} in B only. {as_number(whole.both_kept)} came to the mix in both."
    )


def draw_line(found: JoinedDocuments) -> str:
    """What the draws alone changed, in words; and what both come to."""
    drawn, end = found.drawn[-1], found.end
    return (
        f"Of the {documents(drawn.both_kept + drawn.changed + drawn.both_gone)} that came to the mix in both runs, "
        f"{as_number(drawn.only_a)} "
        f"{are(drawn.only_a)} kept in A only, {as_number(drawn.only_b)} in B only, {as_number(drawn.both_kept)} in "
        f"both. "
        f"At the end, of all: {as_number(end.only_a)} kept in A only, {as_number(end.only_b)} in B only, "
        f"{as_number(end.both_kept)} in both."
    )


def documents(count: int) -> str:
    return f"{as_number(count)} document{'' if count == 1 else 's'}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def was(count: int) -> str:
    return "was" if count == 1 else "were"


def sides(found: JoinedDocuments) -> Figures:
    """By source; all of them last."""
    title = "Documents by what both runs did with them" + (", before the mix" if found.before_mix else "")
    head = (
        "source",
        "kept in both",
        "kept in A only",
        "kept in B only",
        "dropped in both",
        "read by A only",
        "read by B only",
    )
    return Figures(
        title,
        head,
        [(*counted_sides(side), *map(as_number, (side.missing_b, side.missing_a))) for side in several(found.sides)],
    )


def drawn(found: JoinedDocuments) -> Figures:
    head = ("source", "kept in both", "kept in A only", "kept in B only", "left out by both")
    return Figures(
        "Documents that came to the mix in both runs", head, [counted_sides(side) for side in several(found.drawn)]
    )


def several(every: Sequence[Sides]) -> Sequence[Sides]:
    return every if len(every) > 2 else every[-1:]


def counted_sides(side: Sides) -> tuple[str, ...]:
    return (side.source or "all", *map(as_number, (side.both_kept, side.only_a, side.only_b, side.both_gone)))


def ways(title: str, found: Sequence[Way]) -> Figures:
    return Figures(
        title, ("in A", "in B", "documents"), [(way.a, way.b, as_number(way.documents)) for way in found], words=2
    )


def funnel(found: Comparison) -> tuple[Figures, list[Group]]:
    """All sources together: documents, text and tokens left after each stage."""
    rows = []
    for level in (level for level in found.funnel if level.source is None):
        a, b = level.volume_a, level.volume_b
        only = "" if None not in (level.a, level.b) else f" ({'only in A' if level.b is None else 'only in B'})"
        rows.append(
            (
                f"{level.stage}{only}",
                *numbers(level.a, level.b),
                *measured("", a.text_bytes, b.text_bytes, as_bytes)[1:],
                *(as_tokens(amounts_of.tokens, amounts_of.counted) for amounts_of in (a, b)),
                percent(a.tokens, b.tokens),
            )
        )
    there_are = [
        True,
        *(
            any(amount is not None for level in found.funnel for amount in amounts_of(level))
            for amounts_of in (texts, tokens)
        ),
    ]
    groups = [
        group for group, there in zip((("documents", 3), ("text", 3), ("tokens", 3)), there_are, strict=True) if there
    ]
    columns = [0, *(column for k, there in enumerate(there_are) if there for column in range(1 + 3 * k, 4 + 3 * k))]
    head = ("after", *("A", "B", "change") * 3)
    note = (
        "~: estimated from the text, at the bytes that a token turned out to hold."
        if any("~" in cell for row in rows for cell in row)
        else ""
    )
    title = "Left after each stage, all sources together"
    return Figures(
        title,
        tuple(head[column] for column in columns),
        [tuple(row[column] for column in columns) for row in rows],
        note=note,
    ), groups


def texts(level: LevelPair) -> tuple[int | None, int | None]:
    return level.volume_a.text_bytes, level.volume_b.text_bytes


def tokens(level: LevelPair) -> tuple[int | None, int | None]:
    return level.volume_a.tokens, level.volume_b.tokens


def funnel_by_source(found: Comparison) -> tuple[Figures, list[Group]]:
    rows = [
        (level.stage, level.source or "all", *numbers(level.a, level.b), *numbers(level.gone_a, level.gone_b))
        for level in found.funnel
    ]
    head = ("after", "source", *("A", "B", "change") * 2)
    return Figures("Documents left after each stage and gone there, by source", head, rows, words=2), [
        ("left", 3),
        ("gone", 3),
    ]


def reasons(found: Comparison) -> Figures:
    rows = [(reason.stage, reason.reason, *numbers(reason.a, reason.b)) for reason in found.reasons]
    return Figures(
        "Reasons that took more in one run than in the other",
        ("stage", "reason", "A", "B", "difference"),
        rows,
        words=2,
    )


def medians(found: Comparison) -> Figures:
    """Only signals that are not the same in both, to the digits that are shown."""
    rows = []
    for signal in sorted(
        found.signals, key=lambda signal: signal.a is None or signal.b is None
    ):  # those of signal run last
        if not signal.same:
            measured = [
                as_median_of(medians.measured, medians.documents) if medians else "–"
                for medians in (signal.a, signal.b)
            ]
            kept = [
                as_median_of(medians.kept, medians.documents_kept) if medians else "–"
                for medians in (signal.a, signal.b)
            ]
            rows.append((signal.name, *measured, *kept))
    same = sum(signal.same for signal in found.signals)
    note = (
        "Measured: of all documents that came to the stage which measures, also those dropped later; kept: of those"
        " left at the end."
    )
    if found.signals_of is not None:
        note += (
            f" Medians of a sample of {as_number(found.signals_of)} documents, the same in both runs as far as both"
            " read them."
        )
    if same:
        note += f" {same} more signal{' has' if same == 1 else 's have'} the same medians in both, to the digits shown."
    head = ("signal", "measured, A", "measured, B", "kept, A", "kept, B")
    return Figures("Medians of signals, and of how many documents", head, rows, note=note)


def as_median_of(value: float | None, documents: int) -> str:
    return "–" if value is None else f"{as_median(value)} of {as_number(documents)}"


def costs(found: Comparison) -> tuple[Figures, list[Group]]:
    priced = any(cost is not None for stage in found.costs for cost in stage.cost)
    rows = [
        (
            stage.stage,
            *pair(stage.seconds, as_seconds),
            percent(*stage.seconds),
            *pair(stage.rate, as_number),
            *pair(stage.bytes_out, as_bytes),
            *pair(stage.memory, as_bytes),
            *(pair(stage.cost, as_amount) if priced else ()),
        )
        for stage in found.costs
    ]
    groups = [
        ("time", 3),
        ("docs/s", 2),
        ("out", 2),
        ("memory", 2),
        *([(f"cost{currency(found)}", 2)] if priced else []),
    ]
    head = ("stage", "A", "B", "change", *("A", "B") * (len(groups) - 1))
    return Figures("Time of workers, speed, bytes handed on and peak memory", head, rows), groups


def currency(found: Comparison) -> str:
    """Where both have one, or the other has none."""
    currencies = {overview.totals.currency for overview in found.overviews} - {None}
    return f", {currencies.pop()}" if len(currencies) == 1 else ""


def counted(name: str, a: int, b: int) -> tuple[str, str, str, str]:
    return (name, *numbers(a, b))


def numbers(a: int | None, b: int | None) -> tuple[str, str, str]:
    """Both, and by how much B has more."""
    return as_number(a), as_number(b), "" if a is None or b is None else signed(b - a)


def signed(value: int) -> str:
    return "0" if not value else f"{'+' if value > 0 else '−'}{abs(value):,}"


def measured(
    name: str, a: float | None, b: float | None, words: Callable[[float | None], str]
) -> tuple[str, str, str, str]:
    return name, words(a), words(b), percent(a, b)


def percent(a: float | None, b: float | None) -> str:
    """How much more B is than A; nothing where one is not known, or nothing."""
    if not a or b is None:
        return ""
    change = 100 * (b - a) / a
    return "0%" if abs(change) < 0.5 else f"{'+' if change > 0 else '−'}{abs(change):,.0f}%"


Amount = TypeVar("Amount")


def pair(values: tuple[Amount, Amount], words: Callable[[Amount], str]) -> tuple[str, str]:
    return words(values[0]), words(values[1])
