"""Types of plain data: what JSON can hold, and how a stage travels to workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, cast

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
JSONObject: TypeAlias = "dict[str, JSON]"


@dataclass(frozen=True)
class Also:
    """A shorter way to write a setting, for its JSON schema: a validator makes the field's own value of it."""

    kind: str  # of JSON

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> JSONObject:
        return {"anyOf": [cast(JSONObject, handler(core)), {"type": self.kind}]}


class StageSpec(TypedDict):
    """A stage as plain data (`registry.spec_of`, and back: `registry.build`)."""

    stage: str  # its name or address in the recipe
    settings: JSONObject
    code: str | None  # the source of a user's own file
