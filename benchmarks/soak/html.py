"""Extraction on broken pages of our own: a case is 50 pages of the demo's crawl, damaged as in
benchmarks/soak/fuzz_extraction.py.

NUMBA_BOUNDSCHECK=1 with a GRISTMILL_CACHE of its own makes an access outside an array an error. A case that fails
leaves its page as page.html.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path

from benchmarks.soak.fuzz_extraction import broken, extracted
from gristmill.pipeline.demo.crawl import Truth, pages

SLICE = 20
PAGES = 50


@functools.cache
def crawl() -> list[bytes]:
    return [html for _, html, _ in pages(Truth(0), random.Random(0))]


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
