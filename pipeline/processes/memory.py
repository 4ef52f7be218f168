"""How much memory this process has held at most."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path


def forget_peak() -> None:
    """From here on `peak_memory` tells of what comes, where the system lets a process forget (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The most memory this process held since it forgot, or ever, in bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
