"""What an input knows of its documents beside their text, as signals: marks of another tool, counts, labels."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from gristmill.stages.checks import check_signal_name
from gristmill.stages.documents import BASE, PAGE, column_of
from gristmill.stages.stage import Annotate


def _named(given: Any) -> Any:
    """`[score]` is `{score: score}`."""
    if not isinstance(given, list | tuple):
        return given
    if not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise ValueError("a list is of names, each once; `{signal: field}` gives fields other names")
    return {name: name for name in given}


SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Fields = Annotated[dict[SignalName, str], BeforeValidator(_named)]


class FromMeta(Annotate):
    """Make signals of what lies in `meta`: the columns and fields of the input that are not its text, url, date or id.

    Numbers may be written as text ("0.7"); true is 1 and false 0. What is not there, or no number where one is asked
    for, is null: `keep_where` drops such a document, `threshold` takes it for the worst. A field that no document of a
    source has sounds an alarm.
    """

    numbers: Annotated[
        Fields,
        Field(
            description=(
                "signals and the fields that they are read from, `{edu: quality.edu_score}`; or a list of "
                "fields that keep their names"
            )
        ),
    ] = {}  # noqa: RUF012  # pydantic copies it
    texts: Annotated[Fields, Field(description="the same for labels, such as `language`")] = {}  # noqa: RUF012

    needs: ClassVar[tuple[str, ...]] = ("meta",)
    expects_values: ClassVar[bool] = True

    @model_validator(mode="after")
    def _names_signals(self) -> Self:
        if not self.added:
            raise ValueError("give numbers, texts or both")
        taken = {*BASE.names, *PAGE.names}
        for name in self.added:
            check_signal_name(name)
            if name in taken:
                raise ValueError(
                    f"{name} is a column of every document; give the signal another name: {{its_name: {name}}}"
                )
        if twice := set(self.numbers) & set(self.texts):
            raise ValueError(f"{', '.join(sorted(twice))}: a number and a text of one name")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return (*self.numbers, *self.texts)

    @property
    def from_input(self) -> Mapping[str, str]:
        return self.numbers | self.texts

    @property
    def stand_in(self) -> frozenset[str]:
        """The language need not be found out twice, and an input may know what was synthetic before `rephrase`."""
        texts, numbers = {"language", "synthetic"} & self.texts.keys(), {"language_score", "synthetic"}
        return frozenset(texts | numbers & self.numbers.keys())

    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        metas = [known_of(meta) for meta in batch.column("meta").to_pylist()]
        numbers = {
            name: column_of([number(at(each, path)) for each in metas], pa.float64())
            for name, path in self.numbers.items()
        }
        texts = {
            name: column_of([text(at(each, path)) for each in metas], pa.string()) for name, path in self.texts.items()
        }
        return numbers | texts


def known_of(meta: str | None) -> Any:
    try:
        return json.loads(meta) if meta else None
    except (ValueError, RecursionError):  # no reader of ours writes such a one
        return None


def at(known: Any, path: str) -> Any:
    """What stands at a path, dots leading into objects; a name with dots in it counts as a name first, as in
    readers."""
    if not isinstance(known, Mapping):
        return None
    if known.get(path) is not None:
        return known[path]
    head, _, tail = path.partition(".")
    return at(known.get(head), tail) if tail else None


def number(value_given: Any) -> float | None:
    if isinstance(value_given, str):
        value_given = (
            value_given.strip() if value_given.isascii() and "_" not in value_given else None
        )  # Python reads 1_000 and other scripts' digits
    try:
        value = float(value_given)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def text(found: Any) -> str | None:
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found if isinstance(found, str) else json.dumps(found) if isinstance(found, bool | int | float) else None
