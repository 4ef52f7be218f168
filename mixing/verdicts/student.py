"""Student's and the normal distribution in plain Python, so that intervals need no scipy: the incomplete beta function
by Lentz's continued fraction (Press et al. 2007, section 6.4). Tested against scipy to 1e-9 in
tests/mixing/test_student.py."""

from __future__ import annotations

import math
from functools import lru_cache

TINY = 1e-300
PRECISION = 1e-15
TERMS = 10_000
STEPS = 200


def normal_below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def t_above(t: float, degrees: float) -> float:
    """P(T > t). Infinite degrees are the normal distribution."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    if math.isinf(degrees):
        return 0.5 * math.erfc(t / math.sqrt(2))
    near = t * t / (degrees + t * t)  # not 1 - far: that loses small t
    tail = (
        0.5 * incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))
        if near > 0.5
        else 0.5 - 0.5 * incomplete_beta(0.5, degrees / 2, near)
    )
    return tail if t >= 0 else 1 - tail


@lru_cache(4096)
def t_quantile(share: float, degrees: float) -> float:
    """The t with this share below it."""
    if not 0 < share < 1:
        raise ValueError(f"a share of {share}: expected between 0 and 1")
    if degrees <= 0:
        raise ValueError(f"{degrees} degrees of freedom: at least one is needed")
    if share == 0.5:
        return 0.0
    if share < 0.5:
        return -t_quantile(1 - share, degrees)
    tail, low, high = 1 - share, 0.0, math.inf
    t = 1.0
    for _ in range(STEPS):  # Newton's steps, halved where they would leave what is known
        above = t_above(t, degrees)
        low, high = (t, high) if above > tail else (low, t)
        step = (above - tail) / _density(t, degrees)
        if abs(step) <= 1e-13 * t:
            break
        t = t + step if low < t + step < high else (low + high) / 2 if math.isfinite(high) else 4 * t
    return t


def _density(t: float, degrees: float) -> float:
    if math.isinf(degrees):
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    log_front = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    return max(TINY, math.exp(log_front - (degrees + 1) / 2 * math.log1p(t * t / degrees)))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised function, I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            step = c * d
            value *= step
        if abs(step - 1) < PRECISION:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > TINY else TINY
