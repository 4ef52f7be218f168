"""All spellings of a url come to one, and the tables find what Python's sets would."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.urls import lists
from gristmill.kernels.urls.urls import (
    address,
    canonical_plain,
    canonical_urls,
    folded_plain,
    folded_text,
    odd_host_mended,
)


def canonical(texts, kind=None):
    data, offsets = text_column(pa.array(texts, kind))
    return canonical_urls(data, offsets[:-1], offsets[1:])


def rows(urls):
    """(text, ends of host, site and key from the start of the url, marks)."""
    places = zip(urls.starts, urls.ends, urls.hosts, urls.sites, urls.keys, urls.marks, strict=True)
    return [(bytes(urls.text[a:b]), h - a, s - a, k - a, m) for a, b, h, s, k, m in places]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://user@WWW.Example.COM.:80/%7Eann/?q=%70#top", "example.com/~ann/?q=p#top"),
        ("http://good.com@bad.com/", "bad.com"),
        ("http://good.com:x@bad.com:8080/a", "bad.com:8080/a"),
        ("//a.com\\b", "a.com/b"),
        ("a.com/%70orn", "a.com/porn"),
        ("https://%70orn.com", "porn.com"),
        ("https://a.com/%2Fx%3fy", "a.com/%2Fx%3Fy"),
        ("http://a.com/100%", "a.com/100"),
        ("http://a.com?x", "a.com?x"),
        ("http://a.com/?x", "a.com?x"),
        (" \thttp://a.\ncom/ ", "a.com"),
        ("http://www.com/", "www.com"),
        ("", ""),
        ("http://", ""),
        ("http://1.2.3.4:443/", "1.2.3.4"),
        ("https://a.com/stra%C3%9Fe", "a.com/straße"),
    ],
)
def test_one_form(url, expected):
    assert rows(canonical([url]))[0][0].decode() == expected


def test_hosts_that_need_more_than_bytes():
    assert odd_host_mended("bücher.de/ä") == "xn--bcher-kva.de/ä" == odd_host_mended("BÜCHER.de/ä")
    assert odd_host_mended("пример。рф") == "xn--e1afmkfd.xn--p1ai"
    endless = "".join(
        map(chr, range(0x4E00, 0x4E00 + 20_000))
    )  # as crawled text may have it; nobody waits for its punycode
    assert odd_host_mended(f"{endless}.de/ä") == f"{endless}.de/ä"
    assert odd_host_mended("[2001:DB8:0::1]:80/x") == "[2001:db8::1]/x" and address("2001:db8::1") == "[2001:db8::1]"
    assert odd_host_mended("a:b:c/x") == "a:b:c/x" and address("::g") is None


parts = st.sampled_from(
    ["http", "https", "://", "//", "/", "\\", "www.", "a.com", "B.org", ".", ":80", ":443", ":8080", ":", "@", "?", "#", "%41", "%2f", "%", "%C3",
     "%9f", "[", "::1", "é", "中", " ", "\t", "-", "x"]
)  # fmt: skip
urls_made = st.one_of(st.lists(parts, max_size=9).map("".join), st.text(max_size=20))


@settings(max_examples=500)
@given(st.lists(urls_made, max_size=6))
def test_canonical_is_as_its_twin(values):
    assert rows(canonical(values, pa.string())) == [canonical_plain(value.encode()) for value in values]


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_canonical_of_any_bytes(values):
    assert rows(canonical(values, pa.binary())) == [canonical_plain(value) for value in values]


@given(st.text(max_size=40))
def test_folding(text):
    data = np.frombuffer(text.encode(), np.uint8)
    assert bytes(folded_text(data, np.array([0]), np.array([len(data)]))).decode() == folded_plain(text)


names = st.sampled_from(
    ["a.com", "b.a.com", "c.b.a.com", "x.org", "com", "org", "a.co", "aa.com", "sub.x.org", "1.2.3.4"]
)
paths = st.sampled_from(["", "/", "/p", "/p/q", "/p/q/", "/pq", "/p?q=1", "/P", ":8080/p", "#f"])
words = st.sampled_from(["porn", "Sex", "СЕКС", "été", "x9", "hot"])


def looked_up(urls, entries, taken_out=lists.NOTHING, soft=2):
    """bits of kinds met by each url; `entries` are texts by kind."""
    site_keys, word_keys, kinds = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], 0
    data, offsets = text_column(pa.array(entries.get(lists.SUBSTRING, []), pa.string()))
    automaton = lists.automaton_of(folded_text(data, offsets[:-1], offsets[1:]), offsets, taken_out)
    for kind, texts in entries.items():
        kinds |= (1 << kind) if texts else 0
        if kind in (lists.WORD, lists.SOFT_WORD):
            data, offsets = text_column(pa.array(texts, pa.string()))
            word_keys.append(lists.word_keys(folded_text(data, offsets[:-1], offsets[1:]), offsets, kind))
        elif kind != lists.SUBSTRING:
            found = canonical(texts, pa.string())
            site_keys.append(lists.site_keys(found, np.full(len(texts), kind)))
    tables = [lists.table_of(np.concatenate(keys)) for keys in (site_keys, word_keys)]
    return lists.look_up(canonical(urls, pa.string()), *tables, automaton, kinds, taken_out, soft)


def met_plain(url, entries, soft):
    """The same with sets."""
    text, host, site, key, _ = canonical_plain(url.encode())
    whole, host_text = text[:key], text[:host].decode()
    labels = host_text.split(".")
    suffixes = {".".join(labels[i:]) for i in range(len(labels))} if host_text else set()
    listed = {
        kind: {canonical_plain(t.encode()) for t in texts} for kind, texts in entries.items() if kind < lists.WORD
    }
    hosts = {kind: {t[:h].decode() for t, h, *_ in found} for kind, found in listed.items()}
    pages = {kind: {t[:k] for t, _, _, k, _ in found} for kind, found in listed.items()}
    met = 0
    for kind in (lists.DOMAIN, lists.ALLOWED):
        met |= (1 << kind) if suffixes & hosts.get(kind, set()) else 0
    met |= (1 << lists.HOST) if host_text and host_text in hosts.get(lists.HOST, set()) else 0
    met |= (1 << lists.URL) if host_text and whole in pages.get(lists.URL, set()) else 0
    starts = {whole[:i] for i in range(site, key + 1) if i == key or whole[i : i + 1] in (b"/", b"?")}
    met |= (1 << lists.PREFIX) if host_text and starts & pages.get(lists.PREFIX, set()) else 0
    folded = folded_plain(text.decode(errors="replace"))
    cleaned = "".join(c if c.isalnum() else " " for c in folded)
    in_url = set(cleaned.split())
    met |= (1 << lists.WORD) if in_url & {folded_plain(w) for w in entries.get(lists.WORD, [])} else 0
    met |= (
        (1 << lists.SOFT_WORD)
        if len(in_url & {folded_plain(w) for w in entries.get(lists.SOFT_WORD, [])}) >= soft
        else 0
    )
    met |= (1 << lists.SUBSTRING) if any(folded_plain(s) in folded for s in entries.get(lists.SUBSTRING, [])) else 0
    return met


def test_lookups_are_as_with_sets():
    met = Counter()
    entry = {
        lists.DOMAIN: names, lists.HOST: names, lists.ALLOWED: names, lists.URL: st.builds(str.__add__, names, paths),
        lists.PREFIX: st.builds(str.__add__, names, paths), lists.WORD: words, lists.SOFT_WORD: words, lists.SUBSTRING: words,
    }  # fmt: skip
    some = st.fixed_dictionaries(
        {}, optional={kind: st.lists(strategy, max_size=3) for kind, strategy in entry.items()}
    )
    urls = st.lists(st.builds("https://{}{}/{}-{}".format, names, paths, words, words), max_size=5)

    @settings(max_examples=400)
    @given(st.one_of(urls, st.lists(st.builds(str.__add__, names, paths), max_size=5)), some, st.integers(1, 2))
    def agree(values, entries, soft):
        found = looked_up(values, entries, soft=soft)
        expected = [met_plain(value, entries, soft) for value in values]
        assert found.bits.tolist() == expected
        met.update(kind for bits in expected for kind in range(8) if bits >> kind & 1)

    agree()
    assert all(met[kind] > 2 for kind in range(8)), met


def test_what_is_taken_out_before_substrings():
    urls, entries = ["a.com/ho-t.gi_rls"], {lists.SUBSTRING: ["hotgi_rls"]}
    assert [looked_up(urls, entries, how).bits[0] != 0 for how in (0, 1, 2)] == [False, True, True]
    assert looked_up(urls, {lists.SUBSTRING: ["hotgirls"]}, lists.HYPHENS_AND_DOTS).bits[0] == 0
    assert looked_up(["a.com/aab"], {lists.SUBSTRING: ["ab", "aac", "b"]}).patterns.tolist() == [0], (
        "the first that ends, the longest of them"
    )


def test_neighbours_do_not_matter():
    """A byte of one url never completes a character of the next."""
    data, offsets = text_column(pa.array([b"a.com/\xc3", b"\x84.com/"], pa.binary()))
    both = canonical_urls(data, offsets[:-1], offsets[1:])
    assert bytes(folded_text(both.text, both.starts, both.ends)[: both.ends[-1]]) == b"a.com/\xc3\x84.com"


def test_lines_of_lists():
    chunk = np.frombuffer(b"# head\n a.com  # why\r\n\n*.b.com\nc.com/#f\n#\nd.com", np.uint8)
    starts, ends = lists.entry_lines(chunk)
    assert [bytes(chunk[a:b]) for a, b in zip(starts, ends, strict=True)] == [b"a.com", b"b.com", b"c.com/#f", b"d.com"]


def test_ports_of_addresses_stay() -> None:
    assert address("[2001:DB8::1]:8080") == "[2001:db8::1]:8080"
    assert address("[2001:db8::1]:443") == address("2001:db8::1") == address("[2001:DB8::1]:") == "[2001:db8::1]"
