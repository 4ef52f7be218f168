"""What a run is compared by: its outputs, counts, rejects, signals and verdicts, as values that name no place on disk."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import gristmill

CHECKOUT = Path(__file__).resolve().parents[3]
SHORT = 160  # characters of a value that is kept as it is; of longer ones the digest

# Figures of time, memory and money, versions, and names of what lies below OUT, wherever they stand in a JSON value.
LEFT_OUT = {
    "started", "finished", "seconds", "joules", "cost", "requests", "peak_memory", "slowest", "versions", "gristmill",
    "machine", "workers", "disk_bytes", "bytes_written", "bytes_in", "bytes_out", "fingerprint", "checksum", "file",
    "segment", "segments", "part", "costs", "totals",
}  # fmt: skip
FINGERPRINTS = re.compile(r"\b[0-9a-f]{32,64}\b")
FILE_HASHES = re.compile(r"-[0-9a-f]{12}(?=\.|$)|\.[0-9a-f]{8}(?=\.|$)|-[0-9a-f]{16}(?=\.)")
MOMENTS = re.compile(r"20(?:2[6-9]|[3-9]\d)-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?)?")
TIMES = re.compile(r"\b\d+(?:\.\d+)? (?:s|ms|min|seconds?|minutes?)\b")
PORTS = re.compile(r"(127\.0\.0\.1|localhost):\d+")
# Which code imports a loader: what a card of shards shows, and no result.
IMPORTS = re.compile(rb"(?m:(?:^from .* import .*\n)+)")
NO_SIGNALS = {"uid", "source", "id", "url", "date", "text", "meta", "html", "charset", "reservations"}


def plain(value: Any, folder: Path | str = "") -> Any:
    """A value as JSON has it, without what may differ from one version of the engine to the next."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner, folder) for key, inner in value.items() if key not in LEFT_OUT}
    if isinstance(value, list | tuple | set | frozenset):
        inner = [plain(each, folder) for each in value]
        return sorted(inner, key=as_json) if isinstance(value, set | frozenset) else inner
    if isinstance(value, bytes):
        return f"bytes {hashlib.sha256(value).hexdigest()[:16]}"
    if isinstance(value, str):
        return words(value, folder)
    if value is None or isinstance(value, bool | int | float):
        return value
    if hasattr(value, "__dataclass_fields__"):
        return plain({name: getattr(value, name) for name in value.__dataclass_fields__}, folder)
    return words(str(value), folder)


def words(text: str, folder: Path | str = "") -> str:
    """A text without places, fingerprints and times."""
    text = text.replace(str(folder), "HERE") if str(folder) else text
    text = text.replace(str(CHECKOUT), "CHECKOUT")
    text = PORTS.sub(r"\1:PORT", text)
    text = MOMENTS.sub("MOMENT", FINGERPRINTS.sub("*", text))
    return TIMES.sub("TIME", without_hashes(text))


def without_hashes(name: str) -> str:
    """Names of files hold hashes of code and of what was read."""
    return FILE_HASHES.sub("", name)


def as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def digest(value: Any) -> str:
    """The value itself where it is short."""
    text = as_json(value)
    if len(text) <= SHORT:
        return text
    many = f"{len(value):,} of them, " if isinstance(value, list | dict) else ""
    return f"{many}{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def of_run(out: Path, here: Path) -> Iterator[tuple[str, Any]]:
    """All that is compared of a run: a name and a value each."""
    run = gristmill.open_run(out)
    record: Mapping[str, Any] = run.record
    for name in ("status", "error", "inputs", "alarms"):
        yield f"run.json/{name}", plain(record[name], here)
    for stage in record["stages"]:
        yield f"counts/{stage['name']}", plain({**stage, "adds": None, "about": None}, here)
        yield f"inspect/{stage['name']}", plain(run.stage(stage["name"]).data, here)
        gone = [plain(row, here) for row in run.dropped(stage["name"])]
        if gone:
            yield f"rejects/{stage['name']}", sorted(gone, key=as_json)
    yield from of_files(out, record, here)
    for column, values in stored_signals(out).items():
        yield f"signals/{column}", values
    yield "verdicts", stored_verdicts(out)
    yield "report", headings(out / "report.html")


def of_files(out: Path, record: Mapping[str, Any], here: Path) -> Iterator[tuple[str, Any]]:
    """What a user takes away: files of sinks and of shards by their bytes, those of sinks by their rows too."""
    sinks = [stage["name"] for stage in record["stages"] if stage["kind"] == "sink"]
    for top in [*sinks, "shards"]:
        found: dict[str, list[str]] = defaultdict(list)
        for path in sorted(path for path in (out / top).rglob("*") if path.is_file()):
            name = without_hashes(str(path.relative_to(out)))
            found[name].append(hashlib.sha256(stable(path, here)).hexdigest()[:16])
        for name, prints in found.items():
            yield f"files/{name}", sorted(prints)
    for sink in sinks:
        rows = [plain(row, here) for path in sorted((out / sink).rglob("*.parquet")) for row in rows_of(path)]
        yield f"rows/{sink}", sorted(rows, key=as_json)


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def stable(path: Path, here: Path) -> bytes:
    """A file's bytes; of a text without fingerprints and times."""
    raw = path.read_bytes()
    if path.suffix not in (".json", ".jsonl", ".md", ".txt", ".yaml", ".html"):
        return raw
    return words(IMPORTS.sub(b"*", raw).decode(), here).encode()


def headings(page: Path) -> list[str]:
    """What a report has chapters and tables of, but for time and memory."""
    found = re.findall(r"<(?:h[1-4]|caption)[^>]*>(.*?)</(?:h[1-4]|caption)>", page.read_text(), re.S)
    texts = [words(unescape(re.sub(r"<[^>]*>", "", each)).strip()) for each in found]
    return [text.replace(" of that segment", "") for text in texts if not re.search("[Tt]ime|memory|longest", text)]


# --- To be adapted to the layout of OUT: nothing else knows it --------------------------------------------------------


def stored_signals(out: Path) -> dict[str, dict[str, list[str]]]:
    """Of each signal that is stored, by uid: its values. A signal that is measured again after a text was rewritten may
    have several, of which each counts once; nulls do not count."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted(out.glob("partitions/*/*.signals.parquet")) + sorted(
        out.glob("partitions/*/*.documents.parquet")
    ):
        table = pq.read_table(path)
        for name in table.column_names:
            if name in NO_SIGNALS or name.startswith("@"):
                continue
            for uid, value in zip(table["uid"].to_pylist(), table[name].to_pylist(), strict=True):
                if value is not None:
                    found[name][f"{uid:016x}"].add(as_json(plain(value)))
    return {name: {uid: sorted(one) for uid, one in sorted(by.items())} for name, by in sorted(found.items())}


def stored_verdicts(out: Path) -> list[str]:
    """Of each document that goes: uid, stage, reason and detail; and of each rule that a document fails, which of its
    conditions hold."""
    found: set[str] = set()
    for path in sorted(out.glob("partitions/*/*.verdicts.parquet")):
        for row in pq.read_table(path).to_pylist():
            uid = f"{row['uid']:016x}"
            if row["reason"] is not None:
                found.add(as_json([uid, *plain([row["stage"], row["reason"], row["detail"]])]))
            found |= {as_json([uid, name, mask]) for name, mask in row.items() if name.startswith("failed:") and mask}
    return sorted(found)
