"""Which licences stay, of those that pages state."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from gristmill.kernels.base.types import Mask
from gristmill.stages.figures import LICENCE
from gristmill.stages.stage import Rule, Signals, Verdict

Source = Literal["rel", "json_ld", "meta", "text", "link"]  # what `page_terms` writes

NOT_STATED = "not stated"


class KeepLicences(Rule):
    """Keep documents by the licence that their page states: `CC-BY-*`, `CC0-1.0`.

    What a page states is no proof that it may. A licence that only a link names (`link`) may be that of a picture.
    """

    licences: Annotated[
        tuple[str, ...],
        Field(description="licences that stay, as SPDX names them; `*` is any letters, as in CC-BY-*", min_length=1),
    ] = ("CC-BY", "CC-BY-[0-9]*", "CC-BY-SA", "CC-BY-SA-[0-9]*", "CC0-1.0", "CC-PDM-1.0")
    unstated: Annotated[bool, Field(description="keep pages that state none")] = False
    sources: Annotated[
        tuple[Source, ...],
        Field(description="where a licence must stand to count; elsewhere it is unstated", min_length=1),
    ] = ("rel", "json_ld", "meta", "text")

    needs: ClassVar[tuple[str, ...]] = ("licence", "licence_source")
    expect_drops: ClassVar[float] = 1.0  # of a crawl, where few pages state one

    def verdict(self, signals: Signals) -> Verdict:
        names, codes = signals.coded("licence")
        places, where = signals.coded("licence_source")
        stays = np.array([name is not None and self.wants(name) for name in names])[codes]
        stated = np.array([name is not None for name in names])[codes]
        stated &= np.array([place in self.sources for place in places])[where]
        verdict = Verdict.keep(len(signals)).drop(
            stated & ~stays, "other_licence", [names[code] or "" for code in codes.tolist()]
        )
        return verdict if self.unstated else verdict.drop(~stated, "no_licence")

    def tally(self, signals: Signals, verdict: Verdict, alive: Mask) -> Mapping[str, int]:
        """Documents that stay by the licence that they state, for the dataset card."""
        names, codes = signals.coded("licence")
        counts = np.bincount(codes[alive & verdict.kept], minlength=len(names)).tolist()
        return {f"{LICENCE}{name or NOT_STATED}": count for name, count in zip(names, counts, strict=True) if count}

    def wants(self, name: str) -> bool:
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.licences)
