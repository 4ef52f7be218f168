"""Urls of one page have one key, and only those."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.urls.keys import names_of, parts_of_key_plain, url_key_plain, url_keys
from gristmill.kernels.urls.urls import canonical_plain, canonical_urls

PATTERNS = ("utm_*", "FBclid", "ref")
PIECE = st.sampled_from(
    [
        "http://",
        "a.com",
        "/",
        "?",
        "&",
        "=",
        "#",
        "!",
        "utm_x=1",
        "utm",
        "fbclid=2",
        "FBCLIDS=2",
        "b",
        "ref",
        "c=%7E",
        "\u00e9",
        ";",
        ";ref=1",
        ";b",
    ]
)
URLS = st.lists(st.one_of(st.lists(PIECE, max_size=10).map("".join), st.text(max_size=20)), max_size=8)


def keys_of(urls: list[str], patterns: tuple[str, ...] = PATTERNS) -> list[tuple[int, int]]:
    data, offsets = text_column(pa.array(urls, pa.string()))
    high, low = url_keys(canonical_urls(data, offsets[:-1], offsets[1:]), names_of(patterns))
    return list(zip(high.tolist(), low.tolist(), strict=True))


@given(URLS, st.sampled_from([PATTERNS, (), ("b", "c*")]))
def test_keys_are_those_of_the_plain_twin(urls, patterns):
    wanted = []
    for url in urls:
        text, _, site, _, _ = canonical_plain(url.encode())
        wanted.append(url_key_plain(text, site, patterns))
    assert keys_of(urls, patterns) == wanted


@given(URLS)
def test_keys_are_the_same_only_where_what_counts_is(urls):
    parts = []
    for url in urls:
        text, _, site, _, _ = canonical_plain(url.encode())
        parts.append(repr(parts_of_key_plain(text, site, PATTERNS)))
    keys = keys_of(urls)
    assert len(set(zip(parts, keys, strict=True))) == len(set(parts)) == len(set(keys))


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        ("http://a.com/b", "https://www.A.com:443/b/", True),
        ("http://a.com", "http://a.com/?", True),
        ("http://a.com/b?x=1&y=2", "http://a.com/b/?y=2&x=1&utm_source=mail&&FBCLID=7#top", True),
        ("http://a.com/b?x=1", "http://a.com/b?x=2", False),
        ("http://a.com/b?x=1", "http://a.com/b?X=1", False),
        ("http://a.com/B", "http://a.com/b", False),
        ("http://a.com/b", "http://b.a.com/b", False),
        ("http://a.com:8080/b", "http://a.com/b", False),
        ("http://a.com/#!/b", "http://a.com/#!/c", False),
        ("http://a.com/#/b", "http://a.com/#/b", True),
        ("http://a.com/#b", "http://a.com/#c", True),
        ("http://a.com/b?c/", "http://a.com/b?c", False),
        ("http://a.com/?x=1&x=1", "http://a.com/?x=1", False),
        ("http://a.com/?utm=1", "http://a.com/", False),
        ("http://a.com/b;ref=1?x=1", "http://a.com/b;REF=22?x=1", True),
        ("http://a.com/b;ref=1/c;utm_x/", "http://a.com/b/c", True),
        ("http://a.com/b/;ref=1;d=2", "http://a.com/b/;d=2", True),
        ("http://a.com/b;d=1", "http://a.com/b;d=2", False),
        ("http://a.com/b;d=1", "http://a.com/b", False),
        ("http://a.com/bref=1", "http://a.com/b", False),
    ],
)
def test_pages(url, other, same):
    first, second = keys_of([url, other])
    assert (first == second) is same


def test_a_url_of_a_million_parameters():
    many = "a.com/?" + "&".join(f"{n}=x" for n in range(300_000))
    back = "a.com/?" + "&".join(f"{n}=x" for n in reversed(range(300_000)))
    first, second = keys_of([many, back])
    assert first == second and len({*keys_of(["a.com/?" + "&" * 1_000_000, "a.com/"])}) == 1
    assert np.unique([k for k, _ in keys_of([f"a.com/{n}" for n in range(10_000)])]).size == 10_000
