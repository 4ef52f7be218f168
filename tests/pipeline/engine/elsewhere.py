"""A scheduler and workers that are no children of the run, as `dask scheduler` and `dask worker` start them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from distributed import Security

from gristmill.pipeline.progress.progress import Quiet
from tests.pipeline.runs import lines, save

SLOW = """
import os, time
from pathlib import Path
import pyarrow as pa
from gristmill.stages.stage import Annotate

class Slow(Annotate):
    \"\"\"Takes its time.\"\"\"
    adds = ("letters",)
    needs = ("text",)
    costly = True

    def annotate(self, batch):
        for process in (os.getpid(), os.getppid()):  # a careful try is a worker's child
            Path({folder!r}, str(process)).touch()
        time.sleep({seconds})
        return {{"letters": pa.array([len(text) for text in batch["text"].to_pylist()])}}
"""


class Noting(Quiet):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


class Elsewhere:
    """At one port, whatever is started and killed there."""

    def __init__(self, protocol: str = "tcp", **environ: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"{protocol}://127.0.0.1:{self.port}"
        self.environ = {**os.environ, **environ}
        self.processes: list[subprocess.Popen[bytes]] = []

    def scheduler(self, *more: str) -> subprocess.Popen[bytes]:
        """One that listens: a busy machine takes longer to import Dask than a run waits for a scheduler."""
        process = self._start("dask_scheduler", "--host", self.address, "--no-dashboard", *more)
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                break
            time.sleep(0.05)
        return process

    def worker(self, *more: str) -> subprocess.Popen[bytes]:
        return self._start("dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", *more)

    def _start(self, module: str, *args: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *args]
        process = subprocess.Popen(command, env=self.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def elsewhere(protocol: str = "tcp", **environ: str) -> Iterator[Elsewhere]:
    machines = Elsewhere(protocol, **environ)
    try:
        yield machines
    finally:
        machines.end()


def certificates(folder: Path) -> dict[str, str]:
    """An authority, and a certificate that it signed for both ends, as variables of Dask's."""
    made = Security.temporary()
    for name, text in (("ca", made.tls_ca_file), ("cert", made.tls_client_cert), ("key", made.tls_client_key)):
        save(folder / f"{name}.pem", text)
    ends = {
        f"{end}__{what}": f"{what.lower()}.pem" for end in ("SCHEDULER", "WORKER", "CLIENT") for what in ("CERT", "KEY")
    }
    return {
        f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(folder / file)
        for name, file in {"CA_FILE": "ca.pem", **ends}.items()
    }


def slow_recipe(folder: Path, parts: int = 12, seconds: float = 0.1) -> Path:
    """Parts that take so many seconds, and rounds over all of them; `workers` has a file for each that was used."""
    for number in range(parts):
        lines(folder / "in" / f"{number:02}.jsonl", [f"own {number}", "shared"])
    (folder / "workers").mkdir()
    save(folder / "slow.py", SLOW.format(folder=str(folder / "workers"), seconds=seconds))
    head = "name: r\nparts: {files: 1, small_file: 0}\nsources: {a: {jsonl: {path: in}}}\n"
    return save(folder / "r.yaml", f"{head}stages: ['slow.py:Slow', exact_dedup, write]\n")
