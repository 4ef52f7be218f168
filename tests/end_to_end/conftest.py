"""Fixtures that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.engine.here import work_here


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """Tasks are done in the test's own process: no worker is started."""
    with pytest.MonkeyPatch.context() as patch:
        work_here(patch)
        yield
