"""Holds the token shards of a finished run against the documents that it wrote."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer

from gristmill.pipeline.demo.check import Finding, equal, rows_of
from gristmill.shards.reader import open_shards
from gristmill.shards.verify import verify


def check_shards(out: Path, row_length: int) -> list[Finding]:
    """Every text that was written stands in the token shards, whole and once, and comes back from them."""
    kept = rows_of(sorted((out / "write").glob("*.parquet")), ["uid", "text"])
    folder = out / "shards" / str(row_length)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    texts = {row["uid"]: row["text"] for row in kept}
    read = Counter(document.uid for document in open_shards(folder).documents())
    changed = sum(
        tokenizer.decode(document.tokens[:-1].tolist(), skip_special_tokens=False) != texts.get(document.uid)
        for document in open_shards(folder).documents()
    )
    return [
        equal("faults of the token shards", 0, len(list(verify(folder)))),
        equal("documents in the token shards, each once", len(kept), sum(read[uid] == 1 for uid in texts)),
        equal("documents that token shards do not give back as they were written", 0, changed),
    ]
