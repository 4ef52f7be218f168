"""Features of blocks: kernels and their reference implementations agree on any page, and odd pages do no harm."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.unicode import properties
from gristmill.kernels.blocks import features as said
from gristmill.kernels.blocks.columns import FEATURES, KNOWN
from gristmill.kernels.blocks.features import (
    AT_CONTEXT,
    COLUMNS,
    CONTEXT,
    COUNTS,
    FROM_JSON,
    FROM_META,
    FROM_TITLE,
    HINT_BYTES,
    context_features,
    measure_page,
)
from gristmill.kernels.html.names import TAGS
from gristmill.kernels.html.segment import Page
from tests.reference.block_features_plain import (
    Around,
    as_rows,
    context_plain,
    features_plain,
    measure_plain,
    triples_in,
    words_in,
)

CHARACTERS = st.sampled_from("abAB zZ09._,:;!?\"'()”»。、，：…¡ßΩжЖ中文ไทยñ\u0301½Ⅷ_-\n\t☺€+#")
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=40),
    st.text(max_size=8),
    st.text(CHARACTERS, min_size=60, max_size=300),
    st.sampled_from(["the quick brown fox. " * 4, "a b c", "Title words", ""]),
)
NAMES = st.sampled_from(["div", "p", "h1", "h2", "li", "ul", "article", "main", "nav", "td", "form", "noscript", ""])


@st.composite
def pages(draw):
    count = draw(st.integers(1, 14))
    parent = [-1] + [draw(st.integers(0, e - 1)) for e in range(1, count)]
    tag = [TAGS.index(draw(NAMES)) for _ in range(count)]
    texts = draw(st.lists(TEXTS, min_size=1, max_size=12))
    encoded = [text.encode() for text in texts]
    page = page_of(
        tag, parent, [draw(st.sampled_from([0, 0, 1, 8, 1 << 30, 1 << 31])) for _ in parent], [draw(st.integers(0, 2)) for _ in parent],
        encoded, [draw(st.integers(0, count - 1)) for _ in texts], [draw(st.integers(0, 50)) for _ in texts],
    )  # fmt: skip
    return page, texts


def page_of(tag, parent, bits, alike, encoded, element, linked):
    def array(values, kind):
        return np.array(values, kind)

    none = array([], np.int64)
    return Page(
        array(tag, np.uint8), array(parent, np.int32), array(bits, np.uint32), array(alike, np.uint32), np.frombuffer(b"".join(encoded), np.uint8),
        array(np.cumsum([0] + [len(e) for e in encoded]), np.int64), array(element, np.int32), array(linked, np.int32),
        array([len(e.decode()) for e in encoded], np.int32), array([], np.uint8), none, none,
    )  # fmt: skip


def measured(page, *spans, known=0):
    """Counts, rows and tree, with hints of (kind, text)."""
    encoded = [text.encode() for _, text in spans]
    ends = np.cumsum([0] + [len(e) for e in encoded]).astype(np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8)
    kinds = np.array([kind for kind, _ in spans], np.uint8)
    return measure_page(data, page, kinds, ends[:-1].copy(), ends[1:].copy(), known, len(CONTEXT))


@given(pages(), TEXTS, TEXTS, TEXTS)
def test_counts_of_blocks_equal_their_plain_twin(drawn, title, meta, json):
    page, texts = drawn
    counts, *_ = measured(page, (FROM_TITLE, title), (FROM_META, meta), (FROM_JSON, json.replace("\\", " ")))
    table = properties()
    known = set(words_in(title, table)), set(triples_in(words_in(meta, table))), set(triples_in(words_in(json, table)))
    for row, text in zip(counts.tolist(), texts, strict=True):
        assert dict(zip(COUNTS, row, strict=True)) == measure_plain(text, *known)


@given(pages(), st.integers(0, 2 ** len(KNOWN) - 1), st.data())
@settings(max_examples=200)
def test_features_equal_their_plain_twin(drawn, known, data):
    page, texts = drawn
    counts, rows, tree = measured(page, (FROM_TITLE, "Title words"), (FROM_META, texts[0]), known=known)
    around = Around(page, [dict(zip(COUNTS, row, strict=True)) for row in counts.tolist()], texts, known)
    expected = as_rows(features_plain(around))
    assert rows.shape == (len(texts), COLUMNS)
    for column, name in enumerate(FEATURES):
        assert rows[:, column] == pytest.approx(expected[:, column], rel=1e-5, abs=1e-6), name
    first = np.array([data.draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])) for _ in texts], np.float32)
    context_features(first, counts, page.parent, page.element, tree.sums, tree.path, tree.group, tree.heading, rows)
    expected = as_rows(context_plain(around, first.tolist()), CONTEXT)
    for column, name in enumerate(CONTEXT):
        assert rows[:, AT_CONTEXT + column] == pytest.approx(expected[:, column], rel=1e-5, abs=1e-6), name


def test_escapes_in_json_are_read():
    page = page_of([1], [-1], [0], [0], ["caf\u00e9 au lait, s'il".encode()], [0], [0])
    counts, *_ = measured(
        page, (FROM_JSON, '"x": "caf\\u00e9 au\\nlait"'), (FROM_JSON, "broken \\u00"), (FROM_JSON, "\\")
    )
    assert counts[0, said.IN_JSON] == 1 and counts[0, said.TRIPLES] == 3


def test_hints_are_bounded():
    page = page_of([1], [-1], [0], [0], [b"one two three"], [0], [0])
    started = time.monotonic()
    counts, *_ = measured(page, (FROM_META, "x " * HINT_BYTES + "one two three"), *[(FROM_TITLE, "a")] * 20_000)
    assert counts[0, said.IN_META] == 0 and time.monotonic() - started < 20


def test_a_page_of_many_alike_blocks_takes_linear_time():
    """100,000 blocks, each in an element of its own, nested and beside each other."""

    def seconds(count: int, nested: bool) -> float:
        parent = [-1] + [e - 1 if nested else 0 for e in range(1, count)]
        page = page_of(
            [4] * count, parent, [0] * count, [7] * count, [b"word word word."] * count, list(range(count)), [0] * count
        )
        started = time.process_time()
        counts, rows, tree = measured(page)
        context_features(
            rows[:, 0] / 100, counts, page.parent, page.element, tree.sums, tree.path, tree.group, tree.heading, rows
        )
        assert np.isfinite(rows).all()
        return time.process_time() - started

    for nested in (False, True):
        seconds(100, nested)
        assert (
            seconds(100_000, nested) < 4
        )  # 0.4, most of it memory that is touched for the first time; each block beside each other would be 10**10 steps


def test_a_page_without_blocks_has_no_rows():
    page = page_of([1], [-1], [0], [0], [], [], [])
    assert measured(page)[1].shape == (0, COLUMNS)
