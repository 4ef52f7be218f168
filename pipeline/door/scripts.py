"""What must be so before work starts: packages are installed, and this is no worker that imports, as it begins, the
script that started it."""

from __future__ import annotations

import importlib.util
from multiprocessing import current_process

from gristmill.kernels.common.extras import install
from gristmill.pipeline.errors import RecipeError


def needs_packages(command: str) -> None:
    """Of commands that train models."""
    for module in ("torch", "scipy"):
        if importlib.util.find_spec(module) is None:
            raise RecipeError(f"{command} trains models; it needs {module}: {install('gpu')}")


def refuse_in_a_worker() -> None:
    """Say so where a worker, as it begins, imports a script that starts work."""
    if getattr(current_process(), "_inheriting", False):
        raise RecipeError(
            "workers import the script that starts them, and this one starts the work again when it is imported; put "
            'the call under `if __name__ == "__main__":`'
        )
