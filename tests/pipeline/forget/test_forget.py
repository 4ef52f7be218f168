"""Documents that are forgotten are nowhere in a run's folder, all else is as it was, and a later run leaves them
out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill.pipeline.cli.upkeep import check_files
from gristmill.pipeline.forget.forget import forget
from gristmill.pipeline.forget.request import read_request
from gristmill.pipeline.look.token_sets import faults_of
from gristmill.pipeline.store.store import Store
from tests.pipeline.forget.forgetting import contents, documents, make_run, places, tokens_of, windows
from tests.pipeline.runs import go, save

OUTSIDE = ("in/", "forgotten/")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def ask(out: Path, *lines: str, **how: bool) -> dict[str, Any]:
    return forget(str(out), read_request(save(out.parent / "ids.txt", "\n".join(lines))), **how)


def check_whole(out: Path) -> None:
    files, faults = check_files(Store(str(out)))
    assert files > 10 and faults == []
    sets = list(faults_of(str(out)))
    assert len(sets) == 1 and [fault for _, _, some in sets for fault in some] == []


def test_documents_are_nowhere_and_all_else_is_as_it_was(out: Path) -> None:
    before, tokens = documents(out), tokens_of(out)
    gone, stay = before[::4], [row for i, row in enumerate(before) if i % 4]
    uids = {row["uid"] for row in gone}
    theirs = windows(str(row["text"]) for row in gone) - windows(
        row["text"] for row in all_documents(out) if row["uid"] not in uids
    )
    assert len(gone) > 15 and len(theirs) > 2000
    assert sum(places(contents(out, OUTSIDE), theirs).values()) > 3 * len(theirs)
    receipt = ask(out, *(f"{row['uid']:016x}" for row in gone))
    assert receipt["documents"] == len(gone) and receipt["tokens"]["shards/64"] > 0
    assert places(contents(out, ("in/",)), theirs) == {}
    assert documents(out) == stay
    assert tokens_of(out) == {uid: ids for uid, ids in tokens.items() if uid not in uids}
    check_whole(out)
    summary, anew = go(out.parent / "r.yaml", out)
    assert not anew and summary.worked == 0, anew
    assert documents(out) == stay and places(contents(out, ("in/",)), theirs) == {}
    check_whole(out)
    counts = {stage["name"]: stage for stage in summary.record["stages"]}
    read = [counts["a"], counts["b"]]
    assert sum(stage["dropped"]["forgotten"] for stage in read) == len(gone)
    for stage in summary.record["stages"]:
        assert stage["docs_in"] == stage["kept"] + sum(stage["dropped"].values()) + stage["quarantined"], stage["name"]
    assert counts["pack"]["docs_in"] == len(stay)


def all_documents(out: Path) -> list[dict[str, Any]]:
    rows = [
        row for path in sorted((out / "legs").rglob("*.documents.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    assert rows
    return rows


def test_a_run_from_the_beginning_leaves_them_out(out: Path) -> None:
    rows = documents(out)
    receipt = ask(out, *(str(row["url"]) for row in rows[:5]), "host:a3.example")
    assert receipt["documents"] > 8
    left = documents(out)
    recipe = out.parent / "r.yaml"
    recipe.write_text(recipe.read_text().replace("min_words: 12", "min_words: 11"))
    shutil.rmtree(out / "legs")
    summary, anew = go(recipe, out)
    assert anew["a", "leg"] and documents(out) == left
    dropped = [stage["dropped"].get("forgotten", 0) for stage in summary.record["stages"]]
    assert dropped[:2] != [0, 0] and dropped[2:] == [0] * len(dropped[2:])
    rejects = pq.ParquetDataset(sorted((out / "stages/a/rejects").glob("*.parquet"))).read().to_pylist()
    assert {row["reason"] for row in rejects} <= {"forgotten", "copy_of_forgotten"}
    assert len(rejects) >= 5 and all(row["url"] is None for row in rejects if row["reason"] == "forgotten")
    check_whole(out)


def survivors_with_copies(out: Path) -> dict[int, int]:
    """Documents that others were dropped for, and how many."""
    counts: dict[int, int] = {}
    for path in (out / "stages").rglob("rejects/*.parquet"):
        for row in pq.read_table(path).to_pylist():
            if row["stage"] in ("exact_dedup", "minhash_dedup"):
                uid = int(row["detail"].rsplit(" ", 1)[-1], 16)
                counts[uid] = counts.get(uid, 0) + 1
    assert len(counts) >= 3
    return counts


def test_duplicates_of_a_forgotten_survivor_stay_out(out: Path) -> None:
    before, counts = documents(out), survivors_with_copies(out)
    receipt = ask(out, *(f"{uid:016x}" for uid in counts))
    assert receipt["held_back"] == sum(counts.values()) and receipt["documents"] == len(counts)
    assert {copy["fate"].split(", ")[-1] for copy in receipt["copies"]} == {"held back"}
    assert {copy["similarity"] == 1 for copy in receipt["copies"]} == {True, False}, "exact and near copies are told"
    left = [row for row in before if row["uid"] not in counts]
    assert documents(out) == left
    recipe = out.parent / "r.yaml"
    recipe.write_text(recipe.read_text().replace("min_words: 12", "min_words: 11"))
    _, anew = go(recipe, out)
    assert anew and documents(out) == left, "another threshold decides anew, and does not bring them back"
    shutil.rmtree(out / "legs")
    go(recipe, out)
    assert documents(out) == left, "nor does reading anew"
    check_whole(out)


def test_they_come_back_when_asked(out: Path) -> None:
    counts = survivors_with_copies(out)
    receipt = ask(out, *(f"{uid:016x}" for uid in counts), restore=True)
    assert receipt["held_back"] == 0
    left = {row["uid"] for row in documents(out)}
    _, anew = go(out.parent / "r.yaml", out)
    came = {row["uid"] for row in documents(out)} - left
    assert anew and len(came) == len(counts) and not came & set(counts)
    check_whole(out)


def test_copies_go_too_when_asked(out: Path) -> None:
    counts = survivors_with_copies(out)
    texts = [row["text"] for row in documents(out) if row["uid"] in counts]
    theirs = windows(texts)
    assert len(texts) == len(counts)
    receipt = ask(out, *(f"{uid:016x}" for uid in counts), with_copies=True)
    assert receipt["documents"] == len(counts) + sum(counts.values()) and receipt["held_back"] == 0
    assert all(copy["taken"] for copy in receipt["copies"]) and len(receipt["copies"]) == sum(counts.values())
    assert places(contents(out, ("in/",)), theirs) == {}
    check_whole(out)


def test_addresses_and_hashes_of_texts(out: Path) -> None:
    import hashlib

    import xxhash

    rows = documents(out)
    mail = next(row for row in rows if "someone.a0@mail.example" in str(row["text"]))
    others = [row for row in rows if "@" not in str(row["text"])][:2]
    sha = hashlib.sha256(str(others[0]["text"]).encode()).hexdigest()
    xxh = xxhash.xxh3_128_hexdigest(str(others[1]["text"]).encode())
    receipt = ask(out, "Someone.A0@mail.example", sha, xxh)
    assert receipt["asked"] == {"email": 1, "sha256": 1, "xxh3": 1} and receipt["documents"] == 3
    assert {row["uid"] for row in rows} - {row["uid"] for row in documents(out)} == {
        mail["uid"], others[0]["uid"], others[1]["uid"],
    }  # fmt: skip
    for path in (out / "forgotten").iterdir():
        assert b"someone" not in path.read_bytes().lower(), path.name


def test_a_dry_run_changes_nothing_and_a_second_list_adds_to_the_first(out: Path) -> None:
    rows = documents(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    receipt = ask(out, f"{rows[0]['uid']:016x}", dry_run=True)
    assert receipt["documents"] == 1
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    ask(out, f"{rows[0]['uid']:016x}")
    ask(out, f"{rows[1]['uid']:016x}")
    assert documents(out) == rows[2:]
    _, anew = go(out.parent / "r.yaml", out)
    assert not anew and documents(out) == rows[2:]
    kept = json.loads((out / "forgotten/list.json").read_text())
    assert {f"{row['uid']:016x}" for row in rows[:2]} <= set(kept["uid"])
    assert sorted(path.name for path in (out / "forgotten").iterdir()) == [
        "list.json", "receipt-0001.json", "receipt-0001.txt", "receipt-0002.json", "receipt-0002.txt",
    ]  # fmt: skip
    check_whole(out)
