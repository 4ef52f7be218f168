"""Who documents are that a model wrote, and what they were made of."""

from __future__ import annotations

from gristmill.stages.documents import uid_of

REPHRASE = "rephrase"  # the stage that makes them, in recipes
MADE_FROM = "made_from"  # the signal with the original's uid, in 16 hexadecimal digits


def made_uid(uid: int, stage: str, style: str) -> int:
    """Of what the stage of this name makes of a document in a style: the same in every run."""
    return uid_of(REPHRASE, f"{uid:016x}/{stage}", style)
