"""numba, as `compiled.py` uses it once a kernel is called: the cache of a kernel, and helpers that are lowered once and
optimised only as part of the kernels that call them.

A kernel that is in the cache is loaded without what numba knows of Python and NumPy, which it would read for each one
that it loads: 0.1 s for the ten kernels of a page, and not 0.7 s. Processes that need one kernel at once compile it
once: the others wait for it.

numba optimises and assembles every function on its own, then links it into its callers and optimises it there again,
once for each step of the way up. A kernel of fifty helpers spends half of its compilation on code that nobody calls.
Here a helper stays as it was lowered. A kernel links what it needs, each helper once, and optimises all of it together.
"""

from __future__ import annotations

import gristmill.kernels.base.numba_alone  # noqa: F401

# isort: split
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, DefaultPassBuilder, compile_result
from numba.core.compiler_machinery import register_pass
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python
from numba.core.serialize import dumps
from numba.core.typed_passes import AnnotateTypes, NativeLowering

from gristmill.kernels.base import portable
from gristmill.kernels.base.code_cache import cache_folder, code_folder, stored
from gristmill.kernels.common.files import whole_file

ENVIRONMENTS = "_ZN08NumbaEnv"  # how numba's names of them begin


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def not_from_python(*_: int) -> None:
    raise TypeError("this is a helper of kernels; Python calls its `py_func`")


class HelperLibrary(JITCodeLibrary):
    """Code as it was lowered."""

    def finalize(self) -> None:
        self._finalized = True

    def _optimize_functions(self, module: Any) -> None:
        """As much as makes the code smaller that kernels take in."""
        module.data_layout = self._codegen._data_layout
        builder = self._codegen._pass_builder()
        for function in module.functions:
            if not function.is_declaration:
                passes = llvm.create_new_function_pass_manager()
                passes.add_sroa_pass()
                passes.add_simplify_cfg_pass()
                passes.add_instruction_combine_pass()
                passes.run(function, builder)

    def alone(self) -> Any:
        """The module without those that it calls."""
        return super()._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        """For a function that numba compiles by itself, which shares numba's own functions with kernels."""
        module = self.alone().clone()
        for library in callers_first(self._linking_libraries):
            module.link_in(AsLowered(library)._get_module_for_linking(), preserve=True)
        return module


class AsLowered:
    """A library for a kernel to link, without those that it calls."""

    def __init__(self, library: JITCodeLibrary) -> None:
        self.library = library
        self._reload_init = library._reload_init

    def _get_module_for_linking(self) -> Any:
        return (
            self.library.alone() if isinstance(self.library, HelperLibrary) else self.library._get_module_for_linking()
        )


class KernelLibrary(JITCodeLibrary):
    """A kernel with its helpers, and theirs."""

    bitcode: bytes | None = None  # of a library from the cache, which is parsed where another kernel links it

    def finalize(self) -> None:
        self._linking_libraries = [AsLowered(library) for library in callers_first(self._linking_libraries)]
        super().finalize()

    def serialized(self) -> tuple[str, bytes, bytes, list[str]]:
        """Its name, machine code, bitcode, and the symbols that it defines."""
        shared = self._get_module_for_linking()
        names = [e.name for each in (shared.functions, shared.global_variables) for e in each if not e.is_declaration]
        return self.name, self._get_compiled_object(), shared.as_bitcode(), names

    @classmethod
    def of(cls, codegen: Any, name: str, machine_code: bytes, bitcode: bytes, names: list[str]) -> KernelLibrary:
        library = cls(codegen, name)
        library.enable_object_caching()
        library._set_compiled_object(machine_code)
        library.bitcode = bitcode
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(names)
        return library

    def _get_module_for_linking(self) -> Any:
        if self._shared_module is None and self.bitcode is not None:
            self._shared_module = llvm.parse_bitcode(self.bitcode)
        return super()._get_module_for_linking()


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


class LeanLowering(NativeLowering):
    """The step that writes LLVM's code."""

    @property
    def lowering_class(self) -> Any:
        from gristmill.kernels.base.lowering import LeanLower  # with what numba knows of arrays

        return LeanLower


@register_pass(mutates_CFG=True, analysis_only=False)
class HelperLowering(LeanLowering):
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
class KernelLowering(LeanLowering):
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


def passes_to(lowering: type[NativeLowering], compiler: CompilerBase) -> list[Any]:
    """numba's passes, but for the last step."""
    passes = DefaultPassBuilder.define_nopython_pipeline(compiler.state)
    passes.add_pass_after(lowering, NativeLowering)
    left_out = (NativeLowering, AnnotateTypes)  # annotations are for people who debug numba
    passes.passes = [(kind, why) for kind, why in passes.passes if kind not in left_out]
    passes.finalize()
    return [passes]


class KernelCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        return passes_to(KernelLowering, self)


class HelperCompiler(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        return passes_to(HelperLowering, self)


# --- the cache --------------------------------------------------------------------------------------------------------


class KernelCache:
    """The machine code of one kernel: a file for each signature and kind of processor, named by both. It lies in a
    folder that is named by the kernel's code alone, so that the same code finds it from any path of installation.

    What is not in the cache may be in a pack. Last comes code of the package for any processor of the last ten years,
    which serves until there is some for this one (`portable.py`).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        code = function.__code__
        self.folder = code_folder(function.__module__)
        self.stem = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-{code.co_firstlineno}"
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        self.code = hashlib.sha256(code.co_code + (dumps(cells) if cells else b"")).hexdigest()
        self.only_native = portable.refused()
        self.came_along: list[tuple[Any, ...]] = []  # signatures whose code is the package's

    def name(self, signature: Any, processor: tuple[str, str, str]) -> str:
        key = repr((tuple(signature), processor, self.code))
        return f"{self.stem}.{hashlib.sha256(key.encode()).hexdigest()[:16]}.nbc"

    def native_name(self, signature: Any) -> str:
        return self.name(signature, cpu_target.target_context.codegen().magic_tuple())

    def is_compiled(self, signature: Any) -> bool:
        """For this processor, in the cache."""
        return (self.folder / self.native_name(signature)).exists()

    def load_overload(self, signature: Any, target: Any) -> CompileResult | None:
        """numba asks for what was compiled for these types."""
        name = self.native_name(signature)
        content = stored(self.folder.name, name)
        if content is None and not self.only_native and portable.serve():
            triple, *_ = target.codegen().magic_tuple()
            content = stored(self.folder.name, self.name(signature, (triple, *portable.PROCESSOR)))
            if content is not None:
                self.came_along.append(tuple(signature))
        return None if content is None else rebuild(pickle.loads(content), target)

    def save_overload(self, signature: Any, result: CompileResult) -> None:
        """Nothing: `compile_once` has saved it."""

    def save(self, signature: Any, result: CompileResult) -> None:
        if result.library.has_dynamic_globals:  # addresses of this process
            return
        environments = result._find_referenced_environments()
        result.fndesc.typemap = result.fndesc.calltypes = None
        content = dumps(
            (
                result.library.serialized(),
                result.fndesc,
                result.environment,
                result.signature,
                result.reload_init,
                environments,
            )
        )
        with whole_file(self.folder / self.native_name(signature), durable=False) as file:
            file.write(content)


def rebuild(content: tuple[Any, ...], target: Any) -> CompileResult:
    """A kernel from the cache. numba first refreshes all that it knows, for what it may have to compile."""
    define_runtime()
    library, description, environment, signature, reload_init, environments = content
    for initialise in reload_init:
        initialise()
    code = KernelLibrary.of(target.codegen(), *library)
    entry = target.get_executable(code, description, environment)
    for each in environments:
        code.codegen.set_env(each.env_name, each)
    return compile_result(
        typing_context=target.typing_context,
        target_context=target,
        entry_point=entry,
        library=code,
        fndesc=description,
        environment=environment,
        signature=signature,
        objectmode=False,
        lifted=(),
        reload_init=reload_init,
        referenced_envs=environments,
    )


@cache
def define_runtime() -> None:
    """Tell LLVM where numba's runtime is, as numba does before it compiles that runtime."""
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@cache
def locks() -> int:
    """The file of locks, one for each kernel that is being compiled: a byte each, so that nothing is left of them."""
    return os.open(cache_folder() / "compiling.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """No other process of this cache is in the block for that name; where a file system has no locks, it may be."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    try:
        fcntl.lockf(locks(), fcntl.LOCK_EX, 1, place)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        fcntl.lockf(locks(), fcntl.LOCK_UN, 1, place)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Little of what a compiler makes is garbage, and looking for it takes a twentieth of its time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def compile_once(compiled: Any) -> None:
    """Let a kernel be compiled by one process of those that need it; the others find it in the cache."""
    kernels, compile_it = compiled._cache, compiled._compiler.compile

    def compile_or_wait(signature: Any, return_type: Any) -> CompileResult:
        with alone(kernels.native_name(signature)), without_collector():
            content = stored(kernels.folder.name, kernels.native_name(signature))  # by now
            if content is not None:
                result = rebuild(pickle.loads(content), compiled.targetctx)
                compiled.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
                return result
            from gristmill.kernels.base.lean import lean  # with what numba knows of arrays

            with lean(lambda compiler: passes_to(HelperLowering, compiler)):
                result = compile_it(signature, return_type)
            kernels.save(signature, result)
            return result

    compiled._compiler.compile = compile_or_wait


def kernel(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """What `compiled.kernel` stands for."""
    compiled = numba.njit(nogil=True, error_model="numpy", pipeline_class=KernelCompiler, **options)(function)
    if not numba.config.DISABLE_JIT:
        compiled._cache = KernelCache(function)
        compiled._compilation_chain_init_hook = no_extensions
        compile_once(compiled)
    return compiled


def no_extensions() -> None:
    """Kernels use none of numba; looking for them reads the metadata of each package that is installed."""


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


# --- kernels that came with the package, and what replaces them -------------------------------------------------------


@cache
def in_use() -> dict[Any, None]:
    """The kernels that this process has called, as `compiled.Deferred`."""
    return {}


def compile_for_this_processor() -> None:
    """Compile what this process has loaded of the package's kernels, for the cache."""
    for deferred in list(in_use()):
        loaded = deferred.compiled._cache.came_along
        if loaded:
            native = deferred.compile_by(sys.modules[__name__])
            native._cache.only_native = True
            for signature in loaded:
                native.compile(signature)


def take_over() -> int:
    """Let the package's kernels give way to those that were compiled for this processor since; how many are left."""
    left = 0
    for deferred in list(in_use()):
        kernels = deferred.compiled._cache
        if kernels.came_along and all(map(kernels.is_compiled, kernels.came_along)):
            del deferred.compiled  # the next call loads it
        else:
            left += bool(kernels.came_along)
    return left
