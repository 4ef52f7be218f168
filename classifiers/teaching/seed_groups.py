"""The group of a text, which is held out as a whole: the host of its url, else its work, else its source."""

from __future__ import annotations

import pyarrow as pa

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.base.types import Array
from gristmill.kernels.urls.urls import ODD_HOST, canonical_urls, odd_host_mended


def groups_of(table: pa.Table, hashes: Array, source: str, ungrouped: str = "source") -> pa.Array:
    """large_string_N. `ungrouped`: what a text without url and work is grouped by, its "source" or the hash of its
    "text"."""
    hosts = hosts_of(table["url"]) if "url" in table.column_names else [""] * len(table)
    works = table["work"].cast(pa.string()).to_pylist() if "work" in table.column_names else [None] * len(table)
    return pa.array(
        [
            f"host {host}"
            if host
            else f"work {work}"
            if work
            else f"source {source}"
            if ungrouped == "source"
            else f"text {digest:016x}"
            for host, work, digest in zip(hosts, works, hashes.tolist(), strict=True)
        ],
        pa.large_string(),
    )


def hosts_of(urls: pa.Array | pa.ChunkedArray) -> list[str]:
    """In lower case, without `www.`, port and user; empty where there is none."""
    column = text_column(urls)
    canonical = canonical_urls(column.data, column.offsets[:-1], column.offsets[1:])
    hosts = []
    for i in range(len(canonical)):
        host = canonical.text[canonical.starts[i] : canonical.hosts[i]].tobytes().decode("utf-8", "replace")
        if canonical.marks[i] & ODD_HOST:
            host = odd_host_mended(host)
        hosts.append(host)
    return hosts
