"""How much text, and how many tokens, are left of each source after each stage: from run.json and what stages told.

Text is counted in UTF-8 bytes, of documents that stay. Tokens are counted from the tokenizer on (where mixing draws,
those drawn); before it they are estimated from the text, at the bytes that a token of that source turned out to hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gristmill.pipeline.figures import token_counts_of
from gristmill.pipeline.look.run_folder import Told
from gristmill.pipeline.store.counts import DocumentCounts
from gristmill.pipeline.store.run_records import StageRecord
from gristmill.stages.figures import TokenCounts

READ = "read"  # the first step: all readers together


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


Volumes = dict[str, dict[str, Volume]]  # after each stage, by source


def volumes(stages: Sequence[StageRecord], reports: Mapping[str, Told]) -> Volumes:
    """After reading, and after each stage; a stage that a source does not pass leaves it as it was."""
    counts = {stage.name: token_counts_of(stage.recipe_name, reports.get(stage.name, {})) for stage in stages}
    held = bytes_a_token(counts.values())
    now = {stage.name: read(stage.count, held.get(stage.name)) for stage in stages if stage.kind == "read"}
    found = {READ: dict(now)} if now else {}
    for stage in stages:
        if stage.kind != "read":
            counted = counts[stage.name]
            for source, its in stage.sources.items():
                before, text = now.get(source, Volume()), text_left(its)
                if counted is not None and counted.by_source is None:  # drawn by something else than the source
                    now[source] = Volume(text)
                else:
                    tokens = counted.by_source.get(source) if counted is not None and counted.by_source else None
                    now[source] = after(before, its, text, tokens, held.get(source))
            found[stage.name] = dict(now)
    return found


def read(its: DocumentCounts, held: float | None) -> Volume:
    """A source as it was read: text, unless its documents are pages that have yet to be extracted."""
    text = text_left(its)
    if not its.kept:
        return Volume(text, 0, True)
    return Volume(text, round(text / held) if text and held else None)


def text_left(its: DocumentCounts) -> int | None:
    """No bytes in documents that are there are pages that have yet to be extracted."""
    return None if its.text_bytes == 0 and its.kept else its.text_bytes


def after(before: Volume, its: DocumentCounts, text: int | None, told: int | None, held: float | None) -> Volume:
    """One source after one stage, from its counts and from what the stage tells of its tokens."""
    if told is not None:
        return Volume(text, told, True)
    if not its.kept:
        return Volume(text, 0, True)  # of a source of which nothing is left, no tokenizer tells
    same = its.docs_in == its.kept and not its.made
    if before.counted and same and text == before.text_bytes:
        return Volume(text, before.tokens, True)
    if before.counted and before.text_bytes and text is not None:
        return Volume(text, round((before.tokens or 0) * text / before.text_bytes), text == 0)
    return Volume(text, round(text / held) if text is not None and held else None)


def bytes_a_token(counts: Iterable[TokenCounts | None]) -> Mapping[str, float]:
    """What a token of each source holds, by the first tokenizer of the run."""
    return next((each.bytes_per_token for each in counts if each is not None and each.bytes_per_token), {})
