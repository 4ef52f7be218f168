"""A block of another program: found by the name that a recipe gives it, checked, built, and kept from carrying anything
from one document to the next.

A block is a class of one of the kinds that its library runs. Its module must be importable, here and for each worker.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import xxhash
from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from gristmill.kernels.common.paths import RecipePath
from gristmill.kernels.common.settings import nearest
from gristmill.stages.checks import snake_case
from gristmill.stages.stage import CannotRun, Map, Verdict
from gristmill.stages.state import GENERATORS, State, state_of

ADDRESS = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z]\w*$"
Result = tuple[bool, object]  # does the document stay, and the block's reason
MOST_DETAIL = 200  # characters of a reason
NOT_HERE = {
    "exclusion_writer": "rejected documents are kept by the run, in `rejects`",
    "batch_size": "a block gets one document at a time, so that no answer depends on how batches are cut",
}
OF_THE_LIBRARY = ("stats",)  # what DataTrove keeps on each block


def is_address(value: str) -> str:
    if not re.fullmatch(ADDRESS, value):
        raise ValueError("module:Class was expected, the module by its full name")
    return value


BlockAddress = Annotated[str, AfterValidator(is_address), Field(json_schema_extra={"pattern": ADDRESS})]


@dataclass(frozen=True)
class Library:
    """Whose blocks they are: its module, how it is installed, the classes that a block must extend, and what is called
    on one before its first document, where it has that."""

    called: str
    module: str
    install: str
    kinds: tuple[str, ...]
    first: tuple[str, ...] = ()

    def bases(self) -> tuple[type, ...]:
        return tuple(attribute_of(*address.split(":")) for address in self.kinds)


class OtherBlock(Map):
    """What stages that run a block share: its settings, the files that it reads, and the block itself."""

    settings: dict[str, Any] = Field(default={}, description="the block's own settings, by the names of its arguments")
    files: dict[str, RecipePath] = Field(
        default={},
        description="those of its settings that are files, such as a model: beside the recipe, known by content",
    )

    state: Annotated[
        Literal["none", "per_partition"],
        Field(
            description="`per_partition` allows a block that remembers documents: each part of the input gets a fresh "
            "one, and results depend on how inputs are cut"
        ),
    ] = "none"

    library: ClassVar[Library]
    costly: ClassVar[bool] = True
    _block: Any = PrivateAttr(default=None)  # of this stage alone

    @property
    def address(self) -> str:
        """Where the block's class is: `module:Class`."""
        raise NotImplementedError

    @property
    def called(self) -> str:
        """By the block's class, so that a recipe may have several."""
        return self.name or snake_case(self.address.rpartition(":")[2])

    @property
    def kind(self) -> type:
        return block_at(self.address, self.library)

    @property
    def code_beside(self) -> tuple[str, ...]:
        return (self.kind.__module__,)

    @model_validator(mode="after")
    def _names_a_block(self) -> Self:
        check_arguments(self.kind, self.settings, self.files)
        for name, path in self.files.items():
            if "://" not in path and not Path(path).exists():
                raise ValueError(f"files.{name}: {path}: no such file")
        return self

    def prepare(self) -> None:
        self.built()

    def built(self) -> Any:
        """The block: one for all that a process does, or of this stage alone if it keeps state."""
        if self.state == "per_partition" and self._block is None:
            self._block = self.new_block()
        if self._block is not None:
            return self._block
        return block_with(self.address, self.library, self.arguments)

    def new_block(self) -> Any:
        return make_block(self.address, self.library, self.arguments)

    @property
    def arguments(self) -> str:
        return json.dumps({**self.settings, **self.files}, default=str)

    def fresh(self) -> Self:
        stage = super().fresh()
        stage._block = self.new_block()
        return stage

    def remembered(self) -> State | None:
        """The block's state; its random generators are seeded for each document."""
        if self.state == "per_partition":
            return None
        block = self.built()
        return state_of(block, [*OF_THE_LIBRARY, *(n for n, value in vars(block).items() if generator_of(value))])

    def on_memory(self, complaint: str) -> str:
        return (
            f"{self.address}: {super().on_memory(complaint)}. `state: per_partition` allows it: then each part of the "
            "input gets a fresh block, and results depend on how inputs are cut"
        )

    def __call__(self, data: Any) -> Any:
        """As any stage; a table is one part."""
        return Map.__call__(self.fresh(), data) if self.state == "per_partition" else super().__call__(data)

    def alarms(self, source: str, documents: int, noted: Mapping[str, int]) -> list[str]:
        if self.state == "none" or not documents:
            return []
        return [
            f"{self.called} keeps state over each part of {source} (`state: per_partition`): other files, or another "
            "`parts: max_bytes`, give other results"
        ]

    @contextmanager
    def looking_at(self, document: object) -> Iterator[None]:
        """A block at work. One that keeps state and raises is no longer what it was: the run ends."""
        try:
            yield
        except Exception as error:  # whatever another's code comes to
            if self.state == "none":
                raise
            raise CannotRun(
                f"{self.address} raised on document {document} ({type(error).__name__}: {error}), and what it had "
                "remembered is in doubt; a block with `state: per_partition` must not raise"
            ) from error


@lru_cache
def block_at(address: str, library: Library) -> type:
    """The class of a block; ValueError says what is wrong with its name."""
    if importlib.util.find_spec(library.module) is None:
        raise ValueError(f"{library.called} is not installed here: {library.install}")
    module, _, name = address.partition(":")
    kind, bases = attribute_of(module, name), library.bases()
    if not (isinstance(kind, type) and issubclass(kind, bases)) or kind in bases:
        raise ValueError(f"{address} is no block: a class that extends {' or '.join(base.__name__ for base in bases)}")
    if inspect.isabstract(kind):
        raise ValueError(
            f"{address} is abstract: {', '.join(sorted(getattr(kind, '__abstractmethods__', ())))} not written"
        )
    own_run = [
        base for base in bases if issubclass(kind, base) and getattr(kind, "run", None) != getattr(base, "run", None)
    ]
    if own_run:
        raise ValueError(f"{address} has a `run` of its own over a stream of documents; a stage sees one at a time")
    return kind


def attribute_of(module: str, name: str) -> Any:
    try:
        there = vars(importlib.import_module(module))
    except ImportError as error:
        raise ValueError(f"{module} cannot be imported here: {error}") from error
    if name not in there:
        near = nearest(name, [other for other, value in there.items() if isinstance(value, type)])
        raise ValueError(f"{module} has no {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return there[name]


def check_arguments(kind: type, settings: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """A block's settings are arguments of its class, all that it needs, and none that plain data cannot be."""
    block: Any = kind  # the signature of the class itself is that of DataTrove's `__new__`, which takes anything
    arguments = dict(list(inspect.signature(block.__init__).parameters.items())[1:])  # less self
    named = {
        name: argument
        for name, argument in arguments.items()
        if argument.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    takes_any = any(argument.kind == inspect.Parameter.VAR_KEYWORD for argument in arguments.values())
    for name in (*settings, *files):
        if name in settings and name in files:
            raise ValueError(f"{name} is among `settings` and `files`")
        if name in NOT_HERE:
            raise ValueError(f"settings: leave {name} out; {NOT_HERE[name]}")
        if name not in named and not takes_any:
            near = nearest(name, named)
            raise ValueError(f"{kind.__name__} has no setting {name}" + (f"; did you mean {near[0]}?" if near else ""))
        if name in named and "Callable" in str(named[name].annotation):
            raise ValueError(
                f"{name} of {kind.__name__} is a function, which a recipe cannot hold; write a stage of your own"
            )
    missing = [n for n, a in named.items() if a.default is a.empty and n not in settings and n not in files]
    if missing:
        raise ValueError(f"{kind.__name__} needs {' and '.join(missing)}: give it in `settings`, or in `files`")


@lru_cache(maxsize=64)
def block_with(address: str, library: Library, settings: str) -> Any:
    return make_block(address, library, settings)


def make_block(address: str, library: Library, settings: str) -> Any:
    kind = block_at(address, library)
    try:
        block = kind(**json.loads(settings))
        for name in library.first:
            getattr(block, name, lambda: None)()
    except Exception as error:  # whatever another's code comes to: no document is to blame
        raise CannotRun(f"{address} cannot be built: {type(error).__name__}: {error}") from error
    return block


def drop_by_result(verdict: Verdict, results: Mapping[int, Result], kind: type) -> Verdict:
    """The verdict with all dropped that a block drops, under its own reasons."""
    rows: dict[tuple[str, bool], list[int]] = {}
    details = [""] * len(verdict)
    for row, (stays, reason) in results.items():
        if not stays:
            name, details[row] = reason_of(reason, kind)
            rows.setdefault((name, bool(details[row])), []).append(row)
    for (name, detailed), dropped in sorted(rows.items()):
        mask = np.zeros(len(verdict), bool)
        mask[dropped] = True
        verdict.drop(mask, name, details if detailed else None)
    return verdict


def reason_of(given: object, kind: type) -> tuple[str, str]:
    """The reason under which a document is counted, and the block's own words where they say more.

    A name is its own reason; for anything else the block's name is. Digits in the reasons of a user's own blocks become
    `n`, so that one with a number in it stays one reason.
    """
    own = "" if given is None else str(given).strip()[:MOST_DETAIL]
    name = own if kind.__module__.startswith(("datatrove.", "nemo_curator.")) else re.sub(r"\d+", "n", own)
    if re.fullmatch(r"[a-z][a-z0-9_]{0,47}", name):
        return name, "" if name == own else own
    return snake_case(kind.__name__), own


def generator_of(value: object) -> object | None:
    """The random generator that an attribute holds: `self.rng`, or `self.uniform = rng.uniform`."""
    owner = getattr(value, "__self__", value)
    return owner if isinstance(owner, GENERATORS) else None


class Draws:
    """Random numbers that a block draws: they follow from the document, else a verdict would depend on the documents
    before it."""

    def __init__(self, block: object, salt: str) -> None:
        owners = [generator_of(value) for value in vars(block).values()]
        self.generators = [each for each in owners if isinstance(each, np.random.Generator)]
        self.states = [each for each in owners if isinstance(each, np.random.RandomState)]
        self.plain = [each for each in owners if isinstance(each, random.Random)]
        self.salt = salt

    @contextmanager
    def apart(self) -> Iterator[Draws]:
        """Python's and numpy's own generators, which blocks may draw from too, are afterwards as they were."""
        before = random.getstate(), np.random.get_state()
        try:
            yield self
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])

    def seed(self, document: object) -> None:
        seed = xxhash.xxh3_64_intdigest(f"{self.salt}\0{document}".encode("utf-8", "surrogatepass"))
        for generator in self.generators:
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        for state in self.states:
            state.seed(seed % 2**32)
        for plain in self.plain:
            plain.seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
