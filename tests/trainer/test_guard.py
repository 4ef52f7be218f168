"""What is not finite or far above the recent is refused, on the device, as plain numpy says."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from gristmill.trainer.run.guard import FLAT, NORMAL, Guard, Watch

CPU = torch.device("cpu")


def limit_plain(recent: list[float], times: float | None, least: int) -> float:
    if len(recent) < least or times is None:
        return math.inf
    middle = sorted(recent)[(len(recent) - 1) // 2]
    apart = sorted(abs(value - middle) for value in recent)[(len(recent) - 1) // 2]
    return middle + times * max(NORMAL * apart, FLAT * abs(middle))


def run(guard: Guard, updates: list[tuple[float, float]], watch: Watch) -> list[bool]:
    accepted = []
    for loss, norm in updates:
        limits = watch.limits()
        accepted.append(bool(watch.judged(torch.tensor(loss), torch.tensor(norm, dtype=torch.float64), limits)))
    return accepted


numbers = st.floats(-5, 50, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(numbers, numbers), max_size=40),
    st.sampled_from([(4, 1), (5, 3), (8, 8)]),
    st.sampled_from([None, 0.5, 3.0]),
    st.integers(0, 39),
)
def test_judged_as_plain_python_judges(
    updates: list[tuple[float, float]], sizes: tuple[int, int], times: float | None, cut: int
) -> None:
    guard = Guard(loss_times=times, norm_times=2.0, window=sizes[0], least=sizes[1])
    expected, losses, norms = [], [], []
    for loss, norm in updates:
        loss_limit, norm_limit = limit_plain(losses, times, guard.least), limit_plain(norms, 2.0, guard.least)
        fine = math.isfinite(loss) and math.isfinite(norm) and loss <= loss_limit and norm <= norm_limit
        expected.append(fine)
        if fine:
            losses, norms = [*losses, loss][-guard.window :], [*norms, norm][-guard.window :]
    watch = Watch(guard, CPU)
    assert run(guard, updates, watch) == expected
    assert watch.facts() == {"losses": losses, "norms": norms}
    stopped, resumed = Watch(guard, CPU), Watch(guard, CPU)
    before = run(guard, updates[:cut], stopped)
    resumed.restore(stopped.facts())
    assert before + run(guard, updates[cut:], resumed) == expected


def test_a_spike_is_refused_and_noise_is_not() -> None:
    random = np.random.default_rng(3)
    watch = Watch(Guard(), CPU)
    quiet = [(5 * 0.999**i + random.normal(0, 0.05), abs(random.normal(1, 0.2))) for i in range(500)]
    assert all(run(watch.guard, quiet, watch))
    assert run(watch.guard, [(9.0, 1.0), (3.0, 300.0), (math.nan, 1.0), (3.0, math.inf), (3.0, 1.0)], watch) == [
        False,
        False,
        False,
        False,
        True,
    ]
    watch.reset()
    assert run(watch.guard, [(9.0, 300.0)], watch) == [True]


def test_updates_without_a_target_say_nothing_of_others() -> None:
    watch = Watch(Guard(window=8, least=2), CPU)
    for _ in range(8):
        assert watch.judged(torch.tensor(0.0), torch.tensor(0.0), watch.limits(), torch.tensor(0))
    assert watch.facts() == {"losses": [], "norms": []} and run(watch.guard, [(5.0, 1.0)], watch) == [True]
