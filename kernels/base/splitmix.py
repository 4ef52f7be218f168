"""The finaliser of splitmix64 (Steele, Lea and Flood 2014): every output bit depends on every input bit."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.bare import inlined
from gristmill.kernels.base.types import Words

ALL = (1 << 64) - 1

_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_FIRST_MIX, _SECOND_MIX = np.uint64(_FIRST), np.uint64(_SECOND)


def mixed_plain(x: int) -> int:
    x = (x ^ x >> 30) * _FIRST & ALL
    x = (x ^ x >> 27) * _SECOND & ALL
    return x ^ x >> 31


def mixed_all(values: Words) -> Words:
    """`mixed_plain` of each element."""
    values = (values ^ values >> np.uint64(30)) * _FIRST_MIX
    values = (values ^ values >> np.uint64(27)) * _SECOND_MIX
    return values ^ values >> np.uint64(31)


@inlined
def mixed(x):
    """`mixed_plain` for kernels."""
    x = (x ^ x >> np.uint64(30)) * _FIRST_MIX
    x = (x ^ x >> np.uint64(27)) * _SECOND_MIX
    return x ^ x >> np.uint64(31)
