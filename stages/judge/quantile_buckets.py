"""Buckets of equal weight by one signal or several: the ensemble of Nemotron-CC (Su et al. 2024), and sources for
`mix`.

Each signal cuts the documents into buckets of equal weight; a document's bucket is the highest that any signal gives it
(Nemotron-CC: classifiers find different good pages), or the weighted mean. Labels over buckets are named tiers: `mix:
{by: [quality_tier]}` takes them as sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, FiniteFloat, model_validator

from gristmill.kernels.base.types import Array
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.judge.quantiles import LOWEST_SCORE, QuantileCut, Quantiles, score_of

TIERS = {
    "low": 8,
    "medium_low": 12,
    "medium": 18,
    "medium_high": 19,
    "high": 20,
}  # as Nemotron-CC has them: buckets below


class QuantileBuckets(Quantiles):
    """Put documents into buckets of equal weight by signals, and name tiers of them: `quality_bucket` and
    `quality_tier`.

    Bucket 0 is the worst. Of several signals the highest bucket counts, or the mean weighted as `weights_of` says
    (rounded down). Documents without a signal are in its bucket 0.
    """

    by: Annotated[list[str], Field(description="signals of which more is better", min_length=1)]
    buckets: Annotated[int, Field(description="how many", ge=2, le=1000)] = 20
    combine: Annotated[
        Literal["max", "mean"], Field(description="of several signals: the highest bucket, or the mean")
    ] = "max"
    weights_of: Annotated[
        dict[str, FiniteFloat] | None, Field(description="of `mean`: a weight for each signal; all alike unless given")
    ] = None
    tiers: dict[str, int] = Field(
        default=TIERS,
        description=(
            "names of tiers, each with the first bucket above it; the last is the number of buckets, and the default "
            "fits itself to that: the best bucket is always high"
        ),
    )
    called_after: Annotated[
        str, Field(description="the signals are called so: NAME_bucket and NAME_tier", pattern=r"^[a-z][a-z0-9_]*$")
    ] = "quality"

    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "quality_bucket": pa.int16(),
        "quality_tier": pa.string(),
    }
    drops: ClassVar[bool] = False

    @model_validator(mode="after")
    def _tiers_fit(self) -> Self:
        ends = list(self.tiers.values())
        if self.tiers == TIERS:
            return self
        if not ends or sorted(set(ends)) != ends or ends[0] < 1 or ends[-1] != self.buckets:
            raise ValueError(f"tiers must rise from above 0 to {self.buckets}, the number of buckets: {self.tiers}")
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.weights_of is not None and (
            self.combine != "mean"
            or set(self.weights_of) != set(self.by)
            or min(self.weights_of.values()) < 0
            or not any(self.weights_of.values())
        ):
            raise ValueError(
                "weights_of is for `combine: mean`, with a number of 0 or more for each signal of `by`, not all 0"
            )
        if len(set(self.by)) < len(self.by):
            raise ValueError("by names a signal twice")
        return self

    @property
    def added(self) -> tuple[str, ...]:
        return (f"{self.called_after}_bucket", f"{self.called_after}_tier")

    @property
    def wants(self) -> tuple[str, ...]:
        return (*self.by, *self.weights)

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return tuple(self.by)

    @property
    def named_tiers(self) -> dict[str, int]:
        """The tiers of Nemotron-CC, of as many buckets as there are."""
        if self.tiers != TIERS or self.buckets == TIERS["high"]:
            return self.tiers
        ends = {name: max(1, round(end * self.buckets / TIERS["high"])) for name, end in TIERS.items()}
        # of names with the same end the lowest stays
        lower = {end: name for name, end in reversed(ends.items()) if end < self.buckets}
        return {name: end for end, name in sorted(lower.items())} | {"high": self.buckets}

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        shares = [k / self.buckets for k in range(1, self.buckets)]
        cuts_by_signal = {signal: self.cuts(docs, flow, signal, shares) for signal in self.by}
        rows = [
            (signal, group, [min(cut.key, (1 << 64) - 1) for cut in cuts])
            for signal, groups in cuts_by_signal.items()
            for group, cuts in groups.items()
        ]
        flow.report("quantile_buckets", self.account(cuts_by_signal))
        table = pa.table(
            {
                "signal": pa.array([row[0] for row in rows], pa.string()),
                "group": pa.array([row[1] for row in rows], pa.string()),
                "cuts": pa.array([row[2] for row in rows], pa.list_(pa.uint64())),
            }
        )
        return flow.mark(
            self.put,
            docs,
            columns=tuple(dict.fromkeys(c for s in self.by for c in self.columns_for(s))),
            broadcast=table,
        )

    def put(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        group = self.groups(docs)
        buckets = np.zeros((len(self.by), len(docs)), np.int64)
        for row, signal in enumerate(self.by):
            keys = self.keys(docs, signal)
            for cuts in told.filter(pc.equal(told["signal"], signal)).to_pylist():
                members = pc.equal(group, cuts["group"]).to_numpy(zero_copy_only=False)
                buckets[row, members] = np.searchsorted(np.array(cuts["cuts"], np.uint64), keys[members], side="right")
            buckets[row, keys < LOWEST_SCORE] = 0  # where many have none, cuts lie among them
        bucket = self.combined(buckets)
        names = list(self.named_tiers)
        tier = np.searchsorted(list(self.named_tiers.values()), bucket, side="right")
        none = pa.nulls(len(docs), pa.string())
        return pa.table(
            {
                "uid": docs["uid"],
                "reason": none,
                "detail": none,
                f"{self.called_after}_bucket": bucket.astype(np.int16),
                f"{self.called_after}_tier": pa.array(names).take(pa.array(tier)),
            }
        )

    def combined(self, found: Array) -> Array:
        if self.combine == "max":
            highest: Array = found.max(axis=0)
            return highest
        weights = np.array([1.0 if self.weights_of is None else self.weights_of[signal] for signal in self.by])
        mean: Array = np.floor(weights @ found / weights.sum() + 1e-9).astype(np.int64)
        return mean

    def account(self, found: dict[str, dict[str, list[QuantileCut]]]) -> list[dict[str, Any]]:
        return [
            {"signal": signal, "group": group, "cuts": [score_of(cut.key) for cut in cuts], "of": cuts[0].total}
            for signal, groups in found.items()
            for group, cuts in sorted(groups.items())
        ]
