"""Holds a finished run on the demo crawl against what was planted in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import pyarrow.parquet as pq

from gristmill.pipeline.demo.crawl import Truth
from gristmill.pipeline.store.run_records import RunRecord, StageRecord

LEAST_RATE = 0.9
RULES = ("keep_languages", "gopher_repetition", "gopher_quality")


class DocumentRow(TypedDict, total=False):
    """A document that was kept or rejected; only columns that are asked for."""

    uid: int
    url: str
    text: str
    stage: str


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what truth says, what the run says, and whether they agree."""

    what: str
    expected: int | float
    found: int | float
    ok: bool
    detail: str = ""  # the first few offenders, where there are some


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


def rows_of(paths: list[Path], columns: list[str]) -> list[DocumentRow]:
    return [row for path in paths for row in pq.ParquetFile(path).read(columns=columns).to_pylist()]


def equal(what: str, expected: int, found: int, detail: str = "") -> Finding:
    return Finding(what, expected, found, expected == found, detail)


def none(what: str, offenders: list[str]) -> Finding:
    return equal(what, 0, len(offenders), ", ".join(offenders[:3]))


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


def _counts(stages: Sequence[StageRecord], kept: list[DocumentRow]) -> list[Finding]:
    """Conservation: what goes into a stage comes out of it, or is on record."""
    findings = []
    for stage in stages:
        accounted = stage.count.kept + stage.count.gone
        came = stage.count.docs_in + stage.count.made
        findings.append(equal(f"{stage.name}: kept + dropped + quarantined", came, accounted))
    writing = next(stage for stage in stages if stage.kind == "sink")
    findings.append(equal("documents written, as counted", writing.count.kept, len(kept)))
    return findings


def _pages(kept: list[DocumentRow], rejected: list[DocumentRow], truth: Truth) -> list[Finding]:
    written = Counter(row["url"] for row in kept)
    gone = {row["url"] for row in rejected}
    by_rules = {row["url"] for row in rejected if row["stage"] in RULES}
    repeated = {row["url"] for row in rejected} - by_rules
    planted = {url for group in [*truth.exact, *truth.near] for url in group}
    known = set(truth.documents)
    # articles of which every copy reached deduplication: rules treat equal texts alike
    groups = [group for group in truth.exact if not by_rules & set(group)]
    survivors = [sum(written[url] for url in group) for group in groups]
    wrong = [f"{group[0]} ({left} left)" for group, left in zip(groups, survivors, strict=True) if left != 1]
    split = [group[0] for group in truth.exact if by_rules & set(group) and not by_rules >= set(group)]
    near = [pair for pair in truth.near if not by_rules & set(pair)]
    both = [pair[0] for pair in near if sum(written[url] for url in pair) != 1]
    foreign = {url for url, language in truth.languages.items() if language != "en"}
    articles = known - foreign - set(truth.spam)
    return [
        equal(
            "pages in other languages that went",
            len(foreign),
            len(foreign & by_rules),
            ", ".join(sorted(foreign - by_rules)[:3]),
        ),
        equal(
            "spam that went",
            len(truth.spam),
            len(by_rules & set(truth.spam)),
            ", ".join(sorted(set(truth.spam) - by_rules)[:3]),
        ),
        _rate("articles that rules left", len(articles - by_rules), len(articles), sorted(articles & by_rules)),
        none("copies of one text of which rules left some", split),
        equal("groups of exact duplicates with one survivor", len(groups), survivors.count(1), ", ".join(wrong[:3])),
        equal("pairs of near duplicates with one survivor", len(near), len(near) - len(both), ", ".join(both[:3])),
        equal(
            "documents written",
            len(known) - len(by_rules) - sum(len(group) - 1 for group in groups) - len(near),
            len(kept),
        ),
        equal("uids that are distinct", len(kept), len({row["uid"] for row in kept})),
        none("pages lost without a reason on record", sorted(known - set(written) - gone)),
        none("pages dropped as duplicates that repeat nothing", sorted(repeated - planted)),
        none("pages both written and dropped", sorted(gone & set(written))),
        none("pages written that are no documents", sorted(str(url) for url in set(written) - known)),
    ]


def _texts(kept: list[DocumentRow], truth: Truth) -> list[Finding]:
    with_sentence = without_navigation = 0
    missing, cluttered = [], []
    for row in kept:
        text, url = _plain(row["text"] or ""), str(row["url"])
        if url in truth.first_sentences and _plain(truth.first_sentences[url]) in text:
            with_sentence += 1
        else:
            missing.append(url)
        if any(_plain(phrase) in text for phrase in truth.navigation):
            cluttered.append(url)
        else:
            without_navigation += 1
    return [
        _rate("texts that have the first sentence of their article", with_sentence, len(kept), missing),
        _rate("texts free of navigation", without_navigation, len(kept), cluttered),
    ]


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _rate(what: str, good: int, rows: int, offenders: list[str]) -> Finding:
    rate = good / rows if rows else 0.0
    return Finding(f"{what}: at least", LEAST_RATE, round(rate, 4), rate >= LEAST_RATE, ", ".join(offenders[:3]))
