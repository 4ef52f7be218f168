"""Settings of stages, recipes and plans: checked, frozen, refusing what they do not know, with errors of one line."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

# A field marked so says where work is done, never what comes out; it is left out of fingerprints. All others count.
PLACEMENT: dict[str, Any] = {"placement": True}


class Settings(BaseModel):
    """Configuration that is checked, frozen and refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)


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


def in_a_sentence(names: Sequence[str], most: int = 4) -> str:
    """Names as a sentence has them: a, b and c."""
    words = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
