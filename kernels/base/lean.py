"""What numba does for every function that it compiles and no kernel needs: left out while one is compiled. It was a
quarter of the time.

- Machine code of numba's own functions (`np.empty`, `min`): kernels link them as they link helpers, as lowered.
- An error message that is put together of strings for each slice that is assigned: four functions, and two of `str`.
- The values of all flags of the compiler, one by one, each time that it compares two sets of them.
- Colors of error messages, where colorama is installed: numba makes and catches hundreds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from numba.core import errors
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.core.targetconfig import TargetConfig
from numba.extending import overload


def import_array_functions() -> None:
    """Import numba's functions of arrays without SciPy's linear algebra, of which numba asks only whether it is there.
    A kernel that multiplies matrices imports it."""
    from numba.np import linalg

    imports = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = imports


import_array_functions()
from numba.np import arrayobj  # noqa: E402

PLAIN = SimpleNamespace(**dict.fromkeys(("code", "errmsg", "filename", "indicate", "highlight", "reset"), str))


@contextlib.contextmanager
def lean(pipelines: Callable[[Compiler], list[Any]]) -> Iterator[None]:
    """In the block numba's own functions go through these passes."""
    cpu_target.target_context.refresh()  # its runtime, which is called from Python too, is compiled as ever
    with contextlib.ExitStack() as stack:

        def replace(where: Any, name: str, value: Any) -> None:
            own = name in vars(where)
            stack.callback(setattr, where, name, getattr(where, name)) if own else stack.callback(delattr, where, name)
            setattr(where, name, value)

        replace(Compiler, "define_pipelines", pipelines)
        replace(arrayobj, "raise_with_shape_context", sizes_differ)
        replace(TargetConfig, "values", values_of_flags)
        replace(errors, "termcolor", lambda: PLAIN)
        yield


def values_of_flags(flags: TargetConfig) -> dict[str, Any]:
    return {**defaults_of(type(flags)), **flags._values}


@cache
def defaults_of(kind: type[TargetConfig]) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}


def sizes_differ(source: Any, target: Any) -> None:
    """Stands for numba's `raise_with_shape_context`."""


@overload(sizes_differ)
def raise_that_sizes_differ(source: Any, target: Any) -> Any:
    def implementation(source: Any, target: Any) -> None:
        raise ValueError("cannot assign slice from input of different size")

    return implementation
