"""How long an ablation would take: floating-point operations of all its runs, and what this machine multiplies in a
moment's trial."""

from __future__ import annotations

import time

import numpy as np
from rich.text import Text

from gristmill.pipeline.ablate.length import in_words, weights_of
from gristmill.pipeline.ablate.plan import CONTROL
from gristmill.pipeline.ablate.run import PreparedAblation
from gristmill.pipeline.ablate.workers import Crew, client_for
from gristmill.pipeline.engine.cluster import GPU_RESOURCE
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.tables import TerminalTable
from gristmill.trainer.model.flops import flops_of

SHOWN = 20  # arms of a plan
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
    with client_for(crew) as client:
        resources = {GPU_RESOURCE: 1} if crew.gpus else None
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


def foreseen(ready: PreparedAblation, flops: float, speed: float) -> TerminalTable:
    """What would run, for --dry-run: tokens, epochs, and hours at half of what this machine multiplies."""
    plan = ready.plan
    title = f"{plan.name}: {plan.protocol.name}, {in_words(plan, ready.checked.length)}"
    lines: list[tuple[object, ...]] = []
    if ready.base is not None:
        updates = ready.base["training"]["updates"]
        rows = ready.base["training"]["rows_per_update"]
        mix = ", ".join((plan.base.mix if plan.base else None) or ())
        lines.append(("base", updates * rows * ready.checked.meta.row_length, updates, mix, "", ""))
    for arm in (CONTROL, *list(plan.arms)[:SHOWN]):
        if arm in ready.checked.problems:
            lines.append((arm, "", "", Text(one_line(ready.checked.problems[arm]), style="red"), "", ""))
            continue
        job = next(job for job in ready.jobs if job["arm"] == arm)
        tokens = job["training"]["updates"] * job["training"]["rows_per_update"] * ready.checked.meta.row_length
        weights = weights_of(plan, arm, ready.checked.length)
        shares = ", ".join(f"{weight:.1%}" for weight in weights.values())
        epochs = ", ".join(f"{ready.checked.epochs[arm][name]:.2f}" for name in weights)
        lines.append((arm, tokens, job["training"]["updates"], ", ".join(weights), shares, epochs))
    workers = max(1, ready.crew.processes)
    if len(plan.arms) > SHOWN:
        lines.append((f"... and {len(plan.arms) - SHOWN:,} more", "", "", "", "", ""))
    note = (
        f"{len(ready.jobs) + (ready.base is not None)} jobs, {flops:.3g} FLOP of training; "
        f"{'a worker' if ready.crew.scheduler else 'this machine'} "
        f"multiplies at {speed / 1e12:,.2f} TFLOP/s; at half of that on {workers} worker{'s' if workers > 1 else ''} "
        f"{_time(flops / (speed / 2) / workers)}"
    )
    head = ("run", "tokens", "updates", "reads", "of a run's tokens", "epochs")
    return TerminalTable.of(title, head, lines, words={0, 3}, note=note)


def cost_in_words(ready: PreparedAblation, flops: float, speed: float) -> str:
    """What proxy runs will take, said before they begin."""
    workers, hours = max(1, ready.crew.processes), flops / (speed / 2) / 3600
    device = "GPU" if ready.crew.device == "cuda" else "worker"
    return (
        f"{len(ready.jobs):,} runs, {len(ready.jobs) * ready.checked.length.tokens:,} tokens, {flops:.3g} FLOP: about"
        f" {hours:,.2g} {device} hours at half of {speed / 1e12:,.2f} TFLOP/s, {_time(hours * 3600 / workers)} on"
        f" {workers} worker{'s' if workers > 1 else ''}"
    )


def _time(seconds: float) -> str:
    if seconds < 60:
        return "less than a minute"
    return f"about {seconds / 3600:,.1f} hours" if seconds >= 3600 else f"about {seconds / 60:,.1f} minutes"
