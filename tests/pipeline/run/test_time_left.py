"""The time left of a run, foreseen from logs of real runs, and from any events at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gristmill.pipeline.engine.cluster import Where
from gristmill.pipeline.plan.plan import make_plan
from gristmill.pipeline.progress.events import Event, NodeShape, StageShape, replayed, shape_of
from gristmill.pipeline.progress.progress import Quiet
from gristmill.pipeline.progress.progress_file import OnRecord
from gristmill.pipeline.progress.time_left import TimeLeft, time_left
from gristmill.pipeline.progress.usual import Known, Usual
from gristmill.pipeline.recipe import recipe as recipes
from gristmill.pipeline.run.earlier import known_before
from gristmill.pipeline.run.run import run
from gristmill.pipeline.store.storage import Store
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import save, shared_texts

LOGS = Path(__file__).parent / "time_left_logs"  # as `benchmarks.pipeline.time_left --logs` keeps them, thinned
# By log, the error of the total that is allowed at 10, 25, 50 and 75 % of the run.
ALLOWED = {
    "demo": (0.2, 0.25, 0.1, 0.1),
    "dedup": (0.1, 0.1, 0.1, 0.1),
    "extract": (0.3, 0.25, 0.1, 0.1),
    "pack": (0.2, 0.2, 0.2, 0.2),
    "real": (0.2, 0.2, 0.1, 0.1),  # the demo's recipe on pages of the web
}


def log_of(name: str) -> tuple[list[NodeShape], list[Event], float]:
    rows = [json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text().splitlines()]
    assert rows[0]["workers"] == 2
    return [NodeShape.from_plain(row) for row in rows[0]["nodes"]], replayed(rows[1:-1]), rows[-1]["seconds"]


def foreseen(name: str, share: float) -> float:
    """The total, as it is foreseen when this share of the run is over, over the true one."""
    nodes, events, seconds = log_of(name)
    seen = [event for event in events if event.at <= share * seconds]
    left = time_left(nodes, seen, share * seconds, workers=2)
    assert left is not None and len(events) > 40
    return (share * seconds + left) / seconds


@pytest.mark.parametrize("name", ALLOWED)
def test_runs_that_were_logged_end_about_when_they_were_said_to(name: str) -> None:
    errors = [abs(foreseen(name, share) - 1) for share in (0.1, 0.25, 0.5, 0.75)]
    assert [error <= allowed for error, allowed in zip(errors, ALLOWED[name], strict=True)] == [True] * 4, errors


def test_asking_changes_nothing() -> None:
    nodes, events, seconds = log_of("demo")
    asked, quiet = TimeLeft(nodes), TimeLeft(nodes)
    for event in events:
        asked.take(event)
        quiet.take(event)
        asked.left(event.at)
        asked.shares()
    assert asked.left(seconds) == quiet.left(seconds)
    assert set(asked.shares().values()) == {1.0} and len(asked.shares()) == len(nodes) > 8
    assert 0 <= (quiet.left(seconds) or 0) < 5


def test_nothing_is_said_before_anything_has_begun() -> None:
    nodes, events, _ = log_of("pack")
    assert time_left(nodes, [], 1.0) is None
    assert time_left(nodes, events[:1], 1.0) is not None
    assert time_left(nodes, events[:1], 60.0) is None  # workers have not come: kernels are compiled, or a queue is long


def test_two_workers_take_half_of_the_time_of_one() -> None:
    leg = NodeShape("a", (), True, (StageShape("a", "jsonl"), StageShape("slow", "slow")))
    done = [Event(10.0 + n, "finished", "a", "leg", tasks=1, size=100, seconds=1.0, documents=10) for n in range(20)]
    lefts = []
    for workers in (1, 2):
        begun = [Event(0.0, "began", "a", tasks=100), Event(0.0, "expected", "a", "leg", tasks=100, size=10_000)]
        connected = [Event(10.0, "connected", workers=workers)]
        lefts.append(time_left([leg], [*begun, *connected, *done], 10.0 + 20 / workers) or 0)
    assert lefts[0] == pytest.approx(80, rel=0.1) and lefts[1] == pytest.approx(lefts[0] / 2, rel=0.15)


def test_before_workers_answer_as_many_are_expected_as_were_asked_for() -> None:
    leg = NodeShape("a", (), True, (StageShape("a", "warc"), StageShape("extract", "extract/gristmill")))
    begun = [Event(0.0, "began", "a", tasks=10), Event(0.0, "expected", "a", "leg", tasks=10, size=10**10)]
    one, four = (time_left([leg], begun, 1.0, workers=workers) or 0 for workers in (1, 4))
    assert one == pytest.approx(10**4 * 0.044 / 0.95 + 10**6 * 0.0004 / 0.95, rel=0.02)  # a page in 10 kB of a WARC
    assert four == pytest.approx(one / 4, rel=0.02)
    assert (Where(3).expected, Where(3, scheduler="tcp://x:1").expected, Where(scheduler="tcp://x:1").expected) == (
        3,
        3,
        1,
    )
    recorded = OnRecord(Quiet(), "a", [], lambda _: [], workers=4)
    assert recorded.time_left.workers == 4


def test_what_an_earlier_run_took_counts_more_than_what_is_usual() -> None:
    slow = NodeShape("slow", ("a",), False, (StageShape("slow", "slow"),))
    leg = NodeShape("a", (), True, (StageShape("a", "jsonl"),))
    events = [
        Event(0.0, "began", "a", tasks=1),
        Event(0.0, "expected", "a", "leg", tasks=1, size=1000),
        Event(0.1, "connected", workers=1),
        Event(1.0, "finished", "a", "leg", tasks=1, size=1000, seconds=0.9, documents=1000, text_bytes=1000),
        Event(1.0, "ended", "a"),
    ]
    known = Known({"slow": Usual(per_document=0.1, whole=True)})
    without, with_known = (time_left([leg, slow], events, 1.0, each) or 0 for each in (None, known))
    assert with_known - without > 80 and Known.from_plain(known.plain()) == known


def test_stages_of_the_run_before_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    shared_texts(tmp_path / "in", files=6, own=30, shared=3)
    text = "name: a\nsources: {a: {jsonl: {path: in}}}\nstages: [exact_dedup, {sample: {rate: 0.5}}, write]\n"
    recipe = recipes.load(save(tmp_path / "a.yaml", text))
    store = Store(str(tmp_path / "out"))
    plan = make_plan(recipe)
    assert known_before(plan, store) is None
    run(recipe, str(tmp_path / "out"), Where(1), Quiet())
    known = known_before(plan, store)
    assert known is not None and known.stages["exact_dedup"].kept == pytest.approx(183 / 198)
    assert 0.3 < known.stages["sample"].kept < 0.7
    other = recipes.load(save(tmp_path / "b.yaml", text.replace("0.5", "0.9")))
    changed = known_before(make_plan(other), store)
    assert changed is not None and "sample" not in changed.stages and "exact_dedup" in changed.stages


NODES = [
    NodeShape("a", (), True, (StageShape("a", "warc"), StageShape("x", "extract/mill")), (StageShape("r", "rule"),)),
    NodeShape("g", ("a",), False, (StageShape("g", "minhash_dedup"),), (), True),
    NodeShape("t", ("g",), False, (StageShape("t", "tokenize/train"),), (), True),
    NodeShape("w", ("t",), False, (StageShape("w", "write"),)),
]
NUMBERS = st.integers(0, 10**12)
EVENTS: st.SearchStrategy[Event] = st.builds(
    Event,
    at=st.floats(0, 1e6),
    what=st.sampled_from(["connected", "expected", "began", "finished", "ended"]),
    node=st.sampled_from([node.name for node in NODES]),
    kind=st.sampled_from(["leg", "decide", "map", "reduce", "drop", "combine", "mark"]),
    round=st.integers(0, 30),
    tasks=st.integers(0, 1000),
    size=NUMBERS,
    seconds=st.floats(0, 1e6),
    documents=NUMBERS,
    text_bytes=NUMBERS,
    workers=st.integers(0, 1000),
    anew=st.booleans(),
)


@given(st.lists(EVENTS, max_size=30), st.floats(0, 1e6))
def test_whatever_happens_there_is_an_answer(events: list[Event], now: float) -> None:
    seen = TimeLeft(NODES)
    for event in events:
        seen.take(event)
        left = seen.left(now)
        assert left is None or (left >= 0 and math.isfinite(left))
    shares: dict[str, Any] = dict(seen.shares())
    assert list(shares) == ["a", "g", "t", "w"] and all(0 <= share <= 1 for share in shares.values())
    assert [Event(**event.plain()) for event in events] == events


def test_shapes_name_the_engine_of_a_stage(tmp_path: Path) -> None:
    text = "name: a\nsources: {a: {html: {path: in}}}\nstages: [extract: {engine: trafilatura}, exact_dedup, write]\n"
    (tmp_path / "in").mkdir()
    shapes = [shape_of(node) for node in make_plan(recipes.load(save(tmp_path / "a.yaml", text))).nodes]
    assert [(shape.name, shape.reads, shape.is_global) for shape in shapes] == [
        ("a", True, False), ("exact_dedup", False, True), ("write", False, False),
    ]  # fmt: skip
    assert [stage.stage for stage in shapes[0].works] == ["html", "extract/trafilatura"]
    assert [NodeShape.from_plain(json.loads(json.dumps(shape.plain()))) for shape in shapes] == shapes
