"""What `gristmill maintain import` takes in: token files as shards, models of fastText and scikit-learn as judges."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from gristmill.classifiers.card import Head, JudgeError
from gristmill.classifiers.judge import Judge
from gristmill.pipeline.errors import RecipeError
from gristmill.shards.export.importing import Known, NotImported, import_tokens
from gristmill.stages.stage import CannotRun

TOKENS, JUDGES = ("datatrove", "megatron"), ("fasttext", "sklearn")
ROW_LENGTH = 2048
OF_TOKENS = ("tokenizer", "eos_token", "row_length")
OF_JUDGES = {
    "fasttext": ("head", "good_label", "classes", "steps"),
    "sklearn": ("head", "good_label", "classes", "between"),
}


@dataclass(frozen=True)
class Importing:
    """Options of the command; None is not given."""

    tokenizer: str | None = None
    eos_token: str | None = None
    row_length: int | None = None
    head: str | None = None
    good_label: str | None = None
    classes: str | None = None
    between: str | None = None
    steps: str | None = None


def bring_in(source: Path, destination: Path, kind: str, how: Importing) -> str:
    """Does it, and returns what to tell."""
    if kind not in TOKENS + JUDGES:
        raise RecipeError(f"--from {kind}: expected one of {', '.join(TOKENS + JUDGES)}")
    own = OF_TOKENS if kind in TOKENS else OF_JUDGES[kind]
    for field in dataclasses.fields(how):
        if getattr(how, field.name) is not None and field.name not in own:
            raise RecipeError(f"--{field.name.replace('_', '-')} means nothing to --from {kind}")
    try:
        return of_tokens(source, destination, kind, how) if kind in TOKENS else of_judge(source, destination, kind, how)
    except (NotImported, JudgeError, CannotRun) as error:
        raise RecipeError(str(error)) from error
    except FileNotFoundError as error:
        raise RecipeError(f"{error.filename}: no such file") from error


def of_tokens(source: Path, destination: Path, kind: str, how: Importing) -> str:
    from gristmill.stages.tokens.vocabulary import given, ids_of, size_of, tokenizer_from

    if how.tokenizer is None:
        raise RecipeError(f"--from {kind} needs --tokenizer: the one that made these files, for its size and its ends")
    vocabulary = given(how.tokenizer, None, {"eos": how.eos_token})
    tokenizer = tokenizer_from(vocabulary.tokenizer_text, vocabulary.name)
    ids = ids_of(vocabulary, tokenizer, size_of(tokenizer))
    known = Known(vocabulary.name, vocabulary.tokenizer_text, vocabulary.hash, ids.size, ids.bos, ids.eos, ids.pad)
    done = import_tokens(source, kind, destination, known, how.row_length or ROW_LENGTH)
    return (
        f"{done.destination}: {done.documents:,} documents, {done.tokens:,} tokens in {done.rows:,} rows. "
        f"Opens with: gristmill.open_shards({str(done.destination)!r})"
    )


def of_judge(source: Path, destination: Path, kind: str, how: Importing) -> str:
    if destination.is_file() or (destination.is_dir() and any(destination.iterdir())):
        raise RecipeError(f"{destination}: not empty; name a new folder")
    judge = fasttext_judge(source, how) if kind == "fasttext" else sklearn_judge(source, how)
    judge.save(destination)
    [head] = judge.card.heads
    labels = f", labels {', '.join(head.labels[:8])}{', …' if len(head.labels) > 8 else ''}" if head.labels else ""
    return (
        f"{destination}: a judge, head {head.name} ({head.kind}{labels}). Try it: gristmill judge score {destination}"
    )


def fasttext_judge(source: Path, how: Importing) -> Judge:
    from gristmill.classifiers.fasttext.judge import judge_of_file
    from gristmill.classifiers.fasttext.model import ModelFileError, load
    from gristmill.classifiers.fasttext.preprocessing import TextSteps

    try:
        labels = list(load(source).labels)
    except ModelFileError as error:
        raise JudgeError(str(error)) from error
    steps = tuple(step.strip() for step in how.steps.split(",")) if how.steps else ()
    return judge_of_file(source, head_of(labels, how), TextSteps(steps), (f"imported from {source.name}",))


def sklearn_judge(source: Path, how: Importing) -> Judge:
    from gristmill.classifiers.sklearn_pipeline import judge_of_skops, labels_of, loaded

    labels = labels_of(loaded(source.read_bytes(), str(source)))
    return judge_of_skops(source, head_of(labels, how), (f"imported from {source.name}",))


def head_of(labels: list[str] | None, how: Importing) -> Head:
    """A regression without labels, a probability of the good one of two, classes in an order, or labels without."""
    name = how.head or "quality"
    if labels is None:
        try:
            low, high = (float(bound) for bound in (how.between or "").split(","))
        except ValueError:
            raise RecipeError("a regressor needs --between LOW,HIGH: values are cut to these") from None
        return Head(name, "regression", (), "", low, high)
    if how.between is not None:
        raise RecipeError("--between is for a regressor; this is a classifier")
    if how.good_label is not None:
        if how.good_label not in labels or len(labels) != 2:
            raise RecipeError(f"--good-label is one of two labels; this model has {', '.join(labels[:20])}")
        [bad] = [label for label in labels if label != how.good_label]
        return Head(name, "probability", (bad, how.good_label), "")
    if how.classes is not None:
        order = tuple(label.strip() for label in how.classes.split(","))
        if sorted(order) != sorted(labels):
            raise RecipeError(f"--classes names each label once; this model has {', '.join(labels[:20])}")
        return Head(name, "classes", order, "", 0, len(order) - 1)
    return Head(name, "labels", tuple(labels), "")
