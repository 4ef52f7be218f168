"""Held-out texts of a plan as the trainer measures them: read, checked, told apart by domain and cluster. Drivers and
workers read the same."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import xxhash

from gristmill.kernels.common.paths import located
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.inputs.columns import as_words, column_names, table_of, with_texts
from gristmill.pipeline.inputs.files import list_at
from gristmill.pipeline.recipe.fingerprint import file_hash, stamp
from gristmill.pipeline.store.storage import digest
from gristmill.pipeline.train.plan import Choices, Evaluation, TextSet
from gristmill.pipeline.train.records import ChoicesSpec, EvaluationSpec, TextsSpec
from gristmill.stages.blend.groups import NO_VALUE
from gristmill.stages.inputs import InputFile
from gristmill.stages.read.columns import SUFFIXES

LEAST_CLUSTERS = 20  # under so many, an interval over items rests on little
BROKEN_LINES = 3  # of a text whose lines are broken inside sentences, at least
ITEMS = pa.schema(
    [
        ("set", pa.string()),
        ("item", pa.int32()),
        ("domain", pa.string()),
        ("cluster", pa.string()),
        ("value", pa.float64()),
        ("size", pa.float64()),
    ]
)


@dataclass(frozen=True)
class HeldOutDocuments:
    """In a fixed order. Without a column for it, or a value there, a document is a cluster of its own."""

    texts: list[str]
    domains: list[str]
    clusters: list[str]


def evaluation_spec(
    folder: Path,
    evaluate: Evaluation,
    every: int | None,
    watched: dict[str, str],
    point_documents: int | None = None,
    guard: str | None = None,
) -> EvaluationSpec:
    """What a job is told about its evaluation: absolute paths, and hashes of what they hold."""
    texts = {name: texts_spec(folder, name, texts) for name, texts in evaluate.texts.items()}
    choices: dict[str, ChoicesSpec] = {}
    for name, asked in evaluate.choices.items():
        path = file_of_choices(folder, name, asked)
        choices[name] = {
            "file": str(path),
            "cluster": asked.cluster,
            "score": asked.score,
            "content": file_hash(str(path), *stamp(path)),
        }
    return {
        "texts": texts,
        "choices": choices,
        "target": evaluate.target,
        "guard": guard,
        "every": every,
        "watched": watched,
        "point_documents": point_documents,
        "harness": list(evaluate.harness),
    }


def identity(asked: EvaluationSpec) -> str:
    """Where files lie does not count; what they hold does."""
    texts = {name: {**spec, "files": None} for name, spec in asked["texts"].items()}
    choices = {name: {**spec, "file": None} for name, spec in asked["choices"].items()}
    return digest({"texts": texts, "choices": choices, "target": asked["target"]})


def documents_of(name: str, asked: TextsSpec) -> HeldOutDocuments:
    """The texts of one set; an empty text is left out."""
    who = f"evaluate.texts.{name}"
    files = [InputFile(address, address, 0, "") for address in asked["files"]]
    wanted = [column for column in (asked["text"], asked["domain"], asked["cluster"]) if column]
    table = table_of(files, wanted)
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        there = column_names(files)
        if all(column in there for column in wanted) or not there:
            raise RecipeError(f"{who}: {files[0].address}: is empty; at least 2 documents are needed")
        raise RecipeError(f"{who}: no column {missing[0]!r} in {files[0].address}; there are {', '.join(there)}")
    texts = [text or "" for text in with_texts(table, asked["text"], who)[asked["text"]].to_pylist()]
    if asked["unwrap"]:
        texts = [" ".join(text.split()) for text in texts]
    domains = [word or NO_VALUE for word in _words(table, asked["domain"])] or [name] * len(texts)
    named = _words(table, asked["cluster"])
    clusters = [word or f"{NO_VALUE} {i}" for i, word in enumerate(named)] or [str(i) for i in range(len(texts))]
    kept = [i for i, text in enumerate(texts) if text.strip()]
    if asked["most"] is not None and len(kept) > asked["most"]:
        kept = sorted(
            sorted(kept, key=lambda i: (xxhash.xxh3_64_intdigest(texts[i].encode("utf-8", "replace")), i))[
                : asked["most"]
            ]
        )
    if len(kept) < 2:
        raise RecipeError(f"{who}: {len(kept)} documents with text; at least 2 are needed")
    return HeldOutDocuments(*([column[i] for i in kept] for column in (texts, domains, clusters)))


def is_wrapped(text: str) -> bool:
    """Do most of its lines end inside a sentence, as in books that break them at a width?"""
    lines = [line.strip() for line in text.split("\n")]
    ends = [(line[-1], after[0]) for line, after in pairwise(lines) if line and after]
    broken = sum(after.islower() and (end.isalnum() or end in ",;") for end, after in ends)
    return broken >= max(BROKEN_LINES, 0.5 * len(ends))


def texts_spec(folder: Path, name: str, texts: TextSet) -> TextsSpec:
    """The files of a set, from the folder of its plan, and hashes of what they hold."""
    files = [file for path in texts.files for file in list_at(path, folder, SUFFIXES, f"evaluate.texts.{name}").files]
    contents = [
        f"{f.size} {f.stamp}" if "://" in f.address else file_hash(f.address, *stamp(Path(f.address))) for f in files
    ]
    return {
        "files": [file.address for file in files],
        "text": texts.text,
        "domain": texts.domain,
        "cluster": texts.cluster,
        "most": texts.most,
        "unwrap": texts.unwrap,
        "content": contents,
    }


def file_of_choices(folder: Path, name: str, choices: Choices) -> Path:
    path = Path(located(choices.file, folder))
    if not path.is_file():
        raise RecipeError(f"evaluate.choices.{name}: {path}: no such file")
    return path


def _words(table: pa.Table, column: str | None) -> list[str]:
    return [word or "" for word in as_words(table[column]).to_pylist()] if column else []
