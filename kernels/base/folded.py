"""The product of two words with its halves folded together: the step of wyhash and of xxh3."""

from __future__ import annotations

from gristmill.kernels.base.compiled import intrinsic, ir, types


@intrinsic
def folded(typing_context, a, b):
    """The 128 bits of the product of two words, one half xor the other."""

    def multiply(context, builder, signature, arguments):
        wide, word = ir.IntType(128), ir.IntType(64)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), word)
        return builder.xor(high, builder.trunc(product, word))

    return types.uint64(types.uint64, types.uint64), multiply
