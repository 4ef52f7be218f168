"""Kept answers of several processes at once: a folder with a file for each of them (`AnswerCache`), all of which are
read and one of which is written."""

from __future__ import annotations

import os
from pathlib import Path

from gristmill.classifiers.llm.cache import AnswerCache, FileIsTaken, _entry
from gristmill.classifiers.llm.model import LanguageModelError

MOST_FILES = 1024


class AnswerFolder(AnswerCache):
    """Writes the first file of the folder that no other process writes; what others add after it was opened is not
    seen."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._take_a_file()
        for path in sorted(self.folder.glob("answers-*.jsonl")):
            if path != self.path:
                self._read_beside(path)

    def _take_a_file(self) -> None:
        for number in range(MOST_FILES):
            try:
                return super().__init__(self.folder / f"answers-{number:04d}.jsonl")
            except FileIsTaken:
                continue
        raise LanguageModelError(f"{self.folder}: {MOST_FILES:,} processes are writing answers here already")

    def _read_beside(self, path: Path) -> None:
        """A line that its process is still writing is no line yet."""
        with path.open("rb") as file:
            for line in file:
                entry = _entry(line)
                if entry is not None:
                    self._answers.setdefault(*entry)
