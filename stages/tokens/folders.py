"""Where sets of token shards lie in the folder of a run, and which stage they are of."""

from __future__ import annotations

import re

UNNAMED = "pack"  # the stage whose sets lie in `shards/` itself: one without a name of its own
FILE_OF_A_SET = re.compile(
    r"shards/([a-z0-9_]+/)?"
    r"(\d+/(shard-\d{5}\.[0-9a-f]{8}\.arrow|index\.json|tokenizer/tokenizer(_config)?\.json)|README\.md)$"
)


def folder_of_set(called: str, length: int) -> str:
    """Of the rows of one length that a stage packs."""
    return f"shards/{length}" if called == UNNAMED else f"shards/{called}/{length}"


def owner_of_set(path: str) -> str | None:
    """The stage that wrote a file of a set, by its path; None for any other file."""
    match = FILE_OF_A_SET.match(path)
    return None if match is None else (match[1] or UNNAMED).rstrip("/")
