"""Small JSON files of an ablation that are whole or not there: one that was cut off, by a kill or a full disk, counts
as none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from gristmill.kernels.common.files import write_whole

Read = TypeVar("Read")


def read_facts(path: Path, kind: type[Read]) -> Read:
    """A typed dictionary of this kind; which keys it has is not checked."""
    try:
        facts: Read = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return kind()
    return facts if isinstance(facts, dict) else kind()


def write_facts(path: Path, facts: Mapping[str, object]) -> None:
    write_whole(path, json.dumps(facts, indent=1).encode(), durable=False)
