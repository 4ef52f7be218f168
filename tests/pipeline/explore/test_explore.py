"""`explore` shows what a run did, exactly, to whoever has the token; and nothing that it is asked changes a byte of the
run."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.explore.server import Server
from gristmill.pipeline.look.run_folder import RunFolder
from tests.pipeline.explore.explore_runs import EVIL_URL, LONG, SCRIPT, Asker, finished, hashes, served
from tests.pipeline.look.outfolder import FIRST, HOSTILE as HOSTILE_NAME, QUARANTINED, SAME, make as made_up


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="module")
def server(out: Path) -> Iterator[Server]:
    before = hashes(out)
    assert len(before) > 10
    with served(out) as serving:
        yield serving
    assert hashes(out) == before  # whatever the tests of this file asked


@pytest.fixture
def asker(server: Server) -> Asker:
    return Asker(server)


def shown(text: str) -> str:
    """What a page says, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_the_folder_is_named_and_the_recipe(asker: Asker) -> None:
    text = shown(asker.get("/").text)
    assert "Overview – out – Gristmill" in text and "Gristmill out recipe explored done" in text


def test_the_numbers_are_those_of_run_json(asker: Asker, out: Path) -> None:
    text = asker.get("/").text
    rows = dict(re.findall(r'<tr><th scope="row"[^>]*>(?:<a [^>]*>)?(\w+)(?:</a>)?</th>(.*?)</tr>', text, re.DOTALL))
    stages = RunFolder(out).record.stages
    assert set(rows) == {stage.name for stage in stages} and len(stages) >= 6
    for stage in stages:
        cells, count = re.findall(r'<td class="n"[^>]*>([^<]*)<', rows[stage.name]), stage.count
        numbers = (count.docs_in, count.kept, count.lost, count.quarantined)
        assert cells[:4] == [f"{number:,}" for number in numbers]
        for reason, number in stage.count.dropped.items():
            assert f"{reason} {number}" in shown(rows[stage.name])


def test_every_document_and_every_reject_is_in_a_list(asker: Asker, out: Path) -> None:
    stages = {stage.name: stage for stage in RunFolder(out).record.stages}
    documents = asker.get("/documents").text
    assert documents.count('<li class="stays">') == stages["write"].count.kept == 5
    assert documents.count("<li class=") == stages["web"].count.kept == 7
    assert f"1 to 7 of {stages['web'].count.kept}" in shown(documents)
    for stage in stages.values():
        for reason, number in stage.count.dropped.items():
            assert asker.get(f"/rejects?stage={stage.name}&reason={reason}").text.count('<li class="went">') == number
    everything = asker.get("/rejects").text.count('<li class="went">')
    assert everything == sum(stage.count.lost + stage.count.quarantined for stage in stages.values()) == 3


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("words=miller+keeps", 4),
        ("words=MILLER", 4),
        ("words=%22keeps+what%22", 4),
        ("words=%22what+keeps%22", 0),
        ("words=miller&outcome=kept", 3),
        ("words=miller&outcome=gone", 1),
        ("url=EXAMPLE", 7),
        ("url=two.example", 1),
        ("source=web", 7),
        ("words=%E3%81%AA%E3%81%9C", 1),
        ("words=%D0%BC%D0%B5%D0%BB%D1%8C%D0%BD%D0%B8%D0%BA", 1),
        ("words=absent+miller", 0),
        ("words=script%3Ealert(%27planted", 1),
    ],
)
def test_a_search_finds_what_is_there(asker: Asker, query: str, count: int) -> None:
    reply = asker.get(f"/documents?{query}")
    assert (reply.status, reply.text.count("<li class=")) == (200, count), query
    assert f"{count} match{'' if count == 1 else 'es'} among documents 1 to 7 of 7." in shown(reply.text)


def test_a_document_has_its_history_its_signals_and_its_texts(asker: Asker) -> None:
    gone = shown(asker.get(asker.uid_of("short.example")).text)
    assert "dropped by gopher_quality: too_few_words" in gone and "Too few words." in gone and "words 9" in gone
    kept = asker.get(asker.uid_of("ja.example"))
    assert (
        "words 9 &lt; 10" in asker.get(asker.uid_of("short.example")).text
        and "min_words" in gone
        and "Every reason" not in gone
    )
    assert re.search(
        r'data-head="signal">words</th><td [^>]*>9</td><td [^>]*>&lt; 10</td>',
        asker.get(asker.uid_of("short.example")).text,
    )
    assert "one of the records in a.warc.gz (read whole)" in gone
    assert (
        "粉屋は良いものを" in kept.text
        and "exact_dedup kept" in shown(kept.text)
        and "written to write/" in shown(kept.text)
    )
    [cluster] = [
        link
        for link in (asker.uid_of("one.example"), asker.uid_of("two.example"))
        if "dropped by" in asker.get(link).text
    ]
    assert "exact_dedup found 2 that are the same" in shown(asker.get(cluster).text)


def test_one_box_finds_a_uid_an_address_or_words(asker: Asker) -> None:
    uid = asker.uid_of("ru.example").split("/")[2].split("?")[0]
    assert asker.get(f"/find?q={uid}").headers["location"] == f"/document/{uid}"
    assert asker.get(f"/find?q={int(uid, 16)}").headers["location"] == f"/document/{uid}"
    assert asker.get("/find?q=https://ru.example/").headers["location"] == "/documents?url=https%3A%2F%2Fru.example%2F"
    assert asker.get("/find?q=%22a+mill%22+b").headers["location"] == "/documents?words=%22a+mill%22+b"
    assert asker.get("/find?q=ru.example").headers["location"] == "/documents?url=ru.example"
    assert asker.get("/find?q=ru.example/a?b=1").headers["location"] == "/documents?url=ru.example%2Fa%3Fb%3D1"
    for words in ("e.g.", "3.14", "miller", "the.end is", "a." * 200 + "1"):
        assert asker.get(f"/find?q={quote(words)}").headers["location"].startswith("/documents?words=")
    assert asker.get("/find?q=//evil.example").headers["location"] == "/documents?words=%2F%2Fevil.example"
    assert asker.get(f"/document/{uid}").text == asker.get(f"/document/{uid}?part=9999").text
    for wrong in ("0" * 16, "f" * 16):
        assert asker.get(f"/document/{wrong}").status == 404


def test_a_search_shows_what_it_found_where_it_stands(asker: Asker) -> None:
    text = asker.get("/documents?words=%22says+of+everything%22+MILLER&url=one.example").text
    assert "<mark>says of everything</mark>" in text and "The <mark>miller</mark> keeps" in text
    [escaped] = re.findall(
        r'<p class="beginning".*?</p>', asker.get("/documents?words=%3Cscript%3Ealert(").text, re.DOTALL
    )
    assert "<mark>&lt;script&gt;alert(</mark>&#39;planted&#39;)&lt;/script&gt;" in escaped and "<script" not in escaped
    assert "<mark>" not in asker.get("/documents").text


def test_a_list_of_rejects_says_what_each_was_beyond(asker: Asker) -> None:
    for target in ("/rejects?stage=gopher_quality", "/documents?outcome=gone&url=short.example"):
        text = asker.get(target).text
        assert (
            text.count("<li class=") == text.count('<p class="detail" dir="auto"><strong>words 9 &lt; 10</strong>') == 1
        ), target


def test_words_are_marked_on_the_page_of_a_document(asker: Asker) -> None:
    [link] = asker.links("/documents?words=MILLER+%22those+who%22&url=one.example", "^/document/")
    assert link.endswith("&words=MILLER+%22those+who%22#match")
    text = asker.get(link.split("#")[0]).text
    assert (
        text.count('<mark id="match">miller</mark>') == 1
        and text.count("<mark>miller</mark>") > 3
        and "<mark>those who</mark>" in text
    )
    assert "<mark" not in asker.get(link.split("&")[0]).text


def test_a_match_deep_in_a_long_text_is_gone_to(asker: Asker) -> None:
    number = LONG // 96 // 9 - 5
    [link] = asker.links(f"/documents?words=%22{number}+The+miller%22", "^/document/")
    page = asker.get(link.split("#")[0])
    assert f'<mark id="match">{number} The miller</mark>' in page.text and len(page.body) < 100_000
    assert (
        re.search(r"characters [\d,]{9,} to", shown(page.text))
        and "words=" in asker.links(link.split("#")[0], "from=0")[0]
    )


def test_a_document_of_10_mb_comes_in_parts(asker: Asker) -> None:
    link = asker.uid_of("long.example")
    reply = asker.get(link)
    assert reply.status == 200 and len(reply.body) < 100_000
    [said] = re.findall(r"characters 1 to 20,000 of ([\d,]+)", shown(reply.text))
    length = int(said.replace(",", ""))
    assert LONG < length < 1.2 * LONG
    more = asker.links(link, r"from=20000#text$")[0]
    assert "characters 20,001 to 40,000" in shown(asker.get(more.split("#")[0]).text)
    last = asker.get(re.sub("from=20000#text", f"from={length - 5}", more)).text
    assert f"characters {length - 4:,} to {length:,}" in shown(last)
    beyond = asker.get(re.sub("from=20000#text", "from=999999999999", more))
    assert beyond.status == 200 and len(beyond.body) < 50_000
    frame = asker.get(link.replace("?", "/frame?"))
    assert frame.status == 200 and len(frame.body) < 6 << 20
    assert "only the beginning is shown" in asker.get(link.replace("?", "/original?")).text


def test_the_original_is_shown_with_nothing_left_in_it_that_acts(asker: Asker) -> None:
    link = asker.uid_of(EVIL_URL)
    assert '<iframe sandbox src="/document/' in asker.get(link.replace("?", "/original?")).text
    frame = asker.get(link.replace("?", "/frame?"))
    assert frame.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert not re.search(
        r"<(script|iframe|link|meta|base|img|svg|form|object|video|a|button)[\s/>]", frame.text, re.IGNORECASE
    )
    assert not re.search(r"[\s/\"']on\w+\s*=", frame.text) and "@import" not in frame.text.replace("x-@import", "")
    assert "Hostile" in frame.text and "text/html" in frame.headers["content-type"]


@pytest.mark.parametrize(
    ("url", "words", "charset"), [("ru.example", "Мельник", "cp1251"), ("ja.example", "粉屋", "cp932")]
)
def test_originals_of_other_encodings_are_read_as_extraction_read_them(
    asker: Asker, url: str, words: str, charset: str
) -> None:
    link = asker.uid_of(url)
    assert words in asker.get(link.replace("?", "/frame?")).text
    assert charset in asker.get(link.replace("?", "/original?")).text


def test_hostile_names_and_texts_stay_text(tmp_path: Path) -> None:
    out = made_up(tmp_path)
    with served(out) as server:
        asker = Asker(server)
        targets = [
            "/",
            "/documents",
            "/rejects",
            f"/document/{FIRST:016x}",
            f"/document/{SAME[0]:016x}",
            f"/document/{QUARANTINED:016x}",
        ]
        targets += [
            f"/documents?words={quote(SCRIPT)}",
            f"/documents?source={quote(SCRIPT)}",
        ]
        assert len(targets) == 8
        for target in targets:
            reply = asker.get(target)
            scripts = re.findall(r"<script.*?>", reply.text)
            assert scripts in ([], ['<script src="/script.js" defer>']), (target, scripts)
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", reply.text), target
            assert reply.headers["content-security-policy"].startswith("default-src 'none'"), target
            assert "javascript:" not in "".join(re.findall(r'(?:href|src)="[^"]*', reply.text))
        assert html.escape(HOSTILE_NAME[:33], quote=False).split(";")[0] in asker.get("/").text


def test_two_browsers_at_once_see_the_same(server: Server) -> None:
    askers = [Asker(server) for _ in range(2)]
    targets = [
        "/",
        "/documents",
        "/rejects",
        "/documents?words=miller",
        "/documents?words=keeps&outcome=kept",
        askers[0].uid_of("long.example"),
    ] * 4
    alone = {target: askers[0].get(target).body for target in set(targets)}
    with ThreadPoolExecutor(16) as threads:
        both = [[threads.submit(asker.get, target) for target in targets] for asker in askers]
        for answers in both:
            for target, answer in zip(targets, answers, strict=True):
                assert (answer.result().status, answer.result().body) == (200, alone[target]), target


def test_the_report_has_an_origin_of_its_own(asker: Asker) -> None:
    reply = asker.get("/report")
    assert reply.status == 200 and b"<!doctype html>" in reply.body[:100].lower()
    assert reply.headers["content-security-policy"].startswith(
        "sandbox allow-scripts"
    ) and "allow-same-origin" not in str(reply.headers)


def test_a_record_that_was_no_document_is_told_in_every_list(tmp_path: Path) -> None:
    for source in ("first", "second"):
        folder = tmp_path / "out/stages" / source / "rejects"
        folder.mkdir(parents=True)
        columns = {
            "uid": [None],
            "url": [None],
            "source": [source],
            "reason": ["damaged"],
            "detail": [None],
            "text": [f"broken in {source}"],
        }
        kinds = [("uid", pa.uint64()), *((name, pa.string()) for name in list(columns)[1:])]
        pq.write_table(pa.table(columns, pa.schema(kinds)), folder / f"0-{source}.parquet")
    entries = [{"name": source, "kind": "read", "docs_in": 1, "quarantined": 1} for source in ("first", "second")]
    (tmp_path / "out/run.json").write_text(json.dumps({"name": "r", "status": "done", "stages": entries}))
    with served(tmp_path / "out") as server:
        asker = Asker(server)
        for listed in ("/rejects", "/rejects?source=second", "/rejects?stage=second", "/rejects?words=second"):
            assert "broken in second" in re.sub("<[^>]*>", "", asker.get(listed).text), listed
