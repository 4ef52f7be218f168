"""What was met before goes, the first copy stays, and only the order of uids and the settings decide."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.duplicates.bloom import walk_plain
from gristmill.kernels.duplicates.paragraphs import grams_of_unit_plain, lines_plain, without_units_plain
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.stages.dedup.bloom import NEVER, BloomDedup
from gristmill.stages.stage import CannotRun
from tests.stages.scattered import fates

SCHEMA = pa.schema([("uid", pa.uint64()), ("text", pa.string())])


def fates_plain(stage: BloomDedup, rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """With a filter that never errs."""
    out = {}
    for shard in range(stage.shards):
        mine = sorted((r for r in rows if r["uid"] % stage.shards == shard), key=lambda r: r["uid"])
        documents, most = [], []
        for r in mine:
            data = (r["text"] or "").encode()
            spans = [(0, len(data))] if stage.remove == "documents" else lines_plain(data.decode())
            words = [len(list(tokens_plain(data[a:b].decode()))) for a, b in spans]
            whole = sum(n for n in words if n >= stage.min_ngram) >= stage.judged_share * sum(words)
            most.append(stage.threshold if whole and stage.remove != "lines" else NEVER)
            documents.append(
                [grams_of_unit_plain(data[a:b].decode(), stage.ngram, stage.min_ngram, stage.seed) for a, b in spans]
            )
        walked = walk_plain(documents, stage.threshold, most)
        for r, (goes, drops, met), units in zip(mine, walked, documents, strict=True):
            goes = [False] * len(goes) if stage.remove == "documents" else goes
            text = r["text"] or ""
            left = without_units_plain(text, lines_plain(text), goes) if any(goes) else text
            out[r["uid"]] = {
                "text": None if r["text"] is None else left,
                "reason": "repeated_document" if drops else "all_repeated" if any(goes) and not left else None,
                "bloom_lines": sum(goes),
                "bloom_share": met / max(1, sum(map(len, units))),
            }
    return out


LINE = st.lists(st.sampled_from(["a", "B", "c", "mill", "9", ".", "\u6c34"]), max_size=7).map(" ".join)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"uid": st.integers(0, 2**64 - 1), "text": st.one_of(st.none(), st.lists(LINE, max_size=5).map("\n".join))}
    ),
    max_size=12,
    unique_by=lambda row: row["uid"],
)


@given(
    ROWS, st.sampled_from(["both", "lines", "documents"]), st.integers(1, 4), st.integers(0, 3), st.sampled_from([0.0, 0.5, 0.8]),
    st.sampled_from([1, 2, 8]), st.sampled_from([0.0, 0.5, 0.9]), st.integers(0, 99),
)  # fmt: skip
def test_what_stays_is_what_the_plain_twin_keeps(rows, remove, ngram, less, threshold, shards, judged_share, seed):
    stage = BloomDedup(
        remove=remove,
        ngram=ngram,
        min_ngram=max(1, ngram - less),
        threshold=threshold,
        shards=shards,
        judged_share=judged_share,
        false_positives=1e-6,
        seed=seed,
    )
    found, wanted = fates(stage, rows, SCHEMA, seed), fates_plain(stage, rows)
    assert found.keys() == wanted.keys() == {row["uid"] for row in rows}
    for uid, fate in found.items():
        assert {name: fate.get(name, 0) for name in wanted[uid]} == wanted[uid]


def story(number: int, words: int = 40) -> str:
    chance = random.Random(number)
    return " ".join(f"w{chance.getrandbits(20)}" for _ in range(words))


def made(count: int) -> list[dict[str, Any]]:
    """Documents of four lines; each line of `count` stories stands in two of them."""
    chance = random.Random(5)
    pieces = [story(n) for n in range(2 * count)] * 2
    chance.shuffle(pieces)
    return [{"uid": chance.getrandbits(64), "text": "\n".join(pieces[4 * i : 4 * i + 4])} for i in range(count)]


def test_the_first_copy_of_every_line_stays_whatever_the_order():
    rows = made(200)
    ways = [fates(BloomDedup(), rows, SCHEMA, seed) for seed in range(4)]
    assert ways[0] == ways[1] == ways[2] == ways[3]
    kept = [fate["text"] for fate in ways[0].values() if not fate["reason"]]
    left = "\n".join(kept).split("\n")
    assert {line for row in rows for line in row["text"].split("\n")} == set(left) and len(set(left)) == 400
    assert len(left) == 400, "and no second one"
    assert sum(fate["reason"] == "repeated_document" for fate in ways[0].values()) == 200 - len(kept) > 0


def test_a_document_that_goes_does_not_take_along_what_only_it_had():
    """BFF leaves its new lines in the filter, and the next copy of them goes too."""
    known = [story(n, 60) for n in range(5)]
    new = story(99, 20)
    rows = [
        {"uid": 1, "text": "\n".join(known)},
        {"uid": 2, "text": "\n".join([*known, new])},
        {"uid": 3, "text": f"{new}\n{story(7)}"},
    ]
    found = fates(BloomDedup(), rows, SCHEMA)
    assert [found[uid]["reason"] for uid in (1, 2, 3)] == [None, "repeated_document", None]
    assert found[3]["text"] == rows[2]["text"] and found[2]["detail"] == "240 of 248 n-grams met before"


def test_a_known_line_does_not_take_along_a_document_of_short_lines():
    rows = [
        {"uid": 1, "text": story(1, 13)},
        {"uid": 2, "text": "\n".join([story(1, 13), *(f"line {n} of a poem" for n in range(30))])},
    ]
    assert fates(BloomDedup(judged_share=0), rows, SCHEMA)[2]["reason"] == "repeated_document", "as BFF has it"
    found = fates(BloomDedup(), rows, SCHEMA)[2]
    assert found["reason"] is None and found["bloom_lines"] == 1 and found["text"] == rows[1]["text"].split("\n", 1)[1]


def test_short_lines_and_numbered_records_lose_nothing():
    rows = [
        {
            "uid": uid,
            "text": f"Yes.\nSection B\nRecord {uid} has number {uid * 7} of day {uid * 3} and of owner {uid * 11} too",
        }
        for uid in range(300)
    ]
    found = fates(BloomDedup(false_positives=1e-6), rows, SCHEMA)
    assert len(found) == 300 and all(
        fate["text"] == rows[uid]["text"] and not fate["reason"] for uid, fate in found.items()
    )


def test_a_threshold_is_to_be_exceeded():
    words = story(1, 17).split()
    half = " ".join(words + story(2, 5).split())  # 5 of 10 n-grams
    rows = [{"uid": 1, "text": story(1, 17)}, {"uid": 2, "text": half}]
    assert fates(BloomDedup(threshold=0.5), rows, SCHEMA)[2]["reason"] is None
    assert fates(BloomDedup(threshold=0.49), rows, SCHEMA)[2]["reason"] == "repeated_document"


def test_another_seed_errs_elsewhere_and_the_same_in_the_same_places():
    rows = [{"uid": uid, "text": story(uid)} for uid in range(400)]

    def erred(seed: int) -> set[int]:
        found = fates(BloomDedup(false_positives=0.5, threshold=0.6, seed=seed), rows, SCHEMA, seed % 7)
        return {uid for uid, fate in found.items() if fate["reason"]}

    first = erred(0)
    assert first and first == erred(0) != erred(1)


def test_a_filter_that_does_not_fit_says_what_to_do():
    rows = made(400)
    with pytest.raises(
        CannotRun, match=r"a filter for the 44,800 n-grams that errs in 0.01 takes 0.1 MB.*shards: \d+ "
    ):
        fates(BloomDedup(memory=1 << 12), rows, SCHEMA)
    assert len(fates(BloomDedup(memory=1 << 12, shards=64), rows, SCHEMA)) == 400


def test_settings_that_contradict_are_refused():
    with pytest.raises(SettingsError, match="above ngram"):
        BloomDedup(ngram=5)
    with pytest.raises(SettingsError, match="power of two"):
        BloomDedup(shards=3)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"uid": 1, "text": None}],
        [{"uid": 1, "text": ""}, {"uid": 2, "text": "\n\n"}, {"uid": 3, "text": "\u0301"}],
    ],
)
def test_documents_without_words_pass(rows):
    found = fates(BloomDedup(min_ngram=1), rows, SCHEMA)
    assert {uid: fate["text"] for uid, fate in found.items()} == {row["uid"]: row["text"] for row in rows}
