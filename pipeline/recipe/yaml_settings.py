"""YAML to settings models, with errors that name file, line, field and a likely spelling: what recipes and ablation
plans have in common."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.recipe.yaml_lines import YAML, Place, load_with_lines
from gristmill.stages.checks import in_a_sentence, nearest
from gristmill.stages.paths import FOLDER, located
from gristmill.stages.stage import Settings

Made = TypeVar("Made")
Arguments = ParamSpec("Arguments")
LONGEST = 200  # characters of a wrong value that a message shows
CLOSE = 0.8  # how alike a misspelt name is to the one that was meant; what is less alike is only a guess


class YamlFile:
    """A file that is read; keeps where things stand, so that any complaint can say so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.resolve().parent
        data, self.lines = load_with_lines(path)
        self.data = (
            {key: value for key, value in data.items() if not is_private(key)} if isinstance(data, dict) else data
        )
        self.complaints: list[str] = []

    def wrong(self, place: Place, what: str) -> RecipeError:
        above = place
        while above not in self.lines:
            above = above[:-1]
        return RecipeError(f"{self.path}:{self.lines[above]}: {dotted(place)}{': ' if place else ''}{what}")

    def noted(self, make: Callable[Arguments, Made], *of: Arguments.args, **more: Arguments.kwargs) -> list[Made]:
        """What a reader makes, alone in a list. Where it complains: an empty list, and the complaint is kept until
        `say_all`."""
        try:
            return [make(*of, **more)]
        except RecipeError as error:
            self.complaints.append(str(error))
            return []

    def say_all(self) -> None:
        """Whatever is wrong so far, at once, so that a file is mended in one go."""
        if self.complaints:
            raise RecipeError("\n".join(self.complaints))

    def complain(self, place: Place, what: str) -> None:
        self.complaints.append(str(self.wrong(place, what)))

    def elsewhere(self, kind: type[Settings], field: str) -> list[str]:
        """What else has a field of this name, which may have been taken for one of `kind`."""
        return []

    def settings(self, kind: type[Settings], data: YAML, place: Place, also: Sequence[str] = ()) -> Any:
        """A settings model from its data; the complaints are raised with line, field and the nearest valid name
        (`also`: of others that may stand here)."""
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise self.wrong(
                place, f"settings were expected (name: value), not {quoted(data)}{settings_hint(kind, data)}"
            )
        try:
            return kind.model_validate({str(k): v for k, v in data.items()}, context={FOLDER: self.folder})
        except ValidationError as error:
            lines = []
            guessed = set()
            complaints = sorted(error.errors(include_url=False), key=lambda c: c["type"] == "missing")
            around = {fault["loc"][:depth] for fault in complaints for depth in range(1, len(fault["loc"]))}
            for complaint in complaints:
                where = (*place, *complaint["loc"])
                if complaint["loc"] in around:  # a list without its wrong members is too short: they are named already
                    continue
                if complaint["type"] == "extra_forbidden":
                    inside, name = complaint["loc"][:-1], str(complaint["loc"][-1])
                    fields = [*fields_at(kind, inside), *(() if inside else also)]
                    near = nearest(name, fields)
                    others = [] if inside or nearest(name, fields, CLOSE) else self.elsewhere(kind, name)
                    if others:
                        hint = f"{name} is a field of {in_a_sentence(others)}; here there are {', '.join(fields)}"
                    else:
                        guessed |= {(*inside, field) for field in near}
                        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
                        if not near and len(where) == 1:
                            hint += "; a key of your own, for anchors, begins with `x-`"
                    lines.append(str(self.wrong(where, f"no such field; {hint}")))
                elif complaint["type"] == "missing":
                    if complaint["loc"] not in guessed:  # misspelt, and said so already
                        lines.append(str(self.wrong(where, "is missing")))
                elif complaint["type"] == "value_error":  # a check of ours: its words say what is wrong
                    lines.append(str(self.wrong(where, complaint["msg"].removeprefix("Value error, "))))
                else:
                    given = complaint.get("input")
                    lines.append(
                        str(
                            self.wrong(
                                where, f"{complaint['msg']}, not {quoted(given)}{value_hint(complaint['type'], given)}"
                            )
                        )
                    )
            raise RecipeError("\n".join(lines)) from error


def settings_hint(kind: type[Settings], given: YAML) -> str:
    """What a stage that was given a value in place of its settings probably meant."""
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    return (
        f"; did you mean {{{required[0]}: {quoted(given)}}}?"
        if len(required) == 1 and isinstance(given, str | int | float | list)
        else ""
    )


def value_hint(kind: str, given: YAML) -> str:
    """What a value of a wrong type probably was to be, by pydantic's name for the fault."""
    if kind == "string_type" and isinstance(given, bool | int | float | date):
        return "; to YAML it is a word only in quotes"
    if kind in ("list_type", "tuple_type", "set_type") and isinstance(given, str):
        return f"; a list stands in brackets: [{given}]" if len(given) <= LONGEST else ""
    if kind == "float_parsing" and isinstance(given, str) and given.strip().endswith("%"):
        return "; 10% is written 0.1"
    return ""


def is_private(key: str | int) -> bool:
    """Top-level keys that begin with `x-` or a dot hold what anchors name, and are no fields."""
    return str(key).startswith(("x-", "."))


def quoted(value: YAML) -> str:
    """A value in a message; a long one is cut."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def fields_at(kind: type[Settings], steps: Sequence[str | int]) -> list[str]:
    """The fields of the model that lies at a place inside a model."""
    annotation: Any = kind  # of a field: any form that a type can have
    for step in steps:
        models = _models(annotation)
        if models and step in models[0].model_fields:
            annotation = models[0].model_fields[str(step)].annotation
        elif get_origin(annotation) in (dict, tuple, list):
            annotation = [inner for inner in get_args(annotation) if inner is not Ellipsis][-1]
    models = _models(annotation)
    return [*models[0].model_fields] if models else [*kind.model_fields]


def beside(value: YAML, folder: Path) -> YAML:
    """A path in a file is relative to the file, as far as there is something."""
    if isinstance(value, list):
        return [beside(inner, folder) for inner in value]
    there = located(value, folder) if isinstance(value, str) else ""
    return there if there and Path(there).exists() else value


def dotted(place: Place) -> str:
    """A place as a person reads it: stages[2].gopher_quality.min_words."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


def _models(annotation: Any) -> list[type[Settings]]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [model for inner in get_args(annotation) for model in _models(inner)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Settings) else []
