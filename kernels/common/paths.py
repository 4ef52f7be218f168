"""Settings that are paths: relative to the recipe that names them, and known by what they hold, not by where it lies.

    words_path: Annotated[RecipePath, Field(description="a list of words")]

Who reads a recipe gives its folder as the validation's context (`FOLDER`); who hashes a stage gives a function from
paths to a hash of what they hold as the serialisation's (`CONTENTS`). Without either, as in a notebook, a path stays as
it is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, SerializationInfo, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from gristmill.kernels.common.settings import FOLDER

CONTENTS = "contents"


@dataclass(frozen=True)
class PathRole:
    """Marks a setting of type str as a path, relative to the recipe; what it holds counts in fingerprints."""

    words: tuple[str, ...] = ()  # that mean something else, whatever lies beside the recipe
    is_name: Callable[[str], bool] = lambda value: False  # may it name something else, where no such file is?
    files: tuple[str, ...] = ()  # of a folder, or beside a file, only these count; all of a folder unless given

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(
            self.located,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(self.hashed, info_arg=True),
        )

    def located(self, value: Any, info: ValidationInfo) -> Any:
        """The path as the recipe means it."""
        if (
            not isinstance(value, str)
            or not value
            or value in self.words
            or not isinstance(info.context, Mapping)
            or FOLDER not in info.context
        ):
            return value
        path = located(value, info.context[FOLDER])
        return value if self.is_name(value) and not Path(path).exists() else path

    def hashed(self, value: Any, info: SerializationInfo) -> Any:
        """The path, or where it is asked for a hash of what it holds."""
        if isinstance(value, list | tuple):  # of a setting that takes one path or several, pydantic asks here first
            return [self.hashed(each, info) for each in value]
        context = info.context
        if (
            not isinstance(value, str)
            or not value
            or value in self.words
            or not isinstance(context, Mapping)
            or CONTENTS not in context
        ):
            return value
        path = Path(value).expanduser()
        return {CONTENTS: context[CONTENTS](self.counting(path))} if path.exists() else value

    def counting(self, path: Path) -> list[Path]:
        """The files and folders whose contents count."""
        if not self.files:
            return [path]
        folder = path if path.is_dir() else path.parent
        more = [folder / name for name in self.files if (folder / name).is_file()]
        return more if path.is_dir() else list(dict.fromkeys([path, *more]))


RecipePath = Annotated[str, PathRole()]


def located(address: str, folder: Path) -> str:
    """An address in a file of this folder: relative to it, unless it is of another protocol or a whole path."""
    if "://" in address:
        return address
    path = Path(address)
    with contextlib.suppress(RuntimeError):  # `~name` where nobody is called so is a file's name
        path = path.expanduser()
    return str(folder / path)
