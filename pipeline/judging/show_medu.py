"""What `medu` prints: utilities of sources, how sure they are, how far both readings agree, and what it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.classifiers.llm.account import Account, Prices
from gristmill.classifiers.rating.medu import SampledDocument
from gristmill.pipeline.formatting import as_number, as_percent, as_seconds, one_line
from gristmill.pipeline.judging.medu import MeduFindings
from gristmill.pipeline.judging.show_training import plain
from gristmill.pipeline.tables import Grid

FAINT = 0.5  # of the probability that labels have together: below it a model wanted to say something else


def foreseen(
    tasks: Mapping[str, Sequence[str]],
    documents: Sequence[SampledDocument],
    asked: Account,
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
                f"{asked.calls:,} answers, at most {as_number(asked.prompt_tokens)} tokens of prompts and"
                f" {as_number(asked.completion_tokens)} of answers",
            ),
            *([("cost", f"at most {asked.cost(prices):,.4g}, without what a prefix cache spares")] if prices else []),
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
    screen.print(Grid.of("Utility ± its standard error", head, iter(rows)))
    for task, description in found.descriptions.items():
        if description.missing:
            screen.print(
                Text(
                    f"the description of {one_line(task)} lacks {', '.join(description.missing)}; read it before you"
                    " trust its marks"
                )
            )
    for labels in found.labels:
        unread = int((~labels.readable).sum())
        if unread:
            screen.print(
                Text(
                    f"{one_line(labels.task)}, {labels.reading}: {unread:,} of {len(labels.label):,} answers could"
                    " not be read; they are left out"
                )
            )
        if (
            labels.mass is not None
            and labels.readable.any()
            and (mass := float(labels.mass[labels.readable].mean())) < FAINT
        ):
            screen.print(
                Text(
                    f"{one_line(labels.task)}: the labels have only {as_percent(mass)} of the probability; the model"
                    " wanted to say something else"
                )
            )
    if found.agreements:
        both = [
            (
                task,
                as_number(labels.documents),
                as_percent(labels.exact),
                f"{labels.kappa:.3f}",
                f"{labels.weighted_kappa:.3f}",
                f"{labels.rank_correlation:.3f}",
                f"{labels.mean_difference:+.3f}",
            )
            for task, labels in found.agreements.items()
        ]
        columns = ("task", "documents", "same label", "kappa", "weighted kappa", "rank correlation", "mean difference")
        screen.print(
            Grid.of(
                "Both readings: at once against reasoned (the table above is of reasoned marks)", columns, iter(both)
            )
        )
    account = found.account
    screen.print(
        Text(
            f"{account.calls:,} answers asked for in {as_seconds(account.seconds)}, {account.kept:,} were kept; "
            f"{account.prompt_tokens:,} tokens of prompts ({account.cached_tokens:,} spared by a prefix cache), "
            f"{account.completion_tokens:,} of answers"
            + (f"; cost {account.cost(prices):,.4g}" if prices else "")
            + (f", and {account.before.cost(prices):,.4g} for those kept" if prices and account.kept else "")
        ),
        soft_wrap=True,
    )
