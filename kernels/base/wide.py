"""Many bytes at a time, in the processor's vectors. Finding the line ends of web pages in this way takes a fifth off
`gristmill.kernels.lines.c4`.

The compiler never vectorises a loop that may end at any byte. These functions read the bytes they are named for and do
not check that they exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.kernels.base.compiled import intrinsic, ir, types

LEAST, PREFETCH = "llvm.vector.reduce.umin.v16i32", "llvm.prefetch.p0i8"  # LLVM's names


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
            matches = _matches(context, builder, signature, arguments, width, ranges, with_bits)
            bits = builder.zext(matches, ir.IntType(64))
            return builder.cttz(
                builder.or_(bits, ir.Constant(ir.IntType(64), 1 << width)), ir.Constant(ir.IntType(1), 1)
            )

        return types.int64(data, types.int64), count_them

    return count


def bits_of(width: int, *ranges: tuple[int, int], with_bits: int = 0) -> Callable[..., Any]:
    """Makes the intrinsic (data, i): bit k says whether byte i + k, of `width` up to 64, is in one of the ranges
    (first, last) with `with_bits` set."""

    @intrinsic
    def bits(typing_context, data, i):
        def make(context, builder, signature, arguments):
            matches = _matches(context, builder, signature, arguments, width, ranges, with_bits)
            return builder.zext(matches, ir.IntType(64)) if width < 64 else matches

        return types.uint64(data, types.int64), make

    return bits


def _matches(context, builder, signature, arguments, width, ranges, with_bits):
    """One bit for each of `width` bytes."""
    kind = ir.VectorType(ir.IntType(8), width)
    loaded = _loaded(context, builder, signature, arguments, kind)
    if with_bits:
        loaded = builder.or_(loaded, ir.Constant(kind, [with_bits] * width))
    matches = ir.Constant(ir.VectorType(ir.IntType(1), width), [0] * width)
    for first, last in ranges:
        shifted = builder.sub(loaded, ir.Constant(kind, [first] * width))
        matches = builder.or_(matches, builder.icmp_unsigned("<=", shifted, ir.Constant(kind, [last - first] * width)))
    return builder.bitcast(matches, ir.IntType(width))


@intrinsic
def least_of_16(typing_context, values, i):
    """The least of 16 numbers from i on; uint32."""

    def make(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(32), 16)
        loaded = _loaded(context, builder, signature, arguments, kind)
        least = builder.module.globals.get(LEAST) or ir.Function(
            builder.module, ir.FunctionType(ir.IntType(32), [kind]), LEAST
        )
        return builder.call(least, [loaded])

    return types.uint32(values, types.int64), make


@intrinsic
def equal_of_16(typing_context, values, i, wanted):
    """Which of 16 numbers uint32 from i on are `wanted`, as bits."""

    def make(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(32), 16)
        loaded = _loaded(context, builder, signature, arguments, kind)
        equal = builder.icmp_unsigned("==", loaded, _spread(builder, kind, arguments[2]))
        return builder.zext(builder.bitcast(equal, ir.IntType(16)), ir.IntType(64))

    return types.uint64(values, types.int64, types.uint32), make


@intrinsic
def equal_of_8(typing_context, values, i, shift, wanted):
    """Which of 8 words from i on are `wanted` when shifted to the right, as bits."""

    def make(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(64), 8)
        loaded = _loaded(context, builder, signature, arguments, kind)
        shift, wanted = (_spread(builder, kind, value) for value in arguments[2:])
        equal = builder.icmp_unsigned("==", builder.lshr(loaded, shift), wanted)
        return builder.zext(builder.bitcast(equal, ir.IntType(8)), ir.IntType(64))

    return types.uint64(values, types.int64, types.uint64, types.uint64), make


def _spread(builder, kind, value):
    """A vector that has the value in all places."""
    unknown = ir.Constant(kind, ir.Undefined)
    single = builder.insert_element(unknown, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        single, unknown, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    )


@intrinsic
def put_16_bytes(typing_context, data, i, low, high):
    """Writes two words to bytes i to i + 16."""

    def make(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        for place, word in enumerate(arguments[2:]):
            behind = builder.gep(address, [ir.Constant(ir.IntType(64), 8 * place)])
            builder.store(word, builder.bitcast(behind, ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(data, types.uint64, types.uint64, types.uint64), make


@intrinsic
def prefetch(typing_context, values, i):
    """Asks for the cache line of element i, which will be read."""

    def make(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), byte)
        ask = builder.module.globals.get(PREFETCH) or ir.Function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte, number, number, number]), PREFETCH
        )
        builder.call(ask, [address, *(ir.Constant(number, value) for value in (0, 3, 1))])  # to read; all caches; data
        return context.get_dummy_value()

    return types.void(values, types.uint64), make


@intrinsic
def lowest(typing_context, bits):
    """The place of the lowest bit that is set; 64 if none is."""

    def make(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), make


@intrinsic
def highest(typing_context, bits):
    """The place of the highest bit that is set; -1 if none is."""

    def make(context, builder, signature, arguments):
        above = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(ir.IntType(64), 63), above)

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
