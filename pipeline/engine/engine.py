"""Tasks to results: those in the journal are not done again, the others run on workers, a bounded number at a time.

A task is plain data with a fingerprint (`task`), a kind, the node it belongs to, a key and a cost in bytes. Small ones
travel together, for a round trip through the scheduler costs about a millisecond. A task whose worker died is tried
alone, and carefully.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from gristmill.pipeline.engine.cluster import CONNECT, Where, connected, has_dashboard
from gristmill.pipeline.engine.groups import QUEUED_TRIES, TOGETHER_BYTES, TRIES, Group, answered, together
from gristmill.pipeline.engine.shared_folder import install_here, nonce_in
from gristmill.pipeline.engine.watch import EVERY, SchedulerLost, Sent, Watch, check_connection
from gristmill.pipeline.engine.work import DIED, NOTES, answer, run_tasks
from gristmill.pipeline.errors import DamagedFile, NotConserved, RetiredFiles, RunFailed
from gristmill.pipeline.formatting import one_line, plain
from gristmill.pipeline.inputs.budget import Budget
from gristmill.pipeline.leg.care import Last
from gristmill.pipeline.leg.resume import as_one, by_name, is_done, resume
from gristmill.pipeline.processes.gpus import RESOURCE
from gristmill.pipeline.processes.kernel_packs import Offer, offer_in
from gristmill.pipeline.progress.facts import WorkerMemory
from gristmill.pipeline.progress.ui import UI
from gristmill.pipeline.shuffle.spill import files_of_rows
from gristmill.pipeline.store.journal import FOLDER, Journal
from gristmill.pipeline.store.partitions import parts_of, resting_on
from gristmill.pipeline.store.records import FOR_REPORTS, NOT_JOURNALED, LookTask, PagesTask, Result, RowsHandle, Task

if TYPE_CHECKING:
    from distributed import Client, Future

SLOW_START = 10.0  # seconds worth a word
IN_A_MESSAGE = 128  # groups; the scheduler does nothing else while it takes in a message
BETWEEN = 0.05  # seconds between messages, or it takes them in as one
IN_FLIGHT = 3  # tasks sent for each worker: one at work, two on the way
PATIENCE = 600.0  # seconds for a scheduler that went away to come back, as one that its own machine starts again


class Engine:
    """Runs tasks for one run folder; starts workers when the first task needs them."""

    def __init__(
        self,
        journal: Journal,
        where: Where,
        ui: UI,
        recipe: Path,
        before_workers: Callable[[], None] | None = None,
        before_work: Callable[[], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.recipe = recipe
        self.before_workers = before_workers
        self.before_work = before_work  # of the first task that is not done yet
        self.budget = budget
        self.journal = journal
        self.where = where
        self.ui = ui
        self.worked = 0
        self.requests: Counter[str] = Counter()  # of all results, to object stores
        self.start_seconds = 0.0  # until workers were ready
        self._along: list[Task] = []
        self._failed: dict[str, Result] = {}  # of tasks for the report
        self._nonce: str | None = None  # for workers of other machines: do they see the run's folder?
        self._kernels: Offer | None = None  # for them too: what the driver has compiled
        self._sent = 0  # groups ever
        self._topic = f"{NOTES}-{uuid.uuid4().hex}"  # of answers
        self._events: SimpleQueue[tuple[str, str] | Future] = SimpleQueue()
        self.deaths = 0  # of workers
        self._gpus = False  # has any worker said that it has one?
        self._stack = contextlib.ExitStack()
        self._connection = self._stack.enter_context(contextlib.ExitStack())
        self._client: Client | None = None  # None: no task has needed a worker yet

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self.journal.flush()
            if isinstance(error, KeyboardInterrupt) and self._client is not None:
                self.ui.stopping()

    @property
    def client(self) -> Client:
        if self._client is None:
            start = time.monotonic()
            with ThreadPoolExecutor(1) as aside:  # processes take seconds to start; tasks wait for both
                ready = aside.submit(self.before_workers) if self.before_workers is not None else None
                self._client = self.connect_in_time(CONNECT) if self.where.scheduler else self.connect()
                if ready is not None:
                    ready.result()
            self.start_seconds = time.monotonic() - start
            if self.before_workers is None and self.start_seconds > SLOW_START:
                self.ui.note(
                    f"workers were ready after {self.start_seconds:.0f} s; the next run finds kernels and tables made"
                )
            dashboard = getattr(self._client, "dashboard_link", None) if has_dashboard() else None
            self.ui.connected(dashboard, self.slots)
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
        self.journal.flush()
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
        """The first one. Jobs of a cluster may stand in a queue for hours; nobody knows when a scheduler of others gets
        workers."""
        elsewhere = self.where.scheduler or self.where.cluster
        if elsewhere and not client.nthreads():
            self.ui.note(f"no worker is there yet at {elsewhere}; waiting for the first")
        if not self.where.scheduler:
            client.wait_for_workers(1, timeout=None if self.where.cluster else 600)

    @property
    def slots(self) -> int:
        """How many tasks the workers can do at once."""
        return max(1, len(self._client.nthreads())) if self._client is not None else self.where.count

    def memory(self) -> WorkerMemory | None:
        """Of workers whose scheduler is in this process: the one of another would have to be asked."""
        scheduler = getattr(getattr(self._client, "cluster", None), "scheduler", None)
        workers = [] if scheduler is None else list(scheduler.workers.values())
        used = [int(worker.metrics.get("memory", 0)) for worker in workers]
        if not any(used):
            return None
        limit = max(int(worker.memory_limit or 0) for worker in workers) or None
        return {"workers": len(used), "largest": max(used), "total": sum(used), "limit": limit}

    @property
    def limit(self) -> str:
        """What to look at where workers die: the limit of their memory, if somebody gave one."""
        return (
            ""
            if self.where.memory == "auto"
            else f"; its limit of {self.where.memory} (--memory, or `memory` in the recipe) may be too low"
        )

    def has_gpus(self, client: Client) -> bool:
        """Does any worker say that it has one? Where none does, stages find what there is, or say what is missing."""
        self._gpus = self._gpus or any(
            worker.get("resources", {}).get(RESOURCE)
            for worker in client.scheduler_info(n_workers=-1)["workers"].values()
        )
        return self._gpus

    def along(self, task: PagesTask) -> None:
        """A task that nothing waits for: it travels with the next that are worked on."""
        if task["task"] not in self.journal.done:
            self._along.append(task)

    def finish_along(self) -> None:
        """Those after which nothing came to travel with, if there are workers."""
        if self._client is not None:
            along, self._along = self._along, []
            self.run(along)

    def result_along(self, task: PagesTask) -> Result:
        """The result of a task that went along, or why it failed; done here in a run that needed no workers."""
        if task["task"] not in self._failed and task["task"] not in self.journal.done:
            [result] = run_tasks([task], lease=self.journal.store.lease_token)
            result.pop("requests", None)  # this process counts its own
            self.accept(task, result)
            self.journal.flush()
        return self._failed.get(task["task"]) or self.journal.done[task["task"]]

    def look(self, tasks: list[LookTask]) -> list[Result]:
        """The results of tasks for the report, in order, or why one failed; the journal does not keep them. In a run
        that needed no workers none are started for a little work."""
        results: dict[str, Result] = {}
        self.need(tasks)
        if self._client is None and sum(task["cost"] for task in tasks) <= TOGETHER_BYTES:
            for task in tasks:
                [results[task["task"]]] = run_tasks([task], lease=self.journal.store.lease_token)
                self.accept(task, results[task["task"]])
        elif tasks:
            self._work(list(tasks), results)
        return [results[task["task"]] for task in tasks]

    def run(self, tasks: Iterable[Task]) -> dict[str, Result]:
        """The result of every task, by fingerprint."""
        results: dict[str, Result] = {}
        to_do: list[Task] = []
        tasks = list(tasks)
        self.ui.expects(tasks)
        for task in tasks:
            if task["kind"] == "partition":
                found, rest = resume(task, self.journal.done)
                results |= found
                for phase in found.values():
                    self.requests.update(phase.get("requests", {}))
                if rest is None:
                    self.count(task, as_one(task, found), anew=False)
                else:
                    to_do.append(rest)
                continue
            done = self.journal.done.get(task["task"])
            if done is None:
                to_do.append(task)
            else:
                results[task["task"]] = resting_on(done, parts_of(task))
                self.requests.update(done.get("requests", {}))
                self.count(task, done, anew=False)
        if to_do:
            self.need(to_do)
            along, self._along = self._along, []
            self._work(to_do + along, results)
            self.journal.flush()
        return results

    def need(self, tasks: Iterable[Task]) -> None:
        """RetiredFiles where tasks read what the run removed itself."""
        if retired := self.journal.retired & {path for task in tasks for path in self.paths_read(task)}:
            raise RetiredFiles(retired)

    def count(self, task: Task, result: Result, anew: bool) -> None:
        if self.budget is not None:
            self.budget.counts(task, result)
        self.ui.finished(task, result, anew)

    def paths_read(self, task: Task) -> Iterator[str]:
        """The files of the run that a task reads, as far as any were retired."""
        waiting: list[object] = [task] if self.journal.retired else []
        while waiting:
            value = waiting.pop()
            if isinstance(value, list | tuple):
                waiting += value
            elif isinstance(value, dict) and "checksum" in value:
                many = files_of_rows(self.journal.store, cast(RowsHandle, value)) if "list" in value else [value]
                yield from (facts["path"] for facts in many)
            elif isinstance(value, dict):
                waiting += value.values()

    def _work(self, tasks: list[Task], results: dict[str, Result]) -> None:
        if self._client is None and self.before_work is not None:
            self.before_work()
        from distributed.comm import CommClosedError

        client = self.client
        if self._nonce is None and self.journal.store.local and self.where.elsewhere:
            self._nonce = self._stack.enter_context(nonce_in(self.journal.store))
        if self._kernels is None and self.before_workers is not None and self.where.elsewhere:
            self._kernels = self._stack.enter_context(offer_in(self.journal.store))
        while True:
            try:
                return self._send_and_take(client, [task for task in tasks if not is_done(task, results)], results)
            except OSError as error:
                lost = isinstance(error, SchedulerLost | CommClosedError)  # the client may not have noticed yet
                if not lost and (error.errno is not None or client.status == "running"):
                    raise
                if not self.where.scheduler:  # it was a thread of this process
                    raise RunFailed(
                        f"the connection to the scheduler is lost ({error}); what is finished is kept"
                    ) from error
                client = self.reconnect(error)

    def _send_and_take(self, client: Client, tasks: list[Task], results: dict[str, Result]) -> None:
        """Tasks to workers, a bounded number at a time, and what comes of them into the journal."""
        from distributed import KilledWorker

        groups = deque(Group(group) for group in together(tasks, self.slots))
        flying: dict[str, tuple[Group, Future]] = {}
        sent: dict[str, Sent] = {}
        watch = Watch(client, self.ui.note, self.at)

        def send() -> None:
            while (room := min(len(groups), IN_FLIGHT * max(1, watch.workers) - len(flying), IN_A_MESSAGE)) > 0:
                if self.budget and not (room := self.budget.room_for(group.tasks for group in islice(groups, room))):
                    return
                for future, group, trail in self._send(client, [groups.popleft() for _ in range(room)]):
                    flying[future.key], sent[future.key] = (group, future), Sent(str(group), trail)
                if room == IN_A_MESSAGE:
                    time.sleep(BETWEEN)

        send()
        while flying:
            for key, answer_or_future in self._ended():
                if key not in flying:  # it has answered
                    continue
                (group, future), trail = flying.pop(key), sent.pop(key).trail
                found = None if answer_or_future is future else json.loads(answer_or_future)
                error = future.exception() if found is None and future.status == "error" else None
                if isinstance(error, KilledWorker) or found == [DIED]:
                    groups.extendleft(reversed(self.after_a_death(group, trail)))
                    results |= {
                        name: self._failed[name] for task in group.tasks if (name := task["task"]) in self._failed
                    }
                elif error is not None:
                    raise RunFailed(f"{group}: {type(error).__name__}: {error}") from error
                elif found is None:
                    check_connection(future, client)
                    groups.appendleft(
                        group.again(f"was cancelled by the scheduler {TRIES} times; is another client at work there?")
                    )
                else:
                    for task, result in answered(group.tasks, found):
                        self.accept(task, result)
                        results |= by_name(task, result)
                        if task["kind"] not in NOT_JOURNALED:
                            self.worked += 1
                            self.count(task, result, anew=True)
                future.release()
            watch.look(sent)
            send()  # also to workers that have joined
        if groups and self.budget is not None:
            raise self.budget.exceeded(len(groups))

    def _send(self, client: Client, groups: list[Group]) -> Iterator[tuple[Future, Group, Path | None]]:
        """In one message; each on its own costs the scheduler ten times as much."""
        for_gpus = bool(groups) and any(group.tasks[0].get("gpu") for group in groups) and self.has_gpus(client)
        for wants_gpu in (False, True):
            some = [group for group in groups if bool(for_gpus and group.tasks[0].get("gpu")) == wants_gpu]
            if not some:
                continue
            keys, trails, ways = [], [], []
            for group in some:
                self._sent += 1
                first = group.tasks[0]
                keys.append(f"{first['node']}-{first['task']}-{self._sent}")
                trails.append(self.trail(f"{first['task'][:16]}-{self._sent}"))
                ways.append(
                    {
                        "tasks": group.tasks, "careful": group.careful, "watch": True, "place": group.place,
                        "trail": trails[-1] and str(trails[-1]), "nonce": self._nonce,
                        "kernels": self._kernels, "lease": self.journal.store.lease_token,
                        "install": install_here() if self.where.elsewhere else None,
                    }
                )  # fmt: skip
            futures = client.map(
                answer, [self._topic] * len(keys), keys, ways,
                key=keys, pure=False, resources={RESOURCE: 1} if wants_gpu else None,
            )  # fmt: skip
            for future in futures:
                future.add_done_callback(self._events.put)
            yield from zip(futures, some, trails, strict=True)

    def _ended(self) -> list[tuple[str, Any]]:
        """What has come to an end since, by key: an answer, or Dask's word of one without. Waits a second for it."""
        found = []
        with contextlib.suppress(Empty):
            found.append(self._events.get(timeout=EVERY))
            while True:
                found.append(self._events.get_nowait())
        return [event if isinstance(event, tuple) else (event.key, event) for event in found]

    def trail(self, name: str) -> Path | None:
        """Where a worker says what it is about to do, where it can write what is read here."""
        store = self.journal.store
        return Path(store.at(f"{FOLDER}/.{name}.tmp")) if store.local else None

    def after_a_death(self, group: Group, trail: Path | None) -> list[Group]:
        """The groups to send again after a worker died: the task it was at with care, the others as before. A task for
        the report is given up if it hung, or at the second death."""
        self.deaths += 1
        last = Last.of(trail) if trail is not None else None
        if trail is not None:
            trail.unlink(missing_ok=True)
        if last is not None and last.hung:
            self.journal.store.write("logs/trace.txt", plain(last.hung).encode("utf-8", "replace"))
        if last is None and trail is not None:  # it stood in the worker's queue
            return [group.queued_again(f"lost its worker {QUEUED_TRIES} times before anything was begun{self.limit}")]
        if group.careful and group.tasks[0]["kind"] in FOR_REPORTS:
            self.give_up(group.tasks[0], "killed its worker")
            return []
        if group.careful:  # documents do not kill it: somebody else did
            # where workers die of something else, as on machines that are taken away, that is no sign
            most = TRIES if 2 * group.tries >= self.deaths else QUEUED_TRIES
            return [group.again(f"killed its worker {group.tries} times{self.limit}", most)]
        if last is None:
            self.ui.note(f"a worker died over {group}; trying again with care")
            return [Group([task], careful=True) for task in group.tasks]
        number = next(number for number, task in enumerate(group.tasks) if task["task"] == last.task)
        task = group.tasks[number]
        what = f"{task['node']}, {task['key']}"
        rest = [Group(some) for some in (group.tasks[:number], group.tasks[number + 1 :]) if some]
        if task["kind"] in FOR_REPORTS and last.hung:
            self.give_up(task, "took too long")
            return rest
        if last.place is None:
            self.ui.note(f"a worker died over {what}; trying again with care")
        else:
            hung = f"took longer than its patience ({self.journal.store.at('logs/trace.txt')} says where)"
            self.ui.note(
                f"a worker {hung if last.hung else 'died'} {last.in_words()} of {what}; looking for the one to blame"
            )
        return [Group([task], careful=True, place=last.place), *rest]

    def give_up(self, task: Task, why: str) -> None:
        """Give up a task for the report that kills workers. Later runs skip it too: they might try it in the driver."""
        result: Result = {"failed": f"{task['node']}, {task['kind']} {task['key']}: {why}"}
        self._failed[task["task"]] = result
        if task["kind"] != "look":
            self.journal.add(task["task"], result)

    def accept(self, task: Task, result: Result) -> None:
        """Put a result into the journal. A failure ends the run, unless only the report needed the task."""
        if "damaged" in result:
            raise DamagedFile(result["damaged"])
        if "failed" in result:
            if "trace" in result:
                self.journal.store.write("logs/trace.txt", plain(result["trace"]).encode("utf-8", "replace"))
                result["failed"] += f" (where in the code: {self.journal.store.at('logs/trace.txt')})"
            if task["kind"] in FOR_REPORTS:
                self._failed[task["task"]] = result
                return
            raise (NotConserved if result.get("error") == "NotConserved" else RunFailed)(result["failed"])
        self.requests.update(result.get("requests", {}))
        if task["kind"] not in NOT_JOURNALED:
            for name, done in by_name(task, result).items():
                self.journal.add(name, done)
