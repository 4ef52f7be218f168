"""How benchmarks of kernels take time and print what they found."""

from __future__ import annotations

import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPE = torch.bfloat16 if CUDA else torch.float32  # the bf16 of Triton's interpreter is wrong

Step = Callable[..., Any]


@dataclass(frozen=True)
class Sizes:
    tokens: int = 32_768
    hidden: int = 2048
    mlp: int = 8192
    vocabulary: int = 50_304
    heads: int = 32
    kv_heads: int = 8
    head_size: int = 64
    rows: int = 8192  # of logits
    parameters: int = 1 << 27
    exact: int = 2048  # tokens of what is compared to float64
    attended: int = 65_536
    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 16_384)
    square: int = 8192


TINY = Sizes(32, 48, 64, 96, 4, 2, 8, 16, 512, 16, 512, (128, 256), 64)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = DTYPE) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


def compiled(step: Step) -> Step:
    return torch.compile(step, dynamic=False, backend="inductor" if CUDA else "aot_eager")


def microseconds(work: Callable[[], Any], seconds: float = 0.06) -> list[float]:
    """Of each of several calls, about so many seconds together. The GPU waits until all are queued: the host's time
    does not count."""
    for _ in range(3 if CUDA else 1):
        work()
    if not CUDA:
        start = time.perf_counter()
        work()
        return [1e6 * (time.perf_counter() - start)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    queued = time.perf_counter() - start
    torch.cuda.synchronize()
    times = int(min(max(seconds / (time.perf_counter() - start), 5), 40))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    torch.cuda._sleep(int(min(1.5 * queued * times, 0.3) * 2e9))
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return [1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def say(what: str, sizes: dict[str, Any], taken: Sequence[float] | None = None, **more: Any) -> None:
    line: dict[str, Any] = {
        "what": f"gpu kernels: {what}",
        "machine": torch.cuda.get_device_name() if CUDA else platform.machine(),
        "versions": {package: version(package) for package in ("torch", "triton")},
        "sizes": sizes,
    }
    if taken:
        line |= {
            "median": round(statistics.median(taken), 1),
            "spread": [round(min(taken), 1), round(max(taken), 1)],
            "unit": "microseconds",
        }
    print(json.dumps(line | more), flush=True)


def compare(what: str, sizes: dict[str, Any], work: float, unit: str, ours: Step, peers: dict[str, Step]) -> None:
    """`work`: bytes or operations of a call."""
    taken = microseconds(ours)
    median = statistics.median(taken)
    for peer, step in peers.items():
        try:
            theirs = statistics.median(microseconds(step))
        except Exception as error:
            say(what, sizes, taken, **{unit: round(work / median / 1e6, 3)}, peer=peer, failed=reason(error))
            continue
        rates = {unit: round(work / median / 1e6, 3), f"peer_{unit}": round(work / theirs / 1e6, 3)}
        say(what, sizes, taken, **rates, peer=peer, peer_median=round(theirs, 1), ratio=round(theirs / median, 3))


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"


def off(found: Tensor, exact: Tensor) -> float:
    return float(f"{float((found.detach().double() - exact.detach()).norm() / exact.detach().norm()):.3g}")
