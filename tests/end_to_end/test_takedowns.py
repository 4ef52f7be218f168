"""A takedown by e-mail address or url reaches every copy that the product made: in columns, beside the run, in caches; and
what it did not look at is named."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from typer.testing import CliRunner

from gristmill import Recipe
from gristmill.pipeline.cli.app import app
from tests.pipeline.inputs.false_crawl import DUMP, make_crawl, member, page, serving

pytestmark = pytest.mark.usefixtures("here")

ROWS, LIMIT = 40, 20
ASKED = {  # document -> the address in it
    0: "john.doe0@gmail.com",
    1: "jane1@corp.com",
    2: "jane2@corp.com",
    3: "ann3@corp.com",
    4: "bob4@corp.com",
    6: "ann@x.com",
    7: "zoe7@corp.com",
    8: "josé@müller.de",
}
LISTED = ["John.Doe0@gmail.com", "JANE1@CORP.COM", "jane2@corp.com", "ann3@corp.com", "bob4@corp.com", "ann@x.com", "zoe7@corp.com", "JOSÉ@Müller.de"]  # fmt: skip
RECIPE = """\
name: r
sources: {a: {jsonl: {path: in}}}
stages:
  - personal_data
  - gopher_quality: {min_words: 9, min_stop_words: null, min_alphabetic_word_share: null}
  - exact_dedup
  - write
  - tokenize: {vocab_size: 400}
  - pack: {row_length: 64, window_tokens: 2048}
"""


def rows_of_input() -> list[dict[str, Any]]:
    """Seven documents with an address in one column each, one that is rejected, and neighbours that must stay."""
    rows: list[dict[str, Any]] = [
        {
            "text": f"Wheel qz{i}word turns beside the old house by the river, qz{i}miller says so.",
            "url": f"https://x.org/qz{i}url",
            "title": f"About wheel {i}",
        }
        for i in range(ROWS)
    ]
    rows[0]["text"] += " Write to john.doe0@gmail.com for more."
    rows[1]["url"] += "?mail=Jane1@corp.com"
    rows[2]["url"] += "?mail=jane2%2540corp%252Ecom"
    rows[3]["author"] = {"names": ["x", {"mail": "line\nAnn3@Corp.com"}]}
    rows[4]["title"] = "Mail bob4@corp.com"
    rows[5]["text"] += " Write to joann@x.com for more."
    rows[6]["text"] += " Write to Ann@x.com.Then wait."
    rows[7] |= {"text": "qz7word is short", "author": "zoe7@corp.com"}
    rows[8]["author"] = "José@MÜLLER.de"
    rows[9]["author"] = "ann@x.com.au"
    return rows


def gristmill(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def forget(out: Path, *asked: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    (out.parent / "list.txt").write_text("\n".join(asked))
    lines = gristmill("forget", out, "--list", out.parent / "list.txt", "--json", *more).splitlines()
    receipt: dict[str, Any] = json.loads(lines[-1])
    return receipt


def contents(*folders: Path) -> dict[str, bytes]:
    """Every byte of every file as it lies there, and all that it holds unpacked, in lower case."""
    found = {}
    for path in [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]:
        data = path.read_bytes()
        if path.name == "tokenizer.json":  # as it was trained, which the receipt says
            continue
        if path.suffix == ".parquet":
            data += json.dumps(pq.read_table(path).to_pylist(), default=str, ensure_ascii=False).encode()
        elif path.suffix == ".arrow":
            with pa.OSFile(str(path)) as file:
                data += json.dumps(pa.ipc.open_file(file).read_all().to_pylist(), default=str).encode()
        elif path.suffix == ".gz":
            data += gzip.decompress(data)
        elif path.suffix == ".zst":
            data += zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        elif path.name == "bytes":  # of a crawl, in members of gzip
            data += b"".join(members(data))
            if data[:4] == b"PAR1":
                data += json.dumps(pq.read_table(path).to_pylist()).encode()
        if path.suffix in (".json", ".jsonl"):
            data += data.decode(errors="replace").encode().decode("unicode_escape", "replace").encode()
        found[str(path)] = (data + unquote_to_bytes(unquote_to_bytes(data))).decode("utf-8", "replace").lower().encode()
    assert found
    return found


def members(data: bytes) -> Iterator[bytes]:
    for match in re.finditer(b"\x1f\x8b\x08", data):
        try:
            yield zlib.decompressobj(31).decompress(data[match.start() :])
        except zlib.error:
            continue


def places(needles: list[str], *folders: Path) -> dict[str, list[str]]:
    """Which files hold which of some strings, not as part of a longer word."""
    there = contents(*folders)
    patterns = {
        needle: re.compile(rb"(?<![\w.])" + re.escape(needle.lower().encode()) + rb"(?!\.?\w)") for needle in needles
    }
    found = {
        path: [needle for needle, pattern in patterns.items() if pattern.search(data)] for path, data in there.items()
    }
    return {path: some for path, some in found.items() if some}


def theirs(documents: list[int]) -> list[str]:
    """What only these documents hold: an address, a word of the text and the url."""
    return [ASKED[i] for i in documents] + [f"qz{i}{what}" for i in documents for what in ("word", "miller", "url")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and the run on a part of its inputs, beside it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "in").mkdir()
    (folder / "in/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of_input()))
    (folder / "r.yaml").write_text(RECIPE)
    gristmill("run", folder / "r.yaml", "--out", f"{folder}/out/", "--workers", 1)
    gristmill("run", folder / "r.yaml", "--out", f"{folder}/out/", "--workers", 1, "--limit", LIMIT)
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "out/journal/inputs.json"  # inputs are known by their whole paths
    assert str(made) in journal.read_text()
    return tmp_path / "out"


def kept(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted((out / "write").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_a_takedown_by_address_reaches_urls_metadata_masked_texts_and_the_sample(out: Path) -> None:
    sample = out.parent / "out-sample"
    needles = theirs(sorted(ASKED))
    before = places(needles, out, sample)
    assert len(before) > 10 and {needle for some in before.values() for needle in some} > {"qz0word", "jane1@corp.com"}
    assert (len(kept(out)), len(kept(sample))) == (ROWS - 1, LIMIT - 1)
    foreseen = forget(out, *LISTED, more=("--dry-run",))
    assert places(needles, out, sample) == before
    receipt = forget(out, *LISTED)
    assert receipt["asked"] == {"email": 8} and receipt["documents"] == foreseen["documents"] == 8
    assert receipt["not_looked_at"] == [] and [of["documents"] for of in receipt["also"].values()] == [8]
    assert places(needles, out, sample) == {}
    assert (len(kept(out)), len(kept(sample))) == (ROWS - 8, LIMIT - 8), "one of the eight was among the rejects"
    assert {f"https://x.org/qz{i}url" for i in (5, 9)} <= {row["url"] for row in kept(out)}, "joann@x.com, ann@x.com.au"
    gristmill("maintain", "verify", out)
    gristmill("maintain", "verify", sample)
    left = [row["uid"] for row in kept(out)]
    files = {path: path.read_bytes() for folder in (out, sample) for path in folder.rglob("*") if path.is_file()}
    again = forget(out, *LISTED)
    assert again["documents"] == 0 and "receipt" not in again
    assert {path: path.read_bytes() for path in files} == files, "the same list again changes nothing"
    gristmill("run", out.parent / "r.yaml", "--out", out, "--workers", 1)
    assert sorted(row["uid"] for row in kept(out)) == sorted(left) and places(needles, out, sample) == {}
    assert "nothing was done" in gristmill("run", out.parent / "r.yaml", "--out", out, "--workers", 1)
    gristmill("maintain", "verify", out)
    recipe = out.parent / "r.yaml"
    recipe.write_text(recipe.read_text().replace("min_words: 9", "min_words: 8"))
    gristmill("run", recipe, "--out", out, "--workers", 1)
    assert sorted(row["uid"] for row in kept(out)) == sorted(left) and places(needles, out, sample) == {}


def test_what_was_not_looked_at_is_named(out: Path, made: Path) -> None:
    receipt = forget(out, "john.doe0@gmail.com", more=("--dry-run", "--skip-inputs"))
    assert receipt["documents"] == 0 and "--skip-inputs" in receipt["not_looked_at"][0]
    inputs = made / "in/a.jsonl"
    content = inputs.read_text()
    inputs.write_text(content + "\n")
    try:
        receipt = forget(out, "john.doe0@gmail.com", more=("--dry-run",))
        assert receipt["documents"] == 0 and str(inputs) in receipt["not_looked_at"][0]
        said = gristmill("forget", out, "--list", out.parent / "list.txt", "--dry-run")
        assert "not looked at:\n" in said and "not as it was when the run read it" in " ".join(said.split())
    finally:
        inputs.write_text(content)
    assert any(str(inputs) in place for place in receipt["not_reached"])


def test_a_takedown_that_is_killed_anywhere_ends_the_same_when_it_is_sent_again(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample, listed = out.parent / "out-sample", out.parent / "list.txt"
    listed.write_text("\n".join(LISTED))
    replace, steps = Path.replace, 0

    def kill_after(count: int) -> None:
        def replacing(path: Path, target: Path | str) -> Path:
            nonlocal steps
            steps += 1
            if steps > count:
                raise KeyboardInterrupt
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", replacing)

    killed = 0
    for count in (1, 3, 5, 7, 9, 14, 20, 40):
        steps = 0
        kill_after(count)
        done = CliRunner().invoke(app, ["forget", str(out), "--list", str(listed)])
        killed += done.exit_code != 0
    monkeypatch.setattr(Path, "replace", replace)
    gristmill("forget", out, "--list", listed)
    assert killed > 3
    assert places(theirs(sorted(ASKED)), out, sample) == {} and len(kept(out)) == ROWS - 8
    gristmill("maintain", "verify", out)
    gristmill("maintain", "verify", sample)


def test_a_sample_that_did_not_end_refuses_the_takedown_by_name(out: Path) -> None:
    record = out.parent / "out-sample/run.json"
    record.write_text(record.read_text().replace('"status": "done"', '"status": "failed"'))
    (out.parent / "list.txt").write_text("ann@x.com")
    done = CliRunner().invoke(app, ["forget", str(out), "--list", str(out.parent / "list.txt")])
    assert (
        done.exit_code == 1 and "out-sample" in str(done.exception) and "or remove that folder" in str(done.exception)
    )


def test_tables_given_from_python_lose_the_rows_and_never_get_them_back(tmp_path: Path) -> None:
    rows = [{"text": row["text"], "link": row["url"], "author": row.get("author", "nobody")} for row in rows_of_input()]
    for row in rows:
        row["author"] = str(row["author"])
    out = tmp_path / "out"

    def run(rows: list[dict[str, Any]]) -> list[str]:
        Recipe(rows, stages=["personal_data", "write"]).run(out, workers=1)
        return sorted(row["text"] for row in kept(out))

    before = run(rows)
    [table] = (tmp_path / "out-tables").glob("*.parquet")
    assert len(before) == pq.read_metadata(table).num_rows == ROWS
    receipt = forget(out, "john.doe0@gmail.com", "jane1@corp.com", "ann3@corp.com")
    assert receipt["documents"] == 3 and receipt["found"][f"tables in {table.parent}"] == {"files": 1, "rows": 3}
    needles = theirs([0, 1, 3])
    assert places(needles, out) == {} and not table.exists()
    gristmill("maintain", "verify", out)
    after = run(rows)
    assert len(after) == ROWS - 3 and places(needles, out, table.parent) == {}, "a table is written without them"
    left = pq.read_table(table).to_pylist()
    assert [i for i, row in enumerate(left) if row["text"] is None] == [0, 1, 3] and left[2] == rows[2], "places stay"
    assert run(rows) == after and places(needles, out, table.parent) == {}
    more = [*rows, {"text": "One more qz99word, by the river.", "link": "", "author": "nobody"}]
    assert len(run(more)) == ROWS - 3 + 1 and places(needles, out, table.parent) == {}
    assert len(list(table.parent.glob("*.parquet"))) == 2
    assert forget(out, "bob4@corp.com", "joann@x.com")["documents"] == 1
    assert list(table.parent.glob("*.parquet")) == [], "one that no source reads any more goes too"
    assert places([*needles, "joann@x.com", "qz5word"], out) == {} and len(kept(out)) == ROWS - 3


def test_a_page_of_a_fetched_crawl_leaves_the_cache_too(tmp_path: Path) -> None:
    crawl = make_crawl(tmp_path / "crawl", files=2, records=6, tables=1, news=False)
    out, cache = tmp_path / "out", tmp_path / "cache"
    with serving(crawl.root) as server:
        source = f"dump: {DUMP}, root: '{server.address}', limits: {{requests: 10000, pause: 0.001}}, cache: {cache}"
        source += ", index: {languages: [eng, deu, fra, jpn]}"
        (tmp_path / "r.yaml").write_text(
            f"name: r\nparts: {{files: 1}}\nsources: {{c: {{cc: {{{source}}}}}}}\nstages: [extract, write]\n"
        )
        gristmill("run", tmp_path / "r.yaml", "--out", out, "--workers", 1)
        url = min(row["url"] for row in kept(out))
        needles = [url.partition("://")[2]]
        assert len(places(needles, cache)) == 2 and places(needles, out), "in a WARC file, and in a table of the index"
        receipt = forget(out, url)
        assert receipt["documents"] == 1
        assert receipt["found"]["files of crawls in the cache of `cc`"]["files"] >= 2
        assert places(needles, out) == {} and list((cache / "files").iterdir()) == []
        assert any(str(cache) in place and "other machines" in place for place in receipt["not_reached"])
        gristmill("maintain", "verify", out)
        left = sorted(row["uid"] for row in kept(out))
        gristmill("run", tmp_path / "r.yaml", "--out", out, "--workers", 1)
        assert sorted(row["uid"] for row in kept(out)) == left and places(needles, out) == {}


def test_a_takedown_of_all_that_an_input_file_gave_leaves_a_whole_run(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for host in "ab":
        rows = [{"text": f"Text {i} of {host}, by the river.", "url": f"https://{host}.example/{i}"} for i in range(5)]
        (tmp_path / f"in/{host}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = "name: r\nparts: {files: 1}\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, write]\n"
    (tmp_path / "r.yaml").write_text(recipe)
    gristmill("run", tmp_path / "r.yaml", "--out", tmp_path / "out", "--workers", 1)
    left = [row["url"] for row in kept(tmp_path / "out") if row["url"].startswith("https://b")]
    assert forget(tmp_path / "out", "a.example")["documents"] == 5
    gristmill("maintain", "verify", tmp_path / "out")
    for _ in range(2):
        assert [row["url"] for row in kept(tmp_path / "out")] == left and len(left) == 5
        gristmill("run", tmp_path / "r.yaml", "--out", tmp_path / "out", "--workers", 1)
    assert forget(tmp_path / "out", "b.example")["documents"] == 5 and kept(tmp_path / "out") == []
    gristmill("maintain", "verify", tmp_path / "out")


def test_what_names_a_record_that_is_no_document_does_not_come_back(tmp_path: Path) -> None:
    chance, not_found = (
        random.Random(3),
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n<p>Nothing is here.",
    )
    pages = [(f"https://pages.example/{i}", page(chance, 80)) for i in range(4)]
    gone = [(f"https://gone.example/person{i}", not_found) for i in range(2)]
    kind = "application/http; msgtype=response"
    data = b"".join(member("response", url, body, kind, i) for i, (url, body) in enumerate([*pages, *gone]))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.warc.gz").write_bytes(data)
    (tmp_path / "r.yaml").write_text("name: r\nsources: {c: {warc: {path: in}}}\nstages: [extract, write]\n")
    out = tmp_path / "out"
    gristmill("run", tmp_path / "r.yaml", "--out", out, "--workers", 1)
    needles = ["gone.example/person0"]
    assert places(needles, out)
    forget(out, "https://gone.example/person0")
    assert places(needles, out) == {}
    gristmill("maintain", "verify", out)
    gristmill("run", tmp_path / "r.yaml", "--out", out, "--workers", 1)
    assert places(needles, out) == {}, "the part is read again, and its url stays hidden"
    assert places(["gone.example/person1"], out) and len(kept(out)) == 4
    gristmill("maintain", "verify", out)
