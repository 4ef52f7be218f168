"""Plans of judges, of labelling sources, of training and of ablations: YAML or a mapping to checked settings. Errors
name file, line, field and a likely spelling, as those of recipes do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BeforeValidator, Field

from gristmill.kernels.common.paths import RecipePath, located
from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.errors import RecipeError
from gristmill.pipeline.json_types import Also
from gristmill.pipeline.recipe.yaml_lines import YAML, Place
from gristmill.pipeline.recipe.yaml_settings import SettingsSource, YamlFile

P = TypeVar("P", bound=Settings)
Where = Callable[..., str]  # a place in a plan, in words: where("labelled", "files")


def one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _words_from(value: Any) -> Any:
    """Whole numbers are labels too."""
    values = value if isinstance(value, list | tuple) else [value]
    return [str(each) if type(each) is int else each for each in values]


Paths = Annotated[tuple[RecipePath, ...], BeforeValidator(one_or_many), Field(min_length=1), Also("string")]
Word = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value), Also("integer")]
Words = Annotated[tuple[Word, ...], BeforeValidator(_words_from), Also("string"), Also("integer")]


@dataclass(frozen=True)
class LoadedPlan(Generic[P]):
    """A plan and where it is written: in a file, to which its paths are relative, or in a mapping."""

    plan: P
    source: SettingsSource

    @property
    def folder(self) -> Path:
        return self.source.folder

    def place(self, path: str) -> Path:
        return Path(located(path, self.folder))

    def where(self, *place: str | int) -> str:
        """A place in words, for a message that goes on."""
        return str(self.wrong(place, "")).removesuffix(": ")

    def wrong(self, place: Place, what: str) -> RecipeError:
        return self.source.wrong(place, what)

    def out(self, asked: str | Path | None) -> str:
        """The folder that --out or the plan names; of a plan with a name, `out/NAME` beside it."""
        if asked:
            return str(asked)
        name = getattr(self.plan, "name", None)
        folder = getattr(self.plan, "out", None) or (name and f"out/{name}")
        if not folder:
            raise self.wrong((), "`out` is missing: the folder for what comes of it (or give --out)")
        return located(folder, self.folder)


def read_plan(
    path: Path, example: str, of: str = "settings", text: str | None = None
) -> tuple[YamlFile, dict[Any, YAML]]:
    """A plan's file, or a text that stands for it, and the mapping in it; `of` what was expected."""
    if text is None and not path.exists():
        raise RecipeError(f"{path}: no such plan; {example} is one to copy")
    file = YamlFile(path, text)
    if not isinstance(file.data, dict):
        raise file.wrong((), f"a plan is a mapping of {of}, as in {example}")
    return file, file.data


def load(path: Path, kind: type[P], example: str) -> LoadedPlan[P]:
    """A plan in a file; RecipeError says where it is wrong."""
    file, data = read_plan(path, example)
    return LoadedPlan(file.settings(kind, data, ()), file)


def of_options(facts: Mapping[str, Any], kind: type[P]) -> LoadedPlan[P]:
    """The same from a mapping; paths are relative to the current folder."""
    source = SettingsSource()
    given: dict[str | int, Any] = {str(name): value for name, value in facts.items()}
    return LoadedPlan(source.settings(kind, given, ()), source)
