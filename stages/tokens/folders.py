"""Where sets of token shards lie in the folder of a run, and which stage they are of."""

from __future__ import annotations

import re

import xxhash

CELLS = "cells.json"  # beside the sets of several cells: the folder of each cell
UNNAMED = "pack"  # the stage whose sets lie in `shards/` itself: one without a name of its own
FILE_OF_A_SET = re.compile(
    r"shards/([a-z0-9_]+/)?"
    r"([a-z0-9-]*-[0-9a-f]{8}/)?"
    r"(\d+/(shard-\d{5}\.[0-9a-f]{8}\.arrow|index\.json|tokenizer/tokenizer(_config)?\.json)|README\.md|cells\.json)$"
)


def folder_of_sets(called: str) -> str:
    """Of all that a stage packs."""
    return "shards" if called == UNNAMED else f"shards/{called}"


def folder_of_cell(cell: str) -> str:
    """A name for a folder that no other cell has: what can be read of it, and a hash."""
    readable = re.sub("[^a-z0-9]+", "-", cell.lower()).strip("-")[:40]
    return f"{readable}-{xxhash.xxh3_64_intdigest(cell.encode()) & 0xFFFFFFFF:08x}"


def owner_of_set(path: str) -> str | None:
    """The stage that wrote a file of a set, by its path; None for any other file."""
    match = FILE_OF_A_SET.match(path)
    return None if match is None else (match[1] or UNNAMED).rstrip("/")
