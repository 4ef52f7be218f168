"""What kernels are declared with: `kernel`, `helper` and `intrinsic`. numba compiles them without the GIL, into the
cache of `code_cache.py`.

numba and LLVM take a third of a second to import, and nobody needs them before a kernel is called: what is declared
here is compiled then (`compiler.py`), so a program that only reads the settings of stages never waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, update_wrapper
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Deferred:
    """A function that numba compiles when it is first called."""

    def __init__(self, function: Callable[..., Any], compile_by: Callable[[ModuleType], Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self.compile_by = compile_by

    @cached_property
    def compiled(self) -> Any:
        from gristmill.kernels.base import compiler  # and numba

        return self.compile_by(compiler)

    @property
    def _numba_type_(self) -> Any:
        """Its type in kernels that call it; numba asks for it."""
        from gristmill.kernels.base import compiler

        return compiler.type_of(self.compiled)

    # Calling it calls the compiled function, without a Python call between.
    __call__ = property(attrgetter("compiled"))


class DeferredKernel(Deferred):
    """A kernel, of which the process keeps account."""

    @cached_property
    def compiled(self) -> Any:
        from gristmill.kernels.base import compiler

        compiler.in_use()[self] = None
        return self.compile_by(compiler)

    __call__ = property(attrgetter("compiled"))


def kernel(function: F, **options: Any) -> F:
    """Compiles a loop that releases the GIL, and caches it. Division by zero gives inf or NaN, never an exception."""
    return cast(F, DeferredKernel(function, lambda compiler: compiler.kernel(function, options)))


def helper(function: F, **options: Any) -> F:
    """Compiles a small function that kernels call and that is compiled into them."""
    return cast(F, Deferred(function, lambda compiler: compiler.helper(function, options)))


def intrinsic(function: F) -> F:
    """Declares machine code that kernels call: the function gives its signature, and writes it with `ir`."""
    return cast(F, Deferred(function, lambda compiler: compiler.intrinsic(function)))


class DeferredModule:
    """A module that is imported when something of it is first used."""

    def __init__(self, load: Callable[[], ModuleType]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load(), name)


ir = DeferredModule(lambda: import_module("llvmlite.ir"))  # for intrinsics
types = DeferredModule(lambda: import_module("numba.core.types"))


def take_over() -> None:
    """Let kernels that came with the package give way to those that were compiled for this processor since."""
    compiler = sys.modules.get("gristmill.kernels.base.compiler")
    if compiler is not None:
        compiler.take_over()
