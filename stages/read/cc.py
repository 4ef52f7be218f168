"""Common Crawl by name: which files of a dump, or which records of its columnar index, and how they are fetched.

Files are listed, fetched and kept on disk by `pipeline/crawls`; what is here says which, and parses their records. A
record has the place that it has in its file, so that a page is the same document whether it was fetched by itself, with
its file, or read from a folder by `warc`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, BinaryIO, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from gristmill.kernels.common.settings import PLACEMENT, Bytes, Settings
from gristmill.stages.documents import Collector, Reading
from gristmill.stages.read.members import Codec, Gzip, Window
from gristmill.stages.read.page_rows import PageCollector
from gristmill.stages.read.records import Record
from gristmill.stages.read.warc import Archived, Warc
from gristmill.stages.stage import InputAccess, InputFiles, Origin

COMMON_CRAWL = "https://data.commoncrawl.org/"
NEWS = re.compile(r"CC-NEWS-\d{4}-\d{2}")
NOT_THERE = "no record begins here, though the index says so"


class CrawlIndex(Settings):
    """Which records to take, by the columns of Common Crawl's index. A record has to fit each list that is not
    empty."""

    languages: Annotated[
        tuple[str, ...], Field(description="ISO 639-3 codes; the page's main language by CLD2 (`content_languages`)")
    ] = ()
    hosts: Annotated[tuple[str, ...], Field(description="host names in full (`url_host_name`)")] = ()
    domains: Annotated[tuple[str, ...], Field(description="registered domains (`url_host_registered_domain`)")] = ()
    mime: Annotated[tuple[str, ...], Field(description="media types as detected (`content_mime_detected`)")] = ()

    @field_validator("languages", "hosts", "domains", "mime")
    @classmethod
    def _are_in_small_letters(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.strip().lower() for name in names)

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not (self.languages or self.hosts or self.domains or self.mime):
            raise ValueError("the index is asked for nothing; name languages, hosts, domains or mime")
        for code in self.languages:
            if not re.fullmatch("[a-z]{3}", code):
                raise ValueError(f"languages: {code!r} is no ISO 639-3 code, such as deu")
        return self


class CrawlLimits(Settings):
    """How hard the server is asked, by all processes of a machine together."""

    requests: Annotated[float, Field(gt=0, description="requests a second at most")] = 20.0
    tries: Annotated[int, Field(ge=1, description="requests in a row that bring nothing, before the run fails")] = 8
    pause: Annotated[
        float, Field(ge=0, description="seconds before the second try; twice as long each time, a minute at most")
    ] = 1.0
    timeout: Annotated[float, Field(gt=0, description="seconds in which no byte arrives, before it asks again")] = 60.0


class Cc(Warc):
    """Common Crawl by name: a dump or a month of news, a share of its files, or the records that its index names."""

    path: Annotated[
        str | list[str], Field(description="globs; of the files in a dump's list only those that match one")
    ] = "*"
    dump: Annotated[
        str | list[str],
        Field(
            description="a dump or several: CC-MAIN-2024-10; of kind news a month: CC-NEWS-2024-10",
            json_schema_extra=PLACEMENT,
        ),
    ]
    kind: Annotated[Literal["warc", "wet", "news"], Field(description="pages, texts, or pages of the news crawl")] = (
        "warc"
    )
    root: Annotated[
        str,
        Field(
            description="where dumps lie: https://, s3:// or a folder",
            json_schema_extra=PLACEMENT,
        ),
    ] = COMMON_CRAWL
    sample: Annotated[
        float,
        Field(gt=0, le=1, description="share of the files, by a hash of their names", json_schema_extra=PLACEMENT),
    ] = 1.0
    index: Annotated[
        CrawlIndex | None,
        Field(description="fetch only the records that fit, by the columnar index", json_schema_extra=PLACEMENT),
    ] = None
    gap: Annotated[
        Bytes,
        Field(
            ge=0,
            description="records of a file this many bytes apart or less are fetched with one request, with the bytes "
            "between",
            json_schema_extra=PLACEMENT,
        ),
    ] = 64 << 10
    cache: Annotated[
        str,
        Field(
            description="a folder of the machine that fetches, for what it fetched; below the user's cache unless given",
            json_schema_extra=PLACEMENT,
        ),
    ] = ""
    cache_bytes: Annotated[
        Bytes,
        Field(ge=0, description="bytes that stay there once they are read; the oldest go", json_schema_extra=PLACEMENT),
    ] = 8 << 30
    limits: Annotated[CrawlLimits, Field(description="of requests and tries", json_schema_extra=PLACEMENT)] = (
        CrawlLimits()
    )
    suffixes: ClassVar[tuple[str, ...]] = (".warc.gz", ".wet.gz")

    @model_validator(mode="after")
    def _names_what_there_is(self) -> Self:
        if not self.dumps:
            raise ValueError("dump: a name such as CC-MAIN-2024-10 was expected")
        for dump in self.dumps:
            if self.kind == "news" and not NEWS.fullmatch(dump):
                raise ValueError(f"dump: {dump!r} is no month of the news crawl, such as CC-NEWS-2024-10")
            if self.kind != "news" and not re.fullmatch(r"CC-MAIN-\d{4}(-\d{1,4})?", dump):
                raise ValueError(f"dump: {dump!r} is no name of a dump, such as CC-MAIN-2024-10")
        if self.index is not None and self.kind != "warc":
            raise ValueError(
                f"index: it knows where records lie in WARC files of dumps, and nothing of kind {self.kind}"
            )
        if self.cache and not self.cache.startswith(("/", "~")):
            raise ValueError("cache: a whole path was expected, for it is a folder of each machine that works")
        return self

    @property
    def dumps(self) -> tuple[str, ...]:
        return (self.dump,) if isinstance(self.dump, str) else tuple(dict.fromkeys(self.dump))

    @property
    def gives_pages(self) -> bool:
        return self.kind != "wet"

    @property
    def instead_for_text(self) -> str:
        return "texts that Common Crawl has extracted are read with `kind: wet`"

    @property
    def roots(self) -> tuple[str, ...]:
        return (self.root,)

    def list_inputs(self, access: InputAccess) -> InputFiles:
        return access.list_crawl(self)

    def open(self, origin: Origin, access: InputAccess) -> BinaryIO:
        return access.open_crawl(self, origin) if "://" in origin.address else access.open_file(origin)

    def spans(self, file: BinaryIO, path: str, size: int, target: int) -> list[tuple[int, int | None]]:
        """By size alone: to look into a file would cost a request."""
        return [(start, min(start + target, size)) for start in range(0, size, target)] or [(0, None)]

    def read(self, file: BinaryIO, origin: Origin) -> Iterator[Reading]:
        return super().read(file, origin) if origin.records is None else self.read_records(file, origin, origin.records)

    def read_records(self, file: BinaryIO, origin: Origin, wanted: tuple[tuple[int, int], ...]) -> Iterator[Reading]:
        """The records that begin at these places, each so many bytes long."""
        collector = PageCollector(origin.source, origin.path, pages=self.gives_pages, at=0)
        window, held = Window(file), 0
        for start, length in wanted:
            # no member is looked for behind this one: what is there was not fetched
            archive = Archived(file, origin.path, start + length, start, start + length)
            if not 0 < length <= self.max_record_bytes:
                collector.skip("too_large", None, f"{length} bytes")
                held += length
                continue
            found = False
            for _ in self.account_all(archive, window, collector):
                found, collector.at = True, held
                if collector.full:
                    yield collector.take()
            if not found:
                collector.damage(start, start + length, NOT_THERE)
            held += length
            collector.at = held
            if collector.full:
                yield collector.take()
        yield collector.take()

    def archives(self, file: BinaryIO, origin: Origin, collector: Collector) -> Iterator[Archived]:
        end = origin.size if origin.end is None else min(origin.end, origin.size)
        yield Archived(file, origin.path, origin.size, origin.start, end)

    def codec(self, window: Window, name: str) -> Codec:
        """Known without a look at the beginning of the file, which may be another part's."""
        return Gzip()

    def account_page(self, record: Record, body: bytes, place: str, url: str | None, collector: Collector) -> None:
        if self.kind == "wet":
            return collector.skip("not_text", url)
        super().account_page(record, body, place, url, collector)
