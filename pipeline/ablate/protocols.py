"""How an arm is trained: presets of annealing experiments of the field, and from scratch.

| name | begins with | of the arm's tokens are new | rate |
| --- | --- | --- | --- |
| llama3 | a base | 30 %, the rest is the control's mix (Dubey et al. 2024, 3.1.3) | linear to zero |
| microanneal | a base | 50 % (OLMo 2, section 4.4.2) | linear to zero |
| two_stage | a base | none at the full rate, then 30 % as it falls to zero (Ultra-FineWeb, Wang et al. 2025, as
  second-hand accounts have it) | stable, then linear to zero |
| from_scratch | random weights | 100 % | warm-up, then linear to zero |
| custom | a base | `share` | linear to zero |

The control of every protocol is the same run on the control's mix alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gristmill.kernels.common.settings import Settings
from gristmill.pipeline.report.ablation_record import ScheduleSpec

Name = Literal["llama3", "microanneal", "two_stage", "from_scratch", "custom"]

SHARES: dict[str, float] = {"llama3": 0.3, "microanneal": 0.5, "two_stage": 0.3, "from_scratch": 1.0}
STEADY = 0.5  # of a two_stage run: how much comes before the fall


class Protocol(Settings):
    """A preset by name, and what of it is to be otherwise."""

    name: Name  # of the preset
    share: Annotated[float | None, Field(gt=0, le=1, description="of new data; the preset's unless given")] = None
    steady: Annotated[float | None, Field(gt=0, lt=1, description="two_stage: the share of tokens before the fall")] = (
        None
    )

    @model_validator(mode="after")
    def fits(self) -> Protocol:
        if self.name == "custom" and self.share is None:
            raise ValueError("custom needs a share of new data, such as 0.2")
        if self.name == "from_scratch" and self.share not in (None, 1.0):
            raise ValueError("from_scratch trains on the arm alone; write a mix in the arm for anything else")
        if self.steady is not None and self.name != "two_stage":
            raise ValueError("steady is for two_stage")
        return self

    @property
    def from_scratch(self) -> bool:
        return self.name == "from_scratch"

    @property
    def new(self) -> float:
        """The share of new data where there is some."""
        return self.share if self.share is not None else SHARES[self.name]

    @property
    def before(self) -> float:
        """The share of a run that is the control's mix at the full rate, in all arms."""
        return (self.steady or STEADY) if self.name == "two_stage" else 0.0

    def updates_before(self, updates: int) -> int:
        """Of a run's updates, those that come before the new data and the fall; both have one at least."""
        if not self.before:
            return 0
        if updates < 2:
            raise ValueError(f"{self.name} needs 2 updates or more, one of each stage; its tokens are {updates}")
        return min(max(1, round(self.before * updates)), updates - 1)

    def schedule(self, warmup: float | None, updates: int) -> ScheduleSpec:
        """Settings of `gristmill.trainer.run.schedule.RateSchedule`."""
        if self.name == "two_stage":
            fall = (updates - self.updates_before(updates)) / updates
            return {"kind": "stable", "warmup": warmup or 0.0, "decay": fall, "floor": 0.0, "fall": "linear"}
        return {
            "kind": "linear",
            "warmup": (0.05 if self.from_scratch else 0.0) if warmup is None else warmup,
            "floor": 0.0,
        }


def protocol_from(value: object) -> object:
    """`llama3` is `{name: llama3}`."""
    return {"name": value} if isinstance(value, str) else value
