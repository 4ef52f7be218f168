"""Fingerprints: the hash of everything that can change an output.

For a stage: its settings (less those marked as placement), the code of its module and of every module that it imports
from Gristmill or from its own folder, and the versions of the other packages these import. Found by reading the source,
so that nothing has to be declared and forgotten; a stage of ours declares only what its settings never call
(`Stage.unreached`). For the engine: the modules that decide what a task of each kind makes (`ENGINE`). Code is hashed
as it runs: comments, docstrings and formatting do not count, so that an upgrade which only rewords redoes nothing.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

import gristmill.stages as stages
from gristmill.kernels.base.code_cache import cache_folder
from gristmill.kernels.common.files import write_whole
from gristmill.kernels.common.paths import CONTENTS
from gristmill.pipeline.json_types import StageSpec
from gristmill.pipeline.store.storage import digest
from gristmill.stages.stage import Reader, Stage

PRODUCT = "gristmill"
OURS = tuple(f"gristmill.{floor}" for floor in ("kernels", "mixing", "shards", "trainer", "classifiers", "stages"))
LAYOUT_VERSION = "2"
# Packages that import a name when it is first used, with the module where each name lives. Who takes names from one
# hangs on those modules; who imports the package itself, on all that it has.
LAZY: Mapping[str, Mapping[str, str]] = {
    "gristmill": sys.modules[PRODUCT].HOMES | {"stages": "gristmill.stages"},
    "gristmill.stages": stages.HOMES | stages.BASES,
}
# Stages as functions on tables: runs do not use them, but a user's stage may call another stage that way.
ON_TABLES = ("gristmill.stages.local_flow", "gristmill.stages.frames")
VERSION = "version "  # begins the entry of a package; that of a module is a hash
NAMES_A_MODULE = re.compile(r"(gristmill(?:\.\w+)+)(?::\w+)?")

DATA = ("models", "taxonomies")  # folders beside modules, of files that decide results
UTF_8 = ("utf-8", "surrogatepass")
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# The engine's modules that decide results, by kind of task. A test holds these lists against what the modules of each
# kind import.
_DOCUMENTS = (
    "gristmill.kernels.base.columns",
    "gristmill.pipeline.store.counts",
    "gristmill.pipeline.store.partitions",
)
_ABLATION = ("gristmill.pipeline.ablate.work", "gristmill.pipeline.train.work")
ENGINE: dict[str, tuple[str, ...]] = {
    "map": (
        "gristmill.pipeline.tasks.map_task",
        "gristmill.pipeline.tasks.bound_rule",
        "gristmill.pipeline.tasks.isolation",
        "gristmill.stages.read.payload",
        *_DOCUMENTS,
    ),
    "sink": ("gristmill.pipeline.tasks.rewrites",),  # of a segment that has one
    "shuffle": (
        "gristmill.pipeline.shuffle.shuffle",
        "gristmill.pipeline.shuffle.spill",
        "gristmill.pipeline.shuffle.saved_index",
        "gristmill.pipeline.shuffle.verdicts",
        *_DOCUMENTS,
    ),
    "training": ("gristmill.pipeline.train.feeding", *_ABLATION),
    "measuring": (
        "gristmill.pipeline.train.evaluation",
        "gristmill.pipeline.inputs.columns",
        "gristmill.stages.read.columns",
        *_ABLATION,
    ),
}


@dataclass(frozen=True)
class Identity:
    """A stage by itself, without its inputs."""

    called: str
    settings: str
    code: Mapping[str, str]  # modules and files with their hashes, packages with their versions

    @property
    def fingerprint(self) -> str:
        return digest([self.settings, dict(self.code)])


def identity_of(stage: Stage, spec: StageSpec, file: Path | None = None, pdf: bool = True) -> Identity:
    """`file` has the code of a user's own stage; `pdf`: PDF files may come to the stage."""
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
        code = code_of_file(spec["code"], file)
    else:
        code = code_of_class(type(stage).__module__, frozenset(stage.unreached(pdf)))
    for module in stage.code_beside:
        code = code | code_of_class(module)
    return Identity(stage.called, digest([LAYOUT_VERSION, type(stage).__qualname__, stage.called, settings]), code)


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


def code_of_class(module: str, unreached: frozenset[str] = frozenset()) -> dict[str, str]:
    """Hashes and versions of a stage's module and its imports, less the `unreached` ones. An installed package counts
    by its version and by all modules that it imports."""
    if is_below(module, OURS):
        return code_of_module(module, OURS, unreached)
    package = module.split(".")[0]
    if (folder := folder_without_version(package)) is not None:
        return code_of_users(files_of_module(module, folder), folder)
    return version_of(package) | (code_of_module(module, (PRODUCT, package)) if source_of(module) is not None else {})


@cache
def code_of_module(name: str, roots: tuple[str, ...] = OURS, unreached: frozenset[str] = frozenset()) -> dict[str, str]:
    """Hash of a module and of all that it imports in `roots`, packages or single modules, and versions of the other
    packages they use; less modules and packages that are `unreached`."""
    _source_named(name)
    hashes: dict[str, str] = {}
    seen = set(unreached)
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        if module != name and (is_presentation(module) or (module in ON_TABLES and PRODUCT not in roots)):
            continue
        source = source_of(module) if is_below(module, (*roots, name)) else None
        if source is None:
            if module.split(".")[0] not in unreached:
                hashes |= version_of(module.split(".")[0])
            continue
        hashes[module] = code_in(source).hash
        hashes |= models_of(module, source)
        # Below the engine only the words of an error ask a lazy package for all that it has.
        names = imported_names(source, package_of(module), everything=not is_below(module, OURS))
        # Other libraries' tables come from the user's own code, which imports them.
        waiting += [other for other in names if module not in ON_TABLES or is_below(other, (PRODUCT,))]
    return dict(sorted(hashes.items()))


def code_of_file(source: str, file: Path | None) -> dict[str, str]:
    """Of a user's file: see `code_of_users`."""
    if file is None:
        return code_of_users([UsersFile("outside", "", source)], None)
    return code_of_users([UsersFile(file.name, "", source)], file.resolve().parent)


class UsersFile(NamedTuple):
    """A source outside Gristmill and outside packages with versions."""

    name: str
    package: str  # that its relative imports start from
    source: str


def code_of_users(files: Iterable[UsersFile], folder: Path | None) -> dict[str, str]:
    """Hashes of a user's files and of the modules that they import, at any depth, from their folder or from elsewhere
    without a version; and of all that these import from Gristmill, and versions of packages."""
    hashes: dict[str, str] = {}
    waiting = [*files]
    while waiting:
        file = waiting.pop()
        if file.name in hashes:
            continue
        try:
            hashes[file.name] = code_in(file.source).hash
            names = imported_names(file.source, file.package, everything=True)
        except (SyntaxError, ValueError):  # the import itself will report it
            hashes[file.name] = hashlib.sha256(file.source.encode(*UTF_8)).hexdigest()
            continue
        for module in names:
            if is_below(module, (PRODUCT,)):
                hashes |= code_of_module(module, (PRODUCT,)) if source_of(module) is not None else {}
                continue
            elsewhere = folder_without_version(module.split(".")[0])
            if folder is not None:
                waiting += files_of_module(module, folder)
            if elsewhere is not None and elsewhere != folder:
                waiting += files_of_module(module, elsewhere, "elsewhere: ")
            if elsewhere is None:
                hashes |= version_of(module.split(".")[0])
    return dict(sorted(hashes.items()))


def files_of_module(name: str, folder: Path, label: str = "") -> list[UsersFile]:
    """The files that importing a dotted name runs, of those in a folder."""
    steps = name.split(".")
    found = []
    for end in range(1, len(steps) + 1):
        place = folder.joinpath(*steps[:end])
        for file, package in (
            (place / "__init__.py", steps[:end]),
            (place.with_name(f"{place.name}.py"), steps[: end - 1]),
        ):
            if file.is_file():
                called = f"{label}{file.relative_to(folder).as_posix()}"
                found.append(UsersFile(called, ".".join(package), file.read_text(encoding="utf-8", errors="replace")))
    return found


def folder_without_version(package: str) -> Path | None:
    """The folder of a top-level module that no version identifies: it belongs to no installed package, or to an
    editable one. None for all others."""
    spec = spec_of_top(package)
    if spec is None or package == PRODUCT or package in sys.stdlib_module_names:
        return None
    if is_released(package):
        return None
    if spec.origin is not None and spec.origin.endswith(".py") and not spec.submodule_search_locations:
        return Path(spec.origin).resolve().parent
    return next((Path(folder).resolve().parent for folder in spec.submodule_search_locations or []), None)


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
    """A module of ours that a string names counts as imported: tables of what is imported later hold such strings."""
    imports: list[tuple[int, str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                imports += [(0, alias.name, ()) for alias in names]
                # `import gristmill.shards` gives the name `gristmill`, which has all else too.
                imports += [
                    (0, PRODUCT, ()) for alias in names if alias.name.startswith(f"{PRODUCT}.") and not alias.asname
                ]
            case ast.ImportFrom(module, names, level):
                imports.append((level, module or "", tuple(alias.name for alias in names)))
            case ast.Constant(str(text)) if match := NAMES_A_MODULE.fullmatch(text):
                imports.append((0, match[1], ()))
            case ast.Call(ast.Attribute(_, called) | ast.Name(called), [ast.Constant(str(text)), *_]):
                imports += [(0, text.lstrip("."), ())] if called in ("import_module", "__import__") else []
        if isinstance(node, WITH_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return Code(hashlib.sha256(ast.unparse(tree).encode(*UTF_8)).hexdigest(), tuple(imports))


def models_of(module: str, source: str) -> dict[str, str]:
    """Hash of each file in the folder `models` or `taxonomies` beside a module that names it: trained or written anew
    it gives other results."""
    path = file_of(module)
    beside = [file for name in DATA for file in sorted((path.parent / name).glob("*"))] if path is not None else []
    return {f"{module}: {file.name}": hash_below(file) for file in beside if file.is_file() and file.name in source}


def is_presentation(module: str) -> bool:
    """Does a module only show results? Stages have such beside them, named `figures`."""
    return module == "gristmill.stages.formatting" or (
        is_below(module, ("gristmill.stages",)) and module.endswith(".figures")
    )


@cache
def source_of(module: str) -> str | None:
    """The source of a module in Python, None where there is none, and for lists of names."""
    path = None if module in LAZY else file_of(module)
    return path.read_text(encoding="utf-8") if path is not None else None


@cache
def file_of(module: str) -> Path | None:
    """Where a module lies. It is not imported: importing what a stage uses (torch, say) takes seconds."""
    names = module.split(".")
    top, rest = (".".join(names[:2]), names[2:]) if names[0] == PRODUCT else (names[0], names[1:])
    spec = spec_of_top(top)
    if spec is None:
        return None
    if not rest and spec.origin is not None and spec.origin.endswith(".py"):
        return Path(spec.origin)
    for folder in spec.submodule_search_locations or []:
        place = "/".join([folder, *rest])
        for path in (Path(f"{place}.py"), Path(f"{place}/__init__.py")):
            if path.is_file():
                return path
    return None


def package_of(module: str) -> str:
    """The package that the relative imports of a module start from."""
    return module if is_package(module) else module.rpartition(".")[0]


@cache
def is_package(module: str) -> bool:
    file = file_of(module)
    return file is not None and file.name == "__init__.py"


@cache
def imported_names(source: str, package: str, everything: bool) -> tuple[str, ...]:
    """Modules that a source in a package imports, by their full names, and what it takes from modules of others.
    `everything`: of a lazy package that is imported as a whole, all that it has."""
    names: set[str] = set()
    for level, base, taken in code_in(source).imports:
        if level:
            base = ".".join([*package.split(".")[: len(package.split(".")) - level + 1], *([base] if base else [])])
        if is_below(base, (PRODUCT,)):
            names |= modules_behind(base, taken, everything)
        else:
            names |= {base, *(f"{base}.{name}" for name in taken)}
    return tuple(sorted(names - {""}))


def modules_behind(module: str, taken: Iterable[str], everything: bool) -> set[str]:
    """A module of ours, and those in which the names live that are taken from it; no names, or `*`: all of them."""
    homes, names = LAZY.get(module, {}), set(taken)
    if homes and (not names or "*" in names):
        names = set(homes) if everything else set()
    found = {module}
    for name in names:
        if (home := homes.get(name)) is not None:
            found |= modules_behind(home, (), everything)
        elif file_of(f"{module}.{name}") is not None:
            found.add(f"{module}.{name}")
    return found


OTHERWISE_NAMED = {"sklearn": "scikit-learn", "yaml": "PyYAML"}  # modules that stages import


@cache
def version_of(module: str) -> dict[str, str]:
    """The version of the package that a top-level module comes from; the standard library goes by Python's version."""
    if module in sys.stdlib_module_names:
        return {"python": f"{VERSION}{sys.version_info.major}.{sys.version_info.minor}"}
    if module == PRODUCT:  # its code itself counts
        return {}
    return {package: f"{VERSION}{installed_version(package)}" for package in packages_of(module)}


@cache
def installed_version(package: str) -> str:
    return importlib.metadata.version(package)


@cache
def packages_of(module: str) -> tuple[str, ...]:
    """The installed packages that a top-level module comes from."""
    # Most packages are named as their module; to list all takes half a second.
    for package in (module, OTHERWISE_NAMED.get(module)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if package is not None:
                installed_version(package)
                return (package,)
    return () if spec_of_top(module) is None else tuple(_distributions().get(module, ()))


@cache
def is_released(module: str) -> bool:
    """Do the versions of its packages identify the code of a top-level module?"""
    urls = [importlib.metadata.distribution(package).read_text("direct_url.json") for package in packages_of(module)]
    return bool(urls) and not any(json.loads(url).get("dir_info", {}).get("editable") for url in urls if url)


def spec_of_top(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):  # `__main__`, or what imports no more
        return None


@cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


# --- why something runs again -----------------------------------------------------------------------------------------

# By name: packages with their versions, modules, files and the settings of stages with a short hash.
MadeOf = dict[str, str]
SETTINGS = "settings of "
SHOWN = 3  # names of each kind
ELSEWHERE = "what the recipe keeps or needs of it"  # part of the fingerprint that has no entry of its own


def made_of(stages: Iterable[Identity], kinds: Iterable[str]) -> MadeOf:
    """Of the stages of a node, and of the engine for its kinds of tasks."""
    entries = {SETTINGS + stage.called: stage.settings for stage in stages}
    for code in (*(stage.code for stage in stages), *(code_of_engine(kind) for kind in kinds)):
        entries |= code
    return {name: entry if is_version(entry) else entry[:8] for name, entry in sorted(entries.items())}


def is_version(entry: str) -> bool:
    return entry.startswith(VERSION)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The differences in one line: settings, packages with both versions, files of code."""
    settings: list[str] = []
    packages: list[str] = []
    code: list[str] = []
    moved: list[str] = []  # files that one side has alone
    for name in sorted(name for name in {*before, *now} if before.get(name) != now.get(name)):
        then, since = before.get(name, ""), now.get(name, "")
        if name.startswith(SETTINGS):
            stage = name.removeprefix(SETTINGS)
            settings.append(name if then and since else f"{stage} is {'new' if since else 'gone'}")
        elif is_version(then or since):
            old, new = (entry.removeprefix(VERSION) or "not installed" for entry in (then, since))
            packages.append(f"{name} {old} -> {new}")
        else:
            (code if then and since else moved).append(file_called(name))
    code = code if settings or packages or code else moved
    groups = [shown(settings, "stages"), shown(packages, "packages"), shown(code, "files of code")]
    return f"changed: {', '.join(group for group in groups if group) or ELSEWHERE}"


def file_called(name: str) -> str:
    """A module by its file below the product's folder, as a user finds it; files of the user by their names."""
    module, _, data = name.partition(": ")
    path = file_of(module) if module.startswith(f"{PRODUCT}.") else None
    if data or path is None:
        return data or name
    folders = module.split(".")[1:]
    return "/".join([*folders, "__init__.py"] if path.name == "__init__.py" else [*folders[:-1], path.name])


def shown(names: list[str], kind: str) -> str:
    more = len(names) - SHOWN
    return ", ".join(names if more <= 1 else [*names[:SHOWN], f"{more:,} more {kind}"])
