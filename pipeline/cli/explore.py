"""The command that opens a run in a browser: `gristmill explore`."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Annotated

import typer

from gristmill.kernels.common.extras import install
from gristmill.pipeline.cli.command import LOOK, Command
from gristmill.pipeline.errors import RecipeError, RunFailed
from gristmill.pipeline.screen import console, escape


def explore(
    out: Annotated[
        str,
        typer.Argument(help="the output folder of a run: finished, running or failed", show_default=False),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port")] = 0,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="address to listen on; beyond this machine, anyone with the token can read the run"
        ),
    ] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="print the address without opening a browser")] = False,
) -> None:
    """Search and read documents of a run in a browser.

    Documents and rejects, with signals, history, and each page beside its text. Read-only.
    """
    check_folder(out)

    needs_server()
    from gristmill.pipeline.explore.app import Explorer
    from gristmill.pipeline.explore.server import LOOPBACK, Server

    try:
        server = Server(host, port, Explorer(out))
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise RunFailed(f"cannot listen on {host}, port {port}: {reason}") from error
    screen = console(stderr=True)
    with contextlib.suppress(KeyboardInterrupt), server:
        if host not in LOOPBACK:
            screen.print(
                f"[yellow]{escape(host)} is open to other machines: anyone with this address can read the run,"
                " and traffic is not encrypted[/yellow]",
                soft_wrap=True,
            )
        console().print(f"explore: {escape(server.address)}", soft_wrap=True)
        screen.print("Press Ctrl-C to stop", style="dim")
        if not no_open:
            import webbrowser

            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        server.wait()


def needs_server() -> None:
    from importlib.util import find_spec

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise RecipeError(f"explore needs Starlette and uvicorn: {install('explore')}")


def check_folder(out: str) -> None:
    """A folder in which something was run, or may be soon."""
    if "://" not in out and not Path(out).is_dir():
        raise RecipeError(f"{out}: no such folder; explore wants the output folder of a run")
    from gristmill.pipeline.store.storage import Store

    store = Store(out)
    if not any(store.exists(path) for path in ("run.json", "journal", "partitions", "stages", "logs", ".lock")):
        raise RecipeError(f"{out}: no run is here (there is no run.json, and nothing of a run that has begun)")


COMMAND = Command(explore, LOOK, ("explore out/mine",))
