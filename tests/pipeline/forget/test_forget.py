"""Documents that are forgotten are nowhere in a run's folder, and the next run leaves what one leaves that never read
them."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gristmill.pipeline.cli.app import app
from gristmill.pipeline.cli.maintain_verify import check_files
from gristmill.pipeline.demo.crawl import write_crawl
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.forget.receipt import in_words
from gristmill.pipeline.forget.request import read_request
from gristmill.pipeline.forget.takedown import forget
from gristmill.pipeline.look.find import find_in_run
from gristmill.pipeline.look.history import history
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.token_sets import exported, faults_of
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.dry_run import foresee
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.summary.files import write_summary
from gristmill.shards.export.export import Options
from tests.pipeline.forget.forgetting import (
    ask,
    contents,
    documents,
    inputs_without,
    places,
    results,
    tokens_of,
    windows,
)
from tests.pipeline.runs import go, save

OUTSIDE = ("in/", "forgotten/")


def check_whole(out: Path) -> None:
    files = check_files(Store(str(out)))
    assert files.there > 10 and files.faults == []
    sets = list(faults_of(str(out)))
    assert len(sets) == 1 and [fault for _, _, some in sets for fault in some] == []


def test_a_public_summary_goes_with_them(out: Path) -> None:
    _, files = write_summary(RunFolder(out), "eu")
    assert len(files) == 2 and all((out / file).exists() for file in files)
    assert ask(out, f"{documents(out)[0]['uid']:016x}")["documents"] == 1
    assert not any((out / file).exists() for file in files)
    check_whole(out)


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
    assert receipt["parts_made_again"] == 2
    assert places(contents(out, ("in/",)), theirs) == {}
    assert documents(out) == stay
    assert tokens_of(out) == {uid: ids for uid, ids in tokens.items() if uid not in uids}
    alarms = json.loads((out / "run.json").read_text())["alarms"]
    assert any(f"{len(gone)} documents were forgotten since" in alarm for alarm in alarms)
    check_whole(out)


def test_the_next_run_equals_one_that_never_read_them(out: Path) -> None:
    rows, counts = documents(out), survivors_with_copies(out)
    gone = {row["uid"] for row in rows[::5]} | set(counts)
    receipt = ask(out, *(f"{uid:016x}" for uid in gone))
    assert receipt["documents"] == len(gone)
    foreseen = foresee(recipes.load(out.parent / "r.yaml"), str(out))
    assert len(foreseen) > 5 and "up to date" not in {step.why for step in foreseen}
    summary, anew = go(out.parent / "r.yaml", out)
    fresh = out.parent / "fresh"
    assert inputs_without(out.parent / "in", fresh / "in", gone) == len(gone)
    shutil.copy(out.parent / "r.yaml", fresh)
    go(fresh / "r.yaml", fresh / "out")
    theirs, ours = results(fresh), results(out.parent)
    assert sorted(ours) == sorted(theirs) and len(ours) > 20
    assert [name for name in ours if ours[name] != theirs[name]] == []
    left = {row["uid"] for row in documents(out)}
    came = left - {row["uid"] for row in rows}
    assert len(came) == len(counts) and came <= {int(uid, 16) for uid in receipt["may_return"]}
    texts = windows(row["text"] for row in rows if row["uid"] in gone) - windows(
        row["text"] for row in all_documents(out)
    )
    assert len(texts) > 1000 and places(contents(out, ("in/",)), texts) == {}
    stages = summary.record.to_json()["stages"]
    assert sum(stage["dropped"].get("forgotten", 0) for stage in stages[:2]) == len(gone)
    for stage in stages:
        assert stage["docs_in"] == stage["kept"] + sum(stage["dropped"].values()) + stage["quarantined"], stage["name"]
    check_whole(out)
    again, anew = go(out.parent / "r.yaml", out)
    assert again.worked == 0 and not anew


def test_parts_without_them_are_not_made_again(out: Path) -> None:
    gone = next(row for row in documents(out) if row["url"].startswith("https://b"))
    written = {path: path.stat().st_mtime_ns for path in (out / "partitions/a").glob("*.parquet")}
    assert written and ask(out, f"{gone['uid']:016x}")["parts_made_again"] == 1
    _, anew = go(out.parent / "r.yaml", out)
    assert anew["b", "stages"] == 1 and ("a", "stages") not in anew
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_without_the_list_the_documents_return(out: Path) -> None:
    rows = documents(out)
    ask(out, *(f"{row['uid']:016x}" for row in rows[:3]))
    go(out.parent / "r.yaml", out)
    assert len(documents(out)) < len(rows)
    (out / "forgotten/list.json").unlink()
    go(out.parent / "r.yaml", out)
    assert documents(out) == rows


def test_shards_that_go_after_it_are_missed(out: Path) -> None:
    assert ask(out, *(f"{row['uid']:016x}" for row in documents(out)[::4]))["documents"] > 15
    shard = sorted((out / "shards").rglob("*.arrow"))[0]
    shard.unlink()
    assert check_files(Store(str(out))).faults == [f"{shard.relative_to(out)}: is gone"]


def all_documents(out: Path) -> list[dict[str, Any]]:
    rows = [
        row
        for path in sorted((out / "partitions").rglob("*.documents.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    assert rows
    return rows


def test_a_run_from_the_beginning_leaves_them_out(out: Path) -> None:
    rows = documents(out)
    receipt = ask(out, *(str(row["url"]) for row in rows[:5]), "host:a3.example")
    assert receipt["documents"] > 8
    left = {row["uid"] for row in documents(out)}
    recipe = out.parent / "r.yaml"
    recipe.write_text(recipe.read_text().replace("min_words: 12", "min_words: 11"))
    shutil.rmtree(out / "partitions")
    summary, anew = go(recipe, out)
    came = {row["uid"] for row in documents(out)} - left
    assert anew["a", "stages"] and came <= {int(uid, 16) for uid in receipt["may_return"]}
    assert left <= {row["uid"] for row in documents(out)}
    dropped = [stage["dropped"].get("forgotten", 0) for stage in summary.record.to_json()["stages"]]
    assert dropped[:2] != [0, 0] and dropped[2:] == [0] * len(dropped[2:])
    rejects = pq.ParquetDataset(sorted((out / "stages/a/rejects").glob("*.parquet"))).read().to_pylist()
    assert {row["reason"] for row in rejects} == {"forgotten"}
    assert len(rejects) >= 5 and all(row["url"] is None for row in rejects)
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


def test_duplicates_of_a_forgotten_survivor_are_listed_and_may_come_back(out: Path) -> None:
    before, counts = documents(out), survivors_with_copies(out)
    receipt = ask(out, *(f"{uid:016x}" for uid in counts))
    assert len(receipt["may_return"]) == sum(counts.values()) and receipt["documents"] == len(counts)
    assert {copy["uid"] for copy in receipt["copies"]} == set(receipt["may_return"])
    assert {copy["fate"] for copy in receipt["copies"]} == {
        "exact_dedup: exact_duplicate", "minhash_dedup: near_duplicate",
    }  # fmt: skip
    left = [row for row in before if row["uid"] not in counts]
    assert documents(out) == left, "until the next run"
    assert f"may return:\n- {receipt['may_return'][0]}\n" in in_words(receipt).replace("'", "")
    _, anew = go(out.parent / "r.yaml", out)
    came = {f"{row['uid']:016x}" for row in documents(out)} - {f"{row['uid']:016x}" for row in left}
    assert anew and len(came) == len(counts) and came <= set(receipt["may_return"])
    check_whole(out)


def test_copies_go_too_when_asked(out: Path) -> None:
    counts = survivors_with_copies(out)
    texts = [row["text"] for row in documents(out) if row["uid"] in counts]
    theirs = windows(texts)
    assert len(texts) == len(counts)
    receipt = ask(out, *(f"{uid:016x}" for uid in counts), with_copies=True)
    assert receipt["documents"] == len(counts) + sum(counts.values()) and receipt["may_return"] == []
    assert receipt["with_copies"] and len(receipt["copies"]) == sum(counts.values())
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
    rows = [row for row in documents(out) if row["uid"] not in survivors_with_copies(out)]
    every = documents(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    receipt = ask(out, f"{rows[0]['uid']:016x}", dry_run=True)
    assert receipt["documents"] == 1
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert ask(out, f"{rows[0]['uid']:016x}")["not_looked_at"] == []
    [place] = ask(out, f"{rows[1]['uid']:016x}")["not_looked_at"]
    assert "that an earlier takedown removed" in place
    left = [row for row in every if row["uid"] not in (rows[0]["uid"], rows[1]["uid"])]
    assert documents(out) == left
    _, anew = go(out.parent / "r.yaml", out)
    assert anew and documents(out) == left
    kept = json.loads((out / "forgotten/list.json").read_text())
    assert {f"{row['uid']:016x}" for row in rows[:2]} <= set(kept["uid"])
    assert sorted(path.name for path in (out / "forgotten").iterdir()) == [
        "list.json", "receipt-0001.json", "receipt-0001.txt", "receipt-0002.json", "receipt-0002.txt",
    ]  # fmt: skip
    check_whole(out)


def test_exports_and_the_index_of_passages_follow(out: Path) -> None:
    rows = documents(out)
    exports = {name: out / "exports" / name for name in ("megatron", "hf", "dolma")}
    exports |= {name: out.parent / f"{name}-elsewhere" for name in ("trl", "datasketch")}
    for to, place in exports.items():
        exported(str(out), to, str(place), None, Options(), lambda done, of: None)
    passage = str(rows[0]["text"])[20:90].upper()
    found = list(find_in_run(RunFolder(out), passage, 5))
    assert [hit.uid for hit in found] == [f"{rows[0]['uid']:016x}"]
    hit = found[0]
    line = (out.parent / f"in/{hit.source}/{hit.files[0]}").read_bytes()[hit.offset :].split(b"\n")[0]
    assert json.loads(line)["text"] == rows[0]["text"] and hit.url == rows[0]["url"]
    assert [hit.uid for hit in find_in_run(RunFolder(out), str(rows[0]["text"])[:22], 5)] == [f"{rows[0]['uid']:016x}"]
    assert list(find_in_run(RunFolder(out), "no document of this run holds these words at all", 5)) == []
    assert list((out / "index").glob("find-*/hashes-*.npy"))
    shown = CliRunner().invoke(app, ["inspect", str(out), "--text", passage, "--json"])
    assert shown.exit_code == 0 and json.loads(shown.stdout) == hit.plain()
    save(out.parent / "passage.txt", passage)
    shown = CliRunner().invoke(app, ["inspect", str(out), "--text-file", str(out.parent / "passage.txt")])
    assert f"byte {hit.offset:,}" in shown.stdout and hit.uid in shown.stdout
    assert CliRunner().invoke(app, ["inspect", str(out), "--text", "held by no document at all, ever"]).exit_code == 1
    seen = ask(out, f"{rows[0]['uid']:016x}", dry_run=True)
    assert sorted(seen["exports"]) == sorted(map(str, exports.values()))
    said = in_words(seen)
    assert "exports:\n" in said and all(place.name in said for place in exports.values())
    assert "other runs of the same inputs" in said
    ask(out, f"{rows[0]['uid']:016x}")
    assert list(find_in_run(RunFolder(out), passage, 5)) == []
    for to, place in exports.items():
        exported(str(out), to, str(out.parent / f"again-{to}"), None, Options(), lambda done, of: None)
        again, there = out.parent / f"again-{to}", place
        names = sorted(path.relative_to(again) for path in again.rglob("*") if path.is_file())
        assert names and names == sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
        assert all((again / name).read_bytes() == (there / name).read_bytes() for name in names), to


def test_what_is_refused(out: Path) -> None:
    rows = documents(out)
    request = read_request(save(out.parent / "ids.txt", f"{rows[0]['uid']:016x}"))
    with pytest.raises(RecipeError, match="no run is here"):
        forget(str(out.parent), request)
    with pytest.raises(RecipeError, match="works on local folders"):
        forget("memory://run", request)
    with pytest.raises(RecipeError, match="nothing was begun here"):
        forget(str(out), None)
    damaged = next((out / "write").glob("*.parquet"))
    content = damaged.read_bytes()
    damaged.write_bytes(content + b"x")
    with pytest.raises(RunFailed, match=r"cannot be read as Parquet|not what was written"):
        forget(str(out), request)
    damaged.write_bytes(content)
    record = (out / "run.json").read_text()
    (out / "run.json").write_text(record.replace('"status": "done"', '"status": "failed"'))
    with pytest.raises(RecipeError, match="has not come to its end"):
        forget(str(out), request)
    (out / "run.json").write_text(record)
    (out / "forgotten").mkdir()
    (out / "forgotten/work.json").write_text("{}")
    with pytest.raises(RunFailed, match="that was broken off"):
        go(out.parent / "r.yaml", out)


def test_pages_and_reports_of_a_crawl(tmp_path: Path) -> None:
    """Pages have no text when they are read; samples of near duplicates stand in reports."""
    write_crawl(tmp_path)
    recipe = save(tmp_path / "r.yaml", (tmp_path / "demo.yaml").read_text().split("  - tokenize")[0])
    go(recipe, tmp_path / "out")
    out = tmp_path / "out"
    told = json.loads((out / "stages/minhash_dedup/report.json").read_text())["examples"]
    page = min(row["uid"] for row in documents(out))
    assert told
    gone = {told[0]["uid"], told[0]["like"], f"{page:016x}"}
    story = history(RunFolder(out), told[0]["uid"])
    [(path, place)] = [(span.path, span.offset) for span in story.read_from]
    assert story.url is not None and place is not None
    record = zlib.decompressobj(31).decompress((tmp_path / path).read_bytes()[place:])
    assert record.startswith(b"WARC/1.0") and story.url.encode() in record[:1000]
    texts = [row["text"] for row in all_documents(out) if f"{row['uid']:016x}" in gone]
    theirs = windows(texts) - windows(row["text"] for row in all_documents(out) if f"{row['uid']:016x}" not in gone)
    assert len(theirs) > 200 and len(places(contents(out), theirs)) > 5
    receipt = ask(out, *gone)
    assert places(contents(out), theirs) == {}
    report = json.loads((out / "stages/minhash_dedup/report.json").read_text())
    assert len(report["examples"]) < len(told)
    left = {row["uid"] for row in documents(out)}
    summary, anew = go(recipe, out)
    assert anew and places(contents(out), theirs) == {}, "readers leave them out"
    assert summary.record.to_json()["stages"][0]["dropped"]["forgotten"] == len(gone)
    came = {f"{row['uid']:016x}" for row in documents(out) if row["uid"] not in left}
    assert came <= set(receipt["may_return"])
