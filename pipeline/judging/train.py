"""A judge from its plan: texts read and labelled, then one training for each seed, as it is, in rounds, or from a
teacher's scores, with figures on texts that no training saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.card import Head, Json
from gristmill.classifiers.judge import Judge, WrongSetting, kind_class, kind_settings, load_judge
from gristmill.kernels.common.device import on_device
from gristmill.kernels.common.settings import in_a_sentence
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.formatting import nearest
from gristmill.pipeline.inputs.columns import cast_to
from gristmill.pipeline.judging import lessons
from gristmill.pipeline.judging.judge_plan import Distil, Iterate, JudgePlan, Verify
from gristmill.pipeline.judging.lessons import BAD, GOOD, LABEL, TEXT, Lesson, Loaded
from gristmill.pipeline.judging.predictive import lesson_of_losses
from gristmill.pipeline.judging.scoring import judge_errors
from gristmill.pipeline.store.storage import Store
from gristmill.stages.judge.judge import card_at
from gristmill.stages.stage import CannotRun

if TYPE_CHECKING:
    from gristmill.classifiers.judge import Train
    from gristmill.classifiers.teaching.distil import DistilRecipe
    from gristmill.classifiers.teaching.iterate import Verifier
    from gristmill.classifiers.teaching.seeds import TrainingSet as BuiltSet
    from gristmill.classifiers.training_sets import LabelledTexts

Log = Callable[[str], None]
SCORES = "_scores"
TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class Ready:
    """A plan whose texts were read and fit it."""

    loaded: Loaded
    folder: Path  # the judge's, which is new
    lesson: Lesson
    pool: pa.Table | None = None  # of rounds
    built: BuiltSet | None = None
    chosen: pa.Table | None = None  # by losses
    teaching: DistilRecipe | None = None

    @property
    def plan(self) -> JudgePlan:
        return self.loaded.plan

    @property
    def head(self) -> Head:
        return self.lesson.head

    @property
    def labelled(self) -> LabelledTexts:
        from gristmill.classifiers.training_sets import labelled_texts

        return labelled_texts(self.lesson.table, TEXT, LABEL, self.lesson.weight, self.lesson.group)

    @property
    def trainings(self) -> int:
        """At most."""
        return self.plan.seeds * (1 + (self.plan.iterate.rounds if self.plan.iterate else 0))

    @judge_errors()
    def carry_out(self, log: Log) -> Judge:
        """Train, and save: of several sources also `FOLDER.training_set.parquet`, what became of each of their rows; of
        losses `FOLDER.predictive.parquet`, the documents that were chosen, with their values."""
        check_writable(self.folder)
        judge = train(self, log)
        judge.save(self.folder)
        if self.chosen is not None:
            pq.write_table(self.chosen, f"{self.folder}.predictive.parquet", compression="zstd")
        if self.built is not None:
            kept = self.built.table.select(["source", "row", "label", "group", "held_out"])
            rows = pa.concat_tables([kept, self.built.dropped], promote_options="permissive")
            pq.write_table(rows, f"{self.folder}.training_set.parquet", compression="zstd")
        return judge


@judge_errors()
def prepare(loaded: Loaded, out: str | Path | None = None) -> Ready:
    """Everything that can be wrong is said before anything is trained or scored."""
    plan, folder = loaded.plan, room_for(loaded.out(out), "--out" if out else loaded.where("out"))
    if plan.distil is not None:
        return _distilling(loaded, folder, plan.distil)
    built = chosen = None
    if plan.labelled is not None:
        lesson = lessons.lesson_of_table(loaded, plan.labelled)
    elif plan.losses is not None:
        lesson, chosen = lesson_of_losses(loaded, plan.losses)
    elif plan.training_set is not None:
        lesson, built = lessons.lesson_of_sources(loaded, plan.training_set)
    else:
        lesson = lessons.lesson_of_two_sets(loaded, plan.good or (), plan.bad or ())
    _check_head(loaded, lesson.head)
    if plan.iterate is None:
        return Ready(loaded, folder, lesson, built=built, chosen=chosen)
    if lesson.head.kind not in ("probability", "classes"):
        raise loaded.wrong(("iterate",), f"rounds add labels; these texts have numbers ({lesson.head.kind})")
    verify = plan.iterate.verify
    if verify is not None:
        _cuts_fit(loaded, lesson.head, len(verify.cuts), "iterate", "verify", "cuts")
        if verify.judge:
            _head_of(loaded, verify.judge, "", "iterate", "verify", "judge")
    return Ready(loaded, folder, lesson, lessons.pool_of(loaded, plan.iterate), built, chosen)


def train(ready: Ready, log: Log) -> Judge:
    """The judge of the first seed, with its figures on what was held out, and how far other seeds are from it."""
    from gristmill.classifiers.teaching.agreement import spread_over_seeds

    plan = ready.plan
    for label, count in ready.lesson.facts.get("left_out", {}).items():
        log(f"left out: {count:,} texts of the label {label!r}, which are too few to learn from (`fewest`)")
    for warning in ready.lesson.warnings:
        log(f"warning: {warning}")
    if plan.distil is not None:
        ready = _with_scores(ready, plan.distil, log)
    first, unseen = _of_seed(ready, plan.seed, log)
    card, name = first.card, ready.head.name
    facts = ready.lesson.facts | ({"balance": True} if plan.balance else {})
    facts |= {"grouped_by": ready.lesson.grouped} if plan.hold_out else {}
    metrics = card.metrics
    if plan.seeds > 1:
        figures, outputs = [metrics[name]], [first.outputs(unseen)[name]]
        for seed in range(plan.seed + 1, plan.seed + plan.seeds):
            judge, _ = _of_seed(ready, seed, log)  # judges may be large: only their scores are kept
            figures.append(judge.card.metrics[name])
            outputs.append(judge.outputs(unseen)[name])
        metrics = metrics | {name: figures[0] | {"seeds": spread_over_seeds(plan.seed, ready.head, figures, outputs)}}
    card = replace(card, training=card.training | facts, metrics=metrics)
    return replace(first, card=card)  # type: ignore[type-var]


def held_out_count(ready: Ready) -> int:
    """Texts that are held out; before a teacher has scored them, about so many."""
    from gristmill.classifiers.training_sets import held_out

    if not ready.plan.hold_out:
        return 0
    if LABEL not in ready.lesson.table.column_names:
        return round(len(ready.lesson.table) * ready.plan.hold_out)
    return int(held_out(ready.labelled, ready.plan.hold_out, ready.plan.seed).sum())


def _of_seed(ready: Ready, seed: int, log: Log) -> tuple[Judge, pa.Array]:
    """A judge and the texts that it never saw."""
    from gristmill.classifiers.training import HeldOutShare, train_and_measure
    from gristmill.classifiers.training_sets import held_out

    plan, head = ready.plan, ready.head
    train_one = _train_of(ready, seed, log)
    texts = f"{'about ' if plan.distil else ''}{len(ready.lesson.table) - held_out_count(ready):,} texts"
    log(f"training a {plan.kind_name} judge on {texts}" + (f", seed {seed}" if plan.seeds > 1 else ""))
    if ready.teaching is not None:
        from gristmill.classifiers.teaching.distil import distil

        teacher = plan.distil.teacher or f"the column {plan.distil.scores}" if plan.distil else ""
        made = distil(
            ready.lesson.table, head, train_one, ready.teaching,
            teacher=teacher, text=TEXT, mark=SCORES, group=ready.lesson.group,
        )  # fmt: skip
        return made.judge, made.held_out
    labelled = ready.labelled
    if not plan.hold_out:
        return train_one(labelled), pa.array([], pa.large_string())
    unseen = labelled.texts.filter(pa.array(held_out(labelled, plan.hold_out, plan.seed)))
    if plan.iterate is not None and ready.pool is not None:
        return _in_rounds(ready, plan.iterate, ready.pool, train_one, log), unseen
    return train_and_measure(labelled, head, train_one, HeldOutShare(plan.hold_out, plan.seed)), unseen


def _in_rounds(ready: Ready, rounds: Iterate, pool: pa.Table, train_one: Train, log: Log) -> Judge:
    from gristmill.classifiers.teaching.iterate import IterationRecipe, as_proposed, iterate

    metric = rounds.metric or ("auc" if ready.head.kind == "probability" else "kappa_quadratic")
    same = rounds.model_dump(exclude={"pool", "verify", "metric"})
    recipe = IterationRecipe(**same, metric=metric, held_out=ready.plan.hold_out, seed=ready.plan.seed)

    def tell(line: Json) -> None:
        added = ", ".join(f"{count:,} {label}" for label, count in line.get("added", {}).items())
        figure = f"{metric} {line['gate']:.4f}" if "gate" in line else "nothing to add"
        kept = "" if line["round"] == 0 else ", kept" if line["kept"] else ", not kept"
        log(f"round {line['round']}: {figure}{kept}" + (f"; added {added}" if added else ""))

    verify = as_proposed if rounds.verify is None else _verifier(ready, rounds.verify, log)
    return iterate(ready.labelled, pool, ready.head, train_one, verify, recipe, tell).judge


def _verifier(ready: Ready, verify: Verify, log: Log) -> Verifier:
    from gristmill.classifiers.teaching.iterate import by_marks

    stage = verify.llm_score
    if stage is None:
        other = load_judge(verify.judge, on_device("auto"))
        name = _head_of(ready.loaded, verify.judge, "", "iterate", "verify", "judge").name
        return by_marks(lambda texts: other.score(texts)[name], ready.head, verify.cuts)

    def asked(texts: pa.Array) -> Any:
        log(f"asking a language model about {len(texts):,} texts")
        try:
            marks = stage.annotate(pa.RecordBatch.from_arrays([texts], ["text"]))[stage.signal]
        except CannotRun as error:
            raise RunFailed(str(error)) from error
        return marks.cast(pa.float64()).fill_null(float("nan")).to_numpy(zero_copy_only=False)

    return by_marks(asked, ready.head, verify.cuts)


def _distilling(loaded: Loaded, folder: Path, wanted: Distil) -> Ready:
    """Which head the student has, and what it learns."""
    from gristmill.classifiers.teaching.distil import DistilRecipe

    plan, where = loaded.plan, loaded.where
    needed = {where("distil", "scores"): wanted.scores} if wanted.scores else {}
    table = lessons.read_texts(loaded, wanted.files, where("distil", "files"), needed)
    texts, grouped = lessons.unlabelled(loaded, table)
    taught = _head_of(loaded, wanted.teacher, wanted.teacher_head, "distil", "teacher") if wanted.teacher else None
    low, high = (taught.low, taught.high) if taught else (wanted.low, wanted.high)
    classes = taught.labels if taught and taught.kind == "classes" else ()
    cuts = wanted.cuts or tuple(k + 0.5 for k in range(len(classes) - 1)) or ((low + high) / 2,)
    form: Any = wanted.form or plan.judge.learns
    name = plan.head or (taught.name if taught else lessons.QUALITY)
    meaning = plan.meaning or (taught.meaning if taught else f"as the column {wanted.scores} scored texts")
    if form == "hard" and len(cuts) > 1:
        between = tuple(f"{a:g} to {b:g}" for a, b in pairwise((low, *cuts, high)))
        named = classes if len(classes) == len(between) else between
        head = Head(name, "classes", named, meaning, 0, len(cuts))
    elif form == "value" and not (taught and taught.kind == "probability"):
        head = Head(name, "regression", (), meaning, low, high)
    else:
        labels = taught.labels if taught and taught.kind == "probability" else (BAD, GOOD)
        head = Head(name, "probability", labels, meaning)
    recipe = DistilRecipe(cuts, form, low, high, plan.balance, plan.hold_out, plan.seed)
    recipe.check(head)
    _check_head(loaded, head)
    if wanted.scores:
        scores = cast_to(table[wanted.scores], pa.float64(), f"{where('distil', 'scores')}: scores are numbers")
        texts = texts.append_column(SCORES, scores)
    warnings = lessons.straddling(loaded, texts, wanted.files)
    return Ready(loaded, folder, Lesson(texts, head, grouped, warnings=warnings), teaching=recipe)


def _with_scores(ready: Ready, wanted: Distil, log: Log) -> Ready:
    """What the teacher says of each text."""
    if not wanted.teacher:
        return ready
    table = ready.lesson.table
    name = _head_of(ready.loaded, wanted.teacher, wanted.teacher_head, "distil", "teacher").name
    teacher = load_judge(wanted.teacher, on_device("auto"))
    log(f"scoring {len(table):,} texts by {wanted.teacher}")
    texts = table[TEXT].combine_chunks()
    scores = [
        teacher.score(texts.slice(start, TEXTS_AT_ONCE))[name].astype(np.float64)
        for start in range(0, len(texts), TEXTS_AT_ONCE)
    ]
    scored = table.append_column(SCORES, pa.array(np.concatenate(scores)))
    return replace(ready, lesson=replace(ready.lesson, table=scored))


def _check_head(loaded: Loaded, head: Head) -> None:
    """Can the kind learn it?"""
    plan = loaded.plan
    if head.kind not in plan.judge.heads_learnt:
        able = [kind for kind in kind_settings() if head.kind in kind_class(kind).heads_learnt]
        what = "decimal numbers" if head.kind == "regression" else f"a head of {head.kind}"
        raise loaded.wrong(
            ("kind",),
            f"a {plan.kind_name} judge cannot learn {what}; {in_a_sentence(able)} judges can, or cut the values into classes",
        )


def _head_of(loaded: Loaded, folder: str, name: str, *place: str) -> Head:
    """The head of a judge that gives scores."""
    try:
        heads = [head for head in card_at(folder).heads if head.kind != "labels"]
    except (OSError, ValueError, KeyError, TypeError):
        raise loaded.wrong(place, f"{folder}: no folder of a judge") from None
    wanted = [head for head in heads if head.name == name or not name]
    if not wanted:
        there = nearest(name, [head.name for head in heads]) if heads else "; it gives labels, no scores"
        raise loaded.wrong(place, f"{folder}: no head {name!r}{there}" if name else f"{folder} gives labels, no scores")
    return wanted[0]


def _cuts_fit(loaded: Loaded, head: Head, cuts: int, *place: str) -> None:
    if cuts != len(head.labels) - 1:
        raise loaded.wrong(
            place, f"{len(head.labels) - 1} were expected, between the labels {', '.join(head.labels)}; not {cuts}"
        )


def _train_of(ready: Ready, seed: int, log: Log) -> Train:
    """A training of the plan's kind, by this seed."""
    from gristmill.classifiers.training import sharpened
    from gristmill.classifiers.training_sets import balanced_weights, repeated

    plan, head = ready.plan, ready.head
    try:
        one_of_kind = plan.judge.trainer(plan.kind, head, seed, log)
    except WrongSetting as error:
        raise ready.loaded.wrong(("kind", plan.kind_name, error.setting), str(error)) from error

    def train_one(texts: LabelledTexts) -> Judge:
        if not plan.balance or ready.teaching is not None:  # `distil` balances by itself
            return one_of_kind(texts)
        if plan.judge.weighs:
            return one_of_kind(replace(texts, weights=balanced_weights(texts)))
        judge = one_of_kind(repeated(texts))
        card = replace(judge.card, training=judge.card.training | texts.as_json())  # each text counts once
        return replace(judge, card=card)  # type: ignore[type-var]

    def with_right_chances(texts: LabelledTexts) -> Judge:
        return sharpened(train_one(texts), texts, head, train_one, plan.seed)

    return with_right_chances if head.kind == "labels" else train_one


def room_for(out: str, where: str = "--out") -> Path:
    """A judge is never written over another: said before anything is trained."""
    folder = Path(out)
    if "://" in out:
        raise RecipeError(f"{where}: {out}: a judge is saved to a local folder")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RecipeError(f"{where}: {out} is there already and not empty; name a new folder")
    return folder


def check_writable(folder: Path) -> None:
    """The folder above, into which a judge is written: made if it is not there. RunFailed says why it cannot be
    written, before anything is trained."""
    Store(str(folder.absolute().parent)).make_root()
