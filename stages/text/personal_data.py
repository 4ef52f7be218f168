"""Personal data out of texts, metadata and urls: e-mail and network addresses, numbers of telephones, cards, accounts
and US social security, keys, masked or made harmless.

What is found, what is not, and how often that is right: docs/personal_data.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.base.columns import text_array, text_column
from gristmill.kernels.base.types import Array, Bytes
from gristmill.kernels.personal_data.spans import (
    KINDS,
    Replacements,
    Spans,
    counts_by_kind,
    find_spans,
    replaced,
    replacements,
)
from gristmill.stages.documents import mended, strings_in
from gristmill.stages.figures import Report, StageFigures, Table
from gristmill.stages.stage import Applied, CannotRun, Rewrite, Signals, Verdict, with_columns

Kind = Literal["email", "ip", "phone", "card", "iban", "key", "ssn"]
Style = Literal["tag", "fake"]
COLUMNS = ("text", "meta", "url", "id")
PERCENT = re.compile(rb"%[0-9A-Fa-f]{2}")
LAYERS = 3  # of percent-encoding that are taken off


class PersonalData(Rewrite):
    """Replace personal data in texts and in `meta` by tags such as `<email>`, or by reserved examples, and count it by
    kind.

    Adds `personal_emails`, `personal_ips`, `personal_phones`, `personal_cards`, `personal_ibans`, `personal_keys`,
    `personal_ssns`: spans replaced in the text (0 for a kind that is not asked for). The report counts every column.
    IP addresses are masked only where they are public. Never drops.
    """

    kinds: Annotated[tuple[Kind, ...], Field(description="what to look for", min_length=1)] = (
        "email",
        "ip",
        "phone",
        "card",
        "iban",
        "key",
        "ssn",
    )
    style: Annotated[
        Style,
        Field(description="tag: <email>; fake: an example reserved for documentation, the same for the same span"),
    ] = "tag"
    url: Annotated[bool, Field(description="mask `url` too; otherwise what it holds is only counted")] = False
    seed: Annotated[int, Field(description="which example stands for which span, with style fake")] = 0

    needs: ClassVar[tuple[str, ...]] = ("text",)
    adds: ClassVar[tuple[str, ...]] = tuple(f"personal_{kind}s" for kind in KINDS)

    def prepare(self) -> None:
        self(pa.table({"text": pa.array(["Write to ann@example.org."])}))

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        noted, settings = report.get("noted", {}), report.get("settings", {})
        rows = []
        for column in COLUMNS:
            counts = [noted.get(f"{column}_{kind}s", 0) for kind in KINDS]
            if any(counts):
                is_left = column == "id" or (column == "url" and not settings.get("url"))
                rows.append((f"{column} (left as it is)" if is_left else column, *(f"{count:,}" for count in counts)))
        table = Table.of("Spans by column", ("column", *KINDS), rows)
        return StageFigures("Personal data", [table]) if rows else None

    def alarms(self, source: str, documents: int, noted: Mapping[str, int]) -> list[str]:
        remedies = {"id": "no setting masks them"} | ({} if self.url else {"url": "`url: true` masks them"})
        return [
            f"{self.called}: `{column}` of {source} holds e-mail addresses that are left as they are"
            f" ({noted[f'{column}_emails']:,}); {remedy}"
            for column, remedy in sorted(remedies.items())
            if noted.get(f"{column}_emails")
        ]

    def rewrite(self, batch: pa.RecordBatch) -> Applied:
        column = Signals(batch).column("text")
        columns = {"text": self.masked(column)}
        for name, mask in (("meta", self.masked_meta), ("url", self.masked_urls), ("id", self.masked_urls)):
            if name in batch.schema.names and batch.column(name).null_count < len(batch):
                columns[name] = mask(batch.column(name))
        new = {name: pa.array(columns["text"].counts[:, kind]) for kind, name in enumerate(self.adds)}
        new |= {
            name: found.column
            for name, found in columns.items()
            if found.counts.any() and (name in ("text", "meta") or (name == "url" and self.url))
        }
        noted = {
            f"{name}_{kind}s": int(count)
            for name, found in columns.items()
            for kind, count in zip(KINDS, found.counts.sum(axis=0), strict=True)
            if count
        }
        return Applied(with_columns(batch, new), Verdict.keep(len(batch)), noted=noted)

    def masked(self, column: pa.Array) -> Masked:
        data, offsets = text_column(column)
        spans = find_spans(data, offsets, self.kinds)
        if len(spans):
            column = text_array(*replaced(data, offsets, spans, replacements_of(self.style), self.seed), column)
        return Masked(column, counts_by_kind(spans, len(offsets) - 1))

    def masked_meta(self, column: pa.Array) -> Masked:
        """The strings of JSON, each by itself; a value that is no JSON is a string."""
        if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
            raise CannotRun(f"`meta` is {column.type}; {self.called} masks JSON text (json.dumps makes it)")
        counts = np.zeros((len(column), len(KINDS)), np.int32)
        if not len(rows := self.suspects(column)):
            return Masked(column, counts)
        values = column.to_pylist()
        metas = [Json.of(values[row]) for row in rows.tolist()]
        masked = self.masked(pa.array([string for meta in metas for string in meta.strings], pa.large_string()))
        strings = iter(masked.column.to_pylist())
        starts = np.cumsum([0, *(len(meta.strings) for meta in metas)])
        for i, (row, meta) in enumerate(zip(rows.tolist(), metas, strict=True)):
            counts[row] = masked.counts[starts[i] : starts[i + 1]].sum(axis=0)
            new = meta.having([next(strings) for _ in meta.strings])
            values[row] = new if counts[row].any() else values[row]
        return Masked(pa.array(values, column.type) if counts.any() else column, counts)

    def suspects(self, column: pa.Array) -> Array:
        """The rows of JSON that may have personal data in a string. Between two quotation marks stands a string as it
        is, but in rows with a backslash, which are all suspect."""
        data, offsets = text_column(column)
        whole = data[: offsets[-1]]
        marks = np.flatnonzero(whole[offsets[0] :] == ord('"')) + offsets[0]
        cuts = np.sort(np.concatenate([offsets, np.stack([marks, marks + 1], axis=1).ravel()]), kind="stable")
        places = cuts[find_spans(data, cuts, self.kinds).documents]
        slashes = np.flatnonzero(whole[offsets[0] :] == ord("\\")) + offsets[0]
        rows: Array = np.unique(np.searchsorted(offsets, np.concatenate([places, slashes]), side="right") - 1)
        return rows

    def masked_urls(self, column: pa.Array) -> Masked:
        """Urls, of which those with percent signs are looked at as what they say."""
        done = self.masked(column)
        rows = np.flatnonzero(pc.fill_null(pc.match_substring(column, "%"), False).to_numpy(zero_copy_only=False))
        if not len(rows):
            return done
        urls = [url.encode() for url in column.take(pa.array(rows)).to_pylist()]
        plain = [unquoted(url) for url in urls]
        data, offsets = text_column(pa.array([text for text, _ in plain], pa.large_binary()))
        spans = find_spans(data, offsets, self.kinds)
        done.counts[rows] = counts_by_kind(spans, len(rows))
        values = done.column.to_pylist()
        pieces: list[list[bytes]] = [[] for _ in rows]
        ends = [0] * len(rows)
        for span, masked in enumerate(self.replacements(data, spans)):
            i = int(spans.documents[span])
            places = plain[i][1]
            start, end = (int(places[at[span] - offsets[i]]) for at in (spans.starts, spans.ends))
            pieces[i] += [urls[i][ends[i] : start], masked]
            ends[i] = end
        for i, row in enumerate(rows.tolist()):
            values[row] = b"".join([*pieces[i], urls[i][ends[i] :]]).decode("utf-8", "replace")
        return Masked(pa.array(values, column.type), done.counts)

    def replacements(self, data: Bytes, spans: Spans) -> list[bytes]:
        """What each span is replaced by."""
        lengths = spans.ends - spans.starts
        ends = np.cumsum(lengths)
        alone = np.concatenate([data[:0], *(data[a:b] for a, b in zip(spans.starts, spans.ends, strict=True))])
        each = Spans(np.arange(len(spans)), ends - lengths, ends, spans.kinds)
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        out, bounds = replaced(alone, offsets, each, replacements_of(self.style), self.seed)
        return [out[a:b].tobytes() for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


class Masked(NamedTuple):
    """A column without personal data, and how many spans of each kind a row had: int32[rows, kinds]."""

    column: pa.Array
    counts: Array


@dataclass(frozen=True)
class Json:
    """A value of `meta` and its strings."""

    value: Any
    strings: list[str]
    is_json: bool

    @classmethod
    def of(cls, text: str) -> Json:
        try:
            value = json.loads(text)
            return cls(value, [mended(string) or "" for string in strings_in(value)], True)
        except (ValueError, RecursionError):
            return cls(text, [text], False)

    def having(self, strings: list[str]) -> str:
        """The text with other strings in their places."""
        if not self.is_json:
            return strings[0]
        return json.dumps(with_strings(self.value, iter(strings)), ensure_ascii=False)


def with_strings(value: Any, strings: Iterator[str]) -> Any:
    """Plain data with other strings, in the order of `strings_in`. Names that become equal are numbered."""
    if isinstance(value, str):
        return next(strings)
    if isinstance(value, list):
        return [with_strings(inner, strings) for inner in value]
    if not isinstance(value, dict):
        return value
    new: dict[str, Any] = {}
    for inner in value.values():
        name = first = next(strings)
        times = 1
        while name in new:
            times += 1
            name = f"{first} {times}"
        new[name] = with_strings(inner, strings)
    return new


def unquoted(url: bytes) -> tuple[bytes, Array]:
    """A url without its percent-encoding, and where each byte, and the end, begins in the url."""
    places = np.arange(len(url) + 1)
    for _ in range(LAYERS):
        codes = np.array([match.start() for match in PERCENT.finditer(url)], np.int64)
        if not len(codes):
            break
        places = np.delete(places, np.concatenate([codes + 1, codes + 2]))
        url = unquote_to_bytes(url)
    return url, places


@cache
def replacements_of(style: Style) -> Replacements:
    """Fakes are reserved for examples: RFC 2606 names, RFC 5737 and 3849 addresses, 555-01xx numbers; card and IBAN
    numbers that their issuers publish for tests; social security numbers of advertisements. For a key there is none."""
    tags = [[f"<{kind}>"] for kind in (*KINDS, "ip")]
    if style == "tag":
        return replacements(tags)
    emails = [f"user{n}@example.{end}" for end in ("com", "net", "org") for n in range(1, 1000)]
    ips = [f"{net}.{n}" for net in ("192.0.2", "198.51.100", "203.0.113") for n in range(1, 255)]
    phones = [f"+1-{area}-555-{n:04d}" for area in (202, 303, 404, 505, 606, 707, 808, 909) for n in range(100, 200)]
    cards = ["4111 1111 1111 1111", "5555 5555 5555 4444", "3782 822463 10005", "6011 1111 1111 1117"]
    ibans = [
        "GB29 NWBK 6016 1331 9268 19",
        "DE89 3704 0044 0532 0130 00",
        "NL91 ABNA 0417 1643 00",
        "CH93 0076 2011 6238 5295 7",
    ]
    numbers = [f"987-65-{n}" for n in range(4320, 4330)]
    return replacements(
        [emails, ips, phones, cards, ibans, ["<key>"], numbers, [f"2001:db8::{n:x}" for n in range(1, 1000)]]
    )
