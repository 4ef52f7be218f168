"""Texts of which characters were lost before we saw them, or could not be decoded: what stands for them is U+FFFD."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gristmill.stages.stage import Limit, Rule, above


class FewReplacementCharacters(Rule):
    """Drop documents in which too many characters are U+FFFD, the replacement character."""

    max_share: Annotated[float, Field(description="the largest share of characters that may be U+FFFD", ge=0, le=1)] = (
        0.005
    )

    limits: ClassVar[tuple[Limit, ...]] = (above("replacement_share", "max_share", "too_many_replacement_characters"),)
