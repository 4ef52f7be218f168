"""The numbers of a run from four places: report.html as a reader sees it, run.json, `gristmill inspect --json`, and a
recount from Parquet.

Each place gives facts by a name: (stage, "in" | "kept" | "dropped" | "quarantined"), (stage, "reason", reason),
  ("left", stage), ("gone", stage),
("source", source, "records" | "kept"), (stage, source, "kept"). What two places both know they must know alike, to the
last document.
"""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Facts = dict[tuple[str, ...], int]


def of_record(record: dict[str, Any]) -> Facts:
    """run.json; the answer of `inspect --json` has the same shape."""
    facts: Facts = {}
    alive: dict[str, int] = {}
    for stage in record["stages"]:
        count = stage.get("count", stage)
        facts |= numbers(
            stage["name"], count["docs_in"], count["kept"], sum(count["dropped"].values()), count["quarantined"]
        )
        facts |= {(stage["name"], "reason", reason): n for reason, n in count["dropped"].items()}
        facts |= {(stage["name"], source, "kept"): its["kept"] for source, its in stage["sources"].items()}
        alive |= {source: its["kept"] for source, its in stage["sources"].items()}
        if stage["kind"] == "read":
            facts["source", stage["name"], "records"] = count["docs_in"]
        else:
            facts["left", stage["name"]] = sum(alive.values())
    facts |= {
        ("text", source): its["text_bytes"]
        for stage in record["stages"]
        for source, its in stage["sources"].items()
        if its["kept"]
    }
    return facts | {("source", source, "kept"): kept for source, kept in alive.items()}


def of_funnel(seen: dict[str, Any]) -> Facts:
    """What `inspect --json` adds to it: the funnel by stage and source."""
    facts: Facts = {}
    alive: dict[str, int] = {}
    readers = {stage["name"] for stage in seen["stages"] if stage["kind"] == "read"}
    for stage in dict.fromkeys(level["stage"] for level in seen["funnel"]):
        levels = [level for level in seen["funnel"] if level["stage"] == stage]
        facts |= {(stage, level["source"], "kept"): level["left"] for level in levels}
        alive |= {level["source"]: level["left"] for level in levels}
        facts |= {("text", level["source"]): level["text_bytes"] for level in levels if level["left"]}
        if stage not in readers:
            facts["left", stage], facts["gone", stage] = sum(alive.values()), sum(level["gone"] for level in levels)
    assert seen["totals"]["text_bytes"] == sum(n for key, n in facts.items() if key[0] == "text")
    assert seen["totals"]["kept"] == sum(alive.values())
    return facts | {("source", source, "kept"): kept for source, kept in alive.items()}


def numbers(stage: str, docs_in: int, kept: int, dropped: int, quarantined: int) -> Facts:
    return {
        (stage, "in"): docs_in,
        (stage, "kept"): kept,
        (stage, "dropped"): dropped,
        (stage, "quarantined"): quarantined,
    }


def of_parquet(out: Path, record: dict[str, Any]) -> Facts:
    """Every file of documents and of rejects read, and nothing of run.json believed but the order of stages and which
    sources pass them."""
    gone: Counter[tuple[str, str, str]] = Counter()  # stage, source, reason; of documents
    sources: dict[int, str] = {}
    rejected: set[int] = set()
    for path in out.glob("stages/*/rejects/*.parquet"):
        for row in pq.read_table(path, columns=["uid", "source", "stage", "reason"]).to_pylist():
            if row["uid"] is not None:
                assert row["uid"] not in rejected and row["stage"] == path.parts[-3]
                rejected.add(row["uid"])
                sources[row["uid"]] = row["source"]
                gone[row["stage"], row["source"], row["reason"]] += 1
    written: set[int] = set()
    text: Counter[str] = Counter()  # bytes that were written
    for path in out.glob("partitions/*/*.documents.parquet"):
        table = pq.read_table(path, columns=["uid", "source"])
        sources |= dict(zip(table["uid"].to_pylist(), table["source"].to_pylist(), strict=True))
    sinks = [stage["name"] for stage in record["stages"] if stage["kind"] == "sink"]
    for path in (path for sink in sinks for path in out.glob(f"{sink}/*.parquet")):
        table = pq.read_table(path, columns=["uid", "text"])
        written |= set(table["uid"].to_pylist())
        sources |= {uid: sources.get(uid) or only_source(record) for uid in table["uid"].to_pylist()}
        for uid, written_text in zip(table["uid"].to_pylist(), table["text"].to_pylist(), strict=True):
            text[sources[uid]] += len(written_text.encode())
    alive = Counter({stage["name"]: 0 for stage in record["stages"] if stage["kind"] == "read"})
    alive.update(source for uid, source in sources.items() if uid not in rejected)
    assert written == {uid for uid in sources if uid not in rejected} and written
    facts: Facts = {("source", source, "kept"): kept for source, kept in alive.items()}
    facts |= {("text", source): size for source, size in text.items()}
    for stage in reversed(record["stages"]):
        name, passing = stage["name"], list(stage["sources"])
        if stage["kind"] == "read":
            facts[name, "kept"] = facts[name, name, "kept"] = alive[name]
            continue
        mine = {(source, reason): n for (at, source, reason), n in gone.items() if at == name}
        assert {source for source, _ in mine} <= set(passing)
        facts["left", name], facts["gone", name] = sum(alive.values()), sum(mine.values())
        facts |= {(name, source, "kept"): alive[source] for source in passing}
        broke = sum(n for (_, reason), n in mine.items() if reason == "quarantined")
        kept = sum(alive[source] for source in passing)
        for (source, _), n in mine.items():
            alive[source] += n
        facts |= numbers(name, sum(alive[source] for source in passing), kept, sum(mine.values()) - broke, broke)
        reasons: Counter[str] = Counter()
        for (_, reason), n in mine.items():
            reasons[reason] += n
        facts |= {(name, "reason", reason): n for reason, n in reasons.items() if reason != "quarantined"}
    return facts


def only_source(record: dict[str, Any]) -> str:
    (source,) = (stage["name"] for stage in record["stages"] if stage["kind"] == "read")
    return str(source)


class Tables(HTMLParser):
    """Tables of a page as lists of cells, each with the section or stage that it stands in and its caption."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.stage = ""
        self.tables: list[tuple[str, str, list[list[str]]]] = []
        self.text: list[str] | None = None
        self.caption = False
        self.summary = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        its = dict(attrs)
        if tag == "section":
            self.sections.append(its.get("aria-labelledby") or "")
        elif tag == "details" and its.get("class") == "stage":
            self.stage, self.summary = "", True
        elif tag == "table":
            self.tables.append((self.stage or self.sections[-1], "", []))
        elif tag == "tr":
            self.tables[-1][2].append([])
        elif tag in ("td", "th", "caption") or (tag == "h3" and self.summary):
            self.text = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self.sections.pop()
            self.stage = ""
        text = " ".join("".join(self.text or []).split())
        if tag in ("td", "th") and self.text is not None:
            self.tables[-1][2][-1].append(text)
        elif tag == "caption":
            where, _, rows = self.tables[-1]
            self.tables[-1] = (where, text, rows)
        elif tag == "h3" and self.summary:
            self.stage, self.summary = text, False
        if tag in ("td", "th", "caption", "h3"):
            self.text = None

    def handle_data(self, data: str) -> None:
        if self.text is not None:
            self.text.append(data)

    def of(self, where: str, head: str) -> list[dict[str, str]]:
        """Rows by column name, of the one table that stands there and has such a first column."""
        (rows,) = (rows for at, _, rows in self.tables if at == where and rows[0][0] == head and len(rows[0]) > 3)
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def of_page(html: str) -> Facts:
    """report.html, from the tables that a reader sees."""
    page, facts = Tables(html), Facts()
    for row in page.of("table", "stage"):
        facts |= numbers(row["stage"], *(count(row[name]) for name in ("in", "kept", "dropped", "quarantined")))
    for row in page.of("funnel", "after"):
        if row["after"] != "read":
            facts["left", row["after"]], facts["gone", row["after"]] = count(row["left"]), count(row["gone here"])
    for row in page.of("sources", "source"):
        facts["source", row["source"], "records"], facts["source", row["source"], "kept"] = (
            count(row["records"]),
            count(row["kept"]),
        )
    for where, caption, rows in page.tables:
        if caption.startswith("Dropped, by first reason"):
            documents = rows[0].index("documents")
            facts |= {
                (where, "reason", row[0]): count(row[documents])
                for row in rows[1:]
                if row[0] not in ("quarantined", "damaged")
            }
    return facts


def count(cell: str) -> int:
    return abs(int(cell.replace(",", "").replace("−", "-")))


def disagreements(out: Path, inspected: dict[str, Any]) -> list[str]:
    """Where two places say different numbers, and facts that a place leaves out; none where all is well."""
    record = json.loads((out / "run.json").read_text())
    places = {
        "run.json": of_record(record),
        "inspect": of_record(inspected) | of_funnel(inspected),
        "report.html": of_page((out / "report.html").read_text("utf-8")),
        "Parquet": of_parquet(out, record),
    }
    readers = {stage["name"] for stage in record["stages"] if stage["kind"] == "read"}
    wanted = {
        key
        for key in places["run.json"]
        if key[1] in ("in", "kept", "dropped", "quarantined", "reason") or key[0] in ("left", "source", "text")
    }
    found = []
    for key in sorted(set().union(*places.values()), key=str):
        said = {name: facts[key] for name, facts in places.items() if key in facts}
        if len(set(said.values())) > 1:
            found.append(f"{key}: {said}")
        unknown = set(places) - said.keys() - ({"Parquet"} if key[0] in readers or key[-1] == "records" else set())
        unknown -= {"report.html"} if key[0] == "text" else set()  # which rounds it to kilobytes
        if key in wanted and unknown:
            found.append(f"{key}: not in {', '.join(sorted(unknown))}")
    return found
