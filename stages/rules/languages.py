"""Thresholds that differ by language, from a table that a recipe points to (as FineWeb2 sets them)."""

from __future__ import annotations

import reprlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.compute as pc
import yaml
from pydantic import Field, ValidationError, ValidationInfo, model_validator

from gristmill.stages.paths import RecipePath
from gristmill.stages.stage import Rule, Signals

Limits = dict[str, np.ndarray[Any, np.dtype[np.float64]]]


class RuleByLanguage(Rule):
    """A rule whose fields are thresholds, each a number or null (not tested), that a file can set otherwise for some
    languages."""

    thresholds_file: Annotated[
        RecipePath | None,
        Field(
            description=(
                "YAML or JSON {language: {field: value}}: fields that differ for a language, as the signal "
                "`language` names it"
            )
        ),
    ] = None

    @model_validator(mode="after")
    def _file_is_of_use(self, info: ValidationInfo) -> RuleByLanguage:
        if self.thresholds_file:
            self._table(info.context)
        return self

    @classmethod
    def fields(cls) -> list[str]:
        """Names of the thresholds."""
        return [name for name in cls.model_fields if name not in RuleByLanguage.model_fields]

    def limits(self, signals: Signals) -> Limits:
        """Each threshold as an array: one number for all, or one for each row. A threshold that is null is NaN, which
        nothing is above or below."""
        own = {name: _number(getattr(self, name)) for name in self.fields()}
        if not self.thresholds_file:
            return {name: np.array(value) for name, value in own.items()}
        table = self._table()
        coded = pc.dictionary_encode(signals.column("language").cast("string"))
        languages = [*coded.dictionary.to_pylist(), None]
        row = pc.fill_null(coded.indices, len(languages) - 1).to_numpy(zero_copy_only=False)
        return {name: np.array([table.get(language, own)[name] for language in languages])[row] for name in own}

    def _table(self, context: Any = None) -> dict[str | None, dict[str, float]]:
        path = str(self.thresholds_file)
        try:
            stamp = Path(path).stat()
            by_language = _read(path, stamp.st_mtime_ns, stamp.st_size)
        except OSError as error:
            raise ValueError(f"thresholds_file {path}: {error.strerror}") from None
        own = {name: getattr(self, name) for name in self.fields()}
        table: dict[str | None, dict[str, float]] = {}
        for language, values in by_language.items():
            if not isinstance(language, str):
                raise ValueError(
                    f"{path}: {language} is not the name of a language (quote `no`, which YAML reads as false)"
                )
            if not isinstance(values, dict):
                raise ValueError(
                    f"{path}: {language}: expected fields of {self.recipe_name()} and their values, found "
                    f"{reprlib.repr(values)}"
                )
            try:
                stage = type(self).model_validate({**own, **values}, context=context)
            except ValidationError as error:
                wrong = [
                    (".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, "))
                    for e in error.errors(include_url=False)
                ]
                faults = "; ".join(f"{place}: {what}" if place else what for place, what in wrong)
                raise ValueError(f"{path}: {language}: {faults}") from None
            table[language] = {name: _number(getattr(stage, name)) for name in own}
        return table


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)


@lru_cache(16)
def _read(path: str, _changed: int, _size: int) -> dict[str, Any]:
    table = yaml.safe_load(Path(path).read_text("utf-8"))
    if not isinstance(table, dict):
        raise ValueError(f"{path}: expected a table of languages, {{language: {{field: value}}}}")
    return table
