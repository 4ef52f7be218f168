"""index.json, the list of the shards of a set: what each contains, and the totals."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import xxhash

from gristmill.shards.format import BadShards, ShardMeta, check_version

NAME = "index.json"
FORMAT = "gristmill token shards"
TOTALS = ("rows", "tokens", "padding", "documents", "pieces", "bytes")


@dataclass(frozen=True)
class ShardEntry:
    """`documents` counts every copy once, where its first piece is; `checksum` is xxh3-128 of the file, in
    hexadecimal."""

    path: str
    rows: int
    tokens: int
    padding: int
    documents: int
    pieces: int
    bytes: int
    checksum: str


@dataclass(frozen=True)
class Index:
    """`segments` are the rows where segments of the schedule begin (their order matters, the order inside one does
    not)."""

    meta: ShardMeta
    shards: tuple[ShardEntry, ...]
    sources: Mapping[str, int]  # tokens of each, in the order in which rows count them
    segments: tuple[int, ...]

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "format": FORMAT,
            "version": self.meta.facts()["version"],
            "meta": self.meta.facts(),
            **{name: self.total(name) for name in TOTALS},
            "sources": [{"name": name, "tokens": tokens} for name, tokens in self.sources.items()],
            "segments": list(self.segments),
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }

    def total(self, name: str) -> int:
        return sum(getattr(shard, name) for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Of the contents: equal for a set elsewhere under other names."""
        content = [self.meta.facts(), [[shard.rows, shard.checksum] for shard in self.shards]]
        return str(xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode()))


def read_index(text: bytes, where: str) -> Index:
    """An index that others may have written: everything in it is checked before use."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadShards(f"{where}: not JSON ({error}); was it cut off?") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise BadShards(f"{where}: not an index of token shards (`format` is not {FORMAT!r})")
    check_version(facts.get("version"), where)
    meta = ShardMeta.from_facts(facts.get("meta"), f"{where}: meta")
    shards, sources, segments = facts.get("shards"), facts.get("sources"), facts.get("segments")
    if not isinstance(shards, list) or not isinstance(sources, list) or not isinstance(segments, list):
        raise BadShards(f"{where}: `shards`, `sources` and `segments` must be lists")
    index = Index(
        meta,
        tuple(_entry(shard, meta.row_length, f"{where}: shards[{i}]") for i, shard in enumerate(shards)),
        dict(_source(source, f"{where}: sources[{i}]") for i, source in enumerate(sources)),
        tuple(_count(row, f"{where}: segments[{i}]") for i, row in enumerate(segments)),
    )
    _check(index, facts, where)
    return index


def _check(index: Index, facts: Mapping[str, Any], where: str) -> None:
    for name in TOTALS:
        if facts.get(name) != index.total(name):
            raise BadShards(f"{where}: {name} is {facts.get(name)!r}, but its shards add up to {index.total(name):,}")
    if len(index.sources) < len(facts["sources"]):
        raise BadShards(f"{where}: a source is listed twice")
    if sum(index.sources.values()) != index.total("tokens"):
        raise BadShards(
            f"{where}: sources hold {sum(index.sources.values()):,} tokens, shards {index.total('tokens'):,}"
        )
    path, times = Counter(shard.path for shard in index.shards).most_common(1)[0] if index.shards else ("", 1)
    if times > 1:
        raise BadShards(f"{where}: {path} is listed {times} times")
    check_segments(index.segments, index.total("rows"), where)


def check_segments(segments: Sequence[int], rows: int, where: str) -> None:
    if not segments:
        return
    if segments[0] != 0 or any(a >= b for a, b in pairwise(segments)) or segments[-1] >= max(rows, 1):
        raise BadShards(f"{where}: segments must rise from 0 and stay below {rows:,}, the number of rows")


def _entry(facts: Any, row_length: int, where: str) -> ShardEntry:
    if (
        not isinstance(facts, dict)
        or not isinstance(facts.get("path"), str)
        or not isinstance(facts.get("checksum"), str)
    ):
        raise BadShards(f"{where}: a shard has a path, a checksum and counts")
    path = facts["path"]
    if "\\" in path or not path.isprintable() or {"", ".", ".."} & set(path.split("/")):
        raise BadShards(f"{where}: {path!r} is not the plain path of a file below the index")
    counts = {name: _count(facts.get(name), f"{where}.{name}") for name in TOTALS}
    entry = ShardEntry(path=path, checksum=facts["checksum"], **counts)
    if entry.tokens + entry.padding != entry.rows * row_length:
        raise BadShards(
            f"{where}: {entry.tokens:,} tokens and {entry.padding:,} of padding are not {entry.rows:,} rows of "
            f"{row_length:,}"
        )
    return entry


def _source(facts: Any, where: str) -> tuple[str, int]:
    if not isinstance(facts, dict) or not isinstance(facts.get("name"), str):
        raise BadShards(f"{where}: a source has a name and tokens")
    return facts["name"], _count(facts.get("tokens"), f"{where}.tokens")


def _count(number: Any, where: str) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise BadShards(f"{where}: {number!r} is not a count")
    return number
