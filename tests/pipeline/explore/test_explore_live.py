"""Runs under way or broken: what the driver leaves on disk for others, and what `explore` makes of any state that a folder
can be in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.processes import this_process
from gristmill.pipeline.progress import progress
from gristmill.pipeline.progress.progress import SILENT, ProgressRecorder, Quiet, recording_progress, state_of
from gristmill.pipeline.store.storage import Store
from tests.pipeline.explore.explore_runs import Asker, Reply, finished, hashes, served
from tests.pipeline.look.outfolder import make
from tests.pipeline.runs import go, lines, save

pytestmark = pytest.mark.run

HOSTILE = "<script>alert('x')</script>"


def me(**more: Any) -> dict[str, Any]:
    """What a run of this process would leave."""
    nodes = [
        {"name": "web", "kind": "map", "source": "web", "stages": ["extract"], "state": "running", "parts": 4, "done": 1, "began": time.time() - 30, "ended": None, "seconds_left": 90.0},
        {"name": "exact_dedup", "kind": "global", "source": None, "stages": ["exact_dedup"], "state": "waiting", "parts": None, "done": 0, "began": None, "ended": None, "seconds_left": None},
    ]  # fmt: skip
    count = {
        "docs_in": 10, "kept": 8, "dropped": {HOSTILE: 1}, "quarantined": 1, "seconds": 1.0, "bytes_in": 5, "bytes_out": 4
    }  # fmt: skip
    read = count | {"kept": 10, "dropped": {}, "quarantined": 0}
    facts = {
        "name": f"going {HOSTILE}", "state": "running", "message": None, "process": this_process(),
        "started": time.time() - 60, "updated": time.time(), "workers": 2, "notes": [HOSTILE], "nodes": nodes,
        "alarms": [f"web {HOSTILE}"], "stages": {"web": {"web": read}, "extract": {"web": count}},
    }  # fmt: skip
    return facts | more


def leave(out: Path, facts: dict[str, Any]) -> Path:
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / "logs/progress.json").write_text(json.dumps(facts))
    return out


def test_a_run_under_way_shows_what_it_has_done(tmp_path: Path) -> None:
    with served(leave(tmp_path, me())) as server:
        asker = Asker(server)
        page = asker.get("/").text
        assert "This run is running" in page and "what it dropped, so far" in page and "Alarms so far" in page
        assert re.search(r'"in">10<.*"kept">8<.*"dropped">1<.*"quarantined">1<', page)
        assert page.count("<script") == 0 and page.count("&lt;script&gt;") >= 3
        told = me()
        told["stages"]["extract"]["web"]["kept"] = 7_777
        leave(tmp_path, told)
        time.sleep(2.1)
        assert ">7,777</td>" in asker.get("/").text


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({"process": this_process() | {"began": 1}}, "stopped", "stopped without a message"),
        ({"process": this_process() | {"pid": 2**22 + 1}}, "stopped", "its process is gone"),
        ({"updated": time.time() - SILENT - 1}, "silent", "no sign of life"),
        ({"state": "failed", "message": f"no space {HOSTILE}"}, "failed", "no space &lt;script&gt;"),
        ({"state": "interrupted"}, "interrupted", "was interrupted"),
        (
            {"process": this_process() | {"host": "elsewhere", "machine": "another"}},
            "running",
            "is running",
        ),
    ],
)
def test_how_a_run_ended_is_said(tmp_path: Path, change: dict[str, Any], state: str, words: str) -> None:
    with served(leave(tmp_path, me(**change))) as server:
        reply = Asker(server).get("/")
        assert reply.status == 200 and words in reply.text and "javascript:" not in reply.text
        assert RunFolder(tmp_path).state == state and "<script" not in reply.text


def test_a_run_that_broke_off_shows_its_own_record(tmp_path: Path, whole: Path) -> None:
    """What run.json says is more than what was told on the way; of a run that was killed it says nothing."""
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    record = json.loads((out / "run.json").read_text())
    failed = record | {"status": "failed", "error": f"no space {HOSTILE}", "stages": record["stages"][:2]}
    (out / "run.json").write_text(json.dumps(failed))
    for facts in (None, me(state="failed", message=f"no space {HOSTILE}")):
        if facts is not None:
            leave(out, facts)
        page = ask_all(out)["/"].text
        assert (
            "no space &lt;script&gt;" in page
            and ">failed</span>" in page
            and re.search(r'<td class="n"[^>]*>23<', page)
        ), facts
    (out / "run.json").write_text(json.dumps({"name": "small", "status": "running", "recipe": record["recipe"]}))
    page = ask_all(leave(out, me(process=this_process() | {"began": 1})))["/"].text
    assert (
        "stopped without a message" in page
        and re.search(r'<td class="n"[^>]*>10<', page)
        and ">interrupted</span>" in page
    )


def ask_all(out: Path) -> dict[str, Reply]:
    """Every kind of page of a folder in some state; each must be a page."""
    before = hashes(out)
    with served(out) as server:
        asker = Asker(server)
        targets = [
            "/",
            "/documents",
            "/rejects",
            "/documents?words=miller",
            "/rejects?words=miller",
            "/report",
            "/documents?at=2",
        ]
        targets += asker.links("/documents", "^/document/")[:3] + asker.links("/rejects", "^/document/")[:3]
        targets += [target.replace("?", "/original?") for target in targets if target.startswith("/document/")][:2]
        replies = {target: asker.get(target) for target in targets}
    assert hashes(out) == before
    assert all(reply.status in (200, 400, 404, 500) and reply.body for reply in replies.values())
    assert replies["/"].status == replies["/documents"].status == replies["/rejects"].status == 200
    return replies


BREAKS: dict[str, Callable[[Path], object]] = {
    "no run.json": lambda out: (out / "run.json").unlink(),
    "run.json cut off": lambda out: (out / "run.json").write_bytes((out / "run.json").read_bytes()[:100]),
    "run.json of another kind": lambda out: (out / "run.json").write_text('{"name": 5, "stages": [1, {"name": [], "dropped": {"x": "y"}}], "alarms": 3, "recipe": 7}'),
    "run.json is a list": lambda out: (out / "run.json").write_text("[1, 2]"),
    "a manifest cut off": lambda out: next(out.glob("partitions/*/manifest.json")).write_text('{"segment": "web", "parts": [{'),
    "a manifest of another kind": lambda out: next(out.glob("partitions/*/manifest.json")).write_text('{"stages": "x", "parts": {"a": 1}}'),
    "documents cut off": lambda out: [path.write_bytes(path.read_bytes()[:200]) for path in out.glob("partitions/*/*.documents.parquet")],
    "documents gone": lambda out: [path.unlink() for path in out.glob("partitions/*/*.documents.parquet")],
    "verdicts of zeros": lambda out: [path.write_bytes(b"\0" * 500) for path in out.rglob("*.verdicts.parquet")],
    "rejects cut off": lambda out: [path.write_bytes(path.read_bytes()[:99]) for path in out.glob("stages/*/rejects/*.parquet")],
    "segments gone": lambda out: shutil.rmtree(out / "partitions"),
    "stages gone": lambda out: shutil.rmtree(out / "stages"),
    "all gone": lambda out: [shutil.rmtree(path) if path.is_dir() else path.unlink() for path in out.iterdir()],
    "progress cut off": lambda out: leave(out, {}) and (out / "logs/progress.json").write_text('{"state": "runn'),
    "progress of another kind": lambda out: leave(out, {"state": 3, "nodes": [], "stages": {}, "started": "x"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    lines(folder / "in.jsonl", [f"the miller keeps number {n}" for n in range(20)] + ["twice"] * 3)
    go(
        save(
            folder / "recipe.yaml",
            "name: small\nsources: {web: {jsonl: {path: in.jsonl}}}\nstages: [exact_dedup, write]\n",
        ),
        folder / "out",
    )
    return folder / "out"


@pytest.mark.parametrize("broken", BREAKS)
@pytest.mark.parametrize("kind", ["made up", "real"])
def test_a_broken_run_has_its_pages(tmp_path: Path, whole: Path, kind: str, broken: str) -> None:
    out = make(tmp_path / "out") if kind == "made up" else Path(shutil.copytree(whole, tmp_path / "out"))
    BREAKS[broken](out)
    replies = ask_all(out)
    if "cut off" in broken or "kind" in broken or "zeros" in broken:
        assert any('class="trouble"' in reply.text for reply in replies.values() if reply.status == 200), broken


SLOW = """
import time
from gristmill.stages.stage import Annotate

class Slow(Annotate):
    def annotate(self, batch):
        time.sleep(60 if "SLOW" in batch.column("text")[0].as_py() else 0.7)
        return {}
"""


def test_a_killed_run_shows_what_was_done(tmp_path: Path) -> None:
    save(tmp_path / "slow.py", SLOW)
    lines(tmp_path / "in/slow.jsonl", ["SLOW"])
    for file in range(4):  # the journal is flushed once a second
        lines(tmp_path / f"in/{file}.jsonl", [f"the miller keeps number {n} of {file}" for n in range(100)])
    settings = "parts: {files: 1}\nsources: {web: {jsonl: {path: in}}}\nstages: ['slow.py:Slow', write]\n"
    out, recipe = tmp_path / "out", save(tmp_path / "recipe.yaml", f"name: killed\n{settings}")
    command = [
        sys.executable,
        "-m",
        "gristmill.pipeline.cli.app",
        "run",
        str(recipe),
        "--out",
        str(out),
        "--workers",
        "2",
    ]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (readers := RunFolder(out, lenient=True).record.readers) or readers[0].count.kept != 400:
            assert time.monotonic() < deadline and run.poll() is None
            time.sleep(0.1)
        with served(out) as server:
            going = Asker(server).get("/").text
        assert "is running" in going and '"in">400</td>' in going
    finally:
        run.kill()
        run.wait()
    dead = ask_all(out)
    assert "stopped without a message" in dead["/"].text and '"in">400</td>' in dead["/"].text


class Nothing(Quiet):
    def note(self, message: str) -> None: ...


def two_workers() -> Any:
    return SimpleNamespace(workers=2, dashboard=None, deaths=0, memory=lambda: None)


def recording(store: Store) -> ProgressRecorder:
    return ProgressRecorder(Nothing(), "a run", [], lambda account: [])


def test_progress_is_written_at_most_so_often_whole_and_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.2)
    store, seen = Store(str(tmp_path)), set[int]()
    path = tmp_path / progress.PATH
    with recording_progress(recording(store), store) as face:
        time.sleep(0.3)
        assert not path.exists()  # nothing is at work yet
        face.executor = two_workers()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            face.note("something")
            if path.exists():
                seen.add(path.stat().st_mtime_ns)
                facts = json.loads(path.read_bytes())
                assert state_of(facts, time.time()) == "running"
    assert 3 <= len(seen) <= 7
    assert [*tmp_path.rglob("*")] == []
    assert threading.active_count() < 20 and "progress" not in [thread.name for thread in threading.enumerate()]


def test_a_file_that_is_not_written_any_more_is_not_of_a_running_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)
    store, path = Store(str(tmp_path)), tmp_path / progress.PATH
    with recording_progress(recording(store), store) as face:
        face.executor = two_workers()
        wait_until(path.exists)
        first = json.loads(path.read_bytes())
        wait_until(lambda: json.loads(path.read_bytes())["updated"] > first["updated"])
    assert state_of(first, first["updated"] + 60) == "running"
    assert state_of(first, first["updated"] + SILENT + 1) == "silent"


def test_an_alarm_that_fails_hides_nothing_else() -> None:
    def alarms(account: Any) -> list[str]:
        raise ZeroDivisionError("no documents")

    facts = ProgressRecorder(Nothing(), "a run", [], alarms).facts()
    assert (facts.name, facts.state) == ("a run", "running")
    assert facts.alarms == ("alarms cannot be shown: ZeroDivisionError: no documents",)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [(KeyboardInterrupt(), "interrupted", None), (ValueError(f"bad {HOSTILE}"), "failed", f"bad {HOSTILE}")],
)
def test_a_run_that_ends_badly_says_so(tmp_path: Path, error: BaseException, state: str, message: str | None) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(type(error)), recording_progress(recording(store), store):
        raise error
    facts = json.loads((tmp_path / progress.PATH).read_bytes())
    assert (state_of(facts, time.time()), facts["message"]) == (state, message)
    with recording_progress(recording(store), store):
        pass
    assert not (tmp_path / progress.PATH).exists()


def test_counts_so_far_are_those_of_the_account(whole: Path, tmp_path: Path) -> None:
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.recipe import recipe as recipes
    from gristmill.pipeline.run.run import run

    kept: list[dict[str, Any]] = []
    original = ProgressRecorder.ends

    def ends(self: ProgressRecorder, node: Any) -> None:
        original(self, node)
        kept.append(self.facts().as_json())

    ProgressRecorder.ends = ends  # type: ignore[method-assign]
    try:
        summary = run(recipes.load(whole.parent / "recipe.yaml"), str(tmp_path / "again"), Where(1), Nothing())
    finally:
        ProgressRecorder.ends = original  # type: ignore[method-assign]
    stages = {stage["name"]: stage for stage in summary.record.to_json()["stages"]}
    assert kept[-1]["documents"] >= 23 and {node["state"] for node in kept[-1]["nodes"]} == {"done"}
    for name, sources in kept[-1]["stages"].items():
        for key in ("docs_in", "kept", "dropped", "quarantined"):
            assert sources["web"][key] == stages[name]["sources"]["web"][key], (name, key)
    assert set(kept[-1]["stages"]) == set(stages) and stages["web"]["kept"] == 23
    assert not (tmp_path / "again" / progress.PATH).exists()


def test_a_run_finished_while_somebody_looks(tmp_path: Path) -> None:
    out = leave(tmp_path / "out", me())
    with served(out) as server:
        asker = Asker(server)
        assert "is running" in asker.get("/").text
        made = finished(tmp_path / "other")
        (out / "logs/progress.json").unlink()
        for path in made.iterdir():
            if path.name != "logs":
                path.rename(out / path.name)
        time.sleep(2.1)
        text = asker.get("/").text
        assert "is running" not in text and 'class="status done"' in text
