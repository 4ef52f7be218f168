"""Figures of scores: what a judge says of itself, how scores lie in each source and language, where thresholds cut,
examples at each tenth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.stages.figures import Block, FactList, Report, Table, Warnings, relative
from gristmill.stages.formatting import as_number, as_percent, as_share, as_short, one_line

FIGURES = {
    "auc": "AUC",
    "auc_of_length": "AUC of length alone",
    "auc_mean": "AUC, mean of classes",
    "macro_f1": "macro-F1",
    "accuracy": "accuracy",
    "kappa_quadratic": "kappa by distance",
    "average_precision": "average precision",
    "calibration_error": "calibration error",
    "f1": "best F1",
    "spearman": "rank correlation",
    "spearman_to_full": "rank correlation to the judge before it was compressed",
}
MOST_CUTS = 20
MOST_LABELS, MOST_COLUMNS = 100, 6


def score_figures(report: Report) -> list[Block]:
    scores = report["scores"]
    blocks: list[Block] = card(scores["judge"]) if scores.get("judge") else []
    blocks += [thresholds(report["thresholds"])] if report.get("thresholds") else []
    blocks += [buckets(report["quantile_buckets"])] if report.get("quantile_buckets") else []
    for counted in scores.get("labels", []):
        blocks += labels(counted)
    if not scores["signals"]:
        if scores.get("labels"):
            return blocks  # reasoned labels have no chance
        return [*blocks, Warnings(["no document has a score"])] if scores["of"] else blocks
    for values in scores["signals"]:
        blocks += signal(values, scores)
    return blocks


def card(its: Report) -> list[Block]:
    """Of the judge itself; what it was trained on, and how it did on what it had not seen."""
    blocks: list[Block] = []
    training = its.get("training") or {}
    for head in its["heads"]:
        measures = (its.get("metrics") or {}).get(head["name"])
        metrics = measures if isinstance(measures, dict) else {}
        labels = (
            f": {', '.join(map(str, head['labels']))}"
            if head["labels"]
            else f" from {head['low']:g} to {head['high']:g}"
        )
        pairs = [("kind", str(its["kind"])), ("says", f"{head['meaning']} ({head['kind']}{labels})")]
        pairs += (
            [("trained on", f"{as_number(training['texts'])} texts")] if isinstance(training.get("texts"), int) else []
        )
        measured = ", ".join(
            f"{words} {metrics[name]:.4f}" for name, words in FIGURES.items() if is_number(metrics.get(name))
        )
        texts = f" ({as_number(metrics['texts'])} texts)" if is_number(metrics.get("texts")) else ""
        pairs += [("held out" + texts, measured or "nothing: nobody knows how good it is")]
        pairs += [("stands on", "; ".join(map(str, its["attribution"])))] if its.get("attribution") else []
        blocks.append(FactList(f"Judge of {head['name']}", pairs))
        if head["kind"] == "labels" and isinstance(metrics.get("f1"), dict):
            blocks.append(by_label(metrics))
        if isinstance(metrics.get("reliability"), list) and (len(head["labels"]) == 2 or head["kind"] == "labels"):
            truth = "right" if head["kind"] == "labels" else str(head["labels"][1])
            blocks.append(calibration(metrics["reliability"], truth))
    return blocks


def by_label(metrics: Mapping[str, Any]) -> Table:
    """How well the judge tells each label, on texts that it had not seen."""
    texts, f1, auc = (_by_name(metrics.get(name)) for name in ("texts_of", "f1", "auc"))
    order = sorted(f1, key=lambda label: (-texts[label] if is_number(texts.get(label)) else 0, label))
    rows = [
        (
            label,
            as_number(texts[label]) if is_number(texts.get(label)) else "–",
            *(f"{value:.3f}" if is_number(value) else "–" for value in (f1[label], auc.get(label))),
        )
        for label in order[:MOST_LABELS]
    ]
    return Table.of("How well each label is told", ("label", "texts", "F1", "AUC"), rows, 1).first()


def _by_name(column: object) -> dict[str, Any]:
    return {str(label): value for label, value in column.items()} if isinstance(column, dict) else {}


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def calibration(reliability: Sequence[Mapping[str, Any]], good: str) -> Table:
    complete = [
        row
        for row in reliability
        if isinstance(row, dict) and all(is_number(row.get(name)) for name in ("decile", "texts", "score", "good"))
    ]
    rows = [
        (str(row["decile"]), as_number(row["texts"]), f"{row['score']:.3f}", as_percent(row["good"]))
        for row in complete
    ]
    note = "Of texts that were held out: the mean score of each tenth, and how many of them truly are so."
    bars = [min(1.0, max(0.0, float(row["good"]))) for row in complete]
    return Table.of("Calibration", ("tenth", "texts", "mean score", f"are {good}"), rows, 1, bars, note).first()


def thresholds(entries: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            str(entry["group"]),
            str(entry["signal"]),
            score_in_words(entry["threshold"]),
            as_percent(entry["asked"]),
            as_percent(entry["kept"]),
            as_number(entry["of"]),
        )
        for entry in entries
    ]
    head = ("documents", "signal", "threshold", "asked", "kept", "of")
    return Table.of(
        "Where the threshold lies",
        head,
        rows,
        2,
        note="Shares, and what they are of, are in documents or in tokens, as the stage weighs.",
    ).first()


def buckets(entries: Sequence[Mapping[str, Any]]) -> Table:
    """The scores between buckets; of many buckets some of them."""
    rows = []
    for entry in entries:
        cuts = entry["cuts"]
        step = -(-len(cuts) // MOST_CUTS)
        begins = [f"{number + 1}: {score_in_words(cuts[number])}" for number in range(0, len(cuts), step)]
        rows.append((str(entry["group"]), str(entry["signal"]), " · ".join(begins), as_number(entry["of"])))
    note = "Each bucket with the score at which it begins; bucket 0 begins at the lowest."
    return Table.of("Where buckets begin", ("documents", "signal", "buckets", "of"), rows, 3, note=note).first()


def score_in_words(value: float | None) -> str:
    return "no score" if value is None else f"{value:.4g}"


def signal(one: Report, found: Report) -> list[Block]:
    pairs = [
        ("documents with a score", as_number(one["documents"])),
        ("mean", as_short(one["mean"])),
        *(
            [
                (
                    "looked at",
                    f"{as_share(one['documents'] + one['without'], found['of'])} of the documents, in whole parts",
                )
            ]
            if not found["whole"]
            else []
        ),
        *(
            [
                (
                    "without a score",
                    f"{as_number(one['without'])} ({as_share(one['without'], one['documents'] + one['without'])})",
                )
            ]
            if one["without"]
            else []
        ),
    ]
    blocks: list[Block] = [FactList(str(one["signal"]), pairs), histogram(one)]
    blocks += [by_group(one, name) for name in one["by"] if len(one["by"][name]) > 1]
    blocks += [examples(one)] if one["examples"] else []
    return blocks


def labels(counted: Report) -> list[Block]:
    """How many documents have each label, and the commonest labels' shares of each source."""
    signal, counts = str(counted["signal"]), counted["counts"]
    rows = [
        (str(label), as_number(count), as_share(count, counted["documents"]))
        for label, count in list(counts.items())[:MOST_LABELS]
    ]
    bars = relative([count for _, count in list(counts.items())[:MOST_LABELS]])
    blocks: list[Block] = [Table.of(f"Documents by {signal}", (signal, "documents", "share"), rows, 1, bars)]
    if len(counted["by"]) > 1:
        shown = list(counts)[:MOST_COLUMNS]
        by_source = [
            (str(source), as_number(sum(of.values())), *(as_share(of[label], sum(of.values())) for label in shown))
            for source, of in counted["by"].items()
        ]
        head = ("source", "documents", *map(str, shown))
        blocks.append(Table.of(f"{signal} by source: the commonest labels", head, by_source, 1).first())
    return blocks


def edges(one: Report, bins: int) -> list[str]:
    width = (one["high"] - one["low"]) / bins
    return [as_short(one["low"] + width * number) for number in range(bins)]


def histogram(one: Report) -> Table:
    counts = one["counts"]
    rows = [
        (edge, as_number(count), as_share(count, one["documents"]))
        for edge, count in zip(edges(one, len(counts)), counts, strict=True)
    ]
    return Table.of(f"How {one['signal']} lies", ("from", "documents", "share"), rows, 1, relative(counts))


def by_group(one: Report, name: str) -> Table:
    """Shares of each group's documents, two bins as one."""
    rows = []
    for group, counts in one["by"][name].items():
        pairs = [counts[i] + counts[i + 1] for i in range(0, len(counts), 2)]
        rows.append((str(group), as_number(sum(counts)), *(as_share(pair, sum(counts)) for pair in pairs)))
    head = (name, "documents", *(f"from {edge}" for edge in edges(one, len(one["counts"]) // 2)))
    return Table.of(f"How {one['signal']} lies, by {name}", head, rows, 1).first()


def examples(one: Report) -> Table:
    rows = [
        (
            str(example["tenth"]),
            str(example["url"] or example["uid"]),
            one_line(str(example["text"])) or "(no text)",
            f"{example['score']:.4g}",
        )
        for example in one["examples"]
    ]
    note = (
        "Documents of each tenth, from the lowest scores to the highest; gristmill inspect OUT --uid shows one whole."
    )
    return Table.of(f"Examples by {one['signal']}", ("tenth", "document", "begins", "score"), rows, 3, note=note)
