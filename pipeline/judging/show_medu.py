"""What `judge rate` prints: utilities of sources, how sure they are, how far both readings agree, and what it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gristmill.classifiers.llm.account import Account, Prices
from gristmill.classifiers.rating.medu import SampledDocument
from gristmill.pipeline.formatting import as_number, as_percent, one_line
from gristmill.pipeline.judging.medu import MeduFindings
from gristmill.pipeline.judging.show_training import asked, plain, say
from gristmill.pipeline.tables import TerminalTable

FAINT = 0.5  # of the probability that labels have together: below it a model wanted to say something else


def foreseen(
    tasks: Mapping[str, Sequence[str]],
    documents: Sequence[SampledDocument],
    account: Account,
    prices: Prices | None,
    folder: Path,
) -> Table:
    """What would be asked, and what that takes at most."""
    sources = Counter(document.source for document in documents)
    return plain(
        [
            *((f"task {name}", f"{len(examples):,} examples") for name, examples in tasks.items()),
            *((f"source {name}", f"{count:,} documents") for name, count in sources.items()),
            (
                "asked",
                f"{account.calls:,} answers, at most {as_number(account.prompt_tokens)} tokens of prompts and"
                f" {as_number(account.completion_tokens)} of answers",
            ),
            *([("cost", f"at most {account.cost(prices):,.4g}, without what a prefix cache spares")] if prices else []),
            ("out", str(folder)),
        ]
    )


def show_findings(screen: Console, found: MeduFindings, prices: Prices | None) -> None:
    table = found.utilities
    rows = []
    for i, source in enumerate(table.sources):
        marks = (f"{table.values_NT[i, t]:.3f} ± {table.errors_NT[i, t]:.3f}" for t in range(len(table.tasks)))
        rows.append((source, as_number(sum(document.source == source for document in found.documents)), *marks))
    head = ("source", "documents", *map(one_line, table.tasks))
    screen.print(TerminalTable.of("Utility ± its standard error", head, rows))
    for task, description in found.descriptions.items():
        if description.missing:
            lacks = ", ".join(description.missing)
            say(screen, f"the description of {task} lacks {lacks}; read it before you trust its marks")
    for labels in found.labels:
        if unread := int((~labels.readable).sum()):
            said = f"{unread:,} of {len(labels.label):,} answers could not be read; they are left out"
            say(screen, f"{labels.task}, {labels.reading}: {said}")
        if labels.mass is not None and labels.readable.any():
            mass = float(labels.mass[labels.readable].mean())
            if mass < FAINT:
                said = f"the labels have only {as_percent(mass)} of the probability; the model wanted to say something else"
                say(screen, f"{labels.task}: {said}")
    if found.agreements:
        both = [
            (
                task,
                as_number(labels.documents),
                as_percent(labels.exact),
                *(f"{figure:.3f}" for figure in (labels.kappa, labels.weighted_kappa, labels.rank_correlation)),
                f"{labels.mean_difference:+.3f}",
            )
            for task, labels in found.agreements.items()
        ]
        columns = ("task", "documents", "same label", "kappa", "weighted kappa", "rank correlation", "mean difference")
        screen.print(
            TerminalTable.of(
                "Both readings: at once against reasoned (the table above is of reasoned marks)", columns, iter(both)
            )
        )
    say(screen, asked(found.account.as_dict(prices)))
