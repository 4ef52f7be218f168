"""Many bytes at a time, in the vectors of the processor: finding the line ends of web pages so takes a fifth off all of
`gristmill.kernels.lines.c4`.

A loop that may end at any byte is never made so by the compiler. What is made here looks at the bytes it is named for,
and does not ask whether they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


def _loaded(context, builder, signature, arguments, kind):
    """What lies in array `arguments[0]` from byte `arguments[1]` on."""
    array = make_array(signature.args[0])(context, builder, arguments[0])
    address = builder.bitcast(builder.gep(array.data, [arguments[1]]), kind.as_pointer())
    return builder.load(address, align=1)


@intrinsic
def eight_bytes(typing_context, data, i):
    """Bytes i to i + 8, the first lowest, in one load."""

    def load(context, builder, signature, arguments):
        return _loaded(context, builder, signature, arguments, ir.IntType(64))

    return types.uint64(data, types.int64), load


def bytes_before(width: int, *ranges: tuple[int, int], with_bits: int = 0) -> Callable[..., Any]:
    """Makes the intrinsic (data, i): how many of bytes i to i + width come before the first that lies, `with_bits` set,
    in one of the ranges (first, last)."""

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
