"""How many cores this process may use: those it is bound to, and no more than its container is given time on."""

from __future__ import annotations

import math
import os
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


def cores_here(groups: Path = GROUPS) -> int:
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = quota(groups)
    return bound if given is None else max(1, min(bound, math.ceil(given)))


def quota(groups: Path) -> float | None:
    """Cores' worth of time, as Linux says it in two ways (`docker --cpus`, limits of Kubernetes); None where there is
    no limit."""
    try:
        given, period = (groups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            given, period = (
                (groups / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        except OSError:
            return None
    try:
        return int(given) / int(period) if int(given) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None
