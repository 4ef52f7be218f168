"""The plan: what a list means in a run, found without changing anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.forget import edits, outside
from gristmill.pipeline.forget.answers import are_answers_to, askers_of, caches_elsewhere, keys_of
from gristmill.pipeline.forget.folder import batches, files_of, string_columns, text_columns, uids_of
from gristmill.pipeline.forget.indexes import index_at, rows_in_index, saved_by
from gristmill.pipeline.forget.inputs import InputSearch, is_masked
from gristmill.pipeline.forget.ledger import Ledger, reads_inputs
from gristmill.pipeline.forget.passages import Passages
from gristmill.pipeline.forget.plan import VERSION, OutsideEdit, Plan, TableEdit, Where, fates, noted
from gristmill.pipeline.forget.receipt import out_of_reach, place_of
from gristmill.pipeline.forget.request import Request
from gristmill.pipeline.forget.scrub import Scrubber, as_array, strings_in
from gristmill.pipeline.forget.search import REJECTS, Search, copies_listed, hexed
from gristmill.pipeline.json_types import JSONObject
from gristmill.pipeline.look.exports import exports_of
from gristmill.pipeline.run.outcomes import FOLDER as OUTCOMES
from gristmill.pipeline.store.forgotten import COPY, FORGOTTEN, Forgotten, read_list
from gristmill.pipeline.store.journal import JOURNAL, Journal, Work
from gristmill.pipeline.store.partitions import TOP
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store, hash_of_content
from gristmill.shards.forget import held_in_set
from gristmill.stages.extract.views import other_uids

MASKED = "Documents in which `personal_data` has masked what was asked for are not found there"
AS_STORED = (
    "the inputs: texts and addresses were looked for in what the run stores, as its stages left it; readers leave out what"
    " they find in the inputs once they read them again"
)
Note = Callable[[str], None]
REBUILT = ("/manifest.json", "/rules.json", "/survey.json", "/report.json")


class Prepared(NamedTuple):
    plan: Plan
    forgotten: Forgotten
    entries: Iterator[Work]  # of the journal, with the facts of files as they were
    is_done: bool  # there is nothing of it, and the run's list names it already


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


class Preparation:
    """A list held against a run."""

    def __init__(
        self, store: Store, request: Request, with_copies: bool, restore: bool, skip_inputs: bool, note: Note
    ) -> None:
        self.store, self.request, self.with_copies, self.restore = store, request, with_copies, restore
        self.skip_inputs, self.note = skip_inputs, note
        self.record = finished_run(store)
        self.journal = Journal(store, looks_only=True)
        self.exports = exports_of(store)
        self.files = files_of(store, [export["below"] for export in self.exports if export["below"]])
        self.dedup = {entry["name"] for entry in self.record["stages"] if entry["kind"] == "global"}
        self.search = Search(store, self.files, self.dedup)
        self.wanted = request.forgotten
        self.outcomes = {
            path: store.read_json(path) for path in sorted(store.files(OUTCOMES)) if not path.endswith(".card.json")
        }
        self.found: dict[str, Where] = {}
        self.goes: dict[str, list[int]] = {}
        self.nameless: dict[str, list[int]] = {}
        self.json: dict[str, Any] = {}
        self.uids, self.held = np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        self.unread: list[str] = []  # what was not looked at, and why

    def run(self) -> Prepared:
        copies = self.choose()
        everything = np.union1d(self.uids, self.held)
        documents = self.search.documents(everything, set(self.held.tolist()))
        self.goes, self.nameless = edits.rows_by_uid(self.search, everything, self.wanted)
        self.take_aligned()
        lines, scrubber = self.passages()
        tables = self.tables()
        ledger = Ledger(
            self.record, self.journal, documents, {path: len(edit["goes"]) for path, edit in tables.items()}
        )
        self.rejects_of_readers(ledger, tables)
        held = {folder: held_in_set(self.store.at(folder), everything) for folder in self.files.sets}
        indexes = sorted({*self.files.indexes, *saved_by(self.store, self.outcomes.values())})
        for of in held.values():
            noted(self.found, "token shards (rows of training)", of.counts["rows"], bool(of.counts))
        for folder in indexes:
            rows = rows_in_index(index_at(self.store, folder), everything)
            noted(self.found, "saved indexes", rows, bool(rows))
        noted(
            self.found,
            "rows between rounds, search indexes and public summaries, which go whole",
            0,
            len(self.files.whole),
        )
        self.reports(ledger, scrubber)
        counts = fates(documents)
        forgotten = self.new_list([int(uid, 16) for uid, document in documents.items() if not document["copy"]])
        outside_tables, cached = self.outside_tables(forgotten), self.cached(ledger)
        receipt: JSONObject = {
            "asked": dict(sorted(self.request.lines.items())),
            "documents": counts["forgotten"],
            "held_back": counts["copy"],
            "tokens": {folder: of.counts["tokens"] for folder, of in held.items()},
            "found": {
                where: {"files": of["files"], "rows": of["rows"]}
                for where, of in sorted(self.found.items())
                if of["rows"] or of["files"]
            },
            "sample": sample.address if (sample := self.store.sample).exists("run.json") else None,
            "copies": copies,
            "with_copies": self.with_copies,
            "restored": self.restore,
            "not_looked_at": cast(list[Any], self.unread),
            "not_reached": cast(list[Any], out_of_reach(self.store, self.files, self.record, self.mute_tables())),
            "done_again": sorted(name for name in self.dedup if f"{OUTCOMES}/{name}.json" not in self.outcomes),
        }
        exports = [
            export
            for export in self.exports
            if (export["set"] in held and held[export["set"]].counts)
            or any(path.startswith(f"{export['set']}/") and edit["goes"] for path, edit in tables.items())
        ]
        receipt["exports"] = [export["destination"] for export in exports]
        plan: Plan = {
            "version": VERSION,
            "asked": "",
            "number": 1 + sum(path.endswith(".json") and "/receipt-" in path for path in self.store.files("forgotten")),
            "journal": hash_of_content(self.store.at(JOURNAL)),
            "documents": documents,
            "tables": tables,
            "remove": self.files.whole,
            "sets": [folder for folder, of in held.items() if of.counts],
            "indexes": indexes,
            "texts": {path: hash_of_content(edits.whole_path(self.store, path)) for path in lines},
            "lines": lines,
            "json": self.json,
            "set_counts": {
                folder: {"documents": dict(of.documents), "tokens": dict(of.tokens)} for folder, of in held.items()
            },
            "exports": exports,
            "outside": outside_tables,
            "cached": cached,
            "restore": self.restore,
            "receipt": receipt,
        }
        before = read_list(self.store)
        known = before is not None and before.plain() == forgotten.plain()
        is_done = known and not (
            documents or tables or lines or outside_tables or any(of.counts for of in held.values())
        )
        entries = iter(ledger.entries(scrubber, forgotten.with_checksum().checksum))
        return Prepared(plan, forgotten, entries, is_done)

    def choose(self) -> list[Any]:
        """Which documents go, and which are held back; copies as the receipt has them."""
        search = self.search
        self.uids = search.present(search.with_rephrased(np.union1d(search.meant(self.wanted), self.in_inputs())))
        copies = search.copies_of(self.uids) if len(self.uids) else {}
        self.held = search.dropped_for(self.uids)
        others = np.fromiter(copies, np.uint64, len(copies))
        listed = copies_listed(copies, search.documents(others, ()), self.with_copies)
        if self.with_copies:
            taken = np.union1d(self.uids, np.union1d(others, self.held))
            everything = search.with_rephrased(np.union1d(taken, search.dropped_for(taken)))
            self.uids, self.held = search.present(everything), self.held[:0]
        if self.restore:
            self.held = self.held[:0]
        held = set(self.held.tolist())
        for copy in listed:
            if int(copy["uid"], 16) in held:
                copy["fate"] += ", held back"
        return list(listed)

    def in_inputs(self) -> Array:
        """Documents that have what is asked for in the inputs, where the run may have masked it."""
        if not is_masked(self.record, self.wanted):
            by_content = any(len(self.wanted.keys[kind]) for kind in ("email", "sha256", "xxh3"))
            self.unread = [AS_STORED] if by_content else []
            return np.zeros(0, np.uint64)
        if self.skip_inputs:
            self.unread = [f"the inputs, as --skip-inputs says. {MASKED}"]
            return np.zeros(0, np.uint64)
        inputs = InputSearch(self.store, self.record, self.wanted)
        inputs.run(self.journal, self.note)
        self.unread = [f"{place}. {MASKED}" for place in inputs.unread]
        found = inputs.found
        return np.union1d(found, other_uids(found))

    def outside_tables(self, forgotten: Forgotten) -> dict[str, OutsideEdit]:
        """Tables in OUT-tables that hold forgotten documents, and those that no source reads any more."""
        tables: dict[str, OutsideEdit] = {}
        for path, source in outside.sources_of_tables(self.store, self.record).items():
            rows = None if source is None else outside.rows_of_table(path, source, path.name, forgotten)
            if rows is None or rows:
                tables[str(path)] = {"checksum": hash_of_content(str(path)), "rows": rows}
                noted(self.found, f"tables in {path.parent}", len(rows or ()))
        return tables

    def cached(self, ledger: Ledger) -> list[str]:
        """Folders of the cache of crawls with files that forgotten documents came from."""
        read: dict[str, set[str]] = {}
        for result in self.journal.done.values():
            if reads_inputs(result):
                part = result["part"]
                if any(not document["copy"] for _, document in ledger.by_part.get(part["key"], ())):
                    paths = {span["path"] for span in part["inputs"] if "path" in span}
                    read[part["source"]] = read.get(part["source"], set()) | paths
        folders = outside.cached(self.record, read)
        noted(self.found, "files of crawls in the cache of `cc`, which go whole", 0, len(folders))
        return folders

    def new_list(self, uids: list[int]) -> Forgotten:
        named = self.wanted.merged(Forgotten.of({"uid": uids, "copy": self.held.tolist()}))
        before = read_list(self.store)
        return named if before is None else before.merged(named)

    def take_aligned(self) -> None:
        """Files that lie row by row beside documents and have no uids lose the same rows."""
        for result in self.journal.done.values():
            for part in [*([result["part"]] if "part" in result else []), *result.get("parts", [])]:
                if part["documents"] is None or part["documents"]["path"] not in self.goes:
                    continue
                beside = [facts["path"] for facts in part["verdicts"]]
                beside += [facts["path"] for role, facts in result.get("files", {}).items() if role == "condemned"]
                for path in beside:
                    if path.endswith((".quarantined.parquet", ".condemned.parquet")) and self.store.exists(path):
                        self.goes[path] = self.goes[part["documents"]["path"]]

    def passages(self) -> tuple[dict[str, list[int]], Scrubber]:
        """Look through all that is not a table of the run's own; which lines of text files go."""
        store, search, passages = self.store, self.search, Passages()
        strings = sorted(set(self.strings()))
        askers = askers_of(self.record)
        answered = keys_of(askers, self.texts()) if askers and len(self.uids) else set()
        texts = [path for path in self.files.texts if not self.is_rebuilt(path)] + caches_elsewhere(store, askers)
        tables = edits.strange_tables(search)
        passages.look_through(as_array(strings))
        for path in tables:
            for _, columns in edits.cells(store, path):
                for column in columns:
                    passages.look_through(column)
        for path in texts:
            for lines in edits.lines_of(store, path):
                passages.look_through(edits.as_texts(lines))
        passages.close()
        edits.theirs_and_others(search, self.uids, passages)
        scrubber = Scrubber((hexed(uid) for uid in self.uids.tolist()), self.urls(), self.wanted)
        scrubber.settle(strings, passages)
        for path in tables:
            for first, columns in edits.cells(store, path):
                hit = [passages.in_each(column) | self.wanted.of_emails(column) for column in columns]
                if hit and np.any(hit, axis=0).any():
                    self.goes.setdefault(path, []).extend((first + np.flatnonzero(np.any(hit, axis=0))).tolist())
        gone: dict[str, list[int]] = {}
        for path in texts:
            rows, row = [], 0
            for lines in edits.lines_of(store, path):
                held = passages.in_each(edits.as_texts(lines))
                named = [scrubber.names(line.decode("utf-8", "replace").strip()) for line in lines]
                about = np.array(are_answers_to(lines, answered), bool)
                rows += (row + np.flatnonzero(held | about | np.array(named, bool))).tolist()
                row += len(lines)
            if rows and path.endswith(".json"):
                self.json[path] = scrubber.clean(store.read_json(path))
            elif rows:
                gone[path] = rows
            noted(self.found, "lines of logs, caches and text files", len(rows), bool(rows))
        return gone, scrubber

    def mute_tables(self) -> list[str]:
        """Tables of token ids, say: an export of an earlier version."""
        return [p for p in edits.strange_tables(self.search) if not string_columns(self.search.schema(p))]

    def is_rebuilt(self, path: str) -> bool:
        """Is it written anew from what is left?"""
        own = path.startswith(("legs/", "stages/")) and path.endswith(REBUILT)
        return own or path in ("run.json", "report.html") or (path.startswith("shards/") and path.endswith("README.md"))

    def strings(self) -> Iterator[str]:
        """Texts in the journal, in reports and in the record."""
        for result in self.journal.done.values():
            for name in ("log", "slowest", "pages"):
                yield from strings_in(result.get(name))
        for outcome in self.outcomes.values():
            yield from strings_in(outcome)
        yield from strings_in(self.record)
        for path in self.report_paths():
            yield from strings_in(self.store.read_json(path))
        for path in self.files.texts:
            if path.endswith(".json") and not self.is_rebuilt(path):
                yield from strings_in(self.store.read_json_if_whole(path))

    def report_paths(self) -> list[str]:
        return sorted(path for path in self.store.files("stages") if path.endswith("/report.json"))

    def texts(self) -> list[str]:
        """All versions of the texts of the documents that are forgotten."""
        texts = set[str]()
        for path in self.search.tables("uid", "text"):
            names = text_columns(self.search.schema(path))
            for _, batch in batches(self.store, path, ["uid", *names]):
                own = np.isin(uids_of(batch), self.uids)
                texts |= {
                    text for n in names if n != "html" for text in batch.column(n).filter(own).to_pylist() if text
                }
        return sorted(texts)

    def urls(self) -> set[str]:
        """Addresses of the documents that are forgotten, and of no other."""
        theirs, others = set[str](), set[str]()
        for path in self.search.tables("uid", "url") if len(self.uids) else ():
            for _, batch in batches(self.store, path, ["uid", "url"]):
                own = np.isin(uids_of(batch), self.uids)
                theirs |= {
                    url for url, is_own in zip(batch.column("url").to_pylist(), own, strict=True) if is_own and url
                }
        for path in self.search.tables("uid", "url") if theirs else ():
            for _, batch in batches(self.store, path, ["uid", "url"]):
                own = np.isin(uids_of(batch), self.uids)
                others |= {
                    u for u, is_own in zip(batch.column("url").to_pylist(), own, strict=True) if not is_own
                } & theirs
        return theirs - others

    def tables(self) -> dict[str, TableEdit]:
        tables: dict[str, TableEdit] = {}
        known = self.journal.files
        for path in sorted({*self.goes, *self.nameless}):
            checksum = hash_of_content(self.store.at(path))
            if path in known and known[path]["checksum"] != checksum:
                raise RunFailed(
                    f"{self.store.at(path)}: its content is not what was written; run the recipe again, which mends it, "
                    "and then forget"
                )
            tables[path] = {"checksum": checksum, "goes": sorted(self.goes.get(path, []))}
            if path in self.nameless:
                tables[path]["nameless"] = self.nameless[path]
            noted(self.found, place_of(path), len(tables[path]["goes"]) + len(self.nameless.get(path, [])))
        return tables

    def rejects_of_readers(self, ledger: Ledger, tables: dict[str, TableEdit]) -> None:
        """What readers leave out is on record with them: the uid of what is forgotten, and of copies all that the
        rejects had."""
        settings = cast(dict[str, Any], self.record["recipe"].get("rejects") or {})
        below = int(settings.get("keep", 1.0) * 2.0**64)
        copies = self.rejected(self.held) if len(self.held) else {}
        for task, result in self.journal.done.items():
            if not reads_inputs(result) or result["part"]["key"] not in ledger.by_part:
                continue
            key, source = result["part"]["key"], result["part"]["source"]
            rows = []
            for uid, document in ledger.by_part[key]:
                number = int(uid, 16)
                if document["made"] or (below < TOP and number >= below):
                    continue
                row = {"uid": number, "url": None, "detail": None, "text": None}
                row |= copies.get(number, {}) if document["copy"] else {}
                rows.append(
                    {**row, "source": source, "stage": source, "reason": COPY if document["copy"] else FORGOTTEN}
                )
            if not rows:
                continue
            facts = result["files"].get(f"rejects/{source}")
            path = (
                facts["path"] if facts else f"stages/{source}/rejects/{key}.{result.get('read_as', task)[:8]}.parquet"
            )
            if facts is None:
                ledger.comes[key] = {"path": path, "bytes": 0, "checksum": "", "rows": 0}
            there = hash_of_content(self.store.at(path)) if self.store.exists(path) else ""
            edit = tables.setdefault(path, {"checksum": there, "goes": []})
            edit["comes"] = cast(list[JSONObject], rows)

    def rejected(self, uids: Array) -> dict[int, dict[str, Any]]:
        """The last rejects of some documents."""
        found: dict[int, dict[str, Any]] = {}
        for path in self.search.tables("uid", "url", "detail", "text"):
            if not REJECTS.match(path):
                continue
            for _, batch in batches(self.store, path, ["uid", "url", "detail", "text"]):
                own = np.isin(uids_of(batch), uids)
                for row in batch.filter(own).to_pylist() if own.any() else ():
                    found[row.pop("uid")] = row
        return found

    def reports(self, ledger: Ledger, scrubber: Scrubber) -> None:
        """The record, outcomes of global stages, and reports, without them."""
        for path, outcome in self.outcomes.items():
            name = path.removeprefix(f"{OUTCOMES}/").removesuffix(".json")
            counts = {source: ledger.count_of(name, source, count) for source, count in outcome["counts"].items()}
            metrics, shared = scrubber.clean(outcome["metrics"]), scrubber.clean(outcome["shared"])
            self.json[path] = {**outcome, "counts": counts, "metrics": metrics, "shared": shared, "forgotten": True}
        for path in self.store.files("legs"):
            if path.endswith("/rules.json"):
                rules = self.store.read_json(path)
                self.json[path] = {**rules, "parts": [ledger.part(part) for part in rules["parts"]]}
            elif path.endswith("/manifest.json"):
                self.json[path] = ledger.manifest(self.store.read_json(path))
        stages = [ledger.entry(entry) for entry in self.record["stages"]]
        self.json["run.json"] = scrubber.clean({**self.record, "stages": stages})
        for path in self.report_paths():
            report = self.store.read_json(path)
            cleaned = scrubber.clean(ledger.entry(report))
            self.json[path] = cleaned
            less = len(json.dumps(report.get("samples", {}))) != len(json.dumps(cleaned.get("samples", {})))
            noted(
                self.found,
                "reports (samples and examples)",
                0,
                less or report.get("examples") != cleaned.get("examples"),
            )
