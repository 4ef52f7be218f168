"""GPUs of this machine, and workers that have one each: the first of the local workers, pinned by CUDA_VISIBLE_DEVICES,
with Dask's resource `GPU`.

Stages that want a GPU (`Stage.gpu`) are only given to such workers, one task at a time; on a cluster described by the
user, its GPU workers say `--resources "GPU=1"`.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.pipeline.processes.nodes import CORES

if TYPE_CHECKING:
    from distributed import LocalCluster

RESOURCE = "GPU"
DRIVER = Path("/proc/driver/nvidia/gpus")


def gpus_here() -> list[str]:
    """What CUDA_VISIBLE_DEVICES leaves, or all that NVIDIA's driver shows; nothing is initialised for it, so that
    workers may be forked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        return [
            name for name in names[: names.index("-1") if "-1" in names else None] if name
        ]  # CUDA ends its list there
    return [str(i) for i in range(len(list(DRIVER.iterdir())))] if DRIVER.is_dir() else []


def spread_over(cluster: LocalCluster, places: list[str | None], gpus: list[str] | None) -> None:
    """Start a worker for each place in a local cluster that has none yet. Where a stage wants a GPU the first get one
    each, and the others see none."""
    specs = {}
    for number, place in enumerate(places):
        spec = copy.copy(cluster.new_spec)
        options = dict(spec["options"])
        options["env"] = {**(options.get("env") or {}), **({} if place is None else {CORES: place})}
        if gpus is not None:
            options["env"]["CUDA_VISIBLE_DEVICES"] = gpus[number] if number < len(gpus) else ""
            if number < len(gpus):
                options["resources"] = {RESOURCE: 1}
        specs[number] = {**spec, "options": options}
    cluster.worker_spec.update(specs)
    cluster.sync(cluster._correct_state)
