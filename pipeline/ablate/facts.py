"""Small JSON files of an ablation that are whole or not there: one that was cut off, by a kill or a full disk, counts
as none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.kernels.base.files import write_whole


def read_facts(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(facts, indent=1).encode(), durable=False)
