"""What commands of judges print: what would be trained or asked, figures on held-out texts, scores, labels of a
language model, and what sources are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gristmill.classifiers.card import Head, JudgeCard
from gristmill.pipeline.formatting import (
    as_bytes,
    as_change,
    as_number,
    as_percent,
    as_seconds,
    as_short,
    one_line,
    with_minus,
)
from gristmill.pipeline.judging.lessons import LABEL, TEXT
from gristmill.pipeline.judging.train import Ready, held_out_count
from gristmill.pipeline.tables import TerminalTable

if TYPE_CHECKING:
    from gristmill.classifiers.llm.account import Account, Prices
    from gristmill.classifiers.rating.medu import SampledDocument
    from gristmill.pipeline.judging.medu import MeduFindings, RateTask
    from gristmill.pipeline.judging.scoring import HeadScores, ScoredText

MOST_LABELS = 20
LONGEST_TASK = 80  # characters
MOST_SHOWN = 50
TELLING = 0.7  # AUC of length above which a judge may have learnt it
FAIR = 0.1  # kappa below which a threshold decides hardly better than chance
FAINT = 0.5  # of the probability that labels have together: below it a model wanted to say something else
FIGURES = (
    ("auc", "AUC (0.5 is chance)"),
    ("auc_of_length", "AUC of length alone"),
    ("average_precision", "average precision"),
    ("calibration_error", "calibration error"),
    ("best_threshold", "threshold of the best F1"),
    ("f1", "F1 there"),
    ("kappa_at_half", "kappa at 0.5"),
    ("macro_f1", "macro-F1, mean of the labels'"),
    ("accuracy", "accuracy"),
    ("kappa_quadratic", "kappa by distance"),
    ("auc_mean", "AUC, mean of classes"),
    ("mean_squared_error", "mean squared error"),
    ("spearman", "rank correlation"),
)
PAIRS = {
    "spearman": "rank correlation of two seeds",
    "same_best_tenth": "of the best tenth of one seed in another's",
    "same_label": "texts with the same label by two seeds",
}


def say(screen: Console, line: str, style: str = "") -> None:
    """One line, never as markup."""
    screen.print(Text(one_line(line), style=style), soft_wrap=True)


def as_figure(value: object) -> str:
    return with_minus(f"{value:.4f}") if isinstance(value, float) else "–" if value is None else str(value)


def facts_table(lines: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in lines:
        table.add_row(Text(name), Text(one_line(value)))
    return table


def counted(counts: Mapping[str, int]) -> str:
    """Counts by what they are of: 12 copies, 3 too short."""
    return ", ".join(f"{as_number(count)} {one_line(name)}" for name, count in counts.items())


def asked(account: Mapping[str, Any], when: str = "") -> str:
    """What asking a language model took (`Account.as_dict`)."""
    cost = f"; cost {account['cost']:,.4g}" if "cost" in account else ""
    cost += f", and {account['kept_cost']:,.4g} for those kept" if account.get("kept_cost") else ""
    return (
        f"asked{when}: {account['calls']:,} answers in {as_seconds(account['seconds'])}, {account['kept']:,} kept;"
        f" {account['prompt_tokens']:,} tokens of prompts ({account['prompt_tokens_spared']:,} spared by a prefix cache),"
        f" {account['completion_tokens']:,} of answers{cost}"
    )


# --- training -----------------------------------------------------------------------------------------------------


def plan_table(ready: Ready, folder: Path) -> Table:
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
        shown = ", ".join(f"{label} {count:,}" for label, count in counts[:10])
        lines.append(("labels", shown + (f" and {len(counts) - 10} more" if len(counts) > 10 else "")))
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
    return facts_table([*lines, ("out", str(folder))])


def show_figures(screen: Console, card: JudgeCard) -> None:
    """The held-out figures of a judge."""
    grouped = card.training.get("grouped_by")
    whole = f"whole by {grouped}" if grouped else "in whole groups"
    for head in card.heads:
        metrics = card.metrics.get(head.name) or {}
        screen.print(title_of(head))
        trained = f"trained on {as_number(card.training.get('texts'))} texts"
        if not metrics:
            say(screen, f"{trained}; nothing was held out, so nobody knows how good it is")
            continue
        good = f" ({as_number(metrics['good'])} of them {head.labels[1]})" if "good" in metrics else ""
        left_out = (card.training.get("held_out") or {}).get("copies_left_out")
        copies = f"; {as_number(left_out)} copies of these were not trained on" if left_out else ""
        say(
            screen,
            f"{trained}, measured on {as_number(metrics['texts'])} others{good}, held out {whole}{copies}",
        )
        rows = [
            (words, as_figure(metrics[name]))
            for name, words in FIGURES
            if name in metrics and not isinstance(metrics[name], dict)
        ]
        rows += [("kappa", as_figure(metrics["kappa"]))] if head.multiclass and "kappa" in metrics else []
        if head.kind != "labels":
            rows += [(f"AUC of {label}", as_figure(value)) for label, value in of_classes(metrics)]
        screen.print(TerminalTable.of("Held-out figures", ("", ""), rows))
        if (metrics.get("auc_of_length") or 0) > TELLING:
            say(
                screen,
                "length alone tells good texts from bad ones: the judge may have learnt it, and score short texts by it;"
                " a `training_set` with `steps_of_length` has labels of equal lengths",
            )
        auc, kappa = metrics.get("auc"), metrics.get("kappa_at_half")
        if isinstance(auc, float) and isinstance(kappa, float) and auc > TELLING and kappa < FAIR:
            say(screen, "0.5 hardly tells texts apart: choose a threshold from the scores, such as that of the best F1")
        if head.kind == "labels":
            screen.print(by_label(metrics, head))
        if "reliability" in metrics:
            screen.print(calibration(metrics["reliability"], "right" if head.kind == "labels" else head.labels[1]))
        show_training(screen, head, metrics, card.training)
    show_source(screen, card.training)


def show_card(screen: Console, card: JudgeCard) -> None:
    """What a saved judge says of itself."""
    made = ", ".join(f"{name} {number}" for name, number in card.versions.items())
    say(screen, f"a {card.kind} judge" + (f", made with {made}" if made else ""))
    show_figures(screen, card)
    for line in card.attribution:
        say(screen, line)


def by_label(metrics: Mapping[str, Any], head: Head) -> TerminalTable:
    """The commonest labels, each with the one that its texts are most often taken for."""
    counts = dict(metrics["texts_of"])
    rows = []
    for label in sorted(head.labels, key=lambda label: (-counts[label], label))[:MOST_SHOWN]:
        missed = list(metrics["confusion"][head.labels.index(label)])
        missed[head.labels.index(label)] = 0
        taken = f"{head.labels[int(np.argmax(missed))]} ({max(missed):,.0f})" if max(missed) > 0 else ""
        f1, auc = (as_figure(metrics[name][label]) for name in ("f1", "auc"))
        rows.append((one_line(label), as_number(counts[label]), f1, auc, one_line(taken)))
    title = "By label" + (
        f": the commonest {MOST_SHOWN} of {len(head.labels)}" if len(head.labels) > MOST_SHOWN else ""
    )
    return TerminalTable.of(title, ("label", "texts", "F1", "AUC", "most taken for"), rows)


def title_of(head: Head) -> Text:
    return Text.assemble((head.name, "bold"), f": {one_line(head.meaning)} ({head.kind}{of_labels(head)})")


def show_source(screen: Console, training: Mapping[str, Any]) -> None:
    """Of labels: which languages the texts were in, what was left out, and who labelled them."""
    if isinstance(languages := training.get("languages"), dict):
        say(screen, f"languages of the texts: {counted(dict(list(languages.items())[:10]))}")
    if isinstance(made := training.get("labelled_by"), dict):
        say(screen, said_of_labels(made))
    if isinstance(left_out := training.get("left_out"), dict):
        say(screen, f"left out, too few texts: {counted(left_out)}")


def show_training(screen: Console, head: Head, metrics: Mapping[str, Any], training: Mapping[str, Any]) -> None:
    """Of a judge that was trained in another way than once on given labels."""
    if isinstance(chosen := training.get("selection"), dict):
        _show_selection(screen, chosen)
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


def _show_selection(screen: Console, chosen: Mapping[str, Any]) -> None:
    """Documents chosen by the losses of several models, and what the choice is worth."""
    by_chosen, by_all = chosen["found_by_chosen"], chosen["found_by_all"]
    say(
        screen,
        f"selection: {chosen['good']:,} good and {chosen['bad']:,} bad of {chosen['documents']:,} documents; "
        f"{chosen['without_losses']:,} lack a loss. Of {chosen['pairs_left_out']:,} pairs of models left out the better "
        f"is found in {by_chosen:.0%} by what is chosen, in {by_all:.0%} by all",
    )
    if by_chosen < 0.6 or by_chosen < by_all:
        say(screen, "do not trust this selection: it predicts models left out no better than all documents do")


def _rounds(rounds: Sequence[Mapping[str, Any]], metric: str) -> TerminalTable:
    def row(line: Mapping[str, Any]) -> tuple[str, ...]:
        gate, test = (f"{line[name]:.4f}" if isinstance(line.get(name), float) else "–" for name in ("gate", "test"))
        gain = as_change(line["gain"], ".4f") if isinstance(line.get("gain"), float) else "–"
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


def calibration(reliability: Sequence[Mapping[str, Any]], truth: str) -> TerminalTable:
    rows = (
        (row["decile"], as_number(row["texts"]), f"{row['score']:.3f}", as_percent(row["good"])) for row in reliability
    )
    return TerminalTable.of("Calibration by tenths", ("tenth", "texts", "mean score", f"are {one_line(truth)}"), rows)


def of_classes(metrics: Mapping[str, object]) -> list[tuple[str, object]]:
    """How well each class is told from the others."""
    auc = metrics.get("auc")
    return list(auc.items())[:MOST_LABELS] if isinstance(auc, dict) else []


def of_labels(head: Head) -> str:
    if len(head.labels) > MOST_LABELS:
        return f": {len(head.labels)} labels"
    return f": {', '.join(map(one_line, head.labels))}" if head.labels else f" from {head.low:g} to {head.high:g}"


# --- labels and ratings of a language model -------------------------------------------------------------------------


def shares(counts: Mapping[str, Any], texts: int, title: str) -> TerminalTable:
    """Texts by label."""
    rows = ((label, as_number(int(count)), as_percent(count / max(texts, 1))) for label, count in counts.items())
    return TerminalTable.of(title, ("label", "texts", "share"), rows)


def show_labels(screen: Console, facts: Mapping[str, Any]) -> None:
    """What a language model said of a sample of texts, and what that took."""
    screen.print(shares(facts["counts"], facts["labelled"], f"Texts by {facts['taxonomy']}"))
    say(
        screen,
        f"{facts['labelled']:,} of {facts['texts']:,} texts have a label; for {facts['none']:,} no label fits; answers that"
        f" could not be read: {counted(facts['unread']) or 'none'}",
    )
    say(screen, said_of_labels(facts))
    for pair, count in list((facts.get("agreement") or {}).get("apart", {}).items())[:5]:
        say(screen, f"  {pair}: {count:,}")
    for when, account in (("", facts["account"]), (" the second time", facts["second_account"])):
        if account["calls"] or account["kept"]:
            say(screen, asked(account, when))


def said_of_labels(made: Mapping[str, Any]) -> str:
    """Who labelled the texts, and how well two answers on one text agree: a judge agrees with its teacher no better."""
    line = f"labelled by {made.get('model')} by the taxonomy {made.get('taxonomy')}, {made.get('reading')}"
    agreed = made.get("agreement")
    if not isinstance(agreed, dict) or not isinstance(agreed.get("same"), float):
        return line
    return (
        f"{line}; {as_number(agreed.get('texts'))} texts were asked twice ({agreed.get('by')}): the same label for"
        f" {as_percent(agreed['same'])}, kappa {as_figure(agreed.get('kappa'))}"
    )


def questions_table(
    tasks: Mapping[str, list[str] | RateTask],
    documents: Sequence[SampledDocument],
    account: Account,
    prices: Prices | None,
    folder: Path,
) -> Table:
    """What would be asked, and what that takes at most."""
    sources = Counter(document.source for document in documents)
    return facts_table(
        [
            *((f"task {name}", _task_in_words(task)) for name, task in tasks.items()),
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


def _task_in_words(task: list[str] | RateTask) -> str:
    if isinstance(task, list):
        return f"{len(task):,} examples"
    return f"marks of {task.signal}" if task.signal else one_line(task.rubric or task.words)[:LONGEST_TASK]


def show_findings(screen: Console, found: MeduFindings, prices: Prices | None) -> None:
    table = found.utilities
    rows = []
    for i, source in enumerate(table.sources):
        marks = (f"{table.values_NT[i, t]:.3f} ± {table.errors_NT[i, t]:.3f}" for t in range(len(table.tasks)))
        asked_about = sum(document.source == source for document in found.documents)
        rows.append((source, as_number(asked_about) if found.documents else "all that have marks", *marks))
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
                as_change(labels.mean_difference, ".3f"),
            )
            for task, labels in found.agreements.items()
        ]
        columns = ("task", "documents", "same label", "kappa", "weighted kappa", "rank correlation", "mean difference")
        screen.print(
            TerminalTable.of(
                "Both readings: at once against reasoned (the table above is of reasoned marks)", columns, both
            )
        )
    say(screen, asked(found.account.as_dict(prices)))


# --- scores --------------------------------------------------------------------------------------------------------


def show_scores(screen: Console, found: Sequence[HeadScores], unexplained: str) -> None:
    for of_head in found:
        screen.print(title_of(of_head.head))
        if of_head.texts == 1 and of_head.best:
            screen.print(Text(f"score {of_head.best[0].score:.4f}"))
            for label, chance in list(of_head.labels.items())[:5]:
                screen.print(Text(f"  {chance:.4f}  {one_line(label)}"))
            _show_words(screen, of_head.best[0])
            continue
        if of_head.labels:
            shown = dict(list(of_head.labels.items())[:MOST_SHOWN])
            screen.print(shares(shown, of_head.texts, "Texts by label"))
        rows_of = [("mean", of_head.mean), *((f"{share}%", value) for share, value in of_head.quantiles())]
        screen.print(Text(f"{as_number(of_head.texts)} texts: the mean score, and what so many do not exceed"))
        screen.print(
            TerminalTable.of("Scores", ("texts", "score"), ((name, as_short(value)) for name, value in rows_of))
        )
        titles = ("The surest", "The least sure") if of_head.labels else ("The best", "The worst")
        for title, rows in zip(titles, (of_head.best, of_head.worst), strict=True):
            _show_examples(screen, title, rows)
    if unexplained:
        say(screen, unexplained, "dim")


def _show_examples(screen: Console, title: str, rows: Sequence[ScoredText]) -> None:
    if not rows:
        return
    screen.print(Text(f"\n{title}", style="bold"))
    for shown in rows:
        screen.print(Text.assemble(f"{shown.score:.4f}  ", (one_line(shown.where), "cyan")), soft_wrap=True)
        screen.print(Padding(Text(shown.start or "(no text)"), (0, 0, 0, 8)))
        _show_words(screen, shown)


def _show_words(screen: Console, shown: ScoredText) -> None:
    for title, sign in (("raised by", 1), ("lowered by", -1)):
        pushes = [f"{one_line(word)} {as_change(push, '.2f')}" for word, push in shown.words or [] if push * sign > 0]
        if pushes:
            screen.print(Padding(Text(f"{title} " + " · ".join(pushes), style="dim"), (0, 0, 0, 8)))
