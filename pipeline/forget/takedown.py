"""A takedown, from the request to the receipt.

First all is found, and nothing changed. What the takedown has decided is then kept in `forgotten/work.json`: while that
is there no run starts in the folder, and `forget` resumes. To resume is to search again for the same uids and to carry
out what is left, so every change is a question that can be asked again (is this row one of theirs?). What quotes
documents is therefore cleaned while all documents are there to compare with, and tables of documents come last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gristmill.kernels.base.types import Array
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.forget.outside import (
    answers_elsewhere,
    crawl_caches,
    is_masked,
    remove_copy,
    search_inputs,
    tables_to_remove,
)
from gristmill.pipeline.forget.quotes import Edit, Quotes, edits_of, pieces_of, quoting
from gristmill.pipeline.forget.receipt import in_words, out_of_reach, place_of
from gristmill.pipeline.forget.request import Request
from gristmill.pipeline.forget.search import Found, Search, files_of, hexed, key_of_part
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.token_sets import export_again, exports_of
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.shuffle.saved_index import forget_in_index, rows_in_index, saved_by
from gristmill.pipeline.store.forgotten import KINDS, LIST, WORK, Forgotten, read_list
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.records import FileRef, Partition, PhaseResult, Result, VerdictsResult
from gristmill.pipeline.store.run_records import RunRecord, read_record
from gristmill.pipeline.store.storage import Store, digest, hash_of_content
from gristmill.shards.forget import forget_in_set, held_in_set, put_in_place
from gristmill.shards.index import NAME, read_index
from gristmill.stages.extract.choices import other_uids

FOLDER = "forgotten"
ON_CARD = "Documents were taken out of this data set since this card was written; its counts are of before."
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
DERIVED = "texts between rounds, search indexes and public summaries"
Note = Callable[[str], None]


def forget(
    out: str, request: Request | None, *, with_copies: bool = False, skip_inputs: bool = False, dry_run: bool = False,
    note: Note = lambda message: None,
) -> dict[str, Any]:  # fmt: skip
    """Take documents out of a run and out of its sample; returns the receipt. Without a request, resume an unfinished
    takedown."""
    store = Store(out)
    sample = store.sample
    finished_run(store)
    how = Options(with_copies, skip_inputs, dry_run)
    if not sample.exists("run.json"):
        return forget_in(store, request, how, note)
    try:
        finished_run(sample)
    except RecipeError as error:
        raise RecipeError(f"{error}, or remove that folder: it has copies of this run's documents") from error
    if request is None and not store.exists(WORK) and sample.exists(WORK):
        return forget_in(sample, None, how, note)
    receipt = forget_in(store, request, how, note)
    note(f"{sample.address}, the run on a part of the inputs")
    # All that was ever asked for here: the same for the command that resumes after a kill.
    wanted = Forgotten.of({"uid": [int(each["uid"], 16) for each in receipt["each"]]}).merged(read_list(store))
    wanted = wanted.merged(request.forgotten if request else None)
    asked = Request({kind: set(wanted.keys[kind].tolist()) for kind in KINDS}, Counter(receipt["asked"]))
    return {**receipt, "also": {sample.address: forget_in(sample, asked, how, note)}}


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    with_copies: bool
    skip_inputs: bool
    dry_run: bool


def forget_in(store: Store, request: Request | None, how: Options, note: Note) -> dict[str, Any]:
    """Take documents out of one folder."""
    with one_run_at_a_time(store, note):
        asked = None if request is None else digest([request.forgotten.checksum, how.with_copies])
        if store.exists(WORK):
            if how.dry_run:
                raise RecipeError(f"{store.address}: documents are being forgotten here; finish that first")
            note("resuming the takedown that was begun here")
            work = Work(**store.read_json(WORK))
            store.write(LIST, work.tombstones.encode())
            receipt = Takedown(store, note).resume(work)
            if asked in (None, work.asked):
                return receipt
            note("that is done; now this list")
        if request is None or asked is None:
            raise RecipeError(f"{store.address}: nothing was begun here; name what to forget with --list")
        note("searching the run")
        takedown = Takedown(store, note)
        work, changes = takedown.decide(request, asked, how)
        is_known = takedown.before is not None and takedown.before.plain().decode() == work.tombstones
        if how.dry_run or (is_known and not (work.uids or work.receipt["found"])):
            return work.receipt
        store.write_json(WORK, asdict(work))
        store.write(LIST, work.tombstones.encode())  # readers honor it from here on
        return takedown.carry_out(work, changes)


def finished_run(store: Store) -> RunRecord:
    """Only a run that came to its end is a whole."""
    if not store.local:
        raise RecipeError(
            f"{store.address}: `forget` works on local folders; copy the run here, and back when it is done"
        )
    record = read_record(store)
    if record is None:
        sample = store.sample
        hint = f"; {sample.address} has one, of a part of the inputs" if sample.exists("run.json") else ""
        raise RecipeError(f"{store.address}: no run is here (there is no run.json){hint}")
    if not record.done:
        raise RecipeError(f"{store.address}: this run has not come to its end; run its recipe again first")
    return record


@dataclass(frozen=True)
class Work:
    """`forgotten/work.json`: what cannot be found again once files have changed. It holds no text."""

    asked: str  # a hash of the list and the options, for the same command
    number: int  # of the receipt
    uids: list[str]
    tombstones: str  # the run's list as it will be
    parts: list[str]  # keys of partitions that held one of the documents
    tasks: list[str]  # of the journal, to be done again
    paths: list[str]  # files that are rewritten or removed
    receipt: dict[str, Any]

    @property
    def numbers(self) -> Array:
        return np.array([int(uid, 16) for uid in self.uids], np.uint64)


class Change(NamedTuple):
    """A step of a takedown, which can be done again."""

    place: str  # as the receipt calls it; empty if nothing was found there
    rows: int
    carry_out: Callable[[], object]
    paths: Sequence[str] = ()  # files of the run that are others after it, or gone


class Takedown:
    """One run, and what it has of some documents."""

    def __init__(self, store: Store, note: Note) -> None:
        self.store, self.note = store, note
        self.record = finished_run(store)
        self.journal = Journal(store, looks_only=True)
        self.exports = exports_of(store)
        self.files = files_of(store, [export["below"] for export in self.exports if export["below"]])
        deduplicating = {stage.name for stage in self.record.stages if stage.kind == "global"}
        self.search = Search(store, self.files, deduplicating)
        self.indexes = [Store(str(Path(store.root, folder))) for folder in [*self.files.indexes, *saved_by(store)]]
        self.before = read_list(store)

    # --- finding --------------------------------------------------------------------------------------------------

    def decide(self, request: Request, asked: str, how: Options) -> tuple[Work, list[Change]]:
        """What a request comes to. Nothing is changed."""
        wanted = request.forgotten
        unread = [REMOVED] if any(SINCE in alarm for alarm in self.record.alarms) else []
        uids = self.present(np.union1d(self.search.meant(wanted), self.in_inputs(wanted, how.skip_inputs, unread)))
        returning = self.search.dropped_for(uids)
        copies = np.union1d(returning, self.search.copies_of(uids))
        fates = self.search.find(copies).documents
        if how.with_copies:
            taken = np.union1d(uids, copies)
            uids, returning = self.present(np.union1d(taken, self.search.dropped_for(taken))), returning[:0]
        listed = wanted.merged(self.before)
        found = self.search.find(uids, listed)
        tombstones = listed.merged(Forgotten.of({"uid": found.documents}))
        quotes = self.quotes(found, tombstones)
        number = 1 + sum("/receipt-" in path and path.endswith(".json") for path in self.store.files(FOLDER))
        changes = list(self.changes(number, uids, found.parts, found, tombstones, quotes))
        receipt = {
            "asked": dict(sorted(request.lines.items())),
            **self.receipt(found, changes),
            "copies": [{"uid": hexed(uid), "fate": document.fate} for uid, document in sorted(fates.items())],
            "with_copies": how.with_copies,
            "may_return": [hexed(uid) for uid in returning.tolist()],
            "not_looked_at": unread,
        }
        work = Work(
            asked,
            number,
            [hexed(uid) for uid in uids.tolist()],
            tombstones.plain().decode(),
            sorted(found.parts),
            self.tasks(found.parts, quotes),
            sorted({path for change in changes for path in change.paths}),
            receipt,
        )
        return work, changes

    def resume(self, work: Work) -> dict[str, Any]:
        """Carry out what is left of a takedown that was broken off."""
        tombstones = self.before or Forgotten.of({})
        for folder in self.files.sets:
            put_in_place(Path(self.store.at(folder)))  # new shards with an old index cannot be read
        found = self.search.find(work.numbers, tombstones)
        quotes = self.quotes(found, tombstones)
        changes = list(self.changes(work.number, work.numbers, work.parts, found, tombstones, quotes))
        return self.carry_out(work, changes)

    def present(self, uids: Array) -> Array:
        """Those that the run has anything of, with what a model wrote of them."""
        return self.search.find(self.search.with_rephrased(uids)).uids

    def in_inputs(self, wanted: Forgotten, skip_inputs: bool, unread: list[str]) -> Array:
        """Documents that have what is asked for in the inputs, where the run may have masked it. `unread` is told what
        was not looked at."""
        if not is_masked(self.record, wanted):
            by_content = any(len(wanted.keys[kind]) for kind in ("email", "sha256", "xxh3"))
            unread += [AS_STORED] if by_content else []
            return np.zeros(0, np.uint64)
        if skip_inputs:
            unread += [f"the inputs, as --skip-inputs says. {MASKED}"]
            return np.zeros(0, np.uint64)
        uids, places = search_inputs(self.store, self.record, self.journal, wanted, self.note)
        unread += [f"{place}. {MASKED}" for place in places]
        return np.union1d(uids, other_uids(uids))

    def quotes(self, found: Found, tombstones: Forgotten) -> Quotes:
        quotes = Quotes(self.search, tombstones, found.uids, found.names)
        for path in self.others():
            for _, columns in pieces_of(self.store, path):
                for column in columns:
                    quotes.look_through(column)
        for _, strings in quoting(self.journal):
            quotes.look_through(strings)
        quotes.compare()
        return quotes

    def others(self) -> list[str]:
        """Files that may name documents or quote them."""
        return [*self.files.tables, *self.files.texts, *answers_elsewhere(self.store, self.record)]

    def changes(
        self,
        number: int,
        uids: Array,
        parts: Container[str],
        found: Found,
        tombstones: Forgotten,
        quotes: Quotes,
    ) -> Iterator[Change]:
        """All steps in their order: what quotes documents is cleaned while all documents are there to compare with, and
        tables of documents come last."""
        store, between = self.store, dict.fromkeys(self.between(parts))
        others = [path for path in self.others() if path not in between]
        for path, edit in edits_of(store, others, quotes).items():
            yield Change(place_of(path), len(edit.rows), partial(edit.carry_out, store, path), [path])
        if len(uids):
            yield Change("", 0, partial(self.alarm, number, len(uids)), ["run.json"])
        for table, rows in tables_to_remove(store, self.record, tombstones).items():
            yield Change(f"tables in {table.parent}", rows, partial(table.unlink, missing_ok=True))
        for cache in sorted({*crawl_caches(self.record).values()}) if len(uids) else ():
            for copy in sorted((cache / "files").glob("*")):
                yield Change("files of crawls in the cache of `cc`", 0, partial(remove_copy, copy))
        for index in self.indexes:
            held = rows_in_index(index, uids)
            yield Change("saved indexes" if held else "", held, partial(forget_in_index, index, uids))
        for folder in self.files.sets:
            if counts := self.held(folder, uids):
                rewrite = partial(self.rewrite_set, folder, uids)
                yield Change("token shards (rows of training)", counts["rows"], rewrite, self.paths_of_set(folder))
        known = self.journal.files
        for path in (path for path in found.rows if path not in between):
            self.check(path, known.get(path))
            rewrite = partial(Edit(found.rows[path]).carry_out, store, path)
            yield Change(place_of(path), len(found.rows[path]), rewrite, [path])
        for path in between:
            place = place_of(path) if key_of_part(path) else ""
            yield Change(place, len(found.rows.get(path, ())), partial(store.remove, [path]), [path])
        for path in self.files.made_again if len(uids) else ():
            yield Change(DERIVED, 0, partial(store.remove, [path]), [path])

    def between(self, parts: Container[str]) -> list[str]:
        """All that lies between stages of partitions that held one of the documents, and data that thresholds are tuned
        by, which comes first: it is known by the partitions."""
        paths = sorted(self.store.files("partitions"))
        of_parts = [path for path in paths if key_of_part(path) in parts]
        segments = {path.split("/")[1] for path in of_parts}
        rules = [path for path in paths if path.endswith("/rules.json") and path.split("/")[1] in segments]
        surveys = [path for path in paths if path.endswith("/survey.json") and segments]
        return [*rules, *surveys, *of_parts]

    def held(self, folder: str, uids: Array) -> Counter[str]:
        """What a set of token shards has of the documents."""
        return held_in_set(self.store.at(folder), uids).counts

    def check(self, path: str, facts: FileRef | None) -> None:
        """RunFailed where a table is not what the run wrote: its rows would pass for whole."""
        if facts is not None and facts.checksum != hash_of_content(self.store.at(path)):
            raise RunFailed(
                f"{self.store.at(path)}: its content is not what was written; run the recipe again, which mends it,"
                " and then forget"
            )

    def tasks(self, parts: Container[str], quotes: Quotes) -> list[str]:
        """Tasks and global stages whose partitions had one of the documents, or whose result names one or quotes it."""
        tasks = {task for task, strings in quoting(self.journal) if quotes.in_each(strings).any()}
        for task, result in self.journal.done.items():
            if any(part.key in parts for part in parts_left_by(result)):
                tasks.add(task)
        return sorted(tasks)

    def receipt(self, found: Found, changes: Sequence[Change]) -> dict[str, Any]:
        """What the receipt says of the documents and of where they are."""
        sample = self.store.sample
        where: dict[str, dict[str, int]] = {}
        for change in sorted(changes, key=lambda change: change.place):
            if change.place:
                of_place = where.setdefault(change.place, {"files": 0, "rows": 0})
                of_place["files"] += 1
                of_place["rows"] += change.rows
        changed = [path for change in changes for path in change.paths]
        exports = [e for e in self.exports if any(path.startswith(f"{e['set']}/") for path in changed)]
        return {
            "documents": len(found.documents),
            "tokens": {folder: self.held(folder, found.uids)["tokens"] for folder in self.files.sets},
            "found": where,
            "sample": sample.address if sample.exists("run.json") else None,
            "parts_made_again": len(found.parts),
            "exports": [export["destination"] for export in exports],
            "not_reached": out_of_reach(self.store, self.files, self.record),
            "each": [
                {"uid": hexed(uid), "source": document.source, "dropped_by": document.stage}
                for uid, document in sorted(found.documents.items())
            ],
        }

    # --- carrying out ---------------------------------------------------------------------------------------------

    def carry_out(self, work: Work, changes: Sequence[Change]) -> dict[str, Any]:
        """Change all files, and write the receipt."""
        store = self.store
        store.remove_temporary()
        self.note(f"{len(changes):,} changes")
        for change in changes:
            change.carry_out()
        store.write("report.html", build_report(RunFolder(store.address)).encode("utf-8", "replace"))
        self.invalidate(work)
        for export in self.exports:  # some take the dataset card along
            if export["destination"] in work.receipt["exports"]:
                self.note(f"exporting again: {export['destination']}")
                export_again(store, export)
        receipt = {**work.receipt, "list": hash_of_content(store.at(LIST))}
        name = f"{FOLDER}/receipt-{work.number:04d}"
        store.write_json(f"{name}.json", receipt)
        store.write(f"{name}.txt", in_words(receipt).encode())
        store.remove([WORK])
        return {**receipt, "receipt": store.at(f"{name}.txt")}

    def alarm(self, number: int, documents: int) -> None:
        """The record says that its counts are of before."""
        record = self.store.read_json("run.json")
        alarm = f"{documents:,} {SINCE} (receipt {number}); its counts are of before"
        alarms = [other for other in record.get("alarms", []) if other != alarm]
        self.store.write_json("run.json", {**record, "alarms": [*alarms, alarm]})

    def rewrite_set(self, folder: str, uids: Array) -> None:
        """Rewrite token shards. The data set's card says so first: once they are rewritten this is not done again."""
        card = card_of(folder)
        if self.store.exists(card) and ON_CARD not in (text := self.store.read(card).decode("utf-8", "replace")):
            self.store.write(card, f"{text.rstrip()}\n\n*{ON_CARD}*\n".encode())
        forget_in_set(self.store.at(folder), uids)

    def paths_of_set(self, folder: str) -> list[str]:
        """Its shards and its card."""
        shards = read_index(self.store.read(f"{folder}/{NAME}"), folder).shards
        return [*(f"{folder}/{shard.path}" for shard in shards), card_of(folder)]

    def invalidate(self, work: Work) -> None:
        """Drop what the journal knows of files that were changed or removed, and of parts that had the documents."""
        journal, touched = Journal(self.store), set(work.paths)
        changed: dict[str, FileRef | None] = {}
        for path, before in journal.files.items():
            if path in touched:
                now = facts_of(self.store, path)
                if now is None or now.checksum != before.checksum:
                    changed[path] = now
        dropped = {*work.tasks, *journal.work_with(changed)}
        if changed or dropped:
            journal.drop(dropped, changed)


def card_of(folder: str) -> str:
    """The dataset card of a set of token shards."""
    return f"{folder.partition('/')[0]}/README.md"


def facts_of(store: Store, path: str) -> FileRef | None:
    """A file as it is now; None if it is gone."""
    if not store.exists(path):
        return None
    return FileRef(path, Path(store.at(path)).stat().st_size, hash_of_content(store.at(path)))


def parts_left_by(result: Result) -> Sequence[Partition]:
    """The partitions that a task left."""
    if isinstance(result, PhaseResult):
        return [result.part]
    return result.parts if isinstance(result, VerdictsResult) else []
