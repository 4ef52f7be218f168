"""Near-duplicates, whatever nominates them: nominated pairs are checked, and a document goes only if it is like one
that stays.

The road, as rounds of a flow. Only hashes are shuffled; what a check needs is read where the documents lie.

    pairs     = nominated by the stage            a pair of documents that share a band, sent to the home of the first
    edges     = fetched, then compared            the first one's sketch goes to the home of the second
    forest    = components, by rounds             clusters; no task holds all of them
    missing   = pairs alike over a third          two that would both stay, each like one that goes: compared in turn
    members   = each cluster walked by policy     who is like one that stays goes, and its detail names that one

So a chain a-b-c in which a and c are not alike keeps both ends, and every document that goes has a survivor that it was
compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array
from gristmill.kernels.duplicates.forest import keepers, neighbours, proposals, spanning_forest
from gristmill.stages.dedup.components import Components, ends_of
from gristmill.stages.dedup.policy import PolicyColumns
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.dedup.survivors import RUN, hexadecimal, kept_by
from gristmill.stages.flow import Dataset, Flow, Rows

Sketches = tuple[Array, Array]  # values of all, and where those of each begin and end

REASON = "near_duplicate"
ROUNDS = 8  # of pairs over a third; each compares what was never compared, and few clusters need a second
NO_CLUSTER = 0
EXAMPLES = 6
SKETCH_ROWS = 100  # a sketch weighs as much as so many rows of other rounds
SHOWN = 20_000  # characters of an example
SAVED = 0  # the home of a document that an earlier run kept: it stays, and has no part here


class NearDuplicateStage(Protocol):
    """What the rounds ask of their stage: what they read, who stays, and how two documents are compared."""

    @property
    def read(self) -> Sequence[str]:
        """The columns of documents that its rounds read."""
        ...

    def policy_columns(self, docs: pa.Table) -> PolicyColumns:
        """What the policy looks at."""
        ...

    def survivor_sort_keys(self, prefix: str = "") -> list[tuple[str, str]]:
        """Sort keys by which the survivor comes first."""
        ...

    def sketches(self, docs: pa.Table) -> Sketches:
        """Of each document, what it is compared by, in uint64."""
        ...

    def similarities(self, sketches: Sketches, left: Array, right: Array) -> Array:
        """Of pairs of sketches, by their places."""
        ...


@dataclass(frozen=True)
class NearDuplicates:
    """The rounds that all near-duplicate stages share, with one stage's way to compare. A stage has it as `near`."""

    stage: NearDuplicateStage
    prefix: str  # of the signals
    at_least: float  # the similarity from which two documents are alike

    @property
    def components(self) -> Components:
        return Components()

    @property
    def helpers(self) -> tuple[object, ...]:
        """Whose methods the rounds call."""
        return self, self.components

    def duplicates(self, docs: Dataset, flow: Flow, edges: Rows) -> Rows:
        """The members of all clusters, by edges as `compared` makes them of nominated pairs, cut by `left`."""
        edges = self.settled(docs, flow, edges)
        self.tell_examples(docs, flow, edges)
        members = flow.reduce(self.members, edges)
        flow.release(edges)
        return members

    def prepare(self, docs: pa.Table | None = None) -> None:
        """Compile what compares documents; `docs`: two to try it on."""
        two_texts = {"text": ["one of two texts", "the other of two texts"]}
        sketches = self.stage.sketches(pa.table(two_texts) if docs is None else docs)
        edge = np.array([0]), np.array([1])
        lists = neighbours(*edge, self.stage.similarities(sketches, *edge), 2)
        proposals(*lists, self.at_least, keepers(*lists, self.at_least))
        spanning_forest(*(end.astype(np.uint64) for end in edge))

    def settled(self, docs: Dataset, flow: Flow, edges: Rows) -> Rows:
        """Edges with their clusters, and what should be compared still, in up to ROUNDS."""
        forest = self.components.forest(flow, edges)
        labelled = flow.reduce(self.labelled, edges, forest, by="key")
        for rows in (edges, forest):
            flow.release(rows)
        missing = flow.reduce(self.missing, labelled)
        for again in range(ROUNDS):
            if not missing.count:
                break
            compared = self.compared(missing, docs, flow, by="key")
            labelled = labelled + compared
            if again < ROUNDS - 1:
                missing = flow.reduce(self.missing_again, labelled, compared)
        return labelled

    def compared(self, pairs: Rows, docs: Dataset, flow: Flow, by: str) -> Rows:
        """Edges of pairs, which no round asks for again."""
        sent = flow.join(self.fetch, pairs, docs, columns=self.stage.read, fan=SKETCH_ROWS, uids="left")
        flow.release(pairs)
        edges = flow.join(self.compare, sent, docs, columns=self.stage.read, by=by, uids="rights")
        flow.release(sent)
        return edges

    def fetch(self, pairs: pa.Table, docs: pa.Table) -> pa.Table:
        """The sketch of each first document and its standing, once for each home that it is wanted at."""
        pairs = each_pair_once(pairs)
        left, places = np.unique(pairs["left"].to_numpy(), return_inverse=True)
        docs = rows_of(docs, left)
        values, first = self.stage.sketches(docs)
        order = np.lexsort((pairs["right"].to_numpy(), pairs["right_home"].to_numpy(), places))
        pairs, places = pairs.take(pa.array(order)), places[order]
        home = pairs["right_home"].to_numpy()
        begins = np.flatnonzero(begins_run(places, home))
        documents = places[begins]
        sent = pa.LargeListArray.from_arrays(pa.array(first), pa.array(values)).take(pa.array(documents))
        rows = {
            "home": pa.array(home[begins]),
            "left": pa.array(left[documents]),
            "left_home": pairs["home"].take(pa.array(begins)),
            "cluster": pairs["cluster"].take(pa.array(begins)),
            "rights": pa.LargeListArray.from_arrays(
                pa.array(np.append(begins, len(pairs)).astype(np.int64)), pairs["right"].combine_chunks()
            ),
            "sketch": sent,
        }
        standing = {
            f"left_{name}": pc.take(column, pa.array(documents))
            for name, column in self.stage.policy_columns(docs).items()
        }
        return pa.table(rows | standing)

    def compare(self, sent: pa.Table, docs: pa.Table) -> pa.Table:
        """Pairs with their similarity. Those of a first nomination only if they are alike; of a later one all, so that
        none is proposed twice."""
        sent = sent.combine_chunks()
        rights = sent["rights"].combine_chunks()
        row, wanted = pc.list_parent_indices(rights).to_numpy(), rights.flatten().to_numpy()
        right, places = np.unique(wanted, return_inverse=True)
        docs = rows_of(docs, right)
        values, first = self.stage.sketches(docs)
        sketch = sent["sketch"].combine_chunks()
        ends = np.concatenate([[0], np.cumsum(pc.list_value_length(sketch).to_numpy())])
        both = (
            np.concatenate([sketch.flatten().to_numpy(), values]),
            np.concatenate([ends, ends[-1] + first[1:] - first[0]]).astype(np.int64),
        )
        similarity = self.stage.similarities(both, row.astype(np.int64), places + len(sent))
        cluster = sent["cluster"].to_numpy()[row]
        kept = np.flatnonzero((similarity >= self.at_least) | (cluster != NO_CLUSTER))
        rows = {
            "left": sent["left"].take(pa.array(row[kept])),
            "right": pa.array(wanted[kept]),
            "left_home": sent["left_home"].take(pa.array(row[kept])),
            "right_home": sent["home"].take(pa.array(row[kept])),
            "cluster": pa.array(cluster[kept]),
            "key": pa.array(mixed_all(cluster[kept])),
            "similarity": pa.array(similarity[kept]),
        }
        rows |= {
            name: sent[name].take(pa.array(row[kept]))
            for name in sent.column_names
            if name.startswith("left_") and name != "left_home"
        }
        rows |= {
            f"right_{name}": pc.take(column, pa.array(places[kept]))
            for name, column in self.stage.policy_columns(docs).items()
        }
        return edges_of(rows)

    def labelled(self, edges: pa.Table | None, forest: pa.Table | None) -> pa.Table:
        """Each edge with its cluster, which is named by its smallest uid."""
        if edges is None:
            return pa.table({})  # members that are no first document of an edge
        cluster = ends_of(edges["left"].to_numpy(), forest)
        # clusters meet by a mixed key: the name of one is the smallest of many uids, which is small, so that most would
        # meet in the first bucket
        for name, values in (("cluster", cluster), ("key", mixed_all(cluster))):
            edges = edges.set_column(edges.schema.get_field_index(name), name, pa.array(values))
        return edges

    def missing_again(self, edges: pa.Table | None, compared: pa.Table | None) -> pa.Table:
        """Of clusters in which pairs were compared; in the others nothing has changed."""
        if edges is None or compared is None:
            return pa.table({})
        again = np.isin(edges["cluster"].to_numpy(), compared["cluster"].to_numpy())
        return self.missing(edges.filter(pa.array(again)))

    def missing(self, edges: pa.Table) -> pa.Table:
        _, places, count = np.unique(edges["cluster"].to_numpy(), return_inverse=True, return_counts=True)
        edges = edges.filter(pa.array(count[places] > 1))  # one pair is alike over no third
        members, lists = self.clusters(edges)
        left, right = proposals(*lists, self.at_least, keepers(*lists, self.at_least))
        home, uid = members["home"].to_numpy(), members["uid"].to_numpy()
        here = (home[left] != SAVED) & (
            home[right] != SAVED
        )  # against a saved index all that share a band were compared
        left, right = left[here], right[here]
        cluster = members["cluster"].take(pa.array(left))
        return pa.table(
            {
                "home": pa.array(home[left]),
                "left": pa.array(uid[left]),
                "right": pa.array(uid[right]),
                "right_home": pa.array(home[right]),
                "cluster": cluster,
            }
        )

    def members(self, edges: pa.Table) -> pa.Table:
        """The members of all clusters: who stays without a reason, who goes with one and the name of the survivor it is
        like."""
        members, lists = self.clusters(edges)
        keeper = keepers(*lists, self.at_least)
        uid, cluster = members["uid"].to_numpy(), members["cluster"].to_numpy()
        begins = begins_run(cluster)
        sizes = np.diff(np.append(np.flatnonzero(begins), len(cluster)))
        goes = (keeper >= 0) & (members["new"].to_numpy() == 1)  # what an index has stays, here too
        like = pc.binary_join_element_wise(similarity_to(keeper, lists), hexadecimal(uid[keeper]), " like ")
        if RUN in members.column_names:
            like = kept_by(like, members[RUN].take(pa.array(np.maximum(keeper, 0))))
        nothing = pa.scalar(None, pa.string())
        copies = np.bincount(keeper[goes], minlength=len(keeper)) + 1
        rows = {
            "home": members["home"],
            "uid": members["uid"],
            "reason": pc.if_else(pa.array(goes), pa.scalar(REASON), nothing),
            "detail": pc.if_else(pa.array(goes), like, nothing),
            f"{self.prefix}_cluster": members["cluster"],
            f"{self.prefix}_cluster_size": pa.array(sizes[np.cumsum(begins) - 1].astype(np.uint32)),
            f"{self.prefix}_copies": pa.array(np.where(goes, 0, copies).astype(np.uint32)),
        }
        return pa.table(rows).filter(pa.array(members["home"].to_numpy() != SAVED))

    def tell_examples(self, docs: Dataset, flow: Flow, edges: Rows) -> None:
        """Some documents that go, beside those that stay for them, for the report."""
        ends = flow.combine(self.fewest, flow.reduce(self.that_go, edges), by="home")
        ends = flow.join(self.with_text, ends, docs, columns=("uid", "url", "text"), uids="uid")
        by_cluster: dict[int, dict[bool, dict[str, Any]]] = {}
        for end in flow.gather(ends).to_pylist():
            by_cluster.setdefault(end["cluster"], {})[end["goes"]] = end
        pairs = sorted(by_cluster.values(), key=lambda pair: pair[True]["uid"])
        flow.report("examples", [example_of(pair[True], pair[False]) for pair in pairs])

    def that_go(self, edges: pa.Table) -> pa.Table:
        """The first document that goes of each of the first clusters in which no index has a part, and the one that it
        is like."""
        left_home, right_home, cluster = (edges[name].to_numpy() for name in ("left_home", "right_home", "cluster"))
        own = ~np.isin(cluster, cluster[(left_home == SAVED) | (right_home == SAVED)])
        names = np.unique(cluster[own])[:EXAMPLES]
        members, lists = self.clusters(edges.filter(pa.array(np.isin(cluster, names))))
        keeper = keepers(*lists, self.at_least)
        uid, home, cluster = (members[name].to_numpy() for name in ("uid", "home", "cluster"))
        goes = np.flatnonzero(keeper >= 0)
        goes = goes[np.lexsort((uid[goes], cluster[goes]))]
        goes = goes[begins_run(cluster[goes])]
        ends, similarity = np.concatenate([goes, keeper[goes]]), similarity_to(keeper, lists).take(pa.array(goes))
        rows = {name: pa.array(values[ends]) for name, values in (("home", home), ("uid", uid), ("cluster", cluster))}
        rows["goes"] = pa.array(np.arange(len(ends)) < len(goes))
        return pa.table({**rows, "similarity": pa.chunked_array([similarity, similarity])})

    def fewest(self, tables: list[pa.Table]) -> pa.Table:
        """Both documents of the first clusters."""
        return pa.concat_tables(tables).sort_by("cluster").slice(0, 2 * EXAMPLES)

    def with_text(self, ends: pa.Table, docs: pa.Table) -> pa.Table:
        places = pc.index_in(ends["uid"], value_set=docs["uid"].combine_chunks())
        text = pc.utf8_slice_codeunits(docs["text"].take(places), 0, SHOWN)
        return ends.append_column("url", docs["url"].take(places)).append_column("text", text)

    def clusters(self, edges: pa.Table) -> tuple[pa.Table, tuple[Array, Array, Array]]:
        """Members, cluster by cluster, the survivor-to-be first; and the edges between their places."""
        sides = []
        for side in ("left", "right"):
            names = {name: name.removeprefix(f"{side}_") for name in edges.column_names if name.startswith(f"{side}_")}
            sides.append(edges.select([side, "cluster", *names]).rename_columns(["uid", "cluster", *names.values()]))
        members = pa.concat_tables([sides[0], sides[1].select(sides[0].column_names)])
        uid, home = members["uid"].to_numpy(), members["home"].to_numpy()
        order = np.lexsort((home != SAVED, uid))  # a document that an index has as well is the one in the index
        firsts = np.flatnonzero(begins_run(uid[order]))
        lasts = order[np.append(firsts[1:], len(uid))[: len(firsts)] - 1]
        members = members.take(pa.array(order[firsts])).append_column(
            "new", pa.array((home[order[firsts]] != SAVED).astype(np.uint8))
        )
        members = members.set_column(
            members.column_names.index("home"), "home", pa.array(home[lasts])
        )  # and lies here all the same
        members = members.take(
            pc.sort_indices(
                members, sort_keys=[("cluster", "ascending"), ("new", "ascending"), *self.stage.survivor_sort_keys()]
            )
        )
        uid = members["uid"].to_numpy()
        by_uid = np.argsort(uid)
        left, right = (
            by_uid[np.searchsorted(uid, edges[side].to_numpy(), sorter=by_uid)] for side in ("left", "right")
        )
        return members, neighbours(left, right, edges["similarity"].to_numpy(), len(uid))


def example_of(gone: dict[str, Any], like: dict[str, Any]) -> dict[str, Any]:
    """A document that goes and the one that stays for it, as report.json has them."""
    return {
        "uid": f"{gone['uid']:016x}",
        "url": gone["url"],
        "text": gone["text"],
        "like": f"{like['uid']:016x}",
        "like_url": like["url"],
        "like_text": like["text"],
        "similarity": gone["similarity"],
    }


def edges_of(rows: dict[str, Any]) -> pa.Table:
    """Edges with their columns in one order, whoever found them."""
    return pa.table({name: rows[name] for name in sorted(rows)})


def each_pair_once(pairs: pa.Table) -> pa.Table:
    order = np.lexsort((pairs["right"].to_numpy(), pairs["left"].to_numpy()))
    left, right = pairs["left"].to_numpy()[order], pairs["right"].to_numpy()[order]
    return pairs.take(pa.array(order[begins_run(left, right)]))


def rows_of(docs: pa.Table, uids: Array) -> pa.Table:
    """The documents of these uids, in their order."""
    uid = docs["uid"].to_numpy()
    order = np.argsort(uid)
    places = order[np.minimum(np.searchsorted(uid, uids, sorter=order), len(uid) - 1)]
    if not (uid[places] == uids).all():
        raise ValueError("a pair names a document that is not in the part which is its home")
    return docs.take(pa.array(places))


def similarity_to(keeper: Array, lists: tuple[Array, Array, Array]) -> pa.Array:
    """The similarity of each node to who keeps it, as three digits."""
    first, other, weight = lists
    node = np.repeat(np.arange(len(keeper)), np.diff(first))
    similarity = np.zeros(len(keeper))
    to_keeper = other == keeper[node]
    np.maximum.at(
        similarity, node[to_keeper], weight[to_keeper]
    )  # twice where an index has the keeper as well: compared, and estimated
    thousandths = np.floor(similarity * 1000 + 1e-9).astype(
        np.int64
    )  # rounded down: what is not the same never reads 1.000
    digits = pc.utf8_lpad(pa.array(thousandths % 1000).cast(pa.string()), 3, "0")
    return pc.binary_join_element_wise(pa.array(thousandths // 1000).cast(pa.string()), digits, ".")
