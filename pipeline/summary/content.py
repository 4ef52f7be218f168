"""What the documents of a run hold, in sums: by source, site, language and license. One pass over what a sink
wrote, file after file; in memory are sums alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.stages.dedup.dates import moments
from gristmill.stages.text.sites import hosts_of, site_of_host

ROWS = 1 << 14  # of a batch
LICENSE = ("license_stated", "license_source")  # by the page (`page_terms`), by the source (`from_meta`)
COLUMNS = ("text", "source", "url", "date", "language", "synthetic", "token_count", *LICENSE)
UNNAMED = ""  # of a document without what is asked for


@dataclass
class Total:
    """Documents, and their text in UTF-8 bytes."""

    documents: int = 0
    text_bytes: int = 0

    def add(self, documents: int, text_bytes: int) -> None:
        self.documents += documents
        self.text_bytes += text_bytes

    def beside(self, whole: Total) -> tuple[int, int, float]:
        """With its share of the text of a whole."""
        return self.documents, self.text_bytes, self.text_bytes / whole.text_bytes if whole.text_bytes else 0.0


class Totals(dict[str, Total]):
    """By name; of `UNNAMED` where a document has none."""

    def add(self, names: pa.Array, sizes: pa.Array) -> None:
        sums = pa.table({"name": names, "size": sizes}).group_by("name").aggregate([("size", "count"), ("size", "sum")])
        columns = (sums[name].to_pylist() for name in ("name", "size_count", "size_sum"))
        for name, documents, size in zip(*columns, strict=True):
            self.setdefault(name, Total()).add(documents, size)

    @property
    def named(self) -> list[tuple[str, Total]]:
        """Largest text first, then by name; without documents that have no name."""
        known = [(name, total) for name, total in self.items() if name != UNNAMED]
        return sorted(known, key=lambda item: (-item[1].text_bytes, item[0]))

    @property
    def unnamed(self) -> Total:
        return self.get(UNNAMED, Total())

    @property
    def whole(self) -> Total:
        return Total(sum(each.documents for each in self.values()), sum(each.text_bytes for each in self.values()))


@dataclass
class Period:
    """The dates of a source's documents."""

    first: int | None = None  # microseconds since 1970
    last: int | None = None
    undated: int = 0

    def add(self, when: pa.Array) -> None:
        ends = pc.min_max(when).as_py()
        self.undated += when.null_count
        if ends["min"] is not None:
            self.first = min(ends["min"], ends["min"] if self.first is None else self.first)
            self.last = max(ends["max"], ends["max"] if self.last is None else self.last)


@dataclass
class Content:
    """The documents that one sink of a run wrote."""

    sink: str
    files: tuple[str, ...] = ()  # their paths
    tokens: int | None = 0  # None: not counted of every document
    columns: set[str] = field(default_factory=set)
    sources: Totals = field(default_factory=Totals)
    domains: Totals = field(default_factory=Totals)
    languages: Totals = field(default_factory=Totals)
    licenses: Totals = field(default_factory=Totals)
    synthetic: Total = field(default_factory=Total)  # documents whose column `synthetic` is true
    periods: dict[str, Period] = field(default_factory=dict)

    @property
    def whole(self) -> Total:
        return self.sources.whole

    def add(self, rows: pa.RecordBatch) -> None:
        sizes = pc.fill_null(pc.binary_length(rows["text"].cast(pa.large_binary())), 0).cast(pa.int64())
        sources = names_in(rows, ("source",))
        self.sources.add(sources, sizes)
        self.domains.add(domains_of(rows), sizes)
        self.languages.add(names_in(rows, ("language",)), sizes)
        self.licenses.add(names_in(rows, LICENSE), sizes)
        if (made := flags_in(rows, "synthetic")) is not None:
            self.synthetic.add(pc.sum(made).as_py() or 0, pc.sum(pc.filter(sizes, made)).as_py() or 0)
        tokens = rows["token_count"] if "token_count" in rows.schema.names else pa.nulls(len(rows))
        self.tokens = None if self.tokens is None or tokens.null_count else self.tokens + (pc.sum(tokens).as_py() or 0)
        when = when_of(rows)
        for source in pc.unique(sources).to_pylist():
            self.periods.setdefault(source, Period()).add(pc.filter(when, pc.equal(sources, source)))


def content_of(folder: RunFolder, sink: str | None) -> Content:
    """Of the sink that is named, else of the last one of the recipe."""
    sinks = [stage.name for stage in folder.record.sinks]
    chosen = sink or (sinks[-1] if sinks else None)
    if chosen is None or chosen not in sinks:
        there = f"stages that write documents here: {', '.join(sinks)}" if sinks else "no stage of its recipe does"
        what = f"{sink}: no stage of that name writes documents" if sink else "a summary counts documents that were"
        hint = "" if sinks else " written; add `- write` after the last stage that drops any, and run the recipe again"
        raise RecipeError(f"{folder.root}: {what}{hint}; {there}")
    content = Content(chosen, tuple(folder.sink_files(chosen)))
    for path in content.files:
        for rows in batches(folder, path):
            content.columns |= set(rows.schema.names)
            content.add(rows)
    return content


def batches(folder: RunFolder, path: str) -> Iterator[pa.RecordBatch]:
    with folder.open(path) as file:
        parquet = pq.ParquetFile(file)
        there = [name for name in COLUMNS if name in parquet.schema_arrow.names]
        yield from (rows for rows in parquet.iter_batches(ROWS, columns=there) if len(rows))


def text_in(rows: pa.RecordBatch, name: str) -> pa.Array:
    """A column as text; null where it is none or empty."""
    column = rows[name]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = pa.array([", ".join(sorted(map(str, value))) if value else None for value in column.to_pylist()])
    column = column.cast(pa.string())
    return pc.if_else(pc.equal(column, ""), None, column)


def names_in(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Of the first of these columns that has one."""
    there = [text_in(rows, name) for name in columns if name in rows.schema.names]
    return pc.coalesce(*there, pa.scalar(UNNAMED)) if there else pa.array([UNNAMED] * len(rows), pa.string())


def flags_in(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """A column of yes and no, as booleans, numbers or words."""
    if name not in rows.schema.names:
        return None
    column = rows[name]
    if pa.types.is_boolean(column.type):
        return pc.fill_null(column, False)
    words = pa.array(["true", "1", "1.0", "yes"])
    return pc.is_in(pc.utf8_lower(pc.coalesce(column.cast(pa.string()), pa.scalar(""))), value_set=words)


def when_of(rows: pa.RecordBatch) -> pa.Array:
    if "date" not in rows.schema.names:
        return pa.nulls(len(rows), pa.int64())
    when = moments(rows["date"].cast(pa.string()))
    return when.combine_chunks() if isinstance(when, pa.ChunkedArray) else when


def domains_of(rows: pa.RecordBatch) -> pa.Array:
    """The registered domain of each document by the Public Suffix List."""
    if "url" not in rows.schema.names:
        return pa.array([UNNAMED] * len(rows), pa.string())
    hosts = pa.array([host.decode(errors="replace") for host in hosts_of(rows["url"].cast(pa.string()))], pa.string())
    coded = hosts.dictionary_encode()
    sites = pa.array([site(host) for host in coded.dictionary.to_pylist()], pa.string())
    return sites.take(coded.indices)


@lru_cache(1 << 16)
def site(host: str) -> str:
    return site_of_host(host) if host else UNNAMED
