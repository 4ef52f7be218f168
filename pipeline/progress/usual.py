"""What stages usually take and leave: for the time left of what has not begun, until the run itself knows better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usual:
    """Seconds of a worker, and how much stays. Of a global stage, `passes` are its rounds with a task for each part or
    home, and `wall` is what more workers do not shorten."""

    per_document: float = 0.0
    per_megabyte: float = 0.0  # of text
    kept: float = 1.0
    wall: float = 0.0
    wall_per_megabyte: float = 0.0  # up to `wall_megabytes`, as of a sample
    wall_megabytes: float = 0.0
    passes: int = 0
    by_size: bool = False  # does a document take much longer than another, by its size?
    whole: bool = False  # is the time of tasks in it already, as in one that was measured in another run?


@dataclass(frozen=True)
class Known:
    """Of an earlier run of the recipe: its stages by name, and seconds from the end of the last to the end."""

    stages: Mapping[str, Usual] = field(default_factory=dict)

    def plain(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(usual) for name, usual in self.stages.items()}

    @classmethod
    def from_plain(cls, data: Mapping[str, Mapping[str, Any]]) -> Known:
        return cls({name: Usual(**usual) for name, usual in data.items()})


START = 3.0  # seconds until workers are ready
TASK, HOME_TASK = 0.02, 0.008  # of a part in a leg, and of a round of a global stage, beside what documents take
END, END_A_PART = 1.5, 0.015  # from the last stage to the end: surveys and the report

# Measured on two cores of an x86-64 server (docs/log.md); by name in recipes, with an engine or a tokenizer where a
# stage has several.
USUAL: dict[str, Usual] = {
    "warc": Usual(per_document=0.00015),
    "jsonl": Usual(per_megabyte=0.01),
    "parquet": Usual(per_megabyte=0.005),
    "extract": Usual(per_document=0.0012, by_size=True),
    "extract/trafilatura": Usual(per_document=0.008, by_size=True),
    "language": Usual(per_document=0.0001),
    "text_signals": Usual(per_megabyte=0.025),
    "difficulty": Usual(per_megabyte=0.035),
    "keep_languages": Usual(kept=0.85),
    "gopher_repetition": Usual(kept=0.9),
    "gopher_quality": Usual(kept=0.85),
    "c4_quality": Usual(kept=0.8),
    "fineweb_quality": Usual(kept=0.8),
    "url_rules": Usual(kept=0.95),
    "exact_dedup": Usual(per_megabyte=0.018, kept=0.85, passes=3),
    "url_dedup": Usual(per_document=0.00002, kept=0.9, passes=3),
    "minhash_dedup": Usual(per_document=0.00003, per_megabyte=0.018, kept=0.9, wall=1.0, passes=14),
    "substring_dedup": Usual(per_megabyte=0.3, passes=6),
    "tokenize": Usual(per_megabyte=0.1, passes=3),
    "tokenize/train": Usual(per_megabyte=0.1, passes=5, wall_per_megabyte=0.55, wall_megabytes=134.0),
    "mix": Usual(per_document=0.00001, passes=3),
    "order": Usual(per_megabyte=0.004, passes=3),
    "pack": Usual(per_megabyte=0.02, passes=4),
    "write": Usual(per_megabyte=0.007),
}


def usual_of(stage: str) -> Usual:
    """Of a stage, in its variant if that is known."""
    return USUAL.get(stage) or USUAL.get(stage.partition("/")[0]) or Usual()
