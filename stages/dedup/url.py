"""Documents of one page: urls that differ only in spelling or in parameters that track, one survivor by a stated
policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import pyarrow as pa
from pydantic import Field, field_validator

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.urls.keys import names_of, url_keys
from gristmill.stages.dedup.policy import SurvivorPolicy
from gristmill.stages.dedup.survivors import members
from gristmill.stages.flow import Dataset, Flow
from gristmill.stages.text.sites import names_a_page
from gristmill.stages.text.url_lists import mended_urls

Patterns = tuple[Annotated[str, Field(min_length=1, pattern=r"^[^=&#*]+\*?$|^\*$")], ...]

# Set by advertising, mailing and analytics tools on links to a page; none chooses what the page shows.
TRACKING = (
    "utm_*", "fbclid", "fb_action_ids", "fb_action_types", "fb_source", "gclid", "gclsrc", "dclid", "gbraid", "wbraid",
    "gad_source", "gad_campaignid", "srsltid", "msclkid", "yclid", "ysclid", "twclid", "ttclid", "li_fat_id", "igshid",
    "igsh", "epik", "rdt_cid", "mc_cid", "mc_eid", "mkt_tok", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp",
    "hsctatracking", "_ga", "_gl", "_ke", "_kx", "_bta_c", "_bta_tid", "vero_id", "vero_conv", "oly_anon_id",
    "oly_enc_id", "rb_clickid", "wickedid", "_openstat", "icid", "pk_*", "piwik_*", "mtm_*", "matomo_*", "itm_*",
    "s_kwcid", "ef_id", "guccounter", "guce_referrer", "guce_referrer_sig", "phpsessid", "jsessionid",
)  # fmt: skip


class UrlDedup(SurvivorPolicy):
    """Keep one of all documents that come from the same page, as their urls tell.

    Two urls are the same if they differ only in scheme, `www.`, user, the case of the host, a default port, needless
    percent signs, the fragment (unless it begins with `!` or `/`), one slash at the end of the path, the order of query
    parameters, or parameters that only track. Which document stays: by `prefer`, then by uid. Documents without url are
    no duplicates of each other and pass; so do those whose url names no page, such as `N/A` or `about:blank` (there is
    neither `//` in it nor a dot in its host). All members of a cluster of two or more get `url_cluster_size`; other
    documents have null there.
    """

    ignored: Annotated[
        Patterns, Field(description="query parameters that do not count, in any case; `name*` is all that begin so")
    ] = TRACKING
    more_ignored: Annotated[Patterns, Field(description="of your own, beside `ignored`")] = ()

    columns: ClassVar[tuple[str, ...]] = (*SurvivorPolicy.columns, "url")
    cluster_size: ClassVar[str] = "url_cluster_size"
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "url_cluster_size": pa.uint32(),
    }
    expect_drops: ClassVar[float] = 0.9

    @property
    def needs_text(self) -> bool:
        """Urls are enough: the text only says which document is the longest."""
        return False

    @field_validator("ignored", "more_ignored")
    @classmethod
    def _are_not_all(cls, patterns: Patterns) -> Patterns:
        if "*" in patterns:
            raise ValueError(
                "'*' leaves no parameter: then all pages of a shop or forum that tells them by a number would be one"
            )
        return patterns

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        keys = flow.map(self.sign, docs, columns=self.read, by="key")
        duplicates = self.report_clusters(flow.reduce(self.duplicates, keys), flow)
        return flow.drop(docs, duplicates)

    def sign(self, docs: pa.Table) -> pa.Table:
        """A row for each document with a url: its key in two halves, and what the policy looks at."""
        data, offsets = text_column(docs["url"])
        urls = mended_urls(data, offsets[:-1], offsets[1:])
        high, low = url_keys(urls, names_of(self.ignored + self.more_ignored))
        rows = {"key": pa.array(high), "low": pa.array(low), "uid": docs["uid"], **self.policy_columns(docs)}
        return pa.table(rows).filter(pa.array((urls.ends > urls.starts) & names_a_page(docs["url"], urls)))

    def duplicates(self, rows: pa.Table) -> pa.Table:
        """Of rows whose like is all here: the members of clusters, the survivor without a reason, the others with
        one."""
        return members(rows, self.survivor_sort_keys(), "url_duplicate", "same url as", self.cluster_size)
