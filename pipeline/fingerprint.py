"""Fingerprints: the hash of everything that can change an output.

For a stage: its settings (less those marked as placement), the source of its module and of every module of ours that it imports,
and the versions of the packages these import. Found by reading the source, so that nothing has to be declared and forgotten.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stages.stage import Reader, Stage

OURS = ("kernels", "mixing", "shards", "trainer", "classifiers", "stages")
# The contract of stages is written down in types; a change of wording there changes no output by itself.
LAYOUT_VERSION = "1"


def digest(data: Any) -> str:
    """A short stable hash of plain data; refuses what has no stable form."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=True).encode()).hexdigest()[
        :32
    ]


def of_stage(stage: Stage, spec: Mapping[str, Any]) -> str:
    """The fingerprint of a stage by itself, without its inputs."""
    placement = {
        name
        for name, field in type(stage).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("placement")
    }
    if isinstance(stage, Reader):
        placement.add("path")  # files count by their path below the source's root and their contents, wherever that root lies
    settings = stage.model_dump(mode="json", exclude=placement)
    if isinstance(spec["code"], str):
        code = {"outside": hashlib.sha256(spec["code"].encode()).hexdigest(), **code_of_source(spec["code"]), **spec.get("helpers", {})}
    else:
        code = code_of_module(type(stage).__module__)
    files: dict[str, list[str]] = {}
    for name in [name for name, value in settings.items() if names_files(name) and value]:
        paths = [settings[name]] if isinstance(settings[name], str) else list(settings[name])
        if all(isinstance(path, str) and Path(path).exists() for path in paths):
            files[name] = [hash_below(Path(path)) for path in paths]
            del settings[name]  # what they hold counts, not where they lie
    return digest([LAYOUT_VERSION, type(stage).__qualname__, stage.called, settings, code, files])


def names_files(setting: str) -> bool:
    """Does a setting of this name hold the path of a file, or of several?"""
    return setting.endswith(("_file", "_files", "_path"))


def hash_below(path: Path) -> str:
    """Of a file's contents, or of all files of a folder."""
    if not path.is_dir():
        return file_hash(str(path), *stamp(path))
    return digest({str(p.relative_to(path)): file_hash(str(p), *stamp(p)) for p in sorted(path.rglob("*")) if p.is_file()})


def stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


@cache
def file_hash(path: str, size: int, changed: int) -> str:
    """The hash of a file; while size and stamp stay the same it is not read again."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def code_of_module(name: str) -> dict[str, str]:
    """Hash of a module and of all of ours below it, and versions of the packages they use."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        source = source_of(module)
        if source is None:
            found |= version_of(module)
            continue
        found[module] = hashlib.sha256(source.encode()).hexdigest()
        found |= models_of(module, source)
        waiting += [n for n in imported_names(source, module) if n not in found]
    return dict(sorted(found.items()))


def models_of(module: str, source: str) -> dict[str, str]:
    """Hash of each model in the folder `models` beside a module that names it: trained anew it gives other results."""
    path = file_of(module)
    folder = path.parent / "models" if path is not None else Path("models")
    return {f"{module}: {p.name}": hash_below(p) for p in sorted(folder.glob("*")) if p.is_file() and p.name in source}


def code_of_source(source: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in imported_names(source, ""):
        found |= code_of_module(name)
    return dict(sorted(found.items()))


@cache
def source_of(module: str) -> str | None:
    """The source of a module of ours, None for anything else."""
    if module.split(".")[0] not in OURS or module == "stages":  # `stages` itself only lists where stages are
        return None
    path = file_of(module)
    return path.read_text(encoding="utf-8") if path is not None else None


@cache
def file_of(module: str) -> Path | None:
    """Where a module of ours lies. It is looked for and not imported: importing what a stage uses (torch, say) takes seconds."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in (Path(folder, *rest).with_suffix(".py") if rest else Path(folder, "__init__.py"), Path(folder, *rest, "__init__.py")):
            if path.is_file():
                return path
    return None


def imported_names(source: str, module: str) -> list[str]:
    """Modules that a source imports anywhere in it, ours in full, others by their top name."""
    package = module.rpartition(".")[0]
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *([base] if base else [])])
            names.append(base)
            if base.split(".")[0] in OURS:
                names += [f"{base}.{alias.name}" for alias in node.names if file_of(f"{base}.{alias.name}") is not None]
    return sorted({name if name.split(".")[0] in OURS else name.split(".")[0] for name in names if name})


@cache
def version_of(module: str) -> dict[str, str]:
    """The version of the package that a top-level module comes from; the standard library goes by Python's version."""
    if module in sys.stdlib_module_names:
        return {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    if module.split(".")[0] in OURS:
        return {}
    with contextlib.suppress(
        importlib.metadata.PackageNotFoundError
    ):  # most packages are named as their module; to list all takes half a second
        return {module: importlib.metadata.version(module)}
    return {package: importlib.metadata.version(package) for package in _distributions().get(module, [])}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
