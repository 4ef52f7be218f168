"""The receipt in words: what was found where, what stays out of reach, and which copies there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gristmill.pipeline.forget.outside import answers_kept, crawl_caches, inputs_of, tables_folder
from gristmill.pipeline.forget.search import Files, string_columns
from gristmill.pipeline.inputs.files import NoOriginal, is_below, reader_of
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.store.storage import Store

NAMED = 20
WIDTH = 79
JUDGES = ("judge", "label", "llm_score", "llm_label")


def place_of(path: str) -> str:
    """The folder of a run that a file is in; a file elsewhere by its path."""
    return path if path.startswith("..") else path.partition("/")[0]


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
            f"answers that {stage} keeps in {folder}, but for those that quote a document"
            for stage, folder in answers_kept(record)
        ),
        *(f"{path}: a table without uids and texts" for path in mute[:NAMED]),
        *(f"{path}: not a kind of file that is looked through" for path in files.others[:NAMED]),
        *([f"{len(files.others) - NAMED:,} more files that are not looked through"] if files.others[NAMED:] else []),
        *(
            f"inputs of {source}: {place}; later runs here leave these documents out"
            for source, place in inputs(store, record)
        ),
        *(
            f"the cache of crawls of {source} on other machines ({folder}); a run that reads these files again"
            " fetches them again"
            for source, folder in crawl_caches(record).items()
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


def in_words(receipt: Mapping[str, Any]) -> str:
    """The receipt for people: YAML, with long lists cut short and documents as a number."""
    told: dict[str, Any] = {}
    for name, value in receipt.items():
        if isinstance(value, list) and len(value) > NAMED:
            value = [*value[:NAMED], f"and {len(value) - NAMED:,} more, in the receipt"]
        if name != "each" and value not in (None, "", [], {}):
            told[name.replace("_", " ")] = value
    return yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=WIDTH)
