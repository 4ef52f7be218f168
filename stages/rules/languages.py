"""Thresholds that differ by language, from a table that a recipe points to (as FineWeb2 sets them)."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from pydantic import Field, ValidationError, ValidationInfo, model_validator

from gristmill.kernels.common.paths import RecipePath
from gristmill.stages.contract import signals_bounded
from gristmill.stages.rules.language import key_for, what_is_wrong
from gristmill.stages.stage import Bound, Limit, Mask, Rule, Signals

Limits = dict[str, dict[str, float]]  # by language and setting


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

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Signals; the language only where thresholds hang on it."""
        return signals_bounded(self.limits) + (("language",) if self.thresholds_file else ())

    @classmethod
    def fields(cls) -> list[str]:
        """Names of the thresholds."""
        return [name for name in cls.model_fields if name not in RuleByLanguage.model_fields]

    def bounds(self, limits: Sequence[Limit], signals: Signals) -> list[Bound]:
        own = super().bounds(limits, signals)
        if not self.thresholds_file:
            return own
        table = self._limits_by_language()
        languages, row = signals.coded("language")
        keys = [None if name is None else key_for(name, table) for name in languages]
        return [
            np.array([bound if key is None else table[key][limit.setting] for key in keys], np.float64)[row]
            if isinstance(limit.setting, str)
            else bound
            for limit, bound in zip(limits, own, strict=True)
        ]

    def governed(self, limit: Limit, signals: Signals) -> Mask:
        if not self.thresholds_file:
            return super().governed(limit, signals)
        table = self._file()
        languages, row = signals.coded("language")
        keys = [None if name is None else key_for(name, table) for name in languages]
        return np.array([key is None or limit.setting not in table[key] for key in keys])[row]

    def _limits_by_language(self) -> Limits:
        path = Path(str(self.thresholds_file)).stat()
        return _limits_of(self, path.st_mtime_ns, path.st_size)

    def _file(self) -> dict[str, Any]:
        path = str(self.thresholds_file)
        try:
            stamp = Path(path).stat()
            return _read(path, stamp.st_mtime_ns, stamp.st_size)
        except OSError as error:
            raise ValueError(f"thresholds_file {path}: {error.strerror}") from None

    def _table(self, context: Any = None) -> Limits:
        path, own = str(self.thresholds_file), {name: getattr(self, name) for name in self.fields()}
        table: Limits = {}
        for language, values in self._file().items():
            if not isinstance(language, str):
                raise ValueError(
                    f"{path}: {language} is not the name of a language (quote `no`, which YAML reads as false)"
                )
            if language != "unknown" and (mistake := what_is_wrong(language)):
                raise ValueError(f"{path}: {mistake}")
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


@lru_cache(16)
def _limits_of(rule: RuleByLanguage, _changed: int, _size: int) -> Limits:
    return rule._table()
