"""What `gristmill maintain import` takes in: token files as shards, models of fastText, scikit-learn and transformers
as judges."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path

from gristmill.classifiers.card import Head, JudgeError
from gristmill.classifiers.judge import Judge
from gristmill.pipeline.errors import RecipeError
from gristmill.shards.export.importing import Known, NotImported, import_tokens
from gristmill.stages.stage import CannotRun

TOKENS, JUDGES = ("datatrove", "megatron"), ("fasttext", "sklearn", "transformers")
ROW_LENGTH = 2048
OF_TOKENS = ("tokenizer", "eos_token", "row_length")
OF_JUDGES = {
    "fasttext": ("head", "good_label", "classes", "steps"),
    "sklearn": ("head", "good_label", "classes", "between"),
    "transformers": ("head", "good_label", "classes", "between"),
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
    of = {"fasttext": fasttext_judge, "sklearn": sklearn_judge, "transformers": transformers_judge}
    judge = of[kind](source, how)
    judge.save(destination)
    heads = judge.card.heads
    told = ", ".join(f"{head.name} ({as_words(head)})" for head in heads)
    return (
        f"{destination}: a judge, head{'s' if len(heads) > 1 else ''} {told}. "
        f"Try it: gristmill judge score {destination}"
    )


def as_words(head: Head) -> str:
    labels = f", labels {', '.join(head.labels[:8])}{', …' if len(head.labels) > 8 else ''}" if head.labels else ""
    between = f" from {head.low:g} to {head.high:g}" if head.kind == "regression" else ""
    return f"{head.kind}{labels}{between}"


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


def transformers_judge(source: Path, how: Importing) -> Judge:
    """Of a folder or a hub id. Each value or independent label has a head of its own, named by its label."""
    from gristmill.classifiers.neural.judge import encoder_folder
    from gristmill.classifiers.neural.published import read_published

    found = read_published(encoder_folder(str(source)))
    heads: tuple[Head, ...]
    if found.problem == "single_label_classification":
        heads = (head_of(list(found.labels), how),)
    elif len(found.labels) == 1 and found.problem == "regression":
        heads = (head_of(None, how),)
    else:
        if how.good_label or how.classes:
            raise RecipeError("--good-label and --classes are for a softmax; here each label has a score of its own")
        names = [how.head or name if len(found.labels) == 1 else f"{how.head or ''}{name}" for name in found.head_names]
        if found.problem == "regression":
            heads = tuple(replace(head_of(None, how), name=name) for name in names)
        elif how.between is not None:
            raise RecipeError("--between is for a regressor; this is a classifier")
        else:
            heads = tuple(
                Head(name, "probability", (f"not {label}", label), f"how likely the text is {label}")
                for name, label in zip(names, found.labels, strict=True)
            )
    return found.judge(heads, (f"imported from {source}",))


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
