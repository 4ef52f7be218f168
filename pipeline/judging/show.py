"""What commands of judges show: what would be trained or asked, figures on held-out texts, scores, labels of a
language model, and what sources are worth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
from rich.console import RenderableType
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
from gristmill.pipeline.screen import facts_table
from gristmill.pipeline.tables import TerminalTable

if TYPE_CHECKING:
    from gristmill.pipeline.judging.medu import MeduFindings, RateJob
    from gristmill.pipeline.judging.scoring import HeadScores

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
    ("spearman_to_full", "rank correlation to the full judge"),
    ("largest_difference", "largest difference of a score"),
)
PAIRS = {
    "spearman": "rank correlation of two seeds",
    "same_best_tenth": "of the best tenth of one seed in another's",
    "same_label": "texts with the same label by two seeds",
}


def line(words: str) -> Text:
    """Never as markup."""
    return Text(one_line(words))


def indented(words: str, style: str = "") -> Padding:
    return Padding(Text(words, style=style, no_wrap=False, overflow="fold"), (0, 0, 0, 8))


def as_figure(value: object) -> str:
    return with_minus(f"{value:.4f}") if isinstance(value, float) else "–" if value is None else str(value)


def counted(counts: Mapping[str, int]) -> str:
    """Counts by what they are of: 12 copies, 3 too short."""
    return ", ".join(f"{as_number(count)} {one_line(name)}" for name, count in counts.items())


def asked(account: Mapping[str, Any], when: str = "") -> Text:
    """What asking a language model took (`Account.as_dict`)."""
    cost = f"; cost {account['cost']:,.4g}" if "cost" in account else ""
    cost += f", and {account['kept_cost']:,.4g} for those kept" if account.get("kept_cost") else ""
    return line(
        f"asked{when}: {account['calls']:,} answers in {as_seconds(account['seconds'])}, {account['kept']:,} kept;"
        f" {account['prompt_tokens']:,} tokens of prompts ({account['prompt_tokens_spared']:,} spared by a prefix cache),"
        f" {account['completion_tokens']:,} of answers{cost}"
    )


# --- training -----------------------------------------------------------------------------------------------------


def plan_table(ready: Ready) -> Table:
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
    return facts_table([*lines, ("out", str(ready.folder))])


def card_view(card: JudgeCard) -> Iterator[RenderableType]:
    """What a judge says of itself: how it was trained, and its figures on texts that were held out."""
    training = card.training
    for head in card.heads:
        yield title_of(head)
        metrics = card.metrics.get(head.name) or {}
        trained = f"trained on {as_number(training.get('texts'))} texts"
        if metrics:
            yield from _figures(head, metrics, training, trained)
        else:
            yield line(f"{trained}; nothing was held out, so nobody knows how good it is")
    if isinstance(languages := training.get("languages"), dict):
        yield line(f"languages of the texts: {counted(dict(list(languages.items())[:10]))}")
    if isinstance(labelled_by := training.get("labelled_by"), dict):
        yield line(said_of_labels(labelled_by))
    if isinstance(left_out := training.get("left_out"), dict):
        yield line(f"left out, too few texts: {counted(left_out)}")
    made = ", ".join(f"{name} {number}" for name, number in card.versions.items())
    yield line(f"a {card.kind} judge" + (f", made with {made}" if made else ""))
    yield from map(line, card.attribution)


def _figures(
    head: Head, metrics: Mapping[str, Any], training: Mapping[str, Any], trained: str
) -> Iterator[RenderableType]:
    grouped = training.get("grouped_by")
    good = f" ({as_number(metrics['good'])} of them {head.labels[1]})" if "good" in metrics else ""
    left_out = (training.get("held_out") or {}).get("copies_left_out")
    yield line(
        f"{trained}, measured on {as_number(metrics['texts'])} others{good}, held out"
        + (f" whole by {grouped}" if grouped else " in whole groups")
        + (f"; {as_number(left_out)} copies of these were not trained on" if left_out else "")
    )
    rows = [(words, metrics[name]) for name, words in FIGURES if not isinstance(metrics.get(name, {}), dict)]
    rows += [("kappa", metrics["kappa"])] if head.multiclass and "kappa" in metrics else []
    if head.kind != "labels" and isinstance(auc := metrics.get("auc"), dict):  # how each class is told from the others
        rows += [(f"AUC of {label}", value) for label, value in list(auc.items())[:MOST_LABELS]]
    yield pairs_table("Held-out figures", rows)
    if (metrics.get("auc_of_length") or 0) > TELLING:
        yield line(
            "length alone tells good texts from bad ones: the judge may have learnt it, and score short texts by it;"
            " a `training_set` with `steps_of_length` has labels of equal lengths"
        )
    auc, kappa = metrics.get("auc"), metrics.get("kappa_at_half")
    if isinstance(auc, float) and isinstance(kappa, float) and auc > TELLING and kappa < FAIR:
        yield line("0.5 hardly tells texts apart: choose a threshold from the scores, such as that of the best F1")
    if head.kind == "labels":
        yield by_label(metrics, head)
    if "reliability" in metrics:
        truth = "right" if head.kind == "labels" else one_line(head.labels[1])
        deciles = (
            (row["decile"], as_number(row["texts"]), f"{row['score']:.3f}", as_percent(row["good"]))
            for row in metrics["reliability"]
        )
        yield TerminalTable.of("Calibration by tenths", ("tenth", "texts", "mean score", f"are {truth}"), deciles)
    yield from _training(metrics, training)


def _training(metrics: Mapping[str, Any], training: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Of a judge that was trained in another way than once on given labels."""
    if isinstance(chosen := training.get("selection"), dict):
        by_chosen, by_all = chosen["found_by_chosen"], chosen["found_by_all"]
        yield line(
            f"selection: {chosen['good']:,} good and {chosen['bad']:,} bad of {chosen['documents']:,} documents; "
            f"{chosen['without_losses']:,} lack a loss. Of {chosen['pairs_left_out']:,} pairs of models left out the"
            f" better is found in {by_chosen:.0%} by what is chosen, in {by_all:.0%} by all"
        )
        if by_chosen < 0.6 or by_chosen < by_all:
            yield line("do not trust this selection: it predicts models left out no better than all documents do")
    if isinstance(built := training.get("training_set"), dict):
        rows = (
            (name, as_number(counts["rows"]), as_number(counts["kept"]), counted(counts["dropped"]))
            for name, counts in built["sources"].items()
        )
        yield TerminalTable.of("Sources", ("source", "texts", "kept", "not kept"), rows, words={0, 3})
    if isinstance(rounds := training.get("rounds"), list):
        metric = (training.get("iteration") or {}).get("metric")
        names = ("round", f"{metric}, gate", "gain", f"{metric}, test", "texts", "added", "kept")
        yield TerminalTable.of("Rounds", names, map(_round, rounds))
        yield line("the gate decides which rounds stay; the figures above are of the other half of what was held out")
    if isinstance(agreed := metrics.get("agreement"), dict):
        figures = [(f"AUC at a teacher's score of {each['cut']:g}", each["auc"]) for each in agreed["auc_at"]]
        figures += [("kappa", agreed.get("kappa")), ("kappa by distance", agreed.get("kappa_weighted"))]
        yield pairs_table("Student and teacher", figures)
    if isinstance(spread := metrics.get("seeds"), dict):
        yield TerminalTable.of("Over seeds", ("", "mean", "lowest", "highest"), _spread(spread))
        seeds = ", ".join(map(str, spread["seeds"]))
        yield line(f"seeds {seeds}; the judge is that of the first, whatever its figures")


def pairs_table(title: str, rows: Sequence[tuple[str, object]]) -> TerminalTable:
    return TerminalTable.of(title, ("", ""), [(name, as_figure(value)) for name, value in rows])


def _round(facts: Mapping[str, Any]) -> tuple[str, ...]:
    gate, test = (as_figure(facts.get(name)) for name in ("gate", "test"))
    gain = as_change(facts["gain"], ".4f") if isinstance(facts.get("gain"), float) else "–"
    kept = "start" if facts["round"] == 0 else "yes" if facts["kept"] else "no"
    added = counted(facts.get("added", {})) or "–"
    return str(facts["round"]), gate, gain, test, as_number(facts.get("texts")), added, kept


def _spread(spread: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, values in {**spread["figures"], **spread["pairs"]}.items():
        known = [value for value in values if isinstance(value, float)]
        if known:
            show = as_percent if name in ("same_best_tenth", "same_label") else as_figure
            title = PAIRS.get(name if name in spread["pairs"] else "", name.replace("_", " "))
            yield (title, *(show(value) for value in (float(np.mean(known)), min(known), max(known))))


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
    more = f": the commonest {MOST_SHOWN} of {len(head.labels)}" if len(head.labels) > MOST_SHOWN else ""
    return TerminalTable.of(f"By label{more}", ("label", "texts", "F1", "AUC", "most taken for"), rows)


def title_of(head: Head) -> Text:
    labels = f": {', '.join(map(one_line, head.labels))}" if head.labels else f" from {head.low:g} to {head.high:g}"
    labels = f": {len(head.labels)} labels" if len(head.labels) > MOST_LABELS else labels
    return Text.assemble((head.name, "bold"), f": {one_line(head.meaning)} ({head.kind}{labels})")


# --- labels and ratings of a language model -------------------------------------------------------------------------


def shares(counts: Mapping[str, Any], texts: int, title: str) -> TerminalTable:
    """Texts by label."""
    rows = ((label, as_number(int(count)), as_percent(count / max(texts, 1))) for label, count in counts.items())
    return TerminalTable.of(title, ("label", "texts", "share"), rows)


def labels_view(facts: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What a language model said of a sample of texts, and what that took."""
    yield shares(facts["counts"], facts["labelled"], f"Texts by {facts['taxonomy']}")
    yield line(
        f"{facts['labelled']:,} of {facts['texts']:,} texts have a label; for {facts['none']:,} no label fits; answers that"
        f" could not be read: {counted(facts['unread']) or 'none'}"
    )
    yield line(said_of_labels(facts))
    for pair, count in list((facts.get("agreement") or {}).get("apart", {}).items())[:5]:
        yield line(f"  {pair}: {count:,}")
    for when, account in (("", facts["account"]), (" the second time", facts["second_account"])):
        if account["calls"] or account["kept"]:
            yield asked(account, when)


def said_of_labels(made: Mapping[str, Any]) -> str:
    """Who labelled the texts, and how well two answers on one text agree: a judge agrees with its teacher no better."""
    words = f"labelled by {made.get('model')} by the taxonomy {made.get('taxonomy')}, {made.get('reading')}"
    agreed = made.get("agreement")
    if not isinstance(agreed, dict) or not isinstance(agreed.get("same"), float):
        return words
    return (
        f"{words}; {as_number(agreed.get('texts'))} texts were asked twice ({agreed.get('by')}): the same label for"
        f" {as_percent(agreed['same'])}, kappa {as_figure(agreed.get('kappa'))}"
    )


def questions_table(job: RateJob) -> Table:
    """What would be asked, and what that takes at most."""
    account, prices = job.expected, job.plan.costs
    lines: list[tuple[str, str]] = []
    for name, task in job.tasks.items():
        if isinstance(task, list):
            words = f"{len(task):,} examples"
        else:
            words = f"marks of {task.signal}" if task.signal else one_line(task.rubric or task.words)[:LONGEST_TASK]
        lines.append((f"task {name}", words))
    sources = Counter(document.source for document in job.documents)
    lines += [(f"source {name}", f"{count:,} documents") for name, count in sources.items()]
    prompts, answers = as_number(account.prompt_tokens), as_number(account.completion_tokens)
    lines.append(("asked", f"{account.calls:,} answers, at most {prompts} tokens of prompts and {answers} of answers"))
    if prices:
        lines.append(("cost", f"at most {account.cost(prices):,.4g}, without what a prefix cache spares"))
    return facts_table([*lines, ("out", str(job.folder))])


def ratings_view(found: MeduFindings, account: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What sources are worth, how far to trust it, and what it took."""
    table, documents = found.utilities, Counter(document.source for document in found.documents)
    rows = []
    for i, source in enumerate(table.sources):
        marks = (f"{table.values_NT[i, t]:.3f} ± {table.errors_NT[i, t]:.3f}" for t in range(len(table.tasks)))
        rows.append((source, as_number(documents[source]) if documents else "all that have marks", *marks))
    head = ("source", "documents", *map(one_line, table.tasks))
    yield TerminalTable.of("Utility ± its standard error", head, rows)
    for task, description in found.descriptions.items():
        if description.missing:
            lacks = ", ".join(description.missing)
            yield line(f"the description of {task} lacks {lacks}; read it before you trust its marks")
    for labels in found.labels:
        if unread := int((~labels.readable).sum()):
            left_out = f"{unread:,} of {len(labels.label):,} answers could not be read; they are left out"
            yield line(f"{labels.task}, {labels.reading}: {left_out}")
        if labels.mass is not None and labels.readable.any():
            mass = float(labels.mass[labels.readable].mean())
            if mass < FAINT:
                yield line(
                    f"{labels.task}: the labels have only {as_percent(mass)} of the probability; the model wanted to"
                    " say something else"
                )
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
        title = "Both readings: at once against reasoned (the table above is of reasoned marks)"
        yield TerminalTable.of(title, columns, both)
    yield asked(account)


# --- scores --------------------------------------------------------------------------------------------------------


def scores_view(found: Sequence[HeadScores], unexplained: str) -> Iterator[RenderableType]:
    for of_head in found:
        yield title_of(of_head.head)
        if of_head.texts == 1 and of_head.best:
            yield Text(f"score {of_head.best[0].score:.4f}")
            for label, chance in list(of_head.labels.items())[:5]:
                yield Text(f"  {chance:.4f}  {one_line(label)}")
            yield from _words(of_head.best[0].words or ())
            continue
        if of_head.labels:
            yield shares(dict(list(of_head.labels.items())[:MOST_SHOWN]), of_head.texts, "Texts by label")
        rows = [("mean", of_head.mean), *((f"{share}%", value) for share, value in of_head.quantiles())]
        yield Text(f"{as_number(of_head.texts)} texts: the mean score, and what so many do not exceed")
        yield TerminalTable.of("Scores", ("texts", "score"), ((name, as_short(value)) for name, value in rows))
        titles = ("The surest", "The least sure") if of_head.labels else ("The best", "The worst")
        for title, examples in zip(titles, (of_head.best, of_head.worst), strict=True):
            if examples:
                yield Text(f"\n{title}", style="bold")
            for shown in examples:
                yield Text.assemble(f"{shown.score:.4f}  ", (one_line(shown.where), "cyan"))
                yield indented(shown.start or "(no text)")
                yield from _words(shown.words or ())
    if unexplained:
        yield Text(one_line(unexplained), style="dim")


def _words(words: Sequence[tuple[str, float]]) -> Iterator[RenderableType]:
    """Those that moved a score, by where to."""
    for title, sign in (("raised by", 1), ("lowered by", -1)):
        pushes = [f"{one_line(word)} {as_change(push, '.2f')}" for word, push in words if push * sign > 0]
        if pushes:
            yield indented(f"{title} " + " · ".join(pushes), "dim")
