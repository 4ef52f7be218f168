"""A compressed judge from a judge's folder and files of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from gristmill.classifiers.card import Json
from gristmill.classifiers.judge import Judge
from gristmill.classifiers.training_sets import LabelledTexts
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import check_column, files_of, table_of, with_texts
from gristmill.pipeline.judging.lessons import groups_of
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
    texts = texts_of(paths, text, group)
    check_writable(out)
    log(f"compressing on {device}, with {len(texts):,} texts")

    def line(facts: Json) -> None:
        log(", ".join(f"{name} {value}" for name, value in facts.items()))

    small: Judge = compression.compress(judge, texts, compression.Compression(**settings), device, line)
    return small


def texts_of(paths: Sequence[str], text: str, group: str) -> LabelledTexts:
    """Texts with their groups, if the files have that column; else equal texts are one group."""
    files = files_of(paths, "texts")
    table = table_of(files, [text, group])
    check_column(table, text, files, "--text")
    if not table.num_rows:
        raise RecipeError(f"{files[0].address}: no rows")
    table = with_texts(table, text, files[0].address)
    texts = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in table[text].chunks]).fill_null("")
    columns = [table[group].combine_chunks()] if group in table.column_names else []
    groups = groups_of(columns, texts, "--group")
    return LabelledTexts(texts, pa.array(["-"] * len(texts), pa.string()), None, groups)
