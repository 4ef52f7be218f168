"""The index of benchmark texts, made once on a machine and mapped by all its workers; and an account of what it seeks
and what not."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.kernels.base.code_cache import cache_folder, hash_of_code
from gristmill.kernels.base.columns import TextColumn, text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.ngrams import NgramIndex, index_of
from gristmill.kernels.words.tokens import Tokens, token_column
from gristmill.stages.dedup import benchmarks as reading
from gristmill.stages.dedup.benchmarks import Benchmark, BenchmarkError, files_of, opened, texts_of
from gristmill.stages.mapped import mapped, publish


class WantedIndex(NamedTuple):
    """What is sought, and how."""

    folder: str
    benchmarks: tuple[Benchmark, ...]
    ngram: int
    shortest: int
    most_texts: int
    phrases_file: str | None


class BenchmarkAccount(NamedTuple):
    """Texts of one benchmark: all of them, and those that are not sought because they are too short, because a text
    before them has the same words, or because all that they are made of is template."""

    benchmark: str
    items: int
    texts: int
    too_short: int
    repeated: int
    only_template: int


class BenchmarkIndex(NamedTuple):
    runs: NgramIndex
    labels: TextColumn
    accounts: tuple[BenchmarkAccount, ...]

    def label_of(self, texts: Array) -> pa.Array:
        """Benchmark, item and field of each text; -1 is empty."""
        data, offsets = self.labels
        names = [
            bytes(data[offsets[text] : offsets[text + 1]]).decode() if text >= 0 else "" for text in texts.tolist()
        ]
        return pa.array(names, pa.string())


def benchmark_index(wanted: WantedIndex) -> BenchmarkIndex:
    """The index, out of the cache where it was built before. Files that changed are read again."""
    return _index_as_stamped(
        wanted, tuple((fact.st_size, fact.st_mtime_ns) for fact in (file.stat() for file in _files(wanted)))
    )


def _files(wanted: WantedIndex) -> list[Path]:
    files = [file for benchmark in wanted.benchmarks for file in files_of(Path(wanted.folder), benchmark)]
    return files + ([Path(wanted.phrases_file)] if wanted.phrases_file else [])


@lru_cache(maxsize=4)
def _index_as_stamped(wanted: WantedIndex, _stamps: tuple[tuple[int, int], ...]) -> BenchmarkIndex:
    folder = cache_folder() / f"benchmarks-{_identity(wanted)}"
    if not folder.is_dir():
        _publish(_built(wanted), folder)
    return _mapped(folder)


def _identity(wanted: WantedIndex) -> str:
    """A hash of what is in the files, of what is taken from them, and of the code that reads them and lays the index
    out."""
    digest = xxhash.xxh3_128(
        Path(__file__).read_bytes()
        + Path(reading.__file__).read_bytes()
        + hash_of_code("gristmill.kernels.duplicates.ngrams").encode()
    )
    digest.update(json.dumps([[b.model_dump() for b in wanted.benchmarks], *wanted[2:5]]).encode())
    for file in _files(wanted):
        place = str(file.relative_to(wanted.folder)) if str(file) != wanted.phrases_file else ""
        digest.update(f"{place} {file.stat().st_size}\0".encode())
        with file.open("rb") as opened_file:
            while block := opened_file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _built(wanted: WantedIndex) -> BenchmarkIndex:
    texts_by_benchmark = [list(texts_of(Path(wanted.folder), benchmark)) for benchmark in wanted.benchmarks]
    tokens = _tokens([text.text for texts in texts_by_benchmark for text in texts])
    repeated = _repeated(tokens)
    phrases = _tokens(_phrases(wanted.phrases_file) if wanted.phrases_file else [])
    index = index_of(tokens, repeated, wanted.ngram, wanted.shortest, wanted.most_texts, phrases)
    lengths, fewest = np.diff(tokens.first), min(wanted.shortest, wanted.ngram)
    accounts, end = [], 0
    for benchmark, texts in zip(wanted.benchmarks, texts_by_benchmark, strict=True):
        span, end = slice(end, end + len(texts)), end + len(texts)
        short, again, sought = lengths[span] < fewest, repeated[span], index.text_runs[span] > 0
        if short.all():
            what = f"none of its {len(texts)} texts has {fewest} words" if texts else "no text in it"
            raise BenchmarkError(f"{benchmark.name}: {what}, so that nothing of it would be found")
        items = len({text.item for text in texts})
        accounts.append(
            BenchmarkAccount(
                benchmark.name,
                items,
                len(texts),
                int(short.sum()),
                int((again & ~short).sum()),
                int((~short & ~again & ~sought).sum()),
            )
        )
    labels = text_column(pa.array([text.label for texts in texts_by_benchmark for text in texts], pa.large_string()))
    return BenchmarkIndex(index, labels, tuple(accounts))


def _tokens(texts: list[str]) -> Tokens:
    clean = [text.encode("utf-8", "replace").decode() for text in texts]  # half a surrogate pair is valid JSON
    return token_column(text_column(pa.array(clean, pa.large_string())))


def _repeated(tokens: Tokens) -> Array:
    """Texts that have the tokens of a text before them."""
    seen: set[bytes] = set()
    repeated = np.zeros(len(tokens.first) - 1, np.bool_)
    for text, (a, b) in enumerate(zip(tokens.first[:-1].tolist(), tokens.first[1:].tolist(), strict=True)):
        key = tokens.hashes[a:b].tobytes()
        repeated[text] = key in seen
        seen.add(key)
    return repeated


def _phrases(path: str) -> list[str]:
    with opened(Path(path)) as file:
        return io.TextIOWrapper(file, "utf-8-sig", "replace").read().splitlines()


def _publish(made: BenchmarkIndex, folder: Path) -> None:
    accounts = json.dumps([account._asdict() for account in made.accounts])
    publish(folder, made.runs._asdict() | made.labels._asdict(), {"accounts.json": accounts})


def _mapped(folder: Path) -> BenchmarkIndex:
    accounts = json.loads((folder / "accounts.json").read_text(encoding="utf-8"))
    index, labels = (
        NgramIndex(*(mapped(folder, n) for n in NgramIndex._fields)),
        TextColumn(*(mapped(folder, n) for n in TextColumn._fields)),
    )
    return BenchmarkIndex(index, labels, tuple(BenchmarkAccount(**account) for account in accounts))
