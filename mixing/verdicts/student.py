"""Student's and the normal distribution, by scipy, which is imported when first asked: the base install has none."""

from __future__ import annotations

from typing import Any

from gristmill.kernels.base.types import Floats
from gristmill.kernels.common.extras import install


def scipy() -> Any:
    try:
        import scipy  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(f"intervals and verdicts need scipy: {install('gpu')} ({error})") from error
    return scipy  # its parts are imported as they are named


def normal_below(z: Floats) -> Floats:
    below: Floats = scipy().special.ndtr(z)
    return below


def t_above(t: float, degrees: float) -> float:
    """P(T > t). Infinite degrees are the normal distribution."""
    return float(scipy().special.stdtr(degrees, -t))


def t_quantile(share: float, degrees: float) -> float:
    """The t with this share below it."""
    if not 0 < share < 1:
        raise ValueError(f"a share of {share}: expected between 0 and 1")
    if not degrees > 0:
        raise ValueError(f"{degrees} degrees of freedom: at least one is needed")
    return -float(scipy().special.stdtrit(degrees, 1 - share))  # of the upper tail, which keeps its digits
