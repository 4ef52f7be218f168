"""What a worker of another machine must share with the driver: the run's folder, the input files, Gristmill and its
packages. Fingerprints are the driver's, so a worker that differs would store other results under them.

The folder: the driver leaves a file there whose name nobody else knows; each worker reads it, and writes to the
same folder, before its first task. Input files: by size and modification time, and by content where that time differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.recipe.fingerprint import DATA, OURS, PRODUCT, file_of
from gristmill.pipeline.store.journal import FOLDER
from gristmill.pipeline.store.records import MapTask, Task
from gristmill.pipeline.store.storage import Store, hash_of_content
from gristmill.stages.inputs import InputFile

READS, PAUSE = 5, 0.2  # a shared file system may be a moment late


@contextlib.contextmanager
def nonce_in(store: Store) -> Iterator[str]:
    """The driver's half: where the file lies, for the time of a block."""
    nonce = secrets.token_hex(8)
    path = Path(store.at(f"{FOLDER}/.seen-{nonce}.tmp"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(nonce)
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


@cache  # once in a process; an error is raised anew
def check_seen(nonce: str) -> None:
    """A worker's half. It makes no folder: one of that name on another disk would look like the run's."""
    path = Path(nonce)
    folder, host = path.parent.parent, platform.node()
    if not _reads(path):
        raise RunFailed(
            f"the worker on {host} does not see the output folder {folder}; mount it there under the same path "
            "(a shared file system), or give --out s3://..."
        )
    mine = path.with_name(f"{path.stem}-{host}-{secrets.token_hex(4)}.tmp")
    try:
        mine.write_text("")
        mine.unlink()
    except OSError as error:
        raise RunFailed(
            f"the worker on {host} cannot write into the output folder {folder} ({error.strerror}); "
            "let its user write there"
        ) from error


def _reads(path: Path) -> bool:
    for _ in range(READS):
        with contextlib.suppress(OSError):
            if path.read_text() in path.name:
                return True
        time.sleep(PAUSE)
    return False


@dataclass(frozen=True)
class Install:
    """The code and packages that results depend on, besides the recipe and its inputs."""

    code: str  # a hash of Gristmill's files
    versions: Mapping[str, str]  # of Python, and of the packages that Gristmill may use and that are installed


@cache
def install_here() -> Install:
    digest = hashlib.sha256()
    for package in (*OURS, f"{PRODUCT}.pipeline"):
        folder = (file_of(package) or Path()).parent
        files = [path for path in folder.rglob("*") if path.suffix == ".py" or path.parent.name in DATA]
        for path in sorted(path for path in files if path.is_file()):
            digest.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a copy of the source that is not installed
        for requirement in importlib.metadata.requires("gristmill") or ():
            [name] = re.findall(r"^[\w.-]+", requirement)
            if re.search(r"extra == .dev.", requirement):
                continue
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name).partition("+")[0]  # of torch +cpu, +cu128
    return Install(digest.hexdigest(), versions)


def check_install(drivers: Install) -> None:
    """RunFailed if this worker has another Gristmill or other versions than the driver. A package that only one of them
    has is no error: a driver needs no packages for GPUs, and a worker that lacks one reports it."""
    ours, host = install_here(), platform.node()
    other = sorted(name for name, version in ours.versions.items() if drivers.versions.get(name, version) != version)
    if other:
        here = ", ".join(f"{name} {ours.versions[name]}" for name in other)
        there = ", ".join(f"{name} {drivers.versions[name]}" for name in other)
        raise RunFailed(f"the worker on {host} has {here}, and the driver {there}; install the same versions there")
    if ours.code != drivers.code:
        raise RunFailed(
            f"the worker on {host} has another Gristmill than the driver "
            f"({Path(__file__).parents[2]}); install the same one there"
        )


def check_inputs(task: Task) -> None:
    """RunFailed unless the input files of a task are here as the driver listed them."""
    for span in task.files if isinstance(task, MapTask) else ():
        if span.file.content and "://" not in span.file.address:
            _check_input(span.file)


@cache
def _check_input(file: InputFile) -> None:
    address, host, changed = file.address, platform.node(), int(file.stamp.split()[0])
    try:
        facts = Path(address).stat()
        alike = facts.st_size == file.size
        alike = alike and (facts.st_mtime_ns == changed or hash_of_content(address) == file.content)
    except OSError as error:
        raise RunFailed(
            f"the worker on {host} cannot read {address} ({error.strerror}); "
            "mount it there under the same path (a shared file system), or put the inputs on s3://..."
        ) from error
    if not alike:
        raise RunFailed(
            f"the worker on {host} sees another {address} than the driver listed ({facts.st_size:,} bytes, not {file.size:,}); "
            "was the file changed since? Then run the same command again. Else mount the same files there"
        )
