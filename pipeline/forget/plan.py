"""The plan of a takedown: what a list means in a run, found without changing anything.

It is kept until all is done, and holds what cannot be found again once files have changed: which rows of which version
of a file are removed, and JSON files as they will be. It holds no text of a document that is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.forget import outside
from gristmill.pipeline.forget.receipt import out_of_reach, place_of
from gristmill.pipeline.forget.request import Request
from gristmill.pipeline.forget.search import (
    Edit,
    Found,
    Search,
    copies_listed,
    files_of,
    hexed,
    key_of_part,
    rows_in_index,
    string_columns,
)
from gristmill.pipeline.forget.texts import TextSearch
from gristmill.pipeline.look.exports import Export, exports_of
from gristmill.pipeline.shuffle.saved_index import saved_by
from gristmill.pipeline.store.forgotten import Forgotten, read_list
from gristmill.pipeline.store.journal import Journal, StageEnded, TaskDone
from gristmill.pipeline.store.records import Partition, PhaseResult, Result, VerdictsResult
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store, hash_of_content, json_bytes
from gristmill.shards.forget import held_in_set
from gristmill.stages.extract.choices import other_uids

FOLDER = "forgotten"
MASKED = "Documents in which `personal_data` has masked what was asked for are not found there"
AS_STORED = (
    "the inputs: texts and addresses were looked for in what the run stores, as its stages left it; readers leave out"
    " what they find in the inputs once they read them again"
)
SINCE = "documents were forgotten since this run"
REMOVED = (
    "documents between stages that an earlier takedown removed: what only they hold is found once the recipe was run"
    " again, whose readers follow this list"
)
Note = Callable[[str], None]


class Plan(TypedDict):
    """`forgotten/work.json`."""

    asked: str  # a hash of the list and the options, for the same command
    number: int  # of the receipt
    uids: list[str]
    forgotten: dict[str, list[str]]  # the run's list as it will be
    tables: dict[str, Edit]
    lines: dict[str, Edit]  # by path; an absolute one lies outside the run's folder
    json: dict[str, Any]  # files that are written as they are here
    remove: list[str]
    tasks: list[str]  # of the journal, to be done again
    sets: list[str]
    indexes: list[str]  # folders, below the run's or absolute
    exports: list[Export]
    outside: dict[str, outside.OutsideEdit]  # tables of `Recipe` in OUT-tables, by absolute path
    cached: list[str]  # folders of the cache of crawls
    receipt: dict[str, Any]


def finished_run(store: Store) -> RunRecord:
    """Only a run that came to its end is a whole."""
    if not store.local:
        raise RecipeError(
            f"{store.address}: `forget` works on local folders; copy the run here, and back when it is done"
        )
    record: RunRecord | None = store.read_json("run.json")
    if record is None:
        sample = store.sample
        hint = f"; {sample.address} has one, of a part of the inputs" if sample.exists("run.json") else ""
        raise RecipeError(f"{store.address}: no run is here (there is no run.json){hint}")
    if record.get("status") != "done":
        raise RecipeError(f"{store.address}: this run has not come to its end; run its recipe again first")
    return record


def index_at(store: Store, folder: str) -> Store:
    return Store(folder if folder.startswith("/") else store.at(folder))


def is_done(store: Store, plan: Plan) -> bool:
    """Is there nothing to do: the run has none of it, and its list names it already?"""
    before = read_list(store)
    known = before is not None and before.plain() == json_bytes(plan["forgotten"])
    return known and not (plan["uids"] or plan["tables"] or plan["lines"] or plan["json"] or plan["outside"])


class Planner:
    """A list compared with a run."""

    def __init__(self, store: Store, request: Request, with_copies: bool, skip_inputs: bool, note: Note) -> None:
        self.store, self.request, self.with_copies = store, request, with_copies
        self.skip_inputs, self.note = skip_inputs, note
        self.record = finished_run(store)
        self.journal = Journal(store, looks_only=True)
        self.exports = exports_of(store)
        self.files = files_of(store, [export["below"] for export in self.exports if export["below"]])
        dedup = {entry["name"] for entry in self.record["stages"] if entry["kind"] == "global"}
        self.search = Search(store, self.files, dedup)
        self.wanted = request.forgotten
        self.where: dict[str, dict[str, int]] = {}  # by kind of place, files and rows
        self.unread: list[str] = []  # what was not looked at, and why
        self.uids, self.may_return = np.zeros(0, np.uint64), np.zeros(0, np.uint64)

    def plan(self) -> Plan:
        store, copies = self.store, self.choose()
        found = self.search.find(self.uids, self.wanted)
        keys = {document.key for document in found.documents.values() if document.key is not None}
        intermediate = self.intermediates(keys, found)
        tables = self.tables(found, intermediate)
        texts = TextSearch(self.search, self.record, self.journal, self.wanted, self.uids, found.names)
        tables |= self.noted_edits(texts.tables())
        lines, cleaned = self.lines_and_reports(texts)
        held = {folder: held_in_set(store.at(folder), self.uids) for folder in self.files.sets}
        for of in held.values():
            self.noted("token shards (rows of training)", of.counts["rows"], bool(of.counts))
        indexes = sorted({*self.files.indexes, *saved_by(store)})
        for folder in indexes:
            rows = rows_in_index(index_at(store, folder), self.uids)
            self.noted("saved indexes", rows, bool(rows))
        whole = self.files.whole if len(self.uids) else []
        self.noted("texts between rounds, search indexes and public summaries", 0, len(whole))
        forgotten = self.new_list(sorted(found.documents))
        emptied, cached = self.outside_tables(forgotten), self.cached(keys)
        plan: Plan = {
            "asked": "",
            "number": 1 + sum(path.endswith(".json") and "/receipt-" in path for path in store.files(FOLDER)),
            "uids": [hexed(uid) for uid in sorted(found.documents)],
            "forgotten": json.loads(forgotten.plain()),
            "tables": tables,
            "lines": lines,
            "json": cleaned,
            "remove": [*intermediate, *whole],
            "tasks": self.tasks(keys, texts),
            "sets": [folder for folder, of in held.items() if of.counts],
            "indexes": indexes,
            "exports": [],
            "outside": emptied,
            "cached": cached,
            "receipt": {},
        }
        plan["exports"] = [export for export in self.exports if is_changed(export["set"], plan)]
        tokens = {folder: of.counts["tokens"] for folder, of in held.items()}
        plan["receipt"] = self.receipt(plan, found, copies, tokens, len(keys))
        return plan

    def receipt(
        self, plan: Plan, found: Found, copies: list[Any], tokens: dict[str, int], parts: int
    ) -> dict[str, Any]:
        sample = self.store.sample
        mute = [p for p in self.search.strange_tables() if not string_columns(self.search.schema(p))]
        return {
            "asked": dict(sorted(self.request.lines.items())),
            "documents": len(found.documents),
            "tokens": tokens,
            "found": {place: of for place, of in sorted(self.where.items()) if of["rows"] or of["files"]},
            "sample": sample.address if sample.exists("run.json") else None,
            "copies": copies,
            "with_copies": self.with_copies,
            "may_return": [hexed(uid) for uid in self.may_return.tolist()],
            "parts_made_again": parts,
            "exports": [export["destination"] for export in plan["exports"]],
            "not_looked_at": self.unread,
            "not_reached": out_of_reach(self.store, self.files, self.record, mute),
            "each": [
                {"uid": hexed(uid), "source": document.source, "dropped_by": document.stage}
                for uid, document in sorted(found.documents.items())
            ],
        }

    def noted(self, place: str, rows: int, files: int = 1) -> None:
        before = self.where.get(place, {"files": 0, "rows": 0})
        self.where[place] = {"files": before["files"] + files, "rows": before["rows"] + rows}

    # --- documents ------------------------------------------------------------------------------------------------

    def choose(self) -> list[Any]:
        """Choose the documents that are forgotten; copies as the receipt has them."""
        search = self.search
        alarms: Sequence[str] = self.record.get("alarms", [])
        self.unread += [REMOVED] if any(SINCE in alarm for alarm in alarms) else []
        meant = search.with_rephrased(np.union1d(search.meant(self.wanted), self.in_inputs()))
        self.uids = present(search.find(meant))
        copies = search.copies_of(self.uids) if len(self.uids) else {}
        self.may_return = search.dropped_for(self.uids)
        others = np.fromiter(copies, np.uint64, len(copies))
        fates = search.find(others).documents if len(copies) else {}
        returning = set() if self.with_copies else set(self.may_return.tolist())
        if self.with_copies:
            taken = np.union1d(self.uids, np.union1d(others, self.may_return))
            self.uids = present(search.find(search.with_rephrased(np.union1d(taken, search.dropped_for(taken)))))
            self.may_return = self.may_return[:0]
        return list(copies_listed(copies, fates, returning, self.with_copies))

    def in_inputs(self) -> Array:
        """Documents that have what is asked for in the inputs, where the run may have masked it."""
        if not outside.is_masked(self.record, self.wanted):
            by_content = any(len(self.wanted.keys[kind]) for kind in ("email", "sha256", "xxh3"))
            self.unread += [AS_STORED] if by_content else []
            return np.zeros(0, np.uint64)
        if self.skip_inputs:
            self.unread += [f"the inputs, as --skip-inputs says. {MASKED}"]
            return np.zeros(0, np.uint64)
        inputs = outside.InputSearch(self.store, self.record, self.wanted)
        inputs.run(self.journal, self.note)
        self.unread += [f"{place}. {MASKED}" for place in inputs.unread]
        return np.union1d(inputs.found, other_uids(inputs.found))

    def new_list(self, uids: list[int]) -> Forgotten:
        named = self.wanted.merged(Forgotten.of({"uid": uids}))
        before = read_list(self.store)
        return named if before is None else before.merged(named)

    # --- tables of the run ------------------------------------------------------------------------------------------

    def intermediates(self, keys: set[str], found: Found) -> list[str]:
        """Files between stages that are removed: of parts that had one of the documents, with the data for thresholds
        of their legs."""
        paths = [path for path in self.files.tables if path.startswith("legs/") and key_of_part(path) in keys]
        for path in paths:
            self.noted("documents, signals and verdicts between stages", len(found.rows.get(path, ())))
        legs = {path.split("/")[1] for path in paths}
        rules = [path for leg in sorted(legs) if self.store.exists(path := f"legs/{leg}/rules.json")]
        surveys = [path for path in self.store.files("legs") if path.endswith("/survey.json")] if legs else []
        return [*paths, *rules, *sorted(surveys)]

    def tables(self, found: Found, removed: list[str]) -> dict[str, Edit]:
        """Tables to rewrite."""
        tables: dict[str, Edit] = {}
        known = self.journal.files
        for path in sorted({*found.rows, *found.hidden} - {*removed}):
            checksum = hash_of_content(self.store.at(path))
            if path in known and known[path].checksum != checksum:
                raise RunFailed(
                    f"{self.store.at(path)}: its content is not what was written; run the recipe again, which mends it,"
                    " and then forget"
                )
            tables[path] = {"checksum": checksum, "goes": found.rows.get(path, [])}
            if path in found.hidden:
                tables[path]["hidden"] = found.hidden[path]
        return self.noted_edits(tables)

    def noted_edits(self, tables: dict[str, Edit]) -> dict[str, Edit]:
        for path, edit in tables.items():
            self.noted(place_of(path), len(edit["goes"]) + len(edit.get("hidden", ())))
        return tables

    def lines_and_reports(self, texts: TextSearch) -> tuple[dict[str, Edit], dict[str, Any]]:
        """Lines to remove, and JSON files as they will be. The record says that its counts are of before."""
        lines, reports = texts.lines(), texts.cleaned(texts.reports)
        for edit in lines.values():
            self.noted("lines of logs, caches and text files", len(edit["goes"]))
        self.noted("reports (samples and examples)", 0, len(reports))
        whole = [path for path in lines if path.endswith(".json")]
        cleaned = reports | {path: texts.scrubber.clean(self.store.read_json(path)) for path in whole}
        if len(self.uids):
            record = cleaned.get("run.json", self.record)
            alarm = f"{len(self.uids):,} {SINCE}; its counts are of before"
            cleaned["run.json"] = {**record, "alarms": [*record.get("alarms", []), alarm]}
        return {path: edit for path, edit in lines.items() if path not in whole}, cleaned

    def tasks(self, keys: set[str], texts: TextSearch) -> list[str]:
        """Tasks and global stages whose parts had one of the documents, or whose result names one or quotes it."""
        work = []
        for entry in self.journal.entries_of_work():
            if isinstance(entry, TaskDone):
                parts = parts_left_by(entry.result)
                quotes = texts.quotes(entry.result)
            else:
                parts, quotes = list(entry.parts) if isinstance(entry, StageEnded) else [], False
            if quotes or any(part.key in keys for part in parts):
                work.append(entry.task)
        return work

    # --- outside the run's folder -------------------------------------------------------------------------------------

    def outside_tables(self, forgotten: Forgotten) -> dict[str, outside.OutsideEdit]:
        """Tables in OUT-tables that hold forgotten documents, and those that no source reads any more."""
        tables: dict[str, outside.OutsideEdit] = {}
        for path, source in outside.sources_of_tables(self.store, self.record).items():
            rows = None if source is None else outside.rows_of_table(path, source, path.name, forgotten)
            if rows is None or rows:
                tables[str(path)] = {"checksum": hash_of_content(str(path)), "rows": rows}
                self.noted(f"tables in {path.parent}", len(rows or ()))
        return tables

    def cached(self, keys: set[str]) -> list[str]:
        """Folders of the cache of crawls with files that forgotten documents came from."""
        read: dict[str, set[str]] = {}
        for key, spans in outside.parts_read(self.journal):
            for span in spans if key in keys else ():
                read.setdefault(span.source, set()).add(span.path)
        folders = outside.cached(self.record, read)
        self.noted("files of crawls in the cache of `cc`", 0, len(folders))
        return folders


def present(found: Found) -> Array:
    """Those that the run has anything of."""
    return np.array(sorted(found.documents), np.uint64)


def is_changed(folder: str, plan: Plan) -> bool:
    """Does a folder of shards or documents lose any?"""
    tables = [path for path, edit in plan["tables"].items() if edit["goes"]]
    return folder in plan["sets"] or any(path.startswith(f"{folder}/") for path in tables)


def parts_left_by(result: Result) -> list[Partition]:
    """The partitions that a task left."""
    if isinstance(result, PhaseResult):
        return [result.part]
    return list(result.parts) if isinstance(result, VerdictsResult) else []
