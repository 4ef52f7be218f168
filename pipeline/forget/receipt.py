"""The receipt: what was found where, what stays out of reach, and which copies there are. It names the forgotten by uid
and by nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.pipeline.crawls.remote import folder_of
from gristmill.pipeline.forget.outside import askers_of, can_be_known, crawls_of, tables_folder
from gristmill.pipeline.forget.search import Files
from gristmill.pipeline.inputs.files import (
    REMEMBERED,
    NoOriginal,
    is_below,
    reader_of,
    remembered_in,
    sources_of,
)
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store

NAMED = 20
WIDTH = 79
KINDS = {
    "uid": "uids", "url": "urls", "host": "hosts", "sha256": "SHA-256 of texts", "xxh3": "XXH3 of texts",
    "email": "e-mail addresses",
}  # fmt: skip


def place_of(path: str) -> str:
    """What a table is, in words."""
    if path.startswith("stages/"):
        return "rejects"
    return f"tables of {path.partition('/')[0]}/" if "/" in path else "tables"


def out_of_reach(store: Store, files: Files, record: RunRecord, tables: Sequence[str]) -> list[str]:
    """What this cannot take documents out of, in words. `tables` say neither whose their rows are nor what they say."""
    said = []
    tokenizers = sorted(folder for folder in files.sets if store.exists(f"{folder}/tokenizer/tokenizer.json"))
    if tokenizers:
        said.append(
            f"the tokenizer of {', '.join(tokenizers)}: if it was trained on these documents, its pieces reflect them;"
            " it is left as it is, or all shards would change"
        )
    said += [f"the judge in {folder}: its weights reflect what it was trained on" for folder in files.judges]
    for entry in record["stages"]:
        judge = (
            entry["settings"].get("model") if entry["stage"] in ("judge", "label", "llm_score", "llm_label") else None
        )
        if isinstance(judge, str) and judge not in files.judges:
            said.append(f"the judge of stage {entry['name']}: it lies outside this folder")
    said += [
        f"answers that {asker.called} keeps in {asker.cache_path}, by hashes that only its model can make again;"
        " those that quote a document are found"
        for asker in askers_of(record)
        if not can_be_known(asker)
    ]
    said += [f"{path}: a table without uids and texts" for path in tables[:NAMED]]
    said += [f"{path}: not a kind of file that is looked through" for path in files.others[:NAMED]]
    if len(files.others) > NAMED:
        said.append(f"{len(files.others) - NAMED:,} more files that are not looked through")
    said += [
        f"inputs of {source}: {place}; later runs here leave these documents out"
        for source, place in inputs(store, record)
    ]
    said += [
        f"the cache of crawls of {source} on other machines ({folder_of(reader)}); a run that reads these files again"
        " fetches them again"
        for source, reader in crawls_of(record)
    ]
    said.append("other runs of the same inputs: give this list to `gristmill forget` for each of them")
    said.append("copies of this folder, exports that were moved or are not on record, and models trained on its shards")
    return said


def inputs(store: Store, record: RunRecord) -> Iterator[tuple[str, str]]:
    """Sources and where their files are; not those in OUT-tables, which are edited."""
    remembered = remembered_in(store.read(REMEMBERED)) if store.exists(REMEMBERED) else {}
    for source in sources_of(record):
        try:
            roots = reader_of(record, source).roots
        except NoOriginal:
            roots = ()
        files = sorted(address for address in remembered if any(is_below(address, root) for root in roots))
        if not files or not all(Path(file).parent == tables_folder(store.root) for file in files):
            more = f" and {len(files) - 1:,} more files" if len(files) > 1 else ""
            yield source, f"{files[0]}{more}" if files else ", ".join(roots) or "where the recipe says"


def in_words(receipt: Mapping[str, Any], done: bool) -> str:
    """For people, at 80 columns."""
    asked = ", ".join(f"{count:,} {KINDS[kind]}" for kind, count in receipt["asked"].items())
    verb = "forgotten" if done else "would be forgotten"
    lines = [
        f"asked for: {asked}",
        f"{verb}: {receipt['documents']:,} documents",
    ]
    for folder, tokens in receipt["tokens"].items():
        lines.append(f"{folder}: {tokens:,} tokens")
    if receipt["found"]:
        lines += ["", "found in"]
        for place, where in receipt["found"].items():
            rows = f", {where['rows']:,} rows" if where["rows"] else ""
            lines.append(f"  {place}: {where['files']:,} files{rows}")
    if receipt["exports"]:
        lines += ["", "exports that are written again", *(f"  {place}" for place in receipt["exports"])]
    if parts := receipt["parts_made_again"]:
        lines += ["", f"the next run makes {parts:,} parts again, and what follows from them"]
    if returning := receipt["may_return"]:
        lines.append(f"{len(returning):,} duplicates that were dropped for them may come back then")
        lines += [f"  {uid}" for uid in returning[:NAMED]]
        if len(returning) > NAMED:
            lines.append(f"  and {len(returning) - NAMED:,} more, in the receipt")
    copies = receipt["copies"]
    if copies:
        taken = "taken too" if receipt["with_copies"] else "not taken; --with-copies takes them too"
        exact = sum(copy["similarity"] == 1 for copy in copies)
        lines += ["", f"copies under other uids: {exact:,} exact, {len(copies) - exact:,} near ({taken})"]
        lines += [
            f"  {copy['uid']} is {copy['similarity']:.0%} like {copy['of']}: {copy['fate']}" for copy in copies[:NAMED]
        ]
        if len(copies) > NAMED:
            lines.append(f"  and {len(copies) - NAMED:,} more, in the receipt")
    if receipt["not_looked_at"]:
        lines += ["", "not looked at", *(f"  {line}" for line in receipt["not_looked_at"][:NAMED])]
        if len(receipt["not_looked_at"]) > NAMED:
            lines.append(f"  and {len(receipt['not_looked_at']) - NAMED:,} more, in the receipt")
    if sample := receipt["sample"]:
        lines += ["", f"the run on a part of the inputs, {sample}: they go there too; it has a receipt of its own"]
        lines += [f"  {verb}: {other['documents']:,} documents" for other in receipt.get("also", {}).values()]
    lines += ["", "not reached", *(f"  {line}" for line in receipt["not_reached"])]
    return "".join(f"{wrapped}\n" for line in lines for wrapped in wrap(line))


def wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    ) or [""]
