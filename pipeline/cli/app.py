"""The command line: `gristmill`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.pipeline import processes
from gristmill.pipeline.cli.command import JUDGES, UPKEEP, Command, Group, Page
from gristmill.pipeline.errors import GristmillError, RecipeError, in_words, of_storage, refusal
from gristmill.pipeline.screen import console, print_anything, say

# In the order of `gristmill --help`. `judge train` is `COMMAND` of the module judge_train.
COMMANDS = (
    "demo", "init", "new", "stages", "doctor",
    "run", "plan", "estimate",
    "inspect", "report", "tune", "explore",
    "export", "forget",
    "judge train", "judge score", "judge label", "judge compress", "judge rate",
    "train", "ablate",
    "maintain clean", "maintain verify", "maintain import", "maintain warm", "maintain schema",
)  # fmt: skip
GROUPS = {
    "judge": (JUDGES, "Train judges, score and label texts, rate sources."),
    "maintain": (UPKEEP, "Clean and verify a run, import, compile kernels, print schemas."),
}
# What these words once were: answered with the new ones, and not run.
OLD_NAMES = {
    "train-judge": "judge train PLAN",
    "compress-judge": "judge compress FOLDER TEXTS",
    "label": "judge label PLAN",
    "medu": "judge rate PLAN",
    "predictive": "judge train PLAN",
    "push": "export DOCUMENTS OWNER/NAME --to hub",
    "find": "inspect OUT --text PASSAGE",
    "summary": "report OUT --for eu",
    "clean": "maintain clean OUT",
    "verify": "maintain verify OUT",
    "warm": "maintain warm",
    "schema": "maintain schema",
    "import": "maintain import SOURCE DESTINATION --from TOOL",
}


class Program(Group):
    """All commands; old names are answered with the new words."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, *rest = args
        now = OLD_NAMES.get(name)
        if name == "judge" and rest and f"judge {rest[0]}" not in COMMANDS and is_path(rest[0]):
            name, now = f"judge {rest[0]}", f"judge score {rest[0]} TEXTS"
        if now is not None:
            raise RecipeError(f"gristmill {name} is now: gristmill {now}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """An interrupt (Ctrl-C, SIGTERM, SIGHUP) that a command does not answer itself ends with one line."""
        try:
            with processes.single_interrupt():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            say(console(stderr=True), "interrupted; give the same command again")
            raise SystemExit(130) from None


def is_path(word: str) -> bool:
    """Is it the folder of a judge, where a command is expected?"""
    return "/" in word or Path(word).is_dir()


def print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"gristmill {version('gristmill')}")
        raise typer.Exit


def options(
    _: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Raw crawl dumps in, packed token shards out, and a GPU run that proves the data got better."""


def program(paths: Sequence[str] = COMMANDS) -> typer.Typer:
    """The program with these commands."""
    made = typer.Typer(
        name="gristmill", cls=Program, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
    )
    made.callback()(options)
    groups = {name: typer.Typer(no_args_is_help=True, rich_markup_mode=None) for name in GROUPS}
    for path in paths:
        group, _, name = path.rpartition(" ")
        command = registration(path)
        (groups[group] if group else made).command(
            name,
            cls=Page,
            epilog="\n".join(f"gristmill {example}" for example in command.examples),
            rich_help_panel=command.panel,
        )(command.run)
    for name, (panel, about) in GROUPS.items():
        made.add_typer(groups[name], name=name, cls=Group, help=about, rich_help_panel=panel)
    return made


def registration(path: str) -> Command:
    module = path.replace(" ", "_").replace("-", "_")
    command: Command = import_module(f"gristmill.pipeline.cli.{module}").COMMAND
    return command


app = program()


def main() -> None:
    """Entry point: exit codes as documented, errors as one clear message."""
    print_anything()
    try:
        app(prog_name="gristmill")
    except GristmillError as error:
        say(console(stderr=True), str(error), "red")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        say(console(stderr=True), in_words(error), "red")
        sys.exit(1)
    except Exception as error:
        if not of_storage(error):
            raise
        say(console(stderr=True), refusal(error) or f"{error}" or type(error).__name__, "red")
        sys.exit(1)
    finally:
        processes.stop_fork_server()


def command() -> None:
    """`main` as a process of its own, without the 0.2 s that Python takes to unload modules, and with less of the
    collector: nothing of modules that are loaded is garbage, and looking for it takes a tenth of `gristmill plan`."""
    gc.set_threshold(50_000)
    code: object = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    if not isinstance(code, int | None):
        sys.exit(str(code))
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # whoever read our output may have gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    command()
