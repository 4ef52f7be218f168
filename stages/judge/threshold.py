"""Keep the best share of documents or tokens by any signal: a threshold that is a quantile of what is there."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.base.types import Array
from gristmill.stages.blend.groups import numbers_of
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.judge.quantiles import QuantileCut, Quantiles, score_of, sorted_keys


class Threshold(Quantiles):
    """Keep the best share by a signal, of all documents or of each language or source; the others go
    (`below_threshold`).

    The share is met to half of one document, however many scores are equal: a hash says who of them stays. Scores are
    compared as float32. Documents without the signal count as the worst.
    """

    by: Annotated[str, Field(description="the signal, such as a judge's score")]
    keep: Annotated[float, Field(description="the share to keep, of the weight that `weigh` names", gt=0, le=1)]
    lowest: Annotated[bool, Field(description="keep the lowest, of a signal of which less is better")] = False

    expect_drops: ClassVar[float] = 1.0

    @property
    def wants(self) -> tuple[str, ...]:
        return (self.by, *self.weights)

    @property
    def scored_signals(self) -> tuple[str, ...]:
        return (self.by,)

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        cuts = {name: group_cuts[0] for name, group_cuts in self.cuts(docs, flow, self.by, [1 - self.keep]).items()}
        flow.report("thresholds", [self.account(name, cut) for name, cut in sorted(cuts.items())])
        table = pa.table(
            {
                "group": pa.array([*cuts], pa.string()),
                "cut": pa.array([min(c.key, (1 << 64) - 1) for c in cuts.values()], pa.uint64()),
            }
        )
        return flow.mark(self.held, docs, columns=self.columns_for(self.by), broadcast=table)

    def keys(self, docs: pa.Table, signal: str) -> Array:
        """They rise with what is better: of the lowest turned round, so that documents without the signal are the worst
        there too."""
        scores = numbers_of(docs, signal).to_numpy(zero_copy_only=False).astype(np.float32)
        return sorted_keys(-scores if self.lowest else scores, docs["uid"].to_numpy(), self.seed)

    def held(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        group = pc.index_in(self.groups(docs), value_set=told["group"].combine_chunks()).to_numpy()
        goes = self.keys(docs, self.by) < told["cut"].to_numpy()[group]
        return pa.table(
            {
                "uid": docs["uid"],
                "reason": pa.array(np.full(len(docs), "below_threshold"), pa.string(), mask=~goes),
                "detail": pc.if_else(
                    pa.array(goes),
                    pc.cast(numbers_of(docs, self.by).cast(pa.float32(), safe=False), pa.string()),
                    pa.scalar(None, pa.string()),
                ),
            }
        )

    def account(self, group: str, cut: QuantileCut) -> dict[str, Any]:
        score = score_of(cut.key)
        return {
            "group": group,
            "signal": self.by,
            "threshold": 0.0 - score if self.lowest and score is not None else score,
            "asked": self.keep,
            "kept": (cut.total - cut.below) / cut.total,
            "of": cut.total,
        }
