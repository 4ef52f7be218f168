"""Executors: tasks to results, on workers or in this process.

`InlineExecutor` runs tasks in this process, `DaskExecutor` on workers. Dask places and transports them. What it lacks
is here: small tasks travel together, for a round trip through the scheduler costs about a millisecond; a bounded number
is in flight; a task whose worker died is tried alone and isolated; a scheduler that went away is waited for.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from gristmill.pipeline.engine.budget import Budget
from gristmill.pipeline.engine.cluster import CONNECT, GPU_RESOURCE, Where, connected, has_dashboard
from gristmill.pipeline.engine.shared_folder import install_here, nonce_in
from gristmill.pipeline.engine.worker import DIED, NOTES, Terms, answer, run_task
from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.formatting import one_line, plain
from gristmill.pipeline.progress.progress import UI, WorkerMemory
from gristmill.pipeline.store.journal import FOLDER
from gristmill.pipeline.store.records import FOR_REPORTS, Failure, Result, Task
from gristmill.pipeline.store.serialize import read_as
from gristmill.pipeline.store.storage import Store
from gristmill.pipeline.tasks.isolation import BatchLocation, LastBreadcrumb

if TYPE_CHECKING:
    from distributed import Client, Future

IN_A_MESSAGE = 128  # groups; the scheduler does nothing else while it takes in a message
BETWEEN = 0.05  # seconds between messages, or it takes them in as one
IN_FLIGHT = 3  # tasks sent for each worker: one at work, two on the way
PATIENCE = 600.0  # seconds for a scheduler that went away to come back, as one that its own machine starts again
EVERY = 1.0  # seconds between looks at how many workers there are
CLOSELY = 15.0  # seconds between looks at tasks that take long
STALLED = 120.0  # a compiler may hold a worker's heartbeat back for half of it
ENDING = 15.0  # seconds for the nanny of a stalled worker to end its process; it starts another
GROUP_BYTES = 32 << 20
GROUP_TASKS = 256
TRIES = 5  # of a group that is lost for no reason that is known
# Of a group that stood in the queue of a worker that others killed: where many documents kill, that is often.
QUEUED_TRIES = 100


class Executor(ABC):
    """Where tasks run."""

    deaths = 0  # of workers
    workers = 0  # that were there when work began
    dashboard: str | None = None
    start_seconds = 0.0  # until workers were ready

    @property
    @abstractmethod
    def started(self) -> bool:
        """Whether tasks can be run without starting workers first."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many tasks can run at once."""

    @abstractmethod
    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
        """Run tasks: each with its result, in the order in which they end. What went wrong is a `Failure`."""

    def memory(self) -> WorkerMemory | None:
        """What workers hold, where it is known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop the workers."""


class InlineExecutor(Executor):
    """Runs tasks in this process, one after another: for notebooks, tests and debuggers, and for a little work that is
    not worth a worker. Documents are not isolated: one that kills a stage kills this process."""

    started = True
    slots = 1
    run_task = staticmethod(run_task)

    def __init__(self, store: Store, prepare: Callable[[], None] | None = None) -> None:
        self.store = store
        self.prepare = prepare

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
        if tasks and self.prepare is not None:
            self.prepare()
            self.prepare = None
        return zip(tasks, map(self.run_task, tasks), strict=True)

    def close(self) -> None: ...


# --- groups of tasks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Tasks that travel together, and how often that went wrong."""

    tasks: list[Task]
    isolated: bool = False
    location: BatchLocation | None = None  # where a worker died over the only one
    tries: int = 1
    queued: int = 1

    def __str__(self) -> str:
        more = f" and {len(self.tasks) - 1} more" if len(self.tasks) > 1 else ""
        return f"{self.tasks[0].node}, {self.tasks[0].key}{more}"

    @property
    def gpu(self) -> bool:
        return self.tasks[0].gpu

    def again(self, failure: str, most: int = TRIES) -> Group:
        if self.tries >= most:
            raise RunFailed(f"{self} {failure}")
        return replace(self, tries=self.tries + 1)

    def queued_again(self, failure: str) -> Group:
        if self.queued == QUEUED_TRIES:
            raise RunFailed(f"{self} {failure}")
        return replace(self, queued=self.queued + 1)


@dataclass
class Sent:
    """A group on its way."""

    group: Group
    future: Future
    breadcrumb: Path | None  # there once a worker has begun
    at: float = field(default_factory=time.monotonic)


def batch_tasks(tasks: Sequence[Task], slots: int) -> list[Group]:
    """Group small tasks, so that the scheduler sees few and yet every worker gets its share."""
    total = sum(task.cost for task in tasks)
    most_bytes = min(GROUP_BYTES, max(1, total // (slots * 8)))
    most_tasks = max(1, min(GROUP_TASKS, -(-len(tasks) // (slots * 8))))
    groups: list[list[Task]] = []
    size = 0
    for task in tasks:
        if (
            not groups
            or size + task.cost > most_bytes
            or len(groups[-1]) >= most_tasks
            or groups[-1][-1].gpu != task.gpu
        ):
            groups.append([])
            size = 0
        groups[-1].append(task)
        size += task.cost
    return [Group(group) for group in groups]


def results_in(answer: str) -> list[Result]:
    """The results that a worker has sent."""
    return [read_as(Result, result) for result in json.loads(answer)]


def pair_results(tasks: list[Task], results: list[Result]) -> list[tuple[Task, Result]]:
    """Tasks with their results; after one that failed a worker leaves the rest undone, and nowhere else."""
    if len(results) != len(tasks) and not (results and len(results) < len(tasks) and isinstance(results[-1], Failure)):
        raise RunFailed(
            f"{tasks[0].node}: a worker was given {len(tasks)} tasks and answered with {len(results)} results"
        )
    return list(zip(tasks, results, strict=False))


# --- workers ----------------------------------------------------------------------------------------------------------


class DaskExecutor(Executor):
    """Runs tasks on Dask workers, which start when the first task needs them."""

    def __init__(
        self,
        store: Store,
        where: Where,
        ui: UI,
        recipe: Path,
        prepare: Callable[[], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.store = store
        self.where = where
        self.ui = ui
        self.recipe = recipe
        self.prepare = prepare  # while workers start
        self.budget = budget
        self._given_up: list[tuple[Task, Result]] = []  # tasks for the report that kill workers
        self._nonce: str | None = None  # for workers of other machines: do they see the run's folder?
        self._sent = 0  # groups ever
        self._topic = f"{NOTES}-{uuid.uuid4().hex}"  # of answers
        self._events: SimpleQueue[tuple[str, str] | Future] = SimpleQueue()
        self._gpus = False  # has any worker said that it has one?
        self._stack = contextlib.ExitStack()
        self._connection = self._stack.enter_context(contextlib.ExitStack())
        self._client: Client | None = None  # None: no task has needed a worker yet

    @property
    def started(self) -> bool:
        return self._client is not None

    @property
    def slots(self) -> int:
        return max(1, len(self._client.nthreads())) if self._client is not None else self.where.count

    def close(self) -> None:
        self._stack.close()

    def memory(self) -> WorkerMemory | None:
        """Of workers whose scheduler is in this process: the one of another would have to be asked."""
        scheduler = getattr(getattr(self._client, "cluster", None), "scheduler", None)
        workers = [] if scheduler is None else list(scheduler.workers.values())
        used = [int(worker.metrics.get("memory", 0)) for worker in workers]
        if not any(used):
            return None
        limit = max(int(worker.memory_limit or 0) for worker in workers) or None
        return WorkerMemory(len(used), max(used), limit)

    def results(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
        left = {task.task: task for task in tasks}
        client = self.client
        if self._nonce is None and self.store.local and self.where.elsewhere:
            self._nonce = self._stack.enter_context(nonce_in(self.store))
        while left:
            try:
                for task, result in self._send_and_take(client, [*left.values()]):
                    del left[task.task]
                    yield task, result
                return
            except OSError as error:
                if not is_lost(error, client):
                    raise
                if not self.where.scheduler:  # it was a thread of this process
                    raise RunFailed(
                        f"the connection to the scheduler is lost ({error}); what is finished is kept"
                    ) from error
                client = self.reconnect(error)

    def _send_and_take(self, client: Client, tasks: Sequence[Task]) -> Iterator[tuple[Task, Result]]:
        """Send tasks, a bounded number at a time, and take what comes of them."""
        from distributed import KilledWorker

        groups = deque(batch_tasks(tasks, self.slots))
        sent: dict[str, Sent] = {}
        watch = Watch(client, self.ui.note, self.at)
        while groups or sent:
            while (room := min(len(groups), IN_FLIGHT * max(1, watch.workers) - len(sent), IN_A_MESSAGE)) > 0:
                if self.budget and not (room := self.budget.room_for(group.tasks for group in islice(groups, room))):
                    break
                sent |= self._send(client, [groups.popleft() for _ in range(room)])
                if room == IN_A_MESSAGE:
                    time.sleep(BETWEEN)
            if groups and not sent and self.budget is not None:
                raise self.budget.exceeded(len(groups))
            for key, event in self._ended():
                if key not in sent:  # it has answered
                    continue
                this = sent.pop(key)
                group, future = this.group, this.future
                results = results_in(event) if isinstance(event, str) else None
                error = future.exception() if results is None and future.status == "error" else None
                if isinstance(error, KilledWorker) or results == [DIED]:
                    groups.extendleft(reversed(self.after_a_death(group, this.breadcrumb)))
                    given_up, self._given_up = self._given_up, []
                    yield from given_up
                elif error is not None:
                    raise RunFailed(f"{group}: {type(error).__name__}: {error}") from error
                elif results is None:
                    check_connection(future, client)
                    groups.appendleft(
                        group.again(f"was cancelled by the scheduler {TRIES} times; is another client at work there?")
                    )
                else:
                    yield from pair_results(group.tasks, results)
                future.release()
            watch.look(sent)  # workers that have joined are sent tasks too

    def _send(self, client: Client, groups: list[Group]) -> dict[str, Sent]:
        """In one message; each on its own costs the scheduler ten times as much. By Dask's keys."""
        for_gpus = any(group.gpu for group in groups) and self.has_gpus(client)
        install = install_here() if self.where.elsewhere else None
        sent: dict[str, Sent] = {}
        for resources in (None, {GPU_RESOURCE: 1}):
            some: dict[str, Group] = {}
            terms: list[Terms] = []
            for group in groups:
                if (for_gpus and group.gpu) == (resources is not None):
                    self._sent += 1
                    first = group.tasks[0]
                    some[f"{first.node}-{first.task}-{self._sent}"] = group
                    path = self.breadcrumb(f"{first.task[:16]}-{self._sent}")
                    terms.append(Terms(group.isolated, group.location, path, True, self._nonce, install))
            if some:
                tasks = [group.tasks for group in some.values()]
                futures = client.map(
                    answer, [self._topic] * len(some), [*some], tasks, terms,
                    key=[*some], pure=False, resources=resources,
                )  # fmt: skip
                for future, group, term in zip(futures, some.values(), terms, strict=True):
                    future.add_done_callback(self._events.put)
                    sent[future.key] = Sent(group, future, term.breadcrumb)
        return sent

    def _ended(self) -> list[tuple[str, str | Future]]:
        """What has ended since, by key: an answer, or Dask's word of one without. Waits a second for it."""
        events = []
        with contextlib.suppress(Empty):
            events.append(self._events.get(timeout=EVERY))
            while True:
                events.append(self._events.get_nowait())
        return [event if isinstance(event, tuple) else (event.key, event) for event in events]

    def has_gpus(self, client: Client) -> bool:
        """Whether any worker says that it has one. Where none does, stages find what there is, or report what is
        missing."""
        self._gpus = self._gpus or any(
            worker.get("resources", {}).get(GPU_RESOURCE)
            for worker in client.scheduler_info(n_workers=-1)["workers"].values()
        )
        return self._gpus

    # --- after a death ---

    def breadcrumb(self, name: str) -> Path | None:
        """The file of a group's breadcrumb, if workers can write where it is read."""
        return Path(self.store.at(f"{FOLDER}/.{name}.tmp")) if self.store.local else None

    def after_a_death(self, group: Group, breadcrumb: Path | None) -> list[Group]:
        """The groups to send again after a worker died: the task it was at isolated, the others as before. A task for
        the report is given up if it hung, or at the second death."""
        self.deaths += 1
        last = LastBreadcrumb.read(breadcrumb) if breadcrumb is not None else None
        if breadcrumb is not None:
            breadcrumb.unlink(missing_ok=True)
        if last is not None and last.hung:
            self.store.write("logs/trace.txt", plain(last.hung).encode("utf-8", "replace"))
        if last is None and breadcrumb is not None:  # it stood in the worker's queue
            return [group.queued_again(f"lost its worker {QUEUED_TRIES} times before anything was begun{self.limit}")]
        if group.isolated and group.tasks[0].kind in FOR_REPORTS:
            self.give_up(group.tasks[0], "killed its worker")
            return []
        if group.isolated:  # documents do not kill it: somebody else did
            # where workers die of something else, as on machines that are taken away, that is no sign
            most = TRIES if 2 * group.tries >= self.deaths else QUEUED_TRIES
            return [group.again(f"killed its worker {group.tries} times{self.limit}", most)]
        if last is None:
            self.ui.note(f"a worker died over {group}; trying again in an isolated process")
            return [Group([task], isolated=True) for task in group.tasks]
        number = next(number for number, task in enumerate(group.tasks) if task.task == last.task)
        task = group.tasks[number]
        what = f"{task.node}, {task.key}"
        rest = [Group(some) for some in (group.tasks[:number], group.tasks[number + 1 :]) if some]
        if task.kind in FOR_REPORTS and last.hung:
            self.give_up(task, "took too long")
            return rest
        if last.location is None:
            self.ui.note(f"a worker died over {what}; trying again in an isolated process")
        else:
            hung = f"took longer than its patience ({self.store.at('logs/trace.txt')} says where)"
            self.ui.note(
                f"a worker {hung if last.hung else 'died'} {last.in_words()} of {what}; looking for the one to blame"
            )
        return [Group([task], isolated=True, location=last.location), *rest]

    def give_up(self, task: Task, why: str) -> None:
        what = f"{task.node}, {task.kind} {task.key}"
        self._given_up.append((task, Failure(message=f"{what}: {why}")))

    @property
    def limit(self) -> str:
        """What to look at where workers die: the limit of their memory, if somebody gave one."""
        return (
            ""
            if self.where.memory == "auto"
            else f"; its limit of {self.where.memory} (--memory, or `memory` in the recipe) may be too low"
        )

    # --- the connection ---

    @property
    def client(self) -> Client:
        if self._client is None:
            start = time.monotonic()
            with ThreadPoolExecutor(1) as aside:  # processes take seconds to start; tasks wait for both
                ready = aside.submit(self.prepare) if self.prepare is not None else None
                self._client = self.connect_in_time(CONNECT) if self.where.scheduler else self.connect()
                if ready is not None:
                    ready.result()
            self.start_seconds = time.monotonic() - start
            self.dashboard = getattr(self._client, "dashboard_link", None) if has_dashboard() else None
            self.workers = self.slots
        return self._client

    def connect(self, patience: float = CONNECT) -> Client:
        client = self._connection.enter_context(connected(self.where, self.recipe, patience))
        client.subscribe_topic(NOTES, lambda event: self.ui.note(one_line(str(event[1]))))
        client.subscribe_topic(self._topic, lambda event: self._events.put(tuple(event[1])))
        self.wait_for_workers(client)
        return client

    def connect_in_time(self, patience: float) -> Client:
        """Dask's client gives up at once where a scheduler that is starting or ending closes a connection."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self.connect(max(1.0, deadline - time.monotonic()))
            except (RunFailed, OSError):
                self._connection.close()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(EVERY)

    def reconnect(self, error: OSError) -> Client:
        """To a scheduler that went away, once it is back. It has forgotten all that was sent."""
        start = time.monotonic()
        self.ui.note(
            f"the scheduler{self.at} is lost ({one_line(str(error))}); waiting up to {PATIENCE / 60:.0f} minutes for it "
            "to come back"
        )
        self._connection.close()
        try:
            self._client = self.connect_in_time(PATIENCE)
        except (RunFailed, OSError) as also:
            raise RunFailed(
                f"the scheduler{self.at} is lost ({error}) and did not come back in {PATIENCE / 60:.0f} minutes; "
                "what is finished is kept: start it again, and run the same command"
            ) from also
        self.ui.note(f"the scheduler is back after {time.monotonic() - start:.0f} s; what was in flight is sent again")
        return self._client

    @property
    def at(self) -> str:
        return f" at {self.where.scheduler}" if self.where.scheduler else ""

    def wait_for_workers(self, client: Client) -> None:
        """Wait for the first one. Jobs of a cluster may stand in a queue for hours; nobody knows when a scheduler of
        others gets workers."""
        elsewhere = self.where.scheduler or self.where.cluster
        if elsewhere and not client.nthreads():
            self.ui.note(f"no worker is there yet at {elsewhere}; waiting for the first")
        if not self.where.scheduler:
            client.wait_for_workers(1, timeout=None if self.where.cluster else 600)


# --- what is seen of workers and scheduler ----------------------------------------------------------------------------


class Watch:
    """What the driver sees of its workers while it waits for results: how many there are, and which tasks stall.

    A task stalls when there was no heartbeat for `STALLED` seconds: the
    machine froze, or is cut off, or a stage holds the interpreter. Its worker is then killed by its nanny, or removed
    where that does not answer either, which is a death as any other. Dask has such a limit too (`worker-ttl`), by the
    clocks of the machines; this one goes by the driver's alone, as those of others may be wrong.
    """

    def __init__(self, client: Client, note: Callable[[str], None], at: str) -> None:
        self.client = client
        self.note = note
        self.at = at
        self.workers = len(client.nthreads())
        self._looked = self._looked_closely = time.monotonic()
        self._heard: dict[str, tuple[float, float]] = {}  # by worker: its last heartbeat, and since when it is that
        self._none_left = False

    def look(self, sent: Mapping[str, Sent]) -> None:
        """At most once a second. `sent` is by key of Dask."""
        now = time.monotonic()
        if now - self._looked < EVERY:
            return
        self._looked = now
        self.workers = len(self.client.nthreads())
        if not self.workers and not self._none_left:
            self.note(f"no worker is left{self.at}; waiting for one to join")
        elif self.workers and self._none_left:
            self.note(f"{self.workers:,} workers are there again" if self.workers > 1 else "a worker is there again")
        self._none_left = not self.workers
        if now - self._looked_closely >= CLOSELY:
            self._looked_closely = now
            self._look_closely({key: each for key, each in sent.items() if now - each.at >= STALLED}, now)

    def _look_closely(self, sent: Mapping[str, Sent], now: float) -> None:
        """At tasks that were sent long ago: where they are, and what is heard of their workers."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"] if sent else {}
        before, self._heard = self._heard, {}
        for address, facts in workers.items():
            seen, since = before.get(address, (0.0, now))
            self._heard[address] = facts["last_seen"], since if seen == facts["last_seen"] else now
        for address, keys in (self.client.processing() if sent else {}).items():
            at_work = [sent[key] for key in keys & sent.keys()] if address in workers else []
            if at_work and now - self._heard[address][1] >= STALLED:
                self.note(
                    f"{at_work[0].group}: stalled; nothing was heard of its worker {one_line(address)} for "
                    f"{STALLED:.0f} s; it is done again elsewhere"
                )
                self.client.sync(
                    self.client.scheduler.restart_workers,
                    workers=[address], timeout=ENDING, wait_for_workers=False, on_error="return", stimulus_id="stalled",
                )  # fmt: skip


class SchedulerLost(OSError):
    """The connection to it broke; it may come back."""


def is_lost(error: OSError, client: Client) -> bool:
    from distributed.comm import CommClosedError

    if isinstance(error, SchedulerLost | CommClosedError):  # the client may not have noticed yet
        return True
    return error.errno is None and client.status != "running"


def check_connection(future: Future, client: Client) -> None:
    """Raise where a future that came to no answer was not cancelled by anybody: the scheduler went away.

    What is sent while Dask's client tries to connect again is cancelled without a word when it gives up. Where it
    succeeds by itself, the new scheduler does not know that we want to hear of answers: tasks end, and nothing comes.
    """
    from distributed.client import FutureCancelledError

    try:
        future.result()
    except FutureCancelledError as error:
        if error.reason == "scheduler-connection-lost" or client.status != "running":
            raise SchedulerLost("the connection closed") from error
    else:
        raise SchedulerLost("it was started anew")
