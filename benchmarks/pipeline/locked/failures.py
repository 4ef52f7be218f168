"""Exit codes, what is said of mistakes, and the folder of a run that failed: what is on record, and how it goes on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from benchmarks.pipeline.locked.inputs import crawl, documents, texts, write_source
from benchmarks.pipeline.locked.lock import Lock, lines

OWN = '''
from pathlib import Path

from gristmill.stages import Annotate, Rewrite, Rule, Verdict
from gristmill.stages.contract import CannotRun
import pyarrow as pa


class Fussy(Annotate):
    """Raises on one document."""

    adds = ("letters",)
    needs = ("text",)

    def annotate(self, batch):
        texts = batch.column("text").to_pylist()
        if any("this one breaks it" in text for text in texts):
            raise ValueError("it broke")
        return {"letters": pa.array([len(text) for text in texts], pa.int64())}


class Switched(Annotate):
    """Cannot run until a file is there."""

    file: str
    adds = ("on",)
    needs = ("text",)

    def annotate(self, batch):
        if not Path(self.file).exists():
            raise CannotRun(f"there is no {Path(self.file).name}")
        return {"on": pa.array([1] * len(batch), pa.int64())}
'''
RECIPE = """
name: fails
parts: {files: 1}
prices: {core_hour: 1000000.0}
sources: {a: {jsonl: {path: HERE/in}}}
stages:
  - text_signals
  - gopher_quality: {min_words: 30}
  - HERE/own.py:Fussy
  - exact_dedup
  - HERE/own.py:Switched: {file: HERE/switch}
  - write
"""


def take(lock: Lock) -> None:
    here = lock.folder
    rows = documents([*texts(here)[:100], f"{texts(here)[0]} this one breaks it", *texts(here)[:9]], 1)
    write_source(here / "in", rows, "jsonl", 3)
    (here / "own.py").write_text(OWN)
    recipe = lock.recipe("fails", RECIPE)
    failed_run(lock, recipe, here / "out/fails")
    mistakes(lock, recipe)
    alarms_and_budgets(lock)
    damage(lock)


def failed_run(lock: Lock, recipe: Path, out: Path) -> None:
    run = ["run", str(recipe), "--out", str(out), "--workers", str(lock.workers)]
    lock.command("cannot run", *run, expected=1, complains=False)
    record = json.loads((out / "run.json").read_text())
    lock.note("cannot run/status", [record["status"], record["error"]])
    lock.look("failed", out)
    (lock.folder / "switch").write_text("")
    lock.command("goes on", *run, says=False)
    lock.look("went on", out)


def mistakes(lock: Lock, recipe: Path) -> None:
    text, out = recipe.read_text(), str(lock.folder / "out/none")
    for name, wrong in (
        ("unknown stage", text.replace("exact_dedup", "exact_dedupe")),
        ("unknown setting", text.replace("min_words", "min_word")),
        ("wrong value", text.replace("min_words: 30", "min_words: many")),
        ("no input", text.replace(f"{lock.folder}/in", f"{lock.folder}/nowhere")),
        ("no signal", text.replace("- exact_dedup", "- keep_where: {signal: nobody_measures, at_least: 1}")),
        ("no yaml", "name: [\n"),
    ):
        path = lock.folder / f"{name.replace(' ', '_')}.yaml"
        path.write_text(wrong)
        lock.command(name, "run", str(path), "--out", out, expected=None)
    lock.command("no recipe", "run", "nowhere.yaml", expected=None)
    done = str(lock.folder / "out/fails")
    lock.command("no run", "inspect", str(lock.folder / "in"), expected=None)
    lock.command("no such stage", "inspect", done, "minhash", expected=None)
    lock.command("no such document", "inspect", done, "--uid", "0000000000000001", expected=2, complains=False)
    lock.command("no such threshold", "tune", done, "gopher_quality.min_wards=1", expected=None)
    lock.command("no shards", "inspect", done, "--text", "anything at all", expected=None)
    lock.command("no such format", "export", done, str(lock.folder / "x"), "--to", "nothing", expected=None)
    lock.command("nothing to forget", "forget", done, expected=None)


def alarms_and_budgets(lock: Lock) -> None:
    """Most documents go, so that an alarm sounds; and a run costs more than it may."""
    text = RECIPE.replace("min_words: 30", "min_words: 300")
    recipe = str(lock.recipe("alarms", text))
    run = ["run", recipe, "--out", str(lock.folder / "out/alarms"), "--workers", str(lock.workers)]
    lock.command("over budget", *run, "--budget", "0.000001", expected=4, says=False, complains=False)
    lock.command("strict", *run, "--strict", expected=3, says=False, complains=False)
    lock.look("with alarms", lock.folder / "out/alarms")
    lock.command("verify", "maintain", "verify", str(lock.folder / "out/alarms"), says=False)
    file = sorted((lock.folder / "out/alarms/write").glob("*.parquet"))[0]
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    lock.command(
        "verify a flipped bit",
        "maintain",
        "verify",
        str(lock.folder / "out/alarms"),
        expected=1,
        says=False,
        complains=False,
    )


def damage(lock: Lock) -> None:
    """Lines that are no JSON, a file that is cut off, a record that is too large, a text without a charset."""
    here = lock.folder / "damaged"
    whole = "".join(json.dumps({"text": text}) + "\n" for text in texts(lock.folder)[:40])
    lines(here / "a.jsonl", [{"text": "a line of words that is whole"}, {"no": "text"}, {"text": None}, {"text": 7}])
    (here / "b.jsonl").write_text('{"text": "cut off\n{"text": "whole again"}\nnot json at all\n')
    (here / "c.jsonl.gz").write_bytes(gzip.compress(whole.encode(), mtime=0)[:-200])
    (here / "d.jsonl").write_bytes(b'{"text": "\xff\xfe broken"}\n{"text": "' + b"x" * 5000 + b'"}\n')
    (here / "pages").mkdir()
    raw = sorted(crawl(lock.folder).glob("*.warc.gz"))[0].read_bytes()
    (here / "pages/cut.warc.gz").write_bytes(raw[: len(raw) // 3])
    (here / "pages/holes.warc.gz").write_bytes(raw[: len(raw) // 4] + bytes(999) + raw[len(raw) // 4 + 999 :])
    (here / "pages/empty.warc.gz").write_bytes(b"")
    recipe = lock.recipe("damaged", """
name: damaged
parts: {files: 1}
sources:
  rows: {jsonl: {path: HERE/damaged/*.jsonl*, max_record_bytes: 4000}}
  pages: {warc: {path: HERE/damaged/pages}, stages: [extract]}
stages: [exact_dedup, write]
""")  # fmt: skip
    lock.run("damaged", recipe)
