"""Extraction on broken pages, for as long as one likes: real pages with bytes flipped, pieces cut, doubled and put into
each other.

    NUMBA_BOUNDSCHECK=1 GRISTMILL_CACHE=/tmp/checked python -m benchmarks.soak.fuzz_extraction PAGES.parquet
      [--minutes 60] [--seed 0]

With NUMBA_BOUNDSCHECK (and a kernel cache of its own) an access outside an array is an error. Every page must come back
with a text or a reason, valid UTF-8, in time bounded by its length. Minutes are of processor time. Prints one JSON
line; a page that fails is in failed.html, and ends the run. benchmarks/soak/html.py does the same on pages of our own,
in slices.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq

from gristmill.stages.extract import extract

PIECES = (
    b"<!--", b"-->", b"<script>", b"</script>", b"<svg>", b"<math>", b"</math>",
    b'<annotation encoding="application/x-tex">', b"<pre>", b"</pre>",
    b"<table>", b"<td>", b"</table>", b"<a href=x>", b"</a>", b"<br>", b"&#x", b"&nGt;", b"&", b"<", b'"', b"'", b"\0",
    b"\xe2\x80", b"\xc2", b"\xff",
    b"<p hidden>", b"<template>", b"<title>", b"<xmp>", b"<plaintext>", b"<![CDATA[", b"</p>", b"<ul><li>", b"<select>",
    b"<button>", b"<iframe>",
    b"<noscript>", b"<frameset>", b'<meta charset="utf-16">',
    b'<script type="application/ld+json">{"@type":"Product","name":', b"<textarea>", b"<div itemscope>",
)  # fmt: skip
SECONDS = 2.0  # of a page of any kind
SECONDS_A_MEGABYTE = 5.0  # and of each megabyte of it


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("pages", type=Path)
    arguments.add_argument("--minutes", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    dice = random.Random(given.seed)
    pages = pq.read_table(given.pages, columns=["html"]).column(0).to_pylist()
    extract(pages[0], None)  # compiles
    begun, inputs, size, slowest, texts = time.process_time(), 0, 0, 0.0, 0
    while time.process_time() - begun < 60 * given.minutes:
        page = broken(dice, pages)
        try:
            with_text, spent = extracted(page, dice)
        except Exception:
            Path("failed.html").write_bytes(page)
            raise
        inputs, size, slowest, texts = inputs + 1, size + len(page), max(slowest, spent), texts + with_text
    result = {
        "what": "extraction on broken pages",
        "inputs": inputs,
        "megabytes": round(size / 1e6),
        "with_text": texts,
        "failures": 0,
    }
    result |= {
        "minutes": given.minutes,
        "slowest_seconds": round(slowest, 3),
        "bounds_checked": bool(os.environ.get("NUMBA_BOUNDSCHECK")),
    }
    print(
        json.dumps(
            result
            | {
                "seed": given.seed,
                "machine": platform.machine(),
                "versions": {"python": platform.python_version(), "numba": version("numba")},
            }
        )
    )


def extracted(page: bytes, dice: random.Random) -> tuple[bool, float]:
    """Whether a broken page gave a text, and processor seconds; an error if it took too long or its text is no Unicode."""
    start = time.process_time()
    text = extract(page, dice.choice([None, "https://a.example/b?c=d", "x:\0"])).text
    text.encode()
    spent = time.process_time() - start
    if spent > SECONDS + SECONDS_A_MEGABYTE * len(page) / 1e6:
        raise TimeoutError(f"{len(page):,} bytes took {spent:.1f} s")
    return bool(text), spent


def broken(dice: random.Random, pages: list[bytes]) -> bytes:
    page = dice.choice(pages)
    if dice.random() < 0.7:
        at = dice.randrange(len(page))
        page = page[at : at + dice.choice((50, 300, 2000, 20000, 100000))]
    data = bytearray(page)
    for _ in range(dice.choice((0, 1, 3, 10, 40, 200))):
        if not data:
            break
        at, kind = dice.randrange(len(data)), dice.randrange(8)
        if kind == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[at] = dice.randrange(256)
        elif kind == 2:
            del data[at : at + dice.randrange(1, 60)]
        elif kind == 3:
            data[at:at] = dice.choice(PIECES) * dice.choice((1, 1, 1, 2, 50, 3000))
        elif kind == 4:
            other = dice.choice(pages)
            start = dice.randrange(len(other))
            data[at:at] = other[start : start + dice.randrange(1, 400)]
        elif kind == 5:
            data[at:at] = data[max(0, at - dice.randrange(1, 200)) : at]
        elif kind == 6 and dice.random() < 0.2:
            del data[at:]
        elif kind == 7:
            a, b = sorted(dice.randrange(len(data) + 1) for _ in range(2))
            data[a:b] = data[a:b][::-1] if dice.random() < 0.1 else data[a:b] * 2 if b - a < 50_000 else data[a:b]
    return bytes(data)


if __name__ == "__main__":
    main()
