#!/usr/bin/env python3
"""Encodings of pages: cases read right by encoding and way of declaring, real pages that are read otherwise than
declared, and the time of it.

    python -m benchmarks.text.charsets [--data ../shared/data] [--texts 20] [--characters 300] [--times 5]

One JSON line a result. The cases are sentences of `languages.parquet`, joined to texts of at least so many characters,
in every encoding of their language. "As declared" trusts the first declaration, and uchardet where there is none and
the bytes are no UTF-8.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from resiliparse.parse.encoding import detect_encoding

from gristmill.stages.read.charset import codec_of, declared_for_page, decode_page, is_utf8
from tests.stages.read.charset_cases import CODECS, WAYS, cases, texts_of

SETS = {"pages": "page", "pages_more": "id"}


def codec_as_declared(page: bytes, http: str | None = None) -> str:
    declared = next(declared_for_page(page, http), None)
    return declared or (
        "utf-8" if is_utf8(page) else codec_of(detect_encoding(page, html5_compatible=False)) or "utf-8"
    )


def as_declared(page: bytes, http: str | None = None) -> str:
    return page.decode(codec_as_declared(page, http), "replace").removeprefix("\ufeff")


def utf8_as_declared(page: bytes) -> bytes:
    codec = codec_as_declared(page)
    data = page if codec == "utf-8" and is_utf8(page) else page.decode(codec, "replace").encode("utf-8", "replace")
    return data.replace(b"\0", b"")


def decodes(page: bytes) -> bool:
    """Is an encoding declared, and can it decode all bytes?"""
    codec = next(declared_for_page(page, None), None)
    try:
        return codec is not None and page.decode(codec) is not None
    except UnicodeDecodeError:
        return False


def microseconds(read: Callable[[bytes], Any], pages: list[bytes], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        start = time.process_time()
        for page in pages:
            read(page)
        taken.append((time.process_time() - start) / len(pages) * 1e6)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--characters", type=int, default=300)
    parser.add_argument("--times", type=int, default=5)
    arguments = parser.parse_args()
    about = {
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": {name: version(name) for name in ("gristmill", "resiliparse", "numpy", "pyarrow")},
    }

    def show(**result: Any) -> None:
        print(json.dumps(result | about), flush=True)

    right, of, peer_right = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()
    for case in cases(texts_of(arguments.data / "languages.parquet", arguments.texts, arguments.characters)):
        of[case.codec, case.way] += 1
        right[case.codec, case.way] += case.text in decode_page(case.page, case.http).text
        peer_right[case.way] += case.text in as_declared(case.page, case.http)
    for codec in CODECS:
        ways = {way: f"{right[codec, way]} of {of[codec, way]}" for way in WAYS}
        show(what="texts read right", codec=codec, ways=ways, characters=arguments.characters)
    for way in WAYS:
        total, whole = sum(right[codec, way] for codec in CODECS), sum(of[codec, way] for codec in CODECS)
        show(
            what="texts read right, all encodings",
            way=way,
            right=total,
            of=whole,
            peer={"as declared": peer_right[way]},
        )

    for name, key in SETS.items():
        table = pq.read_table(arguments.data / f"{name}.parquet", columns=[key, "html"])
        pages = [page.as_py() for page in table["html"]]
        changed = [row for row, page in enumerate(pages) if decode_page(page, None).text != as_declared(page)]
        names = {row: table[key][row].as_py() for row in changed}
        show(
            what="pages whose text differs from the one as declared",
            set=name,
            pages=len(pages),
            whose_declaration_decodes_cleanly=[names[row] for row in changed if decodes(pages[row])],
            others={names[row]: decode_page(pages[row], None).codec for row in changed if not decodes(pages[row])},
            still_with_replacements=sum("\ufffd" in decode_page(page, None).text for page in pages),
            with_replacements_as_declared=sum("\ufffd" in as_declared(page) for page in pages),
        )
        ours = microseconds(lambda page: decode_page(page, None).utf8, pages, arguments.times)
        peer = microseconds(utf8_as_declared, pages, arguments.times)
        median = statistics.median(ours)
        show(
            what="decoding to UTF-8, microseconds of processor a page",
            set=name,
            sizes={"pages": len(pages), "bytes": sum(map(len, pages))},
            median=round(median, 1),
            spread=[round(min(ours), 1), round(max(ours), 1)],
            peer={"as declared": round(statistics.median(peer), 1)},
            ratio=round(statistics.median(peer) / median, 2),
        )


if __name__ == "__main__":
    main()
