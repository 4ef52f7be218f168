"""Files that are passed over because no reader takes their ending: counted by ending, and put in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from gristmill.pipeline.formatting import one_line

NO_ENDING, OTHERS = "without an ending", "with other endings"
MOST = 5  # endings that are named; the files of all others are counted together
# two endings of a packed file (.html.gz), of which the first begins with a letter (not 2024.gz)
ENDING = re.compile(r"(?<=.)(\.[a-z][a-z0-9]{0,7})?\.[a-z0-9_-]{1,12}$")
PACKED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".br", ".lz4")


def ending_of(path: str) -> str:
    """`.html.gz` of `a/page.HTML.gz`, in small letters."""
    name = PurePosixPath(path).name.lower()
    match = ENDING.search(name)
    if match is None:
        return NO_ENDING
    last = name[name.rindex(".") :]
    return one_line(match[0] if last in PACKED else last)


def by_ending(paths: Iterable[str]) -> dict[str, int]:
    """The files of each ending, the most frequent first; of many endings a few."""
    counted = sorted(Counter(ending_of(path) for path in paths).items(), key=lambda kind: (-kind[1], kind[0]))
    rest = sum(files for _, files in counted[MOST:])
    return dict(counted[:MOST]) | ({OTHERS: rest} if rest else {})


def in_words(endings: Mapping[str, int]) -> str:
    """2 .gz, 2 .bad and 7 with other endings"""
    names = [f"{files:,} {ending}" for ending, files in endings.items()]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) if OTHERS in endings else ", ".join(names)
