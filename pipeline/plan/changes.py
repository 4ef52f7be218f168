"""Why a node of the plan has to run again: its stages' settings, code and packages, now and when it last ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gristmill.pipeline import fingerprint
from gristmill.pipeline.errors import RecipeError

# By name: packages with their versions, modules, files and the settings of stages with a short hash.
MadeOf = dict[str, str]
SETTINGS = "settings of "
SHOWN = 3  # names of each kind
ELSEWHERE = "what the recipe keeps or needs of it"  # part of the fingerprint that has no entry of its own


def made_of(stages: Iterable[fingerprint.Identity], kinds: Iterable[str]) -> MadeOf:
    """Of the stages of a node, and of the engine for its kinds of tasks."""
    entries = {SETTINGS + stage.called: stage.settings for stage in stages}
    for code in (*(stage.code for stage in stages), *(fingerprint.code_of_engine(kind) for kind in kinds)):
        entries |= code
    return {name: entry if is_version(entry) else entry[:8] for name, entry in sorted(entries.items())}


def made_before(manifest: Mapping[str, Any], path: str) -> MadeOf:
    """What a node was made of when its manifest was written."""
    if "made_of" not in manifest:
        raise RecipeError(f"{path} is of another version of Gristmill; give the run a new folder (--out)")
    made: MadeOf = manifest["made_of"]
    return made


def is_version(entry: str) -> bool:
    return entry.startswith(fingerprint.VERSION)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The differences in one line: settings, packages with both versions, files of code."""
    both = [name for name in now if name in before and now[name] != before[name]]
    one_side = sorted(before.keys() ^ now.keys())
    settings = [f"settings of {name}" for name in names_of(both, SETTINGS)]
    settings += [f"{name} is {'new' if SETTINGS + name in now else 'gone'}" for name in names_of(one_side, SETTINGS)]
    packages = [
        f"{name} {version_in(before, name)} -> {version_in(now, name)}"
        for name in sorted({*both, *one_side})
        if is_version(before.get(name, "") or now.get(name, ""))
    ]
    code = [file_called(name) for name in both if not is_version(now[name]) and not name.startswith(SETTINGS)]
    if not (settings or packages or code):  # a file moved, say
        code = [file_called(name) for name in one_side]
    groups = [shown(settings, "stages"), shown(packages, "packages"), shown(code, "files of code")]
    return f"changed: {', '.join(group for group in groups if group) or ELSEWHERE}"


def names_of(entries: Iterable[str], kind: str) -> list[str]:
    return [name.removeprefix(kind) for name in entries if name.startswith(kind)]


def version_in(made: Mapping[str, str], package: str) -> str:
    return made[package].removeprefix(fingerprint.VERSION) if package in made else "not installed"


def file_called(name: str) -> str:
    """A module by its file below the product's folder, as a user finds it; files of the user by their names."""
    module, _, data = name.partition(": ")
    path = fingerprint.file_of(module) if module.startswith(f"{fingerprint.PRODUCT}.") else None
    if data or path is None:
        return data or name
    folders = module.split(".")[1:]
    return "/".join([*folders, "__init__.py"] if path.name == "__init__.py" else [*folders[:-1], path.name])


def shown(names: list[str], kind: str) -> str:
    more = len(names) - SHOWN
    return ", ".join(names if more <= 1 else [*names[:SHOWN], f"{more:,} more {kind}"])
