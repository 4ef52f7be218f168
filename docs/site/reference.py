"""The reference: pages in Markdown, made of the registry of stages, the models of their settings, the commands and the
types of files. Nothing in it is written by hand, so nothing in it is out of date.

`reasons` and `files` have modules of their own beside this one.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import gristmill
from gristmill.kernels.common.paths import RecipePath
from gristmill.pipeline import errors
from gristmill.pipeline.ablate.plan import AblationPlan
from gristmill.pipeline.cli.app import COMMANDS, app
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.recipe import RecipeHead
from gristmill.pipeline.train.plan import TrainPlan
from gristmill.stages.one_of import OneOf, choices_in
from gristmill.stages.stage import Annotate, Global, Reader, Rewrite, Rule, Sink, Stage
from gristmill.trainer.run.settings import OPTIMIZERS, Training

sys.path[:0] = [str(Path(__file__).parent)]
from files import files_page  # noqa: E402
from meanings import SIGNALS, check  # noqa: E402
from reasons import declared_limits, reasons_page  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    Reader: "reads files",
    Rule: "rule: decides on signals",
    Annotate: "adds signals",
    Rewrite: "changes text",
    Sink: "writes files",
    Global: "sees the whole data set",
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
NO_CHAPTER = {"log.md", "design.md", "coming_from.md", "limits.md", "start.md", "tour.md"}


def pages() -> dict[str, str]:
    """Every page of the reference by its name."""
    return {
        "recipe": recipe_page(),
        "readers": stages_page(readers=True),
        "stages": stages_page(readers=False),
        "signals": signals_page(),
        "reasons": reasons_page(),
        "commands": commands_page(),
        "files": files_page(),
        "plans": plans_page(),
        "python": python_page(),
    }


# --- words for types ----------------------------------------------------------------------------------------------


def cell(text: str) -> str:
    """Text for a cell of a table."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    escapes = (("<", "&lt;"), ("*", "\\*"), ("|", "\\|"))
    return "".join(part if part.startswith("`") else replaced(part, escapes) for part in parts)


def replaced(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(cell(text) for text in row)} |" for row in rows)])


def prose(text: str | None) -> str:
    """A docstring as Markdown: a `<` is escaped but in code, where it is taken as it stands."""
    parts = re.split(r"(`[^`]*`|^    .*$)", inspect.cleandoc(text or ""), flags=re.MULTILINE)
    return "".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def type_in_words(kind: Any) -> str:
    if kind is RecipePath:
        return "path"
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        choice = next((mark for mark in marks if isinstance(mark, OneOf)), None)
        return f"a {choice.noun}: " + ", ".join(f"`{n}`" for n in choice.of(inner)) if choice else type_in_words(inner)
    if isinstance(kind, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        return type_in_words(kind.__value__)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_in_words(each) for each in inside))
    if origin in (tuple, list, set, frozenset):
        of = [each for each in inside if each is not Ellipsis]
        fixed = origin is tuple and Ellipsis not in inside and len(of) > 1
        return (
            f"{len(of)} of: {type_in_words(of[0])}" if fixed else f"list of: {type_in_words(of[0])}" if of else "list"
        )
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return f"mapping of names to: {type_in_words(inside[1])}"
    if isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)):
        return f"settings of [`{kind.__name__}`](#{kind.__name__.lower()})"
    return SIMPLE.get(kind, getattr(kind, "__name__", str(kind)))


def bounds_in_words(marks: Iterable[Any]) -> str:
    found = []
    for mark in marks:
        found += [
            f"{word} {getattr(mark, name):g}" for name, word in BOUNDS.items() if getattr(mark, name, None) is not None
        ]
        found += [f"matches `{mark.pattern}`" for _ in "x" if getattr(mark, "pattern", None)]
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


def settings_of(model: type[Any], leave_out: Iterable[str] = ()) -> str:
    """A table of the fields of a model, and tables of the models in it."""
    fields = model.model_fields if issubclass(model, BaseModel) else model.__pydantic_fields__
    rows = []
    for name, field in fields.items():
        if name in leave_out:
            continue
        choice = choices_in(model).get(name) if issubclass(model, BaseModel) else None
        kind = (
            f"a {choice[0].noun}: " + ", ".join(f"`{n}`" for n in choice[1])
            if choice
            else type_in_words(field.annotation)
        )
        bounds = bounds_in_words(field.metadata)
        default = default_in_words(
            field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
        )
        rows.append(
            (
                f"`{name}`",
                f"{kind}; {bounds}" if bounds else kind,
                default,
                field.description or comments_of(model).get(name, ""),
            )
        )
    return table(("setting", "what it takes", "default", "meaning"), rows) if rows else "No settings."


@cache
def comments_of(model: type[Any]) -> dict[str, str]:
    """What stands after the fields of a model, on their line: `rate: float = 1e-3  # peak learning rate`."""
    lines = inspect.getsource(model).split("\n")
    found = (re.match(r"    (\w+): .*?  # (.+)$", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def models_in(model: type[Any], seen: dict[str, type[Any]]) -> dict[str, type[Any]]:
    """The models that settings of a model are, all the way down."""
    fields = model.model_fields if issubclass(model, BaseModel) else model.__pydantic_fields__

    def visit(kind: Any) -> None:
        model = isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__pydantic_fields__"))
        if model and kind.__name__ not in seen:
            seen[kind.__name__] = kind
            models_in(kind, seen)
        for inner in get_args(kind):
            visit(inner)

    for field in fields.values():
        visit(field.annotation)
    return seen


def sections(models: Mapping[str, type[Any]], level: str) -> str:
    return "\n\n".join(
        f"{level} {name}\n\n{prose(kind.__doc__)}\n\n{settings_of(kind)}" for name, kind in models.items()
    )


# --- stages -------------------------------------------------------------------------------------------------------


@cache
def chapter_of(stage: str) -> str | None:
    """The page of docs that speaks most of a stage."""
    mentions = {
        path.name: len(re.findall(rf"`{stage}[`:]|^\s*- {stage}\b", path.read_text(encoding="utf-8"), re.MULTILINE))
        + 10 * path.stem.startswith(stage[:6])  # `extract`: extraction.md
        for path in sorted((ROOT / "docs").glob("*.md"))
        if path.name not in NO_CHAPTER
    }
    best = max(mentions, key=lambda name: mentions[name])
    return best if mentions[best] else None


def kind_in_words(kind: type[Stage]) -> str:
    return next(words for base, words in KINDS.items() if issubclass(kind, base))


def stages_page(readers: bool) -> str:
    kinds = {name: kind for name, kind in registry.built_in().items() if issubclass(kind, Reader) is readers}
    rooms: dict[str, dict[str, type[Stage]]] = {}
    for name, kind in sorted(kinds.items()):
        rooms.setdefault(kind.__module__.rpartition(".")[0], {})[name] = kind
    title = "# Readers" if readers else "# Stages"
    about = (
        "What `sources` of a recipe are read with: `crawl: {warc: {path: crawl/}}`."
        if readers
        else "What a recipe lists under `stages`: a bare name, or `name: {setting: value}`. Every stage takes `name` too,"
        " a name of its own where a recipe uses the same stage twice."
    )
    index = table(
        ("stage", "kind", "what it does"),
        ((f"[`{name}`](#{name})", kind_in_words(kind), first_sentence(kind)) for name, kind in sorted(kinds.items())),
    )
    text = [title, f"{about} Generated from the types of {len(kinds)} stages.", index]
    nested: dict[str, type[Any]] = {}
    for room, members in sorted(rooms.items()):
        if not readers:
            text.append(
                f"## {room.removeprefix('gristmill.').replace('.', '/')}\n\n{prose(import_module(room).__doc__)}"
            )
        text += [stage_section(name, kind, nested, "##" if readers else "###") for name, kind in members.items()]
    if nested:
        text.append(f"## Settings of settings\n\n{sections(nested, '###')}")
    return "\n\n".join(text) + "\n"


def first_sentence(kind: type[Any]) -> str:
    return re.split(r"(?<=[.:;])(?<!al\.)\s", " ".join((kind.__doc__ or "").split()))[0].rstrip(".:;")


def stage_section(name: str, kind: type[Stage], nested: dict[str, type[Any]], level: str) -> str:
    facts = [f"*{kind_in_words(kind)}*"]
    if getattr(kind, "suffixes", ()):
        facts.append("files in a folder: " + ", ".join(f"`{suffix}`" for suffix in kind.suffixes))
    if isinstance(kind.adds, tuple) and kind.adds and len(kind.adds) < 20:
        facts.append("adds " + ", ".join(f"`{signal}`" for signal in kind.adds))
    chapter = chapter_of(name)
    if chapter:
        facts.append(f"chapter: [{chapter}](../{chapter})")
    text = [f"{level} {name}", prose(kind.__doc__), "; ".join(facts) + ".", settings_of(kind, leave_out=("name",))]
    limits = declared_limits(kind)
    if limits:
        rows = (
            (f"`{x.reason}`", f"`{x.signal}`", "below" if x.side == "low" else "above", f"`{x.setting}`")
            for x in limits
        )
        text.append(table(("drops as", "signal", "is", "setting"), rows))
    for field, (mark, choices) in choices_in(kind).items():
        rows = (
            (f"`{n}`", ", ".join(f"`{f}`" for f in each.model_fields) or "none", first_sentence(each))
            for n, each in choices.items()
        )
        text.append(f"Kinds of `{field}`:\n\n" + table((mark.noun, "settings", "what it does"), rows))
    for other, model in models_in(kind, {}).items():
        nested.setdefault(other, model)
    return "\n\n".join(text)


def signals_page() -> str:
    """Signals by the stage that adds them, with the rules that bound them."""
    bounded: dict[str, list[str]] = {}
    added: set[str] = set()
    for name, kind in sorted(registry.built_in().items()):
        for limit in declared_limits(kind):
            for signal in limit.signals:
                bounded.setdefault(signal, []).append(f"`{name}`: `{limit.reason}`")
    text = [
        "# Signals",
        "Numbers and words that are measured on a document and stored as columns of it. A recipe names rules, and the"
        " plan inserts the stages that measure what they need. [Rules on text](../rules.md#signals) defines those of"
        " `text_signals`; `keep_where` bounds any of them.",
    ]
    for name, kind in sorted(registry.built_in().items()):
        if isinstance(kind.adds, tuple) and kind.adds:
            page = "readers" if issubclass(kind, Reader) else "stages"
            rows = (
                (f"`{signal}`", SIGNALS.get(signal, ""), ", ".join(dict.fromkeys(bounded.get(signal, []))) or "none")
                for signal in kind.adds
            )
            added |= {*kind.adds}
            text.append(
                f"## {name}\n\n{first_sentence(kind)} ([settings]({page}.md#{name}))\n\n"
                + table(("signal", "meaning", "rules and their reasons"), rows)
            )
    check(added, SIGNALS, "signals")
    return "\n\n".join(text) + "\n"


# --- recipes and plans --------------------------------------------------------------------------------------------


def recipe_page() -> str:
    nested = models_in(RecipeHead, {})
    shipped = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.yaml"))
    return "\n\n".join(
        [
            "# Recipe",
            "The keys of a recipe beside `sources` ([readers](readers.md)) and `stages` ([stages](stages.md)). Keys that"
            " begin with `x-` are yours. `gristmill maintain schema` prints the JSON schema for an editor.",
            settings_of(RecipeHead),
            "A source has one reader, and may have `stages` of its own and `join`, the shared stage at which it joins.",
            sections(nested, "##"),
            "## Shipped recipes",
            "\n".join(f"- [{path}](../../{path})" for path in shipped),
        ]
    ) + "\n"  # fmt: skip


def plans_page() -> str:
    ablation, train = models_in(AblationPlan, {}), models_in(TrainPlan, {})
    training = {Training.__name__: Training, **models_in(Training, {})}
    return "\n\n".join(
        [
            "# Plans of train and ablate",
            "## A training run",
            "`gristmill train PLAN` ([training](../training.md)). `training` takes the fields of"
            f" [`Training`](#training), and `optimizer` a `name` ({', '.join(f'`{n}`' for n in OPTIMIZERS)}) beside its settings.",
            settings_of(TrainPlan),
            sections({**training, **{n: k for n, k in train.items() if n not in ablation}}, "###"),
            "## An ablation",
            "`gristmill ablate PLAN` ([ablations](../ablations.md)).",
            settings_of(AblationPlan),
            sections(ablation, "###"),
        ]
    ) + "\n"  # fmt: skip


# --- commands and Python ------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """By the words that call them, as in `judge train`."""
    top = typing.cast(Any, typer.main.get_command(app)).commands
    found = {path: path.rpartition(" ")[::2] for path in sorted(COMMANDS)}
    return {path: (top[group].commands if group else top)[name] for path, (group, name) in found.items()}


def commands_page() -> str:
    text = ["# Commands and exit codes", exit_codes()]
    for name, command in commands().items():
        usage, rows = [f"gristmill {name}"], []
        for parameter in command.params:
            if parameter.param_type_name == "option":
                names = " ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
                default = (
                    ""
                    if parameter.default in (None, False, (), "") or callable(parameter.default)
                    else f" (default {parameter.default})"
                )
                rows.append((names, (parameter.help or "") + default))
            else:
                metavar = parameter.metavar or (parameter.name or "").upper()
                usage.append(metavar if parameter.required else f"[{metavar}]")
                rows.append((f"`{metavar}`", getattr(parameter, "help", "") or ""))
        about = prose(command.help)
        options = table(("argument or option", "meaning"), rows) if rows else ""
        text.append(
            f"## {name}\n\n    {' '.join(usage)}{' [OPTIONS]' if rows else ''}\n\n{about}\n\n{options}".rstrip()
        )
    return "\n\n".join(text) + "\n"


def exit_codes() -> str:
    codes: dict[int, list[str]] = {
        0: ["done"],
        130: ["interrupted: Ctrl-C, SIGTERM or SIGHUP"],
        141: ["the reader of the output has gone (`| head`)"],
    }
    for kind in [errors.GristmillError, *descendants(errors.GristmillError)]:
        if "exit_code" in vars(kind):
            codes.setdefault(kind.exit_code, []).append(first_sentence(kind).rstrip("."))
    return "## Exit codes\n\n" + table(
        ("code", "meaning"), ((str(code), "; ".join(words)) for code, words in sorted(codes.items()))
    )


def descendants(kind: type[Any]) -> list[type[Any]]:
    return [below for child in kind.__subclasses__() for below in (child, *descendants(child))]


def python_page() -> str:
    text = ["# Python", prose(gristmill.__doc__)]
    for name in gristmill.__all__:
        thing = getattr(gristmill, name)
        signature = "" if inspect.ismodule(thing) else f"    {name}{shortened(thing)}\n\n"
        text.append(f"## {name}\n\n{signature}{prose(thing.__doc__)}")
        for method, function in vars(thing).items() if inspect.isclass(thing) else ():
            function = getattr(function, "__func__", function)
            if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
                text.append(f"### {name}.{method}\n\n    {method}{shortened(function)}\n\n{prose(function.__doc__)}")
    things = ((name, documented(getattr(gristmill.stages, name))) for name in gristmill.stages.BASES)
    rows = ((f"`{name}`", first_sentence(thing)) for name, thing in things if thing.__doc__)
    text.append(
        "## gristmill.stages\n\nEvery stage by its class, and what stages of your own are written with:\n\n"
        + table(("name", "what it is"), rows)
    )
    return "\n\n".join(text) + "\n"


def documented(thing: Any) -> Any:
    """What has the docstring: of a type with a mark (`RecipePath`), the mark."""
    return get_args(thing)[1] if get_origin(thing) is Annotated else thing


def shortened(thing: Any) -> str:
    try:
        return textwrap.shorten(str(inspect.signature(thing)).replace("gristmill.", "").replace("'", ""), 400)
    except (TypeError, ValueError):
        return ""
