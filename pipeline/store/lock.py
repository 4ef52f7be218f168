"""One run at a time in an output folder.

A local folder has a lock of the operating system's, which goes with the process, however it ends. On S3 it is a lease:
the object `.lock`, created only if there is none (If-None-Match) and replaced only as it was seen (If-Match), so that
of two runs one wins. Its holder renews it. A lease is over 60 s after its last renewal, by the store's own clock, and
at once for a run on the holder's machine that sees the holder's process gone.

A holder that cannot renew stops writing 10 s before that. Every write of the driver and of its workers checks
`Store.lease` first, so a process that was suspended and wakes up late writes nothing, and no request is retried then.
No two machines' clocks are compared: the driver counts from its request for the renewal, by a monotonic clock, and a
worker reads the age of the lease from the store.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fsspec.asyn import sync

from gristmill.pipeline.errors import RunFailed, code_of, of_storage
from gristmill.pipeline.processes import is_alive, this_process
from gristmill.pipeline.store.records import Task
from gristmill.pipeline.store.storage import Store, with_retries

NAME = ".lock"
LEASE, RENEWAL = 60.0, 15.0  # seconds
MARGIN = 1 / 6  # of a lease, at its end: nothing is written then. Requests take time, and stores give whole seconds
ASK_AGAIN = 1.0  # seconds after which a worker asks again: a lease that is given back may be taken at once
TRIES = 5  # of runs that begin at the same moment
CONFLICT = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
GONE = ("NoSuchKey", "404")
WRITES = ("PutObject", "CompleteMultipartUpload", "CopyObject", "DeleteObject")  # what makes a change visible


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
            store.lease = lease
            try:
                with lease.kept():
                    yield
            finally:
                store.lease = None


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


def clock() -> float:
    """Seconds, by a monotonic clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """The right to write below a root of an S3 store, for as long as it is renewed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.token = uuid.uuid4().hex
        self.facts: dict[str, Any] = {
            **this_process(), "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "token": self.token, "seconds": LEASE, "renewed": 0,
        }  # fmt: skip
        self.etag = ""
        self.lost = ""  # in words, once somebody else has it
        self.renewed = clock()  # at the latest: when the last renewal was asked for
        self._main_knows = False  # that it is lost
        self._stop = threading.Event()
        self._renewing = threading.Lock()

    def take(self) -> bool:
        """False where the store ignores conditions; RunFailed where another run holds the lease."""
        holder: Mapping[str, Any] = {}
        for _ in range(TRIES):
            if self._put(IfNoneMatch="*"):
                if not self._put(IfNoneMatch="*"):  # as must be: it is there now
                    return True
                self._delete()
                return False
            holder, etag, age = read_lease(self.store)
            if holder.get("token") == self.token:  # the answer to our first request was lost on its way
                self.etag, self.renewed = etag, self.renewed - age
                return True
            if etag and not _is_over(holder, age):
                raise RunFailed(self._in_words(holder, age))
            if etag and self._put(IfMatch=etag):
                return True
        raise RunFailed(self._in_words(holder, 0.0))

    def check(self) -> None:
        """RunFailed unless this run still has the right to write. Late, that depends on whether a renewal succeeds."""
        if not self.lost and self._is_fresh():
            return
        with self._renewing:
            while not self.lost and not self._is_fresh():
                try:
                    self._renew_or_lose()
                except Exception as error:
                    if not isinstance(error, OSError) and not of_storage(error):
                        raise
                    raise RunFailed(
                        f"{self.store.address}: its lock was last renewed {clock() - self.renewed:.0f} s ago and cannot "
                        f"be now ({error}); another run may take over, so nothing more is written. Finished work is "
                        "kept: run the same command again"
                    ) from error
        if self.lost:
            if threading.current_thread() is threading.main_thread():
                self._main_knows = True
            raise RunFailed(self.lost)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renewed until the block ends, and then given back. Losing it interrupts the block."""
        renewing = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)
        renewing.start()
        refuse_late_requests(self.store, self.token, lambda: not self.lost and self._is_fresh())
        try:
            try:
                yield
            finally:
                self._stop.set()
                renewing.join()
                self.store.fs.s3.meta.events.unregister("before-send.s3", unique_id=self.token)
                if not self.lost:
                    self._delete()
        except KeyboardInterrupt:
            if self.lost:
                raise RunFailed(self.lost) from None
            raise

    def _is_fresh(self) -> bool:
        return clock() < self.renewed + LEASE * (1 - MARGIN)

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(RENEWAL):
            try:
                with self._renewing:
                    if not self.lost:
                        self._renew_or_lose()
            except Exception as error:  # the store cannot be reached: `check` forbids writing in time
                if not isinstance(error, OSError) and not of_storage(error):
                    raise
            if self.lost:
                if not self._main_knows:
                    _thread.interrupt_main()
                return

    def _renew_or_lose(self) -> None:
        if not self._renew():
            self.lost = (
                f"{self.store.address}: another run has taken over here, as this one did not renew its "
                f"lock for {LEASE:.0f} s; what is finished is kept"
            )

    def _renew(self) -> bool:
        self.facts["renewed"] += 1  # other contents, so that the tag is another
        asked = clock()
        if self._put(IfMatch=self.etag):
            return True
        holder, etag, age = read_lease(self.store)
        if holder.get("token") != self.token:
            return False
        self.etag, self.renewed = etag, asked - age  # the answer to the last renewal was lost on its way
        return True

    def _put(self, **condition: str) -> bool:
        """Write the lease on a condition; does that hold?"""
        body, asked = json.dumps(self.facts).encode(), clock()
        try:
            answer = self.store.fs.call_s3("put_object", **_object(self.store), Body=body, **condition)
        except Exception as error:
            if code_of(error) in (*CONFLICT, *GONE):
                return False
            raise
        self.etag, self.renewed = answer["ETag"], asked
        return True

    def _in_words(self, holder: Mapping[str, Any], age: float) -> str:
        who = f"{holder.get('host', 'unknown host')}, process {holder.get('pid', 'unknown')}"
        left = max(1, round(_seconds(holder) - age))
        return (
            f"{self.store.address}: another run is at work here ({who}, since {holder.get('since', 'unknown')}); wait "
            f"for it or stop it. If it was killed, this folder is free in {left} s"
        )

    def _delete(self) -> None:
        try:
            self.store.fs.call_s3("delete_object", **_object(self.store), IfMatch=self.etag)
        except Exception as error:  # gone, or not ours any more, or not reached: it ends by itself
            if not isinstance(error, OSError) and not of_storage(error):
                raise


class DriversLease:
    """The lease of a task's driver, as a worker sees it."""

    def __init__(self, store: Store, token: str) -> None:
        self.store = store
        self.token = token
        self._asked = self._until = -1.0
        refuse_late_requests(store, token, lambda: clock() < self._until)

    def check(self) -> None:
        """RunFailed unless the driver still has the right to write here. It may be about to renew, so wait a little."""
        begun = now = clock()
        while now >= min(self._asked + ASK_AGAIN, self._until):
            holder, _, age = read_lease(self.store)
            if holder.get("token") != self.token:
                raise RunFailed(f"{self.store.address}: another run has taken over here; nothing more is written")
            self._asked, self._until = now, now - age + _seconds(holder) * (1 - MARGIN)
            if (now := clock()) < self._until:
                return
            if now - begun > _seconds(holder) / 3:
                raise RunFailed(
                    f"{self.store.address}: the driver last renewed its lock {age:.0f} s ago; another run may take "
                    "over, so nothing more is written"
                )
            time.sleep(_seconds(holder) / 60)
            now = clock()

    def end(self) -> None:
        """Forbid no requests any more: those of a later driver go to the same place."""
        self.store.fs.s3.meta.events.unregister("before-send.s3", unique_id=self.token)


def store_of(task: Task) -> Store:
    """The folder that a task writes into, for as long as its driver has the right to."""
    store = Store(task.out)
    if task.lease is not None:
        store.lease = _drivers_lease(task.out, task.lease)
    return store


def _drivers_lease(address: str, token: str) -> DriversLease:
    """The same for all tasks of a driver: the process asks the store once for many of them."""
    known = _known_leases(address)
    lease = known.get(token)
    if lease is None:
        for earlier in list(known):
            known.pop(earlier).end()
        lease = known[token] = DriversLease(Store(address), token)
    return lease


@cache
def _known_leases(address: str) -> dict[str, DriversLease]:
    """That of the last driver whose tasks this process had for a folder, by its token."""
    return {}


def refuse_late_requests(store: Store, token: str, is_fresh: Callable[[], bool]) -> None:
    """Send no request that writes below a root once its lease is not fresh: botocore retries for half a minute. The
    first check of a token stays, so tasks that the driver itself carries out go by the driver's own."""
    with_bucket, in_bucket = (
        f"/{store.root}/",
        f"/{store.root.partition('/')[2]}/",
    )  # which of them: as addresses are made

    def refuse(request: Any, event_name: str, **_: Any) -> None:
        path = unquote(urlsplit(request.url).path)
        is_below = with_bucket in path or path.startswith(in_bucket)
        writes = event_name.rpartition(".")[2] in WRITES and not path.endswith(f"/{NAME}")
        if is_below and writes and not is_fresh():
            raise RunFailed(f"{store.address}: its lock could not be renewed in time, so nothing more is written")

    store.fs.s3.meta.events.register("before-send.s3", refuse, unique_id=token)


def read_lease(store: Store) -> tuple[Mapping[str, Any], str, float]:
    """The content of the lease, its tag, and its age in seconds by the store's clock; no tag if there is no lease."""

    def fetch() -> tuple[dict[str, Any], bytes] | None:
        try:
            answer = store.fs.call_s3("get_object", **_object(store))
        except FileNotFoundError:
            return None
        return answer, sync(store.fs.loop, answer["Body"].read)

    fetched = with_retries(fetch, store.at(NAME))  # botocore does not send a request again whose answer was cut off
    if fetched is None:
        return {}, "", 0.0
    answer, body = fetched
    try:
        facts = json.loads(body)
    except ValueError:
        facts = {}
    now = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    age = (parsedate_to_datetime(now) if now else datetime.now(UTC)) - answer["LastModified"]
    return facts if isinstance(facts, dict) else {}, answer["ETag"], age.total_seconds()


def _object(store: Store) -> dict[str, str]:
    bucket, key, _ = store.fs.split_path(store.at(NAME))
    return {"Bucket": bucket, "Key": key}


def _is_over(holder: Mapping[str, Any], age: float) -> bool:
    return age > _seconds(holder) or is_alive(holder) is False


def _seconds(holder: Mapping[str, Any]) -> float:
    """The duration that the holder of a lease gave it."""
    seconds = holder.get("seconds")
    return seconds if isinstance(seconds, float) else LEASE
