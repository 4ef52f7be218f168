"""Carry out a takedown, from the request to the receipt.

First all is found, and nothing changed (`plan.py`). Then the plan is written, and each of its steps can be repeated:
files are written whole or not at all, and an edit of a file that has another checksum is done already. The plan is
removed last. While it is there no run starts in the folder, and `forget` resumes from it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.kernels.common.files import write_whole
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.forget.outside import edit_tables, remove_cached
from gristmill.pipeline.forget.plan import FOLDER, Note, Plan, Planner, finished_run, index_at, is_done
from gristmill.pipeline.forget.receipt import in_words
from gristmill.pipeline.forget.request import Request
from gristmill.pipeline.forget.search import Edit, batches, columns_of
from gristmill.pipeline.forget.texts import without_lines
from gristmill.pipeline.look.exports import export_again
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.shuffle.saved_index import forget_in_index
from gristmill.pipeline.store.forgotten import HIDDEN, KINDS, LIST, WORK, Forgotten, read_list
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.records import FileRef
from gristmill.pipeline.store.storage import Store, hash_of_content, json_bytes
from gristmill.shards.forget import forget_in_set
from gristmill.shards.index import NAME, read_index

ON_CARD = "Documents were taken out of this data set since this card was written; its counts are of before."


def forget(
    out: str, request: Request | None, *, with_copies: bool = False, skip_inputs: bool = False, dry_run: bool = False,
    note: Note = lambda message: None,
) -> dict[str, Any]:  # fmt: skip
    """Take documents out of a run and out of its sample; returns the receipt. Without a request, resume an unfinished
    takedown."""
    store = Store(out)
    sample = store.sample
    finished_run(store)
    how = {"with_copies": with_copies, "skip_inputs": skip_inputs, "dry_run": dry_run}
    if not sample.exists("run.json"):
        return forget_in(store, request, **how, note=note)
    try:
        finished_run(sample)
    except RecipeError as error:
        raise RecipeError(f"{error}, or remove that folder: it has copies of this run's documents") from error
    if request is None and not store.exists(WORK) and sample.exists(WORK):
        return forget_in(sample, None, **how, note=note)
    receipt = forget_in(store, request, **how, note=note)
    note(f"{sample.address}, the run on a part of the inputs")
    if dry_run:
        keys = dict(request.keys) if request else {}
        keys["uid"] = keys.get("uid", set()) | {int(each["uid"], 16) for each in receipt["each"]}
    else:  # the whole list, which is the same for the command that resumes after a kill
        listed = read_list(store) or Forgotten.of({})
        keys = {kind: set(listed.keys[kind].tolist()) for kind in KINDS}
    asked = Request(keys, Counter(receipt["asked"]))
    return {**receipt, "also": {sample.address: forget_in(sample, asked, **how, note=note)}}


def forget_in(
    store: Store, request: Request | None, *, with_copies: bool, skip_inputs: bool, dry_run: bool, note: Note
) -> dict[str, Any]:
    """Take documents out of one folder."""
    with one_run_at_a_time(store, note):
        asked = None if request is None else digest([request.forgotten.with_checksum().checksum, with_copies])
        if store.exists(WORK):
            if dry_run:
                raise RecipeError(f"{store.address}: documents are being forgotten here; finish that first")
            note("resuming the takedown that was begun here")
            unfinished = Takedown(store, note)
            receipt = unfinished.carry_out()
            if asked in (None, unfinished.plan["asked"]):
                return receipt
            note("that is done; now this list")
        if request is None or asked is None:
            raise RecipeError(f"{store.address}: nothing was begun here; name what to forget with --list")
        note("searching the run")
        plan = Planner(store, request, with_copies, skip_inputs, note).plan()
        if dry_run or is_done(store, plan):
            return plan["receipt"]
        store.write(WORK, json.dumps({**plan, "asked": asked}).encode())
        return Takedown(store, note).carry_out()


class Takedown:
    """Carries a plan out; each step can be repeated."""

    def __init__(self, store: Store, note: Note) -> None:
        self.store, self.note = store, note
        self.plan: Plan = store.read_json(WORK)
        self.uids = np.array([int(uid, 16) for uid in self.plan["uids"]], np.uint64)

    def carry_out(self) -> dict[str, Any]:
        store, plan = self.store, self.plan
        store.remove_temporary()
        store.write(LIST, json_bytes(plan["forgotten"]))  # readers honor it from here on
        self.rewrite_outputs()
        store.remove(plan["remove"])
        remove_cached(plan["cached"])
        store.write("report.html", build_report(store.address).encode("utf-8", "replace"))
        self.invalidate()
        for entry in plan["exports"]:  # some take the dataset card along
            self.note(f"exporting again: {entry['destination']}")
            export_again(store, entry)
        receipt = {**plan["receipt"], "list": hash_of_content(store.at(LIST))}
        name = f"{FOLDER}/receipt-{plan['number']:04d}"
        store.write_json(f"{name}.json", receipt)
        store.write(f"{name}.txt", in_words(receipt, done=True).encode())
        store.remove([WORK])
        return {**receipt, "receipt": store.at(f"{name}.txt")}

    def rewrite_outputs(self) -> None:
        store, plan = self.store, self.plan
        sizes = (
            f"{len(plan['tables']):,} tables, {len(plan['sets']):,} sets of shards, {len(plan['indexes']):,} indexes"
        )
        self.note(f"{sizes} to rewrite")
        for path, edit in plan["tables"].items():
            edit_table(store, path, edit)
        for path, edit in plan["lines"].items():
            place = Path(store.root, path)  # an absolute path stays what it is
            if place.exists() and hash_of_content(str(place)) == edit["checksum"]:
                write_whole(place, without_lines(str(place), edit["goes"]))
        for folder in plan["indexes"]:
            forget_in_index(index_at(store, folder), self.uids)
        for folder in plan["sets"]:
            forget_in_set(store.at(folder), self.uids)
        for card in self.cards():
            if ON_CARD not in (text := store.read(card).decode("utf-8", "replace")):
                store.write(card, f"{text.rstrip()}\n\n*{ON_CARD}*\n".encode())
        edit_tables(store, plan["outside"])
        for path, content in plan["json"].items():
            store.write(path, json_bytes(content))

    def cards(self) -> list[str]:
        """Dataset cards of the sets that are rewritten."""
        folders = {folder.partition("/")[0] for folder in self.plan["sets"]}
        return [path for folder in sorted(folders) if self.store.exists(path := f"{folder}/README.md")]

    def invalidate(self) -> None:
        """Drop what the journal knows of files that were changed or removed, and of parts that had the documents."""
        store, plan, journal = self.store, self.plan, Journal(self.store)
        touched = {*plan["tables"], *plan["lines"], *plan["json"], *plan["remove"], *self.cards()}
        for folder in plan["sets"]:
            shards = read_index(store.read(f"{folder}/{NAME}"), folder).shards
            touched |= {f"{folder}/{shard.path}" for shard in shards}
        changed: dict[str, FileRef | None] = {}
        for path, before in journal.files.items():
            if path in touched:
                now = facts_of(store, path)
                if now is None or now.checksum != before.checksum:
                    changed[path] = now
        work = {*plan["tasks"], *journal.work_with(changed)}
        if changed or work:
            journal.drop(work, changed)


def facts_of(store: Store, path: str) -> FileRef | None:
    """A file as it is now; None if it is gone."""
    if not store.exists(path):
        return None
    return FileRef(path, Path(store.at(path)).stat().st_size, hash_of_content(store.at(path)))


def edit_table(store: Store, path: str, edit: Edit) -> None:
    """Write one version of a table without some rows, and without what names a page in others."""
    if hash_of_content(store.at(path)) != edit["checksum"]:
        return
    goes, hidden = np.array(edit["goes"], np.int64), np.array(edit.get("hidden", []), np.int64)
    schema = columns_of(store, path)
    with store.commit(path) as file, pq.ParquetWriter(cast(Any, file), schema, compression="zstd") as writer:
        for first, batch in batches(store, path):
            rows = np.arange(first, first + len(batch))
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            if (blank := np.isin(rows, hidden)).any():
                for name in HIDDEN:
                    place = schema.get_field_index(name)
                    values = pc.if_else(pa.array(blank), pa.scalar(None, pa.string()), batch.column(place))
                    batch = batch.set_column(place, schema.field(name), values)
            writer.write_batch(batch.filter(pa.array(~np.isin(rows, goes))))
