"""Rows of tables as documents: which field is the text, which the url, and the rest of the row into `meta`.

A field is named by a dotted path (`metadata.url`). Layouts are the field names that others use; a field given in a
recipe goes before its layout's. With `html` the rows are pages: their documents carry markup instead of text, and
`extract` makes the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gristmill.kernels.common.settings import Bytes
from gristmill.stages.documents import MAX_RECORD, Collector, as_json, mended
from gristmill.stages.read.charset import decode_text
from gristmill.stages.stage import Reader

Layout = Literal["auto", "plain", "datatrove", "dolma", "fineweb"]
Paths = tuple[str, ...]
UTF_8 = "utf-8"  # the charset of pages that a row holds as strings, whatever their meta tags say
SHOWN_NAMES, LONGEST_NAME = 6, 40  # of fields, where a person is told what there is
KINDS = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}  # of JSON

# For each document field the paths to look in; the first that holds a value counts.
LAYOUTS: dict[str, dict[str, Paths]] = {
    "plain": {"text": ("text",), "id": ("id",), "url": ("url",), "date": ("date",)},
    "datatrove": {"text": ("text",), "id": ("id",), "url": ("metadata.url", "url"), "date": ("metadata.date", "date")},
    "dolma": {"text": ("text",), "id": ("id",), "url": ("metadata.url", "url"), "date": ("created", "added")},
    "fineweb": {"text": ("text",), "id": ("id",), "url": ("url",), "date": ("date",)},
    "auto": {
        "text": ("text", "content", "raw_content"),
        "id": ("id", "doc_id"),
        "url": ("url", "metadata.url", "meta.url", "source_url"),
        "date": ("date", "metadata.date", "meta.date", "created", "timestamp"),
    },
}


class RowReader(Reader):
    """Settings that all readers of rows share."""

    layout: Annotated[Layout, Field(description="whose field names the rows have; auto looks for the common ones")] = (
        "auto"
    )
    text: Annotated[str | None, Field(description="dotted path of the text; absent: as the layout says")] = None
    html: Annotated[
        str | None,
        Field(
            description=(
                "dotted path of a page's HTML (string or bytes), for `extract`; the text is then made from it alone"
            )
        ),
    ] = None
    id: Annotated[str | None, Field(description="dotted path of the source's own identifier")] = None
    url: Annotated[str | None, Field(description="dotted path of the url")] = None
    date: Annotated[str | None, Field(description="dotted path of the date")] = None
    keep: Annotated[
        list[str] | None, Field(description="top-level fields that go into `meta`; absent: all that are not mapped")
    ] = None
    max_record_bytes: Annotated[Bytes, Field(description="longer texts and pages are skipped", gt=0)] = MAX_RECORD

    @model_validator(mode="after")
    def _text_or_html(self) -> RowReader:
        if self.text is not None and self.html is not None:
            raise ValueError(
                f"text ({self.text}) and html ({self.html}) exclude each other: the text of pages is what "
                "`extract` makes of them"
            )
        return self

    @property
    def gives_pages(self) -> bool:
        return self.html is not None

    @property
    def instead_for_text(self) -> str:
        return "a field that holds text already is named with `text:`, not `html:`"

    @property
    def content(self) -> Literal["text", "html"]:
        """The setting that names what a row's document is made of."""
        return "text" if self.html is None else "html"

    def paths(self) -> dict[str, Paths]:
        """Where to look for each field of a document: `text`, or `html` in its stead, and id, url, date."""
        chosen = {self.content: self.html or self.text, "id": self.id, "url": self.url, "date": self.date}
        return {field: (path,) if path else LAYOUTS[self.layout][field] for field, path in chosen.items()}

    def columns(self, names: list[str]) -> list[str]:
        """The columns of a table that have to be read at all."""
        if self.keep is None:
            return names
        mapped = {path.split(".")[0] for paths in self.paths().values() for path in paths} | set(self.keep)
        return [name for name in names if name in mapped or any(path in names and path == name for path in self.keep)]


def add_row(
    row: Mapping[str, Any], place: str | int, reader: RowReader, paths: dict[str, Paths], collector: Collector
) -> bool:
    """Make a document of a row, or skip it; says whether it has text, or a page."""
    rest = dict(row)
    content = taken(rest, paths[reader.content])
    url = string_of(taken(rest, paths["url"]))
    if isinstance(content, bytes) and reader.content == "text":
        content = decode_text(content)
    if isinstance(content, str):
        content = mended(content)
    if (
        not isinstance(content, str)
        or not content
        or content.isspace()
        or ("\0" in content and not content.replace("\0", "").strip())
    ):
        collector.skip(f"no_{reader.content}", mended(url), kind_at(row, paths[reader.content]))
        return isinstance(content, str)
    html = content.encode() if reader.content == "html" else None
    length = len(content if html is None else html)
    if length > reader.max_record_bytes:
        collector.skip("too_large", mended(url), f"{length} {'characters' if html is None else 'bytes'}")
        return True
    id, date = string_of(taken(rest, paths["id"])), string_of(taken(rest, paths["date"]))
    if reader.keep is not None:
        rest = {name: value for name, value in rest.items() if name in reader.keep}
    meta = {name: value for name, value in rest.items() if value is not None and value != {}}
    if html is not None:
        collector.add(place, html=html, charset=UTF_8, id=id, url=url, date=date, meta=meta)
    else:
        collector.add(place, text=content, id=id, url=url, date=date, meta=meta)
    return True


def taken(rest: dict[str, Any], paths: Paths) -> Any:
    """The first value that one of the paths leads to, taken out of the row; a name with dots in it counts as a name
    first."""
    for path in paths:
        if rest.get(path) is not None:
            return rest.pop(path)
        head, _, tail = path.partition(".")
        inner = rest.get(head)
        if tail and isinstance(inner, dict):
            copy = dict(inner)
            value = taken(copy, (tail,))
            if value is not None:
                rest[head] = copy
                return value
    return None


def kind_at(row: Mapping[str, Any], paths: Paths) -> str | None:
    """What the first value is that one of the paths leads to, where it is of a kind that is never text."""
    for path in paths:
        value = taken(dict(row), (path,))
        if value is not None:
            return f"{mended(path)} is {KINDS[type(value)]}" if type(value) in KINDS else None
    return None


def why_no_content(row: Mapping[str, Any], reader: RowReader, paths: Paths) -> str | None:
    """What to tell whoever wrote the recipe if no row of a file has text, or a page, and one of them is this; None if
    the row has a place for it."""
    kind = kind_at(row, paths)
    if kind is not None:
        return f"its field {kind} and no text; name the {reader.content}'s field with `{reader.content}:`"
    if any(path.partition(".")[0] in row or path in row for path in paths):
        return None
    return missing_field(reader, list(row))


def missing_field(reader: RowReader, names: Sequence[str]) -> str:
    """What to tell whoever wrote the recipe where no field has the name of the text's, or of the page's."""
    paths = reader.paths()[reader.content]
    others = ", ".join(mended(name[:LONGEST_NAME]) or "" for name in names[:SHOWN_NAMES]) or "nothing"
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    pages = (
        ", or a field of pages with `html:`"
        if reader.content == "text" and any("html" in name.lower() for name in names)
        else ""
    )
    return (
        f"it has none of {', '.join(paths)}; it has {others}{more}: name the {reader.content}'s field with "
        f"`{reader.content}:`{pages}"
    )


def string_of(value: Any) -> str | None:
    """Values as the source gives them; dates in ISO 8601. A list of one is what is in it; others, and objects, JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1:
        return string_of(value[0])
    if isinstance(value, list | dict):
        return as_json(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
