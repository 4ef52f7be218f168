"""Products in fp8 by cuBLASLt itself: those that end in GELU and round what it gives to fp8 again, and those that begin with a sum. Torch's own call has
neither, and a pass over memory for each costs as much as a fifth of the product.

`answer = x @ weight.T * scales + bias`, of float32 sums. T tokens, K and N widths; sizes are multiples of 16. The library is the one that torch has loaded;
where it is not there, or refuses, `works` says so before anything depends on it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
WORKSPACE = 32 << 20

# From cublasLt.h and library_types.h.
_COMPUTE_32F, _R_32F, _R_16BF, _R_8F_E4M3 = 68, 0, 14, 28
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _A_SCALE, _B_SCALE, _D_SCALE, _FAST_ACCUM, _BIAS_TYPE = 3, 4, 7, 8, 17, 18, 20, 25, 26
_BIAS, _GELU_BIAS = 4, 36
_MOST_WORKSPACE = 1


def gelu_rounded(x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, shrink: Tensor) -> Tensor:
    """GELU (by tanh) of the linear map, times `shrink`, in fp8. Scales are float32, one number each, on the device."""
    answer = x8_TK.new_empty(len(x8_TK), len(weight8_NK), dtype=FP8)
    _multiply(x8_TK, weight8_NK, bias_N, x_scale, weight_scale, answer, shrink=shrink)
    return answer


def linear_added(x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, to_TN: Tensor) -> Tensor:
    """`to` and the linear map, bf16, rounded once."""
    answer = torch.empty_like(to_TN, memory_format=torch.contiguous_format)
    _multiply(x8_TK, weight8_NK, bias_N, x_scale, weight_scale, answer, to=to_TN.contiguous())
    return answer


def gelu_rounded_plain(x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, shrink: Tensor) -> Tensor:
    wide = F.gelu(_linear_plain(x8_TK, weight8_NK, bias_N, x_scale, weight_scale), approximate="tanh")
    return (wide * shrink).clamp(-LARGEST, LARGEST).to(FP8)


def linear_added_plain(x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor, x_scale: Tensor, weight_scale: Tensor, to_TN: Tensor) -> Tensor:
    return (to_TN.float() + _linear_plain(x8_TK, weight8_NK, bias_N, x_scale, weight_scale)).to(to_TN.dtype)


def _linear_plain(x8: Tensor, weight8: Tensor, bias: Tensor, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
    return F.linear(x8.float() * x_scale, weight8.float() * weight_scale, bias.float())


@cache
def works(card: int) -> bool:
    """Whether both answer as their twins do on this device."""
    device = torch.device("cuda", card)
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < (8, 9):
        return False
    chance = torch.Generator(device).manual_seed(0)
    x, weight, to = (torch.randn(256, 256, device=device, generator=chance) for _ in range(3))
    one = torch.ones(1, device=device)
    given = (x.to(FP8), weight.to(FP8), to[0].bfloat16(), one, one / 16)
    try:
        answers = [(gelu_rounded(*given, 8 * one), gelu_rounded_plain(*given, 8 * one))]
        answers.append((linear_added(*given, to.bfloat16()), linear_added_plain(*given, to.bfloat16())))
    except (OSError, RuntimeError):  # no such library, or no such product
        return False
    return all(float((ours.float() - plain.float()).norm() / plain.float().norm()) < 0.03 for ours, plain in answers)


class _Plan(NamedTuple):
    """How one kind of product is made. The description's pointers are set at each call, under the lock."""

    description: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]  # of weight, x, what is added, answer
    algorithm: Any
    workspace: int
    lock: Lock


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_plans: dict[tuple[Any, ...], _Plan] = {}
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
    if not (x8.is_contiguous() and weight8.is_contiguous() and weight8.shape[1] == K and bias.dtype == torch.bfloat16):
        raise ValueError(f"{tuple(x8.shape)} by {tuple(weight8.shape)} with a bias of {bias.dtype}: rows end to end, and bf16, are wanted")
    pointers = [(_BIAS_POINTER, bias), (_A_SCALE, weight_scale), (_B_SCALE, x_scale)] + ([] if shrink is None else [(_D_SCALE, shrink)])
    with torch.cuda.device(x8.device):
        key = (x8.device.index, T, N, K, answer.dtype, to is None)
        plan = _plans.get(key) or _plans.setdefault(key, _planned(T, N, K, answer.dtype, pointers))
        workspace = torch.empty(plan.workspace, dtype=torch.uint8, device=x8.device)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        added = ctypes.c_void_p(None if to is None else to.data_ptr())
        with plan.lock:
            _point(plan.description, pointers)
            _checked(
                _library().cublasLtMatmul(
                    _handle(x8.device.index), plan.description, ctypes.byref(_ONE), ctypes.c_void_p(weight8.data_ptr()), plan.layouts[0],
                    ctypes.c_void_p(x8.data_ptr()), plan.layouts[1], ctypes.byref(_ZERO if to is None else _ONE), added, plan.layouts[2],
                    ctypes.c_void_p(answer.data_ptr()), plan.layouts[3], ctypes.byref(plan.algorithm), ctypes.c_void_p(workspace.data_ptr()),
                    ctypes.c_size_t(plan.workspace), stream,
                )
            )  # fmt: skip


def _planned(T: int, N: int, K: int, kind: torch.dtype, pointers: list[tuple[int, Tensor]]) -> _Plan:
    """cuBLASLt counts in columns: a row-major answer is its transpose, and so weight is the first matrix and x the second."""
    library, description = _library(), ctypes.c_void_p()
    _checked(library.cublasLtMatmulDescCreate(ctypes.byref(description), _COMPUTE_32F, _R_32F))
    for name, number in (
        (_TRANSA, 1), (_TRANSB, 0), (_EPILOGUE, _GELU_BIAS if kind == FP8 else _BIAS), (_BIAS_TYPE, _R_16BF),
    ):  # fmt: skip
        _set(description, name, ctypes.c_int32(number))
    _set(description, _FAST_ACCUM, ctypes.c_int8(1))
    _point(description, pointers)  # which there are decides what can be chosen
    layouts = []
    for type_, rows, columns in (
        (_R_8F_E4M3, K, N), (_R_8F_E4M3, K, T), (_R_16BF, N, T), (_R_8F_E4M3 if kind == FP8 else _R_16BF, N, T),
    ):  # fmt: skip
        layouts.append(ctypes.c_void_p())
        made = library.cublasLtMatrixLayoutCreate(
            ctypes.byref(layouts[-1]), type_, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        )
        _checked(made)
    algorithm, workspace = _algorithms(description, tuple(layouts), 1)[0]
    return _Plan(description, tuple(layouts), algorithm, workspace, Lock())


def _algorithms(description: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...], most: int) -> list[tuple[Any, int]]:
    """The ways that cuBLASLt's heuristic thinks fastest, each with the workspace that it needs."""
    library, preference, found, many = _library(), ctypes.c_void_p(), (_Heuristic * most)(), ctypes.c_int()
    _checked(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    size = ctypes.c_size_t(WORKSPACE)
    _checked(library.cublasLtMatmulPreferenceSetAttribute(preference, _MOST_WORKSPACE, ctypes.byref(size), ctypes.c_size_t(8)))
    status = library.cublasLtMatmulAlgoGetHeuristic(
        _handle(torch.cuda.current_device()), description, *layouts, preference, most, found, ctypes.byref(many)
    )
    library.cublasLtMatmulPreferenceDestroy(preference)
    _checked(status)
    if not many.value:
        raise RuntimeError("cuBLASLt knows no way to make a product of these sizes and types")
    return [(way.algorithm, way.workspace) for way in found[: many.value]]


def _point(description: ctypes.c_void_p, pointers: list[tuple[int, Tensor]]) -> None:
    for name, tensor in pointers:
        _set(description, name, ctypes.c_void_p(tensor.data_ptr()))


def _set(description: ctypes.c_void_p, name: int, value: Any) -> None:
    _checked(_library().cublasLtMatmulDescSetAttribute(description, name, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))))


@cache
def _library() -> Any:
    """The one that torch has loaded already: its name is enough."""
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
