#!/usr/bin/env python3
"""MinHash beside datasketch and rensa: speed from a column of text, and what each finds of edited copies. One JSON line
a result.

    python -m benchmarks.dedup.minhash [speed] [edits] [planted] [families] [--data ../shared/data] [--wheels WHEELS]
      [--rounds N]

`speed`, races as `benchmarks.races` runs them: an Arrow column of texts to signatures of 128 places; the rivals get the
column as a list of Python strings and make word 5-grams with `text.lower().split()` (ours makes no text of a shingle).
Then the same with the shingles given to all as hashes. `edits`: texts of 60 to 5,000 words, each with an edited copy, at threshold 0.8: which pairs each finds of
those whose real Jaccard is at least 0.8, and how many below it; all get the same shingles. `planted`: pairs planted in
news articles, judged by the exact Jaccard of all pairs. `families`: 5,000 pairs that share one template: how many the
stage compares, where every bucket of the template is large; and the same pairs with a template of their own each.
WHEELS holds rensa and FastSketchLSH; without it only ours is shown.
"""

import argparse
import json
import os
import platform
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.races import DATA, Side, Work, race
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.duplicates.minhash import band_hashes, bands_for, signatures, signatures_of_shingles
from gristmill.kernels.words.token_rules import tokens_plain
from gristmill.kernels.words.tokens import jaccard_of_pairs, shingle_column, shingle_sets
from gristmill.stages import MinhashDedup

WIDTH, PLACES, THRESHOLD = 5, 128, 0.8
SEED = 0
WORDS = {60: 200, 300: 200, 1000: 100, 5000: 40}  # in a text: how many texts


def show(what: str, sizes: dict, **more: object) -> None:
    about = {
        "what": what,
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("numba", "numpy", "pyarrow")},
        "sizes": sizes,
    }
    print(json.dumps(about | more), flush=True)


def texts_of(data: str, name: str) -> pa.Array:
    if name == "prose":
        return pq.read_table(Path(data) / "prose.parquet")["text"].combine_chunks()
    return pq.read_table(Path(data) / "rule_verdicts.parquet", filters=[("kind", "=", "main")])["text"].combine_chunks()


def shingles_given(data: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    return shingle_column(text_column(texts_of(data, name)), WIDTH)


def megabytes(array: pa.Array) -> float:
    offsets = text_column(array).offsets
    return int(offsets[-1] - offsets[0]) / 1e6


def ours(data: str, name: str, start: str) -> Work:
    if start == "hashes":
        hashes, first = shingles_given(data, name)
        return Work(lambda: signatures_of_shingles(hashes, first), len(hashes) / 1e6)
    array, width = texts_of(data, name), 1 if start == "single words" else WIDTH
    return Work(lambda: signatures(text_column(array), width=width), megabytes(array))


def bands(data: str, name: str, start: str) -> Work:
    """All the way to the bands."""
    array, (count, rows) = texts_of(data, name), bands_for(THRESHOLD, PLACES)
    return Work(lambda: band_hashes(text_column(array), bands=count, rows=rows, places=PLACES), megabytes(array))


def race_all(data: Path, rounds: int, wheels: Path | None) -> None:
    from benchmarks.dedup.minhash_rivals import FROM_HASHES, FROM_TEXT

    for name in ("web pages", "prose"):
        for start in ("text", "single words", "hashes"):
            sides = {"ours": Side(ours)} | ({"ours, to bands": Side(bands)} if start == "text" else {})
            sides |= FROM_HASHES if start == "hashes" else FROM_TEXT
            race(
                f"MinHash, {name}, from {start} to signatures of {PLACES} places",
                "million shingles" if start == "hashes" else "MB", sides,
                {"data": str(data.resolve()), "name": name, "start": start}, rounds, wheels,
            )  # fmt: skip


def swapped(words: list[str], share: float, chance: random.Random) -> list[str]:
    changed = list(words)
    for place in chance.sample(range(len(words)), max(1, round(len(words) * share))):
        changed[place] = f"other{chance.randrange(10**6)}"
    return changed


def inserted(words: list[str], chance: random.Random) -> list[str]:
    place = chance.randrange(len(words))
    return [*words[:place], "inserted", *words[place:]]


def moved(words: list[str], chance: random.Random) -> list[str]:
    """A paragraph of a tenth of the text, to elsewhere."""
    length = len(words) // 10
    start = chance.randrange(len(words) - length)
    rest = words[:start] + words[start + length :]
    place = chance.randrange(len(rest))
    return rest[:place] + words[start : start + length] + rest[place:]


BOILERPLATE = (
    "Home About Contact Subscribe to our newsletter Follow us Share this article Print",
    "All rights reserved Terms of use Privacy policy Cookie settings Back to top",
)

EDITS: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "one word inserted": inserted,
    "1 % swapped": lambda words, chance: swapped(words, 0.01, chance),
    "2 % swapped": lambda words, chance: swapped(words, 0.02, chance),
    "5 % swapped": lambda words, chance: swapped(words, 0.05, chance),
    "10 % swapped": lambda words, chance: swapped(words, 0.1, chance),
    "paragraph moved": moved,
    "first tenth cut": lambda words, chance: words[len(words) // 10 :],
    "boilerplate around": lambda words, chance: [*BOILERPLATE[0].split(), *words, *BOILERPLATE[1].split()],
}


def passages(works: dict[str, list[str]], length: int, count: int, chance: random.Random) -> list[list[str]]:
    """From works chosen at random, each time from elsewhere."""
    long_enough = sorted(name for name, words in works.items() if len(words) >= length)
    found = []
    for _ in range(count):
        words = works[chance.choice(long_enough)]
        start = chance.randrange(len(words) - length + 1)
        found.append(words[start : start + length])
    return found


def edits(data: Path, wheels: Path | None) -> None:
    works: dict[str, list[str]] = {}
    for row in pq.read_table(data / "prose.parquet").to_pylist():
        works.setdefault(row["work"], []).extend(row["text"].split())
    chance = random.Random(SEED)
    texts: list[str] = []
    kinds: list[tuple[int, str]] = []
    for length, count in WORDS.items():
        for words in passages(works, length, count, chance):
            for kind, edit in EDITS.items():
                texts += [" ".join(words), " ".join(edit(words, chance))]
                kinds.append((length, kind))
    left, right = np.arange(0, len(texts), 2), np.arange(1, len(texts), 2)
    column = text_column(pa.array(texts, pa.large_string()))
    jaccard = jaccard_of_pairs(*shingle_sets(column, WIDTH), left, right)
    bands, rows = bands_for(THRESHOLD, PLACES)
    meets = band_hashes(column, bands=bands, rows=rows, places=PLACES)[0]
    nominated = (meets[left] == meets[right]).any(axis=1)
    found = {"ours, nominated": nominated, "ours": nominated & (jaccard >= THRESHOLD)}
    if wheels:
        from benchmarks.dedup.minhash_rivals import FINDERS

        sets = [shingles_of(text) for text in texts]
        for name, finds in FINDERS.items():
            found[name] = np.array([finds(sets[a], sets[b]) for a, b in zip(left, right, strict=True)])
    for length, count in WORDS.items():
        for kind in EDITS:
            these = np.array([each == (length, kind) for each in kinds])
            near = these & (jaccard >= THRESHOLD)
            show(
                f"edited copies found at threshold {THRESHOLD}",
                {"words": length, "pairs": count, "pairs at the threshold": int(near.sum())},
                edit=kind,
                jaccard=[round(float(np.quantile(jaccard[these], q)), 3) for q in (0, 0.5, 1)],
                recall={name: round(float(each[near].mean()), 3) for name, each in found.items()}
                if near.any()
                else None,
                found_below={name: round(float(each[these & ~near].mean()), 3) for name, each in found.items()}
                if (these & ~near).any()
                else None,
            )


def shingles_of(text: str) -> list[str]:
    """The shingles of our kernels as text; so all decide on the same sets."""
    words = [token.decode() for _, _, token in tokens_plain(text)]
    return [" ".join(words[i : i + WIDTH]) for i in range(max(len(words) - WIDTH, 0) + 1)] if words else []


def nominated_pairs(column: TextColumn, bands: int, rows: int) -> set[tuple[int, int]]:
    hashes, counts = band_hashes(column, bands=bands, rows=rows, places=PLACES)
    found = set()
    for band in range(bands):
        members: dict[int, list[int]] = {}
        for document in np.flatnonzero(counts).tolist():
            members.setdefault(int(hashes[document, band]), []).append(document)
        found |= {pair for each in members.values() for pair in combinations(each, 2)}
    return found


def jaccard_of_all(texts: list[str], least: float) -> dict[tuple[int, int], float]:
    """Every pair of at least this similarity, by plain Python sets of text: the judge, who knows nothing of kernels."""
    sets = [set(shingles_of(text)) for text in texts]
    where: dict[str, list[int]] = {}
    for document, shingles in enumerate(sets):
        for shingle in shingles:
            where.setdefault(shingle, []).append(document)
    both: dict[tuple[int, int], int] = {}
    for documents in where.values():
        for pair in combinations(documents, 2):
            both[pair] = both.get(pair, 0) + 1
    exact = {(a, b): n / (len(sets[a]) + len(sets[b]) - n) for (a, b), n in both.items()}
    return {pair: value for pair, value in exact.items() if value >= least}


def planted(data: Path) -> None:
    articles, pairs = (
        pq.read_table(data / "near_duplicates.parquet").to_pylist(),
        pq.read_table(data / "near_duplicate_pairs.parquet").to_pylist(),
    )
    for threshold in (0.8, 0.7, 0.5):
        for name in sorted({row["set"] for row in articles}):
            rows_of = [row for row in articles if row["set"] == name]
            place = {row["id"]: i for i, row in enumerate(rows_of)}
            wanted = {tuple(sorted((place[row["a"]], place[row["b"]]))) for row in pairs if row["set"] == name}
            column = text_column(pa.array([row["text"] for row in rows_of]))
            truth = jaccard_of_all([row["text"] for row in rows_of], 0.01)
            bands, rows = bands_for(threshold, PLACES)
            nominated = sorted(nominated_pairs(column, bands, rows))
            left, right = (np.array([pair[side] for pair in nominated], np.int64) for side in (0, 1))
            jaccard = jaccard_of_pairs(*shingle_sets(column, WIDTH), left, right)
            found = {pair for pair, value in zip(nominated, jaccard.tolist(), strict=True) if value >= threshold}
            clear = {pair for pair in wanted if truth.get(pair, 0.0) >= threshold + 0.05}
            others = {pair for pair, value in truth.items() if value >= threshold + 0.05}
            show(
                f"pairs planted in news articles, {bands} bands of {rows}",
                {
                    "articles": len(rows_of),
                    "planted": len(wanted),
                    "planted at 0.05 above": len(clear),
                    "all at 0.05 above": len(others),
                },
                set=name,
                threshold=threshold,
                nominated=len(nominated),
                found=len(found),
                found_of_planted_at_005_above=f"{len(found & clear)}/{len(clear)}",
                found_of_all_at_005_above=f"{len(found & others)}/{len(others)}",
                misses=[
                    [rows_of[a]["id"], rows_of[b]["id"], round(truth.get((a, b), 0.0), 3)]
                    for a, b in sorted(clear - found)
                ],
                planted_jaccard=sorted(round(truth.get(pair, 0.0), 3) for pair in wanted),
                precision=round(sum(truth.get(pair, 0.0) >= threshold for pair in found) / len(found), 4)
                if found
                else None,
            )


FAMILIES = (
    (300, 100, 38),
    (330, 60, 28),
    (340, 50, 38),
)  # words of the template, of a pair's own text, and of these changed in the second


def families(pairs: int = 5000) -> None:
    stage, chance = MinhashDedup(threshold=THRESHOLD), np.random.default_rng(3)
    words = np.array(["".join(chr(97 + letter) for letter in row) for row in chance.integers(0, 26, (20_000, 6))])

    def drawn(count: int) -> list[str]:
        return words[chance.integers(0, len(words), count)].tolist()

    for template, own, changed in FAMILIES:
        for alone in (False, True):
            shared, texts = drawn(template), []
            for _ in range(pairs):
                head, text = drawn(template) if alone else shared, drawn(own)
                texts += [" ".join(head + text), " ".join(head + text[:-changed] + drawn(changed))]
            uid = chance.permutation(np.arange(1, len(texts) + 1, dtype=np.uint64))
            rows = stage.sign(pa.table({"uid": uid, "text": texts}))
            found = stage.nominate(rows.append_column("home", rows["uid"]))
            named = set(zip(found["left"].to_pylist(), found["right"].to_pylist(), strict=True))
            hit = sum(
                (min(a, b), max(a, b)) in named for a, b in zip(uid[::2].tolist(), uid[1::2].tolist(), strict=True)
            )
            some = stage.sketches(pa.chunked_array([[texts[0], texts[1], texts[2]]]))
            pair, others = stage.similarities(some, np.array([0, 0]), np.array([1, 2])).round(3).tolist()
            show(
                "pairs compared, each of a template of its own" if alone else "pairs compared, all of one template",
                {"pairs": pairs, "threshold": THRESHOLD, "jaccard_of_one": pair, "of_others": others},
                share=round(hit / pairs, 4), pairs_named=len(named), rows=len(found),
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", choices=["speed", "edits", "planted", "families", []], help="all, if none is named"
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    parts = arguments.parts or ["speed", "edits", "planted", "families"]
    if parts != ["families"] and not arguments.data.exists():
        sys.exit(f"{arguments.data} is not there: name the folder that holds prose.parquet with --data")
    pa.set_cpu_count(1)
    if arguments.wheels:
        sys.path.append(str(arguments.wheels))
    if "speed" in parts:
        race_all(arguments.data, arguments.rounds, arguments.wheels)
    if "edits" in parts:
        edits(arguments.data, arguments.wheels)
    if "planted" in parts:
        planted(arguments.data)
    if "families" in parts:
        families()


if __name__ == "__main__":
    main()
