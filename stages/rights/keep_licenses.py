"""Which licenses stay, of those that pages state."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from gristmill.kernels.base.types import Mask
from gristmill.stages.figures import LICENSE
from gristmill.stages.stage import Rule, Signals, Verdict

Source = Literal["rel", "json_ld", "meta", "text", "link"]  # what `page_terms` writes

NOT_STATED = "not stated"


class KeepLicenses(Rule):
    """Keep documents by the license that their page states: `CC-BY-*`, `CC0-1.0`.

    What a page states is no proof that it may. A license that only a link names (`link`) may be that of a picture.
    """

    licenses: Annotated[
        tuple[str, ...],
        Field(description="licenses that stay, as SPDX names them; `*` is any letters, as in CC-BY-*", min_length=1),
    ] = ("CC-BY", "CC-BY-[0-9]*", "CC-BY-SA", "CC-BY-SA-[0-9]*", "CC0-1.0", "CC-PDM-1.0")
    unstated: Annotated[bool, Field(description="keep pages that state none")] = False
    sources: Annotated[
        tuple[Source, ...],
        Field(description="where a license must stand to count; elsewhere it is unstated", min_length=1),
    ] = ("rel", "json_ld", "meta", "text")

    needs: ClassVar[tuple[str, ...]] = ("license_stated", "license_stated_in")
    expect_drops: ClassVar[float] = 1.0  # of a crawl, where few pages state one

    def verdict(self, signals: Signals) -> Verdict:
        names, codes = signals.coded("license_stated")
        places, where = signals.coded("license_stated_in")
        stays = np.array([name is not None and self.wants(name) for name in names])[codes]
        stated = np.array([name is not None for name in names])[codes]
        stated &= np.array([place in self.sources for place in places])[where]
        verdict = Verdict.keep(len(signals)).drop(
            stated & ~stays, "other_license", [names[code] or "" for code in codes.tolist()]
        )
        return verdict if self.unstated else verdict.drop(~stated, "no_license")

    def tally(self, signals: Signals, verdict: Verdict, alive: Mask) -> Mapping[str, int]:
        """Documents that stay by the license that they state, for the dataset card."""
        names, codes = signals.coded("license_stated")
        counts = np.bincount(codes[alive & verdict.kept], minlength=len(names)).tolist()
        return {f"{LICENSE}{name or NOT_STATED}": count for name, count in zip(names, counts, strict=True) if count}

    def wants(self, name: str) -> bool:
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.licenses)
