"""A run that each test may take documents out of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pipeline.forget.forgetting import make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"
