"""A setting that is one of several kinds, each with settings of its own. It is written as a recipe writes its stages: a
bare name, or a mapping whose one key is the name.

    method: unimax
    method: {utilimax: {utilities_file: u.csv, aversion: 1.0}}

    AnyMethod = Unimax | Utilimax
    method: Annotated[AnyMethod, OneOf("method")]

A kind is a frozen model, called by its class in snake case; a setting that belongs to another kind is an unknown field.
In Python a kind itself may be given: `Mix(method=Unimax())`. Kinds that a table lists are looked up when a value comes:

    kind: Annotated[KindSettings, OneOf("kind of judge", kind_settings)]
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, ValidationError, core_schema

from gristmill.kernels.common.settings import nearest
from gristmill.stages.checks import snake_case

Kinds = dict[str, type[BaseModel]]


@dataclass(frozen=True)
class OneOf:
    """Marks a setting whose type is a union of kinds. `noun` is what a message calls one of them; `kinds` names those
    that no union can."""

    noun: str
    kinds: Callable[[], Kinds] | None = None

    def of(self, source: Any) -> Kinds:
        """The kinds of a setting of this type."""
        return kinds_in(source) if self.kinds is None else self.kinds()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.wrap_serializer_function_ser_schema(_written)
        if self.kinds is not None:
            return core_schema.with_info_plain_validator_function(self._looked_up, serialization=written)
        kinds = kinds_in(source)
        schema = _union({name: handler.generate_schema(kind) for name, kind in kinds.items()})
        return core_schema.no_info_before_validator_function(
            lambda value: self._by_name(value, kinds), schema | {"serialization": written}
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        if self.kinds is not None:
            settings = {name: handler(kind.__pydantic_core_schema__) for name, kind in self.kinds().items()}
        else:
            inside = cast(core_schema.BeforeValidatorFunctionSchema, schema)["schema"]
            choices = cast(core_schema.TaggedUnionSchema, inside)["choices"]
            settings = {str(name): handler(choice) for name, choice in choices.items()}
        alone = [name for name, one in settings.items() if not handler.resolve_ref_schema(one).get("required")]
        by_name = [
            {
                "type": "object",
                "properties": {name: {"anyOf": [one, {"type": "null"}]} if name in alone else one},
                "required": [name],
                "additionalProperties": False,
            }
            for name, one in settings.items()
        ]
        return {"anyOf": [{"enum": alone}, *by_name]}

    def _looked_up(self, value: Any, info: ValidationInfo) -> Any:
        kinds = self.of(None)
        schema = _union({name: kind.__pydantic_core_schema__ for name, kind in kinds.items()})
        return SchemaValidator(schema).validate_python(self._by_name(value, kinds), context=info.context)

    def _by_name(self, value: Any, kinds: Kinds) -> Any:
        """A kind itself, or its settings below its name."""
        if isinstance(value, tuple(kinds.values())):
            return value
        given = {value: None} if isinstance(value, str) else value
        if not isinstance(given, Mapping) or len(given) != 1:
            raise ValueError(f"one {self.noun} was expected, {self._hint(given, kinds)}")
        [name] = given
        if name not in kinds:
            near = nearest(str(name), kinds)
            message = f"no such {self.noun}; " + (
                f"did you mean {near[0]}?" if near else f"there are {', '.join(kinds)}"
            )
            raise _error_at(() if isinstance(value, str) else (name,), message, value)
        return given

    def _hint(self, given: Any, kinds: Kinds) -> str:
        names = [str(name) for name in given] if isinstance(given, Mapping) else []
        kind = next((name for name in names if name in kinds), "")
        beside = [name for name in names if name != kind]
        if kind and all(name in kinds[kind].model_fields for name in beside):
            return f"with its settings below its name: `{{{kind}: {{{', '.join(f'{name}: …' for name in beside)}}}}}`"
        return f"as `NAME` or `{{NAME: {{…}}}}`, not {' and '.join(names) or reprlib.repr(given)}"


def kinds_in(union: Any) -> Kinds:
    """The kinds of a union, by name."""
    return {name_of(kind): kind for kind in get_args(union)}


def name_of(kind: type[BaseModel] | BaseModel) -> str:
    return snake_case((kind if isinstance(kind, type) else type(kind)).__name__)


def choices_in(model: type[BaseModel]) -> dict[str, tuple[OneOf, Kinds]]:
    """The settings of a model that are one of several kinds."""
    return {
        name: (mark, mark.of(field.annotation))
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, OneOf)
    }


def _union(kinds: Mapping[str, CoreSchema]) -> core_schema.TaggedUnionSchema:
    """One of several by name, with its settings or none."""
    choices: dict[Any, CoreSchema] = {
        name: core_schema.no_info_before_validator_function(_settings, schema) for name, schema in kinds.items()
    }
    return core_schema.tagged_union_schema(choices, _name)


def _name(value: Any) -> str:
    return name_of(value) if isinstance(value, BaseModel) else str(next(iter(value)))


def _settings(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value
    [settings] = value.values()
    if not isinstance(settings, Mapping | None):
        raise ValueError(f"settings were expected (name: value), not {reprlib.repr(settings)}")
    return settings or {}


def _written(value: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return {name_of(value): handler(value)}


def _error_at(place: tuple[str, ...], message: str, value: Any) -> ValidationError:
    """A ValueError names the setting alone; this one a key inside it."""
    error = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data("", [{"type": error, "loc": place, "input": value}])
