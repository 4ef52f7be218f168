"""The public summary of a run: every number in it is one that can be counted in the documents that the run wrote, what
the run does not know is empty, and its files open in what reads such files."""

from __future__ import annotations

import io
import json
import math
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest
from publicsuffixlist import PublicSuffixList
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.store.run_records import RunRecord
from gristmill.pipeline.summary.content import Content
from gristmill.pipeline.summary.files import write_summary
from gristmill.pipeline.summary.points import NOT_VERIFIED, PublicSummary, summary_of
from gristmill.shards.reader import open_shards
from gristmill.stages.read.warc import CRAWLER, Warc, crawler_note
from gristmill.stages.stage import Origin
from tests.pipeline.runs import go, save, sentences

HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) \u202e|"
RECIPE = """
name: shelves
sources:
  web: {jsonl: {path: web}}
  made: {jsonl: {path: made.jsonl}}
stages:
  - from_meta: {numbers: [synthetic], texts: {license_source: license}}
  - keep_where: {signal: words_given, at_least: 1}
  - exact_dedup
  - write
  - tokenize: {vocab_size: 400}
  - pack: {row_length: 64, window_tokens: 4096, license: cc0-1.0}
""".replace("numbers: [synthetic]", "numbers: [synthetic, words_given]")


def row(text: str, url: str | None, date: str | None, **more: Any) -> str:
    given = {"text": text, "url": url, "date": date, "words_given": len(text.split()), "synthetic": 0, **more}
    return json.dumps({name: value for name, value in given.items() if value is not None}) + "\n"


def shelves(folder: Path) -> Path:
    """200 documents of two sources: 25 sites, a few without address, date or license, some equal, some that a rule
    drops."""
    chance = random.Random(5)
    texts = sentences(chance, 150, 40)
    rows = []
    for i, text in enumerate(texts):
        site = ("{}.co.uk", "{}.com", "{}.github.io")[i % 3].format(f"site{int(chance.random() ** 2 * 25)}")
        url = None if i % 29 == 0 else f"https://www.{site}/{i}"
        date = None if i % 31 == 0 else f"2025-{1 + i % 11:02}-0{1 + i % 9}T10:00:00Z"
        license = (None, "cc-by-4.0", HOSTILE)[i % 3]
        dropped = {"words_given": 0} if i % 13 == 0 else {}
        rows.append(row(text, url, date, license=license, **dropped))
    rows += rows[:20]
    (folder / "web").mkdir(parents=True)
    for k in range(4):
        (folder / "web" / f"{k}.jsonl").write_text("".join(rows[k::4]))
    (folder / "made.jsonl").write_text(
        "".join(
            row(f"Made up {text}", f"https://made.example/{i}", "2026-02-03", synthetic=1)
            for i, text in enumerate(texts[:30])
        )
    )
    return save(folder / "recipe.yaml", RECIPE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelves")
    go(shelves(folder), folder / "out")
    write_summary(RunFolder(folder / "out"), "eu")
    return folder / "out"


def documents(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((out / "write").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def told(out: Path, key: str) -> dict[str, Any]:
    points = json.loads((out / "summary" / "eu.json").read_text())["points"]
    return next(point for point in points if point["key"] == key)


def size(row: dict[str, Any]) -> int:
    return len(row["text"].encode())


def test_every_number_is_one_that_can_be_counted_in_the_documents(ran: Path) -> None:
    rows = documents(ran)
    assert 100 < len(rows) < 200
    content = told(ran, "content")["facts"]
    assert content["documents"] == len(rows)
    assert content["text, bytes of UTF-8"] == sum(map(size, rows))
    run = json.loads((ran / "run.json").read_text())
    assert content["tokens"] == open_shards(ran / "shards" / "64").index.total("tokens") > 0
    suffixes, domains = PublicSuffixList(), Counter[str]()
    for each in rows:
        host = urlsplit(each["url"] or "").hostname
        if host:
            domains[suffixes.privatesuffix(host.removeprefix("www."))] += size(each)
    tenth = math.ceil(len(domains) / 10)
    top = sorted(domains.items(), key=lambda item: (-item[1], item[0]))[:tenth]
    listed = told(ran, "domains")
    assert listed["facts"]["domains"] == len(domains) > 20
    assert [(line["domain"], line["text bytes"]) for line in listed["tables"][0]["rows"]] == top
    assert listed["facts"]["documents without an address"] == sum(not each["url"] for each in rows) > 0
    by_source = Counter(each["source"] for each in rows)
    sources = told(ran, "sources")["tables"][0]["rows"]
    assert {line["source"]: line["documents"] for line in sources} == by_source and set(by_source) == {"web", "made"}
    assert sum(line["tokens"] for line in sources) == content["tokens"]
    dates = sorted(each["date"][:10] for each in rows if each["date"])
    periods = told(ran, "periods")
    assert (periods["facts"]["first"], periods["facts"]["last"]) == (dates[0], dates[-1])
    assert sum(line["undated documents"] for line in periods["tables"][0]["rows"]) == len(rows) - len(dates) > 0
    licenses = {line["license"]: line["documents"] for line in told(ran, "licenses")["tables"][0]["rows"]}
    counted = Counter(each["license_source"] or "none stated" for each in rows)
    assert licenses == counted and len(counted) == 3
    made = [each for each in rows if each["synthetic"]]
    synthetic = told(ran, "synthetic")["facts"]
    assert synthetic["documents"] == len(made) > 0 and synthetic["text, bytes of UTF-8"] == sum(map(size, made))
    stages = told(ran, "processing")["tables"][0]["rows"]
    assert [(s["stage"], s["in"], s["kept"]) for s in stages] == [
        (s["name"], s["docs_in"], s["kept"]) for s in run["stages"]
    ]


def test_what_the_run_does_not_know_is_empty_and_says_so(ran: Path) -> None:
    for key in ("crawlers", "reservations", "rest"):
        point = told(ran, key)
        assert point["status"] == NOT_VERIFIED and set(point["facts"].values()) == {None} and len(point["facts"]) > 0
    page = (ran / "summary" / "eu.html").read_text()
    assert page.count(f'<dd class="missing">{NOT_VERIFIED}</dd>') == sum(
        value is None
        for point in json.loads((ran / "summary" / "eu.json").read_text())["points"]
        for value in point["facts"].values()
    )


def test_no_name_from_a_page_becomes_markup(ran: Path) -> None:
    page = (ran / "summary" / "eu.html").read_text()
    assert "alert(1)" in page and "<script" not in page and "\u202e" not in page


def test_the_command_prints_points_and_files(ran: Path) -> None:
    said = CliRunner().invoke(app, ["report", str(ran), "--for", "eu", "--synthetic", "made"])
    assert said.exit_code == 0 and said.output.count("wrote: ") == 2
    synthetic = told(ran, "synthetic")
    assert any("declares synthetic: made." in note for note in synthetic["notes"])
    assert synthetic["facts"]["documents"] == sum(each["source"] == "made" for each in documents(ran)) > 0
    as_json = CliRunner().invoke(app, ["report", str(ran), "--for", "eu", "--json"])
    assert json.loads(as_json.stdout) == json.loads((ran / "summary" / "eu.json").read_text())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["eu", "writ"], "writ: no stage of that name writes documents; stages that write documents here: write"),
        (["us"], "--for us: no such summary"),
        (["eu", None, ["nobody"]], "--synthetic nobody: no such source; there is"),
    ],
)
def test_a_wrong_name_says_what_there_is(ran: Path, given: list[Any], said: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(said)):
        write_summary(RunFolder(ran), *given)


def test_a_run_without_documents_on_disk_says_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(row("One text.", None, None))
    go(
        save(tmp_path / "r.yaml", "name: r\nsources: {a: {jsonl: {path: a.jsonl}}}\nstages: [exact_dedup]\n"),
        tmp_path / "out",
    )
    with pytest.raises(RecipeError, match="add `- write`"):
        write_summary(RunFolder(tmp_path / "out"), "eu")


def test_a_summary_of_other_documents_goes_and_of_the_same_stays(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(row("One text.", "https://a.example/1", None) + row("Two texts.", None, None))
    recipe = save(tmp_path / "r.yaml", "name: r\nsources: {a: {jsonl: {path: a.jsonl}}}\nstages: [write]\n")
    go(recipe, tmp_path / "out")
    write_summary(RunFolder(tmp_path / "out"), "eu")
    go(recipe, tmp_path / "out")
    assert (tmp_path / "out/summary/eu.json").exists()
    (tmp_path / "a.jsonl").write_text(row("One text.", "https://a.example/1", None) + row("Six texts.", None, None))
    go(recipe, tmp_path / "out")
    assert not (tmp_path / "out/summary/eu.json").exists()
    assert (tmp_path / "out/run.json").exists()


# --- parts of it -----------------------------------------------------------------------------------------------------


def summary(*stages: dict[str, Any]) -> PublicSummary:
    return summary_of(RunRecord.from_json({"name": "r", "stages": list(stages)}), {}, Content("write"), ())


def test_opt_outs_are_told_by_reason_and_so_is_what_was_asked_to_be_forgotten() -> None:
    reader = {
        "name": "crawl",
        "stage": "warc",
        "kind": "read",
        "docs_in": 100,
        "dropped": {"forgotten": 3, "redirect": 9},
    }
    stage = {"name": "rights", "stage": "opt_out", "docs_in": 88, "dropped": {"robots_txt": 8, "tdm_reservation": 11}}
    point = summary(reader, stage).point("reservations")
    assert point.facts == [("documents left out", 22)]
    assert [row[:3] for row in point.tables[0].rows] == [
        ("crawl", "forgotten", 3),
        ("rights", "tdm_reservation", 11),
        ("rights", "robots_txt", 8),
    ]
    honoured = summary({**stage, "dropped": {}}).point("reservations")
    assert honoured.facts == [("documents left out", 0)] and honoured.status == "from the run"


def test_an_archives_crawler_is_named_with_what_it_says_of_itself() -> None:
    body = b"software: Nutch 1.19\r\nrobots: classic\r\nhttp-header-user-agent: TestBot/2.0\x1b[31m\r\noperator: A. Person\r\n"
    note = crawler_note(body)
    assert "A. Person" not in note and "\x1b" not in note
    point = summary({"name": "crawl", "stage": "warc", "kind": "read", "noted": {note: 4, "truncated": 9}}).point(
        "crawlers"
    )
    assert [row for table in point.tables for row in table.rows] == [
        ("crawl", "Nutch 1.19", "TestBot/2.0 [31m", "classic", None, 4)
    ]
    assert dict(point.facts) == {
        "crawlers": 1,
        "user agents": "TestBot/2.0 [31m",
        "treatment of robots.txt": "classic",
    }


def test_a_file_that_names_many_crawlers_is_told_of_sixteen() -> None:
    def record(body: bytes) -> bytes:
        return b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n" % (len(body), body)

    data = b"".join(record(b"software: crawler %d\r\n" % i) for i in range(100)) + record(b"software: crawler 3\r\n")
    noted, skipped = Counter[str](), 0
    for reading in Warc(path="x.warc").read(io.BytesIO(data), Origin("crawl", "x.warc", len(data))):
        noted.update(reading.noted)
        skipped += reading.skipped.get("not_a_page", 0)
    assert skipped == 101 and len(noted) == 16 and noted[crawler_note(b"software: crawler 3")] == 2
    assert all(name.startswith(CRAWLER) for name in noted)
