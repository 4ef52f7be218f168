"""A small made-up output folder, laid out as the engine does it, with hostile text in every place that a crawl can
fill.

Two sources: `crawl` (two files, 6 + 4 records, one skipped, one damaged) and `books` (4 records).
    extract (segment: extract, language)   12 in, 1 quarantined; language drops 2
    exact_dedup (global)               9 in, 2 dropped, both equal to FIRST
    write (segment: gopher_quality, write) 7 in, 1 dropped, 6 written
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages.documents import uid_of

HOSTILE = "<script>alert('x')</script> \x1b[31mred\x1b[0m \u202eevil [bold]markup[/bold] {{ 7*7 }}"
OTHER = f"other {HOSTILE}"
SCRIPT_URL = "javascript:alert(document.domain)"
WEB_URL = "https://example.org/a?b=1&c=2"

CRAWL = ("crawl-0.warc.gz", "crawl-1.warc.gz")
UIDS = {
    "extract-0": [uid_of("crawl", CRAWL[0], f"<urn:uuid:{n}>") for n in range(4)],
    "extract-1": [uid_of("crawl", CRAWL[1], f"<urn:uuid:{n}>") for n in range(4, 7)],
    "extract-2": [uid_of("books", "books.jsonl", 100 * n) for n in range(4)],
}
FIRST = UIDS["extract-0"][0]
LANGUAGE = [UIDS["extract-0"][1], UIDS["extract-1"][0]]
SAME = [UIDS["extract-0"][2], UIDS["extract-2"][1]]
SHORT = UIDS["extract-2"][0]
QUARANTINED = uid_of("crawl", CRAWL[1], "<urn:uuid:7>")


def make(out: Path) -> Path:
    write_segments(out)
    stages = entries()
    for entry in stages:
        save(out / "stages" / entry["name"] / "report.json", entry | {"samples": samples(entry["name"])})
    save(out / "run.json", run(stages))
    rejects(out)
    return out


def run(stages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": f"web {HOSTILE}",
        "gristmill": "0.1.0",
        "recipe": {"name": "web", "sources": {"crawl": {"path": "crawl/"}}, "note": HOSTILE},
        "versions": {"pyarrow": "26.0.1", "numpy": "2.1"},
        "machine": {"cpu": "2 cores", "memory": 8_000_000_000},
        "started": "2026-11-21T10:00:00.123456+00:00",
        "finished": "2026-11-21T10:00:14+00:00",
        "seconds": 14.2,
        "status": "done",
        "alarms": [f"language dropped 60% of crawl {HOSTILE}"],
        "stages": stages,
    }


def entry(
    name: str, kind: str, about: str, sources: dict[str, dict[str, Any]], settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    dropped: dict[str, int] = {}
    for its in sources.values():
        for reason, n in its["dropped"].items():
            dropped[reason] = dropped.get(reason, 0) + n
    sums = {key: sum(its[key] for its in sources.values()) for key in ("docs_in", "kept", "quarantined")}
    costs = {"seconds": 2.5, "bytes_in": 120_000, "bytes_out": 40_000, "peak_memory": 300_000_000}
    return (
        {"name": name, "kind": kind, "about": about, "settings": settings or {}, "dropped": dropped, "sources": sources}
        | sums
        | costs
    )


def counts(docs_in: int, dropped: dict[str, int] | None = None, quarantined: int = 0) -> dict[str, Any]:
    lost = sum((dropped or {}).values()) + quarantined
    return {"docs_in": docs_in, "kept": docs_in - lost, "dropped": dropped or {}, "quarantined": quarantined}


def entries() -> list[dict[str, Any]]:
    same, short = {"exact_duplicate": 1}, {"too_few_words": 1}
    return [
        entry("crawl", "read", "Pages of WARC files.", {"crawl": counts(10, {"not_found": 1}, 1)}, {"path": "crawl/"}),
        entry("books", "read", "JSON lines, one document each.", {"books": counts(4)}, {"path": "books.jsonl"}),
        entry("extract", "rewrite", "The main text of a page.", {"crawl": counts(8, {}, 1), "books": counts(4)}),
        entry("language", "rule", "Keep the languages wanted.", {"crawl": counts(7, {OTHER: 2}), "books": counts(4)}, {"wanted": ["en"]}),
        entry("exact_dedup", "global", "Keep one of equal texts.", {"crawl": counts(5, same), "books": counts(4, same)}),
        entry("gopher_quality", "rule", "Rae et al. 2021.", {"crawl": counts(4), "books": counts(3, short)}, {"min_words": 50}),
        entry("write", "sink", "Parquet with the columns of FineWeb.", {"crawl": counts(4), "books": counts(2)}),
    ]  # fmt: skip


def samples(stage: str) -> dict[str, list[dict[str, Any]]]:
    def one(uid: int | None, url: str | None, source: str, detail: str | None, text: str | None) -> dict[str, Any]:
        return {
            "uid": None if uid is None else f"{uid:016x}",
            "url": url,
            "source": source,
            "detail": detail,
            "text": text,
        }

    return {
        "crawl": {
            "not_found": [one(None, SCRIPT_URL, "crawl", "404", None)],
            "damaged": [one(None, None, "crawl", HOSTILE, None)],
        },
        "language": {
            OTHER: [
                one(LANGUAGE[0], WEB_URL, f"crawl {HOSTILE}", HOSTILE, HOSTILE + " lorem ipsum dolor sit amet" * 15)
            ]
        },
        "exact_dedup": {"exact_duplicate": [one(SAME[0], SCRIPT_URL, "crawl", f"same as {FIRST:016x}", HOSTILE)]},
    }.get(stage, {})


def write_segments(out: Path) -> None:
    dropped = dict.fromkeys(LANGUAGE, ("language", OTHER, "de 0.99"))
    same = dict.fromkeys(SAME, ("exact_dedup", "exact_duplicate", f"same as {FIRST:016x}"))
    short = {SHORT: ("gopher_quality", "too_few_words", "7 words")}
    extract, dedup, last = [], [], []
    for key, uids in UIDS.items():
        table = documents(key, uids)
        kept = [uid for uid in uids if uid not in dropped]
        files = {
            "documents": f"partitions/extract/{key}.documents.parquet",
            "verdicts": f"partitions/extract/{key}.verdicts.parquet",
        }
        files["signals"] = f"partitions/extract/{key}.signals.parquet"
        put(out / files["documents"], table)
        put(out / files["verdicts"], verdicts(uids, dropped))
        put(out / files["signals"], pa.table({"words": pa.array(range(len(uids)), pa.int32())}))
        source, path = ("books", "books.jsonl") if key == "extract-2" else ("crawl", CRAWL[int(key[-1])])
        spans = [{"source": source, "path": path, "start": 0, "end": 5000}]
        if key == "extract-0":
            spans.append({"source": "crawl", "path": "crawl-9.warc.gz", "start": 0, "end": None})
        extract.append({"key": key, "inputs": spans, "rows": len(uids), "kept": len(kept), "files": files})

        put(out / f"partitions/exact_dedup/{key}.verdicts.parquet", verdicts(uids, dropped | same))
        rows = {
            "rows": len(uids),
            "kept": len(set(kept) - set(SAME)),
            "files": {"verdicts": f"partitions/exact_dedup/{key}.verdicts.parquet"},
        }
        dedup.append({"key": key, "owner": "extract"} | rows)

        left = [index for index, uid in enumerate(uids) if uid not in dropped and uid not in SAME]
        survivors = table.take(left)
        left_uids = survivors["uid"].to_pylist()
        files = {
            "documents": f"partitions/write/{key}.documents.parquet",
            "verdicts": f"partitions/write/{key}.verdicts.parquet",
        }
        put(out / files["documents"], survivors)
        put(out / files["verdicts"], verdicts(left_uids, short))
        rows = {
            "rows": len(left),
            "kept": len(set(left_uids) - {SHORT}),
            "files": files | {"sink/write": f"write/{key}.parquet"},
        }
        last.append({"key": key, "inputs": [{"node": "exact_dedup", "key": key}]} | rows)
        ours = survivors.take([row for row, uid in enumerate(left_uids) if uid != SHORT])
        put(out / f"write/{key}.parquet", ours.select(["text", "id", "url", "date", "uid"]))
    save(
        out / "partitions/extract/manifest.json",
        {"segment": "extract", "stages": ["extract", "language"], "parts": extract},
    )
    save(
        out / "partitions/exact_dedup/manifest.json",
        {"segment": "exact_dedup", "stages": ["exact_dedup"], "parts": dedup},
    )
    save(
        out / "partitions/write/manifest.json",
        {"segment": "write", "stages": ["gopher_quality", "write"], "parts": last},
    )
    save(out / "partitions/old/manifest.json", {"segment": "old", "stages": ["gone_from_the_recipe"], "parts": []})


def documents(key: str, uids: list[int]) -> pa.Table:
    books = key == "extract-2"
    start = 0 if key == "extract-0" else 4
    names = [None if books else f"<urn:uuid:{start + n}>" for n in range(len(uids))]
    urls = [WEB_URL if uid in (FIRST, SAME[0]) else f"https://example.org/{key}/{n}" for n, uid in enumerate(uids)]
    return pa.table(
        {
            "uid": pa.array(uids, pa.uint64()),
            "source": pa.array(["books" if books else "crawl"] * len(uids)).dictionary_encode(),
            "id": pa.array(names, pa.string()),
            "url": pa.array(urls, pa.string()),
            "date": pa.array(["2026-01-01"] * len(uids)),
            "text": pa.array([f"{HOSTILE} text {n} of {key}" for n in range(len(uids))]),
            "meta": pa.array(['{"mime": "text/html"}'] * len(uids)),
            "language": pa.array(["en"] * len(uids)),
        }
    )


def verdicts(uids: list[int], dropped: dict[int, tuple[str, str, str]]) -> pa.Table:
    rows = [dropped.get(uid, (None, None, None)) for uid in uids]
    columns = {
        name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(("stage", "reason", "detail"))
    }
    return pa.table(
        {"uid": pa.array(uids, pa.uint64()), "kept": pa.array([uid not in dropped for uid in uids])} | columns
    )


def rejects(out: Path) -> None:
    gone = {uid: (uids_key, n) for uids_key, uids in UIDS.items() for n, uid in enumerate(uids)}
    rows: list[tuple[int | None, str | None, str, str, str, str | None, str | None]] = [
        (None, SCRIPT_URL, "crawl", "crawl", "not_found", "404", None),
        (None, None, "crawl", "crawl", "damaged", f"{CRAWL[1]}: record at byte 5 is damaged", None),
        (
            QUARANTINED,
            "https://example.org/bomb",
            "crawl",
            "extract",
            "quarantined",
            "RecursionError: too deep",
            "<div>" * 300,
        ),
    ]
    rows += [(uid, WEB_URL, "crawl", "language", OTHER, "de 0.99", f"{HOSTILE} reject {gone[uid]}") for uid in LANGUAGE]
    rows += [(uid, WEB_URL, "crawl", "exact_dedup", "exact_duplicate", f"same as {FIRST:016x}", "same") for uid in SAME]
    rows += [(SHORT, None, "books", "gopher_quality", "too_few_words", "7 words", "short")]
    schema = pa.schema(
        [
            ("uid", pa.uint64()),
            *((name, pa.string()) for name in ("url", "source", "stage", "reason", "detail", "text")),
        ]
    )
    for stage in {row[3] for row in rows}:
        for part, row in enumerate(row for row in rows if row[3] == stage):
            put(
                out / f"stages/{stage}/rejects/part-{part}.parquet",
                pa.Table.from_pylist([dict(zip(schema.names, row, strict=True))], schema=schema),
            )


def put(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=2)


def save(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
