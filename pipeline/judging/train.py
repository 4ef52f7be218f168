"""Judges from files of labelled texts: which column says what, which label is good, what is held out; then training and
figures.

Labels of a table are read as a person would: two that are known opposites, or those that are named good, make a
probability; whole numbers or classes named in order make classes; decimal numbers a regression, which a neural judge
alone can learn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.classifiers.card import Head
from gristmill.classifiers.judge import Judge
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import nearest
from gristmill.pipeline.judging.tables import column_names, files_of, table_of, with_texts

if TYPE_CHECKING:
    from gristmill.classifiers.training_sets import LabelledTexts

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
MOST_CLASSES = 20  # whole numbers that are taken for marks unasked; more are numbers of something else
WEIGHT, GROUP = "_weight", "_group"  # no head is called so
TEXT, LABEL = "_text", "_label"


@dataclass(frozen=True)
class Columns:
    """Names in the user's table. Of several groups the first that a row has counts; none named: its url, where it has
    one."""

    text: str = "text"
    label: str = "label"
    weight: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def grouped_by(self) -> tuple[str, ...]:
        return self.groups or ("url",)


@dataclass(frozen=True)
class Labelling:
    """What labels mean: which are good (all others are bad), or classes in their order; neither: as they say
    themselves."""

    head: str = "quality"
    good: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    meaning: str = ""


@dataclass(frozen=True)
class Lesson:
    """A table of texts and labels, and where they are known weights and groups, and the head that it teaches."""

    table: pa.Table
    head: Head
    grouped: str  # in words

    @property
    def weight(self) -> str | None:
        return WEIGHT if WEIGHT in self.table.column_names else None

    @property
    def group(self) -> str | None:
        return GROUP if GROUP in self.table.column_names else None


@dataclass(frozen=True)
class JudgeTraining:
    """How a judge is trained; what is None is as the kind has it."""

    kind: str
    hold_out: float = 0.1
    seed: int = 0
    preset: str | None = None
    epochs: float | None = None
    threads: int = 1
    tokenizer: str | None = None
    encoder: str | None = None
    tokens: int = 512
    device: str = "cpu"


def lesson_of_table(paths: Sequence[str], columns: Columns, labelling: Labelling) -> Lesson:
    """Of files with a column of labels."""
    table = _read(paths, columns, [columns.label])
    labels, head = _head(_one(table[columns.label]), labelling)
    return _lesson(table, columns, labels, head)


def lesson_of_two_sets(good: Sequence[str], bad: Sequence[str], columns: Columns, labelling: Labelling) -> Lesson:
    """Of files of good texts and files of bad ones."""
    sets = [_read(bad, columns, []), _read(good, columns, [])]
    table = pa.concat_tables(sets, promote_options="permissive")
    labels = pa.array([BAD] * len(sets[0]) + [GOOD] * len(sets[1]), pa.string())
    meaning = labelling.meaning or "like the good texts that it was trained on, unlike the bad ones"
    return _lesson(table, columns, labels, Head(labelling.head, "probability", (BAD, GOOD), meaning))


def train(lesson: Lesson, how: JudgeTraining, log: Callable[[str], None]) -> Judge:
    """A judge with its figures on what was held out, where anything was."""
    if how.kind == "neural":
        return _neural(lesson, how, log)
    from gristmill.classifiers.training import HeldOutShare, train_and_measure
    from gristmill.classifiers.training_sets import labelled_texts

    labelled = labelled_texts(lesson.table, TEXT, LABEL, lesson.weight, lesson.group)
    log(f"training a {how.kind} judge on {len(labelled):,} texts")

    def train_one(texts: LabelledTexts) -> Judge:
        return _fasttext(texts, lesson.head, how) if how.kind == "fasttext" else _linear(texts, lesson.head, how)

    return (
        train_and_measure(labelled, lesson.head, train_one, HeldOutShare(how.hold_out, how.seed))
        if how.hold_out
        else train_one(labelled)
    )


def _fasttext(texts: LabelledTexts, head: Head, how: JudgeTraining) -> Judge:
    from gristmill.classifiers.fasttext.judge import FastTextRecipe, preset, train_fasttext

    tokenizer = Path(how.tokenizer).read_text(encoding="utf-8") if how.tokenizer else None
    recipe = preset(how.preset, tokenizer) if how.preset else FastTextRecipe()
    if how.epochs is not None:
        recipe = replace(recipe, epochs=max(1, round(how.epochs)))
    return train_fasttext(texts, head, replace(recipe, seed=how.seed, threads=how.threads), tokenizer)


def _linear(texts: LabelledTexts, head: Head, how: JudgeTraining) -> Judge:
    from gristmill.classifiers.linear.judge import LinearRecipe, train_linear

    return train_linear(texts, head, LinearRecipe(seed=how.seed))


def _neural(lesson: Lesson, how: JudgeTraining, log: Callable[[str], None]) -> Judge:
    if how.encoder is None:
        raise RecipeError(
            "--encoder: a neural judge grows on an encoder; name its folder (config.json, *.safetensors,"
            " tokenizer.json) or hub id"
        )
    try:
        weights, tokens, training = (
            import_module(f"gristmill.classifiers.neural.{name}")
            for name in ("encoder_weights", "text_tokens", "training")
        )
    except ImportError as error:
        raise RecipeError(f"a neural judge needs torch: pip install 'gristmill[gpu]' ({error})") from error
    folder = _encoder_folder(how.encoder)
    encoder, _ = weights.read_encoder(folder)
    tokenizer = tokens.read_tokenizer(folder / "tokenizer.json", min(how.tokens, encoder.shape.positions))
    recipe = training.NeuralRecipe(seed=how.seed, held_out=how.hold_out)
    recipe = recipe if how.epochs is None else replace(recipe, epochs=how.epochs)
    table = lesson.table.rename_columns(
        [lesson.head.name if name == LABEL else name for name in lesson.table.column_names]
    )
    log(f"training a neural judge on {len(table):,} texts, on {how.device}")
    trained: Judge = training.train_neural(
        table,
        [lesson.head],
        tokenizer,
        encoder,
        recipe,
        text=TEXT,
        weight=lesson.weight,
        group=lesson.group,
        device=how.device,
        log=lambda facts: log(
            ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in facts.items()
            )
        ),
    )
    return trained


def _encoder_folder(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise RecipeError(f"--encoder: there is no folder {name}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise RecipeError(
            f"--encoder: there is no folder {name}, and fetching it from the hub needs huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "*.safetensors", "tokenizer.json"]))
    except Exception as error:  # whatever stands between here and the hub
        raise RecipeError(
            f"--encoder: there is no folder {name}, and the hub gave none: {str(error).splitlines()[0]}"
        ) from error


def _read(paths: Sequence[str], columns: Columns, needed: Sequence[str]) -> pa.Table:
    files = files_of(paths, "texts")
    optional = [name for name in (columns.weight,) if name] + list(columns.grouped_by)
    table = table_of(files, [columns.text, *needed, *optional])
    asked = [columns.text, *needed, *([columns.weight] if columns.weight else [])]
    for name in asked:
        if name not in table.column_names:
            there = column_names(files)
            raise RecipeError(
                f"{files[0].address}: no column {name!r}{nearest(name, there)}. --text, --label and --weight name them"
            )
    if not table.num_rows:
        raise RecipeError(f"{files[0].address}: no rows")
    return with_texts(table, columns.text, files[0].address)


def _lesson(table: pa.Table, columns: Columns, labels: pa.Array, head: Head) -> Lesson:
    columns_of_lesson = {TEXT: _one(table[columns.text]), LABEL: labels}
    for name in columns.groups:
        if name not in table.column_names:
            raise RecipeError(f"--group: no column {name!r}{nearest(name, table.column_names)}")
    if columns.weight:
        columns_of_lesson[WEIGHT] = _cast(
            _one(table[columns.weight]), pa.float64(), f"--weight: {columns.weight}: weights are numbers"
        )
        if not (np.nan_to_num(columns_of_lesson[WEIGHT].to_numpy(zero_copy_only=False), posinf=0.0) > 0).all():
            raise RecipeError(f"--weight: {columns.weight}: has weights that are not above 0, or none at all")
    by = [name for name in columns.grouped_by if name in table.column_names]
    if by:
        columns_of_lesson[GROUP] = _groups([_one(table[name]) for name in by], columns_of_lesson[TEXT])
    return Lesson(
        pa.table(columns_of_lesson),
        head,
        f"the host or value of {', '.join(by)}" if by else "text (no --group, and there is no column url)",
    )


def _groups(columns: Sequence[pa.Array], texts: pa.Array) -> pa.Array:
    """The first that a row has; of an address its host. A row without any is a group by its text, so that equal texts
    are one."""
    groups: list[str | None] = [None] * len(texts)
    for column in columns:
        values = _cast(column, pa.string(), "--group: groups are texts or numbers")
        group_of = {value: _host(value) for value in values.unique().to_pylist()}
        groups = [
            group_of[value] if group_so_far is None else group_so_far
            for group_so_far, value in zip(groups, values.to_pylist(), strict=True)
        ]
    alone = (row for row, group in enumerate(groups) if group is None)
    for row in alone:
        groups[row] = f"text {hash_of(texts[row].as_py() or '')}"
    return pa.array(groups, pa.string())


def hash_of(text: str) -> str:
    return str(xxhash.xxh3_128_hexdigest(text.encode("utf-8", "replace")))


def _host(value: object) -> str | None:
    if value is None or value == "":
        return None
    text = str(value)
    try:
        return urlsplit(text).hostname or text if "://" in text else text
    except ValueError:
        return text


def _head(labels: pa.Array, labelling: Labelling) -> tuple[pa.Array, Head]:
    """Labels as the head has them."""
    if pa.types.is_dictionary(labels.type):
        labels = labels.dictionary_decode()
    none = labels.null_count + (int(pc.sum(pc.is_nan(labels)).as_py() or 0) if pa.types.is_floating(labels.type) else 0)
    if none:
        raise RecipeError(f"{none:,} rows have no label; leave them out")
    if pa.types.is_floating(labels.type) and not labelling.good and not labelling.classes:
        return labels, _regression(labels, labelling)
    words = _as_words(labels)
    counts = Counter(words)
    most_common = ", ".join(f"{label} ({count:,})" for label, count in counts.most_common(10))
    for label in (*labelling.good, *labelling.classes):
        if label not in counts:
            raise RecipeError(f"no row has the label {label!r}{nearest(label, list(counts)[:50])}")
    if len(counts) < 2:
        raise RecipeError(f"every row has the label {next(iter(counts))!r}; a judge learns from two kinds of texts")
    if labelling.good:
        if set(labelling.good) == set(counts):
            raise RecipeError("every label is named good; a judge learns from two kinds of texts")
        meaning = labelling.meaning or f"like the texts labelled {' or '.join(labelling.good)}"
        good = pa.array([GOOD if word in labelling.good else BAD for word in words], pa.string())
        return good, Head(labelling.head, "probability", (BAD, GOOD), meaning)
    ordered = labelling.classes or _in_order(counts)
    if ordered is None:
        raise RecipeError(
            "which labels are good? Name them with --good-label, or all of them from worst to best with --classes."
            f" There are {most_common}"
        )
    if len(ordered) < len(counts):
        raise RecipeError(f"--classes names {len(ordered)} of {len(counts)} labels. There are {most_common}")
    if len(ordered) == 2:
        meaning = labelling.meaning or f"like the texts labelled {ordered[1]}"
        return pa.array(words, pa.string()), Head(labelling.head, "probability", (ordered[0], ordered[1]), meaning)
    meaning = labelling.meaning or f"from {ordered[0]} to {ordered[-1]}, as the texts were labelled"
    return pa.array(words, pa.string()), Head(labelling.head, "classes", tuple(ordered), meaning, 0, len(ordered) - 1)


def _regression(labels: pa.Array, labelling: Labelling) -> Head:
    values = labels.to_numpy(zero_copy_only=False).astype(np.float64)
    if not np.isfinite(values).all() or values.min() == values.max():
        raise RecipeError("labels that are decimal numbers must be finite, and not all the same")
    return Head(
        labelling.head,
        "regression",
        (),
        labelling.meaning or "the value that texts were labelled with",
        float(values.min()),
        float(values.max()),
    )


def _as_words(labels: pa.Array) -> list[str]:
    if pa.types.is_floating(labels.type):
        return [f"{value:g}" for value in labels.to_pylist()]
    return [str(word) for word in _cast(labels, pa.string(), "--label: labels are texts or numbers").to_pylist()]


def _in_order(counts: Counter[str]) -> tuple[str, ...] | None:
    """From worst to best, where that needs no asking: known opposites, or whole numbers."""
    for worse, better in OPPOSITES:
        if {label.lower() for label in counts} == {worse, better} and len(counts) == 2:
            first, second = sorted(counts, key=lambda label: label.lower() == better)
            return first, second
    if len(counts) <= MOST_CLASSES and all(label.removeprefix("-").isdecimal() and label.isascii() for label in counts):
        return tuple(sorted(counts, key=int))
    return None


def _cast(column: pa.Array, kind: pa.DataType, expected: str) -> pa.Array:
    try:
        return pc.cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RecipeError(f"{expected}, not {column.type} ({str(error).splitlines()[0]})") from error


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.cast(pa.large_string()).combine_chunks()


def room_for(out: str) -> Path:
    """A judge is never written over another: said before anything is trained."""
    folder = Path(out)
    if "://" in out:
        raise RecipeError(f"--out: {out}: a judge is saved to a local folder")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise RecipeError(f"--out: {out} is there already and not empty; name a new folder")
    return folder
