"""The inputs of a reader: what they are called, how large they are, and how a reader lists and opens them.

Most readers take the files that `path` names and read them in spans of bytes. One that reads something else (a
database, an API) overrides `Reader.list_inputs` and `Reader.open`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from gristmill.stages.documents import Origin


@dataclass(frozen=True)
class InputFile:
    """One input of a source; `path` is below the source's root and is its name for good."""

    address: str  # where it is; with `://` in it unless it is a file of this machine
    path: str
    size: int  # bytes, or a fair guess: large inputs are split (`Reader.spans`), small ones share a part
    # Changes with the content: of a local file its times and inode, else what the object store states. Tells only
    # whether a known hash still holds.
    stamp: str = ""
    content: str = ""  # identifies the content; if a reader leaves it empty, it is `stamp`, or a hash of the file
    identity: str = ""  # equal where two addresses lead to one file
    records: str = ""  # those that are wanted, if not all are (pipeline/crawls/listing.py)


@dataclass(frozen=True)
class InputFiles:
    """The inputs of a source, and files that were passed over beside them."""

    files: Sequence[InputFile]
    passed_over: Mapping[str, int] = field(default_factory=dict)  # address -> size, of endings that no reader takes

    def fetch_plan(self, spans: Iterable[tuple[InputFile, int, int | None]]) -> Mapping[str, object] | None:
        """What it takes to fetch these spans, of inputs that are fetched from elsewhere as they are read."""
        return None


class InputAccess(Protocol):
    """What the engine does for a reader that lists or opens its inputs."""

    def located(self, address: str) -> str:
        """An address of a recipe, as seen from the folder of the recipe."""

    def list_files(self, addresses: str | Sequence[str], suffixes: tuple[str, ...]) -> InputFiles:
        """The files at these addresses: files, folders or globs."""

    def open_file(self, origin: Origin) -> BinaryIO:
        """The file that a span is of, local or at any fsspec address, in the version that was listed."""

    def list_crawl(self, reader: Any) -> InputFiles:
        """Files of a crawl that is read by name (`Cc`)."""

    def open_crawl(self, reader: Any, origin: Origin) -> BinaryIO:
        """A span of such a file, fetched as it is read."""
