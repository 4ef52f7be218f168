"""Types of plain data: what JSON can hold, and how a stage travels to workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypeAlias, TypedDict

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
JSONObject: TypeAlias = "dict[str, JSON]"


class StageSpec(TypedDict):
    """A stage as plain data (`registry.spec_of`, and back: `registry.build`)."""

    stage: str  # its name or address in the recipe
    settings: JSONObject
    code: str | None  # the source of a user's own file
    helpers: NotRequired[dict[str, str]]  # hashes of the modules beside that file which it imports
