"""One document of each page is left, the right one, in whatever order and buckets the engine brings the rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.common.settings import SettingsError
from gristmill.kernels.urls.keys import parts_of_key_plain
from gristmill.kernels.urls.urls import canonical_plain
from gristmill.stages.dedup.url import UrlDedup
from tests.stages.scattered import fates, members_plain

TEXT = pa.string()
SCHEMA = pa.schema(
    [("uid", pa.uint64()), ("source", pa.dictionary(pa.int32(), TEXT)), ("date", TEXT), ("text", TEXT), ("url", TEXT)]
)


def fates_plain(stage: UrlDedup, rows: list[dict[str, Any]]) -> dict[int, tuple[str | None, str | None, int]]:
    clusters = defaultdict(list)
    for row in rows:
        text, _, site, _, _ = canonical_plain((row["url"] or "").encode())
        if text:
            clusters[repr(parts_of_key_plain(text, site, stage.ignored + stage.more_ignored))].append(row)

    return members_plain(stage, clusters.values(), "url_duplicate", "same url as")


URL = st.sampled_from(
    [
        None,
        "",
        " ",
        "http://",
        "http://a.com",
        "https://www.a.com/",
        "a.com/?utm_source=x",
        "a.com/b?x=1&y=2",
        "A.com/b?y=2&x=1#top",
    ]
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "uid": st.integers(0, 2**64 - 1),
            "source": st.sampled_from(["a", "b", "c"]),
            "date": st.sampled_from([None, "", "2023-01-01", "2024-01-01T00:00:00Z"]),
            "text": st.sampled_from(["", "a", "bb"]),
            "url": URL,
        }
    ),
    max_size=25,
    unique_by=lambda row: row["uid"],
)


@given(ROWS, st.lists(st.sampled_from(["source", "longest", "earliest"]), unique=True), st.integers(0, 99))
def test_survivors_are_those_of_the_plain_twin(rows, prefer, seed):
    stage = UrlDedup(prefer=prefer, sources=["b", "a"] if "source" in prefer else [])
    found = fates(stage, rows, SCHEMA, seed)
    assert {uid: (f["reason"], f["detail"], f["url_cluster_size"]) for uid, f in found.items()} == fates_plain(
        stage, rows
    )


def row(uid: int, url: str | None) -> dict[str, Any]:
    return {"uid": uid, "url": url, "source": "a", "date": None, "text": "text"}


def test_one_of_each_page_is_left():
    rows = [row(uid, f"http://site{uid % 7}.com/page?utm_campaign={uid}&fbclid={uid}") for uid in range(100)]
    found = fates(UrlDedup(), rows, SCHEMA)
    assert len(found) == 100 and sum(fate["reason"] == "url_duplicate" for fate in found.values()) == 93
    assert found[9]["detail"] == "same url as 0000000000000002" and found[9]["url_cluster_size"] == 14


def test_documents_without_url_are_no_duplicates():
    assert (
        fates(
            UrlDedup(),
            [row(uid, url) for uid, url in enumerate([None, None, "", "", " ", "http://", "https://"])],
            SCHEMA,
        )
        == {}
    )


@pytest.mark.parametrize("said", ["N/A", "null", "nan", "-", "#", "unknown", "about:blank", "javascript:void(0)"])
def test_what_names_no_page_is_no_url(said):
    assert fates(UrlDedup(), [row(1, said), row(2, said), row(3, said.upper())], SCHEMA) == {}


@pytest.mark.parametrize(
    "url", ["http://localhost/a", "//intranet", "file:///c/a.txt", "example.com", "10.0.0.1:80/x", "doi:10.1000/7"]
)
def test_what_names_a_page_shortly_is_a_url(url):
    assert sorted(fates(UrlDedup(), [row(1, url), row(2, url)], SCHEMA)) == [1, 2]


def test_hosts_of_other_scripts_and_addresses_meet_their_encoded_form():
    rows = [
        row(1, "http://b\u00fccher.de/"),
        row(2, "http://xn--bcher-kva.de"),
        row(3, "http://[2001:DB8::1]:80/"),
        row(4, "http://[2001:db8:0::1]/"),
    ]
    assert sorted(fates(UrlDedup(), rows, SCHEMA)) == [1, 2, 3, 4]


def test_parameters_of_ones_own():
    rows = [
        row(1, "http://a.com/?session=1&id=3"),
        row(2, "http://a.com/?id=3&SESSION=2"),
        row(3, "http://a.com/?id=4"),
    ]
    assert fates(UrlDedup(), rows, SCHEMA) == {}
    assert sorted(fates(UrlDedup(more_ignored=("session",)), rows, SCHEMA)) == [1, 2]


@pytest.mark.parametrize("pattern", ["*", "", "a=b", "a*b", "a&"])
def test_patterns_that_are_none_are_refused(pattern):
    with pytest.raises(SettingsError):
        UrlDedup(ignored=(pattern,))
