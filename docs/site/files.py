"""What a run leaves on disk: folders, the columns of tables and the keys of run.json, from the types that write them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from gristmill.pipeline.recipe.recipe import FOLDERS
from gristmill.pipeline.store import counts, partitions, run_records
from gristmill.shards import format as shard_format, index as shard_index
from gristmill.stages import documents, write

# Globs below the folder of a run, and what lies there; tests/docs/test_walkthroughs.py compares them with a run.
PLACES = {
    "report.html": "the run for people; one file, offline",
    "run.json": "the recipe as resolved, versions, every stage with its counts, seconds, peak memory and cost",
    "SINK/*.parquet": "what a sink wrote; the folder is called like the stage, such as `write`",
    "stages/STAGE/report.json": "counts of a stage, drops by reason with samples, its own figures",
    "stages/STAGE/rejects/*.parquet": "documents that a stage dropped, and why",
    "shards/LENGTH/index.json": "shards with rows, tokens and checksums",
    "shards/LENGTH/*.arrow": "training rows of so many tokens",
    "shards/LENGTH/tokenizer/*": "the tokenizer",
    "shards/README.md": "the dataset card",
    "partitions/SEGMENT/*": "documents, signals and verdicts between stages, with a manifest (intermediates)",
    "shuffle/STAGE/**": "rows that global stages shuffle between rounds (intermediates)",
    "index/STAGE/**": "the index of a run on a part of its inputs",
    "journal/**": "finished tasks, the list of inputs, of saved indexes and of exports",
    "logs/**": "run.log: documents that broke a stage, damaged records; progress.json while the run works",
    "forgotten/*": "documents that readers leave out, and receipts of `gristmill forget`",
    "summary/*": "the public summary of training content, by `gristmill report OUT --for eu`",
    "ablations/NAME/**": "an ablation put there by `gristmill ablate --out`",
    ".lock": "held while a run works in the folder",
}


def columns(schema: pa.Schema) -> str:
    from reference import table

    return table(("column", "type"), ((f"`{field.name}`", f"`{field.type}`") for field in schema))


def keys_of_fields(record: type[Any], *, without: str = "", rare: Collection[str] = ()) -> str:
    """The keys of a file that a dataclass is written to."""
    from reference import table

    rows = (
        (f"`{name}`", f"`{kind}`", "where it applies" if name in rare else "always")
        for name, kind in record.__annotations__.items()
        if name != without
    )
    return table(("key", "type", "is there"), rows)


def keys_of(*records: type[Any]) -> str:
    """The keys of a record; those of a TypedDict that it extends are named first."""
    from reference import table

    optional = getattr(records[-1], "__optional_keys__", frozenset())
    rows = []
    for name, kind in [each for record in records for each in own_annotations(record)]:
        words = getattr(
            kind, "__forward_arg__", kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
        )
        inner = re.fullmatch(r"NotRequired\[(.*)\]", words)
        maybe = name in optional or inner is not None
        rows.append((f"`{name}`", f"`{inner[1] if inner else words}`", "where it applies" if maybe else "always"))
    return table(("key", "type", "is there"), rows)


def own_annotations(record: type[Any]) -> list[tuple[str, Any]]:
    """Names and types in a class's own body: a TypedDict has those of the classes that it extends among its own."""
    below = [names for base in getattr(record, "__orig_bases__", ()) for names in getattr(base, "__annotations__", ())]
    return [(name, kind) for name, kind in record.__annotations__.items() if name not in below]


def files_page() -> str:
    from reference import table

    missing = [name for name in FOLDERS if not any(place.startswith(f"{name}/") for place in PLACES)]
    if missing:
        raise ValueError(f"docs/site/files.py says nothing of the folders {', '.join(missing)} of a run")
    meta = shard_format.ShardMeta("bpe", "hash", 32768, 2048, 0, None, 1, "best_fit", 0, "fingerprint")
    text = [
        "# Files of a run",
        "Below the output folder. `gristmill maintain clean` removes intermediates; `gristmill maintain verify` reads each file and"
        " compares checksums.",
        table(("file", "what it holds"), ((f"`{place}`", words) for place, words in PLACES.items())),
        "## Columns of documents\n\nEvery document has these between stages, then its signals"
        " ([signals](signals.md)).\n\n" + columns(documents.BASE),
        "## Columns of write\n\nFirst these, then signals.\n\n" + columns(write.COLUMNS),
        "## Columns of rejects\n\n" + columns(partitions.SCHEMA),
        "## run.json\n\n" + keys_of_fields(run_records.RunRecord),
        "### A stage in run.json\n\nBeside its counts, which stand here and, of each source, in `sources`.\n\n"
        + keys_of_fields(run_records.StageRecord, without="count", rare={"earlier_runs"}),
        "### Counts in run.json\n\n" + keys_of_fields(counts.DocumentCounts, rare=counts.RARE),
        "## Columns of token shards\n\nOf rows of 2,048 tokens of a vocabulary of 32,768.\n\n"
        + columns(shard_format.schema_of(meta, ["a"])),
        "## A shard in index.json\n\n" + keys_of(shard_index.ShardEntry),
        "## What index.json and the schema of a shard say of the set\n\n" + keys_of(shard_format.ShardMeta),
    ]
    return "\n\n".join(text) + "\n"
