"""Fingerprints: the hash of everything that can change an output.

For a stage: its settings (less those marked as placement), the code of its module and of every module of ours that it
imports, and the versions of the packages these import. Found by reading the source, so that nothing has to be declared
and forgotten. For the engine: the modules that decide what a task of each kind makes (`ENGINE`). Code is hashed as it
runs: comments, docstrings and formatting do not count, so that an upgrade which only rewords redoes nothing.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gristmill.stages as stages
from gristmill.kernels.base.compiled import cache_folder
from gristmill.kernels.base.files import write_whole
from gristmill.pipeline.json_types import StageSpec
from gristmill.stages.paths import CONTENTS
from gristmill.stages.stage import Reader, Stage

OURS = tuple(f"gristmill.{floor}" for floor in ("kernels", "mixing", "shards", "trainer", "classifiers", "stages"))
ENGINE_ROOT = "gristmill.pipeline"
LAYOUT_VERSION = "2"
NO_RESULT = (
    "gristmill",
    "gristmill.stages",
    "gristmill.stages.local_flow",
    "gristmill.stages.frames",
)  # lists of names; what no run goes by

DATA = ("models", "taxonomies")  # folders beside modules, of files that decide results
UTF_8 = ("utf-8", "surrogatepass")
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# The engine's modules that decide results, by kind of task. A test holds these lists against what the modules of each
# kind import.
_DOCUMENTS = (
    "gristmill.kernels.base.columns",
    "gristmill.pipeline.store.counts",
    "gristmill.pipeline.store.parts",
    "gristmill.pipeline.store.rejects",
    "gristmill.pipeline.store.writing",
)
_ABLATION = ("gristmill.pipeline.ablate.work",)
ENGINE: dict[str, tuple[str, ...]] = {
    "leg": ("gristmill.pipeline.leg.leg", "gristmill.stages.read.markup", *_DOCUMENTS),
    "sink": ("gristmill.pipeline.plan.sink_columns",),  # of a leg that has one
    "rules": (
        "gristmill.pipeline.leg.rules",
        "gristmill.pipeline.leg.leg",
        "gristmill.stages.read.markup",
        *_DOCUMENTS,
    ),
    "flow": (
        "gristmill.pipeline.run.flow",
        "gristmill.pipeline.run.cuts",
        "gristmill.pipeline.flow.rows",
        "gristmill.pipeline.flow.saved",
        "gristmill.pipeline.flow.rounds",
        "gristmill.pipeline.flow.verdicts",
        *_DOCUMENTS,
    ),
    "pages": ("gristmill.pipeline.leg.side_by_side", "gristmill.pipeline.store.parts"),  # for the report
    "training": ("gristmill.pipeline.ablate.feeding", *_ABLATION),
    "measuring": ("gristmill.pipeline.ablate.evaluation", "gristmill.pipeline.judging.tables", *_ABLATION),
}


def digest(data: Any) -> str:
    """A short stable hash of plain data; refuses what has no stable form."""
    return hashlib.sha256(
        json.dumps(data, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=True).encode()
    ).hexdigest()[:32]


def of_stage(stage: Stage, spec: StageSpec) -> str:
    """The fingerprint of a stage by itself, without its inputs."""
    placement = {
        name
        for name, field in type(stage).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("placement")
    }
    if isinstance(stage, Reader):
        # Files count by their path below the source's root and their contents, wherever that root lies.
        placement.add("path")
    settings = stage.model_dump(
        mode="json", exclude=placement, context={CONTENTS: lambda paths: [hash_below(path) for path in paths]}
    )
    if isinstance(spec["code"], str):
        code = {"outside": code_in(spec["code"]).hash, **code_of_source(spec["code"]), **spec.get("helpers", {})}
    else:
        code = code_of_class(type(stage).__module__)
    for module in stage.code_beside:
        code = code | code_of_class(module)
    for name in [
        name
        for name, value in settings.items()
        if names_files(type(stage), name) and isinstance(value, str | list) and value
    ]:
        paths = [settings[name]] if isinstance(settings[name], str) else list(settings[name])
        if all(isinstance(path, str) and Path(path).exists() for path in paths):
            settings[name] = {
                CONTENTS: [hash_below(Path(path)) for path in paths]
            }  # what they hold counts, not where they lie
    return digest([LAYOUT_VERSION, type(stage).__qualname__, stage.called, settings, code])


def names_files(kind: type[Stage], setting: str) -> bool:
    """Is a setting of a user's stage, without the type `RecipePath`, a path all the same, by its name?"""
    return not is_below(kind.__module__, ("gristmill.stages",)) and setting.endswith(("_file", "_files", "_path"))


def hash_below(path: Path) -> str:
    """Of a file's contents, or of all files of a folder."""
    if not path.is_dir():
        return file_hash(str(path), *stamp(path))
    return digest(
        {str(p.relative_to(path)): file_hash(str(p), *stamp(p)) for p in sorted(path.rglob("*")) if p.is_file()}
    )


def stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns


@cache
def file_hash(path: str, size: int, changed: int) -> str:
    """The hash of a file; while size and stamp stay the same it is not read again."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def code_of_engine(kind: str) -> dict[str, str]:
    """Hashes of the modules that decide what a task of a kind makes, besides its stages. What else these import of the
    floors below is part of every stage's code (`gristmill.stages.stage`, and what that imports)."""
    return {name: code_in(_source_named(name)).hash for name in ENGINE[kind]}


def code_of_class(module: str) -> dict[str, str]:
    """Of the module of a stage: ours, or of an installed package, of which the version counts and all modules that it
    imports."""
    if is_below(module, OURS):
        return code_of_module(module)
    package = module.split(".")[0]
    return version_of(package) | (code_of_module(module, (*OURS, package)) if source_of(module) is not None else {})


@cache
def code_of_module(name: str, roots: tuple[str, ...] = OURS) -> dict[str, str]:
    """Hash of a module and of all below it in `roots`, packages or single modules, and versions of the other packages
    they use."""
    _source_named(name)
    hashes: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        source = source_of(module) if is_below(module, (*roots, name)) else None
        if source is None:
            hashes |= version_of(module.split(".")[0])
            continue
        hashes[module] = code_in(source).hash
        hashes |= models_of(module, source)
        waiting += imported_names(source, module)
    return dict(sorted(hashes.items()))


def is_below(module: str, roots: tuple[str, ...]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)


def _source_named(name: str) -> str:
    """Of a module that must be there: a wrong name would silently leave its code out."""
    source = source_of(name)
    if source is None:
        raise LookupError(f"{name}: no such module, so no fingerprint of its code")
    return source


@dataclass(frozen=True)
class Code:
    """A source as fingerprints see it: a hash of its code, and its imports, wherever in it they stand."""

    hash: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]  # level, module, names (none of `import module`)


@cache
def code_in(source: str) -> Code:
    """Comments, docstrings and formatting are no part of it. What is known of a source is kept beside the compiled
    kernels: a run reads some 140 modules, which takes more than half a second."""
    path = cache_folder() / "code" / f"{hashlib.sha256(version_of_reading() + source.encode(*UTF_8)).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # not there, or torn
        known = json.loads(path.read_bytes())
        imports = [(int(level), str(name), tuple(map(str, names))) for level, name, names in known["imports"]]
        return Code(str(known["hash"]), tuple(imports))
    code = code_of_tree(ast.parse(source))
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps({"hash": code.hash, "imports": code.imports}).encode(), durable=False)
    return code


@cache
def version_of_reading() -> bytes:
    """Another Python or another edition of this file may find another hash for the same source."""
    return f"{platform.python_version()} ".encode() + Path(__file__).read_bytes()


def code_of_tree(tree: ast.Module) -> Code:
    imports: list[tuple[int, str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.level, node.module or "", tuple(alias.name for alias in node.names)))
        elif isinstance(node, WITH_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return Code(hashlib.sha256(ast.unparse(tree).encode(*UTF_8)).hexdigest(), tuple(imports))


def models_of(module: str, source: str) -> dict[str, str]:
    """Hash of each file in the folder `models` or `taxonomies` beside a module that names it: trained or written anew
    it gives other results."""
    path = file_of(module)
    beside = [file for name in DATA for file in sorted((path.parent / name).glob("*"))] if path is not None else []
    return {f"{module}: {file.name}": hash_below(file) for file in beside if file.is_file() and file.name in source}


def code_of_source(source: str) -> dict[str, str]:
    """Of what a file of the user's imports."""
    hashes: dict[str, str] = {}
    for name in imported_names(source, ""):
        ours = is_below(name, (*OURS, ENGINE_ROOT)) and source_of(name) is not None
        hashes |= code_of_module(name, (*OURS, ENGINE_ROOT)) if ours else version_of(name.split(".")[0])
    return dict(sorted(hashes.items()))


def is_presentation(module: str) -> bool:
    """Does a module only show results? Stages have such beside them, named `figures`."""
    return module == "gristmill.stages.formatting" or (
        is_below(module, ("gristmill.stages",)) and module.endswith(".figures")
    )


@cache
def source_of(module: str) -> str | None:
    """The source of a module in Python, None where there is none."""
    path = None if module in NO_RESULT or is_presentation(module) else file_of(module)
    return path.read_text(encoding="utf-8") if path is not None else None


@cache
def file_of(module: str) -> Path | None:
    """Where a module lies. It is not imported: importing what a stage uses (torch, say) takes seconds."""
    names = module.split(".")
    top, rest = (".".join(names[:2]), names[2:]) if names[0] == "gristmill" else (names[0], names[1:])
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not rest and spec.origin is not None and spec.origin.endswith(".py"):
        return Path(spec.origin)
    for folder in spec.submodule_search_locations or []:
        for path in (Path(folder, *rest).with_suffix(".py"), Path(folder, *rest, "__init__.py")):
            if path.is_file():
                return path
    return None


def imported_names(source: str, module: str) -> list[str]:
    """Modules that a module imports, by their full names."""
    file = file_of(module) if module else None
    package = module if file is not None and file.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for level, base, taken in code_in(source).imports:
        if level:
            base = ".".join([*package.split(".")[: len(package.split(".")) - level + 1], *([base] if base else [])])
        names.add(base)
        if base == "gristmill.stages":
            homes = stages.HOMES | stages.BASES
            names |= {homes[name] for name in taken if name in homes}
        if base.split(".")[0] in (*OURS, "pipeline", package.split(".")[0]):
            names |= {f"{base}.{name}" for name in taken if file_of(f"{base}.{name}") is not None}
    return sorted(names - {""})


OTHERWISE_NAMED = {"sklearn": "scikit-learn", "yaml": "PyYAML"}  # modules that stages import


@cache
def version_of(module: str) -> dict[str, str]:
    """The version of the package that a top-level module comes from; the standard library goes by Python's version."""
    if module in sys.stdlib_module_names:
        return {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    if module == "gristmill":  # its code itself counts
        return {}
    # Most packages are named as their module; to list all takes half a second.
    for package in (module, OTHERWISE_NAMED.get(module)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if package is not None:
                return {package: importlib.metadata.version(package)}
    return {package: importlib.metadata.version(package) for package in _distributions().get(module, [])}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
