"""Load what workers need before they are forked: Dask, the engine's side of a worker, and the stages of a recipe.

Importing this module does the work: a fork server of the standard library can be asked for nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from gristmill.pipeline.errors import RunFailed
from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.processes import (
    RECIPE,
    adopt_orphans,
    cores_here,
    end_with_parent,
    ending_with_parent,
    how_it_ended,
    kill_descendants,
)
from gristmill.pipeline.recipe.registry import named, prepare

if TYPE_CHECKING:
    from gristmill.stages.stage import Stage

MODULES = (
    "gristmill.pipeline.engine.worker",
    "gristmill.pipeline.crawls.listing",
    "gristmill.kernels.base.compiler",
    "distributed.nanny",
    "distributed.worker",
    "typer",
    "rich.console",
    "rich.markup",
)
OURS = "gristmill.stages."
MOST_COMPILERS = 8  # processes, of up to 0.8 GB each
SHORT_RUN = 30.0  # seconds that no kernel is worth replacing for
UNSAFE_TO_FORK = ("torch",)  # its threads do not survive, and a GPU that was touched is lost to the workers


def load(recipe: str | None) -> None:
    """Load all that a worker needs, as far as it is known here."""
    with ending_with_parent(), without_collector():
        for name in MODULES:
            import_module(name)
        pa.array([])  # pyarrow imports pandas here, where it is installed, and not in each worker
        if recipe is not None:
            load_stages(Path(recipe))
            replace_kernels_of_package()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Collect no garbage in a block that only loads; afterwards never look at what it loaded again. Nothing of modules
    is garbage, and looking for it took a fifth of the time. It would also write to each page of memory that workers
    share."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_stages(recipe: Path) -> None:
    """Load and prepare the stages of a recipe. The driver and the workers report what is wrong with one."""
    from gristmill.pipeline.plan.plan import make_plan
    from gristmill.pipeline.recipe import recipe as recipes

    with contextlib.suppress(Exception):
        prepare_all(make_plan(recipes.load(recipe)).to_prepare())


def prepare_all(stages: Sequence[Stage]) -> None:
    """Prepare stages. As soon as a kernel is to be compiled, other processes prepare the next stages, whose kernels
    are in the cache when this process comes to them."""
    ours = [number for number, stage in enumerate(stages[:256]) if type(stage).__module__.startswith(OURS)]
    reading, writing = os.pipe()  # each process that reads a byte takes the stage of that number
    os.write(writing, bytes(ours))
    os.close(writing)
    done: set[int] = set()
    children: list[int] = []

    def prepare_next() -> None:
        while number := os.read(reading, 1):
            done.add(number[0])
            try_to_prepare(stages[number[0]])

    def start_others() -> None:
        for _ in range(min(cores_here(), len(ours), MOST_COMPILERS) - 1):
            child = os.fork()
            if not child:
                try:
                    end_with_parent()
                    prepare_next()
                finally:
                    os._exit(0)
            children.append(child)

    with at_first_compilation(start_others):
        prepare_next()
    os.close(reading)
    for child in children:
        os.waitpid(child, 0)
    for number, stage in enumerate(stages):
        if number not in done:
            try_to_prepare(stage)


@contextlib.contextmanager
def at_first_compilation(react: Callable[[], None]) -> Iterator[None]:
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        heard = False

        def on_start(self, _: event.Event) -> None:
            if not self.heard:
                self.heard = True
                react()

        def on_end(self, _: event.Event) -> None: ...

    with event.install_listener("numba:compile", Listener()):
        yield


def try_to_prepare(stage: Stage) -> None:
    try:
        if type(stage).__module__.startswith(OURS) and not any(name in sys.modules for name in UNSAFE_TO_FORK):
            prepare(stage)
        else:
            prepare_in_child(stage)
    except RunFailed as error:
        failures.append(str(error))


def replace_kernels_of_package() -> None:
    """Compile what was loaded of the package's kernels for this processor, in a process of its own, with the time that
    the run leaves; workers go over to them between tasks. Runs that end before it have what was done so far."""
    from gristmill.kernels.base import compiler

    if not compiler.take_over() or os.fork():
        return
    try:
        end_with_parent()
        time.sleep(SHORT_RUN)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        compiler.compile_for_this_processor()
    finally:
        os._exit(0)


def prepare_in_child(stage: Stage) -> None:
    """Prepare a stage for what it leaves on disk, in a process of its own: nobody knows what the code of others leaves
    behind in memory."""
    answer, child_end = os.pipe()
    child = os.fork()
    if child:
        os.close(child_end)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.set_blocking(answer, False)  # a process that it left behind may hold the other end
        failure = ""
        with contextlib.suppress(BlockingIOError):
            failure = os.read(answer, select.PIPE_BUF).decode("utf-8", "replace")
        os.close(answer)
        if code:
            raise RunFailed(failure or f"{named(stage)}: prepare() ended its process ({how_it_ended(code)})")
        return
    code = 1
    try:
        end_with_parent()
        prepare(stage)
        code = 0
    except RunFailed as error:
        os.write(child_end, str(error).encode("utf-8", "replace")[: select.PIPE_BUF])
    finally:
        os._exit(code)


def did_not_start(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a line for a worker that ended before any code of ours ran: another is tried, or the driver says that none
    starts."""
    print(f"a worker did not start: {kind.__name__}: {one_line(str(error))}", file=sys.stderr, flush=True)


failures: list[str] = []  # what workers, which find it here, answer to their first task
load(os.environ.pop(RECIPE, None))
sys.excepthook = did_not_start
adopt_orphans()
atexit.register(kill_descendants)  # where the driver was killed; workers leave by another door
warnings.filterwarnings("ignore", message="forkserver: waitpid returned unexpected pid")  # that is an orphan's
