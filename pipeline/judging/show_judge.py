"""What `train-judge` and `judge` print: figures on held-out texts, quantiles of scores, the best and worst texts, words
that moved a score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gristmill.classifiers.card import Head, JudgeCard, NotExplained
from gristmill.classifiers.judge import Judge
from gristmill.pipeline.formatting import as_number, as_percent, as_short, one_line
from gristmill.pipeline.judging.scoring import HeadScores, ScoredText
from gristmill.pipeline.look.run_folder import grid

EXCERPT = 200
WORDS = 10
MOST_LABELS = 20
FIGURES = (
    ("auc", "AUC (0.5 is chance)"),
    ("average_precision", "average precision"),
    ("calibration_error", "calibration error"),
    ("best_threshold", "threshold of the best F1"),
    ("f1", "F1 there"),
    ("kappa_at_half", "kappa at 0.5"),
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
        screen.print(Text.assemble((head.name, "bold"), f": {one_line(head.meaning)} ({head.kind}{of_labels(head)})"))
        trained = f"trained on {as_number(card.training.get('texts'))} texts"
        if not metrics:
            screen.print(Text(f"{trained}; nothing was held out, so nobody knows how good it is"))
            continue
        good = f" ({as_number(metrics['good'])} of them {head.labels[1]})" if "good" in metrics else ""
        screen.print(
            Text(
                f"{trained}, measured on {as_number(metrics['texts'])} others{good}, held out whole by"
                f" {one_line(grouped)}"
            )
        )
        rows = [
            (words, as_figure(metrics[name]))
            for name, words in FIGURES
            if name in metrics and not isinstance(metrics[name], dict)
        ]
        rows += [("kappa", as_figure(metrics["kappa"]))] if head.kind == "classes" else []
        rows += [(f"AUC of {label}", as_figure(value)) for label, value in of_classes(metrics)]
        screen.print(grid("Held-out figures", ("", ""), iter(rows)))
        if "reliability" in metrics:
            screen.print(calibration(metrics["reliability"], head))


class TenthRow(TypedDict):
    """A tenth of the held-out texts by score."""

    decile: int
    texts: int
    score: float
    good: float


def calibration(reliability: Sequence[TenthRow], head: Head) -> Table:
    rows = [
        (str(row["decile"]), as_number(row["texts"]), f"{row['score']:.3f}", as_percent(row["good"]))
        for row in reliability
    ]
    return grid(
        "Calibration by tenths", ("tenth", "texts", "mean score", f"are {one_line(head.labels[1])}"), iter(rows)
    )


def of_classes(metrics: Mapping[str, object]) -> list[tuple[str, object]]:
    """How well each class is told from the others."""
    auc = metrics.get("auc")
    return list(auc.items())[:MOST_LABELS] if isinstance(auc, dict) else []


def as_figure(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "–" if value is None else str(value)


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
                }
                for head in self.heads
            }
        } | ({"unexplained": self.unexplained} if self.unexplained else {})

    def show(self, screen: Console) -> None:
        for findings in self.heads:
            screen.print(
                Text.assemble(
                    (findings.head.name, "bold"),
                    f": {one_line(findings.head.meaning)} ({findings.head.kind}{of_labels(findings.head)})",
                )
            )
            if findings.texts == 1 and findings.best:
                screen.print(Text(f"score {findings.best[0].score:.4f}"))
                _show_words(screen, findings.best[0])
                continue
            head = ("texts", "mean", *(f"{share}%" for share, _ in findings.quantiles))
            row = (
                as_number(findings.texts),
                as_short(findings.mean),
                *(as_short(value) for _, value in findings.quantiles),
            )
            screen.print(grid("Scores: the mean, and the score that so many texts do not exceed", head, iter([row]), 0))
            for title, rows in (("The best", findings.best), ("The worst", findings.worst)):
                _show_examples(screen, title, rows)
        if self.unexplained:
            screen.print(Text(one_line(self.unexplained), style="dim"))


def of_one_text(judge: Judge, text: str, explain: bool) -> JudgeFindings:
    scores = judge.score(pa.array([text], pa.large_string()))
    findings = JudgeFindings([])
    for head in judge.card.heads:
        score = float(scores[head.name][0])
        words = _words(judge, text, head, findings) if explain else None
        findings.heads.append(
            HeadFindings(head, 1, score, [], [ShownText("standard input", _start(text), score, words)])
        )
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
                of_head.head, len(scores), float(scores.astype(float).mean()), of_head.quantiles(), best, worst
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
        screen.print(Text(f"        {shown.start or '(no text)'}"), soft_wrap=True)
        _show_words(screen, shown)


def _show_words(screen: Console, shown: ShownText) -> None:
    for title, sign in (("raised by", 1), ("lowered by", -1)):
        pushes = [f"{one_line(word)} {push:+.2f}" for word, push in shown.words or [] if push * sign > 0]
        if pushes:
            screen.print(Text(f"        {title} " + " · ".join(pushes), style="dim"), soft_wrap=True)
