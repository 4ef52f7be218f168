"""Lists of domains, hosts, urls and words, read once a machine into tables that all its workers map.

A list is text, one entry a line, `#` for comments; `.gz` and `.zst` are read as they are. Collections in the layout of
the blacklists of the University of Toulouse (UT1) are folders or tars of `CATEGORY/domains` and `CATEGORY/urls`.
Measured: 4.5 million domains in
1.3 CPU seconds from text, 0.02 once they lie in the cache, 67 MB of memory for all workers together
  (benchmarks/text/urls.py).
"""

from __future__ import annotations

import difflib
import io
import tarfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

import numpy as np
import xxhash
import zstandard
from isal import igzip

from gristmill.kernels.base.code_cache import cache_folder, hash_of_code
from gristmill.kernels.base.types import Array
from gristmill.kernels.urls.lists import (
    ALLOWED,
    DOMAIN,
    HOST,
    PREFIX,
    SOFT_WORD,
    SUBSTRING,
    WORD,
    Automaton,
    automaton_of,
    entry_lines,
    site_keys,
    table_of,
    word_keys,
)  # fmt: skip
from gristmill.kernels.urls.urls import HAD_WWW, ODD_HOST, Urls, canonical_urls, folded_text, odd_host_mended
from gristmill.stages.mapped import mapped, publish

CHUNK = 8 << 20
UT1_KINDS = {
    "domains": DOMAIN,
    "urls": PREFIX,
}  # squidGuard, whose format it is, takes a url for all that lies below it


class WantedLists(NamedTuple):
    """The lists of a stage: (kind, path) each, collections and which of their categories, what is taken out of
    substrings."""

    files: tuple[tuple[int, str], ...]
    collections: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    taken_out: int = 0


class UrlLists(NamedTuple):
    sites: Array
    words: Array
    automaton: Automaton
    patterns: Array
    pattern_offsets: Array
    kinds: int  # bits of the kinds that have entries

    def pattern(self, index: int) -> str:
        return bytes(self.patterns[self.pattern_offsets[index] : self.pattern_offsets[index + 1]]).decode(
            errors="replace"
        )


def url_lists(wanted: WantedLists) -> UrlLists:
    """The tables of these lists, out of the cache where they were built before. Files that changed are read again."""
    paths = [path for _, path in wanted.files] + list(wanted.collections)
    return _lists_as_stamped(wanted, tuple(_stamp(Path(path)) for path in paths))


def _stamp(path: Path) -> tuple[int, int]:
    facts = [file.stat() for file in _files_of(path)]
    return sum(fact.st_size for fact in facts), max((fact.st_mtime_ns for fact in facts), default=0)


def _files_of(path: Path) -> list[Path]:
    return (
        sorted(file for file in path.rglob("*") if file.name in UT1_KINDS and file.is_file())
        if path.is_dir()
        else [path]
    )


@lru_cache(maxsize=4)
def _lists_as_stamped(wanted: WantedLists, _stamps: tuple[tuple[int, int], ...]) -> UrlLists:
    folder = cache_folder() / f"urls-{_identity(wanted)}"
    if not folder.is_dir():
        _publish(_built(wanted), folder)
    return _mapped(folder)


def _identity(wanted: WantedLists) -> str:
    """A hash of what is in the lists and of the code that reads them and lays them out."""
    digest = xxhash.xxh3_128(Path(__file__).read_bytes() + hash_of_code("gristmill.kernels.urls.lists").encode())
    digest.update(repr((wanted.categories, wanted.taken_out)).encode())
    for kind, path in [*wanted.files, *((-1, path) for path in wanted.collections)]:
        for file in _files_of(Path(path)):
            digest.update(
                f"{kind} {file.relative_to(path) if file != Path(path) else file.name} {file.stat().st_size}\0".encode()
            )
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _publish(lists: UrlLists, folder: Path) -> None:
    arrays = {
        "sites": lists.sites,
        "words": lists.words,
        "patterns": lists.patterns,
        "pattern_offsets": lists.pattern_offsets,
    }
    publish(folder, arrays | lists.automaton._asdict() | {"kinds": np.array([lists.kinds])})


def _mapped(folder: Path) -> UrlLists:
    sites, words, patterns, offsets, kinds = (
        mapped(folder, name) for name in ("sites", "words", "patterns", "pattern_offsets", "kinds")
    )
    return UrlLists(
        sites, words, Automaton(*(mapped(folder, name) for name in Automaton._fields)), patterns, offsets, int(kinds[0])
    )


def _built(wanted: WantedLists) -> UrlLists:
    sites: list[Array] = []
    words: list[Array] = []
    substrings: list[bytes] = []
    kinds = 0
    for kind, where, chunks in _all_lists(wanted):
        before = kinds
        for chunk in chunks:
            starts, ends = entry_lines(chunk)
            if not len(starts):
                continue
            kinds |= 1 << kind
            if kind == SUBSTRING:
                folded = folded_text(chunk, starts, ends)
                substrings += [bytes(folded[a:b]) for a, b in zip(starts, ends, strict=True)]
            elif kind in (WORD, SOFT_WORD):
                words.append(_keys_of_words(chunk, starts, ends, kind))
            else:
                keys, met = _keys_of_sites(chunk, starts, ends, kind, where)
                sites.append(keys)
                kinds |= met
        if kinds == before and not kinds >> kind & 1:
            raise ValueError(f"{where}: no entry in it")
    texts = sorted(set(substrings))
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
    patterns = np.frombuffer(b"".join(texts), np.uint8)
    return UrlLists(
        _table(sites), _table(words), automaton_of(patterns, offsets, wanted.taken_out), patterns, offsets, kinds
    )


def _table(keys: list[Array]) -> Array:
    together = np.concatenate(keys) if keys else np.zeros(0, np.uint64)
    return table_of(together[together != 0])


def _keys_of_sites(chunk: Array, starts: Array, ends: Array, kind: int, where: str) -> tuple[Array, int]:
    """Keys of a chunk's entries, and the kinds they turned out to be: what has a path is a page, whatever the list."""
    urls = mended_urls(chunk, starts, ends)
    kinds = np.full(len(urls), kind, np.int64)
    if kind in (DOMAIN, HOST, ALLOWED):
        with_path = urls.keys > urls.sites
        if kind == ALLOWED and with_path.any():
            raise ValueError(
                f"{where}: {text_of(urls, int(np.argmax(with_path)))} has a path; only whole domains can be allowed"
            )
        if kind == DOMAIN:  # www.a.org is one host; to block all of a.org it would have said so
            kinds[urls.marks & HAD_WWW != 0] = HOST
        kinds[with_path] = PREFIX
    return site_keys(urls, kinds), sum(1 << kind for kind in range(WORD) if (kinds == kind).any())


def _with_rows(urls: Urls, rows: Array, others: Urls) -> Urls:
    """The urls with some rows out of `others`, whose bytes are put behind."""
    shift = len(urls.text)

    def joined(ours: Array, theirs: Array) -> Array:
        column = ours.copy()
        column[rows] = theirs + shift
        return column

    text = np.concatenate([urls.text, others.text])
    starts, ends, hosts = (
        joined(urls.starts, others.starts),
        joined(urls.ends, others.ends),
        joined(urls.hosts, others.hosts),
    )
    return Urls(text, starts, ends, hosts, joined(urls.sites, others.sites), joined(urls.keys, others.keys), urls.marks)


def mended_urls(data: Array, starts: Array, ends: Array) -> Urls:
    """`canonical_urls`, with the few hosts of Unicode or IPv6 mended."""
    urls = canonical_urls(data, starts, ends)
    odd = np.flatnonzero(urls.marks & ODD_HOST)
    if not len(odd):
        return urls
    mended = _joined([odd_host_mended(text_of(urls, row)).encode("utf-8", "surrogateescape") for row in odd.tolist()])
    return _with_rows(urls, odd, canonical_urls(*mended))


def text_of(urls: Urls, row: int) -> str:
    return bytes(urls.text[urls.starts[row] : urls.ends[row]]).decode("utf-8", "surrogateescape")


def _joined(parts: list[bytes]) -> tuple[Array, Array, Array]:
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
    return np.frombuffer(b"".join(parts), np.uint8), offsets[:-1], offsets[1:]


def _keys_of_words(chunk: Array, starts: Array, ends: Array, kind: int) -> Array:
    joined, first, last = _joined([bytes(chunk[a:b]) for a, b in zip(starts, ends, strict=True)])
    return word_keys(folded_text(joined, first, last), np.append(first, last[-1]), kind)


def _all_lists(wanted: WantedLists) -> Iterator[tuple[int, str, Iterable[Array]]]:
    for kind, path in wanted.files:
        with _opened(path) as file:
            yield kind, path, _chunks(file)
    seen: set[str] = set()
    for path in wanted.collections:
        for name, file in _members(path):
            category = PurePosixPath(name).parent.name
            seen.add(category)
            if not wanted.categories or category in wanted.categories:
                yield UT1_KINDS[PurePosixPath(name).name], f"{path}: {name}", _chunks(file)
    for category in wanted.categories:
        if category not in seen:
            near = difflib.get_close_matches(category, seen, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(seen)) or 'none'}"
            raise ValueError(f"no category {category!r} in {', '.join(wanted.collections)}; {advice}")


def _opened(path: str) -> IO[bytes]:
    if path.endswith((".gz", ".tgz")):
        return igzip.open(path, "rb")  # type: ignore[no-any-return]
    if path.endswith((".zst", ".zstd")):
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(Path(path).open("rb"), closefd=True))
    return Path(path).open("rb")


def lines_of(path: str) -> Iterator[bytes]:
    """The lines of a text file, which may be compressed."""
    with _opened(path) as file:
        yield from file


def _members(path: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Lists of a collection by their name in it; nothing is unpacked to disk."""
    if Path(path).is_dir():
        for path_of_list in _files_of(Path(path)):
            with path_of_list.open("rb") as file:
                yield path_of_list.relative_to(path).as_posix(), file
        return
    with _opened(path) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
        for member in tar:
            opened = (
                tar.extractfile(member) if member.isfile() and PurePosixPath(member.name).name in UT1_KINDS else None
            )
            if opened is not None:
                yield member.name, opened


def _chunks(file: IO[bytes]) -> Iterator[Array]:
    """Pieces of whole lines."""
    rest = file.read(3).removeprefix(b"\xef\xbb\xbf")
    while block := file.read(CHUNK):
        cut = block.rfind(b"\n") + 1
        if not cut:
            rest += block
            continue
        yield np.frombuffer(rest + block[:cut], np.uint8)
        rest = block[cut:]
    yield np.frombuffer(rest, np.uint8)
