"""A takedown: the receipt, what is left, `verify`, and the next run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.pipeline.locked.inputs import documents, own, texts, write_source
from benchmarks.pipeline.locked.lock import Lock

RECIPE = """
name: forgets
parts: {files: 1}
sources: {a: {jsonl: {path: HERE/in/a}}, b: {jsonl: {path: HERE/in/b}}}
stages:
  - personal_data
  - gopher_quality: {min_words: 20}
  - exact_dedup: {save_index: HERE/index/exact/1}
  - minhash_dedup: {save_index: HERE/index/near/1}
  - write
  - tokenize: {vocab_size: 500}
  - pack: {row_length: 128, window_tokens: 8192}
"""
# Of a receipt: what does not hang on where OUT has what, nor on whether repeats of a forgotten document come back.
ASKED = ("asked", "documents", "copies", "not_looked_at")


def take(lock: Lock) -> None:
    given = list(dict.fromkeys(texts(lock.folder)))
    rows = documents(given[:120], 1)
    rows[3]["text"] += " Write to jane.doe@mill-river.com soon."
    again = [*given[20:30], *(f"{text}\nSeen again here." for text in given[30:40]), *own(tuple(given[120:160]), "b")]
    write_source(lock.folder / "in/a", rows, "jsonl", 3)
    write_source(lock.folder / "in/b", documents(again, 2), "jsonl")
    recipe = lock.recipe("forgets", RECIPE)
    out = lock.run("before", recipe, lock.folder / "out")
    lock.command("export", "export", str(out), str(lock.folder / "dolma"), "--to", "dolma", says=False)
    before = kept(out)
    asked = [before[0]["uid"], before[7]["url"], hashlib.sha256(given[25].encode()).hexdigest(), "jane.doe@mill-river.com", "host:www.r.example"]  # fmt: skip
    for name, more in (("dry run", ["--dry-run"]), ("receipt", []), ("with copies", ["--with-copies"])):
        if name == "with copies":
            of_several = next(row["text"] for row in kept(out) if (row["minhash_copies"] or 0) > 1)
            asked = [hashlib.sha256(of_several.encode()).hexdigest()]
        (lock.folder / "list.txt").write_text("\n".join(asked) + "\n")
        arguments = ["forget", str(out), "--list", str(lock.folder / "list.txt"), "--json", *more]
        receipt = json.loads(lock.command(name, *arguments, says=False).splitlines()[-1])
        for copy in receipt["copies"]:
            copy["fate"] = copy["fate"].partition(", ")[0]
        lock.note(f"{name}/says", {part: receipt[part] for part in ASKED})
        if name == "receipt":
            after(lock, "after", out)
    after(lock, "after copies", out)
    lock.command("verify", "maintain", "verify", str(out), says=False)
    left = {row["uid"] for row in kept(out)}
    lock.command("the next run", "run", str(recipe), "--out", str(out), "--workers", str(lock.workers), says=False)
    now = kept(out)
    gone = {row["uid"] for row in before} - left
    lock.note("the next run/forgotten that came back", sorted(row["uid"] for row in now if row["uid"] in gone))
    # Documents that were dropped as repeats of a forgotten one may come back; of the others nothing may differ.
    columns = ("uid", "text", "url", "id", "date", "source", "words")
    lock.note(
        "the next run/rows", [{name: row[name] for name in columns if name in row} for row in now if row["uid"] in left]
    )


def after(lock: Lock, name: str, out: Path) -> None:
    lock.note(f"{name}/rows", kept(out))
    with_shards = sorted((out / "shards").rglob("*.arrow"))
    lock.note(f"{name}/shards", [hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in with_shards])
    exported = lock.folder / "dolma"
    lock.note(f"{name}/export", [path.read_bytes() for path in sorted(exported.rglob("*.jsonl.gz"))])


def kept(out: Path) -> list[dict[str, Any]]:
    """What is written, by uid."""
    rows = [row for path in sorted((out / "write").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return sorted(({**row, "uid": f"{row['uid']:016x}"} for row in rows), key=lambda row: str(row["uid"]))
