"""What an input knows of its documents beside their text, as signals: marks of another tool, counts, labels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from stages.documents import BASE, PAGE
from stages.stage import Annotate


def _named(given: Any) -> Any:
    """`[score]` is `{score: score}`."""
    return {name: name for name in given} if isinstance(given, list | tuple) else given


SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Fields = Annotated[dict[SignalName, str], BeforeValidator(_named)]


class FromMeta(Annotate):
    """Make signals of what lies in `meta`: the columns and fields of the input that are not its text, url, date or id.

    Numbers may be written as text ("0.7"); true is 1 and false 0. What is not there, or no number where one is asked for, is null: `keep_where` drops such a document, `threshold`
    takes it for the worst.
    """

    numbers: Annotated[
        Fields,
        Field(
            description="signals and the fields that they are read from, `{edu: quality.edu_score}`; or a list of fields that keep their names"
        ),
    ] = {}  # noqa: RUF012  # pydantic copies it
    texts: Annotated[Fields, Field(description="the same for labels, such as `language`")] = {}  # noqa: RUF012

    needs: ClassVar[tuple[str, ...]] = ("meta",)

    @model_validator(mode="after")
    def _names_signals(self) -> Self:
        if not self.added:
            raise ValueError("give numbers, texts or both")
        taken = {*BASE.names, *PAGE.names}
        for name in self.added:
            if name in taken:
                raise ValueError(f"{name} is a column of every document; give the signal another name: {{its_name: {name}}}")
        if twice := set(self.numbers) & set(self.texts):
            raise ValueError(f"{', '.join(sorted(twice))}: a number and a text of one name")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return (*self.numbers, *self.texts)

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        known = [json.loads(meta) if meta else {} for meta in batch.column("meta").to_pylist()]
        numbers = {name: pa.array([number(found) for found in each(known, path)], pa.float64()) for name, path in self.numbers.items()}
        texts = {name: pa.array([text(found) for found in each(known, path)], pa.string()) for name, path in self.texts.items()}
        return numbers | texts


def each(known: Iterable[Any], path: str) -> Iterable[Any]:
    """What stands at a path, dots leading into objects; a field whose own name has the dots comes first."""
    steps = path.split(".")
    for found in known:
        if isinstance(found, dict) and path in found:
            yield found[path]
            continue
        for step in steps:
            found = found.get(step) if isinstance(found, dict) else None
        yield found


def number(found: Any) -> float | None:
    if isinstance(found, str):
        found = found.strip() if found.isascii() and "_" not in found else None  # Python reads 1_000 and other scripts' digits
    try:
        value = float(found)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def text(found: Any) -> str | None:
    return found if isinstance(found, str) else json.dumps(found) if isinstance(found, bool | int | float) else None
