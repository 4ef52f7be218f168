"""A compressed judge from a judge's folder and files of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gristmill.classifiers.card import Json
from gristmill.classifiers.judge import Judge
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.judging.lessons import texts_in_groups
from gristmill.pipeline.judging.scoring import judge_at
from gristmill.pipeline.judging.train import check_writable


def compressed(
    folder: str,
    paths: Sequence[str],
    text: str,
    group: str,
    settings: Mapping[str, Any],
    device: str,
    out: Path,
    log: Callable[[str], None],
) -> Judge:
    """`settings` are those of `Compression`; `out` is where it will be written."""
    judge = judge_at(folder)
    if judge.card.kind != "neural":
        raise RecipeError(f"{folder}: a {judge.card.kind} judge; only neural judges can be compressed")
    compression = import_module("gristmill.classifiers.neural.compression")
    texts = texts_in_groups(paths, text, group)
    check_writable(out)
    log(f"compressing on {device}, with {len(texts):,} texts")

    def line(facts: Json) -> None:
        log(", ".join(f"{name} {value}" for name, value in facts.items()))

    small: Judge = compression.compress(judge, texts, compression.Compression(**settings), device, line)
    return small
