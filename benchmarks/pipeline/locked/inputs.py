"""Inputs that groups share: the demo's crawl, texts of its pages, and tiny judges that are trained on them."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import gristmill
from benchmarks.pipeline.locked.lock import lines

TEXTS = 400
KINDS: dict[str, Callable[[str], float]] = {
    "code": lambda text: text.count(">>>") + text.count("()"),
    "math": lambda text: sum(map(str.isdigit, text)) / (len(text) + 1),
    "edu_of_one": len,
    "edu_of_other": lambda text: text.count(" the ") / (len(text) + 1),
    "oh25_eli5": lambda text: text.count(",") / (len(text) + 1),
}


@cache
def crawl(folder: Path) -> Path:
    """The demo's crawl: two files."""
    return gristmill.demo_crawl(folder / "crawl")


@cache
def texts(folder: Path) -> tuple[str, ...]:
    """Of its pages."""
    found = []
    for path in sorted(crawl(folder).glob("*.warc.gz")):
        with path.open("rb") as file:
            found += pages_in(file, path)
    extracted = (gristmill.extract(page, url) for url, page in found)
    return tuple(sorted(text for text in (each.text for each in extracted) if text))[:TEXTS]


def pages_in(file: Any, path: Path) -> list[tuple[str, bytes]]:
    from gristmill.stages import Warc
    from gristmill.stages.stage import Origin

    rows: list[tuple[str, bytes]] = []
    for reading in Warc(path=str(path)).read(file, Origin("crawl", path.name, path.stat().st_size)):
        rows += [(row["url"], row["html"]) for row in reading.documents.to_pylist()]
    return rows


def own(given: tuple[str, ...], name: str) -> list[str]:
    """The same words in an order of this source's own, line by line, so that no source repeats another."""
    chance = random.Random(name)
    return [
        "\n".join(" ".join(chance.sample(words, len(words))) for words in map(str.split, text.split("\n")))
        for text in given
    ]


def documents(given: list[str], seed: int = 0) -> list[dict[str, Any]]:
    """With what labelled corpora know of their documents."""
    chance = random.Random(seed)
    return [
        {
            "id": f"{seed}-{number}",
            "text": text,
            "url": f"https://{chance.choice(('www', 'a', 'b'))}.{chance.choice('pqrst')}.example/{number % 150}",
            "date": f"20{chance.randint(10, 24)}-0{chance.randint(1, 9)}-11",
            "topic": chance.choice(("science", "art", "law")),
            "format": chance.choice(("article", "forum")),
            "edu_score": round(chance.random() * 5, 3),
        }
        for number, text in enumerate(given)
    ]


def write_source(folder: Path, rows: list[dict[str, Any]], kind: str, files: int = 2) -> Path:
    """A folder of files that a reader takes."""
    folder.mkdir(parents=True)
    for number in range(files):
        some = rows[number::files]
        if kind == "jsonl":
            lines(folder / f"{number}.jsonl", some)
        elif kind == "parquet":
            pq.write_table(pa.Table.from_pylist(some), folder / f"{number}.parquet")
        elif kind == "arrow":
            table = pa.Table.from_pylist(some)
            with pa.OSFile(str(folder / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
                out.write_table(table)
        else:
            (folder / f"{number}.warc.wet.gz").write_bytes(b"".join(map(wet_record, some)))
    return folder


def wet_record(row: dict[str, Any]) -> bytes:
    body = row["text"].encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: {row['url']}\r\nWARC-Date: {row['date']}T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:{row['id']}>\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + body + b"\r\n\r\n", mtime=0)


def judge(folder: Path, kind: str) -> Path:
    """A judge that tells the half of the texts with more of something from the other."""
    place = folder / "judges" / kind
    if not place.exists():
        measure, given = KINDS[kind], texts(folder)
        middle = sorted(map(measure, given))[len(given) // 2]
        rows = [
            {"text": text, "label": int(measure(text) > middle), "url": f"https://s{n % 20}.example/"}
            for n, text in enumerate(given)
        ]
        labelled = lines(folder / f"judges/{kind}.jsonl", rows)
        plan = {"kind": "linear", "labelled": {"files": str(labelled)}, "hold_out": 0.2}
        gristmill.train_judge(plan, place)
    return place
