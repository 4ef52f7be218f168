"""Keep the best share of documents or tokens by any signal: a threshold that is a quantile of what is there."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from stages.blend.groups import numbers_of
from stages.flow import Dataset, Flow
from stages.judge.quantiles import Cut, Quantiles, score_of


class Threshold(Quantiles):
    """Keep the best share by a signal, of all documents or of each language or source; the others go (`below_threshold`).

    The share is met to half of one document, however many scores are equal: a hash says who of them stays. Scores are compared as float32. Documents without the signal count as the worst.
    """

    by: Annotated[str, Field(description="the signal, such as a judge's score")]
    keep: Annotated[float, Field(description="the share to keep, of the weight that `weigh` names", gt=0, le=1)]
    lowest: Annotated[bool, Field(description="keep the lowest, of a signal of which less is better")] = False

    expect_drops: ClassVar[float] = 1.0

    @property
    def wants(self) -> tuple[str, ...]:
        return (self.by, *self.weights)

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        cuts = {name: found[0] for name, found in self.cuts(docs, flow, self.by, [self.keep if self.lowest else 1 - self.keep]).items()}
        flow.tell("thresholds", [self.account(name, cut) for name, cut in sorted(cuts.items())])
        table = pa.table(
            {"group": pa.array([*cuts], pa.string()), "cut": pa.array([min(c.key, (1 << 64) - 1) for c in cuts.values()], pa.uint64())}
        )
        return flow.mark(self.held, docs, columns=self.columns_for(self.by), beside=table)

    def held(self, docs: pa.Table, told: pa.Table) -> pa.Table:
        at = pc.index_in(self.groups(docs), value_set=told["group"].combine_chunks()).to_numpy()
        above = self.keys(docs, self.by) >= told["cut"].to_numpy()[at]
        goes = above if self.lowest else ~above
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

    def account(self, group: str, cut: Cut) -> dict[str, Any]:
        kept = cut.below if self.lowest else cut.total - cut.below
        return {
            "group": group,
            "signal": self.by,
            "threshold": score_of(cut.key),
            "asked": self.keep,
            "kept": kept / cut.total,
            "of": cut.total,
        }
