"""Read the inputs of a finished run again: the reader of a source as run.json has it, and the paths of its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from gristmill.pipeline.inputs.files import Remembered
from gristmill.pipeline.recipe import registry
from gristmill.stages.read.cc import Cc
from gristmill.stages.settings import SettingsError
from gristmill.stages.stage import Reader


class NoOriginal(LookupError):
    """An original cannot be read; the message says why."""


def sources_of(record: Mapping[str, Any]) -> list[str]:
    """Names of a run's sources."""
    recipe = record.get("recipe")
    return list(recipe.get("sources") or {}) if isinstance(recipe, dict) else []


def reader_of(record: Mapping[str, Any], source: str) -> Reader:
    """The reader of a source, as run.json has it; only readers that come with Gristmill."""
    recipe = record.get("recipe") or {}
    settings = (recipe.get("sources") or {}).get(source) if isinstance(recipe, dict) else None
    named = [name for name in settings or {} if name in registry.names()]
    readers = [name for name in named if issubclass(registry.find(name), Reader)]
    if not isinstance(settings, dict) or len(readers) != 1:
        raise NoOriginal(f"run.json does not name a reader of ours for the source {source}")
    chosen = settings[readers[0]]
    if not isinstance(chosen, dict):
        raise NoOriginal(f"run.json: the reader of {source} is not as the mill writes it")
    try:
        return cast(Reader, registry.build({"stage": readers[0], "settings": chosen, "code": None}))
    except (SettingsError, TypeError) as error:
        raise NoOriginal(f"run.json: the reader of {source} is not as the mill writes it") from error


def addresses_of(remembered: Mapping[str, Remembered], path: str, reader: Reader) -> Iterator[tuple[str, int]]:
    """Input files that the run has read and that a path below a source's root may stand for, with their sizes then."""
    roots = roots_of(reader)
    for address, facts in remembered.items():
        below = address == path or address.endswith(f"/{path}")
        if below and any(is_below(address, root) for root in roots):
            yield address, int(facts[0])


def roots_of(reader: Reader) -> list[str]:
    """The files, folders and globs of a source."""
    where = reader.root if isinstance(reader, Cc) else reader.path
    return [where] if isinstance(where, str) else list(where)


def is_below(address: str, root: str) -> bool:
    """Can an address come from this file, folder or glob? Of a relative one only the end is compared."""
    root = root.removeprefix("./").rstrip("/")
    if not root or root == ".":
        return True
    tail = f"*/{root.removeprefix('~/')}" if not root.startswith("/") and "://" not in root else root
    while tail.startswith("*/../"):
        tail = "*/" + tail.removeprefix("*/../")
    return fnmatchcase(address, tail) or fnmatchcase(address, f"{tail}/*")
