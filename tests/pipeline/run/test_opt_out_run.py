"""A crawl with a page for every kind of reservation, from archive to rejects: files of sites are gathered from the
crawl itself, and each page goes for its own reason."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from gristmill.pipeline.plan.plan import Segment, make_plan
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.stages import OptOut, PageTerms, Warc
from tests.pipeline.runs import go, save

ENGLISH = "The mill stands by the river, and the miller keeps his dog in the yard while the wheel turns in the water. "
GERMAN = "Die Mühle steht am Fluss, und der Müller hält seinen Hund im Hof, während sich das Rad im Wasser dreht. "


def record(url: str, body: str, headers: str = "", content_type: str = "text/html; charset=utf-8") -> bytes:
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n{headers}\r\n{body}".encode()
    lines = ["WARC/1.0", "WARC-Type: response", f"WARC-Target-URI: {url}", "WARC-Date: 2024-03-01T00:00:00Z"]
    lines += ["Content-Type: application/http; msgtype=response", f"Content-Length: {len(http)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + http + b"\r\n\r\n"


def page(host: str, head: str = "", headers: str = "", text: str = ENGLISH, foot: str = "") -> bytes:
    paragraphs = "".join(f"<p>{text * 3}</p>" for _ in range(3))
    html = f"<html><head><title>{host}</title>{head}</head><body><article>{paragraphs}</article>{foot}</body></html>"
    return record(f"https://{host}.example/page", html, headers)


def site_file(host: str, name: str, body: str) -> bytes:
    return record(f"https://{host}.example/{name}", body, content_type="text/plain")


CRAWL = [
    page("robots-txt"), site_file("robots-txt", "robots.txt", "User-agent: GPTBot\nDisallow: /\n"),
    page("robots-de", text=GERMAN), site_file("robots-de", "robots.txt", "User-agent: CCBot\nDisallow: /page\n"),
    page("content-signal"), site_file("content-signal", "robots.txt", "User-agent: *\nContent-Signal: ai-train=no\nAllow: /\n"),
    page("ai-txt"), site_file("ai-txt", "ai.txt", "User-Agent: *\nDisallow: *.html\n"),
    page("trust-txt"), site_file("trust-txt", "trust.txt", "datatrainingallowed=no\n"),
    page("tdm-file"), site_file("tdm-file", ".well-known/tdmrep.json", '[{"location": "/page", "tdm-reservation": 1}]'),
    page("tdm-header", headers="tdm-reservation: 1\r\n"),
    page("tdm-meta", head='<meta name="tdm-reservation" content="1">'),
    page("x-robots-tag", headers="X-Robots-Tag: noindex\r\nX-Robots-Tag: noai\r\n"),
    page("meta-robots", head='<meta name="robots" content="noai, noimageai">'),
    page("listed-domain"),
    page("listed-url"),
    page("kept"), site_file("kept", "robots.txt", "User-agent: Googlebot\nDisallow: /\n"),
    page("kept-de", text=GERMAN),
    page("licensed", foot='<a rel="license" href="https://creativecommons.org/licenses/by/4.0/">CC BY 4.0</a>'),
]  # fmt: skip
WANTED = {
    "robots-txt": "robots_txt", "robots-de": "robots_txt", "content-signal": "content_signal", "ai-txt": "ai_txt",
    "trust-txt": "trust_txt", "tdm-file": "tdm_file", "tdm-header": "tdm_header", "tdm-meta": "tdm_meta",
    "x-robots-tag": "x_robots_tag", "meta-robots": "meta_robots", "listed-domain": "listed_domain", "listed-url": "listed_url",
}  # fmt: skip
GATHER = "name: gather\nsources: {files: {site_files: {path: crawl}}}\nstages: [write]\n"
TRAIN = """name: train
sources: {crawl: {warc: {path: crawl}}}
stages:
  - extract
  - opt_out: {site_files: files/write, domains_file: domains.txt, urls_file: urls.txt}
  - keep_licenses: {unstated: true}
  - write
  - tokenize: {vocab_size: 300}
  - pack: {row_length: 64, window_tokens: 1024}
"""


def test_each_reservation_of_a_crawl_is_honoured_and_counted_by_language(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl" / "a.warc").write_bytes(b"".join(CRAWL[:9]))
    (tmp_path / "crawl" / "b.warc").write_bytes(b"".join(CRAWL[9:]))
    save(tmp_path / "domains.txt", "listed-domain.example\n")
    save(tmp_path / "urls.txt", "https://listed-url.example/page\n")
    go(save(tmp_path / "gather.yaml", GATHER), tmp_path / "files")
    gathered = pq.read_table(tmp_path / "files" / "write", columns=["url", "date", "text"]).to_pylist()
    assert len(gathered) == 7
    assert {row["date"] for row in gathered} == {"2024-03-01T00:00:00Z"}

    go(save(tmp_path / "train.yaml", TRAIN), tmp_path / "out")
    rejects = pq.read_table(tmp_path / "out" / "stages" / "opt_out" / "rejects").to_pylist()
    assert {row["url"].split("//")[1].split(".")[0]: row["reason"] for row in rejects} == WANTED
    assert len(rejects) == len(WANTED) == 12
    kept = pq.read_table(tmp_path / "out" / "write").to_pylist()
    assert {row["url"].split("//")[1].split(".")[0]: row["license_stated"] for row in kept} == {
        "kept": None,
        "kept-de": None,
        "licensed": "CC-BY-4.0",
    }
    report = json.loads((tmp_path / "out" / "stages" / "opt_out" / "report.json").read_text())
    assert report["dropped"] == dict(sorted(Counter(WANTED.values()).items()))
    counted = report["noted"]
    assert (counted["en/"], counted["en/any"], counted["de/"], counted["de/any"]) == (13, 11, 2, 1)
    assert counted["de/robots_txt"] == counted["en/robots_txt"] == 1
    card = (tmp_path / "out" / "shards" / "README.md").read_text()
    assert "licenses that pages state" in card
    assert "not stated 2 (66.67%), CC-BY-4.0 1 (33.33%)" in card.replace("\\", "")
    html = (tmp_path / "out" / "report.html").read_text()
    assert "What opt-outs take of each language" in html


def planned(folder: Path, stages: str, sources: str = "{crawl: {warc: {path: in}}}") -> list[Segment]:
    text = f"name: r\nsources: {sources}\nstages: {stages}\n"
    return make_plan(recipes.load(save(folder / "r.yaml", text))).segments


def test_pages_are_read_for_terms_only_where_a_stage_asks(tmp_path: Path) -> None:
    save(tmp_path / "d.txt", "a.example\n")
    (first, *_) = planned(tmp_path, "[extract, gopher_quality, write]")
    assert isinstance(first.source.reader.stage, Warc)  # type: ignore[union-attr]
    assert not first.source.reader.stage.keep_headers  # type: ignore[union-attr]
    assert not any(isinstance(step.stage, PageTerms) for step in first.steps)

    (first, *_) = planned(tmp_path, "[extract, opt_out, write]")
    assert [step.called for step in first.steps][:2] == ["page_terms", "extract"]
    assert first.steps[0].stage.added == ("reservations",)
    assert first.source.reader.stage.keep_headers  # type: ignore[union-attr]

    (first, *_) = planned(tmp_path, "[extract, keep_licenses, write]")
    assert first.steps[0].stage.added == ("license_stated", "license_stated_in")
    assert not first.source.reader.stage.keep_headers  # type: ignore[union-attr]

    early = "[{opt_out: {domains_file: d.txt, reservations: [], by_language: false}}, extract, write]"
    (first, *_) = planned(tmp_path, early)
    assert isinstance(first.steps[0].stage, OptOut)
    assert first.steps[0] in first.works, "it decides before pages are extracted"


def test_texts_that_join_pages_keep_the_terms_of_pages(tmp_path: Path) -> None:
    both = "{crawl: {warc: {path: in}}, books: {jsonl: {path: b}, join: opt_out}, more: {jsonl: {path: c}}}"
    segments = planned(tmp_path, "[extract, opt_out, write]", both)
    terms = {
        segment.name: [step.called for step in segment.steps if isinstance(step.stage, PageTerms)]
        for segment in segments
    }
    assert terms["crawl"] == ["page_terms"]
    assert terms["books"] == ["page_terms_2"]
    assert terms["more"] == ["page_terms"]
    own = (
        "{crawl: {warc: {path: in}, stages: [extract]}, news: {warc: {path: in2}, stages: [{extract: {name: other}}]}}"
    )
    segments = planned(tmp_path, "[opt_out, write]", own)
    assert [segment.steps[0].called for segment in segments][:2] == ["page_terms", "page_terms_2"]
