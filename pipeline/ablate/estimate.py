"""How long an ablation would take: floating-point operations of all its runs, and what this machine multiplies in a
moment's trial."""

from __future__ import annotations

import time

import numpy as np

from gristmill.pipeline.ablate.run import PreparedAblation
from gristmill.pipeline.ablate.workers import Crew, connected
from gristmill.pipeline.processes.gpus import RESOURCE
from gristmill.trainer.model.flops import flops_of

SIZE, TRIAL = 1024, 0.3  # of matrices; seconds


def flops_of_all(ready: PreparedAblation) -> float:
    """Rows counted as whole: documents inside them make it a little less."""
    meta = ready.checked.meta
    a_row = flops_of(ready.checked.shape, np.array([meta.row_length])).total
    jobs = [*ready.jobs, *([ready.base] if ready.base else [])]
    return float(sum(job["training"]["updates"] * job["training"]["rows_per_update"] * a_row for job in jobs))


def speed_of(crew: Crew) -> float:
    """Of one of its workers, where these are elsewhere."""
    if crew.scheduler is None:
        return speed_here(crew.device, crew.threads)
    with connected(crew.scheduler) as client:
        resources = {RESOURCE: 1} if crew.gpus else None
        speed: float = client.submit(speed_here, crew.device, crew.threads, pure=False, resources=resources).result()
    return speed


def speed_here(device: str, threads: int) -> float:
    """FLOP/s of a matrix product: bf16 on a GPU, float32 on so many threads of the CPU."""
    import torch

    torch.set_num_threads(threads)
    on_gpu = device == "cuda" and torch.cuda.is_available()
    size = SIZE * 8 if on_gpu else SIZE
    a = torch.ones(size, size, device="cuda" if on_gpu else "cpu", dtype=torch.bfloat16 if on_gpu else torch.float32)
    a @ a
    times, start = 0, time.perf_counter()
    while times < 3 or time.perf_counter() - start < TRIAL:
        product = a @ a
        if on_gpu:
            product.flatten()[0].item()  # waits for it
        times += 1
    return 2 * size**3 * times / (time.perf_counter() - start)
