#!/usr/bin/env python3
"""Judges trained on known-good prose against the raw text of web pages: how well they tell them apart on works and
hosts that they never saw, whether they say what fastText says, and how fast. One JSON line a result.

    python -m benchmarks.judges.judges [--data ../shared/data] [--folds 5] [--times 3] [--only auc|same|speed]
      [--buckets N]

Prose against whole pages is an easy task, and part of it is told by what no judge should be needed for: so AUCs of
trivial cues (length, newlines) stand beside, and the task is set again with passages of 1,000 characters, one of each
text, spaces in place of all whitespace; and with the pages' reviewed main text in place of the whole page. Seconds are
of processor time, one core.
"""

import argparse
import json
import platform
import re
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.fasttext.judge import FastTextJudge, preset, train_fasttext
from gristmill.classifiers.judge import Head, Judge
from gristmill.classifiers.linear.judge import LinearRecipe, train_linear
from gristmill.classifiers.metrics import auc, average_precision
from gristmill.classifiers.training_sets import LabelledTexts, folds_of, labelled_texts
from gristmill.kernels.language.fasttext_words import only_words_plain

QUALITY = Head("quality", "probability", ("bad", "good"), "reads like a book or an encyclopedia")
PASSAGE = 1000  # characters


def tasks(data: Path) -> dict[str, LabelledTexts]:
    pages = pq.read_table(data / "pages.parquet", columns=["page", "url"]).to_pylist()
    host = {row["page"]: urlsplit(row["url"]).hostname or row["page"] for row in pages}
    prose = [(row["text"], "good", row["work"]) for row in pq.read_table(data / "prose.parquet").to_pylist()]
    raw, main = (
        [
            (row["text"], "bad", host[row["page"]])
            for row in pq.read_table(data / "rule_verdicts.parquet", columns=["page", "kind", "text"]).to_pylist()
            if row["kind"] == kind
        ]
        for kind in ("page", "main")
    )
    return {
        "prose against whole pages": labelled(prose + raw),
        "prose against whole pages, passages": labelled(passages(prose + raw)),
        "prose against main text, passages": labelled(passages(prose + main)),
    }


def labelled(rows: list[tuple[str, str, str]]) -> LabelledTexts:
    texts, labels, groups = zip(*rows, strict=True)
    return labelled_texts(pa.table({"text": texts, "label": labels, "group": groups}), group="group")


def passages(rows: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """One of each text that is long enough, from a place drawn by its checksum, cut where words end."""
    found = []
    for text, label, group in rows:
        flat = " ".join(text.split())
        if len(flat) >= PASSAGE + 200:
            start = flat.index(" ", zlib.crc32(flat.encode()) % (len(flat) - PASSAGE - 150))
            found.append((flat[start + 1 : start + 1 + PASSAGE].rsplit(" ", 1)[0], label, group))
    return found


CUES: dict[str, Callable[[str], float]] = {
    "length": len,
    "newlines a character": lambda text: text.count("\n") / max(len(text), 1),
    "length of words": lambda text: len(text) / max(len(text.split()), 1),
    "digits and marks a character": lambda text: len(re.findall(r"[^\w\s]|\d", text)) / max(len(text), 1),
}


def judges(buckets: int | None) -> dict[str, Callable[[LabelledTexts], Judge]]:
    dclm = preset("dclm") if buckets is None else replace(preset("dclm"), buckets=buckets)
    return {
        "fasttext, preset dclm": lambda texts: train_fasttext(texts, QUALITY, dclm),
        "linear": lambda texts: train_linear(texts, QUALITY, LinearRecipe()),
    }


def line(what: str, sizes: dict, median: float, spread: list[float], **more: object) -> None:
    facts = {
        "what": what,
        "machine": f"{platform.machine()} {platform.system()}",
        "versions": {
            name: version(name) for name in ("floret", "fasttext-predict", "scikit-learn", "numba", "pyarrow")
        },
        "sizes": sizes,
        "median": median,
        "spread": spread,
    }
    print(json.dumps(facts | more), flush=True)


def separations(data: Path, folds: int, buckets: int | None) -> None:
    for task, texts in tasks(data).items():
        good, fold = texts.numbers(QUALITY) == 1, folds_of(texts, folds)
        sizes = {
            "good": int(good.sum()),
            "bad": int((~good).sum()),
            "groups": len(texts.groups.unique()),
            "folds": folds,
        }
        for name, cue in CUES.items():
            values = np.array([cue(text) for text in texts.texts.to_pylist()], np.float64)
            whole = auc(good, values)
            values = values if whole >= 0.5 else -values
            report(f"{task}: AUC of {name} alone", sizes, good, [values[fold == k] for k in range(folds)], fold)
        for name, train in judges(buckets).items():
            seconds, scores = [], []
            for k in range(folds):
                start = time.process_time()
                judge = train(texts.take(fold != k))
                seconds.append(time.process_time() - start)
                scores.append(judge.score(texts.take(fold == k).texts)["quality"])
            report(
                f"{task}: AUC of {name}",
                sizes,
                good,
                scores,
                fold,
                seconds_of_training=round(statistics.median(seconds), 1),
            )


def report(
    what: str, sizes: dict, good: np.ndarray, scores: list[np.ndarray], fold: np.ndarray, **more: object
) -> None:
    of_folds = [auc(good[fold == k], values) for k, values in enumerate(scores)]
    precision = [average_precision(good[fold == k], values) for k, values in enumerate(scores)]
    line(
        what,
        sizes,
        round(statistics.median(of_folds), 4),
        [round(min(of_folds), 4), round(max(of_folds), 4)],
        mean=round(statistics.mean(of_folds), 4),
        deviation=round(statistics.stdev(of_folds), 4),
        average_precision=round(statistics.median(precision), 4),
        **more,
    )


def package_of(judge: FastTextJudge, folder: Path):
    import fasttext

    path = folder / "model.bin"
    path.write_bytes(judge.model.model.file.data)
    return fasttext.load_model(str(path))


def package_scores(texts: list[str], model) -> list[float]:
    """As the package's users do it: newlines replaced, one text a call."""
    predict, scores = model.f.predict, []  # what `model.predict` calls, less its checks
    for text in texts:
        found = predict(" ".join(text.strip().splitlines()) + "\n", 2, 0.0, "strict")
        scores.append(next((score for score, label in found if label == "__label__good"), 0.0))
    return scores


def seconds(function: Callable[..., object], *arguments: object) -> float:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def speeds(data: Path, times: int, buckets: int | None, only: str | None) -> None:
    texts = tasks(data)["prose against whole pages"]
    column = texts.texts
    plain = column.to_pylist()
    size = sum(len(text.encode()) for text in plain)
    sizes = {"texts": len(plain), "bytes": size}
    judge = judges(buckets)["fasttext, preset dclm"](texts)
    assert isinstance(judge, FastTextJudge)
    with tempfile.TemporaryDirectory() as folder:
        package = package_of(judge, Path(folder))
        mine = judge.score(column)["quality"]
        if only != "speed":
            theirs = np.array(
                [
                    {
                        label: score
                        for score, label in package.f.predict(only_words_plain(text) + "\n", 2, 0.0, "strict")
                    }["__label__good"]
                    for text in plain
                ]
            )
            largest = float(np.abs(mine - theirs.clip(0, 1)).max())
            line(
                "fastText judge and the fasttext package: largest difference of P(good)", sizes, largest, [0.0, largest]
            )
            if largest > 1e-5:
                raise SystemExit(f"scores differ by {largest}")
        if only == "same":
            return
        ours, peer = [], []
        for _ in range(times):
            ours.append(seconds(judge.score, column))
            peer.append(seconds(lambda: package_scores(column.to_pylist(), package)))
        race("fastText judge, preset dclm", sizes, size, ours, peer, "fasttext predict")
    linear = judges(None)["linear"](texts)
    pipeline = scikit_learn(texts)
    linear.score(column.slice(0, 2))
    ours, peer = [], []
    for _ in range(times):
        ours.append(seconds(linear.score, column))
        peer.append(seconds(lambda: pipeline(column.to_pylist())))
    race("linear judge", sizes, size, ours, peer, "scikit-learn, HashingVectorizer and LogisticRegression")


def scikit_learn(texts: LabelledTexts) -> Callable[[list[str]], object]:
    """The same kind of model in scikit-learn, fitted to a part: its speed does not depend on its weights."""
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    part = np.arange(len(texts)) % 5 == 0
    model = make_pipeline(
        HashingVectorizer(n_features=1 << 20, ngram_range=(1, 2), alternate_sign=False, norm=None),
        TfidfTransformer(sublinear_tf=True),
        LogisticRegression(C=10, max_iter=1000),
    ).fit(texts.take(part).texts.to_pylist(), texts.take(part).labels.to_pylist())
    return model.predict_proba


def race(what: str, sizes: dict, size: int, mine: list[float], theirs: list[float], name: str) -> None:
    line(
        f"{what}: from a column of texts to scores, MB a second, one core",
        sizes,
        round(size / 1e6 / statistics.median(mine), 1),
        [round(size / 1e6 / max(mine), 1), round(size / 1e6 / min(mine), 1)],
        texts_a_second=round(sizes["texts"] / statistics.median(mine)),
        peer={
            "name": name,
            "median": round(size / 1e6 / statistics.median(theirs), 2),
            "texts_a_second": round(sizes["texts"] / statistics.median(theirs)),
        },
        ratio=round(statistics.median(b / a for a, b in zip(mine, theirs, strict=True)), 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=["auc", "same", "speed"])
    parser.add_argument("--buckets", type=int, help="for n-grams of fastText, in place of the preset's 2,000,000")
    asked = parser.parse_args()
    if not (asked.data / "prose.parquet").is_file():
        sys.exit(f"{asked.data}: there is no prose.parquet here")
    if asked.only in (None, "same", "speed"):
        speeds(asked.data, asked.times, asked.buckets, asked.only)
    if asked.only in (None, "auc"):
        separations(asked.data, asked.folds, asked.buckets)


if __name__ == "__main__":
    main()
