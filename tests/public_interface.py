"""The public interface as a list of lines: what `import gristmill` offers, stages with their settings, commands with their
options. `python -m tests.public_interface` (`make api`) writes the list and shows what changed.

Names and signatures are read from the source by griffe, so nothing is imported that a user does not import; settings and
options come from the classes and commands themselves.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

LIST = Path(__file__).with_name("public_interface.txt")


def lines() -> list[str]:
    return [*names(), *settings(), *options()]


def names() -> Iterator[str]:
    import gristmill

    for name in sorted(gristmill.HOMES):
        yield from described(f"gristmill.{name}", gristmill.HOMES[name], name)


def described(called: str, home: str, name: str) -> Iterator[str]:
    spec = importlib.util.find_spec(home)
    if spec is None or spec.origin is None:
        raise LookupError(f"{home}: no such module")
    path = Path(spec.origin)
    thing = griffe.visit(home, filepath=path, code=path.read_text(encoding="utf-8")).members[name]
    if isinstance(thing, griffe.Alias):  # imported there from elsewhere
        home, _, name = thing.target_path.rpartition(".")
        yield from described(called, home, name)
    elif thing.is_function:
        yield f"{called}{signature_of(thing)}"
    else:
        yield called
        for member, value in sorted(thing.members.items()):
            if member.startswith("_") and member not in ("__init__", "__call__", "__iter__", "__len__"):
                continue
            if not value.is_alias and value.is_function:
                yield f"{called}.{member}{signature_of(value)}"
            elif not value.is_alias and value.is_attribute:
                yield f"{called}.{member}{f': {value.annotation}' if value.annotation else ''}"


def signature_of(function: griffe.Object | griffe.Alias) -> str:
    arguments = [
        f"{argument.name}{f': {argument.annotation}' if argument.annotation else ''}"
        f"{f' = {argument.default}' if argument.default is not None else ''}"
        for argument in function.parameters
        if argument.name != "self"
    ]
    return f"({', '.join(arguments)}) -> {function.returns}"


def settings() -> Iterator[str]:
    """Of each stage, and of each reader."""
    import gristmill.stages as stages

    for name in sorted(stages.HOMES):
        kind = getattr(stages, name)
        if not hasattr(kind, "recipe_name"):
            yield f"gristmill.stages.{name}"
            continue
        yield f"stage {kind.recipe_name()} (gristmill.stages.{name})"
        for field, facts in kind.model_fields.items():
            default = "required" if facts.is_required() else repr(facts.get_default(call_default_factory=True))
            yield f"stage {kind.recipe_name()}.{field} = {default}"


def options() -> Iterator[str]:
    import typer.main

    from gristmill.pipeline.cli.app import COMMANDS, app

    top = typer.main.get_command(app)
    for path in sorted(COMMANDS):
        group, _, name = path.rpartition(" ")
        command = (top.commands[group] if group else top).commands[name]  # type: ignore[attr-defined]
        arguments = " ".join(option.name.upper() for option in command.params if option.param_type_name == "argument")
        yield f"command gristmill {path} {arguments}".rstrip()
        for option in command.params:
            if option.param_type_name == "option":
                yield f"command gristmill {path} {'/'.join([*option.opts, *option.secondary_opts])}"


def changes(now: list[str], before: list[str]) -> list[str]:
    """Lines that went, which may break somebody's work, and lines that came."""
    return [f"- {line}" for line in before if line not in set(now)] + [
        f"+ {line}" for line in now if line not in set(before)
    ]


if __name__ == "__main__":
    before = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    now = lines()
    LIST.write_text("".join(f"{line}\n" for line in now), encoding="utf-8")
    print("\n".join(changes(now, before)) or "the public interface is as it was", file=sys.stdout)
