"""Tombstones: the list of forgotten documents in a run's folder, which readers leave out whatever the recipe becomes.

It holds uids and hashes, never an address or a text. It is in no fingerprint: a takedown (`pipeline/forget`) drops the
results of parts that held one of the documents, and other parts stay valid.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from unicodedata import normalize
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.urls.keys import names_of, url_keys
from gristmill.pipeline.errors import DamagedFile, RunFailed
from gristmill.pipeline.store.partitions import is_among
from gristmill.pipeline.store.storage import Store, json_bytes
from gristmill.stages.documents import Skipped, strings_in
from gristmill.stages.extract.choices import other_uids
from gristmill.stages.text.sites import hosts_of
from gristmill.stages.text.url_lists import mended_urls

LIST = "forgotten/list.json"
WORK = "forgotten/work.json"  # is there while documents are being forgotten
FORGOTTEN = "forgotten"  # the reason of documents that readers leave out
VERSION = 1
KINDS = ("uid", "url", "host", "sha256", "xxh3", "email")
HIDDEN = ("url", "id", "detail")  # of records that are no documents: columns that may name one
AT = re.compile(rb"@")
# The two sides of an address; they are looked at around each `@`, so that no text takes long. Text without spaces may
# touch an address, so each side is taken with letters beyond ASCII and without them.
LOCALS = re.compile(rb"[A-Za-z0-9._%+'-]{1,64}$"), re.compile(rb"[A-Za-z0-9._%+'\x80-\xff-]{1,64}$")
DOMAINS = (
    re.compile(rb"[A-Za-z0-9\x80-\xff-]+(?:\.[A-Za-z0-9\x80-\xff-]+)+"),
    re.compile(rb"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+"),
)
NEXT_SENTENCE = re.compile(rb"(?<=[a-z])\.(?=[A-Z])")  # ann@x.com.Next
MOST_OF_LOCAL, MOST_OF_DOMAIN = 64, 253
PERCENT, ENTITY = re.compile(rb"%[0-9A-Fa-f]{2}"), re.compile(rb"&(?:#[0-9xX]|commat;)")
ESCAPED, AT_ESCAPED = re.compile(rb"\\(?:[nrtbf]|u00[01][0-9a-f])"), re.compile(rb"\\u0040")
LAYERS = 3  # of percent-encoding that are taken off
Keys = NDArray[np.uint64]


def key_of(kind: str, value: bytes) -> int:
    """The hash under which the list knows a value of a kind."""
    return xxhash.xxh3_64_intdigest(kind.encode() + b"\0" + value)


def keys_of_urls(urls: pa.Array | pa.ChunkedArray) -> Keys:
    """One for each; equal for spellings of one address that differ in scheme, `www.`, case of the host, needless
    percent signs, the fragment, a last slash or the order of parameters. 0 where there is no url."""
    data, offsets = text_column(urls)
    seen = mended_urls(data, offsets[:-1], offsets[1:])
    high, low = url_keys(seen, names_of(()))
    return np.where(seen.ends > seen.starts, high ^ low, np.uint64(0))


def keys_of_host(host: bytes) -> list[int]:
    """Of a host and of the domains above it, for who forgets a domain forgets its subdomains."""
    labels = host.split(b".")
    return [key_of("host", b".".join(labels[i:])) for i in range(max(1, len(labels) - 1))]


def emails_in(text: bytes) -> Iterator[bytes]:
    """E-mail addresses in a text, in lower case, in all of its forms (`forms_of`)."""
    for form in forms_of(text):
        for sign in AT.finditer(form):
            i = sign.start()
            widest = DOMAINS[0].match(form, i + 1, i + MOST_OF_DOMAIN)
            if widest is None:
                continue
            before = form[max(0, i - MOST_OF_LOCAL) : i]
            names = {match[0].lstrip(b".'+%-") for pattern in LOCALS if (match := pattern.search(before))} - {b""}
            domains = {widest[0].rstrip(b"-"), NEXT_SENTENCE.split(widest[0])[0]}
            if not widest[0].isascii() and (ascii_only := DOMAINS[1].match(widest[0])):
                domains.add(ascii_only[0].rstrip(b"-"))
            yield from sorted(lowered(name + b"@" + domain) for name in names for domain in domains)


def lowered(address: bytes) -> bytes:
    return (
        address.lower() if address.isascii() else normalize("NFC", address.decode("utf-8", "ignore").lower()).encode()
    )


def forms_of(text: bytes) -> Iterator[bytes]:
    """The text as it is, and with percent-encoding, JSON escapes and HTML entities decoded."""
    yield text
    plain = text
    for _ in range(LAYERS):
        if not PERCENT.search(plain):
            break
        plain = unquote_to_bytes(plain)
    if plain is not text:
        yield plain
    if b"\\" in text and (plain := AT_ESCAPED.sub(b"@", ESCAPED.sub(b" ", text))) != text:
        yield plain
    if ENTITY.search(text):
        yield html.unescape(text.decode("utf-8", "replace")).encode("utf-8", "replace")


def holds_strings(kind: pa.DataType) -> bool:
    """May a column of this type hold an address?"""
    if pa.types.is_nested(kind):
        return any(holds_strings(kind.field(i).type) for i in range(kind.num_fields))
    strings = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(is_kind(kind) for is_kind in (*strings, pa.types.is_binary, pa.types.is_large_binary))


@dataclass(frozen=True)
class Forgotten:
    """The list. Values are sorted keys; those of `uid` are uids themselves."""

    keys: Mapping[str, Keys]

    @classmethod
    def of(cls, keys: Mapping[str, Iterable[int]]) -> Forgotten:
        return cls({kind: np.unique(np.array(list(keys.get(kind, ())), np.uint64)) for kind in KINDS})

    def plain(self) -> bytes:
        """The list as a file; equal lists are equal byte for byte."""
        entries = {kind: [f"{key:016x}" for key in self.keys[kind].tolist()] for kind in KINDS}
        return json_bytes({"version": VERSION, **entries})

    @cached_property
    def checksum(self) -> str:
        return xxhash.xxh3_128_hexdigest(self.plain())

    def merged(self, other: Forgotten | None) -> Forgotten:
        keys = self.keys if other is None else {kind: np.union1d(self.keys[kind], other.keys[kind]) for kind in KINDS}
        return Forgotten(keys)

    def has(self, kind: str, values: Keys) -> NDArray[np.bool_]:
        return is_among(values, self.keys[kind])

    @cached_property
    def _sets(self) -> dict[str, frozenset[int]]:
        return {kind: frozenset(self.keys[kind].tolist()) for kind in ("host", "sha256", "xxh3", "email")}

    def matches(self, documents: pa.RecordBatch | pa.Table) -> NDArray[np.bool_]:
        """Which documents the list names. A page counts with its markup, for it has no text yet."""
        goes = np.zeros(len(documents), np.bool_)
        names = documents.schema.names
        if "uid" in names:
            uid = pc.fill_null(documents["uid"], 0).to_numpy(zero_copy_only=False)  # of records that are no documents
            goes = self.has("uid", uid) | self.has("uid", other_uids(uid))
        if "url" in names:
            goes = goes | self.of_urls(documents["url"])
        for name in names:
            if name == "html" or name.split("@")[0] == "text":
                goes = goes | self.of_texts(documents[name])
            elif len(self.keys["email"]) and holds_strings(documents.schema.field(name).type):
                goes = goes | self.of_emails(documents[name], in_url=name == "url")
        return goes

    def matches_records(self, records: pa.RecordBatch) -> NDArray[np.bool_]:
        """Which records that are no documents have a url that is asked for, or name an address that is."""
        goes = self.of_urls(records["url"])
        for name in [name for name in HIDDEN if name in records.schema.names]:
            goes = goes | self.of_emails(records[name], in_url=name == "url")
        return goes

    def hidden(self, skips: list[Skipped]) -> list[Skipped]:
        """Skipped records, without the url and detail of those that the list names."""
        columns = {
            name: pa.array([value and value.encode("utf-8", "replace").decode() for value in values], pa.string())
            for name, values in (("url", [s.url for s in skips]), ("detail", [s.detail for s in skips]))
        }
        goes = self.matches_records(pa.RecordBatch.from_pydict(columns))
        return [replace(s, url=None, detail=None) if named else s for s, named in zip(skips, goes, strict=True)]

    def of_urls(self, urls: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        goes = np.zeros(len(urls), np.bool_)
        if len(self.keys["url"]):
            goes |= self.has("url", keys_of_urls(urls))
        if len(self.keys["host"]):
            hosts = hosts_of(urls)
            known = {host: not self._sets["host"].isdisjoint(keys_of_host(host)) for host in set(hosts) if host}
            goes |= np.array([known.get(host, False) for host in hosts], np.bool_)
        return goes

    def of_texts(self, texts: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Texts with one of the hashes, or with one of the addresses in them."""
        goes = np.zeros(len(texts), np.bool_)
        sha, xxh3, emails = (self._sets[kind] for kind in ("sha256", "xxh3", "email"))
        if not (sha or xxh3 or emails):
            return goes
        data, offsets = text_column(texts)
        for row, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            text = data[start:end].tobytes()
            goes[row] = (
                (sha and key_of("sha256", hashlib.sha256(text).digest()) in sha)
                or (xxh3 and key_of("xxh3", xxhash.xxh3_128_digest(text)) in xxh3)
                or (emails and self.named_in(text))
            )
        return goes

    def named_in(self, text: bytes) -> bool:
        """Does a text hold one of the addresses?"""
        return not self._sets["email"].isdisjoint(key_of("email", address) for address in emails_in(text))

    def of_emails(self, column: pa.Array | pa.ChunkedArray, in_url: bool = False) -> NDArray[np.bool_]:
        """Values with one of the addresses in any of their strings. In a url a plus may stand for a space."""
        goes = np.zeros(len(column), np.bool_)
        if not len(self.keys["email"]):
            return goes
        for row, value in enumerate(column.to_pylist()):
            text = "\n".join(strings_in(value))
            if "@" not in text and "%" not in text and "&" not in text and "\\" not in text:
                continue
            forms = [text, text.replace("+", " ")] if in_url else [text]
            goes[row] = any(self.named_in(form.encode("utf-8", "replace")) for form in forms)
        return goes


def read_list(store: Store, checksum: str | None = None) -> Forgotten | None:
    """The list of a run's folder, None where there is none. `checksum`: the one that a task was given."""
    try:
        content = store.read(LIST)
    except (FileNotFoundError, NotADirectoryError):
        content = None
    if content is None:
        if checksum is not None:
            raise DamagedFile(LIST)
        return None
    forgotten = _read(content, store.at(LIST))
    if checksum not in (None, forgotten.checksum):
        raise DamagedFile(LIST)
    return forgotten


@lru_cache(4)
def _read(content: bytes, where: str) -> Forgotten:
    try:
        facts = json.loads(content)
        if facts["version"] != VERSION:
            raise RunFailed(f"{where}: a list of version {facts['version']}; update gristmill")
        keys = {kind: np.array([int(key, 16) for key in facts[kind]], np.uint64) for kind in KINDS}
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunFailed(
            f"{where}: not a list of forgotten documents ({type(error).__name__}); restore it: without it they return"
        ) from error
    return Forgotten(keys)
