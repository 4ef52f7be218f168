#!/usr/bin/env python3
"""Judges of labels without an order: macro-F1 beside scikit-learn's best of logistic regression and linear SVM in the
same folds, whether scores are those of the packages, and how fast 24 labels are beside one. One JSON line a result.

    python -m benchmarks.judges.labels [--data ../shared/data] [--folds 3] [--only f1|same|speed] [--sets types,...]

Sets: `types`, the main text of 1,497 pages of 7 types, folds of whole hosts; `languages`, 200 sentences of each of 19
languages; `made`, 24 topics of 100 texts, made by words that topics share in part. scikit-learn's features are TF-IDF of
words and pairs (sublinear), each classifier with and without balanced weights, at several penalties: the best of all is
the peer, chosen on the very folds that it is measured on, which ours is not. Seconds are of processor time, one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.card import Head
from gristmill.classifiers.fasttext.judge import FastTextRecipe, train_fasttext
from gristmill.classifiers.judge import Judge
from gristmill.classifiers.linear.judge import LinearJudge, LinearRecipe, train_linear
from gristmill.classifiers.metrics import label_metrics
from gristmill.classifiers.training import sharpened
from gristmill.classifiers.training_sets import LabelledTexts, balanced_weights, folds_of, labelled_texts, repeated
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.hashed_terms import term_column

LANGUAGES = "cs da de en es fi fr hr hu it lt nl pl pt ro sk sl sv tr".split()  # noqa: SIM905
Texts = LabelledTexts
WORDS = FastTextRecipe(word_ngrams=2, epochs=25, learning_rate=0.5, dimensions=32, buckets=200_000)
LETTERS = FastTextRecipe(
    shortest_ngram=2, longest_ngram=4, epochs=25, learning_rate=0.5, dimensions=32, buckets=200_000
)


def types(data: Path) -> Texts:
    table = pq.read_table(data / "pages.parquet", columns=["page", "page_type", "url", "main_content"])
    hosts = [urlsplit(row["url"] or "").hostname or row["page"] for row in table.select(["page", "url"]).to_pylist()]
    columns = {"text": table["main_content"], "label": table["page_type"], "group": hosts}
    return labelled_texts(pa.table(columns), group="group")


def languages(data: Path) -> Texts:
    rows: dict[str, list[str]] = {name: [] for name in LANGUAGES}
    for row in pq.read_table(data / "languages.parquet").to_pylist():
        if len(rows.get(row["language"], [None] * 200)) < 200:
            rows[row["language"]].append(row["text"])
    pairs = [(text, name) for name, texts in rows.items() for text in texts]
    return labelled_texts(pa.table({"text": [a for a, _ in pairs], "label": [b for _, b in pairs]}))


def made(data: Path | None = None, each: int = 100, topics: int = 24) -> Texts:
    """A topic has 300 words of 4,000, so that two share some; half of a text is words of all."""
    drawn = np.random.default_rng(5)
    rows = []
    for topic in range(topics):
        own = drawn.choice(4000, 300, replace=False)
        for _ in range(each):
            length = int(drawn.integers(20, 120))
            word = np.where(drawn.random(length) < 0.15, drawn.choice(own, length), drawn.integers(0, 4000, length))
            rows.append((" ".join(f"w{number}" for number in word.tolist()), f"topic{topic}"))
    return labelled_texts(pa.table({"text": [a for a, _ in rows], "label": [b for _, b in rows]}))


SETS: dict[str, tuple[Callable[[Path], Texts], FastTextRecipe]] = {
    "types": (types, WORDS), "languages": (languages, LETTERS), "made": (made, WORDS),
}  # fmt: skip


def f1_of(name: str, data: Path, folds: int) -> None:
    make, recipe = SETS[name]
    labelled = make(data)
    head = Head("label", "labels", tuple(sorted(set(labelled.labels.to_pylist()))), "")
    fold = folds_of(labelled, folds)

    def linear(texts: Texts) -> Judge:
        return train_linear(texts, head, LinearRecipe())

    ours: dict[str, Callable[[Texts], Judge]] = {
        "linear": linear,
        "linear, balanced": lambda texts: linear(replace(texts, weights=balanced_weights(texts))),
        "fasttext": lambda texts: train_fasttext(texts, head, recipe),
        "fasttext, balanced": lambda texts: train_fasttext(repeated(texts), head, recipe),
    }
    truth = np.array([head.labels.index(label) for label in labelled.labels.to_pylist()])
    for kind, train in ours.items():
        start, chances = time.process_time(), np.zeros((len(labelled), len(head.labels)), np.float32)
        for k in range(folds):
            inside = labelled.take(fold != k)
            judge = sharpened(train(inside), inside, head, train)
            chances[fold == k] = judge.outputs(labelled.take(fold == k).texts)["label"]
        tell("f1", name, kind, time.process_time() - start, label_metrics(truth, chances, head.labels))
    for kind, train_other in others().items():
        start, said = time.process_time(), np.zeros(len(labelled), np.int64)
        for k in range(folds):
            predicted = train_other(labelled.take(fold != k), labelled.take(fold == k).texts.to_pylist())
            said[fold == k] = [head.labels.index(label) for label in predicted]
        sure = np.eye(len(head.labels), dtype=np.float32)[said]
        tell("f1", name, kind, time.process_time() - start, label_metrics(truth, sure, head.labels))


def others() -> dict[str, Callable[[Texts, list[str]], list[str]]]:
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.svm import LinearSVC  # type: ignore[import-untyped]

    def by(make: Callable[[], Any]) -> Callable[[Texts, list[str]], list[str]]:
        def predicted(texts: Texts, rest: list[str]) -> list[str]:
            terms = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
            fit = make().fit(terms.fit_transform(texts.texts.to_pylist()), texts.labels.to_pylist())
            return [str(label) for label in fit.predict(terms.transform(rest))]

        return predicted

    return {
        f"scikit-learn {kind.__name__}, C {penalty:g}{', balanced' if weight else ''}": by(
            lambda kind=kind, penalty=penalty, weight=weight: kind(C=penalty, class_weight=weight, max_iter=2000)
        )
        for kind, penalties in ((LinearSVC, (0.1, 1.0, 10.0)), (LogisticRegression, (10.0,)))
        for penalty in penalties
        for weight in (None, "balanced")
    }


def same() -> None:
    """Probabilities of 24 labels beside floret's own, and beside scikit-learn's on the same terms."""
    import floret  # type: ignore[import-untyped]
    from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
    from sklearn.linear_model import LogisticRegression

    labelled = made(each=40)
    head = Head("label", "labels", tuple(sorted(set(labelled.labels.to_pylist()))), "")
    texts = pa.array(
        [text[: 20 + 7 * (i % 90)] for i, text in enumerate(labelled.texts.to_pylist())], pa.large_string()
    )
    judge = train_fasttext(labelled, head, replace(WORDS, epochs=5))
    ours = judge.outputs(texts)["label"]
    with tempfile.TemporaryDirectory() as folder:
        judge.write(Path(folder))
        theirs = floret_probabilities(floret, labelled, head, replace(WORDS, epochs=5), texts, Path(folder))
    report("same", "fasttext beside floret", {"texts": len(texts), "largest_difference": difference(ours, theirs)})
    recipe = LinearRecipe(bits=16)
    linear = train_linear(labelled, head, recipe)
    fit = LogisticRegression(C=recipe.looseness, max_iter=recipe.most_steps, random_state=0)
    train, test = (
        csr_matrix((terms.values.astype(np.float64), terms.numbers, terms.first), shape=(len(column), 1 << 16))
        for column in (labelled.texts, texts)
        for terms in [term_column(text_column(column), 16, recipe.widest, linear.idf)]
    )
    numbers = labelled.numbers(head)
    fit.fit(train, numbers)
    theirs = fit.predict_proba(test)
    report("same", "linear beside scikit-learn", {
        "texts": len(texts), "largest_difference": difference(linear.outputs(texts)["label"], theirs),
    })  # fmt: skip


def floret_probabilities(
    floret: Any, labelled: Texts, head: Head, recipe: FastTextRecipe, texts: pa.Array, folder: Path
) -> np.ndarray[Any, Any]:
    """Of a model that floret trained on the same lines, in the order in which ours writes them."""
    from gristmill.classifiers.fasttext.judge import _write_lines
    from gristmill.classifiers.fasttext.preprocessing import TextSteps

    steps = TextSteps(recipe.steps, None)
    _write_lines(folder / "lines", steps, labelled, head, labelled.numbers(head), recipe.seed)
    model = floret.train_supervised(
        input=str(folder / "lines"), lr=recipe.learning_rate, dim=recipe.dimensions, epoch=recipe.epochs,
        wordNgrams=recipe.word_ngrams, minCount=1, minn=0, maxn=0, bucket=recipe.buckets, loss="softmax", thread=1,
        seed=recipe.seed, mode="fasttext", hashCount=1, verbose=0,
    )  # fmt: skip
    rows = []
    for text in texts.to_pylist():
        pairs = model.f.predict(steps.text(text) + "\n", len(head.labels), 0.0, "strict")  # `predict` wants NumPy 1
        of_label = {label.removeprefix("__label__"): chance for chance, label in pairs}
        rows.append([of_label[label] for label in head.labels])
    return np.array(rows)


def difference(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    return float(np.abs(ours.astype(np.float64) - theirs).max())


def speed(data: Path, times: int) -> None:
    """Texts a second of judges of 24 labels and of one probability, of the same size otherwise."""
    texts = pq.read_table(data / "pages.parquet", columns=["main_content"])["main_content"].cast(pa.large_string())
    texts = pa.concat_arrays([texts.combine_chunks()] * 2)
    many = made(each=20)
    two = replace(many, labels=pa.array(["a" if i % 2 else "b" for i in range(len(many))]))
    heads = {
        24: Head("label", "labels", tuple(sorted(set(many.labels.to_pylist()))), ""),
        1: Head("label", "probability", ("a", "b"), ""),
    }
    rates: dict[tuple[str, int], float] = {}
    for labels, head in heads.items():
        lesson = two if labels == 1 else many
        judges: dict[str, Judge] = {
            "linear": wide(train_linear(lesson, head, LinearRecipe(bits=12))),
            "fasttext": train_fasttext(lesson, head, FastTextRecipe(word_ngrams=2, epochs=1)),
        }
        for kind, judge in judges.items():
            judge.outputs(texts[:50])
            seconds = []
            for _ in range(times):
                start = time.process_time()
                judge.outputs(texts)
                seconds.append(time.process_time() - start)
            rates[kind, labels] = len(texts) / statistics.median(seconds)
    for kind in ("linear", "fasttext"):
        one, of_24 = rates[kind, 1], rates[kind, 24]
        report("speed", kind, {
            "texts": len(texts), "megabytes": round(texts.nbytes / 1e6, 1), "texts_a_second_of_one": round(one),
            "texts_a_second_of_24": round(of_24), "ratio": round(of_24 / one, 3), "ratio_by_class": round(24 * of_24 / one, 1),
        })  # fmt: skip


def wide(judge: LinearJudge) -> LinearJudge:
    """With weights drawn for 2**20 terms, none of them 0: as a judge that was trained on many texts."""
    drawn = np.random.default_rng(0)
    weights = drawn.standard_normal((1 << 20, judge.head.width), np.float32)
    return replace(judge, idf=np.ones(1 << 20, np.float32), weights=weights, bits=20)


def tell(what: str, name: str, kind: str, seconds: float, metrics: dict[str, Any]) -> None:
    figures = {figure: round(metrics[figure], 4) for figure in ("macro_f1", "accuracy")}
    figures |= {} if "scikit" in kind else {"calibration_error": round(metrics["calibration_error"], 4)}
    report(what, f"{name}: {kind}", {"texts": metrics["texts"], **figures, "seconds": round(seconds, 1)})


def report(what: str, name: str, figures: dict[str, Any]) -> None:
    versions = {package: version(package) for package in ("scikit-learn", "floret")}
    print(json.dumps({"what": f"labels, {what}: {name}", **figures, "machine": platform.machine(), "versions": versions}), flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / ".." / "shared" / "data")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=["f1", "same", "speed"])
    parser.add_argument("--sets", default=",".join(SETS))
    args = parser.parse_args()
    if args.only in (None, "same"):
        same()
    if args.only in (None, "speed"):
        speed(args.data, args.times)
    if args.only in (None, "f1"):
        for name in args.sets.split(","):
            f1_of(name, args.data, args.folds)


if __name__ == "__main__":
    main()
