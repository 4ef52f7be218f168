#!/usr/bin/env python3
"""Bloom, paragraph and url dedup: speed on one core, and beside it what was dropped by mistake and what was missed. One
JSON line a result.

    python -m benchmarks.dedup.bloom [--documents N] [--keys N] [--dolma PYTHON] [--datatrove PYTHON]

The text is made from a seed: documents of five lines of words drawn from the vocabulary of a small list; a tenth of the
documents are copies of earlier ones, and of the lines of the others a tenth is copied from earlier ones. So it is known
what is new and what is not. `false_drops` are lines (documents) that stood nowhere before and were removed, `misses`
copies that were kept. Ours runs from a column of text in memory to new text; with `read` also from the JSONL files that
dolma reads. dolma (its Rust deduper) reads and writes JSONL files; DataTrove's filter is given its documents in memory.
Each in a process of its own, the kernels compiled before, one thread; seconds are CPU seconds.
"""

import argparse
import gzip
import json
import math
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

import numpy as np

SEED = 11
REPEATS = 5
FALSE_POSITIVES = 0.01

DOLMA = """
import importlib.util, json, sys, time
from pathlib import Path
folder = Path(sys.argv[1]); config = json.loads(sys.argv[2])
found = importlib.util.find_spec("dolma").submodule_search_locations[0]
library = next(Path(found).glob("dolma.*.so"))
spec = importlib.util.spec_from_file_location("dolma", library)
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
started = time.process_time()
module.deduper_entrypoint(json.dumps(config))
print(json.dumps({"seconds": time.process_time() - started}))
"""

DATATROVE = """
import json, sys, time
from datatrove.data import Document
from datatrove.pipeline.dedup.bloom_filter import BloomFilterConfig, SingleBloomFilter
texts = [json.loads(line)["text"] for line in open(sys.argv[1])]
given = json.loads(sys.argv[2])
rule = SingleBloomFilter(sys.argv[3], BloomFilterConfig(m_bytes=given["m_bytes"], k=7))
rule.step(Document(text="warm the tokeniser up", id="-"))
started = time.process_time()
kept = [rule.step(Document(text=text, id=str(i))) for i, text in enumerate(texts)]
print(json.dumps({"seconds": time.process_time() - started, "kept": [bool(k) for k in kept], "k": rule.config.k}))
"""


def made(count: int) -> tuple[list[str], list[bool], list[list[bool]]]:
    """Texts, which are copies of an earlier one, and which of their lines stood before."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(30_000)]
    texts: list[str] = []
    lines: list[str] = []
    copies, repeats = [], []
    for _ in range(count):
        if texts and rng.random() < 0.1:
            text = rng.choice(texts)
            texts.append(text)
            copies.append(True)
            repeats.append([True] * 5)
            continue
        chosen = [bool(lines) and rng.random() < 0.1 for _ in range(5)]
        own = [
            rng.choice(lines) if copied else " ".join(rng.choices(words, k=rng.randint(20, 180))) for copied in chosen
        ]
        lines += own
        texts.append("\n".join(own))
        copies.append(False)
        repeats.append(chosen)
    return texts, copies, repeats


def child(task: str, **given: object) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dedup.bloom", "--child", json.dumps({"task": task, **given})],
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def judged(removed: list[list[bool]], repeats: list[list[bool]]) -> dict:
    pairs = [(r, w) for mine, wanted in zip(removed, repeats, strict=True) for r, w in zip(mine, wanted, strict=True)]
    return {
        "units": len(pairs),
        "false_drops": sum(r and not w for r, w in pairs),
        "misses": sum(w and not r for r, w in pairs),
    }


def whole_documents(removed: list[bool], repeats: list[list[bool]]) -> dict:
    """A document is a copy if all of its lines are: then all its n-grams were met."""
    wanted = [all(lines) for lines in repeats]
    return {
        "units": len(removed),
        "false_drops": sum(r and not any(lines) for r, lines in zip(removed, repeats, strict=True)),
        "misses": sum(w and not r for r, w in zip(removed, wanted, strict=True)),
    }


# --- ours -------------------------------------------------------------------------------------------------------------


def ours(stage: str, settings: dict, folder: str, read: bool) -> dict:
    import pyarrow as pa
    import pyarrow.json as pj

    from gristmill import stages

    rule = getattr(stages, stage)(**settings)
    pa.set_cpu_count(1)

    class Straight:
        """A flow of one part and one bucket: what the stage itself costs."""

        def __init__(self) -> None:
            self.bytes = 0

        def rows(self, tables: list, home: bool = False) -> pa.Table:
            table = pa.concat_tables(tables)
            if home:
                table = table.append_column("home", pa.array(np.zeros(len(table), np.uint64)))
            self.bytes += table.nbytes if home else 0
            return table

        def map(self, function, docs, *, columns, by, fan=1):
            return self.rows(
                [function(pa.Table.from_batches([b])) for b in docs.table.select(columns).to_batches(8192)], home=True
            ), by

        def exchange(self, function, rows, *, by="home"):
            return function(rows[0]), by

        def join(self, function, rows, docs, *, columns, by="home"):
            return self.rows([function(rows[0], docs.table.select(columns))], home=True), by

        def scan(self, function, rows, *, by="home"):
            order = np.argsort(rows[0][rows[1]].to_numpy(), kind="stable")
            return pa.concat_tables(list(function(iter([rows[0].take(pa.array(order))])))), by

        def rewrite(self, function, rows, docs, *, columns):
            return function(rows[0], docs.table.select(columns))

        def drop(self, docs, rows):
            return rows[0]

    class Documents:
        def __init__(self, table: pa.Table) -> None:
            self.table, self.rows, self.text_bytes = table, len(table), table["text"].nbytes

    def documents(count: int | None = None) -> pa.Table:
        parts = [pj.read_json(path) for path in sorted(Path(folder, "documents").iterdir())]
        table = pa.concat_tables(parts).slice(0, count).select(["id", "text", "url"])
        none = pa.nulls(len(table), pa.string())
        table = table.append_column("uid", pa.array(np.arange(len(table), dtype=np.uint64)))
        return table.append_column("source", pa.array(["a"] * len(table)).dictionary_encode()).append_column(
            "date", none
        )

    rule.run(Documents(documents(50)), Straight())
    table, times = documents(), []
    for _ in range(REPEATS):
        flow = Straight()
        started = time.process_time()
        if read:
            table = documents()
        out = rule.run(Documents(table), flow)
        times.append(time.process_time() - started)
    seconds = statistics.median(times)
    found = {
        "seconds": seconds,
        "spread": max(times) - min(times),
        "row_bytes_a_document": round(flow.bytes / len(table), 1),
    }
    if "text" in out.column_names:
        found |= {"texts": out["text"].to_pylist(), "dropped": [r is not None for r in out["reason"].to_pylist()]}
    return found


def removed_lines(texts: list[str], after: list[str], dropped: list[bool]) -> list[list[bool]]:
    out = []
    for text, left, goes in zip(texts, after, dropped, strict=True):
        rest, mine = left.split("\n") if left else [], []
        for line in text.split("\n"):
            stays = not goes and bool(rest) and rest[0] == line
            rest = rest[1:] if stays else rest
            mine.append(not stays)
        out.append(mine)
    return out


# --- the filter alone -------------------------------------------------------------------------------------------------


def filter_speed(keys: int, layout: str) -> dict:
    """Nanoseconds a key, put in and sought, and errors counted; `plain` has its bits anywhere in the filter."""
    import numba

    from gristmill.kernels.duplicates import bloom

    shape = bloom.shape_for(keys, FALSE_POSITIVES)
    one = np.array([0, 1])

    @numba.njit(nogil=True)
    def plain_walk(words, probes, keys, put):
        met = 0
        bits = np.uint64(len(words) * 64)
        for key in keys:
            step = (key * np.uint64(bloom.STEP)) | np.uint64(1)
            there, at = True, key
            for _ in range(probes):
                bit = (at >> np.uint64(32)) * (bits >> np.uint64(6)) >> np.uint64(32)
                mask = np.uint64(1) << (at >> np.uint64(26) & np.uint64(63))
                there &= words[bit] & mask != 0
                if put:
                    words[bit] |= mask
                at += step
            met += there
        return met

    def walk(words, chosen, put):
        if layout == "plain":
            return plain_walk(words, probes, chosen, put)
        units = np.array([0, len(chosen)]) if not put else np.append(np.arange(0, len(chosen), 50), len(chosen))
        every = np.arange(len(units)) if put else one
        return bloom.walk(
            words, probes, chosen, units, every, 2.0 if put else -1.0, np.full(len(every) - 1, 2.0)
        ).met.sum()

    probes, words = shape.probes, bloom.empty_filter(shape)
    if layout == "plain":
        probes = 7
        words = np.zeros(int(keys * 9.585 / 64) + 1, np.uint64)
    walk(words[:64].copy(), np.arange(100, dtype=np.uint64), True)
    words += 0  # its pages are there before the clock runs
    rng = np.random.default_rng(SEED)
    put = rng.integers(0, 2**64, keys, dtype=np.uint64)
    started = time.process_time()
    for begin in range(0, keys, 1 << 20):
        walk(words, put[begin : begin + (1 << 20)], True)
    middle = time.process_time()
    others = rng.integers(0, 2**64, min(keys, 1 << 22), dtype=np.uint64)
    sought = time.process_time()
    met = walk(words, others, False)
    ended = time.process_time()
    return {
        "bytes": words.nbytes, "bits_a_key": words.nbytes * 8 / keys, "put_ns": (middle - started) / keys * 1e9,
        "seek_ns": (ended - sought) / len(others) * 1e9, "false_positives": met / len(others),
        "promised": FALSE_POSITIVES,
    }  # fmt: skip


def report(what: str, found: dict, size: int | None = None, **more: object) -> None:
    shown = {name: value for name, value in found.items() if name not in ("texts", "dropped", "kept")}
    if size:
        shown["mb_a_second"] = size / 1e6 / found["seconds"]
    facts = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in {**shown, **more}.items()}
    print(json.dumps({"what": what, **rounded, "machine": facts, "numba": version("numba"), "seed": SEED}), flush=True)


def rivals(
    args: argparse.Namespace, folder: Path, texts: list[str], copies: list[bool], repeats: list[list[bool]], mine: dict
) -> None:
    size = sum(len(text) for text in texts)
    grams = sum(max(0, len(line.split()) - 12) for text in texts for line in text.split("\n"))
    if args.dolma:
        config = {
            "documents": [str(folder / "documents" / "*.jsonl.gz")],
            "work_dir": {"input": str(folder / "work"), "output": str(folder / "work2")},
            "dedupe": {
                "name": "bff", "skip_empty": True, "min_length": 0, "min_words": 0, "num_partitions": 1,
                "partition_index": 0,
                "file_partition": False, "document_dir": "documents",
                "paragraphs": {
                    "attribute_name": "bff", "paragraph_separator": "\n",
                    "by_ngram": {"ngram_length": 13, "stride": 0, "overlap_threshold": 0.8,
                    "skip_short_paragraphs": True},
                },
            },
            "bloom_filter": {
                "file": str(folder / "bloom.bin"), "size_in_bytes": 0, "read_only": False, "estimated_doc_count": grams,
                "desired_false_positive_rate": FALSE_POSITIVES,
            },
            "processes": 1, "is_s3_volume": False, "compression": {"input": None, "output": None},
        }  # fmt: skip
        (folder / "work").mkdir(), (folder / "work2").mkdir()
        asked = [args.dolma, "-c", DOLMA, str(folder), json.dumps(config)]
        done = subprocess.run(asked, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        removed = []
        for path in sorted((folder / "attributes" / "bff").iterdir()):
            with gzip.open(path, "rt") as file:
                for line in file:
                    spans = json.loads(line)["attributes"].get("bff", [])
                    removed.append({(a, b) for a, b, score in spans if score >= 1})
        marks = []
        for text, spans in zip(texts, removed, strict=True):
            at, here = 0, []
            for line in text.split("\n"):
                here.append(any(a <= at and b >= at + len(line) for a, b in spans))
                at += len(line) + 1
            marks.append(here)
        report(
            "dolma dedupe, lines by 13-grams, files to files",
            found,
            size,
            ratio=found["seconds"] / mine["read"],
            **judged(marks, repeats),
        )
    if args.datatrove:
        few = texts[: max(200, len(texts) // 20)]
        path = folder / "few.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in few))
        need = sum(max(0, len(text.split()) - 12) for text in few)
        bits = 2 ** math.ceil(
            math.log2(need * 9.6)
        )  # it takes m_bytes for a mask of bits: 2**n - 1 works, 2**n leaves two places
        for m_bytes in (bits - 1, bits):
            given = json.dumps({"m_bytes": m_bytes})
            done = subprocess.run(
                [args.datatrove, "-c", DATATROVE, str(path), given, str(folder)], stdout=subprocess.PIPE, check=True
            )
            found = json.loads(done.stdout.splitlines()[-1])
            goes = [not k for k in found["kept"]]
            part = sum(len(text) for text in few)
            ratio = found["seconds"] / part / (mine["documents"] / size)
            told = whole_documents(goes, repeats[: len(few)])
            report(f"datatrove SingleBloomFilter, documents, m_bytes {m_bytes}", found, part, ratio=ratio, **told)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=40_000)
    parser.add_argument("--keys", type=int, default=100_000_000)
    parser.add_argument("--dolma")
    parser.add_argument("--datatrove")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        given = json.loads(args.child)
        print(json.dumps({"ours": ours, "filter": filter_speed}[given.pop("task")](**given)))
        return
    for keys in (1_000_000, args.keys):
        for layout in ("blocked", "plain"):
            report(f"filter, {layout}, {keys:,} keys", child("filter", keys=keys, layout=layout))
    texts, copies, repeats = made(args.documents)
    size = sum(len(text) for text in texts)
    rng = random.Random(SEED)
    urls = [
        f"https://www.site{rng.randrange(5000)}.com/2024/a-page-{rng.randrange(100)}/?id={i % 9}&utm_source=mail&x={i % 3}"
        for i in range(len(texts))
    ]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "documents").mkdir()
        with gzip.open(folder / "documents" / "all.jsonl.gz", "wt", compresslevel=1) as file:
            for i, (text, url) in enumerate(zip(texts, urls, strict=True)):
                file.write(json.dumps({"id": str(i), "source": "made", "text": text, "url": url}) + "\n")
        mine = {}
        for name, read in (("memory", False), ("read", True)):
            found = child("ours", stage="BloomDedup", settings={"remove": "lines"}, folder=temporary, read=read)
            mine[name] = found["seconds"]
            told = judged(removed_lines(texts, found["texts"], found["dropped"]), repeats)
            report(f"ours, bloom_dedup lines, {'files' if read else 'memory'} to memory", found, size, **told)
        found = child("ours", stage="BloomDedup", settings={"remove": "both"}, folder=temporary, read=False)
        told = judged(removed_lines(texts, found["texts"], found["dropped"]), repeats)
        told["new_lines_of_dropped_documents"] = told.pop("false_drops")  # that is what the rule for documents means
        report("ours, bloom_dedup both", found, size, **told)
        found = child("ours", stage="BloomDedup", settings={"remove": "documents"}, folder=temporary, read=False)
        mine["documents"] = found["seconds"]
        report("ours, bloom_dedup documents", found, size, **whole_documents(found["dropped"], repeats))
        found = child("ours", stage="ParagraphDedup", settings={"prefer": []}, folder=temporary, read=False)
        report(
            "ours, paragraph_dedup",
            found,
            size,
            **judged(removed_lines(texts, found["texts"], found["dropped"]), repeats),
        )
        found = child("ours", stage="UrlDedup", settings={"prefer": []}, folder=temporary, read=False)
        report("ours, url_dedup", found, urls_a_second=len(urls) / found["seconds"])
        rivals(args, folder, texts, copies, repeats, mine)


if __name__ == "__main__":
    main()
