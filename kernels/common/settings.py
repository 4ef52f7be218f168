"""Settings of stages, recipes and plans: checked, frozen, refusing what they do not know, with errors of one line; and
those that are sizes: whole numbers of bytes, or as a person writes them: 4MB, 1.5 GiB.

    max_bytes: Annotated[Bytes, Field(gt=0, description="...")] = 4 << 20
"""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# A field marked so says where work is done, never what comes out; it is left out of fingerprints. All others count.
PLACEMENT: dict[str, Any] = {"placement": True}
FOLDER = "folder"  # in the context of a validation: that of the recipe which the settings are from


class Settings(BaseModel):
    """Configuration that is checked, frozen and refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)


def of_a_recipe(info: ValidationInfo) -> bool:
    """Are settings those of a recipe, as a person wrote them?"""
    return info.context is not None and FOLDER in info.context


class SettingsError(ValueError):
    """Settings that a stage does not take; the message is one line for the person who wrote them."""


class SaysInOneLine(ModelMetaclass):
    """The class of stages, whose constructors say in one line what is wrong. Recipes have lines of their own: they use
    `model_validate`, which raises as pydantic does."""

    def __call__(cls, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*arguments, **settings)
        except ValidationError as error:
            raise SettingsError(in_one_line(cls.__name__, error, list(getattr(cls, "model_fields", ())))) from None


def in_one_line(called: str, error: ValidationError, fields: list[str]) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        place, what = ".".join(map(str, fault["loc"])), fault["msg"]
        if fault["type"] == "extra_forbidden":
            near = nearest(place, fields)
            what = f"no such setting; did you mean {near[0]}?" if near else "no such setting"
        elif fault["type"] == "missing":
            what = "is missing"
        elif fault["type"] == "value_error":
            what = what.removeprefix("Value error, ")
        else:
            what = f"{what}, not {reprlib.repr(fault['input'])}"
        faults.append(f"{place}: {what}" if place else what)
    return f"{called}: {'; '.join(faults)}"


def nearest(name: str, known: Iterable[str], alike: float = 0.6) -> list[str]:
    """The likeliest spelling, alone in a list; none where nothing is near."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=alike)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a complaint about a name: its likeliest spelling, or all there are."""
    names = list(known)
    near = nearest(name, names)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"


def no_such_name(module: str, name: str, known: Iterable[str]) -> Exception:
    """What a package raises that is asked for a name it does not have, from its `__getattr__`."""
    names = list(known)
    plain = {each.lower(): each for each in names}.get(name.replace("_", "").lower())  # FineWebQuality, gopher_quality
    says = f"{module} has no {name!r}; {f'did you mean {plain}?' if plain else did_you_mean(name, names)}"
    # `from package import Name` asks through importlib, and would say less than this.
    if name[:1].isupper() and sys._getframe(2).f_code.co_name == "_handle_fromlist":
        return ImportError(says, name=module)
    return AttributeError(says)


def in_a_sentence(names: Sequence[str], most: int = 4) -> str:
    """Names as a sentence has them: a, b and c."""
    words = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


# --- sizes ------------------------------------------------------------------------------------------------------------

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
