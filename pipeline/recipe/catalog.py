"""What each stage is, takes, reads, measures and drops for: for `gristmill stages` and for the reference of the book.

All of it is read from the classes: types of settings, declared limits; other reasons are listed in `meanings.py`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import gristmill.stages as stages
from gristmill.kernels.common.paths import RecipePath
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.meanings import REASONS, REASONS_OF, SIGNALS
from gristmill.stages.contract import Limit
from gristmill.stages.one_of import OneOf, choices_in
from gristmill.stages.stage import Annotate, Global, Map, Reader, Rewrite, Rule, Sink, Stage

STAGES = "gristmill.stages"
# Rooms of `gristmill.stages` in the order in which documents pass them.
GROUPS = {
    "read": "Readers, for the sources of a recipe",
    "extract": "Pages to text",
    "text": "Measure and change texts",
    "rules": "Published quality rules",
    "judge": "Judges and labels",
    "rights": "Licenses and reservations of use",
    "dedup": "Deduplication and decontamination",
    "semantic": "Embeddings and clusters",
    "edits": "Rewriting by language models",
    "blend": "Mixes and orders",
    "tokens": "Tokens and token shards",
    "others": "Blocks of other tools",
    "": "General",
}
KINDS = {
    Reader: "reads files",
    Rule: "rule: decides on signals",
    Annotate: "adds signals",
    Rewrite: "changes text",
    Sink: "writes files",
    Global: "sees the whole data set",
    Map: "works on a batch",  # the others that do come first
}
SIMPLE = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    type(None): "null",
    Any: "anything",
}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
NO_PAGE = {"log.md", "design.md", "coming_from.md", "limits.md", "start.md", "tour.md"}


@dataclass(frozen=True)
class Setting:
    name: str
    takes: str  # its type and bounds, in words
    default: str
    meaning: str


@dataclass(frozen=True)
class StageFacts:
    """What a person asks of a stage; words in code marks are names."""

    name: str
    kind: str
    about: str
    settings: tuple[Setting, ...]
    settings_of: Mapping[str, tuple[Setting, ...]]  # of settings that have settings themselves, by type
    reads: tuple[str, ...]  # columns
    adds: Mapping[str, str]  # signals, with their meaning
    reasons: Mapping[str, str]  # why it drops or skips, with their meaning
    page: str | None  # of docs, where the package lies in its repository


def listed() -> dict[str, dict[str, str]]:
    """By title of the group, every stage and its first sentence. Docstrings are found in source files: to import all
    stages takes a second."""
    groups: dict[str, dict[str, str]] = {title: {} for title in GROUPS.values()}
    for name, class_name in sorted(registry.names().items()):
        home = stages.HOMES[class_name]
        spec = importlib.util.find_spec(home)
        source = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
        about = re.search(rf'^class {class_name}\b.*?:\n    r?"""(.*?)"""', source, re.MULTILINE | re.DOTALL)
        groups[GROUPS[group_of(home)]][name] = first_sentence(about and about[1])
    return groups


def describe(name: str) -> StageFacts:
    """A stage of ours, of an installed package, or of a file; LookupError says what is near."""
    kind = registry.find(name)
    return StageFacts(
        name=name,
        kind=kind_in_words(kind),
        about=inspect.cleandoc(kind.__doc__ or ""),
        settings=settings_of(kind),
        settings_of={other: settings_of(model) for other, model in models_in(kind).items()},
        reads=declared(kind, "needs"),
        adds={signal: SIGNALS.get(signal, "") for signal in declared(kind, "adds")},
        reasons={reason: test or REASONS.get(reason, "") for reason, test in reasons_of(kind).items()},
        page=page_of(name) if name in registry.names() else None,
    )


def group_of(module: str) -> str:
    return module.rpartition(".")[0].removeprefix(STAGES).removeprefix(".")


def kind_in_words(kind: type[Stage]) -> str:
    return next(words for base, words in KINDS.items() if issubclass(kind, base))


def first_sentence(about: str | None) -> str:
    return re.split(r"(?<=[.:;])(?<!al\.)\s", " ".join((about or "").split()))[0].rstrip(".:;")


@cache
def page_of(stage: str) -> str | None:
    """The page of docs that speaks most of a stage."""
    pages = Path(stages.__file__).resolve().parents[1] / "docs"
    mentions = {
        path.name: len(re.findall(rf"`{stage}[`:]|^\s*- {stage}\b", path.read_text(encoding="utf-8"), re.MULTILINE))
        + 10 * path.stem.startswith(stage[:6])  # `extract`: extraction.md
        for path in sorted(pages.glob("*.md"))
        if path.name not in NO_PAGE
    }
    best = max(mentions, key=lambda name: mentions[name], default="")
    return f"docs/{best}" if mentions.get(best) else None


# --- settings in words --------------------------------------------------------------------------------------------


def settings_of(model: type[Any]) -> tuple[Setting, ...]:
    """The fields of a model, but for the name that every stage may have."""
    found, fields = [], fields_of(model)
    comments = {} if all(field.description for field in fields.values()) else comments_of(model)
    for name, field in fields.items():
        if name == "name" and issubclass(model, Stage):
            continue
        choice = choices_in(model).get(name) if issubclass(model, BaseModel) else None
        takes = one_of_in_words(*choice) if choice else type_in_words(field.annotation)
        bounds = bounds_in_words(field.metadata)
        default = PydanticUndefined if field.is_required() else field.get_default(call_default_factory=True)
        meaning = field.description or comments.get(name, "")
        found.append(Setting(name, f"{takes}; {bounds}" if bounds else takes, default_in_words(default), meaning))
    return tuple(found)


def fields_of(model: type[Any]) -> Mapping[str, Any]:
    """Of a model of pydantic, or of a dataclass that it checks."""
    fields: Mapping[str, Any] = model.model_fields if issubclass(model, BaseModel) else model.__pydantic_fields__
    return fields


def comments_of(model: type[Any]) -> dict[str, str]:
    """What stands after the fields of a model, on their line: `rate: float = 1e-3  # peak learning rate`."""
    try:
        lines = inspect.getsource(model).split("\n")
    except (OSError, TypeError):  # a class of a user's file, whose source is a text
        return {}
    found = (re.match(r"    (\w+): .*?  # (.+)$", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def models_in(model: type[Any], seen: dict[str, type[Any]] | None = None) -> dict[str, type[Any]]:
    """The models that settings of a model are, all the way down."""
    seen = {} if seen is None else seen

    def visit(kind: Any) -> None:
        is_model = isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__pydantic_fields__"))
        if is_model and kind.__name__ not in seen:
            seen[kind.__name__] = kind
            models_in(kind, seen)
        for inner in get_args(kind):
            visit(inner)

    for field in fields_of(model).values():
        visit(field.annotation)
    return seen


def one_of_in_words(mark: OneOf, choices: Iterable[str]) -> str:
    return f"a {mark.noun}: " + ", ".join(f"`{name}`" for name in choices)


def type_in_words(kind: Any) -> str:
    if kind is RecipePath:
        return "path"
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        choice = next((mark for mark in inside[1:] if isinstance(mark, OneOf)), None)
        return one_of_in_words(choice, choice.of(inside[0])) if choice else type_in_words(inside[0])
    if isinstance(kind, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        return type_in_words(kind.__value__)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_in_words(each) for each in inside))
    if origin in (tuple, list, set, frozenset):
        of = [type_in_words(each) for each in inside if each is not Ellipsis]
        is_fixed = origin is tuple and Ellipsis not in inside and len(of) > 1
        return f"{len(of)} of: {of[0]}" if is_fixed else f"list of: {of[0]}" if of else "list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to: {type_in_words(inside[1])}"
    if isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
        return f"settings of `{kind.__name__}`"
    return SIMPLE.get(kind, getattr(kind, "__name__", str(kind)))


def bounds_in_words(marks: Iterable[Any]) -> str:
    found = []
    for mark in marks:
        bounds = ((words, getattr(mark, name, None)) for name, words in BOUNDS.items())
        found += [f"{words} {bound:g}" for words, bound in bounds if bound is not None]
        found += [f"matches `{mark.pattern}`"] if getattr(mark, "pattern", None) else []
    return ", ".join(dict.fromkeys(found))


def default_in_words(value: Any) -> str:
    if value is PydanticUndefined or value is dataclasses.MISSING:
        return "required"
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return f"`{type(value).__name__}` by default"
    if isinstance(value, tuple | set | frozenset):
        value = list(value)
    text = json.dumps(value, ensure_ascii=False, default=lambda each: default_in_words(each).strip("`"))
    return f"`{text if len(text) < 90 else f'{len(value)} entries'}`"


# --- reasons ------------------------------------------------------------------------------------------------------


def reasons_of(kind: type[Stage]) -> dict[str, str]:
    """Every reason of a stage, with what it tests where a limit says so."""
    found = {
        limit.reason: f"`{limit.signal}` {'below' if limit.side == 'low' else 'above'} `{limit.setting}`"
        for limit in declared_limits(kind)
    }
    names = [base.recipe_name() for base in kind.__mro__ if issubclass(base, Stage)]
    others = next((REASONS_OF[name] for name in names if name in REASONS_OF), "")
    return dict(sorted((dict.fromkeys(others.split(), "") | found).items()))


def declared_limits(kind: type[Stage]) -> tuple[Limit, ...]:
    limits = declared(kind, "limits")
    return limits if all(isinstance(each, Limit) for each in limits) else ()


def declared(kind: type[Stage], name: str) -> tuple[Any, ...]:
    """What a class declares; where its settings decide that, by its defaults if it has them all."""
    value = getattr(kind, name, ())
    if isinstance(value, property):
        try:
            value = getattr(kind(), name)
        except ValueError:
            return ()
    return value if isinstance(value, tuple) else ()
