"""The account of a run without some documents: counts of stages, parts, and entries of the journal.

A reader counts a forgotten document as left out; stages after it never saw it. Results stay results of the tasks that
made them: a file without the documents is known by the checksum it had with them (`FileFacts.was`), and a task that
reads inputs gets the fingerprint that it has with the new list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

from gristmill.pipeline.forget.plan import Document
from gristmill.pipeline.forget.scrub import Scrubber
from gristmill.pipeline.store.accounting import QUARANTINED
from gristmill.pipeline.store.forgotten import COPY, FORGOTTEN, with_list
from gristmill.pipeline.store.journal import DocumentsCounted, Journal, StageEnded, TaskDone, Work
from gristmill.pipeline.store.records import CountsBySource, CountsByStage, FileFacts, Part, Result
from gristmill.pipeline.store.run_records import Manifest, RunRecord
from gristmill.stages.edits.made import REPHRASE

NUMBERS = ("docs_in", "kept", "made", "quarantined", "text_bytes")
Changes = dict[str, Counter[str]]  # by stage; what was dropped by reason is under `dropped/REASON`


class Ledger:
    """What goes, by stage and by part."""

    def __init__(self, record: RunRecord, journal: Journal, documents: Mapping[str, Document], rows: Mapping[str, int]):
        self.journal = journal
        self.documents = documents
        self.rows = rows  # by path of a file, how many of its rows go
        self.comes: dict[str, FileFacts] = {}  # by part: the reader's rejects, where there were none
        self.order = {entry["name"]: place for place, entry in enumerate(record["stages"])}
        self.stages = record["stages"]
        self.by_part: dict[str, list[tuple[str, Document]]] = {}
        for uid, document in documents.items():
            if document["key"] is not None:
                self.by_part.setdefault(document["key"], []).append((uid, document))
        self.changes = {key: self.changes_of(document for _, document in some) for key, some in self.by_part.items()}
        self.by_source: dict[str, Changes] = {}
        for document in documents.values():
            if document["source"] is not None:
                merge(self.by_source.setdefault(document["source"], {}), self.changes_of([document]))
        self.ends = self._ends()
        self.documents_of = {
            (part["leg"], part["key"]): part["documents"]["path"]
            for result in journal.done.values()
            for part in [*([result["part"]] if "part" in result else []), *result.get("parts", [])]
            if part["documents"] is not None
        }

    def changes_of(self, documents: Iterable[Document]) -> Changes:
        changes: Changes = {}
        for document in documents:
            merge(changes, self.passage(document))
        return changes

    def passage(self, document: Document) -> Changes:
        """What one document was to each stage that it came to."""
        path = [entry for entry in self.stages if document["source"] in entry["sources"]]
        begins = 0
        if document["made"]:
            by = document.get("rephrased", False)
            makers = [i for i, entry in enumerate(path) if entry.get("made")]
            begins = next((i for i in makers if (path[i]["stage"] == REPHRASE) == by), 0)
        changes: Changes = {}
        for i, entry in enumerate(path[begins:], begins):
            change = changes.setdefault(entry["name"], Counter())
            dropped = document["stage"] == entry["name"]
            if i == 0:
                change[f"dropped/{COPY if document['copy'] else FORGOTTEN}"] += 1
            elif i == begins:
                change["made"] -= 1
            else:
                change["docs_in"] -= 1
            if dropped:
                reason = document["reason"]
                change["quarantined" if reason == QUARANTINED else f"dropped/{reason}"] -= 1
                break
            change["kept"] -= 1
            change["text_bytes"] -= document["bytes"]
        return changes

    def _ends(self) -> dict[str, int]:
        """The place of the last stage that decides which documents are in a file of verdicts, by folder and kind."""
        ends: dict[str, int] = dict(self.order)
        for result in self.journal.done.values():
            part = result.get("part")
            if part is None or "counts" not in result:
                continue
            last = max((self.order.get(name, -1) for name in result["counts"]), default=-1)
            for path in [facts["path"] for facts in result["files"].values()]:
                if path.startswith("legs/"):
                    ends[path] = last
        return ends

    def still_in(self, part: Part) -> list[Document]:
        """Of the documents that go those that are in a part, after the verdicts that lie beside it."""
        files = [part["documents"], *part["verdicts"]]
        last = -1
        for facts in files:
            if facts is not None:
                folder = facts["path"].split("/")[1]
                last = max(last, self.ends.get(facts["path"], self.ends.get(folder, -1)))
        rows = self.by_part.get(part["key"], [])
        return [
            document
            for _, document in rows
            if document["stage"] is None or self.order.get(document["stage"], len(self.order)) > last
        ]

    # --- plain data -------------------------------------------------------------------------------------------------

    def part(self, part: Part) -> Part:
        gone = self.still_in(part)
        in_file = 0 if part["documents"] is None else self.rows.get(part["documents"]["path"], 0)
        return {
            **part,
            "rows": max(0, part["rows"] - in_file),
            "kept": max(0, part["kept"] - len(gone)),
            "text_bytes": max(0, part["text_bytes"] - sum(document["bytes"] for document in gone)),
        }

    def manifest(self, manifest: Manifest) -> Manifest:
        """The manifest of a leg or a global stage."""
        last = max((self.order.get(name, -1) for name in manifest["stages"]), default=-1)
        parts = []
        for part in manifest["parts"]:
            in_file = self.rows.get(self.documents_of.get((part.get("from", manifest["leg"]), part["key"]), ""), 0)
            gone = sum(
                document["stage"] is None or self.order.get(document["stage"], len(self.order)) > last
                for _, document in self.by_part.get(part["key"], [])
            )
            parts.append({**part, "rows": max(0, part["rows"] - in_file), "kept": max(0, part["kept"] - gone)})
        return cast(Manifest, {**manifest, "rows": sum(part["rows"] for part in parts), "parts": parts})

    def counts(self, counts: Mapping[str, Any], keys: Iterable[str]) -> CountsByStage:
        """Counts by stage of some parts."""
        changes: Changes = {}
        for key in keys:
            merge(changes, self.changes.get(key, {}))
        return cast(CountsByStage, {name: changed(count, changes.get(name)) for name, count in counts.items()})

    def of_source(self, stage: str, source: str) -> Counter[str]:
        return self.by_source.get(source, {}).get(stage, Counter())

    def entry(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """A stage of run.json or of its report."""
        sources = entry.get("sources", {})
        total: Counter[str] = Counter()
        for source in sources:
            add(total, self.of_source(entry["name"], source))
        return {
            **changed(entry, total),
            "sources": {source: self.count_of(entry["name"], source, count) for source, count in sources.items()},
        }

    def count_of(self, stage: str, source: str, count: Mapping[str, Any]) -> dict[str, Any]:
        return changed(count, self.of_source(stage, source))

    def entries(self, scrubber: Scrubber, checksum: str) -> Iterable[Work]:
        """The journal's entries of tasks, with the facts of files as they were. Rows between rounds are gone, and so is
        what the journal knows of those rounds."""
        for entry in self.journal.entries_of_work():
            match entry:
                case TaskDone(task, result):
                    paths = {facts["path"] for facts in result.get("files", {}).values()}
                    if not any(path.startswith("flow/") for path in paths):
                        yield from self.result_entries(task, self.result(result, scrubber), checksum)
                case StageEnded(task, parts, files):
                    yield StageEnded(task, [self.part(part) for part in parts], files, {})
                case _:
                    yield entry

    def result_entries(self, task: str, result: Result, checksum: str) -> Iterable[Work]:
        if not reads_inputs(result):
            yield TaskDone(task, result)
            return
        plain = result.get("read_as", task)
        new = with_list(plain, checksum)
        yield TaskDone(new, {**result, "read_as": plain})
        if (given := self.journal.documents_of(task)) is not None:
            went = sum(not document["made"] for _, document in self.by_part.get(result["part"]["key"], []))
            yield DocumentsCounted(new, max(0, given - went))

    def result(self, result: Result, scrubber: Scrubber) -> Result:
        new: Result = {**result}
        if "part" in result:
            new["part"] = self.part(result["part"])
            if "counts" in result:
                new["counts"] = self.counts(result["counts"], [result["part"]["key"]])
        if "parts" in result:
            new["parts"] = [self.part(part) for part in result["parts"]]
            if "counts" in result:
                new["counts"] = {
                    source: self.counts(counts, [part["key"] for part in result["parts"] if part["source"] == source])
                    for source, counts in cast(CountsBySource, result["counts"]).items()
                }
        if reads_inputs(result) and result["part"]["key"] in self.comes:
            new["files"] = {
                **result["files"],
                f"rejects/{result['part']['source']}": self.comes[result["part"]["key"]],
            }
        for name in ("log", "slowest", "pages"):
            if name in result:
                new[name] = scrubber.clean(result[name])  # type: ignore[literal-required]
        return new


def reads_inputs(result: Result) -> bool:
    """Is this what a leg made of stretches of input files?"""
    part = result.get("part")
    return part is not None and part["source"] in result.get("counts", {}) and "slowest" in result


def merge(changes: Changes, more: Changes) -> None:
    for stage, change in more.items():
        add(changes.setdefault(stage, Counter()), change)


def add(counter: Counter[str], more: Counter[str]) -> None:
    for name, number in more.items():
        counter[name] += number


def changed(count: Mapping[str, Any], change: Counter[str] | None) -> dict[str, Any]:
    """Counts of a stage, less what goes."""
    new = dict(count)
    for name, number in (change or {}).items():
        group, _, reason = name.partition("/")
        if group == "dropped":
            dropped = {**new.get("dropped", {})}
            dropped[reason] = max(0, dropped.get(reason, 0) + number)
            new["dropped"] = {name: times for name, times in sorted(dropped.items()) if times}
        elif name in new:
            new[name] = max(0, new[name] + number)
    return new


def with_facts(value: Any, facts_of: Mapping[str, FileFacts | None]) -> Any:
    """Plain data with the new facts of files in place of the old ones; a file that is gone is named no more."""
    if isinstance(value, dict):
        if is_gone(value, facts_of):
            return None
        if isinstance(value.get("path"), str) and "checksum" in value and value["path"] in facts_of:
            new: dict[str, Any] = {**(facts_of[value["path"]] or {})}
            if "was" in new:  # the first of all versions of the file
                new["was"] = value.get("was", {"checksum": value["checksum"], "rows": value.get("rows", 0)})
            return {**value, **new}
        return {
            name: with_facts(inner, facts_of)
            for name, inner in value.items()
            if (name == "documents" and "key" in value)  # of a part, which goes on without documents
            or not (is_gone(inner, facts_of) or is_gone({"path": inner, "checksum": ""}, facts_of))
        }
    if isinstance(value, list):
        return [with_facts(v, facts_of) for v in value if not is_gone(v, facts_of)]
    return value


def is_gone(value: Any, facts_of: Mapping[str, FileFacts | None]) -> bool:
    path = value.get("path") if isinstance(value, dict) and "checksum" in value else None
    return isinstance(path, str) and path in facts_of and facts_of[path] is None
