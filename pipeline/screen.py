"""Where commands print: standard output or standard error, 160 columns wide where it is no terminal and $COLUMNS says
nothing."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape as without_markup
from rich.text import Text

from gristmill.pipeline.formatting import one_line, plain

if TYPE_CHECKING:
    from rich.table import Table


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() or "COLUMNS" in os.environ else 160)


def print_anything() -> None:
    """From now on characters that the output's encoding lacks (ASCII has few) are printed as escapes; else the first
    one would end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(screen: Console, text: str, style: str = "", head: str = "") -> None:
    """A message as it is, never as markup, with its kind (`alarm`) before it: wrapped at blanks, where a terminal would
    break words. Elsewhere its lines stay whole, for whoever searches them."""
    text = plain(f"{head}  {text}" if head else text)
    if screen.is_terminal or "COLUMNS" in os.environ:
        text = "\n".join(line for paragraph in text.split("\n") for line in lines_of(paragraph, max(20, screen.width)))
    if head:
        screen.print(Text.assemble((text[: len(head)], style), text[len(head) :]), soft_wrap=True)
    else:
        screen.print(Text(text, style=style), soft_wrap=True)


def lines_of(paragraph: str, width: int) -> list[str]:
    return wrap(paragraph, width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False) or [""]


def address(out: str, name: str = "report.html") -> str:
    """Of a file in a run's folder, for a browser."""
    return f"{out.rstrip('/')}/{name}" if "://" in out else (Path(out).resolve() / name).as_uri()


def escape(text: str) -> str:
    """Text that may hold anything, for a terminal: it is no markup, and what would steer the terminal is seen and not
    done. A crawl's urls stand in errors, alarms and reasons."""
    return without_markup(plain(text))


def facts_table(lines: Iterable[tuple[str, str]]) -> Table:
    """Facts by their names, never as markup."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, fact in lines:
        table.add_row(Text(one_line(name)), Text(one_line(fact)))
    return table


@contextlib.contextmanager
def counting(what: str) -> Iterator[Callable[[int], None]]:
    """How many there are by now, on a terminal."""
    from rich.progress import Progress, TextColumn

    with Progress(
        TextColumn("{task.completed:,} {task.description}"),
        console=console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        counter = bar.add_task(what, total=None)
        yield lambda count: bar.update(counter, completed=count)
