"""Which process holds a lock or drives a run, and whether it is still alive.

On Linux a process is known by its number and the clock ticks from boot to its start, within one boot and one pid
namespace. Times of day are no help: they are derived from the clock, and move with it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import psutil

BOOT = Path("/proc/sys/kernel/random/boot_id")
ENDED = ("Z", "X")  # states of a process that is no more: it waits for its parent


class ProcessId(TypedDict):
    """As lock and progress files hold it."""

    host: str
    pid: int
    machine: str  # equal for processes that see each other by these numbers; empty where that is not known
    began: float  # in ticks of that machine


def this_process() -> ProcessId:
    state = _state(os.getpid())
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "machine": machine() if state is not None else "",
        "began": state[1] if state is not None else 0,
    }


def is_alive(process: Mapping[str, object]) -> bool | None:
    """Is a process still there? None where that cannot be seen from here: it is of another machine, boot or container,
    or hidden."""
    pid = process.get("pid")
    if not process.get("machine") or process["machine"] != machine() or not isinstance(pid, int) or pid < 1:
        return None
    state = _state(pid)
    if state is None:  # it has ended, or is hidden from us (`hidepid` of proc(5))
        return None if _is_there(pid) else False
    return state[0] not in ENDED and state[1] == process.get("began")


def machine() -> str:
    """The boot and the namespaces that the numbers of processes and their times of start belong to."""
    if not BOOT.exists():
        return f"{platform.node()} {round(psutil.boot_time())}"
    try:
        if Path("/proc/self").readlink().name != str(os.getpid()):  # /proc is that of another namespace
            return ""
        spaces = [Path(f"/proc/self/ns/{kind}") for kind in ("pid", "time")]
        return " ".join([BOOT.read_text().strip(), *(str(space.readlink()) for space in spaces if space.is_symlink())])
    except OSError:
        return ""


def _state(pid: int) -> tuple[str, float] | None:
    """The state and start of a process; None where they cannot be read."""
    try:
        if BOOT.exists():
            # fields 3 and 22 of proc_pid_stat(5); the name before them may hold anything
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return fields[0].decode(), int(fields[19])
        process = psutil.Process(pid)
        return ("Z" if process.status() == psutil.STATUS_ZOMBIE else "R"), process.create_time()
    except (OSError, psutil.Error, IndexError, ValueError):
        return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True
