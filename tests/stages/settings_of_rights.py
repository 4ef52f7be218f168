"""Every setting of the stages that look at reservations and licenses, with a value that changes what they do."""

from __future__ import annotations

import json

import pyarrow as pa

from tests.stages.settings_of_maps import HTTP, archive, record, signals, to, url_list
from tests.stages.settings_shown import Lab, Subject

NEW, OLD = "User-agent: GPTBot\nDisallow: /new\n", "User-agent: GPTBot\nDisallow: /old\n"
STAR = "User-agent: *\nDisallow: /\n"
SITES = [
    {"url": "https://a.example/robots.txt", "date": "2020-01-01", "body": OLD},
    {"url": "https://a.example/robots.txt", "date": "2024-01-01", "body": NEW},
    {"url": "https://b.example/robots.txt", "date": "2024-01-01", "body": STAR},
]


def sites(lab: Lab) -> str:
    return lab.file("sites.jsonl", "".join(json.dumps(row) + "\n" for row in SITES))


def of_page(url: str, reservations: str | None = None) -> pa.Table:
    return pa.table({
        "url": [url], "date": ["2021-01-01T00:00:00Z"], "text": ["t"], "language": ["en"],
        "reservations": pa.array([reservations], pa.string()),
    })  # fmt: skip


ROBOTS_TXT = record("response", b"HTTP/1.1 200 OK\r\n\r\nUser-agent: *\r\nDisallow: /", Content_Type=HTTP).replace(
    b"https://a.example/", b"https://a.example/robots.txt"
)
RIGHTS = [
    Subject(
        "PageTerms",
        {"only": to(("license_stated",))},
        given=pa.table({"html": pa.array([b"<meta name=robots content=noai><a rel=license href=/terms>x</a>"]), "charset": ["utf-8"], "meta": pa.array([None], pa.string())}),
    ),
    Subject(
        "OptOut",
        {
            "site_files": to(sites, given=of_page("https://a.example/new/1")),
            "domains_file": to(url_list("a.example"), given=of_page("https://a.example/new/1")),
            "urls_file": to(url_list("a.example/new/1"), given=of_page("https://a.example/new/1")),
            "agents": to(("OtherBot",), given=of_page("https://a.example/new/1"), site_files=sites),
            "star": to(False, given=of_page("https://b.example/x"), site_files=sites),
            "as_of": to("2022-01-01", given=of_page("https://a.example/new/1"), site_files=sites),
            "reservations": to(("tdm",), given=of_page("https://a.example/x", "meta=noai")),
            "directives": to(("noindex",), given=of_page("https://a.example/x", "meta=noai")),
            "by_language": to(False, see=lambda lab, stage, given: stage.needs),
        },
        given=of_page("https://a.example/x"),
    ),
    Subject(
        "KeepLicenses",
        {"licenses": to(("CC-BY-NC-*",)), "unstated": to(True, given=signals(license_stated=pa.scalar(None, pa.string()), license_stated_in=pa.scalar(None, pa.string()))), "sources": to(("link",))},
        given=signals(license_stated="CC-BY-4.0", license_stated_in="rel"),
    ),
    Subject(
        "SiteFiles",
        archive("SiteFiles", ".warc", "response", b"", HTTP).changes,
        given=(ROBOTS_TXT + ROBOTS_TXT.replace(b"WARC-Date", b"WARC-Truncated: length\r\nWARC-Date"), "a.warc"),
        base={"path": "x"},
    ),
]  # fmt: skip
