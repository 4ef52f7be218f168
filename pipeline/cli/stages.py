"""`gristmill stages`: every stage with a line each, or all that is known of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from gristmill.pipeline.cli.command import START, Command
from gristmill.pipeline.cli.options import AsJson
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.screen import console, say

if TYPE_CHECKING:
    from rich.text import Text

    from gristmill.pipeline.recipe.catalog import StageFacts
    from gristmill.pipeline.tables import TerminalTable


def stages(
    name: Annotated[
        str | None, typer.Argument(help="show this one: its name, or FILE.py:CLASS of your own", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List stages; of one, show settings, signals and reasons."""
    from dataclasses import asdict

    from gristmill.pipeline.formatting import as_json as in_json
    from gristmill.pipeline.recipe import catalog, registry

    if name is None:
        groups = catalog.listed()
        if installed := {entry: str(point.value) for entry, point in sorted(registry.installed().items())}:
            groups["Of installed packages"] = installed
        if as_json:
            print(in_json(groups))
        else:
            show_list(groups)
        return
    try:
        facts = catalog.describe(name)
    except LookupError as error:
        adding = registry.adds(name)
        reason = f"{name!r} is a signal; {adding.recipe_name()} adds it" if adding else str(error)
        raise RecipeError(reason) from error
    if as_json:
        print(in_json(asdict(facts)))
    else:
        show_stage(facts)


def show_list(groups: Mapping[str, Mapping[str, str]]) -> None:
    from rich.text import Text

    screen = console()
    width = max(len(name) for names in groups.values() for name in names)
    for title, names in groups.items():
        rows = ((Text(name.ljust(width)), about) for name, about in names.items())
        screen.print(pairs(plain(title), ("", ""), rows), "")
    say(screen, "gristmill stages NAME shows settings, signals and reasons of one", "dim")


def show_stage(facts: StageFacts) -> None:
    from gristmill.pipeline.tables import TerminalTable

    screen = console()
    say(screen, facts.kind, "bold", facts.name)
    say(screen, re.sub(r"(?<!\n)\n(?![\n ])", " ", plain(facts.about)) + "\n")
    heads = ("setting", "takes", "default", "meaning")
    for title, settings in {"Settings": facts.settings, **facts.settings_of}.items():
        rows = ((each.name, plain(each.takes), plain(each.default), plain(each.meaning)) for each in settings)
        table = TerminalTable.of(title if title == "Settings" else f"Settings of {title}", heads, rows, words=4)
        if table.rows:
            screen.print(table, "")
    if facts.adds:
        screen.print(pairs("Adds", ("signal", "meaning"), facts.adds.items()), "")
    if facts.reasons:
        screen.print(pairs("Drops or skips for", ("reason", "meaning"), facts.reasons.items()), "")
    if facts.reads:
        say(screen, ", ".join(facts.reads), head="reads:")
    if facts.page:
        say(screen, facts.page, head="docs: ")


def pairs(title: str, heads: tuple[str, str], rows: Iterable[tuple[str | Text, str]]) -> TerminalTable:
    from gristmill.pipeline.tables import TerminalTable

    return TerminalTable.of(title, heads, ((name, plain(meaning)) for name, meaning in rows), words=2)


def plain(words: str) -> str:
    """Without the marks of code."""
    return words.replace("`", "")


COMMAND = Command(stages, START, ("stages", "stages gopher_quality", "stages ./prices.py:FewPrices"))
