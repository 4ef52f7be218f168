"""The ranks of a training run on this host: processes of the same command, which end together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

POLL = 0.2  # seconds
PATIENCE = 30.0  # seconds that ranks may take to end after another one failed
OF_A_RANK = ("RANK", "WORLD_SIZE")  # as torchrun sets them


def is_rank() -> bool:
    """Is this process one of several, started here or by torchrun?"""
    return all(name in os.environ for name in OF_A_RANK)


def is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def run_ranks(module: str, arguments: Sequence[str], count: int, threads: int = 0) -> int:
    """Run `python -m MODULE ARGUMENTS` as so many ranks, which share so many threads (0: as the environment says, or
    one each); returns the exit code. An interrupt goes on to all of them, and each
    leaves the checkpoint with the others. Where one fails, the others are ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"OMP_NUM_THREADS": "1"} | os.environ | {
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    if threads:
        shared["OMP_NUM_THREADS"] = str(max(1, threads // count))
    command = [sys.executable, "-m", module, *arguments]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            number = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            # in a session of its own: Ctrl-C comes here alone, and goes on to each rank once
            ranks.append(subprocess.Popen(command, env=shared | number, start_new_session=True))
        return _wait(ranks)
    except KeyboardInterrupt:
        for process in ranks:
            process.send_signal(signal.SIGTERM)
        _wait(ranks)
        return 130
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """The exit code of the first that failed, 0 of none."""
    failed, latest = 0, None
    while any(process.poll() is None for process in ranks):
        failed = failed or next((process.returncode for process in ranks if process.returncode), 0)
        if failed and latest is None:
            latest = time.monotonic() + PATIENCE
        if latest is not None and time.monotonic() > latest:
            break
        time.sleep(POLL)
    return failed or next((process.returncode for process in ranks if process.returncode), 0)
