"""What stands on many pages of a site goes, what repeats and is main text stays, and nothing hangs on parts, order or
workers."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.duplicates.paragraphs import (
    hash_of_unit_plain,
    hashes_of_units,
    lines,
    lines_plain,
    without_units_plain,
)
from gristmill.kernels.duplicates.site_lines import (
    boilerplate_runs,
    boilerplate_runs_plain,
    line_keys,
    line_keys_plain,
)
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.stages.dedup.site_boilerplate import SiteBoilerplate
from gristmill.stages.text.sites import site_of_host, sites_of
from tests.stages.dedup.planted_sites import planted
from tests.stages.scattered import Scattered, fates

SCHEMA = pa.schema([("uid", pa.uint64()), ("url", pa.string()), ("text", pa.string())])
SITES = {"https://a.example.org/1": "a", "http://b.example.org": "a", "https://x.co.uk/": "b", "x.github.io": "c"}


def words(text: str) -> tuple[bytes, ...]:
    return tuple(word for _, _, word in tokens_plain(text))


def fates_plain(stage: SiteBoilerplate, rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By sets of pages and of words, all at once."""
    pages: Counter[str] = Counter()
    standing: defaultdict[Any, set[int]] = defaultdict(set)
    cut = {}
    for row in rows:
        data = (row["text"] or "").encode()
        spans = lines_plain(row["text"] or "")
        has = [words(data[start:end].decode()) for start, end in spans]
        cut[row["uid"]] = spans, has
        if site := SITES.get(row["url"]):
            pages[site] += 1
            worded = [line for line in has if line]
            for line in has:
                standing[site, line].add(row["uid"])
            for pair in pairwise(worded):
                standing[site, pair].add(row["uid"])
    out = {}
    for row in rows:
        spans, has = cut[row["uid"]]
        site = SITES.get(row["url"])

        def enough(what: Any, share: float, site: str | None = site) -> bool:
            count = len(standing[site, what]) if site else 0
            return count >= stage.min_pages and count >= share * pages[site or ""]

        alone = [len(line) >= stage.min_words and enough(line, stage.alone_share) for line in has]
        together, before = [], None
        for line in has:
            together.append(bool(line) and before is not None and enough((before, line), stage.min_share))
            before = line or before
        counts = [len(line) for line in has]
        goes = boilerplate_runs_plain(counts, alone, together, stage.min_words, stage.run_words)
        size = len((row["text"] or "").encode())
        share = sum((end - start) * gone for (start, end), gone in zip(spans, goes, strict=True)) / max(size, 1)
        if sum(count for count, gone in zip(counts, goes, strict=True) if not gone) < stage.min_left:
            goes = [False] * len(goes)
        out[row["uid"]] = {
            "text": None if row["text"] is None else without_units_plain(row["text"], spans, goes),
            "site_boilerplate_lines": sum(goes),
            "site_boilerplate_share": share,
        }
    return out


LINE = st.sampled_from(
    ["", "—", "the mill", "The MILL.", "stone", "wheel 1", "wheel 2", "a b c d", "a  b, c d!", "水车"]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "uid": st.integers(0, 2**64 - 1),
            "url": st.sampled_from([None, "", *SITES]),
            "text": st.one_of(st.none(), st.lists(LINE, max_size=7).map("\n".join)),
        }
    ),
    max_size=14,
    unique_by=lambda row: row["uid"],
)
STAGES = st.builds(
    SiteBoilerplate,
    min_pages=st.integers(2, 3),
    min_share=st.sampled_from([0.1, 0.5, 1]),
    alone_share=st.sampled_from([0.1, 0.5, 1]),
    min_words=st.integers(1, 4),
    run_words=st.integers(3, 9),
    min_left=st.integers(1, 3),
)


@given(ROWS, STAGES, st.integers(0, 99))
def test_what_stays_is_what_the_plain_twin_keeps(rows, stage, seed):
    found, wanted = fates(stage, rows, SCHEMA, seed), fates_plain(stage, rows)
    assert found.keys() == wanted.keys() == {row["uid"] for row in rows}
    for uid, fate in found.items():
        assert fate["reason"] is None
        nothing = {"site_boilerplate_lines": 0, "site_boilerplate_share": 0}
        assert {name: fate.get(name, nothing.get(name)) for name in wanted[uid]} == wanted[uid]


@given(st.lists(st.lists(LINE, max_size=6), max_size=4), st.integers(1, 4), st.data())
def test_kernels_are_as_their_plain_twins(texts, min_words, data):
    sites = np.array([data.draw(st.sampled_from([0, 1, 2**63 + 5])) for _ in texts], np.uint64)
    column = text_column(pa.array(["\n".join(text) for text in texts], pa.string()))
    units = lines(column)
    hashes = hashes_of_units(column, units)
    keys = line_keys(units, hashes, sites, min_words)
    flags = [np.array([data.draw(st.booleans()) for _ in keys.alone], bool) for _ in range(2)]
    goes = boilerplate_runs(units, hashes.words, *flags, min_words, 5)
    for d, text in enumerate(texts):
        here = slice(units.first[d], units.first[d + 1])
        plain = [hash_of_unit_plain(line) for line in text if line]
        wanted = line_keys_plain([p[0] for p in plain], [p[2] for p in plain], int(sites[d]), min_words)
        assert list(zip(keys.alone[here].tolist(), keys.pair[here].tolist(), strict=True)) == wanted
        alone, together = (flag[here].tolist() for flag in flags)
        assert goes[here].tolist() == boilerplate_runs_plain([p[2] for p in plain], alone, together, min_words, 5)


def test_a_site_is_a_registered_domain():
    hosts = ["www.mill.co.uk", "news.mill.co.uk", "anna.github.io", "bert.github.io", "192.168.1.1", "192.169.1.1", "localhost"]  # fmt: skip
    assert [site_of_host(host) for host in hosts] == ["mill.co.uk", "mill.co.uk", *hosts[2:]]
    urls = ["https://WWW.mill.co.uk/a", "http://user@news.mill.co.uk:80/", "mill.co.uk", None, "", "/path"]
    found = sites_of(pa.array(urls)).tolist()
    assert found[0] == found[1] == found[2] != 0 and found[3:] == [0, 0, 0]
    assert sites_of(pa.array(["https://bücher.example/", "https://xn--bcher-kva.example/"])).tolist()[0] != 0


def check_planted(rows: list[dict[str, Any]], found: dict[int, dict[str, Any]]) -> dict[str, tuple[int, int, int, int]]:
    """By kind of site: lines of templates and how many are left, main lines and how many were lost."""
    out: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        left, main = Counter(found[row["uid"]]["text"].split("\n")), Counter(row["main"])
        template = Counter(row["text"].split("\n")) - main
        counts = out[row["kind"]]
        counts[0] += template.total()
        counts[1] += (template & left).total()
        counts[2] += main.total()
        counts[3] += (main - left).total()
    return {kind: (a, b, c, d) for kind, (a, b, c, d) in out.items()}


def test_templates_go_and_what_repeats_for_a_reason_stays():
    rows = planted(60, seed=4)
    found = fates(SiteBoilerplate(), rows, SCHEMA, 1)
    kinds = check_planted(rows, found)
    assert len(kinds) == 5 and len(found) == len(rows) > 500
    for kind, (template, left, main, lost) in kinds.items():
        assert template > 1000 and left / template < 0.3, (kind, left, template)
        assert main > 300 and lost / main < 0.08, (kind, lost, main)


def row(uid: int, text: str | None, url: str) -> dict[str, Any]:
    return {"uid": uid, "text": text, "url": url}


STORY = "A story of its own that the miller told us {} years ago by the river, and nobody has told since."
NOTICE = "This site uses cookies to give you the best of all that the mill can offer you today."


def test_a_line_seen_once_in_each_of_many_parts_is_counted():
    rows = [
        row(n, f"{STORY.format(n)}\n{NOTICE}\nThe end {n}.", f"https://{'ab'[n % 2]}.mill.org/{n}") for n in range(3)
    ]
    stage, flow = SiteBoilerplate(), Scattered(1)
    parts = flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA))
    parts.tables = [(home, pa.Table.from_pylist([each], schema=SCHEMA)) for home, each in enumerate(rows, 1)]
    stage.run(parts, flow)
    assert flow.named["text"].to_pylist() == [f"{STORY.format(n)}\nThe end {n}." for n in range(3)]
    assert flow.metrics["site_counts"] == {"sites": 1, "taught": 1, "pages": 3}
    assert [(each["text"], each["pages"], each["site_pages"]) for each in flow.metrics["examples"]] == [(NOTICE, 3, 3)]
    figures = stage.figures(flow.metrics)
    assert figures is not None and NOTICE in repr(figures.blocks)


def test_pages_that_are_nothing_else_stay_whole_and_say_so():
    rows = [row(n, NOTICE + "\n" + STORY.format(1), f"https://mill.org/{n}") for n in range(5)]
    rows.append(row(9, f"{NOTICE}\n{STORY.format(9)}", "https://mill.org/9"))
    found = fates(SiteBoilerplate(), rows, SCHEMA)
    assert [found[n]["text"] for n in range(5)] == [each["text"] for each in rows[:5]]
    assert all(found[n]["site_boilerplate_share"] > 0.9 and found[n]["site_boilerplate_lines"] == 0 for n in range(5))
    assert found[9]["text"] == STORY.format(9) and found[9]["site_boilerplate_lines"] == 1


def test_sites_with_few_pages_and_pages_without_a_site_stay_as_they_are():
    rows = [row(n, f"{STORY.format(n)}\n{NOTICE}", f"https://site{n // 2}.org/") for n in range(20)]
    rows += [row(100 + n, f"{STORY.format(n)}\n{NOTICE}", "") for n in range(20)]
    found = fates(SiteBoilerplate(), rows, SCHEMA)
    assert [found[each["uid"]]["text"] for each in rows] == [each["text"] for each in rows]


def test_of_a_large_site_some_pages_are_counted_and_all_are_cut():
    dice = random.Random(1)
    rows = [row(dice.getrandbits(64), f"{STORY.format(n)}\n{NOTICE}\n{n}", "https://mill.org/") for n in range(1000)]
    stage = SiteBoilerplate(most_pages=100)
    found = [fates(stage, rows, SCHEMA, seed) for seed in range(3)]
    assert {fate["site_boilerplate_lines"] for fate in found[0].values()} == {1}
    assert found[0] == found[1] == found[2]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    known = pa.table({"site": sites_of(table["url"].slice(0, 1)), "site_pages": pa.array([1000], pa.uint32())})
    counted = stage.count(known, table)
    assert 70 < max(counted["pages"].to_pylist()) < 130 and set(counted["site_pages"].to_pylist()) == {100}


def test_what_is_sent_is_a_row_for_each_line_of_a_part():
    rows = [row(n, f"{NOTICE}\n{NOTICE}\nshort", "https://mill.org/") for n in range(50)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    known = pa.table({"site": sites_of(table["url"].slice(0, 1)), "site_pages": pa.array([50], pa.uint32())})
    counted = SiteBoilerplate().count(known, table)
    assert len(counted) == 3 and counted["pages"].to_pylist() == [50] * 3
    assert sum(counted.schema.field(name).type.byte_width for name in counted.schema.names) + 8 == 24


@pytest.mark.parametrize("share", [0.15, 0.4, 1.0])
def test_a_share_is_of_the_pages_of_the_site(share):
    needed = math.ceil(share * 20)
    for pages in (needed - 1, needed):
        rows = [row(n, f"{STORY.format(n)}\n{NOTICE if n < pages else n}\n{n} the end", "https://mill.org/") for n in range(20)]  # fmt: skip
        found = fates(SiteBoilerplate(alone_share=share, min_pages=2), rows, SCHEMA)
        assert sum(fate.get("site_boilerplate_lines", 0) for fate in found.values()) == (
            pages if pages == needed else 0
        )
