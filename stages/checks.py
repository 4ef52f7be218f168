"""What a stage says of the recipe that it stands in, before any work (`Stage.check_recipe`)."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeContext:
    """What a stage may know of its recipe: the names of all sources, of those whose documents come to it, and of the
    columns that stages after it look at (None where one of them may look at any)."""

    sources: tuple[str, ...]
    arriving: tuple[str, ...]
    wanted: frozenset[str] | None


@dataclass(frozen=True)
class Complaint:
    """What is wrong, and with which setting; `place` leads into the stage's settings, and is empty for the whole
    stage."""

    text: str
    place: tuple[str | int, ...] = ()


# Signals of licenses are named by whose statement they are: a page's, or a source's.
OF_LICENSES = {"licence": "license_stated", "licence_source": "license_stated_in", "license": "license_source"}


def check_signal_name(name: str) -> None:
    """Refuse a name that could be a page's license or a source's."""
    if name in OF_LICENSES:
        raise ValueError(
            f"no signal is called {name}: the license that a page states is license_stated, where it states it is "
            "license_stated_in, and what a source declares is license_source"
        )


def snake_case(name: str) -> str:
    """`GopherQuality` is `gopher_quality`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
