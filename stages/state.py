"""What an object remembers from one document to the next, and whether answers follow from it.

A stage that remembers gives results that depend on workers, batches and order. Looked at are attributes of the object
and of its classes, variables of its modules, and what lies in them: numbers, texts, containers, arrays, random
generators and objects of Python classes. Not looked into: files, models of other languages, closures, iterators. Such a
thing counts as nothing, so that a model that is loaded with the first document is no change.
"""

from __future__ import annotations

import array
import collections
import itertools
import math
import random
import sys
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from gristmill.stages.contract import Applied, listed

NOTHING = 0  # the digest of None, of what is absent, and of what cannot be looked into
MOST_ENTRIES = 10_000  # of a container; a larger one is known by its length
MOST_VALUES = 500  # looked at below one name; of containers after them the length
PLAIN_FOR_ONE = 32  # numbers and texts of a container that has nothing else count as one value
MOST_BYTES = 1 << 20  # of arrays, below one name; of more, pieces at equal distances
PIECE = 4096
DEEPEST = 8
# Whose classes and modules hold no state that a stage of others writes to.
LIBRARIES = {"gristmill", "datatrove", "nemo_curator", "pydantic", "typing_extensions", *sys.stdlib_module_names}
PLAIN = (bool, int, float, complex, str, bytes)
ALL_PLAIN = {*PLAIN, type(None)}
CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
BUFFERS = (bytearray, array.array)
BAGS = (types.SimpleNamespace,)  # of the standard library, and made to hold state
SAME_NUMBER = 1e-4  # relative: models that see a batch in another order differ by less
State = Mapping[str, int]


def state_of(thing: object, ignored: Iterable[str] = ()) -> State:
    """A digest of all that an object may remember, by name."""
    named = {name: value for name, value in attributes_of(thing).items() if name not in {*ignored}}
    own = [kind for kind in type(thing).__mro__ if kind.__module__.partition(".")[0] not in LIBRARIES]
    for kind in own:
        named |= {
            f"{kind.__name__}.{name}": value
            for name, value in vars(kind).items()
            if not name.startswith("__") and name not in ("_abc_impl", "model_config")
        }
    modules = {kind.__module__ for kind in own}
    for module in sorted(modules & {*sys.modules}):
        named |= {
            f"{Path(getattr(sys.modules[module], '__file__', None) or module).stem}.{name}": value
            for name, value in vars(sys.modules[module]).items()
            if not name.startswith("__")
            and (
                isinstance(value, PLAIN + CONTAINERS + GENERATORS + BAGS + (np.ndarray, itertools.count))
                or type(value).__module__ in modules
            )
        }
    return {name: Looking().digest(value) for name, value in named.items()}


def state_of_generators() -> State:
    """Of Python's and numpy's own generators."""
    state: Any = np.random.get_state()
    return {"random": hash(random.getstate()), "numpy.random": hash((state[1].tobytes(), *state[2:]))}


def changes(before: State, after: State) -> list[str]:
    return [name for name in dict.fromkeys((*before, *after)) if before.get(name, 0) != after.get(name, 0)]


def complaint(changed: list[str], batch: pa.RecordBatch, row: int) -> str:
    """What is wrong with a stage whose answer on a row follows from earlier documents."""
    uid = batch.column("uid")[row].as_py() if "uid" in batch.schema.names else None
    document = f"document {uid:016x}" if isinstance(uid, int) else f"row {row}"
    return (
        f"it remembers earlier documents: {listed(changed)} changed, and a fresh one answers otherwise on {document}. "
        "Results would depend on workers, batches and order"
    )


def attributes_of(thing: object) -> dict[str, Any]:
    kind: Any = type(thing)
    return {
        **{name: getattr(thing, name) for name in slots_of(kind) if hasattr(thing, name)},
        **getattr(thing, "__dict__", {}),
        **(getattr(thing, "__pydantic_private__", None) or {}),
    }


@lru_cache(1024)
def slots_of(kind: type) -> tuple[str, ...]:
    slots = [base.__dict__.get("__slots__", ()) for base in kind.__mro__]
    names = dict.fromkeys(name for some in slots for name in ((some,) if isinstance(some, str) else some))
    return tuple(name for name in names if not name.startswith("__"))


class Looking:
    """A walk through what one name holds."""

    def __init__(self) -> None:
        self.values = 0
        self.bytes_left = MOST_BYTES
        self.path: set[int] = set()  # objects that are being looked into

    def digest(self, value: Any, depth: int = 0) -> int:
        self.values += 1
        if value is None:
            return NOTHING
        if isinstance(value, PLAIN):
            return hash((type(value), value if value == value else "nan"))
        if isinstance(value, CONTAINERS):
            return self.of_container(value, depth)
        if isinstance(value, np.ndarray) and not isinstance(value, np.memmap):
            return self.of_array(value, depth)
        if isinstance(value, GENERATORS):
            return self.of_generator(value, depth)
        if isinstance(value, BUFFERS):
            return self.of_array(np.frombuffer(value, np.uint8) if len(value) else np.empty(0, np.uint8), depth)
        if isinstance(value, itertools.count):
            return hash((type(value), repr(value)))
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            return self.inside(value.__self__, depth)
        return self.inside(value, depth)

    def inside(self, value: Any, depth: int) -> int:
        """Of an object of a Python class, its attributes."""
        if isinstance(value, GENERATORS):
            return self.of_generator(value, depth)
        foreign = type(value).__module__.partition(".")[0] not in sys.stdlib_module_names or isinstance(value, BAGS)
        if not foreign or isinstance(value, type | types.ModuleType) or self.ends(value, depth):
            return NOTHING
        attributes = attributes_of(value)
        if not attributes:
            return NOTHING
        self.path.add(id(value))
        found = hash((type(value), *((name, self.digest(each, depth + 1)) for name, each in attributes.items())))
        self.path.discard(id(value))
        return found

    def ends(self, value: Any, depth: int) -> bool:
        return depth >= DEEPEST or self.values >= MOST_VALUES or id(value) in self.path

    def of_container(self, value: Any, depth: int) -> int:
        if len(value) > MOST_ENTRIES or self.ends(value, depth):
            return hash((type(value), len(value)))
        if ALL_PLAIN.issuperset(map(type, value)):
            self.values += len(value) // PLAIN_FOR_ONE
            if not isinstance(value, dict):
                return hash((type(value), frozenset(value) if isinstance(value, set | frozenset) else tuple(value)))
            if ALL_PLAIN.issuperset(map(type, value.values())):
                return hash((type(value), tuple(value), tuple(value.values())))
        self.path.add(id(value))
        digests: list[object] = []
        keys = iter(value) if isinstance(value, dict) else itertools.repeat(None)
        rest = iter(value.values() if isinstance(value, dict) else value)
        for key, each in zip(keys, rest, strict=False):
            digests.append((self.digest(key, depth + 1), self.digest(each, depth + 1)))
            if self.values >= MOST_VALUES:
                digests.append(tuple(len(each) for each in rest if isinstance(each, CONTAINERS)))
        self.path.discard(id(value))
        in_order = frozenset(digests) if isinstance(value, set | frozenset) else tuple(digests)
        return hash((type(value), len(value), in_order))

    def of_array(self, value: np.ndarray[Any, Any], depth: int) -> int:
        if value.dtype.hasobject:
            if value.size > MOST_ENTRIES:
                return hash((value.dtype.str, value.shape))
            return self.of_container(value.reshape(-1).tolist(), depth)
        most = max(PIECE, self.bytes_left)
        if value.nbytes > most and not (value.flags.c_contiguous or value.flags.f_contiguous):
            longest = int(np.argmax(value.shape))
            value = value[(slice(None),) * longest + (slice(None, None, -(-value.nbytes // most)),)]
        data = value.ravel(order="K").view(np.uint8)
        if len(data) > most:
            pieces = data[: len(data) // PIECE * PIECE].reshape(-1, PIECE)
            data = pieces[:: -(-len(pieces) // (most // PIECE))].reshape(-1)
        self.bytes_left -= len(data)
        return hash((value.dtype.str, value.shape, xxhash.xxh3_64_intdigest(data.data)))

    def of_generator(self, value: Any, depth: int) -> int:
        if isinstance(value, random.SystemRandom):  # which has no state
            return NOTHING
        if isinstance(value, random.Random):
            return hash(value.getstate())
        state = value.bit_generator.state if isinstance(value, np.random.Generator) else value.get_state()
        return self.of_container(state, depth)


def first_difference(forward: Applied, backward: Applied) -> int | None:
    """The first row on which two answers differ, the second of which was given on the rows in reverse."""
    rows = len(forward.verdict)
    reverse = np.arange(rows)[::-1]
    if forward.batch.schema.names != backward.batch.schema.names:
        return 0
    differs = [
        answer(forward, row) != answer(backward, other)
        for row, other in zip(range(rows), reverse.tolist(), strict=True)
    ]
    for column, other in zip(forward.batch.columns, backward.batch.columns, strict=True):
        other = other.take(pa.array(reverse))
        if not column.equals(other):
            pairs = zip(column.to_pylist(), other.to_pylist(), strict=True)
            differs = [known or not same(*pair) for known, pair in zip(differs, pairs, strict=True)]
    return next((row for row, one in enumerate(differs) if one), None)


def answer(applied: Applied, row: int) -> tuple[object, ...]:
    """What becomes of a document, and what was made of it."""
    made = [] if applied.made is None else np.flatnonzero(np.asarray(applied.made.rows) == row).tolist()
    return (
        applied.verdict.reason(row),
        sorted(applied.verdict.every_reason(row)),
        applied.verdict.details.get(row) or "",
        [str(applied.made.batch.slice(each, 1).to_pylist()) for each in made] if applied.made is not None else [],
    )


def same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=SAME_NUMBER, abs_tol=1e-9) or (value != value and other != other)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    return bool(value == other)
