"""Dataclasses to plain data and back, for JSON: what journal, workers' answers and files of a run hold.

Fields at their defaults are left out. Of a class with a `kind` the plain data names it, so that one of its subclasses
comes back.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decode = Callable[[Any], Any]
AS_THEY_ARE = frozenset({str, int, float, bool, NoneType})


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    kind = type(value)
    if kind in AS_THEY_ARE:
        return value
    if is_dataclass(kind):
        data = {"kind": value.kind} if _has_kind(cast(Any, kind)) else {}
        for name, default in _defaults(cast(Any, kind)):
            held = getattr(value, name)
            if held != default and (held or default != ()):  # an empty list is an empty tuple
                data[name] = plain(held)
        return data
    if isinstance(value, Mapping):
        return {name: plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    return sorted(value) if isinstance(value, set | frozenset) else value


def dumps(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=True, separators=(",", ":")).encode()


def read_as(kind: type[T], data: Any, lenient: bool = False) -> T:
    """A dataclass from plain data. TypeError, KeyError, AttributeError or ValueError for data of another shape;
    `lenient` passes over names that it does not have, and gives lists for sequences, as JSON has them."""
    return cast(T, _decoder(cast(Any, kind), lenient)(data))


@functools.cache
def _has_kind(kind: type[Any]) -> bool:
    return "kind" in vars(kind) and get_origin(get_type_hints(kind).get("kind")) is ClassVar


@functools.cache
def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """Names of fields with their defaults; MISSING where there is none."""
    return tuple(
        (field.name, field.default if field.default_factory is MISSING else field.default_factory())
        for field in fields(kind)
    )


@functools.cache
def _decoder(hint: Any, lenient: bool) -> Decode:
    """What makes a value of a type from plain data."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        if _has_kind(cast(Any, hint)) and (others := hint.__subclasses__()):
            decoders = {each.kind: _decoder_of(each, lenient) for each in cast(Any, (hint, *others))}
            return lambda data: decoders[data["kind"]](data)
        return _decoder_of(hint, lenient)
    if origin in (Union, UnionType):
        return _one_of([each for each in args if each is not NoneType], lenient)
    if origin is Counter:
        return Counter
    if origin in (set, frozenset):
        return cast(Decode, origin)
    if origin is tuple and args[1:] != (Ellipsis,):
        return tuple
    if origin in (list, tuple, Sequence):
        each = _decoder(args[0], lenient)
        make = list if origin is list or (lenient and origin is Sequence) else tuple
        given = functools.partial(checked, kinds=(list, tuple))
        return lambda data: make(given(data) if each is _as_it_is else map(each, given(data)))
    if origin in (dict, Mapping):
        of = _decoder(args[1], lenient)
        if of is _as_it_is:
            return functools.partial(checked, kinds=(dict,))
        return lambda data: {name: of(held) for name, held in data.items()}
    return _as_it_is


def _as_it_is(data: Any) -> Any:
    return data


def checked(data: Any, kinds: tuple[type[Any], ...]) -> Any:
    if not isinstance(data, kinds):
        raise TypeError(f"a {kinds[0].__name__} was expected, not {data!r:.80}")
    return data


def _decoder_of(kind: type[Any], lenient: bool) -> Decode:
    hints = get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name], lenient) for field in fields(kind)}
    passed_over = {"kind"} if _has_kind(cast(Any, kind)) else set()

    def decode(data: Any) -> Any:
        if lenient:
            data = {name: held for name, held in data.items() if name in decoders}
        return kind(**{name: decoders[name](held) for name, held in data.items() if name not in passed_over})

    return decode


def _one_of(kinds: list[Any], lenient: bool) -> Decode:
    """A value of a union: None or one type; unions of more are of plain values."""
    if len(kinds) > 1:
        return _as_it_is
    decode = _decoder(kinds[0], lenient)
    return lambda data: None if data is None else decode(data)
