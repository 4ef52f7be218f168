"""What stages usually take and leave: for the time left of what has not begun, until the run itself knows better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Usual:
    """Seconds of a worker, and how much stays. Of a global stage, `passes` are its rounds with a task for each part or
    home, and `wall` is what more workers do not shorten. Of a reader, what its files hold before one was read."""

    per_document: float = 0.0
    per_megabyte: float = 0.0  # of text
    per_megabyte_read: float = 0.0  # of the files that its leg reads
    kept: float = 1.0
    wall: float = 0.0
    wall_per_megabyte: float = 0.0  # up to `wall_megabytes`, as of a sample
    wall_megabytes: float = 0.0
    passes: int = 0
    by_size: bool = False  # does a document take much longer than another, by its size?
    whole: bool = False  # is the time of tasks in it already, as in one that was measured in another run?
    bytes_a_document: float = 2000.0  # of files
    text: float = 1.0  # bytes of a byte of files


@dataclass(frozen=True)
class Known:
    """Of an earlier run of the recipe: its stages by name, and seconds from the end of the last to the end."""

    stages: Mapping[str, Usual] = field(default_factory=dict)

    def plain(self) -> dict[str, dict[str, Any]]:
        return {name: asdict(usual) for name, usual in self.stages.items()}

    @classmethod
    def from_plain(cls, data: Mapping[str, Mapping[str, Any]]) -> Known:
        return cls({name: Usual(**usual) for name, usual in data.items()})


START = 2.3  # seconds until workers are ready
TASK, HOME_TASK = 0.012, 0.008  # of a part in a leg, and of a round of a global stage, beside what documents take
END, END_A_PART = 0.6, 0.006  # from the last stage to the end: surveys and the report

# Measured on two cores of an x86-64 server that had nothing else to do (docs/log.md, 2026-11-27, also what was not
# measured); by name in recipes, with an engine or a tokenizer where a stage has several.
USUAL: dict[str, Usual] = {
    "warc": Usual(per_document=0.0001, bytes_a_document=10_000, text=0.3),
    "jsonl": Usual(per_megabyte=0.0055, bytes_a_document=3000),
    "parquet": Usual(per_megabyte=0.003, text=2.0),
    "extract": Usual(per_document=0.0003, per_megabyte_read=0.044, by_size=True),
    "extract/trafilatura": Usual(per_document=0.0016, per_megabyte_read=1.36, by_size=True),
    "language": Usual(per_document=0.00004, per_megabyte=0.02),
    "text_signals": Usual(per_megabyte=0.012),
    "difficulty": Usual(per_megabyte=0.018),
    "keep_languages": Usual(kept=0.85),
    "gopher_repetition": Usual(kept=0.9),
    "gopher_quality": Usual(kept=0.85),
    "c4_quality": Usual(kept=0.8),
    "fineweb_quality": Usual(kept=0.8),
    "url_rules": Usual(kept=0.95),
    "exact_dedup": Usual(per_megabyte=0.009, kept=0.85, passes=5),
    "url_dedup": Usual(per_document=0.00001, kept=0.9, passes=5),
    "minhash_dedup": Usual(per_megabyte=0.0075, kept=0.9, wall=0.5, passes=14),
    "substring_dedup": Usual(per_megabyte=0.15, passes=6),
    "tokenize": Usual(per_megabyte=0.03, passes=3),
    "tokenize/train": Usual(per_megabyte=0.03, passes=5, wall_per_megabyte=0.21, wall_megabytes=134.0),
    "mix": Usual(per_document=0.000005, passes=3),
    "order": Usual(per_megabyte=0.0005, passes=3),
    "pack": Usual(per_megabyte=0.007, passes=4),
    "write": Usual(per_megabyte=0.004),
}


def usual_of(stage: str) -> Usual:
    """Of a stage, in its variant if that is known."""
    return USUAL.get(stage) or USUAL.get(stage.partition("/")[0]) or Usual()
