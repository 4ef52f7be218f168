"""numba, as `compiled.py` uses it once a kernel is called: the cache of a kernel, and helpers that are lowered once and
optimised only as part of the kernels that call them.

numba optimises and assembles every function on its own, then links it into its callers and optimises it there again,
once for each step of the way up. A kernel of fifty helpers spends half of its compilation on code that nobody calls.
Here a helper stays as it was lowered. A kernel links what it needs, each helper once, and optimises all of it together.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba import _dynfunc
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering

from gristmill.kernels.base.code_cache import PACKS, cache_folder, code_folder


def import_array_functions() -> None:
    """Import numba's functions of arrays without SciPy's linear algebra, of which numba asks only whether it is there.
    That took a third of the time to load the first kernel. A kernel that multiplies matrices imports it."""
    if "scipy" not in sys.modules:  # numba has looked for it
        return
    from numba.np import linalg

    imports = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = imports


import_array_functions()

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


class Locator(_CacheLocator):
    """Where numba keeps a kernel: in a folder that is named by its code alone, so that the same code finds it from any
    path of installation."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file, self._lineno = file, function.__code__.co_firstlineno
        self.folder = code_folder(function.__module__)

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> Locator:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return str(self.folder)

    def get_source_stamp(self) -> str:
        return self.folder.name

    def get_disambiguator(self) -> str:
        return str(self._lineno)


class Implementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar[list[type]] = [Locator]


class KernelFiles(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one kernel. numba numbers them, so that of two processes that compile for two signatures at once one
    may load what the other has compiled; here a file is named by its signature."""

    def save(self, key: Any, data: Any) -> None:
        name = f"{self._index_name.removesuffix('.nbi')}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        self._save_data(name, data)
        self._save_index(self._load_index() | {key: name})


class KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of a function, and behind it the packs that came from elsewhere: what is used of one is copied."""

    _impl_class = Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = self._files_in(self._impl.locator.folder)

    def _files_in(self, folder: Path) -> KernelFiles:
        return KernelFiles(str(folder), self._impl.filename_base, self._impl.locator.get_source_stamp())

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super()._load_overload(sig, target_context)
        if found is not None:
            return found
        key, folder = self._index_key(sig, target_context.codegen()), self._impl.locator.folder
        for pack in sorted((cache_folder() / PACKS).glob("[0-9a-f]*")):
            data = self._files_in(pack / folder.name).load(key)
            if data is not None:
                self._cache_file.save(key, data)
                return self._impl.rebuild(target_context, data)
        return None


def kernel(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """What `compiled.kernel` stands for."""
    compiled = numba.njit(nogil=True, error_model="numpy", pipeline_class=KernelCompiler, **options)(function)
    compiled._cache = KernelCache(function)
    return compiled


def helper(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """What `compiled.helper` stands for."""
    return numba.njit(nogil=True, error_model="numpy", pipeline_class=HelperCompiler, **options)(function)


def intrinsic(function: Callable[..., Any]) -> Any:
    """What `compiled.intrinsic` stands for."""
    made = numba.extending.intrinsic(function)
    cpu_target.typing_context.refresh()  # which may be in the middle of a kernel that calls it
    return made


def type_of(compiled: Any) -> Any:
    """The type of a kernel, helper or intrinsic in code that calls it."""
    return cpu_target.typing_context.resolve_value_type(compiled)
