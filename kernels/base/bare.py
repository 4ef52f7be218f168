"""Kernels and helpers without reference counting, for loops that call many helpers for each document and allocate
nothing.

numba counts references to each array at each call that is not inlined: two atomic operations an array. Where helpers
are called for each line or word, that is most of the time (line rules: 2 to 3 times as long). Kernels built here cannot
allocate; slices are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill.kernels.base import compiled, unicode

Compiled = Callable[..., Any]


def kernel(function: Compiled) -> Compiled:
    """As `gristmill.kernels.base.compiled.kernel`."""
    return compiled.kernel(function, _nrt=False)


def helper(function: Compiled) -> Compiled:
    """As `gristmill.kernels.base.compiled.helper`."""
    return compiled.helper(function, _nrt=False)


def inlined(function: Compiled) -> Compiled:
    """A helper whose call would cost more than its work; always part of its caller."""
    return compiled.helper(function, _nrt=False, forceinline=True)


code_point = helper(unicode.code_point.py_func)


@inlined
def point_at(data, i, end):
    """As `code_point`, without a call where the character is ASCII."""
    if data[i] < 0x80:
        return np.int64(data[i]), 1
    return code_point(data, i, end)
