"""A file that is damaged, empty or of other columns is named to whoever started the run, and every record is accounted
for."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.pipeline.store.counts import Faults, FileFault
from gristmill.pipeline.store.serialize import dumps, read_as
from gristmill.stages.documents import Collector
from gristmill.stages.stage import Origin
from tests.pipeline.runs import go, lines, save

RECIPE = """
name: faults
sources:
  crawl: {warc: {path: in}}
  tables: {parquet: {path: in}}
  notes: {jsonl: {path: in}}
stages: [sample: {rate: 1}]
parts: {files: 1}
"""


def page(url: str) -> bytes:
    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>" + url.encode() * 40
    head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nContent-Length: {len(body)}\r\n\r\n"
    return gzip.compress(head.encode() + body + b"\r\n\r\n")


def test_alarms_name_files_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    whole = b"".join(page(f"https://e.example/{n}") for n in range(4))
    for name, data in {
        "good": whole,
        "cut": whole[:-9],
        "page": b"<html>not found</html>",
        "none": b"",
        "none2": b"",
    }.items():
        (folder / f"{name}.warc.gz").write_bytes(data)
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "good.parquet")
    for name in ("other\x1b[31m\n1", "other2"):
        pq.write_table(pa.table({"body": ["a", "b"], "id": [1, 2]}), folder / f"{name}.parquet")
    (folder / "torn.parquet").write_bytes(b"PAR1 and no more")
    lines(folder / "good.jsonl", ["one"])
    (folder / "none.jsonl").touch()
    (folder / "lines.jsonl").write_text('{"text": "two"}\n{oops\nno\n')
    recipe = save(tmp_path / "r.yaml", RECIPE)

    summary, _ = go(recipe, tmp_path / "out")
    crawl, torn, other, notes, none = summary.alarms
    assert crawl == (
        "crawl: 4 damaged records in its files: page.warc.gz (the whole file: gzip: Error -4 Invalid gzip/zlib wrapper found), "
        "cut.warc.gz (the file ends inside this record), none.warc.gz (the file is empty) and 1 more file"
    )
    assert torn.startswith("tables: 1 damaged record in its files: torn.parquet (the whole file: Parquet: ")
    has = "it has none of text, content, raw_content; it has body, id: name the text's field with `text:`"
    assert other == f"tables: other␛[31m 1.parquet, other2.parquet: {has}"
    assert notes.startswith("notes: 2 damaged records in its files: lines.jsonl (2 records, the first: no JSON: ")
    assert none == "notes: none.jsonl: the file is empty"

    counts = {
        its["name"]: (its["docs_in"], its["kept"], its["dropped"], its["quarantined"])
        for its in summary.record.to_json()["stages"]
    }
    assert (
        counts["crawl"] == (11, 7, {}, 4)
        and counts["notes"] == (4, 2, {}, 2)
        and counts["tables"] == (7, 2, {"no_text": 4}, 1)
    )
    assert "faults" not in json.dumps(summary.record.to_json()["stages"])
    log = (tmp_path / "out" / "logs" / "run.log").read_text()
    assert "none2.warc.gz: the file is empty" in log and log.count(has) == 2
    again, anew = go(recipe, tmp_path / "out")
    assert again.alarms == summary.alarms and not anew


def test_at_most_three_files_are_named_in_words_of_bounded_length() -> None:
    faults = Faults()
    for n in range(1000):
        collector = Collector("s", f"{n:03}" + "x" * 500)
        collector.damage(5, 9, "y" * 5000)
        collector.remark(f"remark {n % 50:02}")
        faults.note(Origin("s", collector.path, 10), collector.take())
    assert len(faults.of_damage()) < 1000 and faults.of_damage().endswith(" and 997 more files")
    said = faults.of_remarks()
    assert len(said) == 4 and all(len(line) < 700 for line in said)
    assert (
        said[0].endswith(" and 17 more files: remark 00") and said[3] == "940 files with the like; logs/run.log has all"
    )


def test_what_is_said_of_a_file_does_not_depend_on_its_parts_or_their_order() -> None:
    pieces = [
        Faults({f"f{n % 3}": FileFault(n, (100 - n, f"what {n}"), n == 7, {f"remark {n % 2}"})}) for n in range(1, 20)
    ]
    said = set()
    for seed in range(5):
        random.Random(seed).shuffle(pieces)
        total = Faults()
        for piece in pieces:
            total.update(read_as(Faults, json.loads(dumps(piece))))
        said.add((total.of_damage(), *total.of_remarks()))
    ((damage, *remarks),) = said
    assert damage.startswith("f1 (the whole file: what 19), f0 (63 records") and len(remarks) == 2
