"""Files and folders that appear under their names whole, or not at all: written beside, and renamed when they are
done; and the hash of what is written."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import xxhash


def draft_of(path: Path) -> Path:
    """Where this thread writes a file until it is whole: hidden beside it. `Store.remove_temporary` clears these."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")


@contextlib.contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write to. It gets its name when the block ends well; a block that fails leaves nothing behind.

    `durable` waits until the content is on disk before the name is given, so that a machine that loses power has the
    old content or the new. An error of the system names the path and not the draft.
    """
    draft = draft_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with draft.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        if isinstance(error, OSError) and error.filename == str(draft):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


class HashingFile(io.RawIOBase):
    """Passes writes on, if there is a file beneath, and keeps the hash and the length of the content. Whoever opened
    the file beneath closes it, after fsync."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        super().__init__()
        self._file = file
        self._hash = xxhash.xxh3_128()
        self.length = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self.length += view.nbytes
        if self._file is not None:
            self._file.write(view)
        return view.nbytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.length

    @property
    def checksum(self) -> str:
        return str(self._hash.hexdigest())


@contextlib.contextmanager
def whole_hashed_file(path: Path) -> Iterator[HashingFile]:
    """A `whole_file` that keeps the hash of its content."""
    with whole_file(path) as file:
        yield HashingFile(file)


def write_whole(path: Path, content: bytes, durable: bool = True) -> None:
    """A small file with this content."""
    with whole_file(path, durable) as file:
        file.write(content)


@contextlib.contextmanager
def whole_folder(path: Path, durable: bool = True, replace: bool = False) -> Iterator[Path]:
    """A folder to fill. It gets its name when the block ends well; a block that fails leaves nothing behind.

    What has the name by then is replaced where `replace` says so; else only an empty folder is, and an OSError tells of
    anything else.
    """
    draft, old = draft_of(path), path.with_name(f".{path.name}.{os.getpid()}.old")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        if durable:
            for written in [*draft.rglob("*"), draft]:
                sync(written)
        if replace and path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        draft.rename(path)
        if durable:
            sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or the list of a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
