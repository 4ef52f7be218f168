"""How a setting of a stage is shown to matter: a stage, what it is given, and for each setting another value that gives
another outcome."""

from __future__ import annotations

import inspect
import io
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from gristmill import stages
from gristmill.stages.one_of import choices_in
from gristmill.stages.stage import Global, Map, Origin, Reader, Sink, Stage
from tests.stages.scattered import Scattered

Values = dict[str, Any]


class Lab:
    """A folder for the files that settings name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, name: str, text: str | bytes) -> str:
        """The address of a file, which is written when it is first asked for."""
        path = self.folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    def filled(self, values: Mapping[str, Any]) -> Values:
        """Settings whose values may be functions of the lab."""
        return {name: self.value(value) for name, value in values.items()}

    def value(self, value: Any) -> Any:
        return self.filled(value) if isinstance(value, dict) else value(self) if inspect.isfunction(value) else value


@dataclass(frozen=True)
class Change:
    """Another value of a setting. `base` are settings of both sides, `along` those that must change with it. `refuses`:
    the words of the error that the other value ends in."""

    value: Any
    base: Values = field(default_factory=dict)
    along: Values = field(default_factory=dict)
    given: Any = None
    see: Callable[[Lab, Stage, Any], Any] | None = None
    refuses: str = ""


def to(
    value: Any, *, given: Any = None, see: Any = None, refuses: str = "", along: Values | None = None, **base: Any
) -> Change:
    return Change(value, base, along or {}, given, see, refuses)


@dataclass(frozen=True)
class Elsewhere:
    """The test that shows it, where that takes more than a stage and a table: `tests/FILE.py::NAME`."""

    test: str


@dataclass(frozen=True)
class Subject:
    """What a stage is given, the settings that it cannot do without, and the changes. `see`: how its outcome is looked
    at."""

    stage: str
    changes: Mapping[str, Change | Elsewhere]
    given: Any = None
    base: Values = field(default_factory=dict)
    see: Callable[[Lab, Stage, Any], Any] | None = None

    @property
    def kind(self) -> type[Stage]:
        found: type[Stage] = getattr(stages, self.stage)
        return found

    def both(self, lab: Lab, name: str, change: Change) -> tuple[Stage, Stage]:
        """The stage as it is, and with the other value."""
        base = self.base | change.base
        other = with_value(base, name, change.value) | change.along
        return self.kind(**lab.filled(base)), self.kind(**lab.filled(other))

    def look(self, lab: Lab, stage: Stage, change: Change) -> Any:
        """A stage's outcome."""
        given = self.given if change.given is None else change.given
        return (change.see or self.see or outcome)(lab, stage, given(lab) if inspect.isfunction(given) else given)


def with_value(base: Values, name: str, value: Any) -> Values:
    """A dotted name is that of a field of a setting that is a table, or of the tables in its list."""
    top, _, inner = name.partition(".")
    if not inner:
        return base | {top: value}
    before = base.get(top, {})
    several = isinstance(before, list | tuple)
    return base | {
        top: [with_value(one, inner, value) for one in before] if several else with_value(before, inner, value)
    }


def outcome(lab: Lab, stage: Stage, given: Any) -> Any:
    """All that a stage makes of what it is given, in no order that hangs on chance."""
    if isinstance(stage, Reader):
        return readings(stage, *given)
    if isinstance(stage, Sink):
        batch = stage.table(batch_of(given))
        return batch.schema.names, batch.to_pylist()
    if isinstance(stage, Global):
        return flowed(stage, given, 1)[0]
    assert isinstance(stage, Map)
    done = stage.apply(batch_of(given))
    reasons = [(done.verdict.every_reason(row), done.verdict.details.get(row)) for row in range(len(done.verdict))]
    return done.batch.schema.names, done.batch.to_pylist(), reasons


def flowed(
    stage: Global, given: pa.Table, seed: int, before: Callable[[Scattered], None] | None = None
) -> tuple[Values, Scattered]:
    """A global stage's outcome, less what it tells the report (which may be its settings again), and the flow that it
    ran in."""
    flow = Scattered(seed)
    if before is not None:
        before(flow)
    flow.named = pa.table({})
    after = stage.run(flow.parts(given), flow)
    made = {
        "after": in_order(*(table for _, table in after.tables)),
        "gone": sorted(flow.gone),
        "named": in_order(flow.named),
        "published": {path: table.to_pylist() for path, table in flow.published.items()},
        "left": flow.left,
        "saved": {address: (in_order(rows.table()), facts) for address, (rows, facts) in flow.saved.items()},
    }
    return made, flow


def in_order(*tables: pa.Table | None) -> list[str]:
    return sorted(
        json.dumps(row, default=repr, sort_keys=True)
        for table in tables
        if table is not None
        for row in table.to_pylist()
    )


def batch_of(given: Any) -> pa.RecordBatch:
    table = given if isinstance(given, pa.Table) else pa.table(given)
    return table.combine_chunks().to_batches()[0]


def readings(reader: Reader, data: bytes, path: str) -> Any:
    found = list(reader.read(io.BytesIO(data), Origin("a", path, len(data))))
    rows = [row for reading in found for row in reading.documents.to_pylist()]
    return rows, [reading.skipped for reading in found], [len(reading.damaged) for reading in found]


def settings_of(kind: type[Stage]) -> Iterator[str]:
    """The names of all settings of a stage; of those that are tables (or lists of tables) those of the table too, and
    of one of several kinds those of every kind."""
    choices = choices_in(kind)
    for name, info in kind.model_fields.items():
        yield name
        if name in choices:
            yield from (
                f"{name}.{one}.{inner}" for one, model in choices[name][1].items() for inner in model.model_fields
            )
            continue
        for model in models_in(info.annotation):
            if not issubclass(kind, model):  # a stage's own fields again are shown as the stage's
                yield from (f"{name}.{inner}" for inner in model.model_fields)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for inner in typing.get_args(annotation) for model in models_in(inner)]
