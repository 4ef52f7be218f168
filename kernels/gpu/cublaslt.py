"""fp8 matmuls by cuBLASLt itself: with GELU and rounding to fp8 as epilogue, or with a sum as prologue. Torch's own
call has neither, and a pass over memory for each costs up to a fifth of the matmul.

`answer = x @ weight.T * scales + bias`, accumulated in float32. T tokens, K and N widths; sizes are multiples of 16.
The library is the one that torch has loaded; where it is missing or refuses, `works` says so before anything depends on
it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gristmill.kernels.gpu.plain import FP8, rounded

WORKSPACE = 32 << 20
MOST_PLANS = 256  # some kilobytes each; the last step of a stream of texts has a size of its own

# From cublasLt.h and library_types.h.
_COMPUTE_32F, _R_32F, _R_16BF, _R_8F_E4M3 = 68, 0, 14, 28
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _A_SCALE, _B_SCALE, _D_SCALE, _FAST_ACCUM, _BIAS_TYPE = (
    3,
    4,
    7,
    8,
    17,
    18,
    20,
    25,
    26,
)
_BIAS, _GELU_BIAS = 4, 36
_MOST_WORKSPACE = 1


def gelu_rounded(
    x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, shrink: Tensor
) -> Tensor:
    """GELU (by tanh) of the linear map, times `shrink`, in fp8. Scales are float32 scalars on the device."""
    x8 = in_sixteens(x8_TK)
    answer = x8.new_empty(len(x8), len(weight8_NK), dtype=FP8)
    _multiply(x8, weight8_NK, bias_N, x_scale, weight_scale, answer, shrink=shrink)
    return answer[: len(x8_TK)]


def linear_added(
    x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, to_TN: Tensor
) -> Tensor:
    """`to` plus the linear map, in bf16, rounded once."""
    if to_TN.shape != (len(x8_TK), len(weight8_NK)):
        raise ValueError(f"{len(x8_TK)} x {len(weight8_NK)} cannot be added to {tuple(to_TN.shape)}")
    x8, to = in_sixteens(x8_TK), in_sixteens(to_TN)
    answer = torch.empty_like(to)
    _multiply(x8, weight8_NK, bias_N, x_scale, weight_scale, answer, to=to)
    return answer[: len(x8_TK)]


def in_sixteens(x: Tensor) -> Tensor:
    """Rows end to end, padded with zeros to a multiple of 16, so that there are fewer sizes to plan for."""
    rows, width = x.shape
    if rows % 16 == 0:
        return x.contiguous()
    filled = torch.zeros(rows + -rows % 16, width * x.element_size(), dtype=torch.uint8, device=x.device)
    filled[:rows] = x.contiguous().view(torch.uint8)
    return filled.view(x.dtype)


def gelu_rounded_plain(
    x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, shrink: Tensor
) -> Tensor:
    return rounded(F.gelu(_linear_plain(x8_TK, weight8_NK, bias_N, x_scale, weight_scale), approximate="tanh"), shrink)


def linear_added_plain(
    x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, to_TN: Tensor
) -> Tensor:
    return (to_TN.float() + _linear_plain(x8_TK, weight8_NK, bias_N, x_scale, weight_scale)).to(to_TN.dtype)


def _linear_plain(x8: Tensor, weight8: Tensor, bias: Tensor, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
    return F.linear(x8.float() * x_scale, weight8.float() * weight_scale, bias.float())


@cache
def works(card: int, width: int, inner: int) -> bool:
    """Whether both kernels equal their references on this device, from one width to the other and back."""
    device = torch.device("cuda", card)
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 9):
        return False
    chance = torch.Generator(device).manual_seed(0)
    sizes = ((64, width), (64, inner), (64, width), (inner, width))
    x, between, to, up = (torch.randn(size, device=device, generator=chance) for size in sizes)
    down, unit = up.t().contiguous(), torch.ones(1, device=device)
    there = (x.to(FP8), up.to(FP8), up[:, 0].bfloat16(), unit, unit / width**0.5, 8 * unit)
    back = (between.to(FP8), down.to(FP8), to[0].bfloat16(), unit, unit / inner**0.5, to.bfloat16())
    try:
        answers = [(gelu_rounded(*there), gelu_rounded_plain(*there)), (linear_added(*back), linear_added_plain(*back))]
    except torch.OutOfMemoryError:
        raise
    except (OSError, AttributeError, RuntimeError):  # no such library, or no such product
        return False
    return all(float((ours.float() - plain.float()).norm() / plain.float().norm()) < 0.03 for ours, plain in answers)


class _Plan(NamedTuple):
    """The plan of one kind of matmul. The pointers in its description are set at each call."""

    description: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]  # of weight, x, what is added, answer
    algorithm: Any
    workspace: int


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_plans: dict[tuple[Any, ...], _Plan] = {}  # least recently used first
_one_at_a_time = Lock()  # around plans and the pointers in them
_ZERO, _ONE = ctypes.c_float(0.0), ctypes.c_float(1.0)


def _multiply(
    x8: Tensor,
    weight8: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    answer: Tensor,
    shrink: Tensor | None = None,
    to: Tensor | None = None,
) -> None:
    (T, K), N = x8.shape, len(weight8)
    if not (x8.is_contiguous() and weight8.is_contiguous() and weight8.shape[1] == K and bias.shape == (N,)):
        raise ValueError(
            f"{tuple(x8.shape)} by {tuple(weight8.shape)} with a bias of {tuple(bias.shape)}: rows end to end, that "
            "fit, are wanted"
        )
    for tensor, kind in (
        (x8, FP8),
        (weight8, FP8),
        (bias, torch.bfloat16),
        (to, torch.bfloat16),
        *((s, torch.float32) for s in (x_scale, weight_scale, shrink)),
    ):
        if tensor is not None and tensor.dtype != kind:
            raise ValueError(f"{tensor.dtype} where {kind} is wanted")
    if not T:
        return
    pointers = [(_BIAS_POINTER, bias), (_A_SCALE, weight_scale), (_B_SCALE, x_scale)] + (
        [] if shrink is None else [(_D_SCALE, shrink)]
    )
    with torch.cuda.device(x8.device):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        added = ctypes.c_void_p(None if to is None else to.data_ptr())
        with _one_at_a_time:
            key = (x8.device.index, T, N, K, answer.dtype, to is None)
            plan = _plans[key] = _plans.pop(key, None) or _planned(T, N, K, answer.dtype, pointers)
            if len(_plans) > MOST_PLANS:
                _forget(_plans.pop(next(iter(_plans))))
            workspace = torch.empty(plan.workspace, dtype=torch.uint8, device=x8.device)
            _point(plan.description, pointers)
            _checked(
                _library().cublasLtMatmul(
                    _handle(x8.device.index), plan.description, ctypes.byref(_ONE), ctypes.c_void_p(weight8.data_ptr()),
                    plan.layouts[0],
                    ctypes.c_void_p(x8.data_ptr()), plan.layouts[1], ctypes.byref(_ZERO if to is None else _ONE), added,
                    plan.layouts[2],
                    ctypes.c_void_p(answer.data_ptr()), plan.layouts[3], ctypes.byref(plan.algorithm),
                    ctypes.c_void_p(workspace.data_ptr()),
                    ctypes.c_size_t(plan.workspace), stream,
                )
            )  # fmt: skip


def _planned(T: int, N: int, K: int, kind: torch.dtype, pointers: list[tuple[int, Tensor]]) -> _Plan:
    """cuBLASLt is column-major: a row-major answer is its transpose, so weight is the first matrix and x the second."""
    library, description = _library(), ctypes.c_void_p()
    _checked(library.cublasLtMatmulDescCreate(ctypes.byref(description), _COMPUTE_32F, _R_32F))
    for name, number in (
        (_TRANSA, 1), (_TRANSB, 0), (_EPILOGUE, _GELU_BIAS if kind == FP8 else _BIAS), (_BIAS_TYPE, _R_16BF),
    ):  # fmt: skip
        _set(description, name, ctypes.c_int32(number))
    _set(description, _FAST_ACCUM, ctypes.c_int8(1))
    _point(description, pointers)  # the pointers decide which algorithms there are
    layouts = []
    for type_, rows, columns in (
        (_R_8F_E4M3, K, N), (_R_8F_E4M3, K, T), (_R_16BF, N, T), (_R_8F_E4M3 if kind == FP8 else _R_16BF, N, T),
    ):  # fmt: skip
        layouts.append(ctypes.c_void_p())
        status = library.cublasLtMatrixLayoutCreate(
            ctypes.byref(layouts[-1]), type_, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        )
        _checked(status)
    algorithm, workspace = _algorithms(description, tuple(layouts), 1)[0]
    return _Plan(description, tuple(layouts), algorithm, workspace)


def _forget(plan: _Plan) -> None:
    """Kernels in flight are not affected: descriptions are read when a matmul is launched."""
    for layout in plan.layouts:
        _library().cublasLtMatrixLayoutDestroy(layout)
    _library().cublasLtMatmulDescDestroy(plan.description)


def _algorithms(description: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...], most: int) -> list[tuple[Any, int]]:
    """The fastest algorithms by cuBLASLt's heuristic, each with the workspace that it needs."""
    library, preference, results, many = _library(), ctypes.c_void_p(), (_Heuristic * most)(), ctypes.c_int()
    _checked(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    size = ctypes.c_size_t(WORKSPACE)
    _checked(
        library.cublasLtMatmulPreferenceSetAttribute(
            preference, _MOST_WORKSPACE, ctypes.byref(size), ctypes.c_size_t(8)
        )
    )
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(torch.cuda.current_device()), description, *layouts, preference, most, results, ctypes.byref(many)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    _checked(status)
    if not many.value:
        raise RuntimeError("cuBLASLt knows no way to make a product of these sizes and types")
    return [(way.algorithm, way.workspace) for way in results[: many.value]]


def _point(description: ctypes.c_void_p, pointers: list[tuple[int, Tensor]]) -> None:
    for name, tensor in pointers:
        _set(description, name, ctypes.c_void_p(tensor.data_ptr()))


def _set(description: ctypes.c_void_p, name: int, value: Any) -> None:
    _checked(
        _library().cublasLtMatmulDescSetAttribute(
            description, name, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
        )
    )


@cache
def _library() -> Any:
    """Torch has loaded it already, so its name suffices."""
    version = torch.version.cuda or ""
    return ctypes.CDLL(f"libcublasLt.so.{version.partition('.')[0]}")


@cache
def _handle(card: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    with torch.cuda.device(card):
        _checked(_library().cublasLtCreate(ctypes.byref(handle)))
    return handle


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt answers {status}")
