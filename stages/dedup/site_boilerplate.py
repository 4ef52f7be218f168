"""What a crawl teaches of its own boilerplate: lines that stand on many pages of a site are its template and no main
text.

Three rounds before the rewrite. The first looks at urls alone and finds the sites with enough pages, so that no text of
any other is read. The second counts each line of a site's pages that is long, and each line together with the one
before it, once a page: 24 bytes each, the way home included. The third adds up what the parts counted; what stands on
enough pages goes home, once for each part that has it. Counts are sums, so no division into parts matters. Of a site
with more than `most_pages` pages about so many are counted, chosen by uid. Figures:
benchmarks/text/site_boilerplate.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from gristmill.kernels.base.columns import TextColumn, text_array, text_column
from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array, Hashes
from gristmill.kernels.duplicates.paragraphs import UnitHashes, Units, hashes_of_units, lines, without_units
from gristmill.kernels.duplicates.site_lines import LineKeys, boilerplate_runs, line_keys
from gristmill.stages.dedup.figures import boilerplate_figures
from gristmill.stages.dedup.slices import slices
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.figures import Report, StageFigures
from gristmill.stages.flow import Dataset, Flow, Rows
from gristmill.stages.stage import Global
from gristmill.stages.text.sites import site_name, sites_of

BYTES_A_ROW = 80  # of text, about; says how finely rows are cut
EXAMPLES, SHOWN = 12, 400  # sites in the report, and characters of a line of each
SOUGHT = 240  # lines among which the sites are sought
TOLD = ("site", "pages", "site_pages", "text")
SALT = np.uint64(0xA0761D6478BD642F)  # which pages of a large site are counted is another choice than `sample`'s


class SiteBoilerplate(Global):
    """Remove lines that stand on many pages of one site: menus, notices, lists of other articles.

    A site is the registered domain of the url. A line on its own goes if it is long and stands on `alone_share` of the
    site's pages. Lines that stand next to each other on `min_share` of them are a run; it goes if it has a long line,
    if it is at the top or bottom of the text, or if it is a long list. So headings, table headers and ingredients stay,
    which repeat but not with their neighbours. Two lines are the same if their words are, numbers included. A document
    is never dropped: one of which too little would be left stays whole. Documents of parts in which something repeats
    get `site_boilerplate_lines`, how many were removed, and `site_boilerplate_share`, the share of the text's bytes
    that is boilerplate (also where the text stayed whole).
    """

    min_pages: Annotated[
        int, Field(description="on fewer pages of a site nothing is boilerplate; smaller sites stay as they are", ge=2)
    ] = 3
    min_share: Annotated[
        float, Field(description="of the site's pages that neighbouring lines stand on together", gt=0, le=1)
    ] = 0.15
    alone_share: Annotated[
        float, Field(description="of the site's pages that a line on its own stands on", gt=0, le=1)
    ] = 0.4
    min_words: Annotated[
        int, Field(description="a long line, or a run of lines at the edge of a text, has so many words", ge=1)
    ] = 8
    run_words: Annotated[
        int, Field(description="a run of short lines inside a text goes if it has so many words", ge=1)
    ] = 40
    min_left: Annotated[int, Field(description="a document that would have fewer words left stays whole", ge=1)] = 10
    most_pages: Annotated[
        int, Field(description="of a larger site only about so many pages are counted", ge=100, le=1 << 31)
    ] = 10_000

    columns: ClassVar[tuple[str, ...]] = ("uid", "url", "text")
    signal_types: ClassVar[Mapping[str, pa.DataType]] = {
        "site_boilerplate_lines": pa.int64(),
        "site_boilerplate_share": pa.float64(),
    }
    rewrites: ClassVar[bool] = True
    drops: ClassVar[bool] = False

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        sites = flow.map(self.sites, docs, columns=("url",), by="site")  # pages of each site, once a batch
        known = flow.reduce(self.with_enough_pages, sites)  # sites that can teach something, sent home
        fan = max(1, docs.text_bytes / BYTES_A_ROW / max(1, known.count))
        counted = flow.join(self.count, known, docs, columns=self.columns, by="key", fan=fan)
        repeated = flow.reduce(self.repeated, counted)  # lines and pairs on enough pages, sent home
        self.tell_figures(docs, flow, sites, repeated)
        return flow.rewrite(self.cut, repeated, docs, columns=self.columns)

    def sites(self, docs: pa.Table) -> pa.Table:
        site, pages = np.unique(sites_of(docs["url"]), return_counts=True)
        there = site > 0
        return pa.table({"site": site[there], "pages": pages[there].astype(np.uint32)})

    def with_enough_pages(self, rows: pa.Table) -> pa.Table:
        """Of sites whose rows are all here: those with enough pages, once for each part that has some."""
        site, home = rows["site"].to_numpy(), rows["home"].to_numpy()
        order = np.lexsort((home, site))
        site, home = site[order], home[order]
        pages = sums_of_runs(begins_run(site), rows["pages"].to_numpy()[order])
        chosen = begins_run(site, home) & (pages >= self.min_pages)
        return pa.table({"home": home[chosen], "site": site[chosen], "site_pages": pages[chosen].astype(np.uint32)})

    def count(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """Pages of this part that each line, alone and with the one before it, stands on."""
        known, order = rows["site"].to_numpy(), np.argsort(rows["site"].to_numpy())
        known, pages_of_known = known[order], rows["site_pages"].to_numpy()[order]
        counted = []
        for batch in slices(docs):
            sites = sites_of(batch["url"])
            place = np.minimum(np.searchsorted(known, sites), len(known) - 1)
            pages = np.where(known[place] == sites, pages_of_known[place], 0).astype(np.int64)
            chosen = np.flatnonzero((pages > 0) & self.is_counted(batch["uid"].to_numpy(), pages))
            if len(chosen):
                sites, pages = sites[chosen], np.minimum(pages[chosen], self.most_pages)
                counted.append(self.count_batch(batch["text"].take(pa.array(chosen)), sites, pages))
        empty = {"key": np.zeros(0, np.uint64), "pages": np.zeros(0, np.uint32), "site_pages": np.zeros(0, np.uint32)}
        return summed(pa.concat_tables(counted)) if counted else pa.table(empty)

    def is_counted(self, uid: Hashes, pages: Array) -> Array:
        """All pages of a site that has no more than `most_pages`; of others those whose hashed uid is small."""
        share = np.minimum(1.0, self.most_pages / np.maximum(pages, 1))
        counted: Array = (mixed_all(uid ^ SALT) >> np.uint64(11)).astype(np.float64) < share * 2.0**53
        return counted

    def keys(self, column: TextColumn, sites: Hashes) -> tuple[Units, UnitHashes, LineKeys]:
        units = lines(column)
        hashes = hashes_of_units(column, units)
        return units, hashes, line_keys(units, hashes, sites, self.min_words)

    def count_batch(self, texts: pa.ChunkedArray, sites: Hashes, pages: Array) -> pa.Table:
        units, _, keys = self.keys(text_column(texts), sites)
        document = np.repeat(np.arange(len(sites)), np.diff(units.first))
        key, document = np.concatenate(keys), np.concatenate([document, document])
        there = np.flatnonzero(key)
        order = there[np.argsort(key[there], kind="stable")]  # documents in order, for no line's two keys are equal
        once = order[begins_run(key[order], document[order])]
        rows = {"key": key[once], "pages": np.ones(len(once), np.uint32), "site_pages": pages[document[once]]}
        return summed(pa.table(rows), in_order=True)

    def repeated(self, rows: pa.Table) -> pa.Table:
        """Of lines and pairs whose like is all here: those on enough pages, once for each part that has them."""
        key, home = rows["key"].to_numpy(), rows["home"].to_numpy()
        order = np.lexsort((home, key))
        key, home, site_pages = key[order], home[order], rows["site_pages"].to_numpy()[order]
        pages = sums_of_runs(begins_run(key), rows["pages"].to_numpy()[order])
        share = np.where(key & np.uint64(1), self.min_share, self.alone_share)
        chosen = (pages >= self.min_pages) & (pages >= share * site_pages) & begins_run(key, home)
        found = {"home": home, "key": key, "pages": pages.astype(np.uint32), "site_pages": site_pages}
        return pa.table({name: values[chosen] for name, values in found.items()})

    def cut(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """The documents of a part without the lines that are boilerplate."""
        wanted = np.unique(rows["key"].to_numpy())
        return pa.concat_tables([self.cut_batch(wanted, batch) for batch in slices(docs)])

    def cut_batch(self, wanted: Hashes, docs: pa.Table) -> pa.Table:
        text = docs["text"].combine_chunks()
        column = text_column(text)
        units, hashes, keys = self.keys(column, sites_of(docs["url"]))
        alone, together = np.isin(keys.alone, wanted), np.isin(keys.pair, wanted)
        goes = boilerplate_runs(units, hashes.words, alone, together, self.min_words, self.run_words)
        size = pc.fill_null(pc.binary_length(text), 0).to_numpy(zero_copy_only=False)
        share = sums_by_document((units.ends - units.starts) * goes, units.first) / np.maximum(size, 1)
        whole = sums_by_document(hashes.words * ~goes, units.first) < self.min_left
        goes &= ~np.repeat(whole, np.diff(units.first))
        nothing = pa.nulls(len(docs), pa.string())
        columns = {
            "uid": docs["uid"],
            "text": text_array(*without_units(column, units, goes), text).cast(text.type),
            "reason": nothing,
            "detail": nothing,
            "site_boilerplate_lines": sums_by_document(goes, units.first),
            "site_boilerplate_share": share,
        }
        return pa.table(columns)

    # --- for the report -----------------------------------------------------------------------------------------------

    def tell_figures(self, docs: Dataset, flow: Flow, sites: Rows, repeated: Rows) -> None:
        """How many sites taught something, and lines of some of them."""
        totals = flow.gather(flow.combine(self.total, flow.reduce(self.site_totals, sites), by="home"))
        totals_of_sites = (
            {name: int(pc.sum(totals[name]).as_py()) for name in ("sites", "taught", "pages")} if len(totals) else {}
        )
        flow.report("site_counts", {"sites": 0, "taught": 0, "pages": 0} | totals_of_sites)
        chosen = flow.combine(self.most_pages_first, flow.reduce(self.most_pages_of_bucket, repeated), by="home")
        found = flow.gather(flow.join(self.with_text, chosen, docs, columns=self.columns)).to_pylist()
        found.sort(key=lambda row: (-row["pages"], -len(row["text"]), row["key"]))
        of_sites: dict[str, dict[str, Any]] = {}
        for row in found:
            of_sites.setdefault(row["site"], {name: row[name] for name in TOLD})
        flow.report("examples", list(of_sites.values())[:EXAMPLES])

    def site_totals(self, rows: pa.Table) -> pa.Table:
        order = np.argsort(rows["site"].to_numpy(), kind="stable")
        first = begins_run(rows["site"].to_numpy()[order])
        pages = sums_of_runs(first, rows["pages"].to_numpy()[order])[first]
        enough = pages >= self.min_pages
        counts = {"sites": len(pages), "taught": enough.sum(), "pages": pages[enough].sum()}
        return pa.table(
            {"home": np.zeros(1, np.uint64), **{name: np.array([n], np.int64) for name, n in counts.items()}}
        )

    def total(self, tables: list[pa.Table]) -> pa.Table:
        rows = pa.concat_tables(tables)
        sums = {name: np.array([pc.sum(rows[name]).as_py()], np.int64) for name in ("sites", "taught", "pages")}
        return pa.table({"home": np.zeros(1, np.uint64), **sums})

    def most_pages_of_bucket(self, rows: pa.Table) -> pa.Table:
        return self.most_pages_first([rows])

    def most_pages_first(self, tables: list[pa.Table]) -> pa.Table:
        """Those on most pages, of each only one home."""
        rows = pa.concat_tables(tables)
        rows = rows.sort_by([("pages", "descending"), ("key", "ascending"), ("home", "ascending")])
        return rows.filter(pa.array(begins_run(rows["key"].to_numpy()))).slice(0, SOUGHT)

    def with_text(self, rows: pa.Table, docs: pa.Table) -> pa.Table:
        """The lines that keys are of, as the document of the smallest uid has them."""
        wanted = {row["key"]: row for row in rows.to_pylist()}
        found: dict[int, tuple[int, dict[str, Any]]] = {}
        keys_sought = np.array(list(wanted), np.uint64)
        for batch in slices(docs):
            sites, uid = sites_of(batch["url"]), batch["uid"].to_pylist()
            units, hashes, keys = self.keys(text_column(batch["text"]), sites)
            data = text_column(batch["text"]).data
            for of_pairs, column in enumerate(keys):
                for u in np.flatnonzero(np.isin(column, keys_sought)).tolist():
                    row = int(np.searchsorted(units.first, u, side="right")) - 1
                    key, start = int(column[u]), u
                    if key in found and found[key][0] <= uid[row]:
                        continue
                    if of_pairs:
                        start = u - 1 - int(np.argmax(hashes.words[:u][::-1] > 0))
                    text = bytes(data[units.starts[start] : units.ends[u]]).decode(errors="replace")[:SHOWN]
                    site = site_name(batch["url"][row].as_py())
                    found[key] = (uid[row], wanted[key] | {"site": site, "text": text})
        named = [row for _, row in found.values()]
        kinds = [("home", pa.uint64()), ("key", pa.uint64()), ("pages", pa.uint32()), ("site_pages", pa.uint32())]
        return pa.Table.from_pylist(named, schema=pa.schema([*kinds, ("site", pa.string()), ("text", pa.string())]))

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "examples" not in report:
            return None
        return StageFigures("Boilerplate of sites", boilerplate_figures(report))


def summed(rows: pa.Table, in_order: bool = False) -> pa.Table:
    """One row for each key; its pages are the sum of theirs."""
    if not in_order:
        rows = rows.take(pa.array(np.argsort(rows["key"].to_numpy(), kind="stable")))
    first = begins_run(rows["key"].to_numpy())
    pages = sums_of_runs(first, rows["pages"].to_numpy())[first].astype(np.uint32)
    site_pages = rows["site_pages"].to_numpy()[first].astype(np.uint32)
    return pa.table({"key": rows["key"].to_numpy()[first], "pages": pages, "site_pages": site_pages})


def sums_of_runs(begins: Array, values: Array) -> Array:
    """For each row the sum over its run."""
    first = np.flatnonzero(begins)
    if not len(first):
        return np.zeros(0, np.int64)
    return np.repeat(np.add.reduceat(values.astype(np.int64), first), np.diff(np.append(first, len(begins))))


def sums_by_document(values: Array, first: Array) -> Array:
    running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    sums: Array = running[first[1:]] - running[first[:-1]]
    return sums
