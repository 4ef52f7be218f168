"""Of every paragraph that repeats as many copies stay as were asked for, in the right documents; all else stays as it
is."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.duplicates.paragraphs import hashes_of_units, lines_plain, paragraphs_plain, without_units_plain
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.stages.dedup import paragraph
from gristmill.stages.dedup.paragraph import ParagraphDedup, _pairs_in
from tests.stages.scattered import fates

SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("date", pa.string()),
        ("text", pa.string()),
    ]
)


def words(text: str) -> tuple[bytes, ...]:
    return tuple(word for _, _, word in tokens_plain(text))


def fates_plain(stage: ParagraphDedup, rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    cut = lines_plain if stage.unit == "line" else paragraphs_plain

    def standing(row: dict[str, Any]) -> list[Any]:
        rank = stage.sources.index(row["source"]) if row["source"] in stage.sources else len(stage.sources)
        parts = {"source": rank, "longest": -len(row["text"] or ""), "earliest": (not row["date"], row["date"] or "")}
        return [*(parts[name] for name in stage.prefer), row["uid"]]

    seen: Counter[tuple[bytes, ...]] = Counter()
    out = {}
    for row in sorted(rows, key=standing):
        text = row["text"] or ""
        units, goes, left = cut(text), [], 0
        for start, end in units:
            has = words(text.encode()[start:end].decode())
            seen[has] += 1
            goes.append(len(has) >= stage.min_words and seen[has] > stage.copies)
            left += 0 if goes[-1] else len(has)
        out[row["uid"]] = {
            "text": None if row["text"] is None else without_units_plain(text, units, goes),
            "reason": "all_repeated" if any(goes) and left < stage.min_left else None,
            "repeated_paragraphs": sum(goes),
            "repeated_share": sum((b - a) * g for (a, b), g in zip(units, goes, strict=True))
            / max(1, len(text.encode())),
        }
    return out


LINE = st.sampled_from(
    ["", " ", "the mill", "The MILL.", "stone", "wheel 1", "wheel 2", "\u6c34\u8eca", "a b c", "a  b, c!", "\u2003"]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "uid": st.integers(0, 2**64 - 1),
            "source": st.sampled_from(["a", "b", "c"]),
            "date": st.sampled_from([None, "", "2023-01-01", "2024-01-01T00:00:00Z"]),
            "text": st.one_of(st.none(), st.lists(LINE, max_size=6).map("\n".join), st.text("ab \n", max_size=9)),
        }
    ),
    max_size=12,
    unique_by=lambda row: row["uid"],
)
POLICY = st.lists(st.sampled_from(["source", "longest", "earliest"]), unique=True)


@given(ROWS, POLICY, st.sampled_from(["line", "paragraph"]), st.integers(1, 3), st.integers(1, 2), st.integers(0, 99))
def test_what_stays_is_what_the_plain_twin_keeps(rows, prefer, unit, min_words, copies, seed):
    sources = ["b", "a"] if "source" in prefer else []
    stage = ParagraphDedup(
        prefer=prefer, sources=sources, unit=unit, min_words=min_words, min_left=min_words, copies=copies
    )
    found, wanted = fates(stage, rows, SCHEMA, seed), fates_plain(stage, rows)
    assert found.keys() == wanted.keys() == {row["uid"] for row in rows}
    for uid, fate in found.items():
        assert {name: fate.get(name, 0) for name in wanted[uid]} == wanted[uid]


@given(ROWS, st.integers(1, 3), st.integers(0, 99))
def test_every_unit_is_still_there_as_often_as_may_be(rows, copies, seed):
    stage = ParagraphDedup(min_words=1, min_left=1, copies=copies)

    def units(texts: list[str | None]) -> Counter[tuple[bytes, ...]]:
        return Counter(has for text in texts for line in (text or "").split("\n") if (has := words(line)))

    left = units([fate["text"] for fate in fates(stage, rows, SCHEMA, seed).values() if fate["reason"] is None])
    assert left == Counter({unit: min(count, copies) for unit, count in units([row["text"] for row in rows]).items()})


def row(uid: int, text: str | None, source: str = "a", date: str | None = None) -> dict[str, Any]:
    return {"uid": uid, "text": text, "source": source, "date": date}


NOTICE = "This site uses cookies to give you the best of all that the mill can offer you today."
STORY = "A story of its own that the miller told us {} years ago by the river, and nobody has told since."


def test_a_notice_on_every_page_is_left_on_one():
    rows = [row(uid, f"{STORY.format(uid)}\n{NOTICE}\nShare") for uid in range(1, 101)]
    rows += [row(101, NOTICE.upper()), row(102, "Share")]
    found = fates(ParagraphDedup(), rows, SCHEMA)
    assert len(found) == 102
    assert found[100]["text"] == rows[99]["text"] and found[100]["repeated_paragraphs"] == 0, (
        "the longest text has it still"
    )
    others = [uid for uid in range(1, 100) if found[uid]["text"] == f"{STORY.format(uid)}\nShare"]
    assert len(others) == 99 and {found[uid]["repeated_paragraphs"] for uid in others} == {1}
    assert (
        found[101]["reason"] == "all_repeated"
        and found[101]["detail"] == "1 of 1 lines stand elsewhere too; 0 words left"
    )
    assert found[102]["reason"] is None and sum(fate["reason"] is not None for fate in found.values()) == 1


def test_numbered_records_and_short_lines_lose_nothing():
    rows = [
        row(
            uid,
            "\n".join(
                [f"Record {uid} of the registry has the number {uid * 7} and was filed on day {uid}", "Yes.", "B"]
            ),
        )
        for uid in range(200)
    ]
    found = fates(ParagraphDedup(), rows, SCHEMA)
    assert [found[uid]["text"] for uid in range(200)] == [r["text"] for r in rows]
    assert (
        all(not fate["reason"] and not fate.get("repeated_paragraphs") for fate in found.values()) and len(found) == 200
    )


def test_pairs_that_share_a_half_are_two():
    wanted = np.array([7, 7, 9], np.uint64), np.array([1, 2, 1], np.uint64)
    asked = np.array([7, 9, 7, 9, 8], np.uint64), np.array([2, 2, 3, 1, 1], np.uint64)
    assert _pairs_in(*asked, *wanted).tolist() == [True, False, False, True, False]


def test_paragraphs_that_share_half_their_hash_are_not_taken_for_one_another(monkeypatch):
    def half_alike(column: Any, units: Any) -> Any:
        found = hashes_of_units(column, units)
        return found._replace(high=found.high & np.uint64(1))

    monkeypatch.setattr(paragraph, "hashes_of_units", half_alike)
    rows = [row(uid, "\n".join([STORY.format(uid), STORY.format(uid % 7), NOTICE])) for uid in range(40)]
    for seed in range(5):
        found = fates(ParagraphDedup(), rows, SCHEMA, seed)
        wanted = fates_plain(ParagraphDedup(), rows)
        assert {uid: fate["text"] for uid, fate in found.items()} == {uid: fate["text"] for uid, fate in wanted.items()}


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4))), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)))
)
def test_pairs_in(asked, wanted):
    columns = [np.array([pair[side] for pair in pairs], np.uint64) for pairs in (asked, wanted) for side in (0, 1)]
    assert _pairs_in(*columns).tolist() == [pair in wanted for pair in asked]


def test_rows_sent_for_a_paragraph_that_is_everywhere_are_one_for_each_part():
    docs = pa.Table.from_pylist([row(uid, "\n".join([NOTICE] * 50)) for uid in range(1000)], schema=SCHEMA)
    stage = ParagraphDedup(copies=2)
    rows = stage.sign(docs)
    assert len(rows) == 1 and rows["times"].to_pylist() == [3]
    assert sum(rows.schema.field(name).type.byte_width for name in rows.schema.names) + 8 == 20, (
        "with home, as the docs say"
    )
    candidates = stage.candidates(rows, docs)
    assert candidates["uid"].to_pylist() == [0, 0] and candidates["place"].to_pylist() == [0, 1]


def test_a_setting_by_which_the_last_copy_could_go_is_refused():
    with pytest.raises(SettingsError, match="copy that stays could go"):
        ParagraphDedup(min_words=5, min_left=6)


def test_nothing_hangs_on_order_or_parts():
    chance = random.Random(3)
    lines = [STORY.format(n) for n in range(40)]
    rows = [row(chance.getrandbits(64), "\n".join(chance.choices(lines, k=5))) for _ in range(60)]
    made: dict[str, list[int]] = defaultdict(list)
    for seed in range(10):
        found = fates(ParagraphDedup(), rows, SCHEMA, seed)
        made[repr(sorted((uid, fate["text"], fate["reason"]) for uid, fate in found.items()))].append(seed)
    assert len(made) == 1
    assert sum(fate["text"].count("story") for fate in found.values() if not fate["reason"]) == 40
