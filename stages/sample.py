"""A random share of the documents, chosen by identity: splitmix64 (Steele, Lea and Flood 2014) of the uid and a
seed."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Hashes
from gristmill.stages.stage import Rule, Signals, Verdict


class Sample(Rule):
    """Keep a share `rate` of the documents.

    Whether a document is kept depends on its uid and the seed alone, never on its order, part or neighbours, and with
    the same seed a smaller rate keeps a subset of what a larger one keeps.
    """

    rate: Annotated[float, Field(description="the share to keep", ge=0, le=1)]
    seed: Annotated[int, Field(description="another seed is another, independent sample")] = 0

    needs: ClassVar[tuple[str, ...]] = ("uid",)
    expect_drops: ClassVar[float] = 1.0

    def verdict(self, signals: Signals) -> Verdict:
        if self.rate >= 1:  # 2**64 is no uint64
            return Verdict.keep(len(signals))
        kept = chances(signals.uid, self.seed) < np.uint64(int(self.rate * 2**64))
        return Verdict.keep(len(signals)).drop(~kept, "not_sampled")


def chances(uids: Hashes, seed: int) -> Hashes:
    """A uniform number below 2**64 for each uid."""
    mixed_seed = splitmix64(np.array([seed % 2**64], dtype=np.uint64))
    return splitmix64(uids.astype(np.uint64) ^ mixed_seed)


def splitmix64(values: Hashes) -> Hashes:
    return mixed_all(values + np.uint64(0x9E3779B97F4A7C15))
