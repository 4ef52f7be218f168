"""The demo crawl is the same every time, holds what its truth says, and its check sees what a wrong run did."""

from __future__ import annotations

import copy
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.demo.check import check
from gristmill.pipeline.demo.crawl import Truth, write_crawl
from gristmill.pipeline.demo.pages import NAVIGATION


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    folder = tmp_path_factory.mktemp("crawl")
    return folder, write_crawl(folder)


def test_the_same_seed_writes_the_same_bytes(crawl: tuple[Path, Truth], tmp_path: Path) -> None:
    folder, truth = crawl
    again = write_crawl(tmp_path / "again")
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["demo-00000.warc.gz", "demo-00001.warc.gz", "demo.yaml", "truth.json"]
    assert again == truth == Truth.load(folder / "truth.json")
    assert all((folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)
    write_crawl(tmp_path / "other", seed=1)
    assert (tmp_path / "other" / names[0]).read_bytes() != (folder / names[0]).read_bytes()


def test_truth_is_what_warcio_reads(crawl: tuple[Path, Truth]) -> None:
    archive = pytest.importorskip("warcio.archiveiterator")
    folder, truth = crawl
    found: Counter[str] = Counter()
    urls, ids = [], []
    for path in sorted(folder.glob("*.warc.gz")):
        data = path.read_bytes()
        if path.name == truth.damage["file"]:
            data = data[: truth.damage["start"]] + data[truth.damage["end"] :]
        for record in archive.ArchiveIterator(io.BytesIO(data), check_digests="raise"):
            ids.append(record.rec_headers["WARC-Record-ID"])
            payload = record.content_stream().read()
            reason = reason_of(record, payload)
            if reason is None:
                urls.append(record.rec_headers["WARC-Target-URI"])
            else:
                found[reason] += 1
    assert (len(urls), len(set(urls))) == (330, 330)
    assert sorted(urls) == sorted(truth.documents)
    assert (
        dict(found)
        == truth.skipped
        == {"empty_page": 2, "http_status": 12, "not_a_page": 58, "not_html": 6, "redirect": 8, "revisit": 3}
    )
    assert len(ids) + truth.damaged == truth.records == 420
    assert len(set(ids)) == len(ids)


def reason_of(record: Any, payload: bytes) -> str | None:
    if record.rec_type != "response":
        return "revisit" if record.rec_type == "revisit" else "not_a_page"
    status = record.http_headers.get_statuscode()
    if status != "200":
        return "redirect" if status[0] == "3" else "http_status"
    if not record.http_headers["Content-Type"].startswith("text/html"):
        return "not_html"
    return None if payload else "empty_page"


def test_the_damaged_member_cannot_be_read_and_its_neighbours_can(crawl: tuple[Path, Truth]) -> None:
    folder, truth = crawl
    data = (folder / str(truth.damage["file"])).read_bytes()
    start, end = int(truth.damage["start"]), int(truth.damage["end"])
    assert 0 < start < end < len(data)
    with pytest.raises(zlib.error):
        zlib.decompressobj(31).decompress(data[start:end])
    assert zlib.decompressobj(31).decompress(data[end:]).startswith(b"WARC/1.0")


def test_planted_groups_are_of_known_pages_and_apart(crawl: tuple[Path, Truth]) -> None:
    _, truth = crawl
    grouped = [url for group in [*truth.exact, *truth.near] for url in group]
    assert (len(truth.exact), len(truth.near), len(truth.spam)) == (20, 15, 20)
    assert len(set(grouped)) == len(grouped) and set(grouped) <= set(truth.documents)
    assert min(map(len, truth.exact)) == 2 and max(map(len, truth.exact)) > 2
    assert Counter(truth.languages.values()).keys() == {"en", "de", "fr", "es", "el", "zh", "ja", "ar", "ru"}


def test_extraction_gives_one_text_a_group_and_no_navigation(crawl: tuple[Path, Truth]) -> None:
    """The plan holds with a peer's reader and extractor: what is planted as equal is equal, all else differs."""
    warc = pytest.importorskip("fastwarc.warc")
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    folder, truth = crawl
    texts: dict[str, str] = {}
    for path in sorted(folder.glob("*.warc.gz")):
        data = path.read_bytes()
        if path.name == truth.damage["file"]:
            data = data[: truth.damage["start"]] + data[truth.damage["end"] :]
        for record in warc.ArchiveIterator(io.BytesIO(data), record_types=warc.WarcRecordType.response):
            html = record.reader.read()
            if (url := record.headers["WARC-Target-URI"]) in truth.first_sentences:
                texts[url] = extract_plain_text(
                    bytes_to_str(html, record.http_charset or detect_encoding(html)), main_content=True
                )
    assert sorted(texts) == sorted(truth.documents)
    assert all(len({texts[url] for url in group}) == 1 for group in truth.exact)
    assert len(set(texts.values())) == 330 - sum(len(group) - 1 for group in truth.exact)
    assert [
        url for url, text in texts.items() if " ".join(truth.first_sentences[url].split()) not in " ".join(text.split())
    ] == []
    assert [url for url, text in texts.items() if any(phrase in text for phrase in NAVIGATION)] == []


# A small made-up run: eight pages, of which a and a2 are the same, n and n2 nearly so, f is in French and s is spam.
TRUTH = Truth(
    seed=0,
    records=12,
    documents=["a", "a2", "n", "n2", "x", "y", "f", "s"],
    languages={"f": "fr"} | dict.fromkeys(["a", "a2", "n", "n2", "x", "y", "s"], "en"),
    spam=["s"],
    exact=[["a", "a2"]],
    near=[["n", "n2"]],
    skipped={"http_status": 2, "revisit": 1},
    damaged=1,
    first_sentences={url: f"The sentence of {url[0]}." for url in ["a", "a2", "n", "n2", "x", "y", "s"]},
)
RUN: dict[str, Any] = {
    "stages": [
        {
            "name": "crawl",
            "kind": "read",
            "docs_in": 12,
            "kept": 8,
            "dropped": {"http_status": 2, "revisit": 1},
            "quarantined": 1,
        },
        {"name": "extract", "kind": "map", "docs_in": 8, "kept": 8, "dropped": {}, "quarantined": 0},
        {
            "name": "keep_languages",
            "kind": "rule",
            "docs_in": 8,
            "kept": 6,
            "dropped": {"other_language": 1, "low_score": 1},
            "quarantined": 0,
        },
        {
            "name": "exact_dedup",
            "kind": "global",
            "docs_in": 6,
            "kept": 5,
            "dropped": {"duplicate": 1},
            "quarantined": 0,
        },
        {
            "name": "minhash_dedup",
            "kind": "global",
            "docs_in": 5,
            "kept": 4,
            "dropped": {"near_duplicate": 1},
            "quarantined": 0,
        },
        {"name": "write", "kind": "sink", "docs_in": 4, "kept": 4, "dropped": {}, "quarantined": 0},
    ]
}


def made_up(out: Path, run: dict[str, Any], kept: list[tuple[str, str]], rejected: list[tuple[str, str, str]]) -> Path:
    (out / "write").mkdir(parents=True)
    (out / "run.json").write_text(json.dumps(run))
    rows = [
        {"text": text, "id": url, "url": url, "uid": f"{at:016x}", "source": "crawl"}
        for at, (url, text) in enumerate(kept)
    ]
    for part, some in enumerate((rows[:2], rows[2:])):
        pq.write_table(pa.Table.from_pylist(some), out / "write" / f"part-{part:05d}.parquet")
    for stage in {stage for _, stage, _ in rejected}:
        folder = out / "stages" / stage / "rejects"
        folder.mkdir(parents=True)
        of = [
            {"uid": at, "url": url, "source": "crawl", "stage": stage, "reason": reason, "detail": None, "text": None}
            for at, (url, of, reason) in enumerate(rejected)
            if of == stage
        ]
        pq.write_table(pa.Table.from_pylist(of), folder / "part-00000.parquet")
    return out


KEPT = [(url, f"A title\n\nThe sentence\nof {url[0]}. And more.") for url in ["a", "n", "x", "y"]]
REJECTED = [
    ("n2", "minhash_dedup", "near_duplicate"),
    ("a2", "exact_dedup", "duplicate"),
    ("z", "crawl", "http_status"),
    ("f", "keep_languages", "other_language"),
    ("s", "keep_languages", "low_score"),
]  # the reader's own skips may be on record too


def test_a_right_run_agrees_in_everything(tmp_path: Path) -> None:
    findings = check(made_up(tmp_path / "out", RUN, KEPT, REJECTED), TRUTH)
    assert len(findings) == 26
    assert [f for f in findings if not f.ok] == []


def with_run(change: Callable[[list[dict[str, Any]]], None]) -> dict[str, Any]:
    run = copy.deepcopy(RUN)
    change(run["stages"])
    return run


GROUPS = "groups of exact duplicates with one survivor"
FAULTS: dict[str, tuple[dict[str, Any], list[tuple[str, str]], list[tuple[str, str, str]], set[str]]] = {
    "a copy stays": (
        RUN,
        [*KEPT[:3], ("a2", KEPT[0][1])],
        [REJECTED[0], *REJECTED[3:], ("y", "exact_dedup", "duplicate")],
        {GROUPS, "pages dropped as duplicates that repeat nothing"},
    ),
    "both copies go": (
        RUN,
        KEPT[1:],
        [*REJECTED, ("a", "exact_dedup", "duplicate")],
        {GROUPS, "documents written", "documents written, as counted"},
    ),
    "a page is lost": (
        RUN,
        KEPT[:3],
        REJECTED,
        {"pages lost without a reason on record", "documents written", "documents written, as counted"},
    ),
    "a near copy stays": (
        RUN,
        [*KEPT, ("n2", KEPT[1][1])],
        REJECTED[1:],
        {"pairs of near duplicates with one survivor", "documents written", "documents written, as counted"},
    ),
    "a page is made up": (
        RUN,
        [*KEPT, ("z", "The sentence of z.")],
        REJECTED,
        {
            "pages written that are no documents", "documents written", "documents written, as counted",
            "texts that have the first sentence of their article: at least",
        },
    ),
    "a page is in both": (
        RUN,
        KEPT,
        [*REJECTED, ("x", "extract", "x")],
        {"pages both written and dropped", "pages dropped as duplicates that repeat nothing"},
    ),
    "a foreign page stays": (
        RUN,
        [*KEPT, ("f", "La phrase de f.")],
        [row for row in REJECTED if row[0] != "f"],
        {
            "pages in other languages that went", "documents written, as counted",
            "texts that have the first sentence of their article: at least",
        },
    ),
    "rules part copies, and take articles": (
        RUN,
        KEPT[2:],
        [*REJECTED[1:], ("a", "gopher_quality", "x"), ("n", "gopher_quality", "x")],
        {
            "copies of one text of which rules left some", "articles that rules left: at least", "documents written",
            "documents written, as counted", "pages lost without a reason on record",
        },
    ),
    "spam stays": (
        RUN,
        [*KEPT, ("s", "The sentence of s.")],
        [row for row in REJECTED if row[0] != "s"],
        {"spam that went", "documents written, as counted"},
    ),
    "navigation stays": (RUN, [(u, f"{t} {NAVIGATION[0].upper()}") for u, t in KEPT], REJECTED, {"texts free of navigation: at least"}),
    "text is gone": (RUN, [(u, "") for u, _ in KEPT], REJECTED, {"texts that have the first sentence of their article: at least"}),
    "damage is overlooked": (
        with_run(lambda s: s[0].update(quarantined=0)),
        KEPT,
        REJECTED,
        {"damaged records", "crawl: kept + dropped + quarantined"},
    ),
    "another reason": (
        with_run(lambda s: s[0].update(dropped={"http_status": 2, "redirect": 1})),
        KEPT,
        REJECTED,
        {"skipped: revisit", "skipped: redirect"},
    ),
    "records are missed": (
        with_run(lambda s: s[0].update(docs_in=11)),
        KEPT,
        REJECTED,
        {"records read", "crawl: kept + dropped + quarantined"},
    ),
    "a stage leaks": (with_run(lambda s: s[1].update(kept=5)), KEPT, REJECTED, {"extract: kept + dropped + quarantined"}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_run_is_seen(fault: str, tmp_path: Path) -> None:
    run, kept, rejected, expected = FAULTS[fault]
    wrong = {f.what for f in check(made_up(tmp_path / "out", run, kept, rejected), TRUTH) if not f.ok}
    assert wrong == expected
