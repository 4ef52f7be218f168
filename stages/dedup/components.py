"""Connected components of pairs, by rounds among buckets: no task sees more than its share.

    pairs   = spanning forests of buckets          a member points at a smaller one, its root
    hooks   = members meet by name                 each keeps its smallest root
    links   = the roots that it had besides        joined to the smallest
    stars   = pointers jump until none moves       twice as far each time
    pairs   = links between the ends of pointers   a smaller graph, and again, until one task can hold it

A member that has a smaller neighbour is no vertex of the next graph. With names in random order, as hashes are, the
graph of a chain shrinks to less than half, that of a star to nothing, so the number of rounds grows as the logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.forest import spanning_forest
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.flow import Flow, Rows

IN_ONE_TASK = 2_000_000  # pairs; each takes about 70 bytes while they are merged


@dataclass(frozen=True)
class Components:
    """The rounds. Rows meet by a mixed key: the root of many is a small number, and small numbers share a bucket."""

    def forest(self, flow: Flow, edges: Rows) -> Rows:
        """Each member of a component with the smallest, cut by `member`; the smallest has no row."""
        pairs = flow.reduce(self.forest_of_bucket, edges, by="key")
        levels = []
        while pairs.count > IN_ONE_TASK:
            links = flow.reduce(self.links, pairs, by="key")
            levels.append(self.stars(flow, flow.reduce(self.hooks, pairs, by="key")))
            flow.release(pairs)
            half = flow.reduce(self.from_member, links, levels[-1], by="key")
            pairs = flow.reduce(self.from_root, half, levels[-1], by="key")
            for rows in (links, half):
                flow.release(rows)
        forest = flow.combine(self.merged, pairs, by="key" if levels else "member")
        flow.release(pairs)
        for stars in reversed(levels):
            asking = flow.reduce(self.ask, stars, by="key")
            forest = flow.reduce(self.told_last, asking, forest, by="key") + forest
            for rows in (stars, asking):
                flow.release(rows)
        return flow.reduce(self.by_member, forest, by="member") if levels else forest

    def stars(self, flow: Flow, pointers: Rows) -> Rows:
        """Pointers that end at members which point nowhere."""
        while True:
            asking = flow.reduce(self.ask_if_open, pointers, by="key")
            if not asking.count:
                return pointers
            told = flow.reduce(self.told, asking, pointers, by="key")
            moved = flow.reduce(self.moved, pointers, told, by="key")
            for rows in (asking, told, pointers):
                flow.release(rows)
            pointers = moved

    def forest_of_bucket(self, edges: pa.Table) -> pa.Table:
        return pairs_of(*spanning_forest(edges["left"].to_numpy(), edges["right"].to_numpy()))

    def merged(self, tables: list[pa.Table]) -> pa.Table:
        """The spanning forest of forests."""
        ends = [np.concatenate([table[side].to_numpy() for table in tables]) for side in ("member", "root")]
        return pairs_of(*spanning_forest(*ends))

    def hooks(self, pairs: pa.Table) -> pa.Table:
        member, root, begins = by_member(pairs)
        return pointers_of(member[begins], root[begins], np.ones(int(begins.sum()), np.uint8))

    def links(self, pairs: pa.Table) -> pa.Table:
        _, root, begins = by_member(pairs)
        smallest = root[np.maximum.accumulate(np.where(begins, np.arange(len(root)), 0))]
        return pairs_of(*spanning_forest(root[~begins], smallest[~begins]))

    def ask(self, pointers: pa.Table) -> pa.Table:
        """Pointers at the bucket of the member that they point at."""
        root = pointers["root"].to_numpy()
        return pa.table({"member": pointers["member"], "root": pointers["root"], "key": pa.array(mixed_all(root))})

    def ask_if_open(self, pointers: pa.Table) -> pa.Table:
        return self.ask(pointers.filter(pa.array(pointers["open"].to_numpy() == 1)))

    def told(self, asking: pa.Table | None, pointers: pa.Table | None) -> pa.Table:
        """Where the member that a pointer points at points itself; one that points nowhere is an end."""
        if asking is None or pointers is None:
            return pa.table({}) if asking is None else ended(asking)
        there, places = found(asking["root"].to_numpy(), pointers["member"].to_numpy())
        root = np.where(there, pointers["root"].to_numpy()[places], asking["root"].to_numpy())
        is_open = np.where(there, pointers["open"].to_numpy()[places], 0).astype(np.uint8)
        return pointers_of(asking["member"].to_numpy(), root, is_open)

    def moved(self, pointers: pa.Table | None, told: pa.Table | None) -> pa.Table:
        if pointers is None or told is None:
            return pa.table({}) if pointers is None else pointers.select(POINTER)
        member = pointers["member"].to_numpy()
        there, places = found(member, told["member"].to_numpy())
        root, is_open = (
            np.where(there, told[name].to_numpy()[places], pointers[name].to_numpy()) for name in ("root", "open")
        )
        return pointers_of(member, root, is_open.astype(np.uint8))

    def from_member(self, links: pa.Table | None, stars: pa.Table | None) -> pa.Table:
        """Links with the end of their first member, at the bucket of the second."""
        if links is None:
            return pa.table({})
        root = links["root"].to_numpy()
        end = ends_of(links["member"].to_numpy(), stars)
        return pa.table({"member": pa.array(end), "root": pa.array(root), "key": pa.array(mixed_all(root))})

    def from_root(self, links: pa.Table | None, stars: pa.Table | None) -> pa.Table:
        """Links between ends."""
        if links is None:
            return pa.table({})
        end = ends_of(links["root"].to_numpy(), stars)
        return pairs_of(*spanning_forest(links["member"].to_numpy(), end))

    def told_last(self, asking: pa.Table | None, forest: pa.Table | None) -> pa.Table:
        """Members with the root of their star's end."""
        if asking is None:
            return pa.table({})
        return pairs_of(asking["member"].to_numpy(), ends_of(asking["root"].to_numpy(), forest))

    def by_member(self, forest: pa.Table) -> pa.Table:
        return forest.select(PAIR)


PAIR, POINTER = ["member", "root", "key"], ["member", "root", "key", "open"]


def pairs_of(member: Array, root: Array) -> pa.Table:
    """Members that point at another."""
    points = member != root
    member, root = member[points], root[points]
    return pa.table({"member": pa.array(member), "root": pa.array(root), "key": pa.array(mixed_all(member))})


def pointers_of(member: Array, root: Array, is_open: Array) -> pa.Table:
    return pairs_of(member, root).append_column("open", pa.array(is_open))


def ended(asking: pa.Table) -> pa.Table:
    return pointers_of(asking["member"].to_numpy(), asking["root"].to_numpy(), np.zeros(len(asking), np.uint8))


def by_member(pairs: pa.Table) -> tuple[Array, Array, Array]:
    """Pairs in order of member and root, and where a member begins."""
    member, root = pairs["member"].to_numpy(), pairs["root"].to_numpy()
    order = np.lexsort((root, member))
    return member[order], root[order], begins_run(member[order])


def found(wanted: Array, members: Array) -> tuple[Array, Array]:
    """Which are among the members, and at which place."""
    order = np.argsort(members)
    places = order[np.minimum(np.searchsorted(members, wanted, sorter=order), len(members) - 1)]
    return members[places] == wanted, places


def ends_of(members: Array, pointers: pa.Table | None) -> Array:
    """What members point at; one without a pointer is its own end."""
    if pointers is None:
        return members
    there, places = found(members, pointers["member"].to_numpy())
    ends: Array = np.where(there, pointers["root"].to_numpy()[places], members)
    return ends
