"""One run at a time in an output folder.

A local folder has a lock of the operating system's, which goes with the process, however it ends. On S3 it is a lease:
the object `.lock`, created only if there is none (If-None-Match) and replaced only as it was seen (If-Match), so that
of two runs one wins. Its holder renews it. A lease is over 60 s after its last renewal, by the store's own clock, and
at once for a run on the holder's machine that sees the holder's process gone.

Nothing is written 10 s before a lease ends. Driver and workers check `Store.lease` before every write, so a process
that was suspended and wakes up late writes nothing, and no request is retried then. No two machines' clocks are
compared: the driver counts from its request for the renewal, by a monotonic clock, and who does not know reads the age
of the lease from the store.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
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
        lease = HeldLease(store)
        if lease.take():
            with lease.kept():
                yield
        else:
            note(f"{store.address}: this store has no conditional writes, so nothing keeps a second run out")
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


def clock() -> float:
    """Seconds, by a monotonic clock that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """The right of a run to write below a root of an S3 store, as its workers see it."""

    ask_again = ASK_AGAIN

    def __init__(self, store: Store, token: str) -> None:
        self.store = store
        self.token = token
        self.lost = False  # to another run
        self._asked, self._until = 0.0, -math.inf

    def check(self) -> None:
        """RunFailed unless the run may still write here. Its driver may be about to renew the lease, so wait a
        little."""
        begun = clock()
        while not self.is_fresh() or clock() > self._asked + self.ask_again:
            try:
                state = f"was last renewed {self.refresh():.0f} s ago"
            except Exception as error:
                if not isinstance(error, OSError) and not of_storage(error):
                    raise
                raise self._late(f"cannot be renewed ({error})") from error
            if self.is_fresh():
                return
            if clock() - begun > LEASE / 3:
                raise self._late(state)
            time.sleep(LEASE / 60)

    def refresh(self) -> float:
        """Learn how long the lease still holds; its age."""
        return self._read()[1]

    def is_fresh(self) -> bool:
        return clock() < self._until

    def _late(self, state: str) -> RunFailed:
        return RunFailed(
            f"{self.store.address}: its lock {state}; another run may take over, so nothing more is written. "
            "Finished work is kept: run the same command again"
        )

    def _read(self) -> tuple[str, float]:
        """The tag of the lease and its age. RunFailed if it is another run's."""
        self._asked = clock()
        holder, etag, age = read_lease(self.store)
        if holder.get("token") != self.token:
            self.lost, self._until = True, -math.inf
            raise RunFailed(
                f"{self.store.address}: another run has taken over here; nothing more is written, and what is finished "
                "is kept"
            )
        self._until = self._asked - age + LEASE * (1 - MARGIN)
        return etag, age


class HeldLease(Lease):
    """The same for the driver, which takes and renews it."""

    ask_again = math.inf

    def __init__(self, store: Store) -> None:
        super().__init__(store, uuid.uuid4().hex)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self.facts: dict[str, Any] = {**this_process(), "since": since, "token": self.token, "renewed": 0}
        self.etag = ""
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
            holder, etag, age = read_lease(self.store)
            if holder.get("token") == self.token:  # the answer to our first request was lost on its way
                self.etag, _ = self._read()
                return True
            if etag and age <= LEASE and is_alive(holder) is not False:
                raise RunFailed(self._in_words(holder, age))
            if etag and self._put(IfMatch=etag):
                return True
        raise RunFailed(self._in_words(holder, 0.0))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renewed until the block ends, and then given back."""
        renewing = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)
        renewing.start()
        self.store.lease = self
        heed(self)
        try:
            yield
        finally:
            self._stop.set()
            renewing.join()
            self.store.lease = None
            del _leases()[self.store.root]
            self._until = -math.inf
            if not self.lost:
                self._delete()

    def refresh(self) -> float:
        """Renew it."""
        self.facts["renewed"] += 1  # other contents, so that the tag is another
        if self._put(IfMatch=self.etag):
            return 0.0
        self.etag, age = self._read()  # the answer to the last renewal was lost on its way, or another run has it
        return age

    def _renew_until_stopped(self) -> None:
        while not self.lost and not self._stop.wait(RENEWAL):
            try:
                self.refresh()
            except Exception as error:  # not reached, or lost: `check` forbids writing in time
                if not isinstance(error, OSError | RunFailed) and not of_storage(error):
                    raise

    def _put(self, **condition: str) -> bool:
        """Write the lease on a condition; does that hold?"""
        body, asked = json.dumps(self.facts).encode(), clock()
        try:
            answer = self.store.fs.call_s3("put_object", **_object(self.store), Body=body, **condition)
        except Exception as error:
            if code_of(error) in (*CONFLICT, *GONE):
                return False
            raise
        self.etag, self._until = answer["ETag"], asked + LEASE * (1 - MARGIN)
        return True

    def _in_words(self, holder: Mapping[str, Any], age: float) -> str:
        who = f"{holder.get('host', 'unknown host')}, process {holder.get('pid', 'unknown')}"
        left = max(1, round(LEASE - age))
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


def store_of(task: Task) -> Store:
    """The folder that a task writes into, for as long as its driver has the right to."""
    store = Store(task.out)
    if task.lease is not None:
        known = _leases().get(store.root)
        if known is None or known.token != task.lease:
            known = heed(Lease(Store(task.out), task.lease))
        store.lease = known
    return store


@cache
def _leases() -> dict[str, Lease]:
    """By root, the lease that this process has to heed there: its own, or that of the last driver whose tasks it had.
    All tasks of a driver share one, so the store is asked once for many of them."""
    return {}


def heed(lease: Lease) -> Lease:
    """Send no request that writes below the root once the lease is not fresh: botocore retries for half a minute."""
    _leases()[lease.store.root] = lease
    lease.store.fs.s3.meta.events.register("before-send.s3", _refuse_late_writes, unique_id="gristmill-lease")
    return lease


def _refuse_late_writes(request: Any, event_name: str, **_: Any) -> None:
    path = unquote(urlsplit(request.url).path)
    if event_name.rpartition(".")[2] not in WRITES or path.endswith(f"/{NAME}"):
        return
    for root, lease in _leases().items():
        in_bucket = f"/{root.partition('/')[2]}/"  # of addresses that have the bucket in their host
        if (f"/{root}/" in path or path.startswith(in_bucket)) and not lease.is_fresh():
            raise RunFailed(f"{lease.store.address}: its lock could not be renewed in time, so nothing more is written")


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
