"""The stage contract: what a stage may see and must say. Every stage, ours or yours, is one of the kinds below.

A stage is a small frozen pydantic model. Its fields are its configuration, its class name in snake case is its name in
recipes, its docstring is its documentation. Stages never see Dask, file layout or the command line; each works alone,
in a notebook, on a table of Arrow, pandas, polars or Hugging Face datasets:

    from gristmill.stages import Sample
    kept = Sample(rate=0.1)(table)
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationInfo, field_validator, model_validator

from gristmill.kernels.base.types import Array, Mask
from gristmill.kernels.common.settings import SaysInOneLine, Settings, of_a_recipe
from gristmill.stages.checks import Complaint, RecipeContext, check_signal_name, snake_case
from gristmill.stages.contract import (
    Applied,
    Bound,
    CannotRun,
    ContractBroken,
    Limit,
    Made,
    NoSuchSignal,
    Range,
    Signals,
    Verdict,
    above,
    below,
    check_answer,
    numbers_in,
    setting_at,
    signals_bounded,
    signals_of,
    who_adds,
    with_columns,
)
from gristmill.stages.documents import BASE, PAGE, Origin, Reading
from gristmill.stages.figures import Report, StageFigures, TokenCounts
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.frames import ROW, names_in
from gristmill.stages.inputs import InputAccess, InputFile, InputFiles
from gristmill.stages.local_flow import LocalDocuments, LocalFlow, NeedsRun, as_documents, documents_in
from gristmill.stages.state import State, changes, complaint, first_difference, state_of, state_of_generators

MOST = 2**31 - 1  # counts of a document are int32


class Stage(Settings, ABC, metaclass=SaysInOneLine):
    """What all kinds share: a name in recipes and in reports."""

    name: Annotated[
        str | None,
        Field(description="a name of its own, where a recipe uses the same stage twice", pattern=r"^[a-z][a-z0-9_]*$"),
    ] = None
    expect_drops: ClassVar[float] = 0.5  # an alarm sounds when more than this share of a source goes
    # Signals that it leaves on the documents that stay. An Annotate must name them all; of a global stage they are for
    # the plan, which puts in who measures what a later stage needs.
    adds: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _limits_leave_something(self, info: ValidationInfo) -> Self:
        """A lower limit `min_x` is not above `max_x`, nor above what any document has: each would drop everything
        without a word. `tune` and the report's sliders may go there."""
        names = [name for name in type(self).model_fields if name.startswith("min_")]
        for name in names if names and of_a_recipe(info) else ():
            low = getattr(self, name)
            if not isinstance(low, int | float):
                continue
            upper = f"max_{name.removeprefix('min_')}"
            high = getattr(self, upper, None)
            if isinstance(high, int | float) and low > high:
                raise ValueError(f"{name} {low:,g} is above {upper} {high:,g}: no document could pass")
            most = 1 if name.endswith("_share") else MOST
            if low > most:
                whose = "a share" if most == 1 else "any document"
                raise ValueError(f"{name} {low:,g} is above {most:,}, the most that {whose} can have")
        return self

    @classmethod
    @cache
    def recipe_name(cls) -> str:
        return snake_case(cls.__name__)

    @property
    def called(self) -> str:
        return self.name or self.recipe_name()

    @property
    def gpu(self) -> bool:
        """Is it to run where a GPU is?"""
        return False

    @property
    def gpus(self) -> int:
        """How many of a machine's GPUs one process of it uses."""
        return int(self.gpu)

    def prepare(self) -> None:
        """Work that is worth doing once on a machine, before workers start: kernels compiled, tables built. Nothing may
        rely on it. It leaves no thread and no GPU behind, for workers are forked from the process that did it."""

    @property
    def added(self) -> tuple[str, ...]:
        """The signals of `adds` that this one leaves: those that a setting `only` names, if it has one."""
        return tuple(getattr(self, "only", ())) or self.adds

    @property
    def code_beside(self) -> tuple[str, ...]:
        """Modules besides the stage's own whose code decides what it does: that of a class which a setting names."""
        return ()

    def unreached(self, pdf: bool) -> tuple[str, ...]:
        """Packages and modules that the stage's code imports somewhere and that these settings never call: versions and
        code that can change no result here. `pdf` says whether PDF files may come. What is not named counts, so a
        setting that calls more must be looked at here. Nor does what only places work, as a GPU that gives the same."""
        return ()

    # --- hooks: what the engine and the report ask of every stage; none changes a result ------------------------------

    def check_recipe(self, context: RecipeContext) -> list[Complaint]:
        """What is wrong with a shared stage in its recipe, before any work; settings themselves are checked by
        validators."""
        return []

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        """What a terminal and report.html show of the stage, from its report.json; None where there is nothing. A
        report may come from an earlier version, or from a run that failed."""
        return None

    @classmethod
    def token_counts(cls, report: Report) -> TokenCounts | None:
        """Tokens of each source after this stage, from its report.json, of a stage that counts them."""
        return None

    @property
    def scored_signals(self) -> tuple[str, ...]:
        """Signals whose values the run samples for `figures`: `report["scores"]` shows how they are distributed."""
        return ()

    def model_card(self) -> dict[str, Any] | None:
        """What is known of the model behind `scored_signals`, for the report."""
        return None


class Map(Stage):
    """A stage that sees one batch at a time. Its result for a document never depends on the documents beside it."""

    needs: ClassVar[tuple[str, ...]] = ()  # columns it reads; empty says that nobody knows, and it is shown all
    rewrites: ClassVar[bool] = False  # may change texts
    costly: ClassVar[bool] = False  # worth a boundary before it, so that it never runs for a changed threshold
    # seconds for one batch; past that the worker is given up and the document looked for
    patience: ClassVar[float] = 900.0

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> Applied: ...

    def alarms(self, source: str, documents: int, noted: Mapping[str, int]) -> list[str]:
        """What a run is to be loud about, by what it noted (`Applied.noted`) on all documents of a source."""
        return []

    def place(self, what: str, text: str) -> tuple[int, int] | None:
        """Where in a text a signal that it adds, or a reason for which it drops, shows itself first: from and to, in
        characters. Samples of rejects show that place. None where there is no one place."""
        return None

    def remembered(self) -> State | None:
        """What it may remember from one document to the next; None of a stage that comes with Gristmill."""
        if type(self).__module__.startswith("gristmill."):
            return None
        return {**state_of(self), **state_of_generators()}

    def fresh(self) -> Self:
        """The stage as it is before its first document."""
        return type(self)(**self.model_dump(mode="json"))

    def checked(self, batch: pa.RecordBatch) -> Applied:
        """The stage's answer on a batch; one that breaks the contract raises. A run does the same under crash isolation
        (`answers_of`)."""
        before = self.remembered()
        applied = self.apply(batch)
        check_answer(batch, applied, self.rewrites)
        if before is not None:
            self.check_memory(before, batch, applied)
        return applied

    def check_memory(self, before: State, batch: pa.RecordBatch, applied: Applied) -> None:
        """Where the stage has changed over the batch, a fresh one must give the same answer on the documents in
        reverse: else it remembers more than a cache."""
        changed = changes(before, self.remembered() or {})
        if changed:
            reverse = batch.take(pa.array(np.arange(len(batch))[::-1]))
            backward = self.fresh().apply(reverse)
            check_answer(reverse, backward, self.rewrites)
            if (row := first_difference(applied, backward)) is not None:
                raise ContractBroken(self.on_memory(complaint(changed, batch, row)))

    def on_memory(self, complaint: str) -> str:
        """What is said of a stage that remembers, with what to do about it."""
        return f"{complaint}; what needs more than one document is a global stage"

    def __call__(self, data: Any) -> Any:
        """Run the stage on a table (`as_arrow`), without an engine: kept rows come back, in the same kind of table."""
        table, back = documents_in(data, with_uids="uid" in self.needs)
        if isinstance(data, list | tuple) and not data:  # of no row, which says what columns there are
            return back(table)
        batches = table.combine_chunks().to_batches()
        if not batches:  # an empty table has no batch, but still a schema to change
            batches = [pa.RecordBatch.from_pylist([], schema=table.schema)]
        out = []
        for batch in batches:
            columns = {name: batch.column(name) for name in batch.schema.names if name == ROW}
            done = self._checked_for_caller(batch.drop_columns([*columns]))
            kept, whole = done.verdict.kept, with_columns(done.batch, columns)
            if done.made is None:
                out.append(whole.filter(pa.array(kept)))
            else:
                origins = {name: values.take(pa.array(done.made.rows)) for name, values in columns.items()}
                out.append(Made(with_columns(done.made.batch, origins), done.made.rows).between(whole, kept))
        return back(pa.Table.from_batches(out))

    def _checked_for_caller(self, batch: pa.RecordBatch) -> Applied:
        """The stage's answer on rows of a caller's table. If it fails where a column that it reads is not there, or
        where texts are null, which documents of a run never are, the error says so."""
        try:
            return self.checked(batch)
        except (CannotRun, ContractBroken):
            raise
        except NoSuchSignal as error:
            raise NoSuchSignal(f"{self.called}: {error}") from error
        except Exception as error:  # a stage of one's own may raise anything
            if isinstance(error, KeyError):
                read = (*self.needs, *re.findall('Field "(.+)" does not exist', str(error)))  # pyarrow's words
                for name in (name for name in read if name not in batch.schema.names):
                    raise lacks_column(self, name, batch.schema.names) from error
            texts = batch.column("text") if "text" in batch.schema.names else None
            if texts is None or not texts.null_count:
                raise
            first = texts.is_null().index(True).as_py()
            raise ValueError(
                f"{self.called}: `text` is null in {texts.null_count:,} of {len(texts):,} rows (first: row {first}), and "
                f"the stage does not take that ({type(error).__name__}: {error}). Texts in a run are never null: fill or "
                "drop them first"
            ) from error


class Annotate(Map):
    """Adds signals (those in `adds`); changes nothing else. One that works with its defaults is put in by the engine
    wherever a rule needs what it adds; a setting named `only` is then given the signals that are asked for."""

    # an alarm sounds where a signal of it is null for every document of a source
    expects_values: ClassVar[bool] = False
    reads_headers: ClassVar[bool] = False  # of the answers that pages came in (`Reader.with_headers`)

    @property
    def from_input(self) -> Mapping[str, str]:
        """Signals that are taken as the input has them, each with its field there. None may bear the name of a signal
        that a stage measures, but for those in `stand_in`."""
        return {}

    @property
    def stand_in(self) -> frozenset[str]:
        """Signals of `from_input` that do instead of measuring."""
        return frozenset()

    @abstractmethod
    def annotate(self, batch: pa.RecordBatch) -> dict[str, pa.Array]: ...

    def apply(self, batch: pa.RecordBatch) -> Applied:
        signals = signals_of(self.annotate(batch), batch, self.added)
        return Applied(with_columns(batch, signals), Verdict.keep(len(batch)))


class Rule(Map):
    """Decides on signals; cheap, and done again whenever a threshold changes.

    Most rules are a table of `limits`: a signal, the setting that bounds it, and the reason. A rule that decides
    otherwise writes a `verdict`; limits that it declares all the same have sliders in the report.

    A rule that `needs` only what the reader knew (url, date, source...) decides on the spot: what it drops costs
    nothing after it. Every other rule decides at the end of its segment, on stored signals.
    """

    limits: ClassVar[tuple[Limit, ...]] = ()  # in the order in which they are tested; `needs` follows from them

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        if isinstance(cls.limits, tuple) and cls.needs == ():
            cls.needs = signals_bounded(cls.limits)

    @model_validator(mode="after")
    def _decides(self) -> Self:
        if type(self).verdict is Rule.verdict and not self.limits:
            raise ValueError("a rule declares `limits`, or has a method `verdict(self, signals)`")
        for limit in self.limits:
            try:
                setting_at(self, limit.setting)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"limits: {limit.setting} is no number among the settings ({error})") from error
        return self

    def verdict(self, signals: Signals) -> Verdict:
        return self.within_limits(signals, Verdict.keep(len(signals)))

    def within_limits(self, signals: Signals, verdict: Verdict) -> Verdict:
        """The verdict, and all that lies beyond a limit dropped."""
        return verdict.drop_beyond(self.limits, self.values(self.limits, signals), self.bounds(self.limits, signals))

    def values(self, limits: Sequence[Limit], signals: Signals) -> list[Array]:
        """What each limit bounds: NaN is within any."""
        return [limit.values(signals) for limit in limits]

    def bounds(self, limits: Sequence[Limit], signals: Signals) -> list[Bound]:
        """The bound of each limit, for all rows or for each. NaN bounds nothing."""
        return [limit.bound(self) for limit in limits]

    def governed(self, limit: Limit, signals: Signals) -> Mask:
        """The rows whose bound is the limit's own setting, and not that of a table, say."""
        return np.ones(len(signals), bool)

    def tally(self, signals: Signals, verdict: Verdict, alive: Mask) -> Mapping[str, int]:
        """What its report counts of the documents that came to it (`alive`), by name (`Applied.noted`)."""
        return {}

    def apply(self, batch: pa.RecordBatch) -> Applied:
        verdict = self.verdict(signals := Signals(batch))
        return Applied(batch, verdict, noted=self.tally(signals, verdict, np.ones(len(batch), bool)))


class Rewrite(Map):
    """Changes text (and may add signals, or drop a row whose text it cannot make)."""

    rewrites: ClassVar[bool] = True

    @abstractmethod
    def rewrite(self, batch: pa.RecordBatch) -> Applied: ...

    def apply(self, batch: pa.RecordBatch) -> Applied:
        return self.rewrite(batch)


class Sink(Map):
    """Writes what passes through it for other programs, and passes it on unchanged. The engine does the writing."""

    without: Annotated[
        tuple[str, ...],
        Field(
            description="signals that it is not shown; tokens of a text that was changed since are left out in any case"
        ),
    ] = ()

    @field_validator("without")
    @classmethod
    def _are_signals(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            check_signal_name(name)
            if name in BASE.names or name in PAGE.names:
                raise ValueError(f"{name} is no signal, but a column that all documents have")
        return names

    @abstractmethod
    def table(self, batch: pa.RecordBatch) -> pa.RecordBatch: ...

    def apply(self, batch: pa.RecordBatch) -> Applied:
        return Applied(batch, Verdict.keep(len(batch)))


class Reader(Stage):
    """Turns one span of an input into batches of documents. Inputs are the files that `path` names, unless a reader
    lists and opens its own."""

    path: Annotated[
        str | list[str],
        Field(
            description=(
                "a file, a folder (less what runs have left in it) or a glob; local or any fsspec address "
                "(s3://, gs://, hf://)"
            )
        ),
    ]
    suffixes: ClassVar[tuple[str, ...]] = ()  # what is taken from a folder
    pages: ClassVar[bool] = False  # are its documents pages that still need extraction?

    @property
    def gives_pages(self) -> bool:
        """`pages`, for readers whose settings decide it."""
        return self.pages

    @property
    def gives_pdf(self) -> bool:
        """May PDF files be among its pages?"""
        return self.gives_pages

    @property
    def instead_for_text(self) -> str:
        """What to write where the files of a reader of pages hold text already, for an error message."""
        return f"files that hold text already are read by `wet`, not `{self.recipe_name()}`"

    def with_headers(self) -> Self:
        """The reader as it also keeps headers that state terms of use."""
        return self

    @property
    def roots(self) -> tuple[str, ...]:
        """The files, folders and globs below which its inputs are."""
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    def list_inputs(self, access: InputAccess) -> InputFiles:
        """The inputs of the source, on the driver, before any work. Their names, sizes and contents must not depend on
        the machine."""
        return access.list_files(self.path, self.suffixes)

    def open(self, origin: Origin, access: InputAccess) -> Any:
        """What `spans` and `read` get for an input, on the worker: a binary file, or anything else that works in a
        `with` statement."""
        return access.open_file(origin)

    def spans(self, file: Any, path: str, size: int, target: int) -> list[tuple[int, int | None]]:
        """Ranges of about `target` bytes that can be read separately; the whole input unless the format allows more. A
        reader may count in something else than bytes: row groups, ids."""
        return [(0, None)]

    @abstractmethod
    def read(self, file: Any, origin: Origin) -> Iterator[Reading]: ...


class Global(Stage):
    """A stage that needs the whole data set, written as the dataflow it is."""

    columns: ClassVar[tuple[str, ...]] = ()  # what its rounds read; with "text" among them it stands after `extract`
    rewrites: ClassVar[bool] = False  # changes texts, so that what was measured on them is measured again
    reads_text: ClassVar[bool] = False  # what it adds is of the text, and holds until a rewrite
    drops: ClassVar[bool] = True  # may drop documents; a stage that never does says False
    takes_views: ClassVar[bool] = False  # may be given columns of string views, which many functions of pyarrow refuse
    # The types of its signals (`adds`): they are there, null, where it found nothing too.
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {}
    groups_by: ClassVar[str] = ""  # the setting that names columns by which documents are told apart, if it has one
    final: ClassVar[bool] = False  # writes the end product: no stage after it may change or drop documents

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        if "signal_types" in cls.__dict__ and "adds" not in cls.__dict__:
            cls.adds = tuple(cls.signal_types)

    @property
    def added_types(self) -> dict[str, pa.DataType]:
        """`signal_types` by the names that settings give the signals (`added`)."""
        return dict(zip(self.added, self.signal_types.values(), strict=True)) if self.signal_types else {}

    @property
    def needs_text(self) -> bool:
        """Is it of no use before pages have become text?"""
        return self.reads_text or "text" in self.columns

    @property
    def wants(self) -> tuple[str, ...]:
        """Signals without which it cannot work; who measures them is put in before it."""
        return ()

    @property
    def loads(self) -> tuple[str, ...]:
        """Addresses of what it takes from earlier runs (`Flow.load`), which may have changed since it ran last."""
        return ()

    @property
    def saves(self) -> tuple[str, ...]:
        """Addresses of what it leaves for later ones (`Flow.save`)."""
        return ()

    @property
    def round_helpers(self) -> tuple[object, ...]:
        """Objects whose methods its rounds call beside its own. Workers find a method by its name, the stage's own
        first."""
        return ()

    def round_method(self, name: str) -> Callable[..., Any]:
        """The method of this name, of the stage or of a helper."""
        owner = next((each for each in (self, *self.round_helpers) if hasattr(each, name)), self)
        return cast(Callable[..., Any], getattr(owner, name))

    @abstractmethod
    def run(self, docs: Dataset, flow: Flow) -> Dataset: ...

    def readme_path(self, metrics: Report) -> str | None:
        """The README that goes with what it published, below the run's folder; `metrics` are what it reported."""
        return None

    def readme(self, metrics: Report, shared: Report, record: Report) -> str:
        """The text of that README. `shared` is what stages reported and shared up to this one, `record` is run.json
        up to this one."""
        raise NotImplementedError

    def __call__(self, data: Any) -> Any:
        """Run the stage on a table (`as_arrow`), without an engine: kept rows come back, with the signals that it adds.
        Columns that every document has and this table has not are taken as null, uids from the numbers of rows."""
        table, back = documents_in(data, views=self.takes_views)
        for name in ("text", "url"):
            read = self.needs_text if name == "text" else name in self.columns
            if read and len(table) and name not in table.column_names:
                raise lacks_column(self, name, table.column_names)
        documents, added = as_documents(table)
        for name in self.wants:
            Signals(documents).column(name)
        try:
            after = cast(LocalDocuments, self.run(LocalDocuments([documents]), LocalFlow()))
        except NeedsRun as error:
            raise CannotRun(f"{self.called} needs a run, in a recipe: {error}") from error
        kept = after.table() if after.tables else documents.slice(0, 0)
        for name, kind in self.added_types.items():
            kept = kept if name in kept.column_names else kept.append_column(name, pa.nulls(len(kept), kind))
        return back(kept.drop_columns([name for name in added if name in kept.column_names]))


def lacks_column(stage: Stage, name: str, columns: Iterable[str]) -> TypeError:
    return TypeError(f"{stage.called} reads the column `{name}`; there are {names_in(columns)}{who_adds(name)}")


__all__ = [
    "Annotate", "Applied", "Bound", "CannotRun", "ContractBroken", "Dataset", "Flow", "Global", "InputAccess",
    "InputFile", "InputFiles", "Limit", "Made", "Map", "Mask", "NoSuchSignal", "Origin", "Range", "Reader", "Rewrite", "Rule", "Signals", "Sink",
    "Stage", "Verdict", "above", "below", "numbers_in", "of_a_recipe", "snake_case", "with_columns",
]  # fmt: skip
