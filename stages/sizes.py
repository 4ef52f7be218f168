"""Settings that are sizes: whole numbers of bytes, or as a person writes them: 4MB, 1.5 GiB.

max_bytes: Annotated[Bytes, Field(gt=0, description="...")] = 4 << 20
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

WRITTEN = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *([a-z]*)")
UNITS = {"": 1, "b": 1} | {
    f"{letter}{rest}": (1024 if rest == "ib" else 1000) ** (power + 1)
    for power, letter in enumerate("kmgtp")
    for rest in ("", "b", "ib")
}


def number_and_unit(text: str) -> tuple[Fraction, str] | None:
    """The number of a size and its unit, which is empty where none is given; None where it is no size."""
    match = WRITTEN.fullmatch(text.strip().lower())
    return None if match is None or match[2] not in UNITS else (Fraction(match[1]), match[2])


def bytes_of(value: Any) -> Any:
    """The bytes that a text means; ValueError where it means none. What is no text stays as it is."""
    if not isinstance(value, str):
        return value
    found = number_and_unit(value)
    size = None if found is None else found[0] * UNITS[found[1]]
    if size is None or size >= 1 << 63 or size.denominator != 1:
        raise ValueError(f"a number of bytes was expected, or a size such as 4MB, not {value!r}")
    return int(size)


class Size:
    """Marks a whole number as a size."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(bytes_of, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": r"^ *[0-9.]+ *[a-zA-Z]* *$"}]}


Bytes = Annotated[int, Size()]
