"""What the driver takes from workers."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.pipeline.engine.executor import pair_results
from gristmill.pipeline.engine.worker import note
from gristmill.pipeline.errors import RunFailed

GROUP = [{"task": str(number), "node": "leg"} for number in range(3)]
DONE: dict[str, Any] = {"files": {}}


def test_every_task_has_its_result() -> None:
    assert [task["task"] for task, _ in pair_results(GROUP, [DONE] * 3)] == ["0", "1", "2"]


def test_after_a_failure_the_rest_of_a_group_has_none() -> None:
    pairs = pair_results(GROUP, [DONE, {"failed": "why"}])
    assert [task["task"] for task, _ in pairs] == ["0", "1"] and pairs[-1][1] == {"failed": "why"}


@pytest.mark.parametrize(
    "results", [[], [DONE], [{"failed": "why"}, DONE], [DONE] * 4, [DONE, DONE, DONE, {"failed": "why"}]]
)
def test_an_answer_of_another_length_is_an_error(results: list[dict[str, Any]]) -> None:
    with pytest.raises(RunFailed, match=f"leg: a worker was given 3 tasks and answered with {len(results)} results"):
        pair_results(GROUP, results)


def test_a_note_is_dropped_where_no_worker_can_pass_it_on() -> None:
    note("a document took 40 s")
