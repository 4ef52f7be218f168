"""DataTrove's tokenized files: `00000_tokens.ds`, nothing but tokens, `.ds.index`, where each document ends in tokens
(uint64), and `.ds.metadata`, three lines with the tokenizer, bytes a token and the count (DataTrove 0.10).

One file a shard. Tokens are uint16 where all 65,536 ids fit, as here, and uint32 beyond.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.shards.export.rows import Sequences


def write_datatrove(
    folder: Path, number: int, sequences: Iterable[Sequences], dtype: np.dtype[Any], tokenizer: str
) -> int:
    """Writes the three files of one shard; every sequence is a document. Returns the number of documents."""
    path = folder / f"{number:05}_tokens.ds"
    dtype = dtype.newbyteorder("<")
    count = end = 0
    with path.open("wb") as tokens, path.with_name(f"{path.name}.index").open("wb") as index:
        for block in sequences:
            tokens.write(np.ascontiguousarray(block.tokens, dtype).data)
            ends = end + np.cumsum(block.lengths, dtype=np.int64)
            index.write(ends.astype("<u8").data)
            end = int(ends[-1])
            count += len(ends)
    name = " ".join(tokenizer.split()).replace("|", "/")
    path.with_name(f"{path.name}.metadata").write_text(
        f"{name}|{dtype.itemsize}\n{end}\n{end / 1e9:.3g} GT", encoding="utf-8"
    )
    return count
