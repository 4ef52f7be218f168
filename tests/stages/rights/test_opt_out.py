"""What sites and pages reserve is honoured as they state it, as of the moment that a recipe names."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages import OptOut
from gristmill.stages.rights.agents import LISTS, named_agents
from gristmill.stages.rights.site_table import host_of
from gristmill.stages.stage import Rule, Signals

GPT = "User-agent: GPTBot\nDisallow: /\n"


def files(path: Path, *rows: tuple[str, str, str]) -> str:
    path.write_text("".join(json.dumps({"url": u, "date": d, "body": b}) + "\n" for u, d, b in rows))
    return str(path)


def reasons(
    rule: Rule, *urls: str, date: str | None = "2021-06-01T00:00:00Z", stated: str | None = None
) -> list[list[str]]:
    batch = pa.record_batch(
        {
            "url": pa.array(urls, pa.string()),
            "date": pa.array([date] * len(urls), pa.string()),
            "language": ["en"] * len(urls),
            "reservations": pa.array([stated] * len(urls), pa.string()),
        }
    )
    verdict = rule.apply(batch).verdict
    return [verdict.every_reason(row) for row in range(len(urls))]


ROBOTS = [
    ("User-agent: GPTBot\nDisallow: /a\n", "/a/x", True),
    ("User-agent: GPTBot\nDisallow: /a\n", "/b/x", False),
    ("user-agent: gptbot\r\nDISALLOW: /a # all\r\n", "/a/x", True),
    ("User-agent: Googlebot\nDisallow: /\n", "/a", False),
    ("User-agent: *\nDisallow: /\n", "/a", True),
    ("User-agent: *\nDisallow: /\n\nUser-agent: GPTBot\nAllow: /\n", "/a", True),  # CCBot is not named
    ("User-agent: *\nDisallow: /private\n", "/a", False),
    ("User-agent: CCBot\nUser-agent: GPTBot\nDisallow: /*.html$\n", "/x/a.html", True),
    ("User-agent: CCBot\nDisallow: /*.html$\n", "/x/a.html?q", False),
    ("User-agent: CCBot\nDisallow: /\nAllow: /open/\n", "/open/a", False),
    ("User-agent: CCBot\nDisallow:\n", "/a", False),
    ("<html>not found</html>", "/a", False),
    ("\ufeffUser-agent: CCBot\nDisallow: /", "/a", True),
    ("\0\xff" * 50, "/a", False),
]  # fmt: skip


@pytest.mark.parametrize(("body", "path", "drops"), ROBOTS)
def test_robots_txt(body: str, path: str, drops: bool, tmp_path: Path) -> None:
    rule = OptOut(site_files=files(tmp_path / "f.jsonl", ("https://a.example/robots.txt", "2024-01-01", body)))
    assert reasons(rule, f"https://a.example{path}", f"https://b.example{path}") == [
        ["robots_txt"] if drops else [],
        [],
    ]


def test_rules_for_all_count_or_not(tmp_path: Path) -> None:
    path = files(tmp_path / "f.jsonl", ("https://a.example/robots.txt", "2024-01-01", "User-agent: *\nDisallow: /\n"))
    assert reasons(OptOut(site_files=path), "https://a.example/x") == [["robots_txt"]]
    assert reasons(OptOut(site_files=path, star=False), "https://a.example/x") == [[]]
    named = files(tmp_path / "g.jsonl", ("https://a.example/robots.txt", "2024-01-01", GPT))
    assert reasons(OptOut(site_files=named, agents=("CCBot",)), "https://a.example/x") == [[]]


def test_the_file_of_the_moment_that_is_asked_for(tmp_path: Path) -> None:
    robots = "https://a.example/robots.txt"
    path = files(
        tmp_path / "f.jsonl",
        (robots, "2023-01-01", ""),
        (robots, "2022-01-01", GPT),
        (robots, "2020-01-01", ""),
        (robots, "2024-01-01", GPT),
    )
    url = "https://a.example/x"

    def at(as_of: str, date: str | None) -> bool:
        return reasons(OptOut(site_files=path, as_of=as_of), url, date=date) == [["robots_txt"]]

    assert at("latest", "2019-01-01")
    assert [at("crawl", f"{year}-06-01T00:00:00Z") for year in (2019, 2020, 2021, 2022, 2023, 2024)] == [
        False,
        False,
        False,
        True,
        False,
        True,
    ]
    assert at("crawl", None), "a page without a date goes by the latest file"
    assert [at(f"{year}-06-01", "2024-01-01") for year in (2019, 2021, 2022, 2023, 2025)] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_hosts_are_those_of_robots_txt(tmp_path: Path) -> None:
    path = files(
        tmp_path / "f.jsonl",
        ("http://WWW.a.example:80/robots.txt", "2024-01-01", GPT),
        ("https://b.example:8443/robots.txt", "2024-01-01", GPT),
    )
    found = reasons(
        OptOut(site_files=path),
        "https://www.a.example/",
        "http://a.example/x",
        "https://c.a.example/x",
        "https://b.example:8443/x",
        "https://b.example/x",
        "//[",
        "",
    )
    assert [bool(each) for each in found] == [True, True, False, True, False, False, False]
    assert host_of("https://User@A.example.:443/x") == "a.example"


@pytest.mark.parametrize(
    ("name", "body", "url", "reason"),
    [
        ("ai.txt", "User-Agent: *\nDisallow: *.html\nDisallow: *.txt\n", "/story", "ai_txt"),
        ("ai.txt", "User-Agent: *\nDisallow: *.jpg\n", "/story", None),
        (".well-known/ai.txt", "User-Agent: *\nDisallow: /\n", "/story.html", "ai_txt"),
        ("trust.txt", "member=https://a.example\ndatatrainingallowed=no\n", "/x", "trust_txt"),
        (".well-known/trust.txt", "datatrainingallowed=yes\n", "/x", None),
        (".well-known/tdmrep.json", '[{"location": "/", "tdm-reservation": 1}]', "/x", "tdm_file"),
        (
            ".well-known/tdmrep.json",
            '[{"location": "/", "tdm-reservation": 1}, {"location": "/free/*", "tdm-reservation": 0}]',
            "/free/x",
            None,
        ),
        (".well-known/tdmrep.json", '[{"location": "/*.html$", "tdm-reservation": "1"}]', "/a/b.html", "tdm_file"),
        (".well-known/tdmrep.json", '[{"location": 3}, "x", {"location": "/", "tdm-reservation": true}]', "/x", None),
        (".well-known/tdmrep.json", "[" * 5000, "/x", None),
        ("robots.txt", "User-agent: *\nContent-Signal: search=yes, ai-train=no\nAllow: /\n", "/x", "content_signal"),
        ("robots.txt", "User-agent: *\nContent-Signal: search=yes, ai-train=yes\n", "/x", None),
        ("robots.txt", "User-agent: *\nContent-Usage: /news train-ai=n\n", "/news/1", "content_signal"),
        ("robots.txt", "User-agent: *\nContent-Usage: /news train-ai=n\n", "/free/1", None),
        ("robots.txt", "User-agent: OtherBot\nContent-Signal: ai-train=no\n", "/x", None),
    ],
)
def test_other_files_of_sites(name: str, body: str, url: str, reason: str | None, tmp_path: Path) -> None:
    rule = OptOut(site_files=files(tmp_path / "f.jsonl", (f"https://a.example/{name}", "2024-01-01", body)))
    assert reasons(rule, f"https://a.example{url}") == [[reason] if reason else []]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("meta=noai", ["meta_robots"]),
        ("header=noai", ["x_robots_tag"]),
        ("header=gptbot:noai", ["x_robots_tag"]),
        ("header=otherbot:noai", []),
        ("meta=noindex", []),
        ("tdm_header=1", ["tdm_header"]),
        ("tdm_meta=1 tdm_header=0", ["tdm_meta"]),
        ("tdm_meta=0 tdm_header=1", []),
        ("tdm_header=0", []),
        ("usage_header=1", ["content_signal"]),
        (None, ["tdm_file"]),
    ],
)
def test_a_tag_goes_before_a_header_and_a_header_before_a_file(
    stated: str | None, expected: list[str], tmp_path: Path
) -> None:
    reserved = '[{"location": "/", "tdm-reservation": 1}]'
    path = files(tmp_path / "f.jsonl", ("https://a.example/.well-known/tdmrep.json", "2024-01-01", reserved))
    also = ["tdm_file"] if stated is None or "tdm" not in stated else []
    found = reasons(OptOut(site_files=path), "https://a.example/x", stated=stated)[0]
    assert sorted(found) == sorted({*expected, *also})


def test_lists_of_domains_and_addresses(tmp_path: Path) -> None:
    domains, urls = tmp_path / "d.txt", tmp_path / "u.txt.gz"
    domains.write_text("# asked in writing\nA.example\n")
    urls.write_bytes(gzip.compress(b"https://b.example/one/\n"))
    rule = OptOut(domains_file=str(domains), urls_file=str(urls), reservations=(), by_language=False)
    found = reasons(
        rule,
        "https://news.a.example/x",
        "https://notA.example/",
        "http://www.b.example/one",
        "https://b.example/one/two",
    )
    assert found == [["listed_domain"], [], ["listed_url"], []]
    assert rule.needs == ("url", "date")


def test_order_of_rows_parts_and_formats_of_files_do_not_matter(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [
        (
            f"https://h{n % 40}.example/robots.txt",
            f"20{10 + n % 7}-01-01",
            chance.choice(("", GPT, "User-agent: *\nDisallow: /a")),
        )
        for n in range(400)
    ]
    urls = [f"https://h{n}.example/{p}" for n in range(50) for p in "ab"]
    first = reasons(OptOut(site_files=files(tmp_path / "a.jsonl", *rows), as_of="2013-05-01"), *urls)
    chance.shuffle(rows)
    files(tmp_path / "half.jsonl", *rows[:150])
    other = tmp_path / "folder"
    other.mkdir()
    pq.write_table(
        pa.table(
            {"url": [r[0] for r in rows[150:]], "date": [r[1] for r in rows[150:]], "text": [r[2] for r in rows[150:]]}
        ),
        other / "b.parquet",
    )
    again = reasons(OptOut(site_files=[str(other), str(tmp_path / "half.jsonl")], as_of="2013-05-01"), *urls)
    assert first == again
    assert 10 < sum(map(bool, first)) < 90


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "is no JSON"),
        ("[1]", "is no object"),
        ('{"host": "a.example"}', "needs `url` or `host`, and `body`"),
        ('{"url": "https://a.example/humans.txt", "body": ""}', "is no file of a site"),
        ('{"host": "a.example", "date": "soon", "body": ""}', "is no date"),
    ],
)
def test_a_wrong_row_is_named(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_text('{"host": "a.example", "body": ""}\n' + line + "\n")
    with pytest.raises(ValueError, match=says):
        OptOut(site_files=str(path)).prepare()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reservations": ("robots_txt",)}, "keep everything"),
        ({"as_of": "yesterday"}, "is no date"),
        ({"domains_file": "/nowhere"}, "nothing lies at"),
        ({"agents": ()}, "at least 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        OptOut(**settings)


def test_agents_are_those_of_a_dated_list_and_of_ones_own() -> None:
    agents = named_agents(("ai-2026-11", "gptbot", "MyBot"))
    assert {"GPTBot", "CCBot", "ClaudeBot", "Google-Extended"} <= set(agents)
    assert agents[-1] == "MyBot"
    assert len(agents) == len(LISTS["ai-2026-11"]) + 1


def test_every_language_is_counted_with_what_each_reason_takes() -> None:
    batch = pa.record_batch(
        {
            "url": ["https://a.example/"] * 4,
            "date": pa.array([None] * 4, pa.string()),
            "language": ["en", "en", "de", None],
            "reservations": ["meta=noai", None, "meta=noai tdm_meta=1", None],
        }
    )
    rule = OptOut()
    counted = rule.tally(
        Signals(batch), rule.verdict(Signals(batch)), pa.array([True] * 4).to_numpy(zero_copy_only=False)
    )
    assert counted == {
        "en/": 2,
        "en/any": 1,
        "en/meta_robots": 1,
        "de/": 1,
        "de/any": 1,
        "de/meta_robots": 1,
        "de/tdm_meta": 1,
        "unknown/": 1,
    }
    figures = OptOut.figures({"noted": counted})
    assert figures is not None
    rows = figures.blocks[0].rows  # type: ignore[union-attr]
    assert rows == [
        ("all", "4", "2", "50.00%"),
        ("en", "2", "1", "50.00%"),
        ("de", "1", "1", "100.00%"),
        ("unknown", "1", "0", "0.00%"),
    ]
