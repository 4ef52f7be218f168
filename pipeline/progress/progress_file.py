"""`logs/progress.json`: what a running run tells other processes, such as the page of `gristmill explore`.

A thread of the driver writes it at most once a second (once in ten on an object store), and at least once in half a
minute, whole or not at all, while workers are at work. It is removed when the run is done, for run.json has all facts
then. A run that fails or is interrupted leaves it with the reason. One that is killed leaves it as it was; `state_of`
tells whether the process that wrote it is alive and has written lately.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gristmill.kernels.common.files import write_whole
from gristmill.pipeline.errors import OverBudget
from gristmill.pipeline.process_id import is_alive
from gristmill.pipeline.progress.progress import Progress, ProgressRecorder
from gristmill.pipeline.store.storage import Store

PATH = "logs/progress.json"
EVERY, EVERY_REMOTE = 1.0, 10.0  # seconds
HEARTBEAT = 30.0  # seconds after which a file without news is written again
SILENT = 120.0  # seconds without a heartbeat, after which a run is no longer called running

Watcher = Callable[[Progress], None]


@contextlib.contextmanager
def recording_progress(
    recorder: ProgressRecorder, store: Store, watcher: Watcher | None = None
) -> Iterator[ProgressRecorder]:
    """Keep the file while a run goes on. At the end it is removed, or has how the run ended. `watcher` gets the same
    facts, the last too."""
    ended = threading.Event()

    def write(facts: Progress) -> None:
        _write(store, facts)

    def show(facts: Progress) -> None:
        if watcher is not None:
            watcher(facts)

    def publish(*readers: Watcher) -> None:
        """Pass the facts on. An error is noted and does not end the run."""
        for reader in readers:
            try:
                reader(recorder.facts())
            except Exception as error:
                recorder.trouble(error)
        with contextlib.suppress(OSError):  # the terminal is gone
            recorder.show_troubles()

    def keep() -> None:
        recorder.at_work.wait()
        last = -math.inf
        while not ended.is_set():
            if recorder.changed.is_set() or time.monotonic() - last >= HEARTBEAT:
                recorder.changed.clear()
                publish(write, show)
                last = time.monotonic()
            ended.wait(EVERY if store.local else EVERY_REMOTE)

    keeper = threading.Thread(target=keep, name="progress", daemon=True)
    keeper.start()

    def stop() -> None:
        ended.set()
        recorder.at_work.set()
        keeper.join()

    try:
        yield recorder
    except BaseException as error:
        stop()
        stopped = isinstance(error, KeyboardInterrupt | OverBudget)
        recorder.end("interrupted" if stopped else "failed", message_of(error))
        publish(write, show)
        raise
    stop()
    recorder.end("done", None)
    publish(show)
    if store.exists(PATH):
        store.remove([PATH])


def message_of(error: BaseException) -> str | None:
    return None if isinstance(error, KeyboardInterrupt) else f"{error}" or type(error).__name__


def _write(store: Store, facts: Progress) -> None:
    """Whole or not at all, but without fsync: a second later there is another. A disk that is full is the run's to
    complain of."""
    data = json.dumps(facts.as_json(), separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        if store.local:
            write_whole(Path(store.at(PATH)), data, durable=False)
        else:
            store.write(PATH, data)


def state_of(facts: Mapping[str, object], now: float) -> str:
    """The state of a run. A file that says `running` counts as `stopped` if its process is gone, and as `silent` if it
    was last written minutes ago."""
    state, process, updated = str(facts.get("state")), facts.get("process"), facts.get("updated")
    if state != "running":
        return state
    if not isinstance(process, Mapping) or is_alive(process) is False:
        return "stopped"
    return "running" if isinstance(updated, int | float) and now - updated < SILENT else "silent"
