"""Fingerprints equal their reference; every pair within the distance is found; a document goes only for one that
stays."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from test_minhash_dedup import prose, table

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.duplicates.simhash import fingerprint_plain, fingerprints, pairs_within, tables_of
from gristmill.stages import SimhashDedup
from gristmill.stages.dedup.simhash import key_of
from tests.stages.scattered import Scattered


@settings(deadline=None)
@given(
    st.lists(st.text(alphabet="ab é中.", max_size=40), max_size=6),
    st.integers(1, 3),
    st.sampled_from([64, 128]),
    st.integers(0, 2),
)
def test_fingerprints(texts: list[str], width: int, bits: int, seed: int) -> None:
    words, shingles = fingerprints(text_column(pa.array(["lead", *texts], pa.string())[1:]), width, bits, seed)
    assert words.shape == (len(texts), bits // 64)
    found = [sum(int(word) << 64 * n for n, word in enumerate(row)) for row in words]
    assert found == [fingerprint_plain(text, width, bits, seed) for text in texts]
    assert [n == 0 for n in shingles] == [
        f == 0 and not any(c.isalnum() for c in t) for f, t in zip(found, texts, strict=True)
    ]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(64, 3, 5), (64, 0, 1), (128, 3, 4), (64, 2, 6)]))
def test_every_pair_within_the_distance_meets(seed: int, shape: tuple[int, int, int]) -> None:
    bits, distance, blocks = shape
    dice = random.Random(seed)
    masks = np.array(tables_of(bits, distance, blocks), np.uint64)
    made = [dice.getrandbits(bits) for _ in range(3)]
    for origin in list(made):
        for flips in range(distance + 3):
            made.append(origin ^ sum(1 << bit for bit in dice.sample(range(bits), flips)))
    words = np.array([[value >> 64 * word & (1 << 64) - 1 for word in range(bits // 64)] for value in made], np.uint64)
    keys = np.concatenate([key_of(words & mask, table) for table, mask in enumerate(masks)])
    tables, places = (
        np.repeat(np.arange(len(masks)), len(made)).astype(np.uint8),
        np.tile(np.arange(len(made)), len(masks)),
    )
    order = np.lexsort([places, *words[places].T, keys])
    rows = (keys[order], tables[order], words[places[order]], places[order].astype(np.uint64))
    left, right = pairs_within(*rows, masks, distance)
    pairs = {(min(p), max(p)) for p in zip(places[order][left].tolist(), places[order][right].tolist(), strict=True)}
    wanted = {(i, j) for i, j in combinations(range(len(made)), 2) if (made[i] ^ made[j]).bit_count() <= distance}
    assert len(left) >= len(pairs) and pairs <= wanted
    joined = {i: i for i in range(len(made))}  # of many alike a few pairs are named, which join all
    for _ in made:
        for a, b in pairs:
            joined[a] = joined[b] = min(joined[a], joined[b])
    assert all(joined[a] == joined[b] for a, b in wanted) and len(wanted) >= 3


@pytest.mark.parametrize("bits", [64, 128])
def test_copies_with_a_word_changed_go(bits: int) -> None:
    dice = random.Random(bits)
    pages = [prose(dice, 400) for _ in range(40)]
    texts = (
        [" ".join(p) for p in pages]
        + [" ".join([*p[:200], "changed", *p[201:]]) for p in pages[:20]]
        + [" ".join(pages[0])] * 300
        + ["", " "]
    )
    docs = table(texts)
    stage, seen = SimhashDedup(bits=bits, distance=bits // 16, blocks=bits // 16 + 1), []
    for seed in range(3):
        flow = Scattered(seed)
        after = stage.run(flow.parts(docs), flow)
        assert after.rows + len(flow.gone) == len(docs)
        seen.append(set(flow.gone))
        for row in flow.gone.values():
            assert int(row["detail"].split(" like ")[1], 16) not in flow.gone
    assert seen[0] == seen[1] == seen[2] and 300 + 15 <= len(seen[0]) <= 320


def test_settings_that_make_no_sense_say_so() -> None:
    for wrong in ({"distance": 3, "blocks": 3}, {"distance": 12, "blocks": 30}, {"bits": 32}):
        with pytest.raises(SettingsError):
            SimhashDedup(**wrong)
    assert len(SimhashDedup().masks) == 10
