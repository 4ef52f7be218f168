"""Settings of the trainer: pydantic's dataclasses, read from JSON with errors of one line that name the field and a
likely spelling."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Kind = TypeVar("Kind")

CHECKED = ConfigDict(extra="forbid")
Count = Annotated[int, Field(ge=1, strict=True)]  # strict: True is no number
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]


def from_json(kind: type[Kind], facts: Mapping[str, Any], name: str) -> Kind:
    """`name` is what the settings are called in messages."""
    try:
        return TypeAdapter(kind).validate_python(dict(facts))
    except ValidationError as error:
        raise ValueError("; ".join(_complaint(kind, fault, name) for fault in error.errors())) from error


def to_json(settings: Any) -> Any:
    return TypeAdapter(type(settings)).dump_python(settings, mode="json")


def _complaint(kind: Any, fault: Any, name: str) -> str:
    place = ".".join([name, *map(str, fault["loc"])])
    if fault["type"] == "unexpected_keyword_argument":
        fields = _fields_at(kind, fault["loc"][:-1])
        near = difflib.get_close_matches(str(fault["loc"][-1]), fields, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
        return f"{place}: no such field; {hint}"
    if fault["type"] == "value_error":  # a check of ours, whose words say what is wrong
        return f"{place}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{place}: {fault['msg'].replace('a valid tuple', 'a list')}, not {fault['input']!r}"


def _fields_at(kind: Any, steps: Sequence[str | int]) -> list[str]:
    for step in steps:
        annotation = kind.__pydantic_fields__[step].annotation
        kind = next(inner for inner in (annotation, *get_args(annotation)) if dataclasses.is_dataclass(inner))
    return [*kind.__pydantic_fields__]
