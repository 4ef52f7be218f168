"""The page as it was crawled, read again from the inputs, and made so that it can be shown in a frame.

Only our own readers are used, with the settings that run.json names; a reader from a file of the user's is not run
here. Nothing parses the markup: it is decoded, and every element is renamed that could load, run, send or lead
anywhere. The frame is sandboxed and its policy lets nothing through besides; renaming stops what no policy covers (a
`link` that asks a name server, a click).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gristmill.pipeline.explore.search import Deadline
from gristmill.pipeline.inputs.files import REMEMBERED, NoOriginal, addresses_of, open_input, reader_of, remembered_in
from gristmill.pipeline.look.history import FileSpan, Story, find_records
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.show_history import span_text
from gristmill.stages.read.charset import decode_page
from gristmill.stages.read.payload import is_pdf
from gristmill.stages.stage import Origin, Reader

SHOWN = 4 << 20  # characters of markup in a frame
FEW = 2  # originals kept
# A tag's name is these letters and then a space, a slash or a bracket; nothing else can make such an element.
ACTIVE = re.compile(
    r"<(/?)(?=(?:a|applet|area|audio|base|bgsound|button|embed|fencedframe|form|frame|frameset|iframe|image|img|input|link|meta|noscript|object|plaintext"
    r"|portal|script|select|source|template|textarea|track|video|xmp|math|svg)[\t\n\f\r />])",
    re.IGNORECASE,
)
TAG = re.compile(r"<[a-z][^<>]*", re.IGNORECASE)
HANDLER = re.compile(r"""([\s/"'])((?:on[a-z]+|background)[\t\n\f\r ]*=)""", re.IGNORECASE)
STYLES = re.compile(r"(</?style(?=[\t\n\f\r />]))", re.IGNORECASE)
FETCHES = re.compile(r"(url[\t\n\f\r ]*\((?![\t\n\f\r ]*[\"']?data:)|@import)", re.IGNORECASE)
QUIET_STYLE = "<style>x-a { color: #06c; text-decoration: underline; } x-script, x-noscript, x-template { display: none; } html { background: #fff; }</style>"


@dataclass(frozen=True)
class Original:
    """A page's bytes as the reader gave them, decoded."""

    markup: str
    bytes: int
    charset: str
    file: str

    @property
    def cut(self) -> bool:
        return len(self.markup) > SHOWN


def inert(markup: str) -> str:
    """Markup for the frame: it can be looked at, and that is all."""
    renamed = TAG.sub(without_handlers, ACTIVE.sub(r"<\1x-", markup[:SHOWN]))
    pieces = STYLES.split(renamed)  # text, then by turns a tag of a style and what follows it
    styled = [pieces[0]]
    for tag, rest in zip(pieces[1::2], pieces[2::2], strict=True):
        styled += [tag, FETCHES.sub(r"x-\1", rest) if tag[1] != "/" else rest]
    return "".join(styled).encode("utf-8", "replace").decode() + QUIET_STYLE


def without_handlers(tag: re.Match[str]) -> str:
    """A tag whose attributes start nothing and fetch nothing. The frame's policy would stop them too, and say so in the
    console."""
    return FETCHES.sub(r"x-\1", HANDLER.sub(r"\1x-\2", tag[0]))


class Originals:
    """Finds the originals of documents; the last few are kept, for a page and its frame ask for the same."""

    def __init__(self) -> None:
        self._kept: dict[str, Original] = {}

    def find(self, folder: RunFolder, story: Story, deadline: Deadline) -> Original:
        uid = story.uid or ""
        original = self._kept.get(uid)
        if original is None:
            original = self._kept[uid] = read_again(folder, story, deadline)
            for old in list(self._kept)[:-FEW]:
                self._kept.pop(old, None)
        return original


def read_again(folder: RunFolder, story: Story, deadline: Deadline) -> Original:
    """The page of a document out of the file that it was read from."""
    if story.uid is None or story.source is None or not story.read_from:
        raise NoOriginal("the run does not say which file it was read from")
    reader = reader_of(folder.record.recipe, story.source)
    if not reader.gives_pages:
        raise NoOriginal(f"the source {story.source} has texts, not pages: what was read is the text itself")
    find_records(folder, [story])
    wanted = np.uint64(int(story.uid, 16))
    missing: list[str] = []
    try:
        remembered = remembered_in(folder.read(REMEMBERED))
    except LookupError as error:
        raise NoOriginal("the journal does not say where the input files are") from error
    for span in story.read_from:
        addresses = list(addresses_of(remembered, span.path, reader))
        if not addresses:
            missing.append(span.path)
        for address, size in addresses:
            try:
                original = in_file(reader, address, size, span, wanted, story, deadline)
            except OSError as error:
                missing.append(f"{address} ({error.strerror or error})")
                continue
            except (ValueError, KeyError, EOFError, RuntimeError, MemoryError) as error:
                raise NoOriginal(f"{address}: {type(error).__name__}: {error}") from error
            if original is not None:
                return original
    if deadline.over:
        raise NoOriginal(
            "the search through the input file ran out of time; look again, or at a run with smaller files"
        )
    raise NoOriginal(f"it is no longer in its input file{': cannot be read: ' + ', '.join(missing) if missing else ''}")


def in_file(
    reader: Reader, address: str, size: int, span: FileSpan, wanted: np.uint64, story: Story, deadline: Deadline
) -> Original | None:
    """The document with this uid, in one span of one file, or at its place there; it must be the same record still."""
    at, end = (span.start, span.end) if span.offset is None else (span.offset, span.offset + 1)
    with open_input(address) as stream:
        for reading in reader.read(stream, Origin(span.source, span.path, size, at, end)):
            rows = np.flatnonzero(reading.documents.column("uid").to_numpy(zero_copy_only=False) == wanted)
            if len(rows):
                row = reading.documents.slice(int(rows[0]), 1).to_pylist()[0]
                if row["id"] != story.id or row["url"] != story.url:
                    raise NoOriginal(f"{address} has changed since the run: another page is in its place")
                html = row.get("html")
                if html is None:
                    raise NoOriginal("this record was a text already: there is no markup")
                if is_pdf(html):
                    raise NoOriginal("this record is a PDF file, which is not shown here")
                page = decode_page(html, row.get("charset"))
                return Original(page.text, len(html), page.codec, span.path if span.offset is None else span_text(span))
            if deadline.over:
                return None
    return None
