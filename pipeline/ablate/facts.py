"""Small JSON files of an ablation that are whole or not there: one that was cut off, by a kill or a full disk, counts
as none."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from gristmill.pipeline.look.records import JSONObject


def read_facts(path: Path) -> JSONObject:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def write_facts(path: Path, facts: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
