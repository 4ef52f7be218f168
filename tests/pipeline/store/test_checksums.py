"""Files of a run are held against their checksums: what was damaged is made anew, and never becomes text of the result."""

from __future__ import annotations

import io
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.errors import DamagedFile, RunFailed
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.recipe import recipe
from gristmill.pipeline.run.run import run
from gristmill.pipeline.shuffle.saved_index import read_index, write_index
from gristmill.pipeline.shuffle.spill import CHECKSUM, batch_checksum, checked_batch, read_rows, write_rows
from gristmill.pipeline.store.journal import Journal
from gristmill.pipeline.store.lock import one_run_at_a_time
from gristmill.pipeline.store.records import EarlierRun, Result, SavedIndex, StoredRows
from gristmill.pipeline.store.storage import Store
from tests.pipeline.crawls import inside, jsonl
from tests.pipeline.runs import go, tree

TEXTS = [
    f"The miller of mill number {n} ground {n * 7} sacks of wheat before the river froze over in winter."
    for n in range(30)
]
TEXTS += [*TEXTS[:4], "too short"]
KINDS = {
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.string(): st.text(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
    pa.list_(pa.string()): st.lists(st.text(max_size=3), max_size=3),
    pa.float64(): st.floats(),
    pa.null(): st.none(),
}


@st.composite
def tables(draw: Any) -> pa.Table:
    rows = draw(st.integers(0, 12))
    columns = {"by": pa.array(draw(st.lists(st.integers(0, 2**64 - 1), min_size=rows, max_size=rows)), pa.uint64())}
    for name, kind in enumerate(draw(st.lists(st.sampled_from(list(KINDS)), max_size=3))):
        columns[str(name)] = pa.array([draw(st.none() | KINDS[kind]) for _ in range(rows)], kind)
    return pa.table(columns)


def made(folder: Path) -> tuple[Path, Path]:
    """A finished run of two parts."""
    for number in range(2):
        jsonl(folder / f"in/part-{number}.jsonl", TEXTS[number::2])
    path = folder / "r.yaml"
    path.write_text(
        "name: checked\nparts: {files: 1, small_file: 0}\nsources:\n  s: {jsonl: {path: in}}\n"
        "stages:\n  - gopher_quality: {min_words: 5, min_stop_words: 0}\n  - exact_dedup\n  - write\n"
    )
    go(path, folder / "out")
    return path, folder / "out"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    made(folder)
    return folder


def copied(finished: Path, to: Path) -> tuple[Path, Path]:
    shutil.copytree(finished, to, dirs_exist_ok=True)
    return to / "r.yaml", to / "out"


def flip(file: Path, at: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


@given(tables(), st.sampled_from([1, 2, 8]))
def test_rows_are_read_as_they_were_written(table: pa.Table, buckets: int) -> None:
    store = Store(f"memory://{uuid.uuid4().hex}")
    facts = write_rows(store, "rows.arrow", table, "by", buckets)
    parts = [read_rows(store, StoredRows((facts,), by="by"), bucket, buckets) for bucket in range(buckets)]
    assert sum(0 if part is None else len(part) for part in parts) == len(table)


@pytest.mark.parametrize("bucket", [None, 0, 1])
def test_a_flipped_bit_in_rows_is_noticed_wherever_it_is(tmp_path: Path, bucket: int | None) -> None:
    store = Store(str(tmp_path))
    table = pa.table(
        {"home": pa.array([1, 2**63, 5, 2**63 + 9], pa.uint64()), "text": ["mill", "stone", None, "wheel"]}
    )
    facts = write_rows(store, "rows.arrow", table, "home", 2)
    rows = StoredRows((facts,), by="home")
    whole, good = read_rows(store, rows, bucket, 2), (tmp_path / "rows.arrow").read_bytes()
    noticed = 0
    for place in range(len(good)):
        (tmp_path / "rows.arrow").write_bytes(good)
        flip(tmp_path / "rows.arrow", place, place % 8)
        try:
            assert read_rows(store, rows, bucket, 2) == whole, place
        except DamagedFile as error:
            assert error.path == "rows.arrow"
            noticed += 1
    assert noticed > len(good) // 4  # the rest is padding, and of one bucket what the other has


def test_a_batch_in_the_place_of_another_is_damage(tmp_path: Path) -> None:
    file = io.BytesIO()
    batches = [pa.record_batch({"n": pa.array([n], pa.int64())}) for n in range(2)]
    with pa.ipc.new_file(file, batches[0].schema) as writer:
        for place, batch in enumerate(reversed(batches)):
            writer.write_batch(batch, custom_metadata={CHECKSUM: batch_checksum(batch, 1 - place, 2)})
    reader = pa.ipc.open_file(io.BytesIO(file.getvalue()))
    with pytest.raises(DamagedFile):
        checked_batch(reader, 0, "rows.arrow")


def test_one_flipped_bit_of_any_file_is_mended_by_the_next_run(finished: Path, tmp_path: Path) -> None:
    """One bit in each file in turn; all files of the results come out as they were."""
    before = tree(finished / "out")
    kinds = [
        "partitions/*/*.documents.parquet",
        "partitions/*/*.verdicts.parquet",
        "stages/*/rejects/*.parquet",
        "write/*.parquet",
        "shuffle/exact_dedup/*.arrow",
        "partitions/*/manifest.json",
    ]
    path, out = copied(finished, tmp_path)
    for pattern in kinds:
        file = sorted(out.glob(pattern))[0]
        flip(file, file.stat().st_size // 3)
        assert file.read_bytes() != before.get(str(file.relative_to(out)))
    flip(out / "run.json", (out / "run.json").read_bytes().index(b'"checked"') + 2)  # the name of the recipe
    (out / "journal/tasks.jsonl").write_bytes(flipped_line(out / "journal/tasks.jsonl"))
    go(path, out)
    after = tree(out)
    assert len(after) > 15 and after == before
    assert json.loads((out / "run.json").read_text())["name"] == "checked"


def flipped_line(journal: Path) -> bytes:
    """The journal with another count in one of its results."""
    content = journal.read_bytes()
    at = content.index(b'"kept":') + len(b'"kept":')
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_plan_and_verify_name_what_was_damaged(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = copied(finished, tmp_path)
    assert inside(monkeypatch, capsys, "maintain", "verify", out).code == 0
    file = sorted((out / "write").glob("*.parquet"))[0]
    stamp = file.stat()
    flip(file, 40)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # as a disk would leave it
    told = inside(monkeypatch, capsys, "maintain", "verify", out)
    assert told.code == 1 and f"write/{file.name}: its content is not what was written" in told.out.replace("\n", "")
    planned = inside(monkeypatch, capsys, "plan", path, "--out", out, "--json")
    assert planned.code == 0 and "damaged?" in planned.out


def rot(out: Path, file: Path) -> None:
    """One bit flips, and the journal knows the stamp that the file has now as that of the content before."""
    flip(file, 40)
    store, name = Store(str(out)), str(file.relative_to(out))
    journal, stamp = Journal(store), store.stamp(name)
    assert stamp is not None
    journal._remember({name: (stamp, journal.files[name].checksum)})
    journal.flush()


def test_what_verify_finds_behind_a_stamp_that_stayed_is_made_anew_by_the_next_run(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = copied(finished, tmp_path)
    go(path, out)
    before = tree(out)
    files = [sorted(out.glob(kind))[0] for kind in ("write/*.parquet", "shuffle/exact_dedup/*.arrow")]
    for file in files:
        rot(out, file)
    assert go(path, out)[0].worked == 0, "a run trusts stamps"
    with one_run_at_a_time(Store(str(out))):
        told = inside(monkeypatch, capsys, "maintain", "verify", out)
    assert told.code == 1 and told.out.count("its content is not what was written") == 2
    assert "remove what is not as written, and run the recipe again to repair them" in " ".join(told.out.split())
    assert go(path, out)[0].worked == 0, "verify could not write to the journal"
    told = inside(monkeypatch, capsys, "maintain", "verify", out)
    assert told.code == 1 and "2 faults; run the recipe again to repair them" in " ".join(told.out.split())
    go(path, out)
    after = tree(out)
    assert len(after) > 15 and after == before
    assert inside(monkeypatch, capsys, "maintain", "verify", out).code == 0


def test_a_file_that_goes_bad_while_its_stamp_stays_is_made_anew_when_a_task_reads_it(
    finished: Path, tmp_path: Path
) -> None:
    """As a disk that loses a bit without a word: the journal trusts the stamp, the worker that reads the content finds
    out."""
    path, out = copied(finished, tmp_path)
    go(path, out)  # stamps of the copy are known from here on
    file = sorted((out / "partitions/s").glob("*.documents.parquet"))[0]
    rot(out, file)
    path.write_text(
        path.read_text()
        .replace("min_words: 5", "min_words: 5, max_words: 9000")
        .replace("  - write\n", "  - sample: {rate: 0.9}\n  - write\n")
    )
    notes: list[str] = []

    class Noting(Quiet):
        def note(self, message: str) -> None:
            notes.append(message)

    run(recipe.load(path), str(out), Where(1), Noting())
    assert [n for n in notes if f"{file.name} is damaged or was changed" in n]
    go(path, tmp_path / "fresh")
    assert tree(out, "write") == tree(tmp_path / "fresh", "write") != {}


def test_a_file_that_is_damaged_again_and_again_ends_the_run(tmp_path: Path) -> None:
    journal = Journal(Store(str(tmp_path)))
    journal.suspect(DamagedFile("partitions/a.parquet"))
    with pytest.raises(RunFailed, match="damaged again after it was made anew"):
        journal.suspect(DamagedFile("partitions/a.parquet"))


def test_every_flip_in_a_journal_leaves_the_other_lines(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    journal = Journal(store)
    for task in range(3):
        journal.add(f"task-{task}", Result(log=(f"line {task}",)))
    journal.flush()
    file = tmp_path / "journal/tasks.jsonl"
    good, whole = file.read_bytes(), journal.done
    for place in range(len(good)):
        file.write_bytes(good)
        flip(file, place, place % 7)
        read = Journal(store).done
        assert len(read) >= 1 and read.items() <= whole.items(), place


def test_a_damaged_index_is_refused_with_a_remedy(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert read_index(store) is None
    write_index(store, SavedIndex({}, "home", 4, (), EarlierRun("recipe", "stage", "f", 0, 0)))
    index = read_index(store)
    assert index is not None and index.buckets == 4
    (tmp_path / "index.json").write_text((tmp_path / "index.json").read_text().replace('"buckets": 4', '"buckets": 5'))
    with pytest.raises(RunFailed, match="run the recipe that saved this index again"):
        read_index(store)
