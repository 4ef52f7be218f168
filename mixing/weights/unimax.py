"""UniMax: as even a mix as epoch caps allow (Chung et al., ICLR 2023, arXiv 2304.09151, algorithm 1).

Sources are visited from the smallest to the largest; each gets an even share of the remaining budget, or its cap if
that is less. In the other order (seen in public code) what caps cut off is lost: the mix fills only part of the budget,
and scaling it back to 1 breaks the caps. Where the caps together are less than the budget the paper trains past them;
here that is an error.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.base.types import Floats
from gristmill.mixing.weights.supply import Supply


def unimax(supply: Supply) -> Floats:
    supply.check_budget()
    weights_N, remaining = np.zeros(len(supply.names)), 1.0
    caps_N = supply.caps_N
    for done, i in enumerate(np.argsort(caps_N, kind="stable")):
        weights_N[i] = min(remaining / (len(caps_N) - done), caps_N[i])
        remaining -= weights_N[i]
    weights_N /= weights_N.sum()
    return weights_N
