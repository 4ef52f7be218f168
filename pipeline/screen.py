"""Where commands print: standard output or standard error, 160 columns wide where it is no terminal and $COLUMNS says
nothing."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.markup import escape as without_markup

from gristmill.pipeline.formatting import plain


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() or "COLUMNS" in os.environ else 160)


def escape(text: str) -> str:
    """Text that may hold anything, for a terminal: it is no markup, and what would steer the terminal is seen and not
    done. A crawl's urls stand in errors, alarms and reasons."""
    return without_markup(plain(text))
