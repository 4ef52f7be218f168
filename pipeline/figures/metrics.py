"""What judges, thresholds, tokenize, mix, order and pack tell of themselves: the same numbers in a terminal and in
report.html.

A stage is known by what its report.json holds, not by its name, which a recipe may change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gristmill.pipeline.figures.blend import mix, order
from gristmill.pipeline.figures.blocks import Block, Report
from gristmill.pipeline.figures.scores import scores
from gristmill.pipeline.figures.tokens import packing, tokens


@dataclass(frozen=True)
class Told:
    title: str
    blocks: list[Block]


def told_of(report: Report) -> Told | None:
    """What a stage tells, if it is one of these; None of any other."""
    for key, (title, blocks_of) in TELLERS.items():
        if key in report:
            return Told(title, blocks_of(report))
    return None


TELLERS: Mapping[str, tuple[str, Callable[[Report], list[Block]]]] = {
    "tokenizer": ("Tokens", tokens),
    "mix": ("Mix", mix),
    "order": ("Order of training", order),
    "scores": ("Scores", scores),
    "packing": ("Rows and shards", packing),
}
