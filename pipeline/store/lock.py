"""One run at a time in an output folder.

A local folder has a lock of the operating system's, which goes with the process, however it ends. On S3 it is a lease:
the object `.lock`, created only if there is none (If-None-Match) and replaced only as it was seen (If-Match), so that
of two runs one wins. Its holder renews it. A lease is over 60 s after its last renewal, by the store's own clock, and
at once for a run on the holder's machine that sees the holder's process gone.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import platform
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import psutil

from gristmill.pipeline.errors import RunFailed, code_of, of_storage
from gristmill.pipeline.store.store import Store

NAME = ".lock"
LEASE, RENEWAL = 60.0, 15.0  # seconds
TRIES = 5  # of runs that begin at the same moment
CONFLICT = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
GONE = ("NoSuchKey", "404")


@contextlib.contextmanager
def one_run_at_a_time(store: Store, note: Callable[[str], None] = lambda message: None) -> Iterator[None]:
    """Keeps a second run out of an output folder; `note` hears where that cannot be had."""
    if store.local:
        with _file_lock(store):
            yield
    elif "s3" not in store.fs.protocol:
        note(f"{store.address}: nothing keeps a second run out of this folder; only local folders and s3:// have locks")
        yield
    else:
        lease = Lease(store)
        if not lease.take():
            note(f"{store.address}: this store has no conditional writes, so nothing keeps a second run out")
            yield
        else:
            with lease.kept():
                yield


@contextlib.contextmanager
def _file_lock(store: Store) -> Iterator[None]:
    import fcntl

    with Path(store.at(NAME)).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunFailed(
                f"{store.address}: another run is at work here (process {lock.read().strip() or 'unknown'}); "
                "wait for it or stop it"
            ) from None
        except OSError as error:  # a file system of a cluster that knows no locks
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


class Lease:
    """The right to write below a root of an S3 store, for as long as it is renewed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.bucket, self.key, _ = store.fs.split_path(store.at(NAME))
        self.facts: dict[str, Any] = {
            "host": platform.node(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(), "began": psutil.Process().create_time(), "token": uuid.uuid4().hex, "renewed": 0,
        }  # fmt: skip
        self.etag = ""
        self.lost = ""  # in words, once somebody else has it
        self._stop = threading.Event()

    def take(self) -> bool:
        """False where the store ignores conditions; RunFailed where another run holds the lease."""
        holder: Mapping[str, Any] = {}
        for _ in range(TRIES):
            if self._put(IfNoneMatch="*"):
                if not self._put(IfNoneMatch="*"):  # as must be: it is there now
                    return True
                self._delete()
                return False
            holder, etag, age = self._look()
            if holder.get("token") == self.facts["token"]:  # the answer to our first request was lost on its way
                self.etag = etag
                return True
            if etag and not self._is_over(holder, age):
                raise RunFailed(self._in_words(holder, age))
            if etag and self._put(IfMatch=etag):
                return True
        raise RunFailed(self._in_words(holder, 0.0))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renewed until the block ends, and then given back. Losing it interrupts the block."""
        renewing = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)
        renewing.start()
        try:
            yield
        except KeyboardInterrupt:
            if self.lost:
                raise RunFailed(self.lost) from None
            raise
        finally:
            self._stop.set()
            renewing.join()
            if not self.lost:
                self._delete()

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(RENEWAL):
            try:
                if not self._renew():
                    self.lost = (
                        f"{self.store.address}: another run has taken over here, as this one did not renew its "
                        f"lock for {LEASE:.0f} s; what is finished is kept"
                    )
                    _thread.interrupt_main()
                    return
            except Exception as error:  # the store cannot be reached: if somebody took over meanwhile, we learn it then
                if not isinstance(error, OSError) and not of_storage(error):
                    raise

    def _renew(self) -> bool:
        self.facts["renewed"] += 1  # other contents, so that the tag is another
        if self._put(IfMatch=self.etag):
            return True
        holder, etag, _ = self._look()
        if holder.get("token") != self.facts["token"]:
            return False
        self.etag = etag  # ours: the answer to the last renewal was lost on its way
        return True

    def _put(self, **condition: str) -> bool:
        """Write the lease on a condition; does that hold?"""
        body = json.dumps(self.facts).encode()
        try:
            answer = self.store.fs.call_s3("put_object", Bucket=self.bucket, Key=self.key, Body=body, **condition)
        except Exception as error:
            if code_of(error) in (*CONFLICT, *GONE):
                return False
            raise
        self.etag = answer["ETag"]
        return True

    def _look(self) -> tuple[Mapping[str, Any], str, float]:
        """What the lease says, its tag from before it was read, and its age in seconds; no tag if it is gone."""
        try:
            head = self.store.fs.call_s3("head_object", Bucket=self.bucket, Key=self.key)
            facts = json.loads(self.store.read(NAME))
        except (FileNotFoundError, RunFailed):  # given back before it was read
            return {}, "", 0.0
        except ValueError:
            facts = {}
        now = head["ResponseMetadata"]["HTTPHeaders"].get("date")
        age = (parsedate_to_datetime(now) if now else datetime.now(UTC)) - head["LastModified"]
        return facts if isinstance(facts, dict) else {}, head["ETag"], age.total_seconds()

    def _is_over(self, holder: Mapping[str, Any], age: float) -> bool:
        if age > LEASE:
            return True
        return holder.get("machine") == machine() and not is_alive(holder.get("pid"), holder.get("began"))

    def _in_words(self, holder: Mapping[str, Any], age: float) -> str:
        who = f"{holder.get('host', 'unknown host')}, process {holder.get('pid', 'unknown')}"
        return (
            f"{self.store.address}: another run is at work here ({who}, since {holder.get('since', 'unknown')}); wait "
            f"for it or stop it. If it was killed, this folder is free in {max(1, round(LEASE - age))} s"
        )

    def _delete(self) -> None:
        try:
            self.store.fs.call_s3("delete_object", Bucket=self.bucket, Key=self.key, IfMatch=self.etag)
        except Exception as error:  # gone, or not ours any more, or not reached: it ends by itself
            if not isinstance(error, OSError) and not of_storage(error):
                raise


def machine() -> str:
    """Equal for processes that see each other by number: of one boot, and on Linux of one namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{platform.node()} {round(psutil.boot_time())}"


def is_alive(pid: object, began: object) -> bool:
    try:
        process = psutil.Process(pid if isinstance(pid, int) else -1)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.create_time() == began)
    except (psutil.Error, ValueError):
        return False
