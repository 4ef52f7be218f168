"""What JSON files and logs say of documents, taken out: entries of lists that name one or hold a passage of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from gristmill.pipeline.forget.passages import WIDTH, Passages
from gristmill.pipeline.store.forgotten import Forgotten

UID = re.compile(r"\b[0-9a-f]{16}\b")
MARKS = ("uid", "like")  # keys under which reports name a document
UNTOUCHED = ("tokenizer_json", "recipe")  # a tokenizer stays as it was trained


class Scrubber:
    """Knows the documents by uid and url, and once `settle` was called by their passages; and e-mail addresses."""

    def __init__(self, uids: Iterable[str], urls: Iterable[str], wanted: Forgotten) -> None:
        self.wanted = wanted
        self.uids = frozenset(uids)
        self.urls = frozenset(urls)
        self._texts: frozenset[str] = frozenset()

    def settle(self, strings: list[str], passages: Passages) -> None:
        found = passages.in_each(as_array(strings))
        self._texts = frozenset(string for string, is_found in zip(strings, found.tolist(), strict=True) if is_found)

    def names(self, text: str) -> bool:
        """Does a text name one of them, or hold a passage?"""
        if text in self.urls or text in self._texts:
            return True
        if len(self.wanted.keys["email"]) and self.wanted.named_in(text.encode("utf-8", "replace")):
            return True
        return any(uid in self.uids for uid in UID.findall(text)) or any(url in text for url in self._urls_in(text))

    def _urls_in(self, text: str) -> Iterator[str]:
        for word in text.split():
            if (address := word.strip("()[]<>\"',;:")) in self.urls:
                yield address

    def clean(self, value: Any) -> Any:
        """Plain data without them."""
        if isinstance(value, dict):
            return {name: inner if name in UNTOUCHED else self.clean(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.clean(item) for item in value if not self.is_of_one(item)]
        return "" if isinstance(value, str) and self.names(value) else value

    def is_of_one(self, item: Any) -> bool:
        """Is an entry of a list about one of them?"""
        if isinstance(item, str):
            return self.names(item)
        if not isinstance(item, dict):
            return False
        if any(item.get(mark) in self.uids for mark in MARKS):
            return True
        return any(isinstance(text, str) and self.names(text) for text in item.values())


def strings_in(value: Any, key: str = "") -> Iterator[str]:
    """All texts of plain data that are long enough to hold a passage."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from strings_in(inner, name)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, str) and len(value) * 4 >= WIDTH and key not in UNTOUCHED:
        yield value


def as_array(strings: list[str]) -> pa.Array:
    return pa.array([string.encode("utf-8", "replace") for string in strings], pa.large_binary())
