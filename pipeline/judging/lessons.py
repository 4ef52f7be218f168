"""Lessons for judges from files of texts: which column says what, which label is good, what is held out together.

Labels of a table are read as a person would: two that are known opposites, or those that are named good, make a
probability; whole numbers or classes named in order make classes; decimal numbers a regression, which pooled and neural
judges can learn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.classifiers.card import UNKNOWN, Head, Json
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import nearest
from gristmill.pipeline.inputs.columns import (
    LABELLED_BY,
    cast_to,
    check_column,
    files_of,
    noted_in,
    pieces_of,
    table_of,
    with_texts,
)
from gristmill.pipeline.judging.judge_plan import Iterate, JudgePlan, Labelled, Source, TrainingSet
from gristmill.pipeline.recipe.plans import LoadedPlan
from gristmill.stages.text.language import Language

if TYPE_CHECKING:
    from gristmill.classifiers.teaching.seeds import TrainingSet as BuiltSet
    from gristmill.classifiers.training_sets import LabelledTexts

Loaded = LoadedPlan[JudgePlan]

BAD, GOOD = "bad", "good"
OPPOSITES = (
    ("bad", "good"),
    ("0", "1"),
    ("false", "true"),
    ("no", "yes"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("low", "high"),
)
MOST_CLASSES = 20  # whole numbers that are taken for grades unasked; more are numbers of something else
WEIGHT, GROUP = "_weight", "_group"  # no head is called so
TEXT, LABEL = "_text", "_label"
LANGUAGE, URL, WORK = "language", "url", "work"
GROUPS = (URL, WORK)  # columns of groups, unless the plan names others
ALONE = "text "  # begins the group of a text that no column gives one
FEWEST_GROUPS = 3  # different values of a column that may name groups
QUALITY = "quality"  # a head's name unless given


@dataclass(frozen=True)
class Lesson:
    """A table of texts, and where they are known labels, weights and groups, and the head that it teaches."""

    table: pa.Table
    head: Head
    grouped: str  # in words
    facts: Json = field(default_factory=dict)  # for the card's training
    warnings: tuple[str, ...] = ()

    @property
    def weight(self) -> str | None:
        return WEIGHT if WEIGHT in self.table.column_names else None

    @property
    def group(self) -> str | None:
        return GROUP if GROUP in self.table.column_names else None


def lesson_of_table(loaded: Loaded, labelled: Labelled) -> Lesson:
    """Of files with a column of labels."""
    where = loaded.where
    table = read_texts(loaded, labelled.files, where("labelled", "files"), {where("labelled", "label"): labelled.label})
    column = table[labelled.label]
    if labelled.unordered:
        made = noted_in(files_of(labelled.files, where("labelled", "files"))[0], LABELLED_BY)
        return _lesson_of_labels(loaded, labelled, table, made)
    labels = _labels(column, where("labelled", "label"))
    if pa.types.is_floating(labels.type) and not labelled.good and not labelled.classes:
        return lesson_of(loaded, table, labels, _regression(labels, loaded), labelled.files)
    words = _as_words(labels, where("labelled", "label"))
    if labelled.good:
        good, head = _good_or_not(words, labelled.good, loaded)
        return lesson_of(loaded, table, good, head, labelled.files)
    head = head_in_order(loaded, words, labelled.classes, "labelled")
    return lesson_of(loaded, table, pa.array(words, pa.string()), head, labelled.files)


def _lesson_of_labels(loaded: Loaded, labelled: Labelled, table: pa.Table, made: Json | None) -> Lesson:
    """Of labels without an order. Labels of fewer texts than `fewest` are left out, and counted."""
    where = loaded.where("labelled", "label")
    words = _as_words(_labels(table[labelled.label], where), where)
    counts = Counter(words)
    rare = {label: count for label, count in counts.items() if count < labelled.fewest}
    table = table.filter(pa.array([word not in rare for word in words]))
    labels = pa.array([word for word in words if word not in rare], pa.string())
    if len(counts) - len(rare) < 2:
        raise RecipeError(
            f"{loaded.where('labelled', 'fewest')}: {len(counts) - len(rare)} labels have {labelled.fewest} texts or"
            f" more; a judge learns from two kinds of texts. There are {_commonest(counts)}"
        )
    meaning = loaded.plan.meaning or "which of its labels fits best"
    head = Head(loaded.plan.head or QUALITY, "labels", tuple(sorted(set(labels.to_pylist()))), meaning)
    facts = {
        "languages": languages_of(table[LANGUAGE] if LANGUAGE in table.column_names else None, table[loaded.plan.text]),
        **({"left_out": dict(sorted(rare.items()))} if rare else {}),
        **({"labelled_by": made} if made else {}),
    }
    return replace(lesson_of(loaded, table, labels, head, labelled.files), facts=facts)


def languages_of(named: pa.ChunkedArray | None, texts: pa.ChunkedArray) -> dict[str, int]:
    """How many texts of each language, the commonest first: as the table names them, or as the default model does."""
    if named is None or named.null_count == len(named):
        batch = pa.RecordBatch.from_arrays([_one(texts)], ["text"])
        named = pa.chunked_array([Language().annotate(batch)["language"].cast(pa.string())])
    return dict(Counter(str(name or UNKNOWN) for name in named.to_pylist()).most_common())


def lesson_of_two_sets(loaded: Loaded, good: Sequence[str], bad: Sequence[str]) -> Lesson:
    """Of files of good texts and files of bad ones."""
    sets = [read_texts(loaded, files, loaded.where(name)) for name, files in (("bad", bad), ("good", good))]
    table = pa.concat_tables(sets, promote_options="permissive")
    labels = pa.array([BAD] * len(sets[0]) + [GOOD] * len(sets[1]), pa.string())
    meaning = loaded.plan.meaning or "like the good texts that it was trained on, unlike the bad ones"
    head = Head(loaded.plan.head or QUALITY, "probability", (BAD, GOOD), meaning)
    return lesson_of(loaded, table, labels, head, [*good, *bad])


def lesson_of_sources(loaded: Loaded, wanted: TrainingSet) -> tuple[Lesson, BuiltSet]:
    """Of several sources by a recipe, and what became of every row."""
    from gristmill.classifiers.teaching import seeds
    from gristmill.classifiers.teaching.copies import Alike

    plan = loaded.plan
    sources, tables = [], {}
    for name, source in wanted.sources.items():
        sources.append(seeds.SeedSource(name, **source.model_dump(exclude={"files", "score"})))
        tables[name] = _source_table(loaded, wanted, name, source, scored=sources[-1].marked)
    same = wanted.model_dump(exclude={"sources", "classes", "near_copies"})
    recipe = seeds.SeedRecipe(
        tuple(sources), **same, alike=Alike(wanted.near_copies), held_out=plan.hold_out, seed=plan.seed
    )
    built = seeds.training_set(tables, recipe)
    columns = {TEXT: "text", LABEL: "label", GROUP: "group"}
    table = pa.table({ours: _one(built.table[theirs]) for ours, theirs in columns.items()})
    head = head_in_order(loaded, table[LABEL].to_pylist(), wanted.classes, "training_set")
    grouped = f"the host or value of {', '.join(plan.group or GROUPS)}, else the {wanted.ungrouped}"
    return Lesson(table, head, grouped, {"training_set": built.report}), built


def _source_table(loaded: Loaded, wanted: TrainingSet, name: str, source: Source, scored: bool) -> pa.Table:
    """A source with the columns that the recipe knows; groups of yours are its works."""
    place, by = ("training_set", "sources", name), loaded.plan.group
    beside = [*(wanted.balance or ()), *by, WORK]
    needed = {loaded.where(*place, "score"): source.score} if scored else {}
    table = read_texts(loaded, source.files, loaded.where(*place, "files"), needed, beside)
    columns = {"text": _one(table[loaded.plan.text])}
    if by:
        texts, _ = unlabelled(loaded, table, all_groups=False)
        columns |= {WORK: texts[GROUP]} if GROUP in texts.column_names else {}
    else:
        columns |= {column: _one(table[column]) for column in (URL, WORK) if column in table.column_names}
    columns |= {"mark": _one(table[source.score])} if scored else {}
    for column in wanted.balance or ():
        if column not in table.column_names:
            raise RecipeError(f"{loaded.where('training_set', 'balance')}: {name} has no column {column!r}")
        columns[column] = _one(table[column])
    return pa.table(columns)


def pool_of(loaded: Loaded, rounds: Iterate) -> pa.Table:
    """Texts for rounds, prepared and grouped as those of the plan are: text, group."""
    from gristmill.classifiers.teaching.passages import passages, text_hashes
    from gristmill.classifiers.teaching.seed_groups import groups_of as groups_of_sources

    of, wanted = loaded.where("iterate", "pool"), loaded.plan.training_set
    table = read_texts(loaded, rounds.pool, of, more=[WORK])
    texts, _ = unlabelled(loaded, table, all_groups=False)
    column = texts[TEXT].combine_chunks()
    if wanted is None:
        groups = texts[GROUP] if GROUP in texts.column_names else groups_of([], column, of)
        return pa.table({"text": column, "group": groups})
    hashes = text_hashes(column, loaded.plan.seed)
    named = {name: table[name] for name in (URL, WORK) if name in table.column_names}
    if loaded.plan.group:
        named = {WORK: texts[GROUP]} if GROUP in texts.column_names else {}
    groups = groups_of_sources(pa.table({"text": column, **named}), hashes, "pool", "text")
    column = column if wanted.window is None else passages(column, wanted.window, loaded.plan.seed)
    return pa.table({"text": column, "group": groups})


def unlabelled(loaded: Loaded, table: pa.Table, all_groups: bool = True) -> tuple[pa.Table, str]:
    """Texts and their groups, and what these are in words."""
    columns = {TEXT: _one(table[loaded.plan.text])}
    named = loaded.plan.group
    for name in named if all_groups else ():
        if name not in table.column_names:
            raise RecipeError(f"{loaded.where('group')}: no column {name!r}{nearest(name, table.column_names)}")
    by = [name for name in named or GROUPS if name in table.column_names]
    if by:
        columns[GROUP] = groups_of([_one(table[name]) for name in by], columns[TEXT], loaded.where("group"))
    grouped = f"the host or value of {', '.join(by)}" if by else "text (there is no `group`, and no column url or work)"
    return pa.table(columns), grouped


def read_texts(
    loaded: Loaded, paths: Sequence[str], of: str, needed: dict[str, str] | None = None, more: Sequence[str] = ()
) -> pa.Table:
    """The columns of files that the plan names, those of `needed` (by what names them) for certain."""
    plan, files = loaded.plan, files_of(paths, of)
    asked = {loaded.where("text"): plan.text, **(needed or {})}
    asked |= {loaded.where("weight"): plan.weight} if plan.weight else {}
    table = table_of(files, [*dict.fromkeys([*asked.values(), LANGUAGE, *(plan.group or GROUPS), *more])])
    for named_by, name in asked.items():
        check_column(table, name, files, named_by)
    if not table.num_rows:
        raise RecipeError(f"{of}: {files[0].address}: no rows")
    table = with_texts(table, plan.text, files[0].address)
    if table[plan.text].null_count == table.num_rows:
        raise RecipeError(f"{loaded.where('text')}: {files[0].path}: no row has a text in the column {plan.text!r}")
    return table


def straddling(loaded: Loaded, texts: pa.Table, paths: Sequence[str]) -> tuple[str, ...]:
    """A warning of rows that are groups by themselves, where another column of the files looks like their group."""
    plan, alone = loaded.plan, len(texts)
    if plan.group:
        return ()
    if GROUP in texts.column_names:
        alone = pc.sum(pc.starts_with(texts[GROUP], ALONE)).as_py() or 0
    label = plan.labelled.label if plan.labelled else None
    known = {plan.text, plan.weight, label, LANGUAGE, *GROUPS}
    found: dict[str, float] = {}  # texts of a value
    for file in files_of(paths, "files") if alone else ():
        first = next(iter(pieces_of(file)), pa.table({}))
        for name in (name for name in first.column_names if name not in known):
            column = first[name].combine_chunks()
            values = column.drop_null().unique() if _may_name_groups(column.type) else ()
            if FEWEST_GROUPS <= len(values) <= (len(column) - column.null_count) / 2:
                found[name] = min(found.get(name, math.inf), (len(column) - column.null_count) / len(values))
    if not found:
        return ()
    name = min(found, key=lambda name: found[name])
    return (
        f"{alone:,} of {len(texts):,} texts have no {' or '.join(GROUPS)}, and each is held out by itself; but the column"
        f" {name!r} looks like their group (about {found[name]:.0f} texts of each value). If it is one, texts of one group"
        f" are on both sides, and the figures are too good: `group: [{URL}, {name}]` holds groups out whole,"
        f" `group: {URL}` says that it is none",
    )


def _may_name_groups(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def lesson_of(loaded: Loaded, table: pa.Table, labels: pa.Array, head: Head, paths: Sequence[str]) -> Lesson:
    texts, grouped = unlabelled(loaded, table)
    columns_of_lesson = {name: texts[name] for name in texts.column_names} | {LABEL: labels}
    if loaded.plan.weight:
        where = f"{loaded.where('weight')}: {loaded.plan.weight}"
        weights = cast_to(table[loaded.plan.weight], pa.float64(), f"{where}: weights are numbers")
        if not (np.nan_to_num(weights.to_numpy(zero_copy_only=False), posinf=0.0) > 0).all():
            raise RecipeError(f"{where}: has weights that are not above 0, or none at all")
        columns_of_lesson[WEIGHT] = weights
    return Lesson(pa.table(columns_of_lesson), head, grouped, warnings=straddling(loaded, texts, paths))


def groups_of(columns: Sequence[pa.Array], texts: pa.Array, where: str) -> pa.Array:
    """The first that a row has; of an address its host. A row without any is a group by its text, so that equal texts
    are one."""
    groups: list[str | None] = [None] * len(texts)
    for column in columns:
        values = cast_to(column, pa.string(), f"{where}: groups are texts or numbers")
        group_of = {value: _host(value) for value in values.unique().to_pylist()}
        groups = [
            group_of[value] if group_so_far is None else group_so_far
            for group_so_far, value in zip(groups, values.to_pylist(), strict=True)
        ]
    for row in [row for row, group in enumerate(groups) if group is None]:
        text = texts[row].as_py() or ""
        groups[row] = f"{ALONE}{xxhash.xxh3_128_hexdigest(text.encode('utf-8', 'replace'))}"
    return pa.array(groups, pa.string())


def texts_in_groups(paths: Sequence[str], text: str, group: str) -> LabelledTexts:
    """Texts without labels, with their groups, if the files have that column; else equal texts are one group."""
    from gristmill.classifiers.training_sets import LabelledTexts

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


def _host(value: object) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    try:
        return urlsplit(text).hostname or text if "://" in text else text
    except ValueError:
        return text


def _good_or_not(words: list[str], good: Sequence[str], loaded: Loaded) -> tuple[pa.Array, Head]:
    """Labels as the head has them: those that are named good, and all others."""
    where, counts = loaded.where("labelled", "good"), Counter(words)
    _check_labels(counts, good, where)
    if set(good) == set(counts):
        raise RecipeError(f"{where}: every label is named good; a judge learns from two kinds of texts")
    meaning = loaded.plan.meaning or f"like the texts labelled {' or '.join(good)}"
    labels = pa.array([GOOD if word in good else BAD for word in words], pa.string())
    return labels, Head(loaded.plan.head or QUALITY, "probability", (BAD, GOOD), meaning)


def head_in_order(loaded: Loaded, words: Sequence[str], classes: Sequence[str], block: str) -> Head:
    """Of labels in the order that is named, or that needs no naming."""
    where, counts, plan = loaded.where(block, "classes"), Counter(words), loaded.plan
    most_common, name = _commonest(counts), plan.head or QUALITY
    _check_labels(counts, classes, where)
    ordered = tuple(classes) or _in_order(counts)
    if ordered is None:
        raise RecipeError(
            f"{loaded.where(block)}: which labels are good? Name them as `good`, or all of them from worst to best as"
            f" `classes`; of labels without an order (topics, formats) say `unordered: true`. There are {most_common}"
        )
    if len(ordered) < len(counts):
        raise RecipeError(f"{where}: names {len(ordered)} of {len(counts)} labels. There are {most_common}")
    if len(ordered) == 2:
        return Head(name, "probability", ordered, plan.meaning or f"like the texts labelled {ordered[1]}")
    meaning = plan.meaning or f"from {ordered[0]} to {ordered[-1]}, as the texts were labelled"
    return Head(name, "classes", ordered, meaning, 0, len(ordered) - 1)


def _check_labels(counts: Counter[str], named: Sequence[str], where: str) -> None:
    for label in named:
        if label not in counts:
            raise RecipeError(f"{where}: no row has the label {label!r}{nearest(label, list(counts)[:50])}")
    if len(counts) < 2:
        raise RecipeError(
            f"{where}: every row has the label {next(iter(counts))!r}; a judge learns from two kinds of texts"
        )


def _labels(column: pa.Array | pa.ChunkedArray, where: str) -> pa.Array:
    """Every row has one."""
    labels = _one(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(labels.type):
        labels = labels.dictionary_decode()
    none = labels.null_count + (int(pc.sum(pc.is_nan(labels)).as_py() or 0) if pa.types.is_floating(labels.type) else 0)
    if none:
        raise RecipeError(f"{where}: {none:,} rows have no label; leave them out")
    return labels


def _commonest(counts: Counter[str]) -> str:
    return ", ".join(f"{label} ({count:,})" for label, count in counts.most_common(10))


def _regression(labels: pa.Array, loaded: Loaded) -> Head:
    values = labels.to_numpy(zero_copy_only=False).astype(np.float64)
    if not np.isfinite(values).all() or values.min() == values.max():
        raise RecipeError(
            f"{loaded.where('labelled', 'label')}: labels that are decimal numbers must be finite, and not all the same"
        )
    return Head(
        loaded.plan.head or QUALITY,
        "regression",
        (),
        loaded.plan.meaning or "the value that texts were labelled with",
        float(values.min()),
        float(values.max()),
    )


def _as_words(labels: pa.Array, where: str) -> list[str]:
    if pa.types.is_floating(labels.type):
        return [f"{value:g}" for value in labels.to_pylist()]
    return [str(word) for word in cast_to(labels, pa.string(), f"{where}: labels are texts or numbers").to_pylist()]


def _in_order(counts: Counter[str]) -> tuple[str, ...] | None:
    """From worst to best, where that needs no asking: known opposites, or whole numbers."""
    for worse, better in OPPOSITES:
        if {label.lower() for label in counts} == {worse, better} and len(counts) == 2:
            first, second = sorted(counts, key=lambda label: label.lower() == better)
            return first, second
    if len(counts) <= MOST_CLASSES and all(label.removeprefix("-").isdecimal() and label.isascii() for label in counts):
        return tuple(sorted(counts, key=int))
    return None


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.cast(pa.large_string()).combine_chunks()
