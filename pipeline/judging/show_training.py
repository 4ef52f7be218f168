"""What `judge train` prints beside figures: what would be trained, what rounds gained, how far seeds are apart, how far
a student agrees with its teacher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.classifiers.card import Head
from gristmill.pipeline.formatting import as_bytes, as_number, as_percent, as_seconds, one_line
from gristmill.pipeline.judging.lessons import LABEL, TEXT
from gristmill.pipeline.judging.train import Ready, held_out_count
from gristmill.pipeline.tables import TerminalTable

MOST_LABELS = 10
PAIRS = {
    "spearman": "rank correlation of two seeds",
    "same_best_tenth": "of the best tenth of one seed in another's",
    "same_label": "texts with the same label by two seeds",
}


def foreseen(ready: Ready, folder: Path) -> Table:
    """What would be trained, on what, and how often."""
    plan, table, head = ready.plan, ready.lesson.table, ready.head
    kind = plan.kind.model_dump(exclude_defaults=True)
    settings = ", ".join(
        f"{name} {value:g}" if type(value) is float else f"{name} {value}" for name, value in kind.items()
    )
    size = pc.sum(pc.binary_length(table[TEXT])).as_py() or 0
    lines = [
        ("judge", plan.kind_name + (f" ({settings})" if settings else "")),
        ("score", f"{head.name}: {head.meaning} ({head.kind})"),
        ("texts", f"{len(table):,}, {as_bytes(size)}"),
    ]
    if LABEL in table.column_names and head.kind != "regression":
        counts = Counter(table[LABEL].to_pylist()).most_common()
        shown = ", ".join(f"{label} {count:,}" for label, count in counts[:MOST_LABELS])
        lines.append(
            ("labels", shown + (f" and {len(counts) - MOST_LABELS} more" if len(counts) > MOST_LABELS else ""))
        )
    if plan.hold_out:
        about = "" if plan.distil is None else "about "
        lines.append(("held out", f"{about}{held_out_count(ready):,} texts, whole by {ready.lesson.grouped}"))
    else:
        lines.append(("held out", "nothing: there will be no figures"))
    lines += [("warning", warning) for warning in ready.lesson.warnings]
    most = "at most " if plan.iterate else ""
    lines.append(("trainings", f"{most}{ready.trainings:,}" + (f" ({plan.seeds} seeds)" if plan.seeds > 1 else "")))
    if plan.distil is not None and plan.distil.teacher:
        lines.append(("teacher", f"{plan.distil.teacher}, which scores all {len(table):,} texts first"))
    elif plan.distil is not None:
        lines.append(("teacher", f"the column {plan.distil.scores}"))
    if plan.iterate is not None and ready.pool is not None:
        rounds, verify = plan.iterate, plan.iterate.verify
        lines.append(("rounds", f"{rounds.rounds} of {rounds.candidates:,} candidates, of {len(ready.pool):,} texts"))
        if verify is not None and verify.llm_score is not None:
            texts = plan.seeds * rounds.rounds * rounds.candidates
            cost = verify.llm_score.cost_ahead(texts, texts * 4 * verify.llm_score.cut)
            prompts, answers = as_number(round(cost.prompt_tokens)), as_number(round(cost.answer_tokens))
            lines.append(("asked", f"at most {texts:,} texts: {prompts} tokens of prompts, {answers} of answers"))
        elif verify is not None:
            lines.append(("asked", f"{verify.judge} about each candidate"))
    return plain([*lines, ("out", str(folder))])


def say(screen: Console, line: str, style: str = "") -> None:
    """One line, never as markup."""
    screen.print(Text(one_line(line), style=style), soft_wrap=True)


def as_figure(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "–" if value is None else str(value)


def asked(account: Mapping[str, Any], when: str = "") -> str:
    """What asking a language model took (`Account.as_dict`)."""
    cost = f"; cost {account['cost']:,.4g}" if "cost" in account else ""
    cost += f", and {account['kept_cost']:,.4g} for those kept" if account.get("kept_cost") else ""
    return (
        f"asked{when}: {account['calls']:,} answers in {as_seconds(account['seconds'])}, {account['kept']:,} kept;"
        f" {account['prompt_tokens']:,} tokens of prompts ({account['prompt_tokens_spared']:,} spared by a prefix cache),"
        f" {account['completion_tokens']:,} of answers{cost}"
    )


def plain(lines: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in lines:
        table.add_row(Text(name), Text(one_line(value)))
    return table


def show_training(screen: Console, head: Head, metrics: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Of a judge that was trained in another way than once on given labels."""
    if isinstance(built := training.get("training_set"), dict):
        screen.print(_sources(built))
    if isinstance(rounds := training.get("rounds"), list):
        screen.print(_rounds(rounds, str((training.get("iteration") or {}).get("metric"))))
        say(screen, "the gate decides which rounds stay; the figures above are of the other half of what was held out")
    if isinstance(agreed := metrics.get("agreement"), dict):
        screen.print(_agreement(metrics, agreed))
    if isinstance(spread := metrics.get("seeds"), dict):
        screen.print(_seeds(spread))
        seeds = ", ".join(map(str, spread["seeds"]))
        say(screen, f"seeds {seeds}; the judge is that of the first, whatever its figures")


def _sources(built: Mapping[str, Any]) -> TerminalTable:
    rows = [
        (name, as_number(counts["rows"]), as_number(counts["kept"]), counted(counts["dropped"]))
        for name, counts in built["sources"].items()
    ]
    return TerminalTable.of("Sources", ("source", "texts", "kept", "not kept"), rows, words={0, 3})


def counted(counts: Mapping[str, int]) -> str:
    """Counts by what they are of: 12 copies, 3 too short."""
    return ", ".join(f"{as_number(count)} {one_line(name)}" for name, count in counts.items())


def _rounds(rounds: Sequence[Mapping[str, Any]], metric: str) -> TerminalTable:
    def row(line: Mapping[str, Any]) -> tuple[str, ...]:
        gate, gain, test = (
            f"{line[name]:{sign}.4f}" if isinstance(line.get(name), float) else "–"
            for name, sign in (("gate", ""), ("gain", "+"), ("test", ""))
        )
        added = counted(line.get("added", {}))
        kept = "start" if line["round"] == 0 else "yes" if line["kept"] else "no"
        return str(line["round"]), gate, gain, test, as_number(line.get("texts")), added or "–", kept

    names = ("round", f"{metric}, gate", "gain", f"{metric}, test", "texts", "added", "kept")
    return TerminalTable.of("Rounds", names, map(row, rounds))


def _agreement(metrics: Mapping[str, Any], agreed: Mapping[str, Any]) -> TerminalTable:
    rows = [(f"AUC at a teacher's score of {each['cut']:g}", each["auc"]) for each in agreed["auc_at"]]
    rows += [("kappa", agreed.get("kappa")), ("kappa by distance", agreed.get("kappa_weighted"))]
    rows += [("kappa once calibrated", (metrics.get("calibrated") or {}).get("kappa"))]
    return TerminalTable.of("Student and teacher", ("", ""), ((name, as_figure(value)) for name, value in rows))


def _seeds(spread: Mapping[str, Any]) -> TerminalTable:
    rows = []
    for name, values in {**spread["figures"], **spread["pairs"]}.items():
        known = [value for value in values if isinstance(value, float)]
        if known:
            show = as_percent if name in ("same_best_tenth", "same_label") else as_figure
            title = PAIRS.get(name if name in spread["pairs"] else "", name.replace("_", " "))
            rows.append((title, *(show(value) for value in (float(np.mean(known)), min(known), max(known)))))
    return TerminalTable.of("Over seeds", ("", "mean", "lowest", "highest"), rows)
