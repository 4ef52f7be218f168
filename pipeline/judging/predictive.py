"""A judge from the losses of several models: documents on which better models have lower losses are good
(mixing/predictive.py), and a fastText judge learns to tell them from those of which the reverse is true."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from gristmill.classifiers.judge import Judge
from gristmill.kernels.base.types import Floats
from gristmill.mixing.predictive import ESTIMATORS, FEWEST_MODELS, best_share, pairs_left_out
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import column_names, files_of, table_of
from gristmill.pipeline.judging import train as judging
from gristmill.pipeline.judging.lessons import BAD, GOOD

LOSS = "loss:"


@dataclass(frozen=True)
class Selection:
    """How documents are chosen."""

    estimator: str = "correlation"
    share: float = 0.1  # of the bytes that are good, and as many that are bad
    by: str | None = None  # a column: all documents of one value share their losses
    seed: int = 0


@dataclass(frozen=True)
class Chosen:
    """Documents with labels, and what the choice is worth."""

    table: pa.Table  # text, url where there, label, predictive
    facts: dict[str, Any]


def read_scores(path: str) -> tuple[list[str], list[str], Floats]:
    """Models, tasks and scores (models x tasks, higher is better) from `model,TASK,...`."""
    try:
        rows = [row for row in csv.reader(io.StringIO(Path(path).read_text(encoding="utf-8-sig"))) if any(row)]
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"--scores: {path}: cannot be read: {error}") from error
    if len(rows) < 2 or rows[0][0].strip() != "model" or len(rows[0]) < 2:
        raise RecipeError(f"--scores: {path}:1: expected a line `model,TASK,...` and a line a model")
    tasks, models, scores = [name.strip() for name in rows[0][1:]], list[str](), list[list[float]]()
    for number, row in enumerate(rows[1:], 2):
        try:
            values = [float(cell) for cell in row[1:]]
        except ValueError:
            raise RecipeError(f"--scores: {path}: row {number}: expected a number a task") from None
        if len(values) != len(tasks) or not np.isfinite(values).all():
            raise RecipeError(f"--scores: {path}: row {number}: expected {len(tasks)} finite numbers")
        if row[0].strip() in models:
            raise RecipeError(f"--scores: {path}: row {number}: model {row[0].strip()!r} stands there already")
        models.append(row[0].strip())
        scores.append(values)
    return models, tasks, np.array(scores)


def choose(paths: Sequence[str], scores_path: str, selection: Selection, text: str = "text") -> Chosen:
    """Documents with a column `loss:MODEL` (bits per byte) for each model of the scores."""
    models, tasks, scores_MT = read_scores(scores_path)
    files = files_of(paths, "documents")
    there = column_names(files)
    used = [m for m, model in enumerate(models) if LOSS + model in there]
    if len(used) < FEWEST_MODELS:
        raise RecipeError(
            f"{len(used)} models have both scores and a column `{LOSS}MODEL` of losses; expected {FEWEST_MODELS} or more"
        )
    losses = [LOSS + models[m] for m in used]
    beside = [name for name in ("url", selection.by) if name and name in there]
    if text not in there or (selection.by and selection.by not in there):
        raise RecipeError(f"{files[0].address}: no column {text if text not in there else selection.by!r}")
    table = table_of(files, [text, *losses, *dict.fromkeys(beside)])
    losses_MD = np.stack([_numbers(table[name]) for name in losses])
    known = np.isfinite(losses_MD).all(axis=0)
    dropped, table, losses_MD = int((~known).sum()), table.filter(pa.array(known)), losses_MD[:, known]
    hashes = [xxhash.xxh3_64_intdigest((value or "").encode()) for value in table[text].to_pylist()]
    order = np.argsort(np.array(hashes, np.uint64), kind="stable")  # neither files nor lengths decide between equals
    table, losses_MD = table.take(pa.array(order)), losses_MD[:, order]
    if not len(table):
        raise RecipeError(f"{files[0].address}: no document has the losses of all models")
    sizes_D = pc.fill_null(pc.binary_length(table[text].cast(pa.large_binary())), 0).to_numpy().astype(np.float64)
    sizes_D = np.maximum(sizes_D, 1.0)
    group_D = np.arange(len(table))
    if selection.by:
        group_D = pc.rank(table[selection.by].combine_chunks(), tiebreaker="dense").to_numpy().astype(np.int64) - 1
    sizes_G = np.bincount(group_D, sizes_D).astype(np.float64)
    losses_MG = np.stack([np.bincount(group_D, row * sizes_D) / sizes_G for row in losses_MD])
    try:
        scores_MT = scores_MT[used]
        values_G = ESTIMATORS[selection.estimator](losses_MG, scores_MT)
        check = pairs_left_out(losses_MG, scores_MT, sizes_G, selection.estimator, selection.share, selection.seed)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    good_G = best_share(values_G, sizes_G, selection.share)
    bad_G = best_share(-values_G, sizes_G, selection.share) & ~good_G
    label_D = np.where(good_G, GOOD, np.where(bad_G, BAD, ""))[group_D]
    rows = pa.array(np.flatnonzero(label_D != ""))
    columns = {"text": table[text], "label": pa.array(label_D), "predictive": pa.array(values_G[group_D])}
    columns |= {"url": table["url"]} if "url" in table.column_names else {}
    facts = {
        "estimator": selection.estimator, "share": selection.share, "by": selection.by,
        "models": [models[m] for m in used], "tasks": tasks,
        "documents": len(table), "without_losses": dropped, "groups": len(sizes_G),
        "good": int((label_D == GOOD).sum()), "bad": int((label_D == BAD).sum()),
        "pairs_left_out": check.pairs, "found_by_chosen": check.chosen, "found_by_all": check.all_documents,
    }  # fmt: skip
    return Chosen(pa.table(columns).take(rows), facts)


def train(chosen: Chosen, kind: str, hold_out: float, seed: int, folder: Path, log: Callable[[str], None]) -> Judge:
    """The judge in its folder; beside it `FOLDER.predictive.parquet` (what it learnt from) and `.json` (what the choice
    is worth, which the card says too)."""
    facts = chosen.facts
    meaning = (
        f"like documents on which {len(facts['models'])} models' losses go with their scores on "
        f"{', '.join(facts['tasks'])}; of {facts['pairs_left_out']} pairs of models left out the choice finds the "
        f"better in {facts['found_by_chosen']:.0%}, all documents in {facts['found_by_all']:.0%}"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    labelled = folder.parent / f"{folder.name}.predictive.parquet"
    pq.write_table(chosen.table, labelled)
    trained = judging.train(judging.of_table(labelled, kind, "predictive", meaning, hold_out, seed), log)
    trained.save(folder)
    labelled.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return trained


def _numbers(column: pa.ChunkedArray) -> Floats:
    try:
        numbers: Floats = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise RecipeError(f"a column of losses holds no numbers: {error}") from error
    return numbers
