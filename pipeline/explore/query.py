"""What a request asks for, checked: every field has its limit, and a wrong one is answered with what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from gristmill.pipeline.formatting import nearest
from gristmill.pipeline.look.run_folder import RunFolder
from gristmill.pipeline.look.where import conditions_of

PAGE = 50  # documents on a page
LONGEST_QUERY = 4096  # bytes behind the question mark
LONGEST_FIELD = 500  # characters
MOST_WORDS = 8
LARGEST_NUMBER = 10**12
PHRASE = re.compile(r'"([^"]+)"|([^\s"]+)')
UID = re.compile(r"[0-9a-fA-F]{16}")
ADDRESS = re.compile(
    r"(?:[\w-]{1,63}\.)+[^\W\d_]{2,24}(?::[0-9]{1,5})?(?:/\S*)?"
)  # a host by its name, perhaps with a path

Kind = Literal["documents", "rejects"]


class BadRequest(ValueError):
    """A request that means nothing here; the message says what was expected."""


@dataclass(frozen=True)
class Query:
    """Which documents or rejects are wanted. Empty fields want nothing of the kind."""

    kind: Kind
    words: tuple[str, ...] = ()
    url: str = ""
    source: str = ""
    stage: str = ""
    reason: str = ""
    outcome: str = ""  # kept or gone; of documents
    where: str = ""  # values of signals, such as `topic=science, quality_bucket=2`

    @property
    def filtered(self) -> bool:
        """Does it leave rows out? Else pages can be counted."""
        return self != Query(self.kind, stage=self.stage if self.kind == "rejects" else "")

    def link(self, **more: object) -> str:
        """The address of this list."""
        asked = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("kind", "words")}
        words = as_typed(self.words)
        asked = {name: value for name, value in ({"words": words} | asked | more).items() if value not in ("", None)}
        return f"/{self.kind}" + (f"?{urlencode(asked)}" if asked else "")


def as_typed(words: tuple[str, ...]) -> str:
    return " ".join(f'"{word}"' if len(word.split()) != 1 or word != word.strip() else word for word in words)


def fields_of(query: str) -> dict[str, str]:
    """The fields behind a question mark: the first of each name, in any encoding."""
    if len(query) > LONGEST_QUERY:
        raise BadRequest(f"the query is longer than {LONGEST_QUERY:,} bytes")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="replace", max_num_fields=40)
    except ValueError as error:
        raise BadRequest("too many fields") from error
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields.setdefault(name, value.strip())
    for name, value in fields.items():
        if len(value) > LONGEST_FIELD:
            raise BadRequest(f"{name[:40]}: longer than {LONGEST_FIELD:,} characters")
    return fields


def number_of(asked: Mapping[str, str], name: str, least: int, usual: int) -> int:
    """A number in a request: digits alone, within reason."""
    text = asked.get(name, "")
    if not text:
        return usual
    if not re.fullmatch(r"[0-9]{1,13}", text) or not least <= int(text) <= LARGEST_NUMBER:
        raise BadRequest(f"{name}: a whole number from {least} to {LARGEST_NUMBER:,} was expected, not {text[:40]!r}")
    return int(text)


def query_of(kind: Kind, asked: Mapping[str, str], folder: RunFolder) -> Query:
    """The query that a request means; sources and stages are those of the run."""
    source, stage, outcome = (asked.get(name, "") for name in ("source", "stage", "outcome"))
    for name, value, names in (
        ("source", source, [reader.name for reader in folder.record.readers]),
        ("stage", stage, folder.stage_names),
    ):
        if value and value not in names:
            raise BadRequest(f"no {name} {value!r} in this run{nearest(value, names)}")
    where = asked.get("where", "")
    try:
        conditions_of(where)
    except ValueError as error:
        raise BadRequest(f"where: {error}") from error
    if outcome not in ("", "kept", "gone"):
        raise BadRequest(f"outcome: kept or gone was expected, not {outcome!r}")
    words, url, reason = words_of(asked.get("words", "")), asked.get("url", ""), asked.get("reason", "")
    query = Query(kind, words, url, source, stage, reason, outcome, where)
    if kind == "rejects" or (outcome != "kept" and not (stage or query.reason)):
        return replace(query, outcome="" if kind == "rejects" else outcome)
    return replace(query, stage="", reason="") if outcome == "kept" else replace(query, outcome="gone")


def words_of(text: str) -> tuple[str, ...]:
    """Words that must all be in a text; what stands in quotation marks is one."""
    words = [quoted or single for quoted, single in PHRASE.findall(text)]
    if len(words) > MOST_WORDS:
        raise BadRequest(f"words: {MOST_WORDS} at most; put what belongs together in quotation marks")
    return tuple(words)
