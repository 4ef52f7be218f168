"""A dictionary that holds its values as JSON: what is kept of each task and file of a run, and seldom looked at.

A record of a file is 700 bytes as Python's objects and 150 as text; that of a leg's task 7.5 kB and 1.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import TypeVar, cast

Value = TypeVar("Value")


class Packed(MutableMapping[str, Value]):
    """Values are plain data, and what is got is a copy."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}

    def __getitem__(self, key: str) -> Value:
        return cast(Value, json.loads(self._packed[key]))

    def __setitem__(self, key: str, value: Value) -> None:
        self._packed[key] = json.dumps(value, separators=(",", ":")).encode()

    def __delitem__(self, key: str) -> None:
        del self._packed[key]

    def __contains__(self, key: object) -> bool:
        return key in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)
