"""What `judge train` and `judge score` print: figures on held-out texts, quantiles of scores, the best and worst texts,
words that moved a score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from gristmill.classifiers.card import Head, JudgeCard, NotExplained
from gristmill.classifiers.judge import Judge
from gristmill.pipeline.formatting import as_number, as_percent, as_short, one_line
from gristmill.pipeline.judging.scoring import HeadScores, ScoredText
from gristmill.pipeline.judging.show_training import as_figure, asked, counted, say, show_training
from gristmill.pipeline.tables import TerminalTable

EXCERPT = 200
WORDS = 10
MOST_LABELS = 20
MOST_SHOWN = 50
TELLING = 0.7  # AUC of length above which a judge may have learnt it
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

Push = tuple[str, float]


def show_figures(screen: Console, card: JudgeCard, grouped: str) -> None:
    """The held-out figures of a judge that was just trained."""
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
            f"{trained}, measured on {as_number(metrics['texts'])} others{good}, held out whole by {grouped}{copies}",
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
    show_figures(screen, card, "groups")
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


@dataclass(frozen=True)
class ShownText:
    """One text with its scores and, where asked for, the words that moved them."""

    where: str
    start: str
    score: float
    words: list[Push] | None = None


@dataclass
class HeadFindings:
    head: Head
    texts: int
    mean: float
    quantiles: list[tuple[int, float]]
    best: list[ShownText] = field(default_factory=list)
    worst: list[ShownText] = field(default_factory=list)
    labels: dict[str, float] = field(default_factory=dict)  # texts by label; of one text the probabilities


@dataclass
class JudgeFindings:
    heads: list[HeadFindings]
    unexplained: str = ""  # why no words are shown, though they were asked for

    def plain(self) -> Mapping[str, object]:
        from dataclasses import asdict

        return {
            "heads": {
                head.head.name: {
                    "texts": head.texts,
                    "mean": head.mean,
                    "quantiles": {f"{share}%": value for share, value in head.quantiles},
                    "best": [asdict(shown) for shown in head.best],
                    "worst": [asdict(shown) for shown in head.worst],
                    **({"labels": head.labels} if head.labels else {}),
                }
                for head in self.heads
            }
        } | ({"unexplained": self.unexplained} if self.unexplained else {})

    def show(self, screen: Console) -> None:
        for findings in self.heads:
            screen.print(title_of(findings.head))
            if findings.texts == 1 and findings.best:
                screen.print(Text(f"score {findings.best[0].score:.4f}"))
                for label, chance in list(findings.labels.items())[:5]:
                    screen.print(Text(f"  {chance:.4f}  {one_line(label)}"))
                _show_words(screen, findings.best[0])
                continue
            if findings.labels:
                shown = dict(list(findings.labels.items())[:MOST_SHOWN])
                screen.print(shares(shown, findings.texts, "Texts by label"))
            rows_of = [("mean", findings.mean), *((f"{share}%", value) for share, value in findings.quantiles)]
            screen.print(Text(f"{as_number(findings.texts)} texts: the mean score, and what so many do not exceed"))
            screen.print(
                TerminalTable.of("Scores", ("texts", "score"), ((name, as_short(value)) for name, value in rows_of))
            )
            for title, rows in (
                zip(("The surest", "The least sure"), (findings.best, findings.worst), strict=True)
                if findings.labels
                else (("The best", findings.best), ("The worst", findings.worst))
            ):
                _show_examples(screen, title, rows)
        if self.unexplained:
            say(screen, self.unexplained, "dim")


def of_one_text(judge: Judge, text: str, explain: bool) -> JudgeFindings:
    scores = judge.score(pa.array([text], pa.large_string()))
    findings = JudgeFindings([])
    for head in judge.card.heads:
        score = float(scores[head.name][0])
        words = _words(judge, text, head, findings) if explain else None
        findings.heads.append(
            HeadFindings(head, 1, score, [], [ShownText("standard input", _start(text), score, words)])
        )
        if head.kind == "labels":
            of_text = judge.outputs(pa.array([text], pa.large_string()))[head.name][0].tolist()
            ordered = sorted(zip(head.labels, of_text, strict=True), key=lambda pair: (-pair[1], pair[0]))
            findings.heads[-1].labels = dict(ordered)
    return findings


def of_files(judge: Judge, scored: Iterable[HeadScores], explain: bool) -> JudgeFindings:
    findings = JudgeFindings([])
    for of_head in scored:
        scores = of_head.all()
        best, worst = (
            [_shown(judge, example, of_head.head, explain, findings) for example in group]
            for group in (of_head.best, of_head.worst)
        )
        findings.heads.append(
            HeadFindings(
                of_head.head,
                len(scores),
                float(scores.astype(float).mean()),
                of_head.quantiles(),
                best,
                worst,
                dict(of_head.labels.most_common()),
            )
        )
    return findings


def _shown(judge: Judge, example: ScoredText, head: Head, explain: bool, findings: JudgeFindings) -> ShownText:
    words = _words(judge, example.text, head, findings) if explain else None
    return ShownText(example.where, _start(example.text), example.score, words)


def _words(judge: Judge, text: str, head: Head, findings: JudgeFindings) -> list[Push] | None:
    try:
        return judge.explain(text, head.name, WORDS)
    except NotExplained as error:
        findings.unexplained = str(error)
        return None


def _start(text: str) -> str:
    return one_line(text[: 4 * EXCERPT])[:EXCERPT]


def _show_examples(screen: Console, title: str, rows: Sequence[ShownText]) -> None:
    if not rows:
        return
    screen.print(Text(f"\n{title}", style="bold"))
    for shown in rows:
        screen.print(Text.assemble(f"{shown.score:.4f}  ", (one_line(shown.where), "cyan")), soft_wrap=True)
        screen.print(Padding(Text(shown.start or "(no text)"), (0, 0, 0, 8)))
        _show_words(screen, shown)


def _show_words(screen: Console, shown: ShownText) -> None:
    for title, sign in (("raised by", 1), ("lowered by", -1)):
        pushes = [f"{one_line(word)} {push:+.2f}" for word, push in shown.words or [] if push * sign > 0]
        if pushes:
            screen.print(Padding(Text(f"{title} " + " · ".join(pushes), style="dim"), (0, 0, 0, 8)))
