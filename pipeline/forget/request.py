"""What is asked to be forgotten: a file with a uid, url, host, hash of a text or e-mail address on each line.

The kind is told by its form, or by a prefix (`host:example.org`). Values become keys at once, and nothing of them is
kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.formatting import uids_meant
from gristmill.pipeline.store.forgotten import Forgotten, emails_in, key_of, keys_of_urls, lowered
from gristmill.stages.text.sites import hosts_of

HEX = re.compile(r"[0-9a-fA-F]+")
HOST = re.compile(r"(?:[^\s/@:.]+\.)+[^\s/@:.]{2,}\.?")
PREFIX = re.compile(r"(uid|url|host|sha256|xxh3|email):(?!//)\s*(.*)", re.DOTALL)
DIGITS = {16: "uid", 32: "xxh3", 64: "sha256"}
SHORT_NUMBER = 12  # digits; a uid of so few is one in a million, and has to be called a uid
SHOWN = 3  # lines of a list that cannot be read
FORMS = (
    "a uid (16 hex digits, or a decimal number), url, host, e-mail address or hash of a text (SHA-256: 64 hex digits,"
    " XXH3-128: 32), or one with its kind before it, such as host:example.org"
)


@dataclass
class Request:
    """Keys by kind, and how many lines asked for each."""

    keys: dict[str, set[int]] = field(default_factory=dict)
    lines: Counter[str] = field(default_factory=Counter)

    @property
    def forgotten(self) -> Forgotten:
        return Forgotten.of(self.keys)

    def add(self, kind: str, *keys: int) -> None:
        self.keys.setdefault(kind, set()).update(keys)
        self.lines[kind] += 1


def read_request(path: Path) -> Request:
    """RecipeError for a file that is not there, asks for nothing, or has a line of no kind."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecipeError(f"--list: {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"--list: {path}: not UTF-8 at byte {error.start:,}") from error
    return request_of(text.split("\n"), f"--list: {path}")


def request_of(lines: Iterable[str], where: str) -> Request:
    """What each line asks for; blank lines and those after a # are passed over."""
    request, wrong = Request(), []
    for number, line in enumerate(lines, 1):
        value = line.strip()
        if value and not value.startswith("#"):
            try:
                kind, keys = entry_of(value)
                request.add(kind, *keys)
            except ValueError:
                wrong.append(number)
    if wrong:
        named = ", ".join(map(str, wrong[:SHOWN])) + (f" and {len(wrong) - SHOWN:,} more" if len(wrong) > SHOWN else "")
        raise RecipeError(f"{where}: line {named}: not {FORMS}")
    if not request.lines:
        raise RecipeError(f"{where}: no line asks for anything; each has {FORMS}")
    return request


def entry_of(value: str) -> tuple[str, list[int]]:
    """The kind and the keys of one line; ValueError if it is of no kind. A uid that may be hex or decimal has two keys;
    that the wrong one is another document's is as unlikely as two equal hashes."""
    match = PREFIX.fullmatch(value)
    kind, value = (match[1], match[2].strip()) if match else (kind_of(value), value)
    keys = uids_meant(value) if kind == "uid" else [key for key in [key_in(kind, value)] if key]
    if not keys:
        raise ValueError(value)
    return kind, keys


def kind_of(value: str) -> str:
    if "://" in value:
        return "url"
    if HEX.fullmatch(value) and len(value) in DIGITS:
        return DIGITS[len(value)]
    if uids_meant(value) and len(value) > SHORT_NUMBER:
        return "uid"
    if "@" in value and "/" not in value:
        return "email"
    if "/" in value and HOST.fullmatch(value.split("/")[0]):
        return "url"
    if HOST.fullmatch(value):
        return "host"
    raise ValueError(value)


def key_in(kind: str, value: str) -> int | None:
    """The key of a value of a kind; None, 0 or ValueError if it is not of the kind."""
    if kind == "url":
        return int(keys_of_urls(pa.array([value]))[0])
    if kind == "host":
        host = hosts_of(pa.array([f"http://{value.rstrip('.')}/"]))[0]
        return key_of("host", host) if host and HOST.fullmatch(value) else None
    if kind == "email":
        address = lowered(value.encode())
        return key_of("email", address) if address in emails_in(value.encode()) else None
    return key_of(kind, bytes.fromhex(value)) if DIGITS.get(len(value)) == kind else None
