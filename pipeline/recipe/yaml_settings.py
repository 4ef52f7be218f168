"""YAML to settings models, with errors that name file, line, field and a likely spelling: what recipes and ablation
plans have in common."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from gristmill.kernels.common.settings import FOLDER, Settings, did_you_mean, in_a_sentence, nearest
from gristmill.pipeline.errors import Mistakes, RecipeError
from gristmill.pipeline.recipe.yaml_lines import YAML, Place, load_with_lines
from gristmill.stages.one_of import choices_in, name_of

LONGEST = 200  # characters of a wrong value that a message shows
CLOSE = 0.8  # how alike a misspelt name is to the one that was meant; what is less alike is only a guess


class SettingsSource(Mistakes):
    """Where settings come from, as complaints name it: a mapping. `folder` is what paths in it are relative to."""

    folder = Path()

    def wrong(self, place: Place, what: str) -> RecipeError:
        return RecipeError(f"{dotted(place)}{': ' if place else ''}{what}")

    def complain(self, place: Place, what: str) -> None:
        self.found.append(str(self.wrong(place, what)))

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
            guessed: set[Place] = set()  # of what is missing, written elsewhere
            told: set[Place] = set()
            complaints = sorted(error.errors(include_url=False), key=lambda c: c["type"] == "missing")
            around = {fault["loc"][:depth] for fault in complaints for depth in range(1, len(fault["loc"]))}
            for complaint in complaints:
                where = (*place, *complaint["loc"])
                if complaint["loc"] in around:  # a list without its wrong members is too short: they are named already
                    continue
                if complaint["type"] == "extra_forbidden":
                    if complaint["loc"] in told:
                        continue
                    inside, name = complaint["loc"][:-1], str(complaint["loc"][-1])
                    model = model_at(kind, inside)
                    lost = beside_its_kind(model, mapping_at(data, inside), name)
                    if lost is not None:
                        told |= {(*inside, setting) for setting in lost.settings}
                        guessed |= {(*inside, *lost.place, setting) for setting in lost.settings}
                        lines.append(str(self.wrong(where, lost.message)))
                        continue
                    fields = [*model.model_fields, *(() if inside else also)]
                    near = nearest(name, fields)
                    elsewhere = other_kinds_with(kind, inside, name) if inside else self.elsewhere(kind, name)
                    here = ", ".join(fields) or "none"
                    if elsewhere and not nearest(name, fields, CLOSE):
                        hint = f"{name} is a field of {in_a_sentence(elsewhere)}; here there are {here}"
                    else:
                        guessed |= {(*inside, field) for field in near}
                        hint = f"did you mean {near[0]}?" if near else f"there are {here}"
                        if not near and len(where) == 1:
                            hint += "; a key of your own, for anchors, begins with `x-`"
                    lines.append(str(self.wrong(where, f"no such field; {hint}")))
                elif complaint["type"] == "missing":
                    if complaint["loc"] not in guessed:  # misspelt, and said so already
                        lines.append(str(self.wrong(where, "is missing")))
                elif complaint["type"] == "value_error":  # a check of ours: its words say what is wrong
                    lines.append(str(self.wrong(where, complaint["msg"].removeprefix("Value error, "))))
                else:
                    given, what = complaint.get("input"), complaint["msg"].replace("a valid tuple", "a list")
                    hint = value_hint(complaint["type"], given)
                    lines.append(str(self.wrong(where, f"{what}, not {quoted(given)}{hint}")))
            raise RecipeError("\n".join(lines)) from error


class YamlFile(SettingsSource):
    """A file that is read; keeps where things stand, so that any complaint can say so."""

    def __init__(self, path: Path, text: str | None = None) -> None:
        super().__init__()
        self.path = path
        self.folder = path.resolve().parent
        data, self.lines = load_with_lines(path, text)
        self.data = (
            {key: value for key, value in data.items() if not is_private(key)} if isinstance(data, dict) else data
        )

    def wrong(self, place: Place, what: str) -> RecipeError:
        above = place
        while above not in self.lines:
            above = above[:-1]
        return RecipeError(f"{self.path}:{self.lines[above]}: {dotted(place)}{': ' if place else ''}{what}")


def check_names(file: SettingsSource, kind: Any, given: Mapping[str, Any], *place: str, lacking: bool = True) -> None:
    """Settings by the fields of a dataclass: RecipeError names those that it does not have, with
    the likely ones, and (`lacking`) those that are missing."""
    known = [each.name for each in fields(kind)]
    meant = []
    for name in given:
        if name not in known:
            near = nearest(str(name), known)
            file.complain((*place, name), f"no such field; {did_you_mean(str(name), known)}")
            meant += near
    needed = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    missing = [name for name in needed if name not in given and name not in meant] if lacking else []
    if missing:
        file.complain(place, f"{in_a_sentence(missing, len(missing))} {'are' if len(missing) > 1 else 'is'} missing")
    file.say_all()


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


@dataclass(frozen=True)
class Beside:
    """Settings of a kind (`OneOf`) that stand beside its name and not below it: their names, the place where they
    belong, and what to say."""

    settings: tuple[str, ...]
    place: Place
    message: str


def beside_its_kind(model: type[BaseModel], given: Mapping[str, YAML], name: str) -> Beside | None:
    """What was meant by a name that is no field of a model, where a kind of one of its fields has such a setting or is
    called so."""
    for field, (mark, kinds) in choices_in(model).items():
        below = given[name]
        if name in kinds and isinstance(below, dict | None):
            settings = {str(inner): value for inner, value in (below or {}).items()}
            return Beside((name,), (field, name), f"is a {mark.noun}: {as_written(field, name, settings)}")
        owners = [kind for kind, settings in kinds.items() if name in settings.model_fields]
        if not owners:
            continue
        value = given.get(field)
        [(chosen, below)] = value.items() if isinstance(value, dict) and len(value) == 1 else [(value, None)]
        meant = next(iter(nearest(str(chosen), kinds)), None)
        kind = meant if meant in owners else owners[0]
        lost = {n: given[n] for n in given if n in kinds[kind].model_fields and n not in model.model_fields}
        before = {str(n): v for n, v in below.items()} if kind == chosen and isinstance(below, dict) else {}
        those = [kind] if kind == meant else owners
        whose = f"{mark.noun}{'s' if len(those) > 1 else ''} {in_a_sentence(those)}"
        whose += f", not of {meant}" if meant not in (None, kind) else ""
        message = f"is a setting of the {whose}, and stands below the name: {as_written(field, kind, before | lost)}"
        return Beside(tuple(lost), (field, kind), message)
    return None


def as_written(field: str, kind: str, settings: Mapping[str, YAML]) -> str:
    """A kind as a recipe has it, on one line; settings that are too long for a message are left out."""
    if not settings:
        return f"`{field}: {kind}`"
    for shown in (settings, dict.fromkeys(settings, "…")):
        flow = yaml.safe_dump(shown, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
        if len(flow) <= LONGEST:
            break
    return f"`{field}: {{{kind}: {flow.strip()}}}`"


def other_kinds_with(kind: type[Settings], place: Place, field: str) -> list[str]:
    """At a place inside a kind (`OneOf`), the others of its setting that have a field."""
    kinds = choices_in(model_at(kind, place[:-2])).get(str(place[-2])) if len(place) > 1 else None
    return [name for name, other in kinds[1].items() if field in other.model_fields] if kinds else []


def mapping_at(data: YAML, place: Place) -> dict[str, YAML]:
    """What is written at a place; nothing where pydantic's place is not the file's (a union has steps of its own)."""
    for step in place:
        if isinstance(data, dict):
            data = data.get(step)
        else:
            data = data[step] if isinstance(data, list) and isinstance(step, int) else None
    return {str(name): value for name, value in data.items()} if isinstance(data, dict) else {}


def model_at(kind: type[Settings], steps: Sequence[str | int]) -> type[BaseModel]:
    """The model that lies at a place inside a model; the outer one where there is none."""
    annotation: Any = kind  # of a field: any form that a type can have
    kinds: Mapping[str, type[BaseModel]] = {}  # of the setting that was reached
    for step in steps:
        models = kinds or {name_of(model): model for model in _models(annotation)}
        kinds, first = {}, next(iter(models.values()), None)
        if len(models) > 1 and step in models:
            annotation = models[str(step)]
        elif first is not None and step in first.model_fields:
            annotation = first.model_fields[str(step)].annotation
            kinds = choices_in(first)[str(step)][1] if step in choices_in(first) else {}
        elif get_origin(annotation) in (dict, tuple, list):
            annotation = [inner for inner in get_args(annotation) if inner is not Ellipsis][-1]
    return next(iter(_models(annotation)), kind)


def dotted(place: Place) -> str:
    """A place as a person reads it: stages[2].gopher_quality.min_words."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


def _models(annotation: Any) -> list[type[BaseModel]]:
    if get_origin(annotation) is Annotated:
        return _models(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [model for inner in get_args(annotation) for model in _models(inner)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
