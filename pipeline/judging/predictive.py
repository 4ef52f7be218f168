"""Texts for a judge from the losses of several models: documents on which better models have lower losses are good
(mixing/predictive.py), and those of which the reverse is true are bad."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.classifiers.card import Head, Json
from gristmill.classifiers.teaching.passages import text_hashes
from gristmill.kernels.base.types import Floats
from gristmill.mixing.predictive import ESTIMATORS, FEWEST_MODELS, best_share, pairs_left_out
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import cast_to
from gristmill.pipeline.judging.judge_plan import Losses
from gristmill.pipeline.judging.lessons import BAD, GOOD, Lesson, Loaded, lesson_of, read_texts

PREDICTIVE = "predictive"  # the value of a document, and the head's name unless given


def lesson_of_losses(loaded: Loaded, wanted: Losses) -> tuple[Lesson, pa.Table]:
    """Documents with a column of losses (bits per byte) for each model of the scores; and the table of those that were
    chosen, with their values."""
    plan, where = loaded.plan, loaded.where
    models, tasks, scores_MT = read_scores(wanted.scores, where("losses", "scores"))
    needed = {where("losses", "by"): wanted.by} if wanted.by else {}
    columns = [wanted.column.replace("{model}", model) for model in models]
    table = read_texts(loaded, wanted.files, where("losses", "files"), needed, columns)
    used = [m for m, column in enumerate(columns) if column in table.column_names]
    if len(used) < FEWEST_MODELS:
        raise loaded.wrong(
            ("losses",),
            f"{len(used)} models have both scores and a column `{wanted.column}` of losses; expected {FEWEST_MODELS} or more",
        )
    expected = f"{where('losses', 'files')}: losses are numbers"
    losses_MD = np.stack(
        [cast_to(table[columns[m]], pa.float64(), expected).to_numpy(zero_copy_only=False) for m in used]
    )
    known = np.isfinite(losses_MD).all(axis=0)
    dropped, table, losses_MD = int((~known).sum()), table.filter(pa.array(known)), losses_MD[:, known]
    order = np.argsort(
        text_hashes(table[plan.text], 0), kind="stable"
    )  # neither files nor lengths decide between equals
    table, losses_MD = table.take(pa.array(order)), losses_MD[:, order]
    if not len(table):
        raise loaded.wrong(("losses", "files"), "no document has the losses of all models")
    sizes_D = pc.fill_null(pc.binary_length(table[plan.text]), 0).to_numpy().astype(np.float64)
    sizes_D = np.maximum(sizes_D, 1.0)
    group_D = np.arange(len(table))
    if wanted.by:
        group_D = pc.rank(table[wanted.by].combine_chunks(), tiebreaker="dense").to_numpy().astype(np.int64) - 1
    sizes_G = np.bincount(group_D, sizes_D).astype(np.float64)
    losses_MG = np.stack([np.bincount(group_D, row * sizes_D) / sizes_G for row in losses_MD])
    try:
        scores_MT = scores_MT[used]
        values_G = ESTIMATORS[wanted.estimator](losses_MG, scores_MT)
        check = pairs_left_out(losses_MG, scores_MT, sizes_G, wanted.estimator, wanted.share, plan.seed)
    except ValueError as error:
        raise loaded.wrong(("losses",), str(error)) from error
    good_G = best_share(values_G, sizes_G, wanted.share)
    bad_G = best_share(-values_G, sizes_G, wanted.share) & ~good_G
    label_D = np.where(good_G, GOOD, np.where(bad_G, BAD, ""))[group_D]
    rows = pa.array(np.flatnonzero(label_D != ""))
    facts: Json = {
        "estimator": wanted.estimator, "share": wanted.share, "by": wanted.by,
        "models": [models[m] for m in used], "tasks": tasks,
        "documents": len(table), "without_losses": dropped, "groups": len(sizes_G),
        "good": int((label_D == GOOD).sum()), "bad": int((label_D == BAD).sum()),
        "pairs_left_out": check.pairs, "found_by_chosen": check.chosen, "found_by_all": check.all_documents,
    }  # fmt: skip
    chosen = table.drop_columns([columns[m] for m in used]).take(rows)
    labels = pa.array(label_D).take(rows)
    meaning = plan.meaning or (
        f"like documents on which {len(used)} models' losses go with their scores on {', '.join(tasks)}; of "
        f"{check.pairs} pairs of models left out the choice finds the better in {check.chosen:.0%}, all documents in "
        f"{check.all_documents:.0%}"
    )
    head = Head(plan.head or PREDICTIVE, "probability", (BAD, GOOD), meaning)
    lesson = replace(lesson_of(loaded, chosen, labels, head, wanted.files), facts={"selection": facts})
    chosen = chosen.append_column("label", labels).append_column(PREDICTIVE, pa.array(values_G[group_D]).take(rows))
    return lesson, chosen


def read_scores(path: str, where: str) -> tuple[list[str], list[str], Floats]:
    """Models, tasks and scores (models x tasks, higher is better) from `model,TASK,...`."""
    try:
        rows = [row for row in csv.reader(io.StringIO(Path(path).read_text(encoding="utf-8-sig"))) if any(row)]
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{where}: {path}: cannot be read: {error}") from error
    if len(rows) < 2 or rows[0][0].strip() != "model" or len(rows[0]) < 2:
        raise RecipeError(f"{where}: {path}:1: expected a line `model,TASK,...` and a line a model")
    tasks, models, scores = [name.strip() for name in rows[0][1:]], list[str](), list[list[float]]()
    for number, row in enumerate(rows[1:], 2):
        try:
            values = [float(cell) for cell in row[1:]]
        except ValueError:
            raise RecipeError(f"{where}: {path}: row {number}: expected a number a task") from None
        if len(values) != len(tasks) or not np.isfinite(values).all():
            raise RecipeError(f"{where}: {path}: row {number}: expected {len(tasks)} finite numbers")
        if row[0].strip() in models:
            raise RecipeError(f"{where}: {path}: row {number}: model {row[0].strip()!r} stands there already")
        models.append(row[0].strip())
        scores.append(values)
    return models, tasks, np.array(scores)
