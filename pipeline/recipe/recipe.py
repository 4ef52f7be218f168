"""The recipe: YAML to typed stages, with errors that name file, line, field and a likely spelling."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from gristmill.kernels.common.settings import PLACEMENT, Bytes, Settings, did_you_mean
from gristmill.pipeline.json_types import JSON, JSONObject, StageSpec
from gristmill.pipeline.recipe import registry
from gristmill.pipeline.recipe.first_mistakes import readers_hint, source_hint, stage_hint
from gristmill.pipeline.recipe.memory_limit import check_memory
from gristmill.pipeline.recipe.published import Published
from gristmill.pipeline.recipe.yaml_lines import YAML, Place
from gristmill.pipeline.recipe.yaml_settings import YamlFile, quoted
from gristmill.stages.checks import RecipeContext
from gristmill.stages.stage import Global, Map, Reader, Sink, Stage

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
# Of a run, which what a stage writes must not fall into.
FOLDERS = ("ablations", "shuffle", "forgotten", "index", "journal", "partitions", "logs", "shards", "stages", "summary")
A_NAME = "letters, digits, '-', '_' and '.', at most 100 and the first a letter or digit,"


class Parts(Settings):
    """How inputs are cut into parts. Changes files on disk, never which documents survive."""

    max_bytes: Annotated[
        Bytes,
        Field(
            gt=0,
            description="files larger than this are split where their format allows; small files are grouped up to it",
        ),
    ] = 256 << 20
    small_file: Annotated[Bytes, Field(ge=0, description="files below this size are grouped into one part")] = 4 << 20
    files: Annotated[
        int | None,
        Field(
            ge=1,
            description=(
                "how many small files one part holds, on average; 1 gives every file its own part. By default 64, and up "
                "to 1,024 where they are smaller than 64 kB"
            ),
        ),
    ] = None
    batch_bytes: Annotated[Bytes, Field(gt=0, description="how much is worked on at once")] = 32 << 20


class Rejects(Settings):
    """What is kept of documents that were dropped."""

    keep: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description=(
                "share of dropped documents that is kept for inspection, by hash of uid; counts are always whole"
            ),
        ),
    ] = 1.0
    text: Annotated[bool, Field(description="keep their text too")] = True


class Prices(Settings):
    """What work costs, for the report; it changes no result. A machine that is paid by the hour has prices of hours,
    one of your own that of energy."""

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$", description="of the prices below")] = "USD"
    core_hour: Annotated[float, Field(ge=0, allow_inf_nan=False, description="of a worker at work, on one core")] = 0.0
    gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False, description="of a worker at work on a GPU")] = 0.0
    kilowatt_hour: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="of energy, where the machine has a meter")
    ] = 0.0
    thousand_puts: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="of requests to s3:// that write, copy or list")
    ] = 0.0
    thousand_gets: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="of requests to s3:// and to crawls that read")
    ] = 0.0
    gigabyte_in: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="of bytes that come from object stores and crawls")
    ] = 0.0

    def of_seconds(self, seconds: float, gpu: bool) -> float:
        """Of a worker at work."""
        return seconds / 3600 * (self.gpu_hour if gpu else self.core_hour)

    def of_bytes(self, size: int) -> float:
        return size / 1e9 * self.gigabyte_in

    def of_requests(self, sent: Mapping[str, float]) -> float:
        """Requests by kind: those that write or list, and those that read."""
        puts, gets = (sum(sent.get(kind, 0) for kind in kinds) for kinds in (("PUT", "LIST"), ("GET", "HEAD")))
        return (puts * self.thousand_puts + gets * self.thousand_gets) / 1000


class RecipeHead(Settings):
    """The fields of a recipe that are not stages."""

    name: Annotated[str, Field(description="of the run, and of its folder")]
    out: Annotated[str | None, Field(description="where the run goes; out/NAME unless given")] = None
    description: Annotated[str | None, Field(description="for the report and the dataset card")] = None
    parts: Annotated[Parts, Field(description="how much one task reads")] = Parts()
    rejects: Annotated[Rejects, Field(description="how many dropped documents are kept to look at")] = Rejects()
    keep: Annotated[
        Literal["all", "signals", "nothing"],
        Field(
            description=(
                "intermediates that stay when the run has ended; signals: numbers, for `tune` and the report, and no "
                "texts; nothing: rules decide at once, and no text is written before it has passed them"
            )
        ),
    ] = "all"
    workers: Annotated[
        int | Literal["auto"], Field(description="processes; auto: one a core", json_schema_extra=PLACEMENT)
    ] = "auto"
    memory: Annotated[str, Field(description="memory limit of a worker", json_schema_extra=PLACEMENT)] = "auto"
    prices: Annotated[
        Prices | None, Field(description="what work costs, for the report", json_schema_extra=PLACEMENT)
    ] = None
    published: Annotated[
        Published | None,
        Field(description="what its publisher reports of this pipeline, for the report", json_schema_extra=PLACEMENT),
    ] = None

    @field_validator("workers")
    @classmethod
    def some_workers(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and workers < 1:
            raise ValueError(f"1 or more, or auto, was expected, not {workers}")
        return workers

    @field_validator("memory")
    @classmethod
    def a_size(cls, memory: str) -> str:
        check_memory(memory)
        return memory


@dataclass(frozen=True)
class Step:
    """A stage in a recipe, with the name that found it."""

    stage: Stage
    address: str
    folder: Path
    line: int
    at_once: bool = False  # nothing is kept of what comes before it: rules drop where they stand, and no segment is cut
    inserted_for: str = ""  # the stage that needs what it measures; empty for a stage that the recipe names

    @property
    def called(self) -> str:
        return self.stage.called

    @property
    def needs(self) -> tuple[str, ...]:
        """Columns that it looks at; of a Map none means that nobody knows, and that it is shown all."""
        if isinstance(self.stage, Map):
            return self.stage.needs
        return self.stage.wants if isinstance(self.stage, Global) else ()

    @cached_property
    def spec(self) -> StageSpec:
        return registry.spec_of(self.stage, self.address, self.folder)

    @property
    def file(self) -> Path | None:
        """The file with the code of a user's own stage."""
        path, colon, _ = self.address.rpartition(":")
        return self.folder / path if colon and path.endswith(".py") else None


@dataclass(frozen=True)
class Source:
    """A named input, with stages of its own and the shared stage at which it joins."""

    name: str
    reader: Step
    steps: tuple[Step, ...]
    join: str | None
    line: int


@dataclass(frozen=True)
class Recipe:
    """A whole recipe, checked."""

    path: Path
    head: RecipeHead
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """Those of single sources too."""
        return (*self.steps, *(step for source in self.sources for step in source.steps))

    @property
    def name(self) -> str:
        return self.head.name

    def out(self, given: str | None = None) -> str:
        """Where a run goes: to the folder that is given, else that of the recipe, else out/NAME beside the recipe."""
        if given:
            return given.rstrip("/") or given
        folder = self.path.resolve().parent
        if self.head.out:
            return self.head.out if "://" in self.head.out else str(folder / Path(self.head.out).expanduser())
        return str(folder / "out" / self.name)

    def resolved(self) -> JSONObject:
        """The recipe with every default written out."""
        return {
            **self.head.model_dump(mode="json"),
            "sources": {
                s.name: {
                    s.reader.address: s.reader.stage.model_dump(mode="json", exclude_none=True),
                    "stages": [{x.address: x.stage.model_dump(mode="json")} for x in s.steps],
                    "join": s.join,
                }
                for s in self.sources
            },
            "stages": [{x.address: x.stage.model_dump(mode="json")} for x in self.steps],
        }


class _Reader(YamlFile):
    """Reads one recipe; keeps where it is, so that any complaint can say so."""

    def step(self, data: YAML, place: Place) -> Step:
        """One item of a list of stages: `name`, or `name: {settings}`."""
        address: str | int
        if isinstance(data, str):
            address, settings = data, None
        elif isinstance(data, dict) and len(data) == 1:
            address, settings = next(iter(data.items()))
        else:
            raise self.wrong(
                place, f"a stage was expected (`name` or `name: {{settings}}`), not {quoted(data)}{stage_hint(data)}"
            )
        kind = self.stage_class(str(address), (*place, address) if isinstance(data, dict) else place)
        stage = self.settings(kind, settings, (*place, address) if isinstance(data, dict) else place)
        return Step(stage, str(address), self.folder, self.lines.get(place, 1))

    def stage_class(self, address: str, place: Place) -> type[Stage]:
        try:
            kind = registry.find(address, self.folder)
        except LookupError as error:
            raise self.wrong(place, str(error)) from error
        if inspect.isabstract(kind):
            raise self.wrong(place, f"{kind.__name__} leaves {', '.join(sorted(kind.__abstractmethods__))} unwritten")
        return kind

    def list_of_steps(self, data: YAML, place: Place) -> tuple[Step, ...]:
        if data is None:
            return ()
        if not isinstance(data, list):
            example = quoted(str(next(iter(data)))) if isinstance(data, dict) and data else "exact_dedup"
            raise self.wrong(place, f"a list of stages was expected, each behind a dash: `- {example.strip(chr(39))}`")
        return tuple(step for i, item in enumerate(data) for step in self.noted(self.working_step, item, (*place, i)))

    def working_step(self, item: YAML, place: Place) -> Step:
        step = self.step(item, place)
        if isinstance(step.stage, Reader):
            raise self.wrong(place, f"{step.called} reads files; it belongs under sources")
        return step

    def elsewhere(self, kind: type[Settings], field: str) -> list[str]:
        if not issubclass(kind, Stage):
            return []
        alike = [
            (name, other)
            for name, other in registry.built_in().items()
            if issubclass(other, Reader) == issubclass(kind, Reader)
        ]
        return [name for name, other in alike if field in other.model_fields]

    def source(self, name: str | int, data: YAML) -> list[Source]:
        """One, or none where the reader is wrong, which is noted."""
        place: Place = ("sources", name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise self.wrong(place, f"{A_NAME} were expected in a source's name")
        misplaced = source_hint(name, data)
        if misplaced or not isinstance(data, dict):
            raise self.wrong(place, misplaced)
        readers = [key for key in data if key not in ("stages", "join")]
        if len(readers) != 1:
            raise self.wrong(
                place, f"one reader was expected, not {', '.join(map(str, readers)) or 'none'}{readers_hint(readers)}"
            )
        reader = self.noted(self.reader, readers[0], data[readers[0]], place)
        steps = self.list_of_steps(data.get("stages"), (*place, "stages"))
        join = data.get("join")
        if join is not None and not isinstance(join, str):
            raise self.wrong((*place, "join"), "the name of a stage was expected")
        return [Source(name, step, steps, join, self.lines[place]) for step in reader]

    def reader(self, address: str | int, settings: YAML, place: Place) -> Step:
        step = self.step({address: settings}, place)
        if not isinstance(step.stage, Reader):
            raise self.wrong((*place, address), f"{address} does not read files{readers_hint([address])}")
        return replace(step, line=self.lines.get((*place, address, "path"), step.line))

    def recipe(self) -> Recipe:
        if not isinstance(self.data, dict):
            raise self.wrong((), "a recipe is a mapping with name, sources and stages")
        data = self.data
        heads = self.noted(self.head, data)
        sources = tuple(self.sources(data))
        steps = tuple(
            step for taken in self.noted(self.list_of_steps, data.get("stages"), ("stages",)) for step in taken
        )
        self.say_all()
        self.check_names(sources, steps)
        self.check_published(heads[0], sources, steps)
        names = [step.called for step in steps]
        for i, step in enumerate(steps if all(s.join in (None, *names) for s in sources) else ()):
            place = ("stages", i, step.address)
            context = context_of(i, sources, steps)
            for complaint in step.stage.check_recipe(context):
                self.complain((*place, *complaint.place), complaint.text)
        self.say_all()
        return Recipe(self.path, heads[0], sources, steps)

    def head(self, data: dict[str | int, YAML]) -> RecipeHead:
        """The fields that are not stages."""
        rest: YAML = {k: v for k, v in data.items() if k not in ("sources", "stages")}
        head: RecipeHead = self.settings(RecipeHead, rest, (), also=("sources", "stages"))
        if not NAME.fullmatch(head.name):
            raise self.wrong(("name",), f"{A_NAME} were expected, not {head.name!r}")
        return head

    def sources(self, data: dict[str | int, YAML]) -> Iterator[Source]:
        by_name = data.get("sources")
        if isinstance(by_name, dict) and by_name:
            for name, settings in by_name.items():
                for sources in self.noted(self.source, name, settings):
                    yield from sources
        elif "sources" in data or not self.found:  # else it may be what was misspelt
            given = "" if not by_name else f", not {quoted(by_name)}"
            self.complain(
                ("sources",),
                f"at least one source was expected, such as `crawl: {{warc: {{path: crawl/*.warc.gz}}}}`{given}",
            )

    def check_names(self, sources: tuple[Source, ...], steps: tuple[Step, ...]) -> None:
        """Every source and stage leaves a folder and a report of its own, so no two may share a name."""
        seen: dict[str, int] = {}
        for name, line in (
            [(s.name, s.line) for s in sources]
            + [(x.called, x.line) for s in sources for x in s.steps]
            + [(x.called, x.line) for x in steps]
        ):
            if name in seen:
                self.found.append(
                    f"{self.path}:{line}: {name} is the name of something on line {seen[name]} already; "
                    f"give one of them a name of its own (`name: other_{name}`)"
                )
            seen.setdefault(name, line)
        for step in (*steps, *(x for s in sources for x in s.steps)):
            if isinstance(step.stage, Sink) and step.called in FOLDERS:
                self.found.append(
                    f"{self.path}:{step.line}: {step.called} is a folder that each run has for itself; "
                    "give another `name`"
                )
        names = [step.called for step in steps]
        for source in sources:
            if source.join is not None and source.join not in names:
                what = f"no shared stage is called {source.join}; {did_you_mean(source.join, names)}"
                self.complain(("sources", source.name, "join"), what)

    def check_published(self, head: RecipeHead, sources: tuple[Source, ...], steps: tuple[Step, ...]) -> None:
        """A figure of a stage that is not there would be compared with nothing."""
        names = [step.called for step in (*(x for s in sources for x in s.steps), *steps)]
        for name in head.published.steps if head.published else ():
            if name not in names:
                what = f"no stage is called {name}; {did_you_mean(name, names)}"
                self.complain(("published", "steps", name), what)


def context_of(place: int, sources: Sequence[Source], steps: Sequence[Step]) -> RecipeContext:
    """What the shared stage at `place` may know of the recipe."""
    names, later = [step.called for step in steps], steps[place + 1 :]
    arriving = [s.name for s in sources if s.join is None or names.index(s.join) <= place]
    unknown = any(isinstance(step.stage, Map) and not step.needs and not isinstance(step.stage, Sink) for step in later)
    wanted = None if unknown else frozenset(name for step in later for name in step.needs)
    return RecipeContext(tuple(s.name for s in sources), tuple(arriving), wanted)


def load(path: str | os.PathLike[str], text: str | None = None) -> Recipe:
    """A checked recipe from a YAML file; RecipeError says all that is wrong, and where. `text`: what the file would
    hold, of one that is not on a disk."""
    return _Reader(Path(path), text).recipe()


def schema() -> JSONObject:
    """JSON schema of recipes, for editors."""
    readers: list[JSON] = []
    steps: list[JSON] = []
    definitions: JSONObject = {}
    for name, kind in sorted(registry.built_in().items()):
        described = kind.model_json_schema(ref_template="#/$defs/{model}")
        definitions |= described.pop("$defs", {})
        definitions[name] = described
        by_name: JSONObject = {
            "type": "object",
            "properties": {name: {"anyOf": [{"$ref": f"#/$defs/{name}"}, {"type": "null"}]}},
            "required": [name],
        }
        if issubclass(kind, Reader):
            readers.append(by_name)
        else:
            steps += [{**by_name, "additionalProperties": False}, {"const": name}]
    outside = {"type": "object", "propertyNames": {"pattern": r"\.py:\w+$"}, "minProperties": 1, "maxProperties": 1}
    head = RecipeHead.model_json_schema(ref_template="#/$defs/{model}")
    definitions |= head.pop("$defs", {})
    stage_list = {"type": "array", "items": {"anyOf": [*steps, outside]}}
    own = {"properties": {"stages": stage_list, "join": {"type": "string"}}}
    source = {"allOf": [{"anyOf": readers}, own]}
    properties = head["properties"] | {
        "sources": {"type": "object", "additionalProperties": source, "minProperties": 1},
        "stages": stage_list,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Gristmill recipe",
        "type": "object",
        "properties": properties,
        "required": ["name", "sources"],
        "patternProperties": {"^(x-|[.])": {}},
        "additionalProperties": False,
        "$defs": definitions,
    }
