"""The pages of README and docs, and the code in them: fenced and indented blocks, and words set as code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
LOG = ("docs/log.md",)  # a log keeps the names of its day
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.relative_to(ROOT).as_posix() not in LOG
]
SHELL = re.compile(r"(?:\$ )?(gristmill|make|pip|python3?|export|echo|dask|for|cd|\.venv/bin/\w+|\. \.venv)\b")


@dataclass(frozen=True)
class Block:
    """A block of code. An indented one names no language: `language` is then what it looks like, or nothing."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    tokens = MarkdownIt("commonmark").enable("table").parse(read(page))
    found = []
    for token in tokens:
        if token.type in ("fence", "code_block"):
            language = token.info.strip() or ("shell" if SHELL.match(token.content.lstrip()) else "")
            found.append(Block(page, (token.map or [0])[0] + 1, language, token.content))
    return found


def inline(page: str) -> list[str]:
    """Words set as code in the text and in tables."""
    tokens = MarkdownIt("commonmark").enable("table").parse(read(page))
    inner = [child for token in tokens if token.type == "inline" for child in token.children or ()]
    return [" ".join(child.content.split()) for child in inner if child.type == "code_inline"]


ALL = [block for page in PAGES for block in blocks(page)]
