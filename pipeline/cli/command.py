"""A command of the program: what it does, where `gristmill --help` lists it, and examples for its own page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer.core

START, RUN, LOOK, HAND_ON, JUDGES, TRAIN, UPKEEP = PANELS = (
    "Start", "Run", "Look", "Hand on", "Judges", "Train", "Upkeep",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """Registration of a command: `COMMAND` at the end of its module."""

    run: Callable[..., None]  # the first line of its docstring stands in lists of commands, and fits in 80 columns
    panel: str
    examples: tuple[str, ...]  # without `gristmill` before them


class Page(typer.core.TyperCommand):
    """Typer's help page, with examples at the end."""

    def get_params(self, ctx: Any) -> Any:
        """Arguments are named in capitals."""
        found = super().get_params(ctx)
        for parameter in found:
            if parameter.param_type_name == "argument" and parameter.metavar is None:
                parameter.metavar = str(parameter.name).upper()
        return found

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as RECIPE; some versions of Typer write {RECIPE}."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Examples"):
            for example in (self.epilog or "").split("\n"):
                formatter.write(f"  {example}\n")


class Group(typer.core.TyperGroup):
    """Typer's list of commands, by panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        shown: dict[str, Any] = {name: self.commands[name] for name in self.list_commands(ctx)}
        for panel in PANELS:
            rows = [(n, each.get_short_help_str(80)) for n, each in shown.items() if each.rich_help_panel == panel]
            if rows:
                with formatter.section(panel):
                    formatter.write_dl([(name.ljust(width), about) for name, about in rows])
