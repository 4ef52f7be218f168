"""Every public stage by name: `from stages import Warc, Extract, Sample`.

A stage is imported when it is first asked for, so that `import stages` costs nothing and a fingerprint of code sees what is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.dedup.exact import ExactDedup
    from stages.extract.stage import Extract
    from stages.read.arrow import Arrow
    from stages.read.jsonl import Jsonl
    from stages.read.parquet import Parquet
    from stages.read.plain import Plain
    from stages.read.warc import Warc
    from stages.read.wet import Wet
    from stages.sample import Sample
    from stages.write import Write

# Where each lives; a new stage is one line here, one above, and one in __all__.
HOMES: dict[str, str] = {
    "Arrow": "stages.read.arrow",
    "ExactDedup": "stages.dedup.exact",
    "Extract": "stages.extract.stage",
    "Jsonl": "stages.read.jsonl",
    "Parquet": "stages.read.parquet",
    "Plain": "stages.read.plain",
    "Sample": "stages.sample",
    "Warc": "stages.read.warc",
    "Wet": "stages.read.wet",
    "Write": "stages.write",
}

__all__ = ["HOMES", "Arrow", "ExactDedup", "Extract", "Jsonl", "Parquet", "Plain", "Sample", "Warc", "Wet", "Write"]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'stages' has no stage {name!r}; there are {', '.join(HOMES)}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
