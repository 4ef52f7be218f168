"""Holds a finished run on the demo crawl against what was planted in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gristmill.pipeline.demo.crawl import Truth
from gristmill.pipeline.store.run_records import RunRecord, StageRecord

LEAST_RATE = 0.9
RULES = ("keep_languages", "gopher_repetition", "gopher_quality")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what truth says, what the run says, and whether they agree."""

    what: str
    expected: int | float
    found: int | float
    ok: bool


def check(out: Path, truth: Truth) -> list[Finding]:
    """Everything that was looked at, agreeing or not; the run is right where all are `ok`."""
    record = RunRecord.from_json(json.loads((out / "run.json").read_text(encoding="utf-8")))
    stages = record.stages
    kept = rows_of(sorted((out / "write").glob("*.parquet")), ["url", "text", "uid"])
    readers = {reader.name for reader in record.readers}
    rejects = rows_of(sorted((out / "stages").glob("*/rejects/*.parquet")), ["url", "stage"])
    rejected = [row for row in rejects if row["stage"] not in readers]
    return [
        *_reading(record.readers, truth),
        *_counts(stages, kept),
        *_pages(kept, rejected, truth),
        *_texts(kept, truth),
    ]


def rows_of(paths: list[Path], columns: list[str]) -> list[dict[str, Any]]:
    return [row for path in paths for row in pq.ParquetFile(path).read(columns=columns).to_pylist()]


def equal(what: str, expected: int, found: int) -> Finding:
    return Finding(what, expected, found, expected == found)


def _reading(readers: Sequence[StageRecord], truth: Truth) -> list[Finding]:
    skipped: Counter[str] = Counter()
    for reader in readers:
        skipped.update(reader.count.dropped)
    return [
        equal("records read", truth.records, sum(reader.count.docs_in for reader in readers)),
        equal("pages handed over by the reader", len(truth.documents), sum(reader.count.kept for reader in readers)),
        equal("damaged records", truth.damaged, sum(reader.count.quarantined for reader in readers)),
        *(
            equal(f"skipped: {reason}", truth.skipped.get(reason, 0), skipped[reason])
            for reason in sorted({*truth.skipped, *skipped})
        ),
    ]


def _counts(stages: Sequence[StageRecord], kept: list[dict[str, Any]]) -> list[Finding]:
    """Conservation: what goes into a stage comes out of it, or is on record."""
    findings = []
    for stage in stages:
        accounted = stage.count.kept + stage.count.gone
        came = stage.count.docs_in + stage.count.made
        findings.append(equal(f"{stage.name}: kept + dropped + quarantined", came, accounted))
    writing = next(stage for stage in stages if stage.kind == "sink")
    findings.append(equal("documents written, as counted", writing.count.kept, len(kept)))
    return findings


def _pages(kept: list[dict[str, Any]], rejected: list[dict[str, Any]], truth: Truth) -> list[Finding]:
    written = Counter(row["url"] for row in kept)
    gone = {row["url"] for row in rejected}
    by_rules = {row["url"] for row in rejected if row["stage"] in RULES}
    repeated = {row["url"] for row in rejected} - by_rules
    planted = {url for group in [*truth.exact, *truth.near] for url in group}
    known = set(truth.documents)
    # articles of which every copy reached deduplication: rules treat equal texts alike
    groups = [group for group in truth.exact if not by_rules & set(group)]
    survivors = [sum(written[url] for url in group) for group in groups]
    split = sum(bool(by_rules & set(group)) and not by_rules >= set(group) for group in truth.exact)
    near = [pair for pair in truth.near if not by_rules & set(pair)]
    both = sum(sum(written[url] for url in pair) != 1 for pair in near)
    foreign = {url for url, language in truth.languages.items() if language != "en"}
    spam = set(truth.spam)
    articles = known - foreign - spam
    return [
        equal("pages in other languages that went", len(foreign), len(foreign & by_rules)),
        equal("spam that went", len(spam), len(spam & by_rules)),
        _rate("articles that rules left", len(articles), len(articles & by_rules)),
        equal("copies of one text of which rules left some", 0, split),
        equal("groups of exact duplicates with one survivor", len(groups), survivors.count(1)),
        equal("pairs of near duplicates with one survivor", len(near), len(near) - both),
        equal(
            "documents written",
            len(known) - len(by_rules) - sum(len(group) - 1 for group in groups) - len(near),
            len(kept),
        ),
        equal("uids that are distinct", len(kept), len({row["uid"] for row in kept})),
        equal("pages lost without a reason on record", 0, len(known - set(written) - gone)),
        equal("pages dropped as duplicates that repeat nothing", 0, len(repeated - planted)),
        equal("pages both written and dropped", 0, len(gone & set(written))),
        equal("pages written that are no documents", 0, len(set(written) - known)),
    ]


def _texts(kept: list[dict[str, Any]], truth: Truth) -> list[Finding]:
    texts = [(str(row["url"]), _plain(row["text"] or "")) for row in kept]
    first = {url: _plain(sentence) for url, sentence in truth.first_sentences.items()}
    missing = sum(url not in first or first[url] not in text for url, text in texts)
    cluttered = sum(any(_plain(phrase) in text for phrase in truth.navigation) for _, text in texts)
    return [
        _rate("texts that have the first sentence of their article", len(kept), missing),
        _rate("texts free of navigation", len(kept), cluttered),
    ]


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _rate(what: str, rows: int, wrong: int) -> Finding:
    rate = (rows - wrong) / rows if rows else 0.0
    return Finding(f"{what}: at least", LEAST_RATE, round(rate, 4), rate >= LEAST_RATE)
