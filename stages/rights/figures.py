"""What honouring opt-outs costs, by language and reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gristmill.stages.figures import Report, StageFigures, Table

LANGUAGES = 12  # of the table; the others stand in its last row
CAME, ANY = "", "any"  # documents that came to the rule, and those that any reason takes

Counts = Mapping[str, Mapping[str, int]]  # by language and reason


def cost_of_compliance(report: Report) -> StageFigures | None:
    """The share of every language's documents that each reason takes on its own."""
    noted = report.get("noted")
    counts: dict[str, dict[str, int]] = {}
    for name, count in noted.items() if isinstance(noted, Mapping) else ():
        language, slash, reason = str(name).rpartition("/")
        if slash:
            counts.setdefault(language, {})[reason] = int(count)
    if not counts:
        return None
    ranked = sorted(counts, key=lambda language: (-counts[language].get(CAME, 0), language))
    reasons = sorted(
        {reason for by_reason in counts.values() for reason in by_reason} - {CAME, ANY},
        key=lambda reason: (-total(counts, ranked, reason), reason),
    )
    shown, rest = ranked[:LANGUAGES], ranked[LANGUAGES:]
    groups = [("all", ranked), *((language, [language]) for language in shown)]
    groups += [(f"{len(rest)} others", rest)] if rest else []
    languages = Table.of(
        "What opt-outs take of each language",
        ("language", "documents", "opted out", "share"),
        [(name, f"{total(counts, each, CAME):,}", f"{total(counts, each, ANY):,}", share(counts, each, ANY)) for name, each in groups],
        bars=[ratio(counts, each, ANY) for _, each in groups],
    )  # fmt: skip
    by_reason = Table.of(
        "What each reason takes on its own",
        ("reason", "language", "documents", "share"),
        [
            (reason, name, f"{total(counts, each, reason):,}", share(counts, each, reason))
            for reason in reasons
            for name, each in groups
            if total(counts, each, reason)
        ],
        words=2,
        note="A document may have several reasons.",
    )
    return StageFigures("Cost of compliance", [languages, *([by_reason] if reasons else [])])


def total(counts: Counts, languages: Sequence[str], reason: str) -> int:
    return sum(counts[language].get(reason, 0) for language in languages)


def ratio(counts: Counts, languages: Sequence[str], reason: str) -> float:
    came = total(counts, languages, CAME)
    return total(counts, languages, reason) / came if came else 0.0


def share(counts: Counts, languages: Sequence[str], reason: str) -> str:
    return f"{ratio(counts, languages, reason):.2%}"
