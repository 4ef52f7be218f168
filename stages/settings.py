"""Settings of stages and recipes: checked, frozen, and refusing what they do not know."""

from __future__ import annotations

import re
import reprlib
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from gristmill.kernels.base.types import Mask
from gristmill.stages.checks import nearest
from gristmill.stages.paths import FOLDER

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


def of_a_recipe(info: ValidationInfo) -> bool:
    """Are settings those of a recipe, as a person wrote them?"""
    return info.context is not None and FOLDER in info.context


class Range(Settings):
    """A closed interval; an end that is absent is open."""

    low: Annotated[float | None, Field(description="the lowest value in it")] = None
    high: Annotated[float | None, Field(description="the highest value in it")] = None

    @model_validator(mode="after")
    def _ends_are_in_order(self, info: ValidationInfo) -> Self:
        if of_a_recipe(info) and self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:,g} is above high {self.high:,g}: no value lies between them")
        return self

    def holds(self, values: np.ndarray[Any, Any]) -> Mask:
        inside = np.ones(len(values), dtype=bool)
        if self.low is not None:
            inside &= values >= self.low
        if self.high is not None:
            inside &= values <= self.high
        return inside


def snake_case(name: str) -> str:
    """`GopherQuality` is `gopher_quality`; MinHash and SimHash are one word each."""
    name = re.sub("(Min|Sim)Hash", r"\1hash", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
