"""Many bytes at a time, in the processor's vectors. Finding the line ends of web pages in this way takes a fifth off
`gristmill.kernels.lines.c4`.

The compiler never vectorises a loop that may end at any byte. These functions read the bytes they are named for and do
not check that they exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.kernels.base.compiled import intrinsic, ir, types


def _loaded(context, builder, signature, arguments, kind):
    """The vector in array `arguments[0]` from byte `arguments[1]` on."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    address = builder.bitcast(builder.gep(array.data, [arguments[1]]), kind.as_pointer())
    return builder.load(address, align=1)


@intrinsic
def eight_bytes(typing_context, data, i):
    """Bytes i to i + 8 as one integer, the first byte lowest."""

    def load(context, builder, signature, arguments):
        return _loaded(context, builder, signature, arguments, ir.IntType(64))

    return types.uint64(data, types.int64), load


def bytes_before(width: int, *ranges: tuple[int, int], with_bits: int = 0) -> Callable[..., Any]:
    """Makes the intrinsic (data, i): the number of bytes of i to i + width before the first that is, with `with_bits`
    set, in one of the ranges (first, last)."""

    @intrinsic
    def count(typing_context, data, i):
        def count_them(context, builder, signature, arguments):
            kind = ir.VectorType(ir.IntType(8), width)
            loaded = builder.or_(
                _loaded(context, builder, signature, arguments, kind), ir.Constant(kind, [with_bits] * width)
            )
            matches = ir.Constant(ir.VectorType(ir.IntType(1), width), [0] * width)
            for first, last in ranges:
                shifted = builder.sub(loaded, ir.Constant(kind, [first] * width))
                matches = builder.or_(
                    matches, builder.icmp_unsigned("<=", shifted, ir.Constant(kind, [last - first] * width))
                )
            bits = builder.zext(builder.bitcast(matches, ir.IntType(width)), ir.IntType(64))
            return builder.cttz(
                builder.or_(bits, ir.Constant(ir.IntType(64), 1 << width)), ir.Constant(ir.IntType(1), 1)
            )

        return types.int64(data, types.int64), count_them

    return count


def bits_of(width: int, *ranges: tuple[int, int]) -> Callable[..., Any]:
    """Makes the intrinsic (data, i): a bit for each byte of i to i + width (64 at most) that is in one of the ranges
    (first, last), that of the first byte lowest."""

    @intrinsic
    def bits(typing_context, data, i):
        def find(context, builder, signature, arguments):
            kind = ir.VectorType(ir.IntType(8), width)
            loaded = _loaded(context, builder, signature, arguments, kind)
            matches = ir.Constant(ir.VectorType(ir.IntType(1), width), [0] * width)
            for first, last in ranges:
                shifted = builder.sub(loaded, ir.Constant(kind, [first] * width))
                matches = builder.or_(
                    matches, builder.icmp_unsigned("<=", shifted, ir.Constant(kind, [last - first] * width))
                )
            found = builder.bitcast(matches, ir.IntType(width))
            return found if width == 64 else builder.zext(found, ir.IntType(64))

        return types.uint64(data, types.int64), find

    return bits


@intrinsic
def lowest(typing_context, bits):
    """The place of the lowest bit that is set; 64 if none is."""

    def make(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), make


@intrinsic
def how_many(typing_context, bits):
    """The number of bits that are set."""

    def make(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), make


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> Any:
    """The larger of two float32, neither of which is NaN. Unlike `max`, loops over it become vector instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        no_nan = ("nnan", "nsz")  # without these the compiler makes one number at a time of it
        is_larger = builder.fcmp_ordered(">", *arguments, flags=no_nan)
        return builder.select(is_larger, *arguments, flags=no_nan)

    return types.float32(types.float32, types.float32), generate
