"""Every document that came in has a story, and no story can steer the terminal that shows it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

import gristmill
from gristmill.pipeline.cli.app import app
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import as_change, as_growth, as_json, as_percent, as_seconds, as_share, plain
from gristmill.pipeline.look.funnel import Funnel
from gristmill.pipeline.look.history import (
    FileSpan,
    Written,
    as_signal,
    history,
)
from gristmill.pipeline.look.overview import overview, plain as plain_overview, render
from gristmill.pipeline.look.run_folder import NotFound, RunFolder
from gristmill.pipeline.look.show_history import render_history, signal_text, span_text
from gristmill.pipeline.look.stage_view import render_stage, stage_view
from gristmill.pipeline.store.counts import DocumentCounts
from gristmill.stages import ExactDedup, GopherQuality, Jsonl, Write
from gristmill.stages.documents import uid_of
from tests.pipeline.look.outfolder import (
    FIRST,
    LANGUAGE,
    OTHER,
    QUARANTINED,
    SAME,
    SCRIPT_URL,
    SHORT,
    UIDS,
    WEB_URL,
    make,
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("out")))


def shown(view: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=200, force_terminal=False).print(view)
    assert as_json({"ids": b"\x01\x02", "n": 1, "odd": "\x7f"}) == '{"ids": "AQI=", "n": 1, "odd": "\\u007f"}'
    assert "\x1b" not in file.getvalue() and "\u202e" not in file.getvalue()
    return file.getvalue()


def test_the_overview_counts_what_is_left_after_each_stage(out: str) -> None:
    seen = overview(RunFolder(out))
    run = seen.run
    assert [(step.name, step.kept, step.gone) for step in Funnel.of(run, {}).steps] == [
        ("read", 12, 2), ("extract", 11, 1), ("language", 9, 2), ("exact_dedup", 7, 2), ("gopher_quality", 6, 1), ("write", 6, 0),
    ]  # fmt: skip
    text = shown(render(seen))
    assert "[bold]markup[/bold]" in text and "too_few_words" in text and "alarm: language" in text
    assert len(json.loads(json.dumps(plain_overview(seen)))["stages"]) == 7


def test_a_stage_that_only_one_source_passes_leaves_the_others_alone(out: str) -> None:
    folder = RunFolder(out)
    for name in ("gopher_quality", "write"):
        del cast(dict[str, DocumentCounts], folder.stage(name).sources)["crawl"]
    assert [step.kept for step in Funnel.of(folder.record, {}).steps] == [12, 11, 9, 7, 6, 6]


def test_a_stage_shows_samples_of_each_reason(out: str) -> None:
    view = stage_view(RunFolder(out), "crawl")
    assert [(sample.reason, sample.uid) for sample in view.samples] == [("not_found", None), ("damaged", None)]
    assert len(stage_view(RunFolder(out), "crawl", limit=1).samples) == 1
    assert SCRIPT_URL in shown(render_stage(view))


def test_more_samples_come_from_the_rejects(out: str) -> None:
    view = stage_view(RunFolder(out), "language", OTHER)
    assert {sample.uid for sample in view.samples} == {f"{uid:016x}" for uid in LANGUAGE} and len(view.samples) == 2
    assert len(stage_view(RunFolder(out), "language", limit=1).samples) == 1
    assert "[bold]markup[/bold]" in shown(render_stage(view))
    assert "\x1b" not in as_json(asdict(view)) and len(json.loads(as_json(asdict(view)))["samples"]) == 2
    assert [sample.uid for sample in stage_view(RunFolder(out), "extract", "quarantined").samples] == [
        f"{QUARANTINED:016x}"
    ]


def test_samples_past_those_of_the_report_say_in_numbers_why_they_went(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": f"only {n} words"}) + "\n" for n in range(8)))
    chain = [GopherQuality(), Write()]
    run = gristmill.Recipe(Jsonl(path=str(tmp_path / "lines.jsonl")), chain, name="n").run(tmp_path / "out", workers=1)
    samples = stage_view(RunFolder(run.out), "gopher_quality", "too_few_words").samples
    assert len(samples) == 8 and all((sample.detail or "").startswith("words ") for sample in samples)


def test_what_is_not_there_names_what_is(out: str) -> None:
    with pytest.raises(NotFound, match="did you mean language"):
        stage_view(RunFolder(out), "langage")
    with pytest.raises(NotFound, match="did you mean too_few_words"):
        stage_view(RunFolder(out), "gopher_quality", "too_few_word")
    with pytest.raises(NotFound, match=r"no document 0000000000000001 .* 3 segments"):
        history(RunFolder(out), 1)
    with pytest.raises(NotFound, match="URL"):
        history(RunFolder(out), url="https://nowhere.example")
    with pytest.raises(NotFound, match="is no uid"):
        history(RunFolder(out), "not a uid")


def test_a_document_that_was_kept_has_its_whole_way_told(out: str) -> None:
    story = history(RunFolder(out), f"{FIRST:016x}")
    assert story.outcome == "kept" and story.uid == f"{FIRST:016x}"
    assert story.read_from == [
        FileSpan("crawl", "crawl-0.warc.gz", 0, 5000, True)
    ]  # of two files in the part, the one that gives the uid
    assert [(passage.segment, passage.part, passage.row) for passage in story.passages] == [
        ("extract", "extract-0", 0), ("exact_dedup", "extract-0", 0), ("write", "extract-0", 0),
    ]  # fmt: skip
    assert story.passages[0].signals == {"language": "en", "words": 0} and story.passages[2].signals == {}
    stages = ["crawl", "extract", "language", "exact_dedup", "gopher_quality", "write"]
    assert [(said.stage, said.verdict) for said in story.verdicts] == [(stage, "kept") for stage in stages]
    assert [(cluster.kept, cluster.size, cluster.reason) for cluster in story.clusters] == [
        (f"{FIRST:016x}", 3, "exact_duplicate")
    ]
    assert story.clusters[0].dropped == sorted(f"{uid:016x}" for uid in SAME)
    assert story.written == [Written("write", "write/extract-0.parquet", 0)]
    text = shown(render_history(story))
    assert "[bold]markup[/bold]" in text and "write/extract-0.parquet" in text
    assert "one of the records in crawl-0.warc.gz (read from byte 0 to 5,000)" in text


def test_a_duplicate_names_the_url_of_the_one_that_stayed(out: str) -> None:
    story = history(RunFolder(out), SAME[1])
    assert [(cluster.kept, cluster.kept_url) for cluster in story.clusters] == [
        (f"{FIRST:016x}", WEB_URL)
    ] and story.url != WEB_URL
    assert f"kept {FIRST:016x} ({WEB_URL})" in shown(render_history(story))


def test_many_urls_are_asked_for_at_once(out: str, tmp_path: Path) -> None:
    other = str(history(RunFolder(out), SAME[1]).url)
    asked = ["inspect", out, "--url", WEB_URL, "--url", other]
    shown_both = CliRunner().invoke(app, asked).stdout
    assert shown_both.index(WEB_URL) < shown_both.index(other)
    stories = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert [story["url"] for story in stories] == [WEB_URL, other]
    assert json.loads(CliRunner().invoke(app, [*asked[:4], "--json"]).stdout) == stories[0]
    missing = CliRunner().invoke(app, [*asked, "--url", "https://nowhere.example", "--json"])
    assert isinstance(missing.exception, RecipeError) and "https://nowhere.example" in str(missing.exception)
    assert json.loads(missing.stdout) == stories
    file = tmp_path / "urls.txt"
    file.write_text(f"{WEB_URL}\n\n {other}\n")
    listed = CliRunner().invoke(app, ["inspect", out, "--urls", str(file), "--json"])
    assert json.loads(listed.stdout) == stories
    file.write_text(WEB_URL)
    assert json.loads(CliRunner().invoke(app, ["inspect", out, "--urls", str(file), "--json"]).stdout) == stories[:1]
    file.write_text("\n")
    assert "holds no URL" in str(CliRunner().invoke(app, ["inspect", out, "--urls", str(file)]).exception)
    both = CliRunner().invoke(app, [*asked, "--id", "x"]).exception
    assert isinstance(both, RecipeError) and "give one of them" in str(both)


@pytest.mark.parametrize("whom", [["--url", WEB_URL], ["--uid", f"{FIRST:016x}"]])
def test_a_document_that_was_cleaned_away_says_how_it_comes_back(tmp_path: Path, whom: list[str]) -> None:
    folder = make(tmp_path / "out")
    for path in folder.glob("partitions/*/*.parquet"):
        path.unlink()
    said = subprocess.run(
        [sys.executable, "-m", "gristmill.pipeline.cli.app", "inspect", str(folder), *whom],
        capture_output=True,
        text=True,
    )
    assert (
        said.returncode == 1
        and "gristmill maintain clean --partitions" in said.stderr
        and "documents.parquet" in said.stderr
    ), said.stderr


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (("--uid", f"{FIRST:016x}"), WEB_URL),
        (("--uid", f"{LANGUAGE[1]:016x}"), "dropped by language"),
        (("--uid", f"{SHORT:016x}"), "dropped by gopher_quality"),
        (("gopher_quality",), "too_few_words"),
    ],
)
def test_inspect_imports_no_more_than_it_needs(out: str, asked: tuple[str, ...], shown: str) -> None:
    """An answer takes as long as its imports."""
    heavy = "{'pandas', 'numba', 'dask', 'distributed', 'torch'}"
    code = f"import sys; from gristmill.pipeline.cli import app; app.app(sys.argv[1:], standalone_mode=False); print({heavy} & {{*sys.modules}})"
    command = [sys.executable, "-c", code, "inspect", out, *asked]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown in answer.stdout and answer.stdout.splitlines()[-1] == "set()", answer.stdout[-300:]


def test_rows_in_the_sink_are_counted_past_those_that_went(out: str) -> None:
    assert history(RunFolder(out), UIDS["extract-0"][3]).written == [Written("write", "write/extract-0.parquet", 1)]
    assert history(RunFolder(out), UIDS["extract-2"][3]).written == [Written("write", "write/extract-2.parquet", 1)]


@pytest.mark.parametrize(
    ("uid", "outcome", "segments"),
    [
        (LANGUAGE[1], f"dropped by language: {OTHER}", 1),
        (SAME[1], "dropped by exact_dedup: exact_duplicate", 2),
        (SHORT, "dropped by gopher_quality: too_few_words", 3),
        (QUARANTINED, "quarantined by extract", 0),
    ],
)
def test_a_document_that_went_says_where_and_why(out: str, uid: int, outcome: str, segments: int) -> None:
    story = history(RunFolder(out), str(uid))
    assert (
        story.outcome == outcome
        and story.written == []
        and len({passage.segment for passage in story.passages}) == segments
    )
    assert len([said for said in story.verdicts if said.verdict != "kept"]) == 1
    assert json.loads(as_json(asdict(story)))["uid"] == f"{uid:016x}" and shown(render_history(story))


def test_every_document_has_a_story(out: str) -> None:
    stories = [history(RunFolder(out), uid) for uids in UIDS.values() for uid in uids]
    assert len(stories) == 11 and sum(story.outcome == "kept" for story in stories) == 6
    assert sum(len(story.clusters) for story in stories) == 3 and sum(len(story.written) for story in stories) == 6


def test_a_document_is_found_by_its_url(out: str) -> None:
    story = history(RunFolder(out), url=WEB_URL)
    others = [SAME[0], *LANGUAGE, *SAME[1:]]  # of documents that are kept for later, and of rejects
    assert story.uid == f"{FIRST:016x}" and story.same_url == [f"{uid:016x}" for uid in others]
    skipped = history(RunFolder(out), url=SCRIPT_URL)
    assert (skipped.uid, skipped.outcome) == (None, "skipped by crawl: not_found")
    assert history(RunFolder(out), url="https://example.org/bomb").uid == f"{QUARANTINED:016x}"
    with pytest.raises(ValueError, match="a uid, a URL or an id"):
        history(RunFolder(out))


def test_a_document_is_found_by_the_id_of_its_source(tmp_path: Path) -> None:
    lines = [{"id": "a", "text": "one two"}, {"id": "b", "text": "one two"}, {"id": "b", "text": "three"}]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    few = GopherQuality(min_words=1_000)
    for number, chain in enumerate(([ExactDedup()], [few], [ExactDedup(), few])):  # kept for later or not
        run = gristmill.Recipe(
            Jsonl(path=str(tmp_path / "lines.jsonl")), [*chain, Write()], name="ids", rejects={"text": False}
        ).run(tmp_path / str(number), workers=1)
        stories = [history(RunFolder(run.out), id=id) for id in ("a", "b")]
        stories += [history(RunFolder(run.out), uid=uid) for uid in stories[1].same_id]
        assert [story.id for story in stories] == ["a", "b", "b"] and len({story.uid for story in stories}) == 3
        rejects = [pq.read_table(path) for path in Path(run.out).glob("stages/*/rejects/*.parquet")]
        ids = [id for table in rejects for id in table["id"].to_pylist()]
        gone = sum(story.outcome != "kept" for story in stories)
        assert len(ids) == gone and set(ids) <= {"a", "b"}
        assert gone == (1 if few not in chain else 3) and stories[0].same_id == []
        assert str(stories[2].uid) in shown(render_history(stories[1]))
        with pytest.raises(NotFound, match="has the id c"):
            history(RunFolder(run.out), id="c")
        said = CliRunner().invoke(app, ["inspect", run.out, "--id", "a", "--uid", "1"])
        assert "give one of them" in str(said.exception)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="output folder of a run"):
        overview(RunFolder(tmp_path))


def test_words_and_numbers() -> None:
    assert plain("a\x1b[31m\x9b\u202eb\r\n\tc\ud800\x7f") == "a␛[31m��b\n\tc��"
    assert [as_share(1, 10_000), as_share(9_999, 10_000), as_share(1, 3), as_share(0, 0)] == [
        "<0.1%",
        ">99.9%",
        "33.3%",
        "–",
    ]
    assert [as_seconds(0.5), as_seconds(12), as_seconds(3600), as_seconds(9000), as_seconds(None)] == [
        "0.50 s",
        "12.0 s",
        "60 min 00 s",
        "2 h 30 min",
        "–",
    ]


def test_signals_and_places_are_said_for_people() -> None:
    assert (
        signal_text(0.5003000497817993) == "0.5003"
        and signal_text(1234567.89) == "1.23457e+06"
        and signal_text(12345678) == "12345678"
    )
    assert signal_text(bytes(9582)) == "9,582 bytes" and signal_text(None) == "null" and signal_text([1, 2]) == "[1, 2]"
    assert span_text(FileSpan("a", "x.warc.gz", 0, None, True)) == "one of the records in x.warc.gz (read whole)"
    assert (
        span_text(FileSpan("a", "x.warc.gz", 5, None, False))
        == "perhaps one of the records in x.warc.gz (read from byte 5 to its end)"
    )
    assert as_signal("minhash_cluster", 5) == f"{5:016x}" and as_signal("minhash_cluster_size", 5) == 5


def test_a_document_of_a_segment_that_only_writes_is_told_from_what_was_written(tmp_path: Path) -> None:
    uids = [uid_of("books", "books.jsonl", str(n)) for n in range(3)]
    columns = {
        "uid": pa.array(uids, pa.uint64()),
        "id": [str(n) for n in range(3)],
        "url": [f"https://books.example/{n}" for n in range(3)],
        "source": ["books"] * 3,
        "text": [f"text {n}" for n in range(3)],
        "token_count": pa.array([None] * 3, pa.int64()),
    }
    for folder in ("write", "partitions/books"):
        (tmp_path / folder).mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "write/0-a.f.parquet")
    inputs = [{"source": "books", "path": "books.jsonl", "start": 0, "end": None}]
    part = {
        "key": "0-a",
        "source": "books",
        "inputs": inputs,
        "rows": 3,
        "kept": 3,
        "files": {"sink/write": "write/0-a.f.parquet"},
    }
    (tmp_path / "partitions/books/manifest.json").write_text(
        json.dumps({"segment": "books", "stages": ["write"], "feeds": [], "parts": [part]})
    )
    entries = [
        {"name": "books", "kind": "read", "docs_in": 3, "kept": 3},
        {"name": "write", "kind": "sink", "docs_in": 3, "kept": 3},
    ]
    (tmp_path / "run.json").write_text(json.dumps({"name": "r", "status": "done", "stages": entries}))
    story = history(RunFolder(tmp_path), url="https://books.example/1")
    assert (story.uid, story.source, story.id, story.text, story.outcome) == (
        f"{uids[1]:016x}",
        "books",
        "1",
        "text 1",
        "kept",
    )
    assert story.read_from == [FileSpan("books", "books.jsonl", 0, None, True)] and story.written == [
        Written("write", "write/0-a.f.parquet", 1)
    ]
    assert [said.stage for said in story.verdicts] == ["books", "write"] and [
        passage.signals for passage in story.passages
    ] == [{}]


def test_json_that_nests_without_end_is_said_to_be_torn(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"run\.json: not JSON"):
        RunFolder(str(tmp_path)).json("run.json")


def test_clean_names_what_it_would_remove_and_what_then_no_longer_works(tmp_path: Path) -> None:
    folder = make(tmp_path / "out")
    there = {path for path in folder.rglob("*") if path.is_file()}
    said = CliRunner().invoke(app, ["maintain", "clean", str(folder), "--partitions", "--rejects", "--dry-run"])
    assert said.exit_code == 0 and {path for path in folder.rglob("*") if path.is_file()} <= there | {folder / ".lock"}
    assert "partitions/extract: 9 files, " in said.output and "stages/extract/rejects: 1 file, " in said.output, (
        said.output
    )
    assert "would remove" in said.output and "`tune` does not work" in said.output
    assert "`tune` does not work" not in CliRunner().invoke(app, ["maintain", "clean", str(folder)]).output


def test_a_share_is_all_although_its_parts_do_not_add_up_to_the_last_digit() -> None:
    assert [as_change(number) for number in (12_000, 0, -1)] == ["+12,000", "0", "−1"]
    pairs = ((200, 240), (200, 199.5), (200, 1_990), (200, 2_000), (1.5, 2_115), (0, 5), (None, 5), (5, None), (5, 0))
    assert [as_growth(*pair) for pair in pairs] == ["+20%", "0%", "+895%", "×10", "×1,410", "", "", "", "−100%"]
    assert [as_percent(share) for share in (1.0, sum([0.1] * 10), 1 - 1e-9, 13 / 14)] == [
        "100.00%", "100.00%", ">99.99%", "92.86%",
    ]  # fmt: skip
