"""Compiler helpers of the HTML segmenter beside kernels/base/compiled.py: functions without reference counts, and a
vectorised search for a byte.

numba counts references to an array, with an atomic addition for each argument of a call that is not inlined. In a
kernel of fifty functions that pass a dozen arrays, that was half of the time (290 MB/s of pages with it, 520 without)
and a third of compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gristmill.kernels.base.compiled import helper, intrinsic, ir, types

F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """A helper for kernels only. It must not create an array, since nobody would count it."""
    return helper(function, _nrt=False)


def rare(function: F) -> F:
    """As `inner`, for what few tags or pages need: its code is not copied into its callers."""
    vars(function)["is_rare"] = True
    return inner(function)


@intrinsic
def first_of_32(_context: Any, data: Any, at: Any, byte: Any) -> tuple[Any, Any]:
    """The distance from `at` (uint64) to the first such byte (uint8) of the next 32, which must be in the array; 32:
    none."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        lanes = ir.VectorType(ir.IntType(8), 32)
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        chunk = builder.load(place, align=1)
        alone = builder.insert_element(ir.Constant(lanes, ir.Undefined), arguments[2], ir.Constant(ir.IntType(32), 0))
        wanted = builder.shuffle_vector(
            alone, ir.Constant(lanes, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32)
        )
        mask = builder.bitcast(builder.icmp_unsigned("==", chunk, wanted), ir.IntType(32))
        return builder.zext(builder.cttz(mask, ir.Constant(ir.IntType(1), 0)), ir.IntType(64))

    return types.uint64(data, types.uint64, types.uint8), make


def first_of_words(*words: bytes) -> Any:
    """A search of the next 32 places from `at` (uint64) for the first where one of these words stands, in whatever
    case (more precisely, with bit 5 of each byte set); 32: none. The array must hold the 32 bytes and as many more as
    the longest word has."""

    @intrinsic
    def first(_context: Any, data: Any, at: Any) -> tuple[Any, Any]:
        def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            begin = builder.gep(array.data, [arguments[1]])
            lanes = ir.VectorType(ir.IntType(8), 32)
            small = ir.Constant(lanes, [32] * 32)
            chunks = []
            for step in range(max(map(len, words))):
                place = builder.gep(begin, [ir.Constant(ir.IntType(64), step)])
                chunks.append(builder.or_(builder.load(builder.bitcast(place, lanes.as_pointer()), align=1), small))
            found = None
            for word in words:
                here = None
                for chunk, byte in zip(chunks, word, strict=False):
                    same = builder.icmp_unsigned("==", chunk, ir.Constant(lanes, [byte | 32] * 32))
                    here = same if here is None else builder.and_(here, same)
                found = here if found is None else builder.or_(found, here)
            mask = builder.bitcast(found, ir.IntType(32))
            return builder.zext(builder.cttz(mask, ir.Constant(ir.IntType(1), 0)), ir.IntType(64))

        return types.uint64(data, types.uint64), make

    return first


@intrinsic
def copy_32(_context: Any, out: Any, to: Any, data: Any, at: Any) -> tuple[Any, Any]:
    """Copies 32 bytes of `data` from `at` (uint64) on to `to` (uint64) in `out`; both arrays must have them."""

    def make(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = ir.VectorType(ir.IntType(8), 32).as_pointer()
        places = [
            builder.bitcast(builder.gep(context.make_array(kind)(context, builder, array).data, [place]), lanes)
            for kind, array, place in (
                (signature.args[0], arguments[0], arguments[1]),
                (signature.args[2], arguments[2], arguments[3]),
            )
        ]
        builder.store(builder.load(places[1], align=1), places[0], align=1)
        return context.get_dummy_value()

    return types.void(out, types.uint64, data, types.uint64), make
