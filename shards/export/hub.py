"""A folder to upload to a Hugging Face hub: the unchanged shards, their index, the tokenizer, and a card with which a
hub's viewer opens them.

The shards need no conversion: `load_dataset("arrow", data_files=...)` maps them, with lists and dictionaries.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from gristmill.shards.card import Facts, Packing, configs, dataset_card, with_configs
from gristmill.shards.export.rows import ExportError
from gristmill.shards.index import NAME
from gristmill.shards.reader import ShardSet
from gristmill.shards.verify import changed_tokenizer

CARD = "README.md"
TOKENIZER = "tokenizer"
SHARDS = "shards"  # the folder of a run that holds the sets
LEVELS = 3  # folders to search: rows, a `pack` of another name, shards


def facts_of(shards: ShardSet, path: str) -> Facts:
    """The facts that the shards themselves provide for a card; `path` is the pattern of their files, relative to the
    card's folder."""
    index, meta = shards.index, shards.meta
    packing: Packing = {
        "row_length": meta.row_length,
        "path": path,
        "rows": index.total("rows"),
        "tokens": index.total("tokens"),
        "padding": index.total("padding"),
        "documents": index.total("documents"),
        "pieces": index.total("pieces"),
        "shards": len(index.shards),
        "bytes": index.total("bytes"),
        "packer": meta.packer,
        "seed": meta.seed,
        "fingerprint": meta.fingerprint,
    }
    return {
        "sources": [{"name": name, "tokens": tokens} for name, tokens in index.sources.items()],
        "tokenizer": {
            "name": meta.tokenizer,
            "hash": meta.tokenizer_hash,
            "vocabulary": meta.vocab_size,
            "bos": meta.bos_id,
            "eos": meta.eos_id,
            "pad": meta.pad_id,
        },
        "packing": [packing],
    }


def write_hub(folder: Path, shards: ShardSet, copied: Callable[[int], None]) -> int:
    """Fills an empty folder; `copied` is called with the rows of each shard. Returns the number of rows."""
    rows_folder = str(shards.meta.row_length)
    for shard in shards.index.shards:
        target = folder / rows_folder / shard.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shards.folder / shard.path, target)
        copied(shard.rows)
    (folder / rows_folder).mkdir(exist_ok=True)
    shutil.copyfile(shards.folder / NAME, folder / rows_folder / NAME)
    facts = facts_of(shards, f"{rows_folder}/*.arrow")
    card = _above(shards.folder, CARD)
    text = with_configs(card.read_text(encoding="utf-8"), configs(facts["packing"])) if card else dataset_card(facts)
    (folder / CARD).write_text(text, encoding="utf-8")
    tokenizer = _above(shards.folder, TOKENIZER)
    if tokenizer:
        if changed := changed_tokenizer(tokenizer / "tokenizer.json", shards.meta.tokenizer_hash):
            raise ExportError(f"{tokenizer / 'tokenizer.json'}: {changed}")
        shutil.copytree(tokenizer, folder / TOKENIZER)
    return len(shards)


def _above(folder: Path, name: str) -> Path | None:
    """The nearest file or folder of that name, from the shards' folder up to that of the run. Folders above shards that
    were moved belong to others."""
    places = [folder.resolve(), *folder.resolve().parents]
    run = next((level + 1 for level, place in enumerate(places[:LEVELS]) if level and place.name == SHARDS), 0)
    return next((place / name for place in places[: run + 1] if (place / name).exists()), None)
