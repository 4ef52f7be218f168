"""Helpers are lowered once and optimised only as part of the kernels that call them.

numba optimises and assembles every function on its own, then links it into its callers and optimises it there again,
once for each step of the way up. A kernel of fifty helpers spends half of its compilation on code that nobody calls.
Here a helper stays as it was lowered. A kernel links what it needs, each helper once, and optimises all of it together.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.environment import lookup_environment
from numba.core.typed_passes import NativeLowering

ENVIRONMENTS = "_ZN08NumbaEnv"  # how numba's names of them begin


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def not_from_python(*_: int) -> None:
    raise TypeError("this is a helper of kernels; Python calls its `py_func`")


class HelperLibrary(JITCodeLibrary):
    """Code as it was lowered."""

    def finalize(self) -> None:
        self._finalized = True


class KernelLibrary(JITCodeLibrary):
    """A kernel with its helpers, and theirs."""

    def finalize(self) -> None:
        self._linking_libraries = callers_first(self._linking_libraries)
        super().finalize()


def callers_first(libraries: list[JITCodeLibrary]) -> list[JITCodeLibrary]:
    """These and all that the helpers among them call. The linker takes in what is called by something that it has."""
    ordered: dict[JITCodeLibrary, None] = {}

    def visit(library: JITCodeLibrary) -> None:
        if library not in ordered:
            for called in library._linking_libraries if isinstance(library, HelperLibrary) else ():
                visit(called)
            ordered[library] = None

    for library in libraries:
        visit(library)
    return list(reversed(ordered))


@register_pass(mutates_CFG=True, analysis_only=False)
class HelperLowering(NativeLowering):
    _name = "gristmill_helper_lowering"

    def run_pass(self, state: Any) -> bool:
        library = state.library = HelperLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        lowered = state["cr"]
        address = ctypes.cast(not_from_python, ctypes.c_void_p).value
        entry = _dynfunc.make_function(
            lowered.fndesc.lookup_module(), state.func_id.func_name, "a helper", address, lowered.env, (library,)
        )
        state.targetctx.insert_user_function(entry, lowered.fndesc, [library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(NativeLowering):
    _name = "gristmill_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        library = state.library = KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        library.enable_object_caching()
        state.flags.no_cfunc_wrapper = True
        super().run_pass(state)
        for name in [variable.name for variable in library._final_module.global_variables]:
            environment = lookup_environment(name) if name.startswith(ENVIRONMENTS) else None
            if environment is not None:
                library.codegen.set_env(name, environment)
        return True


class KernelCompiler(CompilerBase):
    """numba's, but for the last step."""

    lowering = KernelLowering

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(self.lowering, NativeLowering)
        passes.passes = [(kind, why) for kind, why in passes.passes if kind is not NativeLowering]
        passes.finalize()
        return [passes]


class HelperCompiler(KernelCompiler):
    lowering = HelperLowering
