"""Kernels answer what they answered on the machine of the reference, here and on every Python."""

from __future__ import annotations

import json

import pytest

from benchmarks.soak.other_machine import REFERENCE, differences
from tests.kernel_answers import ANSWERS, SEEDS, answers


@pytest.mark.parametrize("name", ANSWERS)
def test_a_kernel_answers_as_on_other_machines(name: str) -> None:
    reference = json.loads(REFERENCE.read_text())[name]
    assert sorted(reference) == [str(seed) for seed in SEEDS] and len(set(reference.values())) == len(SEEDS)
    assert answers(only=[name])[name] == reference


def test_another_answer_is_named() -> None:
    one, other = {"a": {"0": "x", "1": "y"}, "b": {"0": "z"}}, {"a": {"0": "x", "1": "-"}, "b": {"1": "z"}}
    assert differences(one, other) == ["a, seed 1"]
    with pytest.raises(ValueError, match="no answer in common"):
        differences(one, {"c": {"0": "x"}})
