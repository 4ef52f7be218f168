"""Url rules drop what is listed, say which entry it was, and share one copy of the lists."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import UrlRules
from gristmill.stages.text import url_lists
from gristmill.stages.text.url_lists import WantedLists


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Tables of tests do not stay; compiled kernels do."""
    monkeypatch.setattr(url_lists, "cache_folder", lambda: tmp_path)


def judged(rule, urls, kind=None):
    verdict = rule.apply(pa.record_batch({"url": pa.array(urls, kind or pa.string())})).verdict
    return [
        (verdict.reason(row), verdict.details.get(row)) if not verdict.kept[row] else None for row in range(len(urls))
    ]


@pytest.fixture
def listed(tmp_path):
    def write(text, name="list"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write


def test_a_domain_blocks_what_lies_below_it(listed):
    rule = UrlRules(
        blocked_domains_file=listed(
            "# bad\nbad.com\nBÜCHER.de\nwww.one.org\n.xxx\nhttp://worse.net/  # why\n9.8.7.6\n2001:DB8:0::1\nsite.org/~ann\n"
        )
    )
    urls = {
        "https://bad.com/x": "bad.com", "http://a.b.BAD.com.:8080": "bad.com", "http://www.bad.com": "bad.com", "//good.com@bad.com": "bad.com",
        "https://notbad.com": None, "https://bad.com.org": None, "https://xn--bcher-kva.de/": "xn--bcher-kva.de", "http://bücher.de": "xn--bcher-kva.de",
        "http://b%C3%BCcher.DE": "xn--bcher-kva.de", "http://any.xxx/": "xxx", "http://worse.net/deep": "worse.net", "http://9.8.7.6/": "9.8.7.6",
        "http://[2001:db8::1]:80/": "[2001:db8::1]", "": None, "not a url": None, "http://": None, "http://site.org/": None,
    }  # fmt: skip
    found = judged(rule, [*urls, None])
    assert found == [detail and ("blocked_domain", detail) for detail in [*urls.values(), None]]
    assert judged(rule, ["https://one.org/a", "http://m.one.org", "http://site.org/~ann/x", "http://site.org/~anna"]) == [
        ("blocked_host", "one.org"), None, ("blocked_prefix", "site.org/~ann"), None,
    ]  # fmt: skip


def test_reasons_in_order_with_their_entries(listed):
    rule = UrlRules(
        blocked_domains_file=listed("d.com", "d"), blocked_hosts_file=listed("h.com\nd.com", "h"), blocked_urls_file=listed("u.com/a?b=1", "u"),
        blocked_prefixes_file=listed("u.com/p", "p"), blocked_words_file=listed("porn\nпорно", "w"), soft_words_file=listed("sex\nhot\ncam", "s"),
        blocked_substrings_file=listed("hotgirl\ngirl", "b"), allowed_domains_file=listed("ok.org", "a"),
    )  # fmt: skip
    urls = {
        "http://x.d.com": ("blocked_domain", "d.com"), "http://d.com/porn": ("blocked_domain", "d.com"), "http://www.h.com/x": ("blocked_host", "h.com"),
        "http://x.h.com/": None, "https://www.u.com/a/?b=1": None, "https://www.u.com/a?b=1#c": ("blocked_url", "u.com/a?b=1"),
        "http://u.com/p/q": ("blocked_prefix", "u.com/p"), "http://u.com/pq": None, "http://e.com/PORN/": ("blocked_word", "porn"),
        "http://e.com/%50orn": ("blocked_word", "porn"), "http://e.com/a%20porn": ("blocked_word", "porn"), "http://e.com/pornography": None,
        "http://e.com/%D0%9F%D0%9E%D0%A0%D0%9D%D0%9E": ("blocked_word", "порно"), "http://e.com/sex-Sex": None, "http://e.com/sex/HOT-cam": ("soft_words", "sex, hot"),
        "http://e.com/ho-t.girls": ("blocked_substring", "hotgirl"), "http://shop.ok.org/porn/hotgirl": None,
    }  # fmt: skip
    assert dict(zip(urls, judged(rule, list(urls)), strict=True)) == urls
    verdict = rule.apply(pa.record_batch({"url": pa.array(["http://d.com/porn"])})).verdict
    assert verdict.every_reason(0) == ["blocked_domain", "blocked_host", "blocked_word"]


def test_every_layout_of_the_column_and_every_slice(listed):
    rule = UrlRules(blocked_domains_file=listed("bad.com"))
    urls = ["http://a.org", None, "http://x.bad.com", "http://bücher.bad.com", ""]
    expected = judged(rule, urls)
    assert expected[2:4] == [("blocked_domain", "bad.com")] * 2
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert judged(rule, urls, kind) == expected
    table = pa.table({"url": urls})
    assert [judged(rule, table["url"].slice(i, 1).to_pylist())[0] for i in range(5)] == expected
    verdict = rule.apply(pa.record_batch({"url": pa.array(urls).slice(2)})).verdict
    assert (
        verdict.kept.tolist() == [False, False, True]
        and rule(table).num_rows == 3
        and rule(table.slice(0, 0)).num_rows == 0
    )


def test_packed_lists_and_collections(listed, tmp_path):
    for name, data in (
        ("l.gz", gzip.compress(b"bad.com\n")), ("l.zst", zstandard.compress(b"bad.com\n")), ("l.txt", b"\xef\xbb\xbfbad.com"),
    ):  # fmt: skip
        assert judged(UrlRules(blocked_domains_file=listed(data, name)), ["http://bad.com"]) == [
            ("blocked_domain", "bad.com")
        ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in {
            "bl/adult/domains": b"bad.com\n",
            "bl/adult/urls": b"u.com/x\n",
            "bl/shop/domains": b"shop.com\n",
            "bl/x/README": b"e.com",
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            folder = tmp_path / "folder" / name
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.write_bytes(data)
    urls = ["http://bad.com", "http://u.com/x/y", "http://shop.com", "http://e.com"]
    for path in (listed(buffer.getvalue(), "bl.tar.gz"), str(tmp_path / "folder")):
        everything = judged(UrlRules(ut1_file=path), urls)
        assert everything == [
            ("blocked_domain", "bad.com"),
            ("blocked_prefix", "u.com/x"),
            ("blocked_domain", "shop.com"),
            None,
        ]
        assert judged(UrlRules(ut1_file=path, ut1_categories=["adult"]), urls) == [*everything[:2], None, None]
        with pytest.raises(ValueError, match=r"no category 'adults' in .*; did you mean adult"):
            judged(UrlRules(ut1_file=path, ut1_categories=["adults"]), urls)


def test_what_would_keep_everything_in_silence_is_refused(listed):
    with pytest.raises(SettingsError, match="names no list"):
        UrlRules()
    with pytest.raises(SettingsError, match="no list at /nowhere"):
        UrlRules(blocked_domains_file="/nowhere")
    with pytest.raises(ValueError, match="no entry in it"):
        UrlRules(blocked_words_file=listed("# nothing\n\n")).prepare()
    with pytest.raises(ValueError, match=r"a\.com/x has a path"):
        UrlRules(allowed_domains_file=listed("a.com/x")).prepare()
    assert judged(UrlRules(require_host=True), ["", None, "http://", "a.com"]) == [("no_host", None)] * 3 + [None]


def test_a_list_is_built_once_and_again_when_it_changes(listed, monkeypatch):
    built = []
    build = url_lists._built
    monkeypatch.setattr(url_lists, "_built", lambda wanted: built.append(1) or build(wanted))
    rule = UrlRules(blocked_domains_file=listed("bad.com"))
    rule.prepare()
    url_lists._lists_as_stamped.cache_clear()  # as another process
    assert judged(rule, ["http://bad.com", "http://new.com"])[1] is None and len(built) == 1
    lists = url_lists.url_lists(rule.wanted())
    assert isinstance(lists.sites.base, np.memmap) or isinstance(lists.sites.base.base, np.memmap | type(None))
    listed("bad.com\nnew.com")
    assert judged(rule, ["http://bad.com", "http://new.com"])[1] == ("blocked_domain", "new.com") and len(built) == 2


def test_chunks_do_not_matter(listed, monkeypatch):
    names = [f"site{i}.com" for i in range(2000)]
    path = listed("\n".join(names))
    whole = url_lists._built(WantedLists(((1, path),)))
    monkeypatch.setattr(url_lists, "CHUNK", 50)
    assert (
        np.array_equal(np.sort(url_lists._built(WantedLists(((1, path),))).sites), np.sort(whole.sites))
        and (whole.sites != 0).sum() == 2000
    )
    assert judged(UrlRules(blocked_domains_file=path), [f"http://{name}/" for name in names]) == [
        ("blocked_domain", name) for name in names
    ]
