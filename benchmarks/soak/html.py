"""Extraction on broken pages: a case is 50 pages of the demo's crawl with bytes flipped, pieces cut, doubled and put
into each other.

Every page must come back with a text or a reason, valid UTF-8, in time bounded by its length. NUMBA_BOUNDSCHECK=1 with
a GRISTMILL_CACHE of its own makes an access outside an array an error. A case that fails leaves its page as page.html.
"""

from __future__ import annotations

import functools
import random
import time
from pathlib import Path

from gristmill.pipeline.demo.crawl import Truth, pages
from gristmill.stages.extract.engines import extract

SLICE = 20
PAGES = 50
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


@functools.cache
def crawl() -> list[bytes]:
    made = [html for _, html, _ in pages(Truth(0), random.Random(0))]
    extract(made[0], None)  # compiles, which says nothing of a page
    return made


def case(number: int, rng: random.Random, folder: Path) -> dict[str, float]:
    size = texts = slowest = 0.0
    for _ in range(PAGES):
        page = broken(rng, crawl())
        try:
            with_text, spent = extracted(page, rng)
        except Exception:
            (folder / "page.html").write_bytes(page)
            raise
        size, texts, slowest = size + len(page) / 1e6, texts + with_text, max(slowest, spent)
    return {"pages": PAGES, "megabytes": size, "with_text": texts, "max_seconds": slowest}


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
