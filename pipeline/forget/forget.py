"""Forgetting, from the plan to the receipt.

First all is found, and nothing changed (`prepare.py`). The plan is kept; then files are written anew, one by one, each
whole or not at all. Then the journal is replaced in one step, and reports are made of what is left. The plan goes last:
while it is there no run starts in the folder, and `forget` goes on from it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq

from gristmill.kernels.base.types import Array
from gristmill.pipeline.engine.worker import run_inline
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.fingerprint import digest
from gristmill.pipeline.forget.edits import edit_lines, edit_table
from gristmill.pipeline.forget.indexes import index_at
from gristmill.pipeline.forget.ledger import with_facts
from gristmill.pipeline.forget.outside import edit_tables, remove_cached
from gristmill.pipeline.forget.plan import DRAFT, FOLDER, NEW_LIST, Plan
from gristmill.pipeline.forget.prepare import Note, Preparation, finished_run
from gristmill.pipeline.forget.receipt import in_words, receipt_of
from gristmill.pipeline.forget.request import Request
from gristmill.pipeline.look.exports import export_again
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.report_data.samples import legs_with_rules, task_of_samples
from gristmill.pipeline.report_data.survey import survey_legs
from gristmill.pipeline.run.outcomes import FOLDER as OUTCOMES, Outcome
from gristmill.pipeline.run.reports import card_again
from gristmill.pipeline.shuffle.saved_index import forget_in_index
from gristmill.pipeline.store.forgotten import KINDS, LIST, WORK, Forgotten, read_list
from gristmill.pipeline.store.journal import JOURNAL, Journal, Work, from_json, to_json
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.records import FileFacts
from gristmill.pipeline.store.storage import Store, hash_of_content, json_bytes
from gristmill.shards.forget import forget_in_set
from gristmill.shards.index import NAME, read_index


def forget(
    out: str, request: Request | None, *, with_copies: bool = False, restore: bool = False, skip_inputs: bool = False,
    dry_run: bool = False, note: Note = lambda message: None,
) -> dict[str, Any]:  # fmt: skip
    """Take documents out of a run and out of its sample; returns the receipt. Without a request, resume an unfinished
    takedown."""
    store = Store(out)
    sample = store.sample
    finished_run(store)
    how = {"with_copies": with_copies, "restore": restore, "skip_inputs": skip_inputs, "dry_run": dry_run}
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
        keys["uid"] = keys.get("uid", set()) | {
            int(each["uid"], 16) for each in receipt["each"] if not each["held_back"]
        }
    else:  # the whole list, which is the same for the command that goes on after a kill
        listed = read_list(store) or Forgotten.of({})
        keys = {kind: set(listed.keys[kind].tolist()) for kind in KINDS if kind != "copy"}
    asked = Request(keys, Counter(receipt["asked"]))
    return {**receipt, "also": {sample.address: forget_in(sample, asked, **how, note=note)}}


def forget_in(
    store: Store, request: Request | None, *, with_copies: bool, restore: bool, skip_inputs: bool, dry_run: bool,
    note: Note,
) -> dict[str, Any]:  # fmt: skip
    """Take documents out of one folder."""
    with one_run_at_a_time(store, note):
        asked = None
        if request is not None:
            asked = digest([request.forgotten.with_checksum().checksum, with_copies, restore])
        if store.exists(WORK):
            if dry_run:
                raise RecipeError(f"{store.address}: documents are being forgotten here; finish that first")
            note("going on with what was begun")
            unfinished = Forgetting(store, note)
            receipt = unfinished.carry_out()
            if asked in (None, unfinished.plan["asked"]):
                return receipt
            note("that is done; now this list")
        if request is None:
            raise RecipeError(f"{store.address}: nothing was begun here; name what to forget with --list")
        note("looking through the run")
        prepared = Preparation(store, request, with_copies, restore, skip_inputs, note).run()
        if dry_run or prepared.is_done:
            return receipt_of(prepared.plan, "")
        prepared.plan["asked"] = asked or ""
        store.write(DRAFT, b"".join(json.dumps(to_json(entry)).encode() + b"\n" for entry in prepared.entries))
        store.write(NEW_LIST, prepared.forgotten.plain())
        store.write(WORK, json.dumps(prepared.plan).encode())
        return Forgetting(store, note).carry_out()


class Forgetting:
    """A plan carried out; each step can be done again."""

    def __init__(self, store: Store, note: Note) -> None:
        self.store, self.note = store, note
        self.plan: Plan = store.read_json(WORK)
        self.uids: Array = np.array([int(uid, 16) for uid in self.plan["documents"]], np.uint64)

    def carry_out(self) -> dict[str, Any]:
        store, plan = self.store, self.plan
        store.remove_temporary()
        checksum = self.publish_list()
        self.note(
            f"{len(plan['tables']):,} tables, {len(plan['sets']):,} sets of shards, {len(plan['indexes']):,} indexes"
        )
        for path, edit in plan["tables"].items():
            edit_table(store, path, edit)
        for path, rows in plan["lines"].items():
            edit_lines(store, path, plan["texts"][path], rows)
        store.remove(plan["remove"])
        for folder in plan["indexes"]:
            forget_in_index(index_at(store, folder), self.uids, known=not plan["restore"])
        for folder in plan["sets"]:
            forget_in_set(store.at(folder), self.uids)
        edit_tables(store, plan["outside"])
        remove_cached(plan["cached"])
        facts = self.new_facts()
        self.replace_journal(facts)
        self.write_reports(facts)
        for entry in plan["exports"]:  # some take the dataset card along
            self.note(f"exporting again: {entry['destination']}")
            export_again(store, entry)
        receipt = receipt_of(plan, checksum)
        name = f"{FOLDER}/receipt-{plan['number']:04d}"
        store.write_json(f"{name}.json", receipt)
        store.write(f"{name}.txt", in_words(receipt, done=True).encode())
        store.remove([WORK])
        store.remove([DRAFT])
        return {**receipt, "receipt": store.at(f"{name}.txt")}

    def publish_list(self) -> str:
        """The list of the run, which readers follow from here on."""
        if self.store.exists(NEW_LIST):
            Path(self.store.at(NEW_LIST)).replace(self.store.at(LIST))
        return hash_of_content(self.store.at(LIST))

    def new_facts(self) -> dict[str, FileFacts | None]:
        """Of every file that was written anew; None for those that are gone."""
        store, facts = self.store, dict[str, FileFacts | None]()
        for path, edit in self.plan["tables"].items():
            facts[path] = None
            if store.exists(path):
                new: FileFacts = {
                    "path": path,
                    "bytes": Path(store.at(path)).stat().st_size,
                    "checksum": hash_of_content(store.at(path)),
                    "rows": pq.read_metadata(store.at(path)).num_rows,
                }
                if not self.plan["restore"] and edit["checksum"]:
                    new["was"] = {"checksum": edit["checksum"], "rows": 0}  # `with_facts` knows the rows
                facts[path] = new
        for folder in self.plan["sets"]:
            for shard in read_index(store.read(f"{folder}/{NAME}"), folder).shards:
                path = f"{folder}/{shard.path}"
                facts[path] = {"path": path, "bytes": shard.bytes, "checksum": shard.checksum, "rows": shard.rows}
        return facts

    def replace_journal(self, facts: dict[str, FileFacts | None]) -> None:
        """The journal of the run without the documents, in one step."""
        if hash_of_content(self.store.at(JOURNAL)) != self.plan["journal"]:
            return
        entries = [
            cast(Work, from_json(with_facts(json.loads(line), facts))) for line in self.store.read(DRAFT).splitlines()
        ]
        changed = {*facts, *self.plan["remove"], *self.plan["json"], *self.plan["lines"]}
        gone = {*self.plan["remove"], *(path for path, new in facts.items() if new is None)}
        self.store.write(JOURNAL, Journal(self.store, looks_only=True).replaced(entries, changed, gone))

    def write_reports(self, facts: dict[str, FileFacts | None]) -> None:
        """The record and the reports, out of what is left."""
        store, journal = self.store, Journal(self.store)
        packed = {name: self.packing(metrics) for name, metrics in self.metrics().items() if "packing" in metrics}
        for path, content in self.plan["json"].items():
            name = path.split("/")[1] if path.startswith("stages/") else path.rpartition("/")[2].removesuffix(".json")
            content = with_facts(content, facts)
            if path.startswith("legs/"):
                new = manifest_with(content, facts) if path.endswith("/manifest.json") else content
                journal.keep(path, json_bytes(new))
            elif path.startswith(OUTCOMES):
                if name in packed:
                    content["metrics"]["packing"] = content["shared"]["packing"] = packed[name]
                store.write_json(path, content)
            elif path == "run.json" or path.startswith("stages/"):
                journal.keep(path, json_bytes(content | ({"packing": packed[name]} if name in packed else {})))
            else:
                store.write_json(path, content)
        self.note("reports")
        legs = legs_with_rules(store)
        paths = [path for path in store.files("stages") if "/rejects/" in path]
        reports = [path for path in self.plan["json"] if path.startswith("stages/")]
        names = [path.split("/")[1] for path in reports]
        tasks = [task_of_samples(store, n, [p for p in paths if p.split("/")[1] == n], legs) for n in names]
        for path, result in zip(reports, run_inline(tasks), strict=True):
            if "failed" in result:
                raise RunFailed(result["failed"])
            journal.keep(path, json_bytes({**store.read_json(path), "samples": result["seen"]}))
        survey_legs(store, journal.keep, run_inline)
        for name in packed:
            card_again(store, journal, name, store.read_json("run.json"))
        store.write("report.html", build_report(store.address).encode("utf-8", "replace"))
        journal.check(store.stamps(""))
        journal.flush()

    def metrics(self) -> dict[str, dict[str, Any]]:
        outcomes = {path: cast(Outcome, of) for path, of in self.plan["json"].items() if path.startswith(OUTCOMES)}
        return {path.rpartition("/")[2].removesuffix(".json"): of["metrics"] for path, of in outcomes.items()}

    def packing(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """What was packed, as it is now. Where documents were cut stays as it was."""
        packing = {**metrics["packing"], "sets": [], "tokens": 0}
        sources = {name: {**counts, "tokens": 0} for name, counts in metrics["packing"]["sources"].items()}
        for of in metrics["packing"]["sets"]:
            folder = f"{packing['folder']}/{of['path'].removesuffix('/*.arrow')}"
            index = read_index(self.store.read(f"{folder}/{NAME}"), folder)
            totals = {name: index.total(name) for name in ("rows", "tokens", "padding", "documents", "pieces", "bytes")}
            fill = round(totals["tokens"] / max(1, totals["rows"] * of["row_length"]), 6)
            packing["sets"].append({**of, **totals, "fill": fill})
            if of["row_length"] == metrics["packing"]["sets"][0]["row_length"]:  # each has the same documents
                gone = self.plan["set_counts"].get(folder, {"documents": {}})["documents"]
                packing["tokens"] += totals["tokens"]
                for source, counts in sources.items():
                    counts["documents"] -= gone.get(source, 0)
                    counts["tokens"] += index.sources.get(source, 0)
        return {**packing, "sources": sources}


def manifest_with(manifest: dict[str, Any], facts: dict[str, FileFacts | None]) -> dict[str, Any]:
    """A manifest with the checksums of files as they are now, and without those that are gone."""
    for part in manifest["parts"]:
        for name, path in list(part["files"].items()):
            new = facts.get(path, {"checksum": part["checksums"].get(name, "")})
            if new is None:
                del part["files"][name]
                part["checksums"].pop(name, None)
            elif name in part["checksums"]:
                part["checksums"][name] = new["checksum"]
    return manifest
