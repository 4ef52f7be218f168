"""How much text, and how many tokens, are left of each source after each stage: from run.json and what stages told.

Text is counted in UTF-8 bytes, of documents that stay. Tokens are counted from the tokenizer on (where mixing draws,
those drawn); before it they are estimated from the text, at the bytes that a token of that source turned out to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Told = Mapping[str, Any]  # a stage's report.json


@dataclass(frozen=True)
class Volume:
    """What is left of one source, or of all; None where nobody knows."""

    text_bytes: int | None = None
    tokens: int | None = None
    counted: bool = False  # the tokens, and not estimated

    @classmethod
    def of_all(cls, parts: Iterable[Volume]) -> Volume:
        found = list(parts)
        known = bool(found) and all(its.tokens is not None for its in found)
        text = [its.text_bytes for its in found if its.text_bytes is not None]
        return cls(
            sum(text) if text else None,
            sum(its.tokens or 0 for its in found) if known else None,
            known and all(its.counted for its in found),
        )


@dataclass(frozen=True)
class Left:
    """What is left after a stage, by source."""

    stage: str
    by_source: dict[str, Volume]

    @property
    def whole(self) -> Volume:
        return Volume.of_all(self.by_source.values())


def volumes(entries: Sequence[Mapping[str, Any]], reports: Mapping[str, Told]) -> list[Left]:
    """After reading, and after each stage; a stage that a source does not pass leaves it as it was."""
    held = bytes_a_token(reports.values())
    readers = [entry for entry in entries if entry.get("kind") == "read"]
    now = {str(entry["name"]): read(entry, held.get(str(entry["name"]))) for entry in readers}
    found = [Left("read", dict(now))] if readers else []
    for entry in entries:
        if entry.get("kind") != "read":
            told = reports.get(str(entry["name"]), {})
            for source, its in (entry.get("sources") or {}).items():
                before, text = now.get(source, Volume()), text_left(its)
                drawn_otherwise = "mix" in told and told["mix"].get("by") != ["source"]
                now[source] = (
                    Volume(text)
                    if drawn_otherwise
                    else after(before, its, text, tokens_told(told, source), held.get(source))
                )
            found.append(Left(str(entry["name"]), dict(now)))
    return found


def read(entry: Mapping[str, Any], held: float | None) -> Volume:
    """A source as it was read: text, unless its documents are pages that have yet to be extracted."""
    text = text_left(entry)
    if not entry.get("kept"):
        return Volume(text, 0, True)
    return Volume(text, round(text / held) if text and held else None)


def text_left(its: Mapping[str, Any]) -> int | None:
    """No bytes in documents that are there are pages that have yet to be extracted, or counts of a version that did not
    count them."""
    text = its.get("text_bytes")
    return None if text is None or (text == 0 and its.get("kept")) else int(text)


def after(before: Volume, its: Mapping[str, Any], text: int | None, told: int | None, held: float | None) -> Volume:
    """One source after one stage, from its counts and from what the stage tells of its tokens."""
    if told is not None:
        return Volume(text, told, True)
    if not its.get("kept"):
        return Volume(text, 0, True)  # of a source of which nothing is left, no tokenizer tells
    if before.counted and its.get("docs_in") == its.get("kept") and text == before.text_bytes:
        return Volume(text, before.tokens, True)
    if before.counted and before.text_bytes and text is not None:
        return Volume(text, round((before.tokens or 0) * text / before.text_bytes), text == 0)
    return Volume(text, round(text / held) if text is not None and held else None)


def bytes_a_token(reports: Iterable[Told]) -> dict[str, float]:
    """What a token of each source holds, by the first tokenizer of the run."""
    for told in reports:
        rows = told.get("bytes_per_token_by_source") or {}
        found = {
            str(source): float(its["bytes_per_token"]) for source, its in rows.items() if its.get("bytes_per_token")
        }
        if found:
            return found
    return {}


def tokens_told(told: Told, source: str) -> int | None:
    """Tokens of a source that a stage counted: all, or those that were drawn or packed."""
    if "packing" in told:
        row = (told["packing"].get("sources") or {}).get(source)
    elif "mix" in told:
        pairs = zip(told["mix"]["sources"], told["mix"]["drawn"], strict=True)
        row = next(({"tokens": drawn["drawn"]} for named, drawn in pairs if named["source"] == source), None)
    else:
        row = (told.get("bytes_per_token_by_source") or {}).get(source)
    return int(row["tokens"]) if row else None
