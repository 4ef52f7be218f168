"""Settings of all tests."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

if not Path("/proc/driver/nvidia/gpus").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be there when triton is imported, whoever does it first

# Sums of MKL hang on where memory lies, on some processors, unless this is set before it is loaded (docs/training.md).
os.environ.setdefault("MKL_CBWR", "AUTO")

# A shell without job control starts what runs in its background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
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
