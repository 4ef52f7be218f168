"""What numba does for every function that it compiles and no kernel needs: left out while one is compiled.

- Machine code of numba's own functions (`np.empty`, `min`): kernels link them as they link helpers, as lowered.
- An error message that is put together of strings for each slice that is assigned: four functions, and two of `str`.
- The values of all flags of the compiler, one by one, each time that it compares two sets of them.
- Colors of error messages, where colorama is installed: numba makes and catches hundreds.
- Types of statements whose variables have the types that they had; numba infers those of all until none changes.
- A version of a helper for each integer that it is called with.
- Signatures of functions of numba for types that were asked for before, in inference and again in lowering.
- Blocks that a variable is not in, while its assignments are numbered.
- Lifetimes of variables after each pass, and rewriting of expressions of arrays where there are none.
- A look for new registrations each time that numba finds no function, which it then tries another way.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.core import errors, ir, ssa, typeinfer, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager, _pass_registry
from numba.core.errors import ForceLiteralArg, TypingError
from numba.core.postproc import PostProcessor, VariableLifetime
from numba.core.registry import cpu_target
from numba.core.targetconfig import TargetConfig
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import NopythonRewrites
from numba.core.types import BaseFunction
from numba.core.utils import chain_exception
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
        replace(typeinfer.TypeVarMap, "__getitem__", type_asked_for)
        replace(typeinfer.ConstraintNetwork, "propagate", infer_changes)
        replace(BaseFunction, "get_call_type", remembered(BaseFunction.get_call_type))
        replace(types.Dispatcher, "get_call_type", by_kinds(types.Dispatcher.get_call_type))
        replace(ssa, "_run_ssa", number_assignments)
        replace(ssa, "_run_block_rewrite", rewrite_where_it_is)
        replace(PassManager, "run", run_passes)
        replace(PostProcessor, "run", process_at_last(PostProcessor.run))
        replace(NopythonRewrites, "run_pass", rewrite_arrays(NopythonRewrites.run_pass))
        replace(type(cpu_target.target_context), "refresh", refresh_if_new(type(cpu_target.target_context).refresh))
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


# --- inference --------------------------------------------------------------------------------------------------------


def type_asked_for(variables: Any, name: str) -> Any:
    """Stands for `TypeVarMap.__getitem__`: the type of a variable, of which account is kept."""
    variable = dict.get(variables, name)
    if variable is None:
        variable = typeinfer.TypeVar(variables.context, name)
        variables[name] = variable
    vars(variables).setdefault("asked", []).append(variable)
    return variable


def infer_changes(network: Any, inferer: Any) -> list[Exception]:
    """Stands for `ConstraintNetwork.propagate`: infers types by each statement one of whose types has changed."""
    known = vars(network).setdefault("known", {})  # of a constraint: the variables that it asked for, with their types
    failures: list[Exception] = []
    for constraint in network.constraints:
        if constraint in known and all(variable.type is kind for variable, kind in known[constraint]):
            continue
        inferer.typevars.asked = asked = []
        try:
            constraint(inferer)
        except ForceLiteralArg as error:
            failures.append(error)
        except TypingError as error:
            located = TypingError(str(error), loc=constraint.loc, highlighting=False)
            failures.append(chain_exception(located, error))
        else:
            known[constraint] = [(variable, variable.type) for variable in asked]
    return failures


def remembered(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Signatures by function and types of arguments."""
    answers: dict[tuple[int, Any], tuple[Any, Any]] = {}

    def get_call_type(function: Any, context: Any, arguments: Any, named: Any) -> Any:
        if named:
            return resolve(function, context, arguments, named)
        key = id(function), arguments
        if key not in answers:
            answers[key] = resolve(function, context, arguments, named), function  # which keeps its number
        return answers[key][0]

    return get_call_type


def by_kinds(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """Signatures of helpers by the types of integers that they are called with, and not by their values."""

    def get_call_type(function: Any, context: Any, arguments: Any, named: Any) -> Any:
        if not named:
            arguments = tuple(types.unliteral(each) if isinstance(each, types.Integer) else each for each in arguments)
        return resolve(function, context, arguments, named)

    return get_call_type


# --- single assignments -----------------------------------------------------------------------------------------------


class PlacedBlocks(dict[int, Any]):
    """Blocks of a function, and in which of them a variable is."""

    places: dict[str, set[int]]


def number_assignments(blocks: dict[int, Any]) -> dict[int, Any]:
    """Stands for `_run_ssa`."""
    if not blocks:
        return {}
    placed = PlacedBlocks(blocks)
    placed.places = defaultdict(set)
    for label, block in blocks.items():
        for statement in block.body:
            for variable in statement.list_vars():
                placed.places[variable.name].add(label)
    graph = compute_cfg_from_blocks(blocks)
    frontiers, read = ssa._iterated_domfronts(graph), ssa._CacheListVars()
    for name in ssa._find_defs_violators(blocks, graph):
        placed, defined = ssa._fresh_vars(placed, name)
        placed = ssa._fix_ssa_vars(placed, name, defined, graph, frontiers, read)
    return dict(placed)


REWRITE = ssa._run_block_rewrite


def rewrite_where_it_is(blocks: PlacedBlocks, states: dict[str, Any], handler: Any) -> PlacedBlocks:
    """Stands for `_run_block_rewrite`: leaves blocks as they are that the variable is not in."""
    labels = blocks.places[states["varname"]]
    rewritten = REWRITE({label: block for label, block in blocks.items() if label in labels}, states, handler)
    placed = PlacedBlocks((label, rewritten.get(label, block)) for label, block in blocks.items())
    placed.places = blocks.places
    return placed


# --- passes -----------------------------------------------------------------------------------------------------------


def run_passes(passes: PassManager, state: Any) -> None:
    """Stands for `PassManager.run`. Passes that need lifetimes of variables find them by themselves."""
    for kind, _ in passes.passes:
        current = _pass_registry.get(kind).pass_inst
        current.analysis = passes._analysis
        current.run_initialization(state)
        current.run_pass(state)
        current.run_finalizer(state)


def process_at_last(process: Callable[..., None]) -> Callable[..., None]:
    """Stands for `PostProcessor.run`, which finds out which variables are alive at each block, for generators alone."""

    def run(processor: PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        function = processor.func_ir
        if function.is_generator:
            process(processor, emit_dels, extend_lifetimes)
            return
        function.blocks = canonicalize_cfg(function.blocks)
        function.variable_lifetime = VariableLifetime(function.blocks)
        function.generator_info = None
        if emit_dels:
            processor._insert_var_dels(extend_lifetimes=extend_lifetimes)

    return run


def rewrite_arrays(rewrite: Callable[..., bool]) -> Callable[..., bool]:
    """Stands for `NopythonRewrites.run_pass`, which looks for expressions of arrays, for arrays of constants, and for
    items by name."""

    def run_pass(rewrites: NopythonRewrites, state: Any) -> bool:
        kinds = state.typemap
        for block in state.func_ir.blocks.values():
            for statement in block.find_insts(ir.Assign):
                kind, value = kinds[statement.target.name], statement.value
                if isinstance(kind, types.StringLiteral) or (
                    isinstance(value, ir.Expr) and rewrites_it(kind, value, kinds)
                ):
                    return rewrite(rewrites, state)
        return False

    return run_pass


def rewrites_it(kind: Any, value: Any, kinds: dict[str, Any]) -> bool:
    if value.op == "build_list":
        return True
    if not isinstance(kind, types.Array):
        return False
    return value.op in ("binop", "inplace_binop", "unary") or (
        value.op == "call" and isinstance(getattr(kinds[value.func.name], "typing_key", None), np.ufunc)
    )


def refresh_if_new(refresh: Callable[[Any], None]) -> Callable[[Any], None]:
    """Stands for `refresh` of numba's contexts, which looks at each registry."""
    seen: list[int] = []

    def refresh_context(context: Any) -> None:
        registries = *context._registries, *context.typing_context._registries
        count = sum(len(of) for each in registries for of in vars(each).values() if isinstance(of, list))
        if seen != [count]:
            seen[:] = [count]
            refresh(context)

    return refresh_context
