"""A run says of each source how many pages lie about their encoding, how many texts have lost characters (a rule can
drop those), and how many pages are cut off."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.pipeline.runs import go, save

RECIPE = """
name: encodings
sources:
  crawl: {warc: {path: crawl.warc}}
  notes: {jsonl: {path: notes.jsonl}, join: few_replacement_characters}
  clean: {jsonl: {path: clean.jsonl}, join: few_replacement_characters}
stages: [extract, few_replacement_characters, write]
"""
RUSSIAN = "Старая мельница у реки мелет медленно, но верно; каждое утро мельник открывает заслонку и ждёт. " * 4


def record(number: int, html: bytes, charset: str, encoding: str = "identity") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html{charset}\r\nContent-Encoding: {encoding}\r\n\r\n"
    body = head.encode() + html
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: https://e.example/{number}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def test_pages_that_lie_and_texts_with_lost_characters_raise_alarms(tmp_path: Path) -> None:
    page = f"<html><body><p>{RUSSIAN}</p></body></html>"
    lossy = page.replace("е", "\ufffd").encode()
    pages = [(page.encode(), "; charset=utf-8")] * 6 + [
        (page.encode("cp1251"), "; charset=utf-8"),
        (page.encode("koi8-r"), ""),
        (lossy, ""),
    ]
    (tmp_path / "crawl.warc").write_bytes(b"".join(record(n, html, charset) for n, (html, charset) in enumerate(pages)))
    (tmp_path / "notes.jsonl").write_text(
        "".join(json.dumps({"text": f"note {n} \ufffd\ufffd" if n < 2 else f"note {n}"}) + "\n" for n in range(40))
    )
    (tmp_path / "clean.jsonl").write_text(
        "".join(json.dumps({"text": f"text {n}" + "\ufffd" * (n == 0)}) + "\n" for n in range(100))
    )
    summary, _ = go(save(tmp_path / "r.yaml", RECIPE), tmp_path / "out")
    lost = "hold U+FFFD for characters that were lost; few_replacement_characters drops texts with many"
    assert sorted(summary.alarms) == [
        "extract, crawl: 1 of 9 documents (11.1%) are not in the encoding that they declare, so that it was detected",
        "extract, crawl: 1 of 9 documents (11.1%) declare no encoding and are not UTF-8, so that it was detected",
        f"extract, crawl: 1 of 9 documents (11.1%) {lost}",
        f"notes: 2 of 40 documents (5.0%) {lost}",
    ]
    stages = {stage["name"]: stage["sources"] for stage in summary.record.to_json()["stages"]}
    assert stages["extract"]["crawl"]["noted"] == {
        "charset_detected": 1,
        "charset_overruled": 1,
        "replacement_characters": 1,
        "pages": 9,
    }
    assert stages["clean"]["clean"]["noted"] == {"replacement_characters": 1}, "1 of 100 is counted, and no alarm"
    rule = stages["few_replacement_characters"]
    assert [rule[source]["dropped"] for source in ("crawl", "notes", "clean")] == [
        {"too_many_replacement_characters": n} for n in (1, 2, 1)
    ]
    table = pq.read_table(tmp_path / "out" / "write")
    assert len(table) == 8 + 38 + 99 and set(table["replacement_share"].to_pylist()) == {0.0}
    assert sum(text.strip() == RUSSIAN.strip() for text in table["text"].to_pylist()) == 8


def test_pages_that_are_cut_off_are_counted_and_raise_an_alarm(tmp_path: Path) -> None:
    page = f"<html><body><p>{RUSSIAN}</p></body></html>".encode()
    gzipped = gzip.compress(page)
    whole, half = (record(n, body, "; charset=utf-8", "gzip") for n, body in enumerate((gzipped, gzipped[:-20])))
    cut = record(2, page, "; charset=utf-8").replace(b"WARC-Type", b"WARC-Truncated: length\r\nWARC-Type")
    (tmp_path / "crawl.warc").write_bytes(whole + half + cut)
    recipe = "name: cut\nsources: {crawl: {warc: {path: crawl.warc}}}\nstages: [extract, write]\n"
    summary, _ = go(save(tmp_path / "r.yaml", recipe), tmp_path / "out")
    assert summary.alarms == [
        "crawl: 2 of 3 documents (66.7%) are cut off, by the crawler or where a gzip body breaks off; "
        "`keep_truncated: false` drops them"
    ]
    (read,) = (stage for stage in summary.record.to_json()["stages"] if stage["name"] == "crawl")
    assert read["sources"]["crawl"]["noted"] == {"truncated": 2}
