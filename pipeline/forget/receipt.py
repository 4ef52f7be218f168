"""The receipt in words: what was found where, what stays out of reach, and which copies there are."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.pipeline.forget.outside import asking_stages, copies_kept, inputs_of, tables_folder
from gristmill.pipeline.forget.search import Files, string_columns
from gristmill.pipeline.inputs.files import NoOriginal, is_below, reader_of
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store

NAMED = 20
WIDTH = 79
JUDGES = ("judge", "label", "llm_score", "llm_label")
KINDS = {
    "uid": "uids", "url": "urls", "host": "hosts", "sha256": "SHA-256 of texts", "xxh3": "XXH3 of texts",
    "email": "e-mail addresses",
}  # fmt: skip


def place_of(path: str) -> str:
    """What a file of a run is."""
    if path.startswith("partitions/") and path.endswith(".parquet"):
        return "documents, signals and verdicts between stages"
    if path.startswith("stages/") and path.endswith(".parquet"):
        return "rejects"
    if path.endswith(".parquet"):
        return f"tables of {path.partition('/')[0]}/" if "/" in path else "tables"
    return "reports (samples and examples)" if path.endswith(".json") else "lines of logs, caches and text files"


def out_of_reach(store: Store, files: Files, record: RunRecord) -> list[str]:
    """What this cannot take documents out of."""
    tokenizers = [folder for folder in files.sets if store.exists(f"{folder}/tokenizer/tokenizer.json")]
    judges = {entry.name: entry.settings.get("model") for entry in record.stages if entry.stage in JUDGES}
    mute = [path for path, schema in files.tables.items() if not string_columns(schema)]
    reached = [
        f"the tokenizer of {', '.join(tokenizers)}: if it was trained on these documents, its pieces reflect them;"
        " it is left as it is, or all shards would change"
    ]
    return [
        *(reached if tokenizers else []),
        *(f"the judge in {folder}: its weights reflect what it was trained on" for folder in files.judges),
        *(
            f"the judge of stage {stage}: it lies outside this folder"
            for stage, judge in judges.items()
            if isinstance(judge, str) and judge not in files.judges
        ),
        *(
            f"answers that {asking.name} keeps in {asking.folder}, by hashes that only its model can make again;"
            " those that quote a document are found"
            for asking in asking_stages(record)
            if asking.stage.answer_keys(()) is None
        ),
        *(f"{path}: a table without uids and texts" for path in mute[:NAMED]),
        *(f"{path}: not a kind of file that is looked through" for path in files.others[:NAMED]),
        *([f"{len(files.others) - NAMED:,} more files that are not looked through"] if files.others[NAMED:] else []),
        *(
            f"inputs of {source}: {place}; later runs here leave these documents out"
            for source, place in inputs(store, record)
        ),
        *(
            f"the cache of crawls of {source} on other machines ({copies.folder}); a run that reads these files again"
            " fetches them again"
            for source, copies in copies_kept(record).items()
        ),
        "other runs of the same inputs: give this list to `gristmill forget` for each of them",
        "copies of this folder, exports that were moved or are not on record, and models trained on its shards",
    ]


def inputs(store: Store, record: RunRecord) -> Iterator[tuple[str, str]]:
    """Sources and where their files are; not those in OUT-tables, which are edited."""
    for source in record.sources:
        try:
            roots = reader_of(record.recipe, source).roots
        except NoOriginal:
            roots = ()
        files = sorted(address for address in inputs_of(store) if any(is_below(address, root) for root in roots))
        if not files or not all(Path(file).parent == tables_folder(store.root) for file in files):
            more = f" and {len(files) - 1:,} more files" if len(files) > 1 else ""
            yield source, f"{files[0]}{more}" if files else ", ".join(roots) or "where the recipe says"


def in_words(receipt: Mapping[str, Any], done: bool) -> str:
    """For people, at 80 columns."""
    verb = "forgotten" if done else "would be forgotten"
    copies, returning, parts = receipt["copies"], receipt["may_return"], receipt["parts_made_again"]
    taken = "taken too" if receipt["with_copies"] else "not taken; --with-copies takes them too"
    exact = sum(copy["similarity"] == 1 for copy in copies)
    also = [f"{verb}: {other['documents']:,} documents" for other in receipt.get("also", {}).values()]
    lines = [
        f"asked for: {', '.join(f'{count:,} {KINDS[kind]}' for kind, count in receipt['asked'].items())}",
        f"{verb}: {receipt['documents']:,} documents",
        *(f"{folder}: {tokens:,} tokens" for folder, tokens in receipt["tokens"].items()),
        *section("found in", [found_at(place, where) for place, where in receipt["found"].items()]),
        *section("exports that are written again", receipt["exports"]),
        *(["", f"the next run makes {parts:,} parts again, and what follows from them"] if parts else []),
        *section(f"{len(returning):,} duplicates that were dropped for them may come back then", returning, NAMED),
        *section(
            f"copies under other uids: {exact:,} exact, {len(copies) - exact:,} near ({taken})",
            [f"{copy['uid']} is {copy['similarity']:.0%} like {copy['of']}: {copy['fate']}" for copy in copies],
            NAMED,
        ),
        *section("not looked at", receipt["not_looked_at"], NAMED),
    ]
    if receipt["sample"]:
        lines += [
            "",
            f"the run on a part of the inputs, {receipt['sample']}: they go there too; it has a receipt of its own",
        ]
        lines += [f"  {line}" for line in also]
    lines += section("not reached", receipt["not_reached"])
    return "".join(f"{wrapped}\n" for line in lines for wrapped in wrap(line))


def found_at(place: str, where: Mapping[str, int]) -> str:
    return f"{place}: {where['files']:,} files" + (f", {where['rows']:,} rows" if where["rows"] else "")


def section(heading: str, lines: Sequence[str], most: int | None = None) -> list[str]:
    """A heading and what is below it, as far as it is shown; nothing where there is nothing."""
    shown = lines[:most]
    more = [f"  and {len(lines) - len(shown):,} more, in the receipt"] if len(lines) > len(shown) else []
    return ["", heading, *(f"  {line}" for line in shown), *more] if lines else []


def wrap(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    ) or [""]
