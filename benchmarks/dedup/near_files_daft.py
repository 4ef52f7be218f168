#!/usr/bin/env python3
"""What `near_files.py` asks of Daft, run by a Python that has it: documents of Parquet files without near-duplicates.

python near_files_daft.py FOLDER OUT
"""

import sys

import daft
from daft import col
from daft.functions import chunk, length, minhash, normalize

BANDS, ROWS, NGRAM, SEED = 18, 7, 5, 42


def main() -> None:
    folder, out = sys.argv[1:]
    documents = daft.read_parquet(f"{folder}/*.parquet")
    clean = normalize(col("text"), lowercase=True, white_space=True)
    signature = minhash(clean, num_hashes=BANDS * ROWS, ngram_size=NGRAM, seed=SEED, hash_function="xxhash")
    banded = documents.select(col("id"), chunk(signature, ROWS).alias("band"))
    banded = banded.with_column("number", daft.lit(list(range(BANDS)))).explode("band", "number")
    buckets = banded.groupby("number", "band").agg(col("id").list_agg().alias("ids"))
    met = buckets.where(length(col("ids")) > 1).select("ids").to_pydict()["ids"]
    gone = daft.from_pydict({"id": those_that_go(met)})
    documents.join(gone, on="id", how="anti").write_parquet(out)


def those_that_go(buckets: list[list[str]]) -> list[str]:
    """All but the first of each cluster."""
    parent: dict[str, str] = {}

    def root(member: str) -> str:
        while (above := parent.setdefault(member, member)) != member:
            parent[member] = parent.setdefault(above, above)
            member = above
        return member

    for bucket in buckets:
        first = root(bucket[0])
        for other in bucket[1:]:
            at = root(other)
            first, last = (first, at) if first < at else (at, first)
            parent[last] = first
    return [member for member in parent if root(member) != member]


if __name__ == "__main__":
    main()
