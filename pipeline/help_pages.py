"""Help pages of the command line: a name and a line each, aligned, wrapped at blanks, with examples at the end.

Typer's own have a column of types that leaves half of 80 columns to what an option does. Here the type stands behind
the option, as in `--limit N`, and all of it fits in a column of 24.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from textwrap import wrap
from typing import Any, get_args

import typer.core
from rich.console import Console
from rich.text import Text

from gristmill.pipeline.screen import console

COLUMN, LEAST = 24, 30  # cells of the left column, and what must be left for the right one
WIDEST = 100
TYPES = {"integer": "N", "int": "N", "float": "X", "path": "PATH", "file": "FILE", "filename": "FILE"}
SHORTER = {
    "--install-completion": "install completion for this shell",
    "--show-completion": "print that completion, to copy it",
    "--help": "show this page",
}


class HelpfulCommand(typer.core.TyperCommand):
    """A command with a page of ours."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        screen = console()
        usage(screen, self, ctx)
        print_parameters(screen, self, ctx)
        examples = [line for line in (self.epilog or "").split("\n") if line.strip()]
        section(screen, "Examples", [Text(f"  {example}") for example in examples])


class HelpfulGroup(typer.core.TyperGroup):
    """The program, with its commands by panels."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        screen = console()
        usage(screen, self, ctx)
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                shown = panel if isinstance(panel, str) else "Commands"
                panels.setdefault(shown, []).append((name, command.short_help or command.get_short_help_str(limit=200)))
        column = 4 + max((len(name) for rows in panels.values() for name, _ in rows), default=0)
        for panel, rows in panels.items():
            section(screen, panel, [line for row in rows for line in entry(*row, screen.width, column)])
        print_parameters(screen, self, ctx)


def usage(screen: Console, command: Any, ctx: Any) -> None:
    arguments = [p for p in command.get_params(ctx) if p.param_type_name == "argument" and not getattr(p, "hidden", 0)]
    words = [argument_name(argument) for argument in arguments] or (
        ["COMMAND", "[ARGS]..."] if isinstance(command, HelpfulGroup) else []
    )
    line = Text.assemble(("Usage: ", "bold yellow"), (ctx.command_path, "bold"), " [OPTIONS] ", " ".join(words))
    screen.print(line, soft_wrap=True)
    about = " ".join((command.help or "").split())
    if about:
        screen.print()
        for part in wrap(about, min(screen.width, WIDEST), break_on_hyphens=False):
            screen.print(Text(part), soft_wrap=True)


def argument_name(argument: Any) -> str:
    """`RECIPE`, `[OTHER]`, `TEXTS...`"""
    name = argument.metavar or str(argument.name).upper().replace("_", "-")
    name = name.removesuffix("...") + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def print_parameters(screen: Console, command: Any, ctx: Any) -> None:
    arguments, options = [], []
    for parameter in command.get_params(ctx):
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            arguments += entry(argument_name(parameter).strip("[]"), about_of(parameter), screen.width)
        else:
            options += entry(name_of(parameter), about_of(parameter), screen.width)
    section(screen, "Arguments", arguments)
    section(screen, "Options", options)


def section(screen: Console, title: str, lines: Sequence[Text]) -> None:
    if lines:
        screen.print()
        screen.print(Text(title, style="bold"))
        for line in lines:
            screen.print(line, soft_wrap=True)


def entry(name: str, about: str, width: int, column: int = COLUMN) -> list[Text]:
    """A name with what it is, on as many lines as that takes."""
    room = max(LEAST, min(width, WIDEST) - column)
    lines = wrap(about, room, break_long_words=False, break_on_hyphens=False) or [""]
    left = f"  {name}"
    if len(left) + 2 > column:
        return [Text(left, style="cyan"), *(Text(f"{'':{column}}{line}") for line in lines)]
    first = Text.assemble((left.ljust(column) if lines[0] else left, "cyan"), lines[0])
    return [first, *(Text(f"{'':{column}}{line}") for line in lines[1:])]


def name_of(parameter: Any) -> str:
    """`--limit N`, `--flow/--no-flow`, `--kind rule|measure`."""
    names = ", ".join(parameter.opts) + "".join(f"/{name}" for name in parameter.secondary_opts)
    if parameter.is_flag or names in SHORTER:
        return names
    return f"{names} {parameter.metavar or kind_of(parameter)}"


def kind_of(parameter: Any) -> str:
    """What an option takes; versions of typer keep it in different places."""
    older = getattr(parameter, "type", None)
    if older is not None:
        choices = getattr(older, "choices", None)
        return "|".join(map(str, choices)) if choices else TYPES.get(str(older.name).split()[0].lower(), "TEXT")
    kind = parameter.type_descriptor.annotation
    for inner in (*get_args(kind), kind):
        if isinstance(inner, type) and issubclass(inner, Enum):
            return "|".join(str(member.value) for member in inner)
        if isinstance(inner, type) and inner.__name__.lower() in TYPES:
            return TYPES[inner.__name__.lower()]
    return "TEXT"


def about_of(parameter: Any) -> str:
    """What it is; the default where it has one that says something."""
    if parameter.param_type_name == "option" and parameter.opts[0] in SHORTER:
        return SHORTER[parameter.opts[0]]
    about = " ".join((getattr(parameter, "help", None) or "").split())
    default = parameter.default
    said = default not in (None, False, "", ()) and not callable(default) and "default" not in about
    if said and getattr(parameter, "show_default", False) and not parameter.required and default is not True:
        about += f" (default: {getattr(default, 'value', default)})"
    return about
