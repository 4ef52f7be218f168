"""Three months in a row that share an index of exact and near copies: each month sees those before it."""

from __future__ import annotations

from benchmarks.pipeline.locked.inputs import documents, own, texts, write_source
from benchmarks.pipeline.locked.lock import Lock

MONTHS = ("2024-9", "2024-10", "2024-11")
RECIPE = """
name: month-MONTH
parts: {files: 1}
sources: {month-MONTH: {jsonl: {path: HERE/in/MONTH}}}
stages:
  - exact_dedup: {against: [HERE/index/exact/], save_index: HERE/index/exact/MONTH}
  - minhash_dedup: {against: [HERE/index/near/], save_index: HERE/index/near/MONTH, threshold: 0.6}
  - write
"""
AGAINST_TWO = """
name: against_two
parts: {files: 1}
sources: {later: {jsonl: {path: HERE/in/2024-11}}}
stages:
  - minhash_dedup: {against: [HERE/index/near/2024-9, HERE/index/near/2024-10], within: false, threshold: 0.6}
  - write
"""


def take(lock: Lock) -> None:
    given = list(dict.fromkeys(texts(lock.folder)))
    for number, month in enumerate(MONTHS):
        new = given[40 * number : 40 * number + 100]  # 60 of the month before
        near = [f"{text}\nSeen again in {month}." for text in given[: 30 * number]]
        write_source(
            lock.folder / "in" / month, documents([*new, *near, *own(tuple(new[:20]), month)], number), "jsonl"
        )
        recipe = lock.recipe(month, RECIPE.replace("MONTH", month))
        out = lock.run(month, recipe)
    lock.run("the last month again", recipe, out)
    lock.run("against two", lock.recipe("against_two", AGAINST_TWO))
