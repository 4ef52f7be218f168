"""Settings of all tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import is_hypothesis_test, settings

if TYPE_CHECKING:
    from gristmill.pipeline.engine.cluster import Where
    from gristmill.pipeline.engine.executor import Executor
    from gristmill.pipeline.store.storage import Store

if not Path("/proc/driver/nvidia/gpus").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be there when triton is imported, whoever does it first

# Sums of MKL hang on where memory lies, on some processors, unless this is set before it is loaded (docs/training.md).
os.environ.setdefault("MKL_CBWR", "AUTO")

# A shell without job control starts what runs in its background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two processes of tests on two cores: a second thread of each has only its waiting to do, and spins.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ.pop("COLUMNS", None)  # what a terminal's width is said to be; tests read whole lines

# Blocks of other programs that tests name: some of our own, and the classes of NeMo Curator that they extend, where it
# is not installed. Workers find them by the same path.
MIMICS = Path(__file__).parent / "mimics"
sys.path += [str(MIMICS / "own"), *([str(MIMICS)] if importlib.util.find_spec("nemo_curator") is None else [])]

# A kernel's first call compiles it; that says nothing of the example. The same examples in every run, so that a change
# is red for what it does; new ones are looked for by `pytest --soak 20`.
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, derandomize=False)
settings.load_profile("project")

# Folders whose tests are all of the tier `run`: runs of the command line, of folders and of inputs as users have them.
WITH_WORKERS = {
    Path(__file__).parent / "pipeline" / name
    for name in ("cli", "door", "engine", "explore", "forget", "inputs", "judging", "look", "store")
}

# Stages of the runs that tests make. Their template loads them once; a worker loads whatever else its recipe names.
COMMON_STAGES = """\
name: common
sources:
  crawl: {warc: {path: none.warc.gz}}
stages: [extract, gopher_quality, exact_dedup, write]
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        type=int,
        default=0,
        metavar="TIMES",
        help="only the tests of properties, with so many times their examples, new ones each time",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--soak"):
        settings.load_profile("soak")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in WITH_WORKERS:
            item.add_marker(pytest.mark.run)
    # Files that take long come first: with files shared out to processes, none is left waiting at the end.
    long = {item.path for item in items if item.get_closest_marker("run")}
    items.sort(key=lambda item: item.path not in long)
    times = config.getoption("--soak")
    if not times:
        return
    soaked, others = [], []
    for item in items:
        test = getattr(item, "obj", None)
        if test is None or not is_hypothesis_test(test):
            others.append(item)
            continue
        body = getattr(test, "__func__", test)
        own = getattr(body, "_hypothesis_internal_use_settings", settings.default)
        body._hypothesis_internal_use_settings = settings(own, max_examples=own.max_examples * times, derandomize=False)
        soaked.append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = soaked


class Tier:
    """Of the test at hand: whether its runs may start workers."""

    workers = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    Tier.workers = item.get_closest_marker("run") is not None


@pytest.fixture(scope="session", autouse=True)
def no_workers() -> Iterator[None]:
    """Runs with workers of this machine do their tasks in the test's own process, except in tests marked `run`."""
    from gristmill.pipeline.run import run
    from tests.pipeline.engine.here import WiredExecutor

    with_workers = run.DaskExecutor

    def executor(store: Store, where: Where, *more: Any) -> Executor:
        return with_workers(store, where, *more) if Tier.workers or not where.forked else WiredExecutor(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "DaskExecutor", executor)
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Runs in a test's process fork their workers from one template, as long as the environment stays the same. A
    template of its own costs a run 3 seconds of a core; it saves time alone, so that results are the same without."""
    from gristmill.pipeline import processes

    common = tmp_path_factory.mktemp("template") / "common.yaml"
    common.write_text(COMMON_STAGES)
    begin, end, inherited = processes.start_fork_server, processes.stop_fork_server, {}
    # what pytest sets for each test, what is said of the terminal, and what Dask sets when it starts a worker
    not_inherited = {
        "PYTEST_CURRENT_TEST",
        "COLUMNS",
        "PYTHONHASHSEED",
        "__DASK_PARENT_PID",
        *processes.WORKER_ENVIRONMENT,
    }

    def begin_once(recipe: Path | None, environment: Mapping[str, str] = processes.WORKER_ENVIRONMENT) -> None:
        here = {name: value for name, value in os.environ.items() if name not in not_inherited}
        if here != inherited:
            end()
            inherited.clear()
            inherited.update(here)
        begin(common)

    def end_workers() -> None:
        """What `stop_fork_server` does, but for the template itself."""
        pid = processes.fork_server_pid()
        if pid is not None:
            processes.kill(processes.descendants(pid))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start_fork_server", begin_once)
        patch.setattr(processes, "stop_fork_server", end_workers)
        yield patch
    end()


@pytest.fixture
def own_fork_server(shared_fork_server: pytest.MonkeyPatch) -> Iterator[None]:
    """The template as users have it, one for each run."""
    from gristmill.pipeline import processes

    shared = processes.start_fork_server, processes.stop_fork_server
    shared_fork_server.undo()
    processes.stop_fork_server()
    yield
    processes.stop_fork_server()
    shared_fork_server.setattr(processes, "start_fork_server", shared[0])
    shared_fork_server.setattr(processes, "stop_fork_server", shared[1])
