"""Figures of duplicates: how large clusters are, what bands nominate, pairs of like documents, boilerplate of sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.stages.figures import Block, FactList, Report, Sentence, Table, TextPair, count_bars


def duplicate_figures(report: Report) -> list[Block]:
    """Of a report with `clusters`; `bands` and `examples` where a near-duplicate stage told them."""
    clusters, sources = report["clusters"], report.get("sources") or {}
    blocks: list[Block] = [cluster_sizes(clusters) if clusters else Sentence("No two documents were alike.")]
    blocks += [dropped_by_source(sources)] if len(sources) > 1 else []
    blocks += [chances_to_meet(report["bands"])] if report.get("bands") else []
    blocks += [earlier_runs(report["earlier_runs"])] if report.get("earlier_runs") else []
    return blocks + [text_pair(example) for example in report.get("examples") or []]


def cluster_sizes(clusters: Sequence[Sequence[int]]) -> Table:
    """Clusters by size, in powers of two from five on."""
    groups: dict[str, int] = {}
    for size, count in clusters:
        low = size if size < 5 else max(5, 1 << size.bit_length() - 1)
        high = size if size < 5 else (1 << size.bit_length()) - 1
        label = f"{low} documents" if low == high else f"{low:,} to {high:,} documents"
        groups[label] = groups.get(label, 0) + count
    whole = sum(count for _, count in clusters)
    members = sum(size * count for size, count in clusters)
    caption = f"{whole:,} clusters of {members:,} documents, by size; the largest has {clusters[-1][0]:,}"
    return count_bars(caption, "size", list(groups.items()), whole, "clusters")


def dropped_by_source(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    dropped = [(str(name), sum(counts["dropped"].values())) for name, counts in sources.items()]
    whole = sum(count for _, count in dropped)
    return count_bars("Documents that went, by source", "source", sorted(dropped, key=lambda row: -row[1]), whole)


def earlier_runs(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Whose indexes the documents were held against; one of an earlier version knows less of itself."""
    rows = [
        (
            str(run["index"]),
            str(run["name"]),
            str(run.get("saved", "")).partition("T")[0],
            f"{run['documents']:,}" if "documents" in run else "",
            str(run.get("fingerprint", ""))[:12],
        )
        for run in runs
    ]
    return Table.of("Earlier runs", ("index", "run", "saved", "documents", "fingerprint"), rows, words=3)


def chances_to_meet(bands: Mapping[str, Any]) -> Table:
    note = (
        f"By how alike they are. Of each document {bands['bands']} short fingerprints are made, {bands['rows']} hashes"
        f" long ({bands['bands']} bands of {bands['rows']} rows); two documents that have one of them in common are"
        f" compared, and if they are at least {bands['threshold']} alike, one goes."
    )
    points = [(similarity, chance) for similarity, chance in bands["chances"] if 0.001 <= chance <= 0.9999]
    rows = [(f"{similarity:.2f}", f"{chance:.1%}") for similarity, chance in points]
    bars = [chance for _, chance in points]
    return Table.of("How likely two documents are to be compared", ("similarity", "chance"), rows, 1, bars, note)


def text_pair(example: Mapping[str, Any]) -> TextPair:
    return TextPair(
        str(example["uid"]),
        example["url"],
        example["text"],
        str(example["like"]),
        example["like_url"],
        example["like_text"],
        str(example["similarity"]),
    )


def boilerplate_figures(report: Report) -> list[Block]:
    """Of a report with `site_counts` and `examples` of their lines."""
    sites = report["site_counts"]
    blocks: list[Block] = [
        FactList(
            "Sites",
            [
                ("sites", f"{sites['sites']:,}"),
                ("with enough pages", f"{sites['taught']:,}"),
                ("pages of these", f"{sites['pages']:,}"),
            ],
        )
    ]
    if not report["examples"]:
        return [*blocks, Sentence("No line stands on enough pages of a site.")]
    rows = [
        (str(each["site"]), str(each["text"]).replace("\n", " / "), f"{each['pages']:,}", f"{each['site_pages']:,}")
        for each in report["examples"]
    ]
    head = ("site", "lines", "pages they stand on", "pages counted")
    return [*blocks, Table.of("Lines that stand on most pages of their site", head, rows, words=2)]
