"""Finding a stage by the name a recipe gives it: ours, an installed package's (entry points), or a class in the user's
own file.

A stage travels to workers as plain data (name, settings, and the source text of a file of the user's), never as a
pickle.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import importlib.metadata
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import gristmill.stages as stages
from gristmill.kernels.base.code_cache import cache_folder
from gristmill.pipeline.errors import STAGE_ERRORS, RunFailed, in_words
from gristmill.pipeline.json_types import StageSpec
from gristmill.stages.checks import OF_LICENSES
from gristmill.stages.stage import CannotRun, Global, Stage, snake_case

ENTRY_POINTS = "gristmill.stages"
OUTSIDE = "gristmill_outside_"  # modules made of a user's own files
SOURCE = "__gristmill_source__"  # in such a module, the text that it was made of
OF_A_KIND = re.compile(r"_(filter|reader|writer|formatter|extractor)$")
# What DataTrove, NeMo Curator and others call what a stage does.
ELSEWHERE = {
    "language_filter": "keep_languages", "language_identification": "keep_languages", "lid": "keep_languages",
    "fast_text_lang_id": "keep_languages", "url_filter": "url_rules", "trafilatura": "extract", "ftfy": "repair",
    "ftfy_formatter": "repair", "unicode_reformatter": "repair", "pii": "personal_data",
    "pii_formatter": "personal_data", "pii_modifier": "personal_data", "minhash": "minhash_dedup",
    "fuzzy_dedup": "minhash_dedup", "near_dedup": "minhash_dedup", "dedup": "exact_dedup", "sampler_filter": "sample",
    "fast_text_classifier_filter": "judge", "fast_text_quality_filter": "judge", "sentence_dedup": "paragraph_dedup",
    "parquet_writer": "write", "jsonl_writer": "write", "tokenizer": "tokenize", "ipc_reader": "arrow",
}  # fmt: skip
ALONE = (
    "a stage's file goes to the workers alone: what it imports must be installed, or lie on PYTHONPATH for each of them"
)


@cache
def names() -> Mapping[str, str]:
    """Recipe name to class name of every stage that comes with the mill; imports none of them."""
    return {snake_case(name): name for name in stages.HOMES}


@cache
def built_in() -> Mapping[str, type[Stage]]:
    """Recipe name to class, all imported."""
    return {name: getattr(stages, class_name) for name, class_name in names().items()}


@cache
def adds(signal: str) -> type[Stage] | None:
    """The stage of the mill that adds a signal. To import all of them takes a second, so those that measure texts are
    asked first."""
    likely = sorted(names().values(), key=lambda name: (name != "TextSignals", ".text." not in stages.HOMES[name]))
    kinds: Iterator[type[Stage]] = (getattr(stages, name) for name in likely)
    return next((kind for kind in kinds if signal in kind.adds), None)


def adds_beside(stage: Stage, signal: str) -> type[Stage] | None:
    """The stage in the file of a user's own stage that adds a signal."""
    kind = type(stage)
    own = vars(sys.modules[kind.__module__]).values() if kind.__module__.startswith(OUTSIDE) else ()
    return next((k for k in own if isinstance(k, type) and issubclass(k, Stage) and signal in k.adds), None)


def likely_signal(signal: str, configured: Iterable[type[Stage]]) -> str | None:
    """A near spelling, of what stages of the mill or of a recipe add."""
    if signal in OF_LICENSES:
        return OF_LICENSES[signal]
    kinds = {*configured, *(getattr(stages, name) for name in names().values())}
    near = difflib.get_close_matches(signal, sorted({name for kind in kinds for name in kind.adds}), n=1)
    return near[0] if near else None


def comes_with_the_mill(kind: type[Stage]) -> bool:
    name = names().get(kind.recipe_name())
    return name is not None and kind is getattr(stages, name)


@cache
def installed() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def find(name: str, folder: Path | None = None) -> type[Stage]:
    """The class behind a name; LookupError says what was looked for and what is near."""
    if ".py:" in name:
        path, _, class_name = name.rpartition(":")
        file = (folder or Path()) / path
        if not file.is_file():
            raise LookupError(f"{file}: no such file")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise LookupError(f"{file}: cannot be read: {error}") from error
        return class_from_source(file.name, text, class_name)
    if name in names():
        built_in_kind: type[Stage] = getattr(stages, names()[name])
        return built_in_kind
    if name in installed():
        kind = installed()[name].load()
        if not (isinstance(kind, type) and issubclass(kind, Stage)):
            raise LookupError(f"entry point {name!r} is no stage")
        return kind
    near = likely(name)
    raise LookupError(
        f"no such stage {name!r}; {f'did you mean {near}?' if near else '`gristmill stages` lists all there are'}"
    )


def likely(name: str) -> str:
    """The stage that was probably meant: by what others call it, else by its spelling; empty if none is like it."""
    plain = snake_case(name)
    if plain in ELSEWHERE:
        return ELSEWHERE[plain]
    bare = OF_A_KIND.sub("", plain)  # GopherQualityFilter is gopher_quality
    for spelling in (bare, name):
        if near := difflib.get_close_matches(spelling, [*names(), *installed()], n=1):
            return near[0]
    return ""


@cache
def class_from_source(file_name: str, text: str, class_name: str) -> type[Stage]:
    """A stage from a file outside the tree: the recipe's owner names it, as with any script that one runs."""
    module_name = f"{OUTSIDE}{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if module_name not in sys.modules:
        module = types.ModuleType(module_name)
        module.__file__ = file_name
        module.__dict__[SOURCE] = text
        sys.modules[module_name] = module  # pydantic looks the module up while the class is made
        try:
            exec(compile(text, file_name, "exec"), module.__dict__)
        except STAGE_ERRORS as error:  # a script that ends itself on import is no stage either
            del sys.modules[module_name]
            hint = f" ({ALONE})" if isinstance(error, ModuleNotFoundError) else ""
            raise LookupError(f"{file_name} does not import: {type(error).__name__}: {error}{hint}") from error
    kind = getattr(sys.modules[module_name], class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Stage)):
        raise LookupError(f"{file_name} has no stage named {class_name}")
    return kind


def named(stage: Stage) -> str:
    """A stage in error messages: as the recipe calls it, with the file and class of a user's own."""
    kind = type(stage)
    if not kind.__module__.startswith(OUTSIDE):
        return stage.called
    return f"{stage.called} ({sys.modules[kind.__module__].__file__}:{kind.__name__})"


def prepare(stage: Stage) -> None:
    """Let a stage do what is worth doing once on a machine; no document is to blame if it cannot."""
    try:
        stage.prepare()
    except STAGE_ERRORS as error:
        message = str(error) if isinstance(error, CannotRun) else f"prepare() failed: {type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = str(error.filename or cache_folder())  # a write that fails names no file
            message = f"{in_words(error, where)} (GRISTMILL_CACHE names another folder for compiled code)"
        raise RunFailed(f"{named(stage)}: {message}") from error


def spec_of(stage: Stage, address: str, folder: Path | None = None) -> StageSpec:
    """A stage as plain data; the code of a user's own is what its class was made of, whatever has become of the file
    since."""
    spec: StageSpec = {"stage": address, "settings": stage.model_dump(mode="json"), "code": None}
    if ".py:" not in address:
        return spec
    file = (folder or Path()) / address.rpartition(":")[0]
    code: str | None = getattr(sys.modules[type(stage).__module__], SOURCE, None)
    if code is None:  # a class that the file imports and does not make
        code = file.read_text(encoding="utf-8")
    spec["code"] = code
    return spec


def build(spec: StageSpec) -> Stage:
    """The stage that a spec describes."""
    name = spec["stage"]
    if spec["code"] is not None:
        path, _, class_name = name.rpartition(":")
        return class_from_source(Path(path).name, spec["code"], class_name)(**spec["settings"])
    return find(name)(**spec["settings"])


def round_method(stage: Global, function: Callable[..., object]) -> str:
    """The name under which a worker finds the method of a round again."""
    owner = getattr(function, "__self__", None)
    if owner is not stage and not any(type(each) is type(owner) and each == owner for each in stage.round_helpers):
        raise TypeError(
            f"{named(stage)}: a round takes a method of the stage (self.something), not {function!r}: "
            "that is what can travel to a worker"
        )
    return str(getattr(function, "__name__", ""))
