"""Texts for `exact_dedup.py`: passages of about 1 kB of shared texts, some of them more than once.

    python -m benchmarks.dedup.exact_texts FOLDER [--texts 450000] [--data ../shared/data] [--seed 1]

Of 100 rows 13 repeat an earlier one byte for byte, 9 but for case, white space or normal form; some texts have hundreds
of copies. An eighth of the passages are sentences of 75 languages. Parquet files of 45,000 rows: `id` and `text`.
"""

from __future__ import annotations

import argparse
import random
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FILES = 10
SAME, ALIKE = 0.13, 0.09  # of all rows
IN_LANGUAGES = 1 / 8  # of the passages
SHORTEST, LONGEST = 550, 1500  # bytes of a passage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=450_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make(given.folder, given.texts, given.data, given.seed)


def make(folder: Path, count: int, data: Path, seed: int) -> None:
    dice = random.Random(seed)
    texts = passages(data, round(count * (1 - SAME - ALIKE)), dice)
    different = len(texts)
    texts += [texts[copied(different, dice)] for _ in range(round(count * SAME))]
    texts += [altered(texts[copied(different, dice)], dice) for _ in range(count - len(texts))]
    dice.shuffle(texts)
    folder.mkdir(parents=True)
    each = -(-count // FILES)
    for number in range(FILES):
        rows = texts[number * each : (number + 1) * each]
        table = pa.table({"id": [f"{number}-{row}" for row in range(len(rows))], "text": rows})
        pq.write_table(table, folder / f"part-{number:02d}.parquet", compression="zstd")


def passages(data: Path, count: int, dice: random.Random) -> list[str]:
    """So many different ones, cut anywhere between words."""
    pages = [
        column(data, "rule_verdicts", "text"),
        column(data, "pages", "main_content"),
        column(data, "prose", "text"),
    ]
    web = [text.encode() for texts in pages for text in texts if text]
    sentences: dict[str, list[str]] = {}
    languages = pq.read_table(data / "languages.parquet", columns=["language", "text"])
    for language, text in zip(*(languages[name].to_pylist() for name in ("language", "text")), strict=True):
        sentences.setdefault(language, []).append(text)
    many = [" ".join(texts).encode() for texts in sentences.values()]
    ends = []
    for text in web:
        ends.append((ends[-1] if ends else 0) + len(text))
    found: dict[str, None] = {}
    while len(found) < count:
        text = dice.choice(many) if dice.random() < IN_LANGUAGES else dice.choices(web, cum_weights=ends)[0]
        start, length = dice.randrange(len(text)), dice.randint(SHORTEST, LONGEST)
        start = text.find(b" ", start) + 1
        passage = text[start : start + length].decode(errors="ignore").strip()
        if len(passage) > SHORTEST // 4:
            found[passage] = None
    return list(found)


def column(data: Path, file: str, name: str) -> list[str]:
    texts: list[str] = pq.read_table(data / f"{file}.parquet", columns=[name])[name].to_pylist()
    return texts


def copied(different: int, dice: random.Random) -> int:
    """Which text is copied: one in a hundred of them far more often than others."""
    return dice.randrange(different) if dice.random() < 0.8 else dice.randrange(max(1, different // 100))


def altered(text: str, dice: random.Random) -> str:
    """The same text to a reader."""
    way = dice.randrange(4)
    if way == 0:
        return text.replace(" ", "  ", 5) + "\n"
    if way == 1:
        return text.upper().lower().upper()
    if way == 2:
        return "\n" + text.replace("\n", "\r\n").replace(". ", ".\n")
    return unicodedata.normalize("NFD", text).swapcase()


if __name__ == "__main__":
    main()
