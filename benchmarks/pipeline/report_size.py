"""What the report of a million documents costs: time to look at their signals and to write the page, memory, its size,
and how fast a browser opens it.

    python -m benchmarks.pipeline.report_size [--documents 1000000] [--times 1] [--sources 4] [--out FOLDER]
      [--chromium /usr/bin/chromium]

No crawl is read: signals of random documents go through the writers of a run, are decided on by its rules (FineWeb's,
31 thresholds), and `run.json`, the stages' reports and the survey are made by the code that makes them at the end of a
run. Texts are short, for the report reads almost none of them.

`--times 100` makes the run of 100 million: each part is listed a hundred times, under other names, and counted as often.
The survey reads a part once, and takes its answer again for each of the other names; the time of reading is therefore
that of `--documents`, while merging and the page are those of all.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.report.build import build_report
from gristmill.pipeline.report_data.rejects import run_samples, task_of_samples
from gristmill.pipeline.report_data.survey import Look, run_survey, survey_segments
from gristmill.pipeline.store.counts import Counts
from gristmill.pipeline.store.partitions import new_part, write_table
from gristmill.pipeline.store.records import LookTask, MapTask, Phase, RejectsSettings, Result, RuleSpec
from gristmill.pipeline.store.run_records import SegmentRules, rules_by_segment
from gristmill.pipeline.store.serialize import dumps, plain
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.pipeline.tasks.map_task import run_map_task
from gristmill.stages import C4Quality, FinewebQuality, GopherQuality, GopherRepetition, KeepLanguages

ROWS = 50_000  # of a part
COUNTS = {
    "words": (6.5, 1.2),
    "lines": (3, 1),
    "stop_words": (1.8, 0.4),
    "c4_sentences": (2.5, 0.8),
}  # mean and spread of their logarithms
ZEROS = {"c4_lorem_ipsum": 0.999, "c4_curly_brackets": 0.97}
LANGUAGES = ("en", "de", "fr", "es", "ru", "zh", "ja", "unknown")


def signals(rules: list[Any], rows: int, chance: np.random.Generator) -> dict[str, pa.Array]:
    """Random numbers of the kind that each rule's signals are."""
    made: dict[str, pa.Array] = {}
    for name in dict.fromkeys(name for rule in rules for name in rule.needs):
        if name == "language":
            made[name] = (
                pa.array(np.array(LANGUAGES)[chance.choice(len(LANGUAGES), rows, p=(0.72, *[0.04] * 7))])
                .dictionary_encode()
                .cast(pa.string())
            )
        elif name in COUNTS:
            made[name] = pa.array(np.exp(chance.normal(*COUNTS[name], rows)).astype(np.int32))
        elif name in ZEROS:
            made[name] = pa.array((chance.random(rows) > ZEROS[name]).astype(np.int32))
        elif name == "mean_word_length":
            made[name] = pa.array(chance.normal(4.9, 0.8, rows).astype(np.float32))
        elif name in ("alphabetic_word_share", "language_score", "terminal_line_share"):
            made[name] = pa.array(chance.beta(9, 1.2, rows).astype(np.float32))
        else:
            made[name] = pa.array((chance.beta(0.4, 9, rows) * (chance.random(rows) < 0.6)).astype(np.float32))
    return made


def make_run(store: Store, documents: int, times: int, sources: int, seed: int) -> None:
    """The folder of a run that read, measured and decided; it counts each document so many `times`."""
    chance = np.random.default_rng(seed)
    rules = [
        KeepLanguages(languages=["en"], thresholds={}),
        GopherRepetition(),
        GopherQuality(),
        C4Quality(),
        FinewebQuality(),
    ]
    written = tuple(RuleSpec(registry.spec_of(rule, rule.recipe_name()), {}, ()) for rule in rules)
    names = [f"source_{k}" for k in range(sources)]
    totals: dict[str, dict[str, Counts]] = {rule.called: {name: Counts() for name in names} for rule in rules}
    parts, read = [], dict.fromkeys(names, 0)
    for number in range(-(-documents // ROWS)):
        rows, source = min(ROWS, documents - number * ROWS), names[number % sources]
        columns = {"uid": pa.array(chance.integers(0, 1 << 63, rows, np.uint64))}
        columns |= {"url": pa.array([f"https://site{k % 999}.example/{number}/{k}" for k in range(rows)])}
        columns |= {"text": pa.array([f"The text of document {k} of part {number}." for k in range(rows)])}
        facts = write_table(
            store,
            f"partitions/language/part-{number:05d}.documents.parquet",
            pa.table(columns | signals(rules, rows, chance)),
        )
        part = new_part(f"part-{number:05d}-{number:012x}", source, rows, 40 * rows, facts, [])
        phase = Phase(
            f"{number:08x}", "language", (), written, documents=True, beside=False, measured_again={}, texts_kept=()
        )
        task = MapTask(
            task=f"{number:08x}",
            node="language",
            key=part.key,
            cost=1,
            phases=(phase,),
            part=part,
            rejects=RejectsSettings(0.01, True),
            out=store.address,
            source=source,
            batch_bytes=1 << 25,
        )
        [result] = run_map_task(task).phases
        for called, count in result.counts.items() if result is not None else ():
            for _ in range(times):
                totals[called][source].add(count)
        parts.append(part)
        read[source] += times * rows
    parts = [replace(part, key=f"{part.key}-{number}") for number in range(times) for part in parts]
    store.write_if_other("partitions/language/rules.json", json_bytes(plain(SegmentRules(written, tuple(parts)))))
    entries = [
        entry(
            name,
            "read",
            "Rows of Parquet files.",
            {},
            {name: Counts(docs_in=n, kept=n, seconds=n / 5e4, bytes_in=900 * n)},
        )
        for name, n in read.items()
    ]
    segments = list(rules_by_segment(store).values())
    entries += [
        entry(r.called, "rule", (type(r).__doc__ or "").split("\n")[0], r.model_dump(mode="json"), totals[r.called])
        for r in rules
    ]
    for its in entries:
        name = its["name"]
        samples = run_samples(task_of_samples(store, name, store.files(f"stages/{name}/rejects"), segments, [])).seen
        store.write_if_other(f"stages/{name}/report.json", json_bytes(its | {"samples": samples}))
    run = {
        "name": f"{documents * times:,} documents",
        "status": "done",
        "gristmill": "0",
        "recipe": {},
        "versions": {},
        "machine": {},
        "alarms": [],
        "stages": entries,
    }
    store.write_json(
        "run.json", run | {"started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:10:00Z", "seconds": 600.0}
    )


def entry(name: str, kind: str, about: str, settings: dict[str, Any], sources: dict[str, Counts]) -> dict[str, Any]:
    whole = Counts()
    for its in sources.values():
        whole.add(its)
    plain = {source: its.in_record().to_json() for source, its in sources.items()}
    return {
        "name": name,
        "stage": name,
        "kind": kind,
        "about": about,
        "settings": settings,
        "peak_memory": 0,
        "sources": plain,
    } | whole.in_record().to_json()


def reading_once() -> Look:
    """Carries out a survey in this process. Parts of the same files are read once; the sample has no document twice."""
    answers: dict[object, Result] = {}

    def answer(task: LookTask) -> Result:
        if "parts" not in task.given:
            return run_survey(task)
        key = task.step, dumps(task.given["question"]), tuple(part.documents for part in task.given["parts"])
        if key in answers:
            return Result() if task.step == "sample" else answers[key]
        return answers.setdefault(key, run_survey(task))

    return lambda tasks: [answer(task) for task in tasks]


def peak_memory() -> int:
    """The largest memory of this process since `forget_peak`, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def opened(path: Path, chromium: str, times: int = 5) -> list[float]:
    """Seconds from navigation to the end of load, with all sliders ready."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = []
        for _ in range(times):
            page = browser.new_page()
            start = time.perf_counter()
            page.goto(path.as_uri(), wait_until="load")
            page.wait_for_function("!document.querySelector('input[data-cut]').disabled")
            found.append(time.perf_counter() - start)
            page.close()
        browser.close()
    return found


def main() -> None:
    wanted = argparse.ArgumentParser(description=__doc__)
    wanted.add_argument("--documents", type=int, default=1_000_000)
    wanted.add_argument("--times", type=int, default=1, help="as often is each document counted")
    wanted.add_argument("--sources", type=int, default=4)
    wanted.add_argument("--out", type=Path, default=None)
    wanted.add_argument("--chromium", default="/usr/bin/chromium")
    asked = wanted.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = Store(str(asked.out or temporary))
        make_run(store, asked.documents, asked.times, asked.sources, seed=0)
        base = {
            "machine": platform.processor() or platform.machine(),
            "versions": {"pyarrow": pa.__version__, "numpy": np.__version__},
            "sizes": {"documents": asked.documents * asked.times, "sources": asked.sources},
        }
        forget_peak()
        start = time.perf_counter()
        survey_segments(store, look=reading_once())
        looked = time.perf_counter()
        text = build_report(RunFolder(store.address)).encode("utf-8", "replace")
        store.write("report.html", text)
        ended = time.perf_counter()
        for what, value, unit in (
            ("signals surveyed", round(looked - start, 3), "s"),
            ("report written, survey included", round(ended - start, 3), "s"),
            ("report written", round(ended - looked, 3), "s"),
            ("peak memory", peak_memory(), "bytes"),
            ("report.html", len(text), "bytes"),
        ):
            print(json.dumps({"what": what, **base, "median": value, "unit": unit}))
        if Path(asked.chromium).exists():
            seconds = opened(Path(store.address) / "report.html", asked.chromium)
            print(json.dumps({"what": "opened in Chromium", **base, "median": round(float(np.median(seconds)), 3),
            "spread": [round(min(seconds), 3), round(max(seconds), 3)], "unit": "s"}))  # fmt: skip


if __name__ == "__main__":
    main()
