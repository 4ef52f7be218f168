"""The reference: pages in Markdown, made of the registry of stages, the models of their settings, the commands and the
types of files. Nothing in it is written by hand, so nothing in it is out of date.

What is known of stages is read by `pipeline/recipe/catalog.py`, which `gristmill stages` shows too; files of a run by
`files` beside this module.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

import gristmill
from gristmill.pipeline import errors
from gristmill.pipeline.ablate.plan import AblationPlan
from gristmill.pipeline.cli.app import COMMANDS, app
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.catalog import (
    declared_limits,
    first_sentence,
    kind_in_words,
    models_in,
    page_of,
    reasons_of,
    settings_of,
)
from gristmill.pipeline.recipe.meanings import REASONS, SIGNALS
from gristmill.pipeline.recipe.recipe import RecipeHead
from gristmill.pipeline.train.plan import TrainPlan
from gristmill.stages.one_of import choices_in
from gristmill.stages.stage import Reader, Stage
from gristmill.trainer.run.settings import OPTIMIZERS, Training

sys.path[:0] = [str(Path(__file__).parent)]
from files import files_page  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]

BY_THE_ENGINE = {
    "quarantined": "the document broke a stage; the error is its detail",
    "forgotten": "on the list of `gristmill forget`",
}


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


def settings_table(model: type[Any]) -> str:
    """The fields of a model, with links to the tables of models in it."""
    rows = [
        (f"`{each.name}`", re.sub(r"settings of `(\w+)`", link_to_model, each.takes), each.default, each.meaning)
        for each in settings_of(model)
    ]
    return table(("setting", "what it takes", "default", "meaning"), rows) if rows else "No settings."


def link_to_model(match: re.Match[str]) -> str:
    return f"settings of [`{match[1]}`](#{match[1].lower()})"


def sections(models: Mapping[str, type[Any]], level: str) -> str:
    return "\n\n".join(
        f"{level} {name}\n\n{prose(kind.__doc__)}\n\n{settings_table(kind)}" for name, kind in models.items()
    )


# --- stages -------------------------------------------------------------------------------------------------------


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
        (
            (f"[`{name}`](#{name})", kind_in_words(kind), first_sentence(kind.__doc__))
            for name, kind in sorted(kinds.items())
        ),
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


def stage_section(name: str, kind: type[Stage], nested: dict[str, type[Any]], level: str) -> str:
    facts = [f"*{kind_in_words(kind)}*"]
    if getattr(kind, "suffixes", ()):
        facts.append("files in a folder: " + ", ".join(f"`{suffix}`" for suffix in kind.suffixes))
    if isinstance(kind.adds, tuple) and kind.adds and len(kind.adds) < 20:
        facts.append("adds " + ", ".join(f"`{signal}`" for signal in kind.adds))
    if page := page_of(name):
        chapter = page.removeprefix("docs/")
        facts.append(f"chapter: [{chapter}](../{chapter})")
    text = [f"{level} {name}", prose(kind.__doc__), "; ".join(facts) + ".", settings_table(kind)]
    limits = declared_limits(kind)
    if limits:
        rows = (
            (f"`{x.reason}`", f"`{x.signal}`", "below" if x.side == "low" else "above", f"`{x.setting}`")
            for x in limits
        )
        text.append(table(("drops as", "signal", "is", "setting"), rows))
    for field, (mark, choices) in choices_in(kind).items():
        rows = (
            (f"`{n}`", ", ".join(f"`{f}`" for f in each.model_fields) or "none", first_sentence(each.__doc__))
            for n, each in choices.items()
        )
        text.append(f"Kinds of `{field}`:\n\n" + table((mark.noun, "settings", "what it does"), rows))
    for other, model in models_in(kind).items():
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
                f"## {name}\n\n{first_sentence(kind.__doc__)} ([settings]({page}.md#{name}))\n\n"
                + table(("signal", "meaning", "rules and their reasons"), rows)
            )
    check(added, SIGNALS, "signals")
    return "\n\n".join(text) + "\n"


def reasons_page() -> str:
    everything: dict[bool, list[Any]] = {True: [], False: []}
    named: set[str] = set()
    for name, kind in sorted(registry.built_in().items()):
        page = "readers" if issubclass(kind, Reader) else "stages"
        for reason, test in reasons_of(kind).items():
            named |= set() if test else {reason}
            meaning = test or REASONS.get(reason, "")
            everything[issubclass(kind, Reader)].append((f"`{reason}`", f"[`{name}`]({page}.md#{name})", meaning))
    check(named, REASONS, "reasons")
    return "\n\n".join(
        [
            "# Reasons",
            "The names under which documents are dropped and records are skipped. `gristmill inspect OUT STAGE --reason"
            " REASON` shows samples; [Why was my document dropped?](../how_to/why_dropped.md) is the way from a document"
            " to its reason. Capitals stand for what a recipe names.",
            "## Documents dropped\n\n" + table(("reason", "stage", "meaning"), sorted(everything[False])),
            "## Records skipped\n\nA reader makes no document of them. They are counted, and named by url where they have one.\n\n"
            + table(("reason", "reader", "meaning"), sorted(everything[True])),
            "## By the engine\n\n" + table(("reason", "meaning"), ((f"`{n}`", words) for n, words in BY_THE_ENGINE.items())),
        ]
    ) + "\n"  # fmt: skip


def check(found: Iterable[str], known: dict[str, str], what: str) -> None:
    """Each has its line, and no line is of one that is gone."""
    missing, gone = sorted({*found} - {*known}), sorted({*known} - {*found})
    if missing or gone:
        raise ValueError(f"pipeline/recipe/meanings.py: {what} without a meaning: {missing}; no longer there: {gone}")


# --- recipes and plans --------------------------------------------------------------------------------------------


def recipe_page() -> str:
    nested = models_in(RecipeHead)
    shipped = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.yaml"))
    return "\n\n".join(
        [
            "# Recipe",
            "The keys of a recipe beside `sources` ([readers](readers.md)) and `stages` ([stages](stages.md)). Keys that"
            " begin with `x-` are yours. `gristmill maintain schema` prints the JSON schema for an editor.",
            settings_table(RecipeHead),
            "A source has one reader, and may have `stages` of its own and `join`, the shared stage at which it joins.",
            sections(nested, "##"),
            "## Shipped recipes",
            "\n".join(f"- [{path}](../../{path})" for path in shipped),
        ]
    ) + "\n"  # fmt: skip


def plans_page() -> str:
    ablation, train = models_in(AblationPlan), models_in(TrainPlan)
    training = {Training.__name__: Training, **models_in(Training)}
    return "\n\n".join(
        [
            "# Plans of train and ablate",
            "## A training run",
            "`gristmill train PLAN` ([training](../training.md)). `training` takes the fields of"
            f" [`Training`](#training), and `optimizer` a `name` ({', '.join(f'`{n}`' for n in OPTIMIZERS)}) beside its settings.",
            settings_table(TrainPlan),
            sections({**training, **{n: k for n, k in train.items() if n not in ablation}}, "###"),
            "## An ablation",
            "`gristmill ablate PLAN` ([ablations](../ablations.md)).",
            settings_table(AblationPlan),
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
            codes.setdefault(kind.exit_code, []).append(first_sentence(kind.__doc__).rstrip("."))
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
    rows = ((f"`{name}`", first_sentence(thing.__doc__)) for name, thing in things if thing.__doc__)
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
