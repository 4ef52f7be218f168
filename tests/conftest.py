"""Settings of all tests."""

import os
from pathlib import Path

from hypothesis import settings

if not Path("/proc/driver/nvidia/gpus").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be there when triton is imported, whoever does it first

os.environ.pop("COLUMNS", None)  # what a terminal's width is said to be; tests read whole lines

# A kernel's first call compiles it; that says nothing of the example.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
