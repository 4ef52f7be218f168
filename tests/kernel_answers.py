"""What kernels answer on inputs made from a seed, as hashes: the same on every machine and Python.

tests/fixtures/kernel_answers.json holds those of SEEDS; `python -m benchmarks.soak.other_machine` makes, compares and
renews such files. Numbers that are sums or logarithms of floats are hashed at nine significant digits: a machine's
mathematics library may round the last bit otherwise.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill import extract, stages
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.feistel import permuted
from gristmill.kernels.duplicates.bloom import empty_filter, shape_for, walk
from gristmill.kernels.duplicates.forest import spanning_forest
from gristmill.kernels.duplicates.minhash import band_hashes
from gristmill.kernels.duplicates.paragraphs import hashes_of_units, lines, paragraphs
from gristmill.kernels.duplicates.simhash import fingerprints
from gristmill.kernels.duplicates.suffix import suffix_array
from gristmill.kernels.language.hashed_terms import term_column
from gristmill.kernels.language.pooled_terms import CODES, Embeddings, pooled, term_rows
from gristmill.kernels.rows.lay_rows import lay_rows
from gristmill.kernels.rows.pack import best_fit, windows
from gristmill.kernels.urls.keys import names_of, url_keys
from gristmill.kernels.urls.urls import canonical_urls

SEEDS = range(4)
TEXTS = 40
DIGITS = 9
VOCABULARY = (
    "the of and to a in is that it for was on with as he be at by had not are but from or have an they which one you "
    "mill grain flour stone wheel water Wheel MILL don't e.g. U.S. 3.14 1,000 https://a.example/b naïve Straße ΣΟΦΟΣ "
    "мука мельница 小麦 水車 ミル 한국어 गेहूं طحين קמח แป้ง ﬁne e\u0301 \u200b \ufeff \u00a0 â€™ &amp; &eacute; "
    "me@mill.example 192.168.2.7 +49 30 901820 4111 1111 1111 1111 javascript lorem ipsum { } … ... - • cookies"
)
WORDS = VOCABULARY.split(" ")
ENDS = (" ", " ", " ", " ", " ", ". ", "! ", ", ", "\n", ".\n", "\n\n", "\n- ", "...\n", "\t")
TAGS = ("p", "div", "li", "h1", "td", "pre", "a", "nav", "footer", "article", "span", "b")


def texts(rng: random.Random) -> list[str]:
    """Words of many scripts; some repeat passages of others; every tenth is of any characters at all."""
    made: list[str] = []
    for number in range(TEXTS):
        if number % 10 == 9:
            points = (rng.randrange(0x20, 0x110000) for _ in range(rng.randrange(200)))
            made.append("".join(chr(point) for point in points if not 0xD800 <= point < 0xE000))
            continue
        text = "".join(rng.choice(WORDS) + rng.choice(ENDS) for _ in range(rng.randrange(300)))
        if made and rng.random() < 0.4:
            other = rng.choice(made)
            at = rng.randrange(len(other) + 1)
            text += other[at : at + rng.randrange(1500)] + text[: rng.randrange(50)]
        made.append(text)
    return made


def pages(rng: random.Random) -> Iterable[bytes]:
    for text in texts(rng)[:12]:
        parts = ["<html><head><title>A mill</title></head><body>"]
        for line in text.split("\n"):
            tag = rng.choice(TAGS)
            parts.append(f"<{tag} class=c{rng.randrange(9)}>{line}{rng.choice(('', f'</{tag}>'))}")
        yield "".join(parts).encode()


def column_of(seed: int) -> TextColumn:
    return text_column(pa.array(texts(random.Random(seed)), pa.string()))


def table_of(seed: int) -> pa.Table:
    return pa.table({"text": pa.array(texts(random.Random(seed)), pa.string())})


def stage(name: str, **settings: Any) -> Callable[[int], dict[str, list[Any]]]:
    return lambda seed: getattr(stages, name)(**settings)(table_of(seed)).to_pydict()


def main_text(seed: int) -> list[Any]:
    return [extract(page, "https://mill.example/a").text for page in pages(random.Random(seed))]


def urls(seed: int) -> list[Any]:
    rng = random.Random(seed)
    signs = (
        "a",
        "B",
        "%41",
        "%e4",
        "ä",
        "İ",
        "/",
        "//",
        ".",
        "..",
        "?",
        "&utm_source=x",
        "#",
        ":",
        "@",
        "[",
        "xn--",
        "1",
    )
    made = ["https://" + "".join(rng.choices(signs, k=rng.randrange(30))) for _ in range(500)]
    column = text_column(pa.array(made, pa.string()))
    found = canonical_urls(column.data, column.offsets[:-1], column.offsets[1:])
    high, low = url_keys(found, names_of(("utm_*", "sid")))
    return [
        [bytes(found.text[a:b]) for a, b in zip(found.starts, found.ends, strict=True)], found.hosts - found.starts,
        found.marks, np.where(found.ends > found.starts, high, 0), np.where(found.ends > found.starts, low, 0),
    ]  # fmt: skip


def minhash(seed: int) -> list[Any]:
    bands, counts = band_hashes(column_of(seed), bands=16, rows=8, seed=seed)
    return [bands[counts > 0], counts]


def units(seed: int) -> list[Any]:
    column = column_of(seed)
    return [part for cut in (lines, paragraphs) for part in (*cut(column), *hashes_of_units(column, cut(column)))]


def bloom(seed: int) -> list[Any]:
    keys = np.random.RandomState(seed).randint(0, 3000, 5000).astype(np.uint64)
    keys *= np.uint64(0x9E3779B97F4A7C15)
    shape = shape_for(3000, 0.01)
    unit_first = np.arange(0, 5001, 5, dtype=np.int64)
    first = np.arange(0, 1001, 10, dtype=np.int64)
    return list(walk(empty_filter(shape), shape.probes, keys, unit_first, first, 0.5, np.full(100, 0.5)))


def clusters(seed: int) -> list[Any]:
    left, right = np.random.RandomState(seed).randint(0, 1000, (2, 700)).astype(np.uint64)
    return list(spanning_forest(left, right))


def suffixes(seed: int) -> list[Any]:
    return list(suffix_array(np.random.RandomState(seed).randint(0, 9, 3000).astype(np.uint64), 50))


def packed_rows(seed: int) -> list[Any]:
    lengths = np.random.RandomState(seed).randint(0, 700, 500).astype(np.int64)
    packed = best_fit(lengths, 512, windows(500, 130))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return [*packed, lay_rows(np.arange(offsets[-1], dtype=np.uint32), offsets, packed, 512, 7)]


def shuffled(seed: int) -> list[Any]:
    sizes = np.full(1000, 1000 + seed, np.int64)
    return [permuted(np.arange(1000, dtype=np.int64), sizes, np.full(1000, seed, np.uint64))]


def terms(seed: int) -> list[Any]:
    return list(term_column(column_of(seed), 16, 2, np.ones(1 << 16, np.float32)))


def poolings(seed: int) -> list[Any]:
    rows = term_rows(column_of(seed), 12)
    drawn = np.random.RandomState(seed).randint(-127, 128, (1 << 12, 16)).astype(np.int8)
    return [*rows, pooled(rows, Embeddings(drawn, np.linspace(0, 4, CODES, dtype=np.float32)))]


ANSWERS: dict[str, Callable[[int], Any]] = {
    "minhash": minhash,
    "simhash": lambda seed: list(fingerprints(column_of(seed), 5, 128, seed)),
    "units": units,
    "bloom": bloom,
    "clusters": clusters,
    "suffixes": suffixes,
    "packed_rows": packed_rows,
    "shuffled": shuffled,
    "urls": urls,
    "terms": terms,
    "poolings": poolings,
    "repair": stage("Repair"),
    "personal_data": stage("PersonalData"),
    "c4_lines": stage("C4Lines"),
    "refinedweb_lines": stage("RefinedwebLines"),
    "boilerplate": stage("Boilerplate"),
    "language": stage("Language", model="lid.176", shortest=20),
    "text_signals": stage("TextSignals"),
    "difficulty": stage("Difficulty"),
    "main_text": main_text,
    "token_ids": stage("Tokenize", vocab_size=400),
}


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy as Python's; floats at so many digits."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(plain(value)).encode()).hexdigest()[:16]


def answers(seeds: Iterable[int] = SEEDS, only: Iterable[str] = tuple(ANSWERS)) -> dict[str, dict[str, str]]:
    """name -> seed -> hash."""
    return {name: {str(seed): hash_of(ANSWERS[name](seed)) for seed in seeds} for name in only}
