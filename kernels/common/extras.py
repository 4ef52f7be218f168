"""How to install the packages of an extra (`[project.optional-dependencies]` of pyproject.toml)."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command, for a message. Gristmill is not on PyPI: it is installed from its checkout."""
    return f"pip install '.[{extra}]' in Gristmill's checkout"
