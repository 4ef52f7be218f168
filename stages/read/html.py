"""Pages and PDF files in a folder, one a file: plain, gzip or zstd. What `wget -r`, a site generator or a browser
saves.

The url is known only where the path tells it: `wget -r` writes HOST/PATH, or https/HOST/PATH.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar
from urllib.parse import quote

from pydantic import Field, field_validator

from gristmill.stages.documents import Collector
from gristmill.stages.read.other_formats import OTHERS, PDF
from gristmill.stages.read.payload import HTML_TYPES, is_pdf, not_html
from gristmill.stages.read.plain import WholeFiles
from gristmill.stages.stage import Origin

SCHEMES = ("http", "https")
# A host of two labels or more, the last of letters; `wget` writes a port as host:8080, or host+8080 where a file may
# have no colon.
HOST = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?\.){1,20}(?:[a-z]{2,24}|xn--[a-z0-9-]{2,59})(?:[:+]\d{1,5})?"
)
PACKED = (".gz", ".zst")
KEPT = "/%?=&:;,@!$'()*+~[]"  # characters of a url that a file's name may have as they are


class Html(WholeFiles):
    """HTML files, one page a file, for `extract`; its id is its path below the source. .gz and .zst are unpacked."""

    base_url: Annotated[
        str | None,
        Field(
            description="url of the folder, put before a file's path; absent: a path that begins with a host, as wget "
            "-r writes it, is the url; "
            "empty: pages have no url"
        ),
    ] = None
    suffixes: ClassVar[tuple[str, ...]] = tuple(
        ending + packed for packed in ("", *PACKED) for ending in (".html", ".htm", ".xhtml")
    )
    pages: ClassVar[bool] = True
    holds: ClassVar[str] = "HTML"
    gives_pdf: ClassVar[bool] = False  # type: ignore[assignment,misc]  # they are left out

    @property
    def instead_for_text(self) -> str:
        return f"files that hold text already are read by `plain`, not `{self.recipe_name()}`"

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, base_url: str | None) -> str | None:
        if base_url and not re.match(r"[a-z][a-z0-9+.-]*://[^/]", base_url):
            raise ValueError(f"a url such as https://example.com/docs/ was expected, not {base_url!r}")
        return base_url

    def add(self, data: bytes, origin: Origin, collector: Collector) -> None:
        url = self.url_of(origin.path)
        other = not_html(HTML_TYPES[0], data)
        if not data or data.isspace():
            collector.skip("empty_page", url or origin.path)
        elif other is not None:
            collector.skip("not_html", url or origin.path, other)
        else:
            collector.add(0, html=data, id=origin.path, url=url)

    def url_of(self, path: str) -> str | None:
        """The url of a file by its path below the source's root."""
        if self.base_url == "":
            return None
        path = unpacked_name(path)
        if self.base_url is not None:
            return f"{self.base_url.rstrip('/')}/{as_in_url(path)}"
        scheme, _, rest = path.partition("/")
        if scheme not in SCHEMES:
            scheme, rest = "https", path
        host, slash, page = rest.partition("/")
        if not slash or not HOST.fullmatch(host):
            return None
        return f"{scheme}://{host.replace('+', ':')}/{as_in_url(page)}"


class Pdf(Html):
    """PDF files, one document a file, for `extract`; its id is its path below the source. .gz and .zst are unpacked."""

    suffixes: ClassVar[tuple[str, ...]] = tuple(".pdf" + packed for packed in ("", *PACKED))
    holds: ClassVar[str] = "PDF"
    gives_pdf: ClassVar[bool] = True
    others: ClassVar[tuple[tuple[bytes, str, str], ...]] = tuple(other for other in OTHERS if other is not PDF)

    def add(self, data: bytes, origin: Origin, collector: Collector) -> None:
        url = self.url_of(origin.path)
        if is_pdf(data):
            collector.add(0, html=data, id=origin.path, url=url)
        else:
            collector.skip("not_pdf" if data else "empty_page", url or origin.path)


def unpacked_name(path: str) -> str:
    return next((path[: -len(ending)] for ending in PACKED if path.lower().endswith(ending)), path)


def as_in_url(path: str) -> str:
    """A path as urls write it; percent signs are taken for escapes already, as `wget` leaves them."""
    return quote(path.encode("utf-8", "surrogateescape"), safe=KEPT)
