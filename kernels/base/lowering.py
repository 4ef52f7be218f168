"""numba's lowering, with less code for items of arrays, lengths and variables, which are most of what kernels do.

numba writes 25 instructions for `data[i]` and keeps each variable in memory, and LLVM removes most of that. But numba
writes them in Python, as a text that LLVM then parses. What is not written costs nothing.

A negative index counts from the end, as in numba, but for kernels of pages, which have none.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from numba.core import ir, types
from numba.core.analysis import compute_cfg_from_blocks, must_use_alloca
from numba.core.cgutils import gep_inbounds
from numba.core.lowering import Lower
from numba.cpython.slicing import fix_index
from numba.np.arrayobj import load_item, store_item

FROM_THE_FRONT = ("gristmill.kernels.html.", "gristmill.kernels.blocks.")  # no index in these is negative


class LeanLower(Lower):
    """Lowers a function of numba's IR."""

    def setup_function(self, described: Any) -> None:
        super().setup_function(described)
        if getattr(self.func_ir.func_id.func, "is_rare", False):
            self.function.attributes.discard("alwaysinline")  # numba hands it on to all that such a function calls
            self.function.attributes.add("noinline")
            self.function.attributes.add("optsize")

    # --- variables ---------------------------------------------------------------------------------------------------

    def _find_singly_assigned_variable(self) -> None:
        """Finds the variables that need no memory: assigned once, in a block that comes before all others that read
        them. (numba takes only those that no other block reads.)"""
        self._singly_assigned_vars, self._blk_local_varmap = set(), {}
        if self.func_ir.func_id.is_generator:
            return
        defined: dict[str, list[int]] = defaultdict(list)  # by variable: the block of each assignment
        read: dict[str, set[int]] = defaultdict(set)  # the blocks that read it before they assign it
        for label, block in self.func_ir.blocks.items():
            here: set[str] = set()
            for statement in block.body:
                if isinstance(statement, ir.Del):
                    continue
                target = statement.target.name if isinstance(statement, ir.Assign) else None
                for variable in variables_read(statement):
                    if variable not in here:
                        read[variable].add(label)
                if target:
                    defined[target].append(label)
                    here.add(target)
        in_memory = must_use_alloca(self.func_ir.blocks)
        dominators = compute_cfg_from_blocks(self.func_ir.blocks).dominators()
        for name, (label, *more) in defined.items():
            if more or name in in_memory:
                continue
            others = read[name]
            if not others or (
                not self.is_counted(self.typeof(name))
                and all(other > label and label in dominators[other] for other in others)
            ):
                self._singly_assigned_vars.add(name)

    def is_counted(self, kind: types.Type) -> bool:
        """Whether references to values of a type are counted."""
        return self.context.enable_nrt and self.context.data_model_manager[kind].contains_nrt_meminfo()

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if self.is_counted(self.typeof(name)):
            super().storevar(value, name, argidx)
        elif name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
        else:
            self.builder.store(value, self.getvar(name))

    def delvar(self, name: str) -> None:
        """Nothing is left of what is not counted. (numba overwrites it with zeros.)"""
        if self.is_counted(self.typeof(name)):
            super().delvar(name)

    # --- arrays ------------------------------------------------------------------------------------------------------

    def lower_inst(self, statement: Any) -> Any:
        if isinstance(statement, ir.Assign):
            argument = statement.value.index + 1 if isinstance(statement.value, ir.Arg) else None
            value = self.lower_assign(self.typeof(statement.target.name), statement)
            return self.storevar(value, statement.target.name, argument)
        if isinstance(statement, ir.Del):
            return self.delvar(statement.value)
        if isinstance(statement, ir.StaticSetItem) and isinstance(self.typeof(statement.target.name), types.Array):
            signature = self.fndesc.calltypes[statement]
            return self.lower_setitem(statement.target, statement.index_var, statement.value, signature)
        return super().lower_inst(statement)

    def lower_expr(self, result: types.Type, expression: Any) -> Any:
        if expression.op == "static_getitem" and isinstance(self.typeof(expression.value.name), types.Array):
            signature = self.fndesc.calltypes[expression]
            return self.lower_getitem(result, expression, expression.value, expression.index_var, signature)
        if expression.op == "call" and len(expression.args) == 1:
            function, (argument,) = self.typeof(expression.func.name), expression.args
            if (
                isinstance(function, types.Function)
                and function.typing_key is len
                and isinstance(self.typeof(argument.name), types.Array)
            ):
                length = self.field(argument.name, "shape", 0)
                return self.context.cast(self.builder, length, types.intp, result)
        return super().lower_expr(result, expression)

    def lower_getitem(self, result: types.Type, expression: Any, value: Any, index: Any, signature: Any) -> Any:
        place = self.item(value.name, index.name)
        if place is None:
            return super().lower_getitem(result, expression, value, index, signature)
        kind = self.typeof(value.name)
        return self.context.cast(self.builder, load_item(self.context, self.builder, kind, place), kind.dtype, result)

    def lower_setitem(self, target: Any, index: Any, value: Any, signature: Any) -> Any:
        place = self.item(target.name, index.name)
        if place is None:
            return super().lower_setitem(target, index, value, signature)
        kind, given, taken = self.typeof(target.name), self.typeof(value.name), signature.args[2]
        stored = self.context.cast(self.builder, self.loadvar(value.name), given, taken)
        stored = self.context.cast(self.builder, stored, taken, kind.dtype)
        store_item(self.context, self.builder, kind, stored, place)
        return None

    def field(self, array: str, name: str, *inside: int) -> Any:
        """A field of an array; nothing else of it is loaded."""
        position = self.context.data_model_manager[self.typeof(array)].get_field_position(name)
        if array in self._blk_local_varmap:
            return self.builder.extract_value(self._blk_local_varmap[array], [position, *inside])
        return self.builder.load(gep_inbounds(self.builder, self.getvar(array), 0, position, *inside))

    def item(self, array: str, index: str) -> Any:
        """The address of one item of an array in row order; None for all else."""
        kind, index_kind = self.typeof(array), self.typeof(index)
        kinds = tuple(index_kind) if isinstance(index_kind, types.BaseTuple) else (index_kind,)
        if (
            not isinstance(kind, types.Array)
            or kind.layout != "C"
            or len(kinds) != kind.ndim
            or not all(isinstance(types.unliteral(each), types.Integer) for each in kinds)
            or self.context.enable_boundscheck
            or isinstance(kind.dtype, types.Record | types.NestedArray)
        ):
            return None
        value = self.loadvar(index)
        parts = (
            [self.builder.extract_value(value, k) for k in range(len(kinds))] if kinds[0] is not index_kind else [value]
        )
        offset = None
        for axis, (each, part) in enumerate(zip(kinds, parts, strict=True)):
            place = self.place(array, axis, each, part)
            if offset is not None:
                place = self.builder.add(self.builder.mul(offset, self.field(array, "shape", axis)), place)
            offset = place
        return self.builder.gep(self.field(array, "data"), [offset])

    def place(self, array: str, axis: int, kind: types.Type, value: Any) -> Any:
        """An index along an axis, from the beginning."""
        integer = types.unliteral(kind)
        if not integer.signed:
            return self.context.cast(self.builder, value, kind, types.uintp)
        place = self.context.cast(self.builder, value, kind, types.intp)
        if self.func_ir.func_id.modname.startswith(FROM_THE_FRONT) or (
            isinstance(kind, types.Literal) and kind.literal_value >= 0
        ):
            return place
        return fix_index(self.builder, place, self.field(array, "shape", axis))


def variables_read(statement: Any) -> list[str]:
    if not isinstance(statement, ir.Assign):
        return [variable.name for variable in statement.list_vars()]
    if isinstance(statement.value, ir.Var):
        return [statement.value.name]
    return [variable.name for variable in statement.value.list_vars()] if isinstance(statement.value, ir.Inst) else []
