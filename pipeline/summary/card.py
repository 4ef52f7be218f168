"""The public summary as a part of the dataset card that a hub shows."""

from __future__ import annotations

from gristmill.pipeline.summary.page import shown
from gristmill.pipeline.summary.points import DRAFT, LAW, NOT_VERIFIED, PublicSummary
from gristmill.pipeline.tables import as_markdown
from gristmill.shards.card import Facts, dataset_card
from gristmill.shards.card_text import plain, table

TITLE = "## Public summary of training content"
MOST = 50  # rows of a table: a card is read by people
LEFT_OUT = ("processing",)  # the card has a funnel


def card_of(summary: PublicSummary, before: str | None) -> str:
    """The card that the run wrote beside its shards, with these facts; a short card where there is none."""
    facts: Facts = {"title": summary.name, "summary": "Documents for pretraining, made with Gristmill."}
    card = before if before is not None else dataset_card(facts)
    return card.split(f"\n{TITLE}\n")[0].rstrip("\n") + "\n\n" + "\n\n".join(parts(summary)) + "\n"


def parts(summary: PublicSummary) -> list[str]:
    told = [TITLE, plain(f"{LAW['act']}: {LAW['template']}. {DRAFT}")]
    for point in summary.points:
        if point.key not in LEFT_OUT:
            told.append(f"### {plain(point.title)} ({point.status})")
            rows = [
                [plain(name), plain(NOT_VERIFIED if value is None else shown(value))] for name, value in point.facts
            ]
            told += [table(["what", "value"], rows)] if rows else []
            told += [plain(note) for note in point.notes]
            told += [as_markdown(each, MOST) for each in point.tables if each.rows]
    return told
