"""Which stages have sections of their own in the report, by name in recipes or by kind."""

from __future__ import annotations

from collections.abc import Mapping

from gristmill.pipeline.report.blend import blend
from gristmill.pipeline.report.duplicates import duplicates
from gristmill.pipeline.report.sections import SectionMaker, extraction, reading, writing

MAKERS: Mapping[str, SectionMaker] = {
    "read": reading,
    "sink": writing,
    "extract": extraction,
    "exact_dedup": duplicates,
    "url_dedup": duplicates,
    "minhash_dedup": duplicates,
    "simhash_dedup": duplicates,
    "judge": blend,
    "llm_score": blend,
    "threshold": blend,
    "quantile_buckets": blend,
    "tokenize": blend,
    "mix": blend,
    "order": blend,
    "pack": blend,
}
