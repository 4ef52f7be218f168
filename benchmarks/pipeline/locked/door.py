"""The Python door: recipes in code, tables as sources, what a run says of itself, stages on tables, shards and judges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import gristmill
from benchmarks.pipeline.locked.inputs import documents, judge, own, texts
from benchmarks.pipeline.locked.lock import Lock
from gristmill.stages import ExactDedup, Extract, GopherQuality, MinhashDedup, Pack, TextSignals, Tokenize, Write

HTML = (
    "<html><head><title>The mill</title></head><body><nav><a href=/>Home</a></nav><article>{}</article></body></html>"
)
LAYOUT = ("passages", "read_from", "written")  # of a history: where in OUT and in inputs it stands


def take(lock: Lock) -> None:
    given = texts(lock.folder)
    rows = documents([*given[:120], *given[:15]], 1)
    pages = [HTML.format("".join(f"<p>{line}</p>" for line in text.split("\n"))) for text in given[120:160]]
    recipe = gristmill.Recipe(
        sources={
            "rows": rows,
            "table": pa.Table.from_pylist(documents(own(given[:80], "table"), 2)),
            "pages": gristmill.Source(pa.table({"html": pages, "url": [f"https://h.example/{n}" for n in range(40)]}), [Extract()]),
        },
        stages=[
            TextSignals(units="uax29"),
            GopherQuality(min_words=60),
            "exact_dedup",
            {"minhash_dedup": {"threshold": 0.6}},
            Write(),
            Tokenize(vocab_size=500),
            Pack(row_length=256),
        ],
        name="door",
        parts={"files": 1},
    )  # fmt: skip
    lock.note("yaml", recipe.yaml())
    run = recipe.run(lock.folder / "out", workers=lock.workers)
    lock.look("run", lock.folder / "out")
    of_a_run(lock, run)
    on_tables(lock, rows, pages)
    shards_and_judges(lock, given)


def of_a_run(lock: Lock, run: gristmill.Run) -> None:
    lock.note("repr", repr(run))
    lock.note("alarms", run.alarms)
    lock.note("funnel", run.funnel.data)
    kept = sorted(run.kept(columns=["uid", "text"]), key=lambda row: row["uid"])
    lock.note("kept", kept)
    gone = {stage: sorted(run.dropped(stage), key=str) for stage in ("gopher_quality", "exact_dedup", "minhash_dedup")}
    lock.note("dropped", gone)
    lock.note("one reason", sorted(run.dropped("gopher_quality", "too_few_words"), key=str))
    for stage, reason in (("gopher_quality", "too_few_words"), ("exact_dedup", None), ("pages", None)):
        view = run.stage(stage, reason, limit=3)
        lock.note(f"stage {stage}", view.data)
        lock.note(f"stage {stage}, shown", repr(view).splitlines())
    for settings in (
        ["gopher_quality.min_words=30"],
        ["gopher_quality.min_words=90", "gopher_quality.min_stop_words=5"],
    ):
        tuned = run.tune(*settings)
        lock.note(f"tune {settings}", tuned.data)
        lock.note(f"tune {settings}, shown", repr(tuned).splitlines())
    lock.note("tune where", run.tune("gopher_quality.max_words=200", where="words=90").data)
    lock.note("signal", [run.signal(name).data for name in ("words", "mean_word_length")])
    for row in [*kept[:4], *(each for of_stage in gone.values() for each in of_stage[:3])]:
        story = run.history(uid=row["uid"]).data
        signals = [passage["signals"] for passage in story["passages"]]
        lock.note(f"history/{row['uid']:016x}", {name: story[name] for name in story if name not in LAYOUT})
        lock.note(f"history/{row['uid']:016x}/signals", {name: one for each in signals for name, one in each.items()})
    lock.note("history by id", run.history(id="1-7").data["uid"])


def on_tables(lock: Lock, rows: list[dict[str, Any]], pages: list[str]) -> None:
    page = gristmill.extract(pages[0], "https://h.example/")
    lock.note(
        "extract", {"text": page.text, **{name: str(getattr(page, name, None)) for name in ("title", "language")}}
    )
    table = pa.Table.from_pylist(rows)
    for stage in (TextSignals(), GopherQuality(min_words=80), ExactDedup(), MinhashDedup()):
        needed = TextSignals()(table) if isinstance(stage, GopherQuality) else table
        lock.note(f"on a table/{stage.called}", stage(needed).to_pylist())


def shards_and_judges(lock: Lock, given: tuple[str, ...]) -> None:
    shards = gristmill.open_shards(str(lock.folder / "out/shards/256"))
    loader = gristmill.Loader(shards, batch_rows=4)
    batches = [loader.next_batch() for _ in range(6)]
    lock.note("batches", [np.asarray(batch.input_ids).tolist() for batch in batches])
    lock.note("loader", loader.state_dict())
    trained = gristmill.open_judge(judge(lock.folder, "code"))
    lock.note("judge/scores", trained.score(list(given[:20])))
    lock.note("judge/explains", trained.explain(given[0], most=5))
