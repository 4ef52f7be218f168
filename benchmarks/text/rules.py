#!/usr/bin/env python3
"""How fast the four classic filters decide on pages of text, beside DataTrove and NeMo Curator: one JSON line a result.

    python -m benchmarks.text.rules [VERDICTS.parquet] [--times N] [--datatrove PYTHON] [--nemo PYTHON] [--sample N |
      --full]

Ours: words as DataTrove cuts them, Gopher repetition, Gopher quality, C4 lines and documents, FineWeb quality, on one
thread, from an Arrow column to verdicts; every document goes through every stage. Theirs: the same filters on the same
texts, every document through every filter too, in the Python that is named. A peer takes minutes for all texts; by
default it gets a random sample of them, and its speed counts by byte.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.stages.rules.c4 import C4Lines, C4Quality
from gristmill.stages.rules.fineweb import FinewebQuality
from gristmill.stages.rules.gopher import GopherQuality, GopherRepetition
from gristmill.stages.text.signals import TextSignals

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "rule_verdicts.parquet"

DATATROVE = """
import json, sys, time
from importlib.metadata import version
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
filters = [GopherRepetitionFilter(), GopherQualityFilter(), C4QualityFilter(filter_no_terminal_punct=False), FineWebQualityFilter()]
def keep(text):
    document = Document(text=text, id="")
    return all([f.filter(document) is True for f in filters])
texts = json.load(open(sys.argv[1], encoding="utf-8"))
keep("This is a text to warm up with. It has two sentences.")
start = time.process_time()
kept = sum(keep(text) for text in texts)
print(json.dumps({"seconds": time.process_time() - start, "kept": kept, "versions": {n: version(n) for n in ("datatrove", "spacy")}}))
"""

NEMO = """
import json, sys, time
from importlib.metadata import version
from nemo_curator.stages.text.filters import heuristic
from nemo_curator.stages.text.filters.heuristic import repetition
names = ["WordCountFilter", "MeanWordLengthFilter", "SymbolsToWordsFilter", "BulletsFilter", "EllipsisFilter", "WordsWithoutAlphabetsFilter", "CommonEnglishWordsFilter",
         "RepeatedLinesFilter", "RepeatedParagraphsFilter", "RepeatedLinesByCharFilter", "RepeatedParagraphsByCharFilter", "PunctuationFilter", "BoilerPlateStringFilter"]
filters = [(getattr(heuristic, name, None) or getattr(repetition, name))() for name in names]
filters += [repetition.RepeatingTopNGramsFilter(n=n) for n in (2, 3, 4)] + [repetition.RepeatingDuplicateNGramsFilter(n=n) for n in range(5, 11)]
texts = json.load(open(sys.argv[1], encoding="utf-8"))
broke = 0
def keep(text):
    global broke
    try:
        return all([f.keep_document(f.score_document(text)) for f in filters])
    except ZeroDivisionError:  # a text without words
        broke += 1
        return False
keep("This is a text to warm up with. It has two sentences.")
start = time.process_time()
kept = sum(keep(text) for text in texts)
print(json.dumps({"seconds": time.process_time() - start, "kept": kept, "broke": broke, "versions": {"nemo-curator": version("nemo-curator")}}))
"""


class Chain:
    """Our four filters with what they measure."""

    def __init__(self) -> None:
        self.gopher = (GopherRepetition(), GopherQuality())
        self.fineweb = FinewebQuality()
        self.measure_first = TextSignals(
            units="datatrove", only=tuple(dict.fromkeys([*self.gopher[0].needs, *self.gopher[1].needs]))
        )
        self.c4 = (C4Lines(terminal_punctuation=False), C4Quality())
        self.measure_last = TextSignals(units="datatrove", only=self.fineweb.needs)

    def run(self, batch: pa.RecordBatch) -> tuple[int, dict[str, float]]:
        """How many documents stay, and seconds by stage."""
        seconds = {}
        kept = None
        for stage in (self.measure_first, *self.gopher, *self.c4, self.measure_last, self.fineweb):
            start = time.process_time()
            done = stage.apply(batch)
            batch = done.batch
            kept = done.verdict.kept if kept is None else kept & done.verdict.kept
            seconds[f"{stage.recipe_name()}{' again' if stage is self.measure_last else ''}"] = (
                time.process_time() - start
            )
        return int(kept.sum()), seconds


def peer(python: str, program: str, texts: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path, script = Path(folder) / "texts.json", Path(folder) / "run.py"
        path.write_text(json.dumps(texts), "utf-8")
        script.write_text(program, "utf-8")
        done = subprocess.run([python, str(script), str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=DATA, help="a Parquet file with a column `text`")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--datatrove", help="a Python that has datatrove and spacy")
    parser.add_argument("--nemo", help="a Python that has nemo-curator")
    parser.add_argument("--sample", type=int, default=200, help="texts that a peer gets")
    parser.add_argument("--full", action="store_true", help="a peer gets all texts")
    arguments = parser.parse_args()
    if not arguments.file.exists():
        print(f"{arguments.file} is not there: name a Parquet file with a column `text`", file=sys.stderr)
        return
    texts = pq.read_table(arguments.file, columns=["text"]).column("text").to_pylist()
    batch = pa.record_batch({"text": pa.array(texts, pa.string())})
    size = sum(len(text.encode()) for text in texts)
    pa.set_cpu_count(1)
    chain = Chain()
    chain.run(batch)
    runs = [chain.run(batch) for _ in range(arguments.times)]
    totals = [sum(seconds.values()) for _, seconds in runs]
    result = {
        "what": "four filters (Gopher repetition, Gopher quality, C4, FineWeb), MB of text a second of processor "
        "time, one thread",
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("numba", "numpy", "pyarrow")},
        "sizes": {"documents": len(texts), "bytes": size, "kept": runs[0][0]},
        "median": round(size / 1e6 / statistics.median(totals), 1),
        "spread": [round(size / 1e6 / max(totals), 1), round(size / 1e6 / min(totals), 1)],
        "seconds": {name: round(statistics.median(seconds[name] for _, seconds in runs), 3) for name in runs[0][1]},
    }
    chosen = texts if arguments.full else random.Random(0).sample(texts, min(arguments.sample, len(texts)))
    chosen_size = sum(len(text.encode()) for text in chosen)
    peers = [("datatrove", arguments.datatrove, DATATROVE), ("nemo-curator", arguments.nemo, NEMO)]
    if not any(python for _, python, _ in peers):
        print(json.dumps(result))
    for name, python, program in peers:
        if python:
            found = peer(python, program, chosen)
            speed = chosen_size / 1e6 / found["seconds"]
            about = {
                "name": name,
                "versions": found["versions"],
                "documents": len(chosen),
                "bytes": chosen_size,
                "kept": found["kept"],
                "median": round(speed, 3),
            }
            print(
                json.dumps({**result, "peer": about, "ratio": round(size / 1e6 / statistics.median(totals) / speed, 1)})
            )


if __name__ == "__main__":
    main()
