"""Scripts of users: workers are processes that import the script that starts them, so it must not start them when it is
imported."""

from __future__ import annotations

from multiprocessing import current_process

from gristmill.pipeline.errors import RecipeError


def refuse_in_a_worker() -> None:
    """Say so where a worker, as it begins, imports a script that starts work."""
    if getattr(current_process(), "_inheriting", False):
        raise RecipeError(
            "workers import the script that starts them, and this one starts the work again when it is imported; put "
            'the call under `if __name__ == "__main__":`'
        )
