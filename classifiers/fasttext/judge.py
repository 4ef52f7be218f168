"""The fastText judge: trained by fastText itself (Joulin et al. 2017; the package floret in its fastText mode, or
fasttext), scored by our own kernel.

Presets are two published recipes. DCLM (Li et al. 2024, OH-2.5 + ELI5 against RefinedWeb): pairs of words, the rest as
fastText has it, which for supervised training is a rate of 0.1, 5 epochs, 100 numbers a word, every word kept.
Ultra-FineWeb (Wang et al. 2025): 256 numbers, rate 0.1, runs of 3 words, words that stand 5 times, 3 epochs; its texts
are pieces of DeepSeek-V2's tokenizer, a file that is given. What could not be confirmed of both is in docs/judges.md.
"""

from __future__ import annotations

import contextlib
import struct
import tempfile
from dataclasses import asdict, dataclass, replace
from importlib.metadata import packages_distributions, version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field

from gristmill.classifiers.card import Head, HeadKind, Json, JudgeCard, JudgeError
from gristmill.classifiers.fasttext.explain import word_contributions
from gristmill.classifiers.fasttext.model import FastText, ModelFileError, from_bytes, load
from gristmill.classifiers.fasttext.preprocessing import PIECES, TOKENIZER_FILE, TextSteps
from gristmill.classifiers.judge import Epochs, Judge, KindSettings, Lesson, Log, Scores, Train
from gristmill.classifiers.training_sets import LabelledTexts
from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.common.extras import install
from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.language.fasttext_bytes import LABEL_PREFIX
from gristmill.kernels.language.fasttext_words import only_words_plain
from gristmill.kernels.language.labels import SOFTMAX

MODEL_FILE = "model.bin"
FLORET_SETTINGS = slice(8 + 11 * 4, 8 + 13 * 4)  # mode and hashCount: what floret's file has more than fastText's
FASTTEXT_MODE = (1, 1)
LARGEST_TOKENIZER = 100 << 20


@dataclass(frozen=True)
class FastTextRecipe:
    """Settings of fastText's supervised training, by their names here; the defaults are fastText's own."""

    learning_rate: float = 0.1
    dimensions: int = 100
    epochs: int = 5
    word_ngrams: int = 1
    least_count: int = 1  # words that stand less often have no row of their own
    shortest_ngram: int = 0  # of characters
    longest_ngram: int = 0
    buckets: int = 2_000_000  # for n-grams; unused without
    loss: str = "softmax"
    steps: tuple[str, ...] = ()
    threads: int = 1  # more are faster, and no two runs alike: they write to the same rows
    seed: int = 0


PRESETS = {
    "dclm": FastTextRecipe(word_ngrams=2),
    "ultra_fineweb": FastTextRecipe(
        dimensions=256,
        epochs=3,
        word_ngrams=3,
        least_count=5,
        steps=("squeeze", "lower", "without_marks", PIECES, "escapes"),
    ),
}


class Fasttext(KindSettings):
    """fastText: 100,000 texts and more."""

    preset: Annotated[Literal["dclm", "ultra_fineweb"] | None, Field(description="settings of a published one")] = None
    epochs: Epochs = None
    threads: Annotated[int, Field(ge=1, description="more than 1 is faster, and no longer deterministic")] = 1
    tokenizer_path: Annotated[RecipePath, Field(description="a tokenizer.json, for ultra_fineweb")] = ""


@dataclass(frozen=True)
class FastTextJudge(Judge):
    """One head, of a probability, of classes or of labels, which are the model's."""

    card: JudgeCard  # type: ignore[misc]
    model: FastText
    steps: TextSteps

    needs: ClassVar[tuple[str, ...]] = (MODEL_FILE,)
    settings: ClassVar[type[KindSettings] | None] = Fasttext
    heads_learnt: ClassVar[tuple[HeadKind, ...]] = ("probability", "classes", "labels")
    learns: ClassVar[Lesson] = "repeated"
    weighs: ClassVar[bool] = False
    to_train: ClassVar[frozenset[str]] = frozenset({"fasttext", "floret"})

    @classmethod
    def trainer(cls, settings: Fasttext, head: Head, seed: int, log: Log) -> Train:
        tokenizer = Path(settings.tokenizer_path).read_text(encoding="utf-8") if settings.tokenizer_path else None
        recipe = preset(settings.preset, tokenizer) if settings.preset else FastTextRecipe()
        if settings.epochs is not None:
            recipe = replace(recipe, epochs=max(1, round(settings.epochs)))
        recipe = replace(recipe, seed=seed, threads=settings.threads)
        return lambda texts: train_fasttext(texts, head, recipe, tokenizer)

    def __post_init__(self) -> None:
        if len(self.card.heads) != 1:
            raise JudgeError(f"a fasttext judge has one head, not {len(self.card.heads)}")
        if self.head.kind == "regression":
            raise JudgeError("fastText has no regression: a head of a probability, of classes or of labels is needed")
        if set(self.head.labels) != set(self.model.labels):
            raise JudgeError(
                f"head {self.head.name} has the labels {', '.join(self.head.labels)}, and the model "
                f"{', '.join(self.model.labels[:20])}"
            )

    @property
    def head(self) -> Head:
        return self.card.heads[0]

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Scores:
        column = self.steps.column(texts)
        labels_NC, scores_NC = self.model.predict(*column, top=len(self.model.labels))
        by_label = np.zeros(
            (len(column), len(self.model.labels) + 1), np.float32
        )  # the last is for labels that are not given
        np.put_along_axis(by_label, np.where(labels_NC < 0, len(self.model.labels), labels_NC), scores_NC, axis=1)
        in_order = by_label[:, [self.model.labels.index(label) for label in self.head.labels]].clip(0, 1)
        return {self.head.name: np.ascontiguousarray(in_order[:, 1]) if self.head.kind == "probability" else in_order}

    def explain(self, text: str, head: str, most: int = 20) -> list[tuple[str, float]]:
        """What each word adds to the log-odds of good (or to those of the likeliest label, or to the expected class, as
        far as they are linear there), with its share of n-grams."""
        self.card.head(head)
        order = [self.model.labels.index(label) for label in self.head.labels]
        contributions = word_contributions(self.model, self.steps.text(text).encode(), order, self.head.kind)
        return sorted(contributions.items(), key=lambda push: (-abs(push[1]), push[0]))[:most]

    def sharper(self, factor: float) -> Self:
        """The output matrix, which is the end of the file, times the factor."""
        facts = self.model.model
        if facts.loss != SOFTMAX or facts.codes_each:
            raise JudgeError("only a model with softmax loss that was not quantised can be made more or less sure")
        content = bytes(facts.file.data)
        output = np.frombuffer(facts.output, np.float32).reshape(-1)
        if content[-output.nbytes :] != output.tobytes():
            raise JudgeError("the model's file does not end with its output matrix")
        content = content[: -output.nbytes] + (output * np.float32(factor)).tobytes()
        return replace(self, model=from_bytes(content, "the model that was just trained"))

    def write(self, folder: Path) -> None:
        with (folder / MODEL_FILE).open("wb") as file:
            file.write(self.model.model.file.data)
        if self.steps.tokenizer is not None:
            (folder / TOKENIZER_FILE).write_text(self.steps.tokenizer, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, card: JudgeCard, device: str) -> Self:
        names = card.preprocessing.get("steps")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise JudgeError("preprocessing.steps is a list of names")
        tokenizer = None
        if PIECES in names:
            path = folder / TOKENIZER_FILE
            if not path.is_file():
                raise JudgeError(f"{TOKENIZER_FILE} is missing, and the step {PIECES!r} needs it")
            if path.stat().st_size > LARGEST_TOKENIZER:
                raise JudgeError(f"{TOKENIZER_FILE} has more than {LARGEST_TOKENIZER:,} bytes")
            tokenizer = path.read_text(encoding="utf-8")
        try:
            return cls(card, load(folder / MODEL_FILE), TextSteps(tuple(names), tokenizer))
        except ModelFileError as error:
            raise JudgeError(str(error)) from error


def judge_of_file(path: Path, head: Head, steps: TextSteps, attribution: tuple[str, ...] = ()) -> FastTextJudge:
    """A model that fastText trained elsewhere, as a judge; the steps are those that it was trained with."""
    try:
        model = load(path)
    except ModelFileError as error:
        raise JudgeError(str(error)) from error
    card = JudgeCard(
        "fasttext", (head,), steps.as_json(), training={"made_by": "not trained here"}, attribution=attribution
    )
    return FastTextJudge(card, model, steps)


def train_fasttext(
    labelled: LabelledTexts, head: Head, recipe: FastTextRecipe, tokenizer: str | None = None
) -> FastTextJudge:
    """A judge of labelled texts. With one thread the same texts, recipe and trainer's version give the same bytes."""
    if head.kind == "regression":
        raise JudgeError("fastText has no regression: cut the values into classes, or take another kind of judge")
    if labelled.weights is not None and len(np.unique(labelled.weights)) > 1:
        raise JudgeError("fastText gives every text the same weight; repeat texts instead, or take a linear judge")
    for label in head.labels:
        if not label or only_words_plain(label) != label or " " in label or label.startswith(LABEL_PREFIX.decode()):
            raise JudgeError(
                f"the label {label!r} is no word of fastText's: it is empty, has spaces or begins with "
                f"{LABEL_PREFIX.decode()}"
            )
    numbers = labelled.numbers(head)
    steps = TextSteps(recipe.steps, tokenizer)
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        texts, model_path = Path(folder) / "texts", Path(folder) / "model"
        _write_lines(texts, steps, labelled, head, numbers, recipe.seed)
        trainer = _train(texts, model_path, recipe)
        content = model_path.read_bytes()
        content = as_fasttext(content) if "floret" in trainer else content
    settings: Json = asdict(recipe) | {"steps": list(recipe.steps)}
    card = JudgeCard(
        "fasttext",
        (head,),
        steps.as_json(),
        training=labelled.as_json() | {"settings": settings},
        versions=trainer,
    )
    return FastTextJudge(card, from_bytes(content, "the model that was just trained"), steps)


def preset(name: str, tokenizer: str | None = None) -> FastTextRecipe:
    """A published recipe. Where it wants pieces and no tokenizer is given, words between spaces take their place, and
    newlines are words."""
    if name not in PRESETS:
        raise JudgeError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    recipe = PRESETS[name]
    if PIECES in recipe.steps and tokenizer is None:
        recipe = replace(
            recipe, steps=(*(step for step in recipe.steps if step not in (PIECES, "escapes")), "escapes_apart")
        )
    return recipe


def as_fasttext(content: bytes) -> bytes:
    """A model file of floret's in its fastText mode, as fastText writes it: without the two settings that are floret's
    own."""
    mode, hashes = struct.unpack("<2i", content[FLORET_SETTINGS])
    if (mode, hashes) != FASTTEXT_MODE:
        raise JudgeError(f"floret made a model of mode {mode} with {hashes} hashes, which is none of fastText's")
    return content[: FLORET_SETTINGS.start] + content[FLORET_SETTINGS.stop :]


def _write_lines(
    path: Path, steps: TextSteps, labelled: LabelledTexts, head: Head, numbers: np.ndarray[Any, Any], seed: int
) -> None:
    """In an order drawn by the seed: fastText goes through a file as it stands, and classes in a row would be unlearnt
    one by the other."""
    data, offsets = steps.column(labelled.texts)
    marks = [LABEL_PREFIX + label.encode() + b" " for label in head.labels]
    spans = list(pairwise(offsets.tolist()))
    order = np.argsort(
        mixed_all(np.arange(len(spans), dtype=np.uint64) + mixed_all(np.array([seed % (1 << 64)], np.uint64))),
        kind="stable",
    )
    with path.open("wb") as file:
        for i in order.tolist():
            start, end = spans[i]
            file.write(marks[numbers[i]])
            file.write(data[start:end].tobytes())
            file.write(b"\n")


def trainer_here() -> tuple[Any, dict[str, str]]:
    """The package that trains, and its version: floret in its fastText mode, or fasttext where floret is missing.

    fasttext 0.9.3 reads memory that it never set, so its training ends in "Encountered NaN" now and then (docs/log.md);
    floret does not. Several packages install a module `fasttext`; one without training is passed over.
    """
    with contextlib.suppress(ImportError):
        import floret  # type: ignore[import-untyped]

        return floret, {"floret": version("floret")}
    with contextlib.suppress(ImportError):
        import fasttext  # type: ignore[import-untyped]

        if hasattr(fasttext, "train_supervised"):
            name = next(iter(packages_distributions().get("fasttext", ["fasttext"])))
            return fasttext, {name: version(name)}
    raise JudgeError(
        f"training a fasttext judge needs the package floret: {install('train')}; or fasttext, if it is there"
    )


def _train(texts: Path, model_path: Path, recipe: FastTextRecipe) -> dict[str, str]:
    """Writes the model; returns which package made it."""
    package, versions = trainer_here()
    own = {"mode": "fasttext", "hashCount": 1} if "floret" in versions else {}
    try:
        trained = package.train_supervised(
            input=str(texts),
            lr=recipe.learning_rate,
            dim=recipe.dimensions,
            epoch=recipe.epochs,
            wordNgrams=recipe.word_ngrams,
            minCount=recipe.least_count,
            minn=recipe.shortest_ngram,
            maxn=recipe.longest_ngram,
            bucket=recipe.buckets,
            loss=recipe.loss,
            thread=recipe.threads,
            seed=recipe.seed,
            verbose=0,
            **own,
        )
    except (RuntimeError, ValueError, TypeError) as error:
        again = (
            "" if own else "; the package fasttext does that by chance: try again, or install floret, which does not"
        )
        hint = again if "NaN" in str(error) else ""
        raise JudgeError(f"fastText could not be trained: {error}{hint}") from error
    trained.save_model(str(model_path))
    return versions
