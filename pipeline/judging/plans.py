"""Plans of `judge train` and `judge rate`: YAML to checked settings. Errors name file, line, field, likely spelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from gristmill.kernels.common.settings import FOLDER, Settings
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.json_types import Also
from gristmill.pipeline.recipe.yaml_settings import YamlFile, dotted
from gristmill.stages.paths import RecipePath, located

P = TypeVar("P", bound=Settings)
Where = Callable[..., str]  # a place in a plan, in words: where("labelled", "files")


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _words_from(value: Any) -> Any:
    """Whole numbers are labels too."""
    values = value if isinstance(value, list | tuple) else [value]
    return [str(each) if type(each) is int else each for each in values]


Paths = Annotated[tuple[RecipePath, ...], BeforeValidator(_one_or_many), Field(min_length=1), Also("string")]
Word = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value), Also("integer")]
Words = Annotated[tuple[Word, ...], BeforeValidator(_words_from), Also("string"), Also("integer")]


@dataclass(frozen=True)
class LoadedPlan(Generic[P]):
    """A plan and where it is written: in a file, to which its paths are relative, or in options."""

    plan: P
    file: YamlFile | None = None

    def where(self, *place: str | int) -> str:
        return str(self.wrong(place, "")).removesuffix(": ")

    def wrong(self, place: tuple[str | int, ...], what: str) -> RecipeError:
        if self.file is not None:
            return self.file.wrong(place, what)
        return RecipeError(f"{in_words(*place)}{': ' if place else ''}{what}")

    def out(self, asked: str | None, out: str | None) -> str:
        """The folder that --out or the plan names."""
        if asked or out:
            return asked or located(out or "", self.file.folder if self.file else Path())
        raise self.wrong((), "`out` is missing: the folder for what comes of it (or give --out)")


def load(path: Path, kind: type[P], example: str) -> LoadedPlan[P]:
    if not path.exists():
        raise RecipeError(f"{path}: no such plan; {example} is one to copy")
    file = YamlFile(path)
    if not isinstance(file.data, dict):
        raise file.wrong((), f"a plan is a mapping of settings, as in {example}")
    return LoadedPlan(file.settings(kind, file.data, ()), file)


def of_options(facts: Mapping[str, Any], kind: type[P]) -> LoadedPlan[P]:
    """The same from options; paths are relative to the current folder."""
    try:
        return LoadedPlan(kind.model_validate(facts, context={FOLDER: Path()}))
    except ValidationError as error:
        said = {"missing": "is missing", "extra_forbidden": "there is no such setting here"}
        complaints = (
            (in_words(*each["loc"]), said.get(each["type"], each["msg"].removeprefix("Value error, ")))
            for each in error.errors(include_url=False)
        )
        raise RecipeError("\n".join(f"{place}{': ' if place else ''}{what}" for place, what in complaints)) from error


def in_words(*place: str | int) -> str:
    """A place in a plan that stands in no file."""
    return dotted(place)
