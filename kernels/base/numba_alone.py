"""Imports numba without SciPy and coverage, where they are installed: it asks the one for its version and whether the
other is tracing, and waits for both to be imported. That is a quarter of the time that numba takes. Nor is garbage
collected, for modules are none."""

from __future__ import annotations

import gc
import sys

NOT_NEEDED = tuple(name for name in ("scipy", "coverage") if name not in sys.modules)

COLLECTS = gc.isenabled()
gc.disable()
sys.modules.update(dict.fromkeys(NOT_NEEDED))  # type: ignore[arg-type]  # importing one of them is an ImportError now
try:
    import numba  # noqa: F401
finally:
    for name in NOT_NEEDED:
        del sys.modules[name]
    if COLLECTS:
        gc.enable()
