"""Dumps of Common Crawl by name, against a server of this machine: the documents are those of a folder with the same
files, whatever the server does, and nothing is fetched that was not asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.crawls.dumps import chosen, is_below
from gristmill.pipeline.crawls.listing import cut_by_records, packed, unpacked
from gristmill.pipeline.crawls.pace import Pace
from gristmill.pipeline.crawls.spool import joined, missing
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.inputs.files import CrawlFiles, find_files, open_stretch, origin_of
from gristmill.pipeline.inputs.portion import Portion, contents_of, cut_into_parts, find_inputs
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.recipe.recipe import Parts
from gristmill.pipeline.store.storage import Store
from gristmill.stages.read.cc import Cc
from tests.pipeline.inputs.false_crawl import DUMP, FREE, NEWS, Crawl, Server, make_crawl, serving, write_list
from tests.pipeline.runs import go, tree

FILES, RECORDS = 3, 20
WHOLE = Parts()
INDEX = "index: {languages: [deu], mime: [text/html]}"


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Crawl:
    return make_crawl(tmp_path_factory.mktemp("crawl"), files=FILES, records=RECORDS)


@pytest.fixture
def server(crawl: Crawl) -> Iterator[Server]:
    with serving(crawl.root) as server:
        yield server


@dataclass
class Read:
    """What a source gave, and how it was listed."""

    listing: CrawlFiles
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def recipe_of(
    folder: Path, root: Path | str, more: str = "", dump: str = DUMP, limits: str = "", head: str = ""
) -> Path:
    path = folder / "r.yaml"
    pause = "" if "pause" in limits else ", pause: 0.001"
    settings = [f"dump: {dump}", f"root: '{root}'", f"limits: {{requests: 10000{pause}{limits}}}"]
    settings += [] if "cache:" in more else [f"cache: {folder}/cache"]
    settings += [more] if more else []
    pages = "extract, " if head and "kind: wet" not in more else ""
    path.write_text(f"name: r\n{head}sources:\n  crawl: {{cc: {{{', '.join(settings)}}}}}\nstages: [{pages}write]\n")
    return path


def read(folder: Path, root: Path | str, more: str = "", *, parts: Parts = WHOLE, **how: str) -> Read:
    """All documents of a source, in order of uid."""
    source = recipes.load(recipe_of(folder, root, more, **how)).sources[0]
    reader = source.reader.stage
    assert isinstance(reader, Cc)
    done = Read(find_files(source, folder, "a"))
    for span in (span for spans in cut_into_parts(done.listing.files, reader, parts, "a") for span in spans):
        with open_stretch(reader, span) as file:
            for reading in reader.read(file, origin_of("crawl", span)):
                done.rows += reading.documents.to_pylist()
                done.damaged += map(str, reading.damaged)
                for reason, count in reading.skipped.items():
                    done.skipped[reason] = done.skipped.get(reason, 0) + count
            done.remarks += getattr(file, "remarks", [])
    done.rows.sort(key=lambda row: row["uid"])
    return done


def size_of(crawl: Crawl, names: list[str]) -> int:
    return sum((crawl.root / name).stat().st_size for name in names)


@pytest.mark.parametrize(
    ("more", "dump", "documents"),
    [
        ("", DUMP, FILES * RECORDS),
        ("sample: 0.4", DUMP, RECORDS),
        ("path: '*-00001.*'", DUMP, RECORDS),
        ("kind: wet", DUMP, FILES * RECORDS),
        ("kind: news", NEWS, 1),
        (INDEX, DUMP, None),
        ("index: {hosts: [a.one.example, b.two.example]}, gap: 0", DUMP, None),
        ("index: {domains: [three.example]}, gap: 1000000", DUMP, None),
    ],
)
def test_a_dump_gives_what_a_folder_of_it_gives(
    more: str, dump: str, documents: int | None, tmp_path: Path, crawl: Crawl, server: Server
) -> None:
    far = read(tmp_path, server.address, more, dump=dump)
    near = read(tmp_path, crawl.root, more, dump=dump)
    assert far.rows == near.rows and far.skipped == near.skipped and not far.damaged + near.damaged
    assert len(far.rows) == documents if documents else 0 < len(far.rows) < FILES * RECORDS
    assert all((row["text"] is None) == ("wet" not in more) for row in far.rows)
    assert {row["url"] for row in far.rows} <= {row["url"] for row in crawl.rows} | {"https://news.example/1"}


def test_whole_files_cost_a_request_each_to_know_and_one_to_fetch(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    done = read(tmp_path, server.address)
    assert (server.requests, done.listing.asked[0]) == (1 + 2 * FILES, 1 + FILES)
    assert server.bytes == size_of(crawl, [*crawl.files, f"crawl-data/{DUMP}/warc.paths.gz"]) + FILES  # a byte to know
    again = read(tmp_path, server.address)
    assert again.rows == done.rows and server.requests == 2 + 2 * FILES  # the list: all else is in the cache


def test_of_an_index_only_the_records_that_fit_are_fetched(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    wanted = [
        row
        for row in crawl.rows
        if row["content_languages"].startswith("deu") and row["content_mime_detected"] == "text/html"
    ]
    done = read(tmp_path, server.address, f"{INDEX}, gap: 0")
    assert [row["url"] for row in sorted(wanted, key=lambda row: row["url"])] == sorted(row["url"] for row in done.rows)
    asked = [(name, start, end) for name, start, end in server.asked if name.endswith(".warc.gz")]
    assert sum(end - start for _, start, end in asked) == sum(row["warc_record_length"] for row in wanted)
    assert len(asked) == len(wanted)  # no two lie side by side here
    assert not any("robotstxt" in name for name, _, _ in server.asked)
    server.asked.clear()
    merged = read(tmp_path / "..", server.address, f"{INDEX}, gap: 1000000, cache: {tmp_path}/other")
    assert merged.rows == done.rows
    assert len([name for name, _, _ in server.asked if name.endswith(".warc.gz")]) == FILES


def test_row_groups_that_cannot_fit_are_left_alone(tmp_path: Path) -> None:
    crawl = make_crawl(tmp_path / "crawl", files=2, records=400, words=5, tables=1)
    with serving(crawl.root) as server:
        one = read(tmp_path, server.address, "index: {hosts: [a.one.example]}, gap: 1000000")
        assert len(one.rows) == sum(row["url_host_name"] == "a.one.example" for row in crawl.rows) > 10
        with pytest.raises(RecipeError, match="the index of CC-MAIN-2024-10 knows no record that fits"):
            read(tmp_path, server.address, "index: {hosts: [nowhere.example]}")


def test_parts_of_a_file_are_read_alone_and_give_the_same(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    whole = read(tmp_path, server.address)
    for number, more in enumerate(("", INDEX)):
        folder = tmp_path / str(number)
        folder.mkdir()
        cut = read(folder, server.address, more, parts=Parts(max_bytes=3000))
        assert cut.rows == read(tmp_path, crawl.root, more).rows and cut.rows
        assert set(map(str, cut.rows)) <= set(map(str, whole.rows))


@pytest.mark.parametrize("fault", ["503", "429", "cut", "short", "long", "slow", "reset", "404"])
@pytest.mark.parametrize("at", [0, FILES, 1 + FILES, 2 * FILES])  # the list, what is asked to know a file, files
def test_a_fault_costs_one_request_at_most(fault: str, at: int, tmp_path: Path, crawl: Crawl, server: Server) -> None:
    server.first = [""] * at + [fault]
    done = read(tmp_path, server.address)
    assert done.rows == read(tmp_path, crawl.root).rows and not done.damaged
    costs = fault not in FREE and (fault, at) != ("short", FILES)  # a byte cannot be cut short
    assert server.met[fault] == 1 and server.requests == 1 + 2 * FILES + costs
    if at > FILES and fault in ("503", "short", "long"):
        assert len(done.remarks) == 1 + (fault == "short")  # what was odd, and that it was asked again


def test_a_cut_body_goes_on_behind_its_last_byte(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    server.first = [""] * (1 + FILES) + ["cut"]
    done = read(tmp_path, server.address)
    assert len(done.rows) == FILES * RECORDS
    name, start, end = server.asked[1 + FILES]
    assert (name, start, end) == (crawl.files[0], 0, size_of(crawl, crawl.files[:1]))
    assert server.asked[2 + FILES][0] == name and 0 < server.asked[2 + FILES][1] <= end // 2 < end
    assert server.asked[2 + FILES][2] == end


def test_a_server_that_brings_nothing_ends_the_run(tmp_path: Path, server: Server) -> None:
    server.first = ["503"] * 3
    with pytest.raises(RunFailed, match="503 Service Unavailable; 3 requests in a row brought nothing") as error:
        read(tmp_path, server.address, limits=", tries: 3")
    assert server.requests == 3 and f"crawl-data/{DUMP}/warc.paths.gz" in str(error.value)


def test_pauses_grow_and_a_server_that_says_nothing_is_left(tmp_path: Path, server: Server) -> None:
    server.first = ["503"] * 3
    begun = time.monotonic()
    read(tmp_path, server.address, limits=", pause: 0.2")
    waited = [after - before for before, after in zip(server.times[:4], server.times[1:4], strict=False)]
    assert len(waited) == 3 and waited[0] >= 0.1 and waited[1] >= 0.2 and waited[2] >= 0.4
    assert time.monotonic() - begun >= 0.7
    server.first = ["silence"]
    begun = time.monotonic()
    assert len(read(tmp_path, server.address, limits=", timeout: 0.3").rows) == FILES * RECORDS
    assert 0.3 <= time.monotonic() - begun < 4 and server.met["silence"] == 1


def test_what_the_server_asks_to_wait_holds_for_every_process(tmp_path: Path, server: Server) -> None:
    server.first, server.wait = ["429"], "1"
    begun = time.monotonic()
    read(tmp_path, server.address)
    assert time.monotonic() - begun > 0.9
    pace = Pace(tmp_path, "https://a.example", 1000)
    pace.hold(0.4)
    other, begun = Pace(tmp_path, "https://a.example", 1000), time.monotonic()
    other.request()
    assert 0.3 < time.monotonic() - begun < 5


def test_requests_a_second_are_bounded(tmp_path: Path, server: Server) -> None:
    path = recipe_of(tmp_path, server.address)
    path.write_text(path.read_text().replace("requests: 10000", "requests: 20"))
    source = recipes.load(path).sources[0]
    find_files(source, tmp_path, "a")
    apart = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert len(apart) == FILES and sum(apart) > 0.8 * FILES / 20


def test_a_list_that_is_not_there_is_told_in_one_line(tmp_path: Path, server: Server) -> None:
    with pytest.raises(
        RecipeError, match=r"has no dump CC-MAIN-2031-10 with a list warc\.paths\.gz; is the name right"
    ):
        read(tmp_path, server.address, dump="CC-MAIN-2031-10")
    assert server.requests == 2
    with pytest.raises(RecipeError, match="has no dump CC-MAIN-2031-10"):
        read(tmp_path, server.root, dump="CC-MAIN-2031-10")
    server.gone = {f"crawl-data/{DUMP}/cc-index-table.paths.gz"}
    with pytest.raises(RecipeError, match=r"a list cc-index-table\.paths\.gz"):
        read(tmp_path, server.address, INDEX)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a/./b", "a//b", "a b", "a?b", "http://a/b", "x" * 1001, "a\x7fb"]
)
def test_names_in_a_list_lie_below_the_root(name: str, tmp_path: Path) -> None:
    assert not is_below(name) and is_below(f"crawl-data/{DUMP}/segments/1.2/warc/a_b-0.warc.gz")
    write_list(tmp_path, f"crawl-data/{DUMP}/warc", [name])
    with pytest.raises(RunFailed, match="which is no file below it"):
        read(tmp_path, tmp_path)


def test_a_file_that_changes_on_the_server_is_noticed(tmp_path: Path) -> None:
    crawl = make_crawl(tmp_path / "crawl", files=1, records=3)
    with serving(crawl.root) as server:
        source = recipes.load(recipe_of(tmp_path, server.address)).sources[0]
        find_files(source, tmp_path, "a")
        path = crawl.root / crawl.files[0]
        path.write_bytes(path.read_bytes() + make_member())
        with pytest.raises(RunFailed, match="another file is there now than was listed"):
            read(tmp_path, server.address)
        assert len(read(tmp_path, server.address).rows) == 4


def make_member() -> bytes:
    from tests.pipeline.inputs.false_crawl import member

    body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>A page.</p>"
    return member("response", "https://late.example/", body, "application/http; msgtype=response", 99)


def test_an_abandoned_file_is_fetched_from_where_it_was_left(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    """As a killed run leaves it: pieces are on record as they come, and the file is not read to its end."""
    server.first = [""] * (1 + FILES) + ["cut", "503"]
    with pytest.raises(RunFailed, match="1 requests in a row"):
        read(tmp_path, server.address, limits=", tries: 1")
    server.first.clear()
    server.asked.clear()
    assert len(read(tmp_path, server.address).rows) == FILES * RECORDS
    first = next(asked for asked in server.asked if asked[0] == crawl.files[0])
    assert first[1] > 0 and first[2] == size_of(crawl, crawl.files[:1])


def test_what_the_cache_has_is_held_against_its_hash(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    rows = read(tmp_path, server.address).rows
    for path in (tmp_path / "cache/files").glob("*/bytes"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    before = server.requests
    assert read(tmp_path, server.address).rows == rows and server.requests == before + 1 + FILES


@pytest.mark.parametrize(("most", "left"), [(0, 0), (1 << 30, FILES)])
def test_the_cache_is_bounded(most: int, left: int, tmp_path: Path, server: Server) -> None:
    assert len(read(tmp_path, server.address, f"cache_bytes: {most}").rows) == FILES * RECORDS
    assert len(list((tmp_path / "cache/files").iterdir())) == left


def test_a_place_of_the_index_without_a_record_is_damage(tmp_path: Path) -> None:
    crawl = make_crawl(tmp_path / "crawl", files=1, records=5)
    path = crawl.root / crawl.files[0]
    data = bytearray(path.read_bytes())
    row = crawl.rows[2]
    data[row["warc_record_offset"] : row["warc_record_offset"] + 40] = bytes(40)
    path.write_bytes(data)
    with serving(crawl.root) as server:
        done = read(tmp_path, server.address, "index: {mime: [text/html]}")
    assert len(done.rows) == 4 and len(done.damaged) == 1 and "no record begins here" in done.damaged[0]


def test_before_a_run_it_says_what_it_will_fetch_and_what_that_costs(
    tmp_path: Path, crawl: Crawl, server: Server
) -> None:
    head = "prices: {thousand_gets: 2000, gigabyte_in: 1000000}\n"
    recipe = recipes.load(recipe_of(tmp_path, server.address, head=head))
    fetch = find_inputs(recipe, Store(str(tmp_path / "out")), Portion(), remember=False)["crawl"].fetch
    assert fetch is not None and fetch["cost"] is not None
    size, asked = size_of(crawl, crawl.files), 1 + 2 * FILES
    assert (fetch["files"], fetch["requests"], fetch["bytes"]) == (FILES, FILES, size)
    assert fetch["cost"]["amount"] == pytest.approx(asked * 2 + (size + fetch["listing_bytes"]) / 1000)
    read(tmp_path, server.address)
    fetch = find_inputs(recipe, Store(str(tmp_path / "out")), Portion(), remember=False)["crawl"].fetch
    assert fetch is not None and (fetch["requests"], fetch["cached_bytes"]) == (0, size)


def test_other_records_of_a_file_are_another_input(tmp_path: Path, crawl: Crawl, server: Server) -> None:
    inputs = []
    for root in (server.address, server.address, crawl.root):
        for languages in ("deu", "jpn", "deu"):
            found = read(tmp_path, root, f"index: {{languages: [{languages}]}}").listing.files
            spans = [span for part in cut_into_parts(found, Cc(dump=DUMP), WHOLE, "a") for span in part]
            inputs.append(str(contents_of(spans)))
    assert inputs[0] == inputs[2] == inputs[3] and inputs[0] != inputs[1] and inputs[6] != inputs[7]


def test_records_travel_as_text_and_are_cut_between() -> None:
    import numpy as np

    places = np.array([[5, 10], [15, 20], [1 << 40, 3]])
    text = packed(places)
    assert unpacked(text) == ((5, 10), (15, 20), (1 << 40, 3)) and unpacked(text, 6, 1 << 40) == ((15, 20),)
    assert cut_by_records(text, 12) == [(0, 15, 10), (15, 1 << 40, 20), (1 << 40, None, 3)]
    assert cut_by_records(text, 30) == [(0, 1 << 40, 30), (1 << 40, None, 3)]


def test_what_is_missing_of_stretches() -> None:
    assert missing([(0, 10), (20, 30)], [(2, 4), (8, 22), (29, 40)]) == [(0, 2), (4, 8), (22, 29)]
    assert missing([(0, 10)], []) == [(0, 10)] and missing([(0, 10)], [(0, 5), (5, 10)]) == []
    assert joined([(5, 8), (0, 3), (9, 12)], 1) == [(0, 3), (5, 12)]


def test_a_sample_is_a_share_of_the_files_and_grows_with_it() -> None:
    names = [f"a/{number}" for number in range(1000)]
    some, more = chosen(names, "*", 0.01), chosen(names, "*", 0.02)
    assert (len(some), len(more)) == (10, 20) and set(some) < set(more)
    assert len(chosen(names, ["a/1*", "a/2*"], 1.0)) == 222


def test_a_run_fetches_what_was_said_and_writes_what_a_folder_gives(
    tmp_path: Path, crawl: Crawl, server: Server
) -> None:
    head, more = "prices: {thousand_gets: 1}\nparts: {small_file: 0}\n", "gap: 100000, index: {languages: [deu]}"
    recipe = recipe_of(tmp_path, server.address, more, head=head)
    foreseen = CliRunner().invoke(app, ["plan", str(recipe)])
    said = f"{FILES} files at {server.address}: at most {FILES} requests and "
    assert foreseen.exit_code == 0 and said in " ".join(foreseen.output.split())
    before, server.first = server.requests, ["503", "", "cut"]
    far, _ = go(recipe, tmp_path / "far")
    assert (
        server.requests == before + 2 + FILES + server.costly and server.costly == 2
    )  # its two lists, and the records
    assert far.record.to_json()["requests"] is not None and far.record.to_json()["requests"]["retries"] == 2
    assert far.record.to_json()["requests"]["GET"] == server.requests - before
    assert far.record.to_json()["inputs"]["crawl"]["fetch"]["requests"] == FILES
    near, _ = go(recipe_of(tmp_path, crawl.root, more, head=head), tmp_path / "near")
    one, other = ({name.split(".")[0]: data for name, data in tree(tmp_path / out, "write").items()} for out in ("far", "near"))  # fmt: skip
    assert one == other and len(one) == FILES
    assert far.record.to_json()["stages"][0]["kept"] == near.record.to_json()["stages"][0]["kept"] > FILES
    options = ["--workers", "2", "--from", str(tmp_path / "far"), "--json"]
    estimated = CliRunner().invoke(
        app, ["estimate", str(recipe_of(tmp_path, server.address, more, head=head)), *options]
    )
    assert estimated.exit_code == 0, estimated.output
    fetch = json.loads(estimated.stdout)["fetch"]["crawl"]
    assert (fetch["files"], fetch["requests"]) == (FILES, 0) and fetch["cached_bytes"] > 0
