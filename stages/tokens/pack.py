"""Token rows: documents spread by their place in training, packed window by window, and written as shards.

A window is a stretch of places, and their number a power of two that depends on the count of tokens alone; so which
documents meet does not hang on workers or parts. What the order calls a segment is never packed together with another;
inside one, rows are shuffled. `kernels/rows/pack.py` packs.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pydantic import Field, field_validator, model_validator

from gristmill.kernels.base.splitmix import mixed_all
from gristmill.kernels.base.types import Array
from gristmill.kernels.common.settings import PLACEMENT
from gristmill.kernels.rows.lay_rows import lay_rows
from gristmill.kernels.rows.pack import LONGEST_ROW, Packed, best_fit, concatenate, fewest_rows, one_each
from gristmill.mixing.draw import copy_keys
from gristmill.shards.format import UNKNOWN_BUCKET, Documents, ShardMeta, dtype_of, shard_table
from gristmill.shards.writer import index_of, shard_facts
from gristmill.stages.blend.copies import copies_of
from gristmill.stages.blend.groups import group_names
from gristmill.stages.dedup.sorted_rows import begins_run
from gristmill.stages.figures import Report, StageFigures, TokenCounts
from gristmill.stages.flow import Dataset, Flow, Published
from gristmill.stages.stage import CannotRun, Global
from gristmill.stages.tokens.figures import card_of_shards, packing_figures
from gristmill.stages.tokens.folders import CELLS, folder_of_cell, folder_of_sets

MOST_WINDOWS = 1 << 14
SHUFFLE = np.uint64(0x9E3779B97F4A7C15)


class Pack(Global):
    """Pack documents into training rows, and write them as token shards that a trainer maps into memory.

    Best fit cuts only documents that are longer than a row; the pieces are counted. Boundaries are stored, so that
    attention can be masked by document. Rows of several lengths in one run are several sets of shards of the same
    documents. Without `order` documents are shuffled.
    """

    row_length: Annotated[
        int | list[int], Field(description="tokens in a row; a list makes a set of shards of each length")
    ] = 2048
    packer: Annotated[
        Literal["best_fit", "concatenate", "one_each"],
        Field(
            description=(
                "best fit, decreasing; or all one after another, cut where a row is full; or rows of one document each"
            )
        ),
    ] = "best_fit"
    window_tokens: Annotated[
        int,
        Field(
            description=(
                "documents are packed and shuffled in windows of at most about so many tokens; a window is a shard"
            ),
            ge=1 << 10,
        ),
    ] = 1 << 25
    by: list[str] = Field(
        default_factory=list,
        description="columns that tell cells apart, as in `mix`: each cell becomes a set of shards of its own",
    )
    seed: Annotated[int, Field(description="of the shuffle", ge=0, lt=1 << 64)] = 0
    license: Annotated[str, Field(description="for the dataset card, such as odc-by", json_schema_extra=PLACEMENT)] = (
        "unknown"
    )

    columns: ClassVar[tuple[str, ...]] = (
        "uid", "source", "token_ids", "tokens", "copies", "places", "segments", "bucket", "difficulty",
    )  # fmt: skip
    groups_by: ClassVar[str] = "by"
    drops: ClassVar[bool] = False
    final: ClassVar[bool] = True

    @field_validator("row_length")
    @classmethod
    def _lengths_are_possible(cls, value: int | list[int]) -> int | list[int]:
        lengths = [value] if isinstance(value, int) else value
        if (
            not lengths
            or len(set(lengths)) < len(lengths)
            or not all(16 <= length <= LONGEST_ROW for length in lengths)
        ):
            raise ValueError(f"rows of {value} tokens: lengths from 16 to {LONGEST_ROW:,}, each once")
        return value

    @model_validator(mode="after")
    def _windows_fill_rows(self) -> Self:
        if self.window_tokens < max(self.lengths):
            raise ValueError(
                f"window_tokens {self.window_tokens:,} is less than a row of {max(self.lengths):,}: rows "
                "never hold documents of two windows, so most of "
                "each would be padding"
            )
        return self

    def prepare(self) -> None:
        """Compile."""
        packed = self.laid(np.array([1, 3]), 2, np.array([0, 2]))
        fewest_rows(np.array([1, 3]), 2)
        lay_rows(np.zeros(4, np.uint16), np.array([0, 1, 4]), packed, 2, 0)

    @property
    def wants(self) -> tuple[str, ...]:
        return ("tokens",)

    @property
    def lengths(self) -> list[int]:
        return [self.row_length] if isinstance(self.row_length, int) else sorted(self.row_length)

    def folder(self, length: int, cell: str | None = None) -> str:
        below = "" if cell is None else f"{folder_of_cell(cell)}/"
        return f"{folder_of_sets(self.called)}/{below}{length}"

    def cell_of(self, docs: pa.Table) -> pa.Array:
        """The cell of each document; null where all are one set."""
        return group_names(docs, self.by, "to tell cells apart by") if self.by else pa.nulls(len(docs), pa.string())

    def run(self, docs: Dataset, flow: Flow) -> Dataset:
        tokenizer = flow.run.shared("tokenizer")
        if tokenizer is None:
            raise CannotRun("there are no tokens to pack: put `tokenize` before it")
        own = [name for name in self.by if name not in self.columns]
        given = flow.gather(
            flow.combine(
                self.summed,
                flow.map(self.counted, docs, columns=("uid", "source", "tokens", "copies", "bucket", *own), by="key"),
                by="key",
            )
        )
        tokens = int(pc.sum(given["tokens"]).as_py() or 0) if len(given) else 0
        if tokens == 0:
            raise CannotRun("no document is left to pack")
        documents = int(pc.sum(given["documents"]).as_py())
        if int(pc.sum(given["ordered"]).as_py()) not in (0, documents):
            raise CannotRun(
                "some documents have a place in training and others have none: a source joins between "
                "`order` and `pack`; let it join before `order`"
            )
        windows = 1
        while windows * self.window_tokens < tokens and windows < MOST_WINDOWS:
            windows *= 2
        spread = flow.map(self.spread, docs, columns=(*self.columns, *own), by="place", buckets=windows)
        given = given.sort_by([("cell", "ascending"), ("source", "ascending")])
        sets, facts_of_sets = {}, []
        for cell in given["cell"].unique().to_pylist():
            rows = given.filter(pc.equal(given["cell"], cell)) if cell is not None else given
            content = [rows.select(["source", "tokens", "documents", "content"]).to_pylist(), flow.run.shared("order")]
            for length in self.lengths:
                meta = self.meta(tokenizer, length, content if cell is None else [*content, cell])
                sets[cell, length] = meta, int(pc.sum(rows["tokens"]).as_py()), int(pc.sum(rows["documents"]).as_py())
                facts_of_sets.append({"cell": cell, "meta": meta.facts(), "sources": rows["source"].to_pylist()})
        beside = pa.table({"facts": [json.dumps(facts) for facts in facts_of_sets]})
        shards = flow.publish(self.packed, spread, broadcast=beside)
        by_set = {key: [facts for facts in shards if (facts.get("cell"), facts["row_length"]) == key] for key in sets}
        for (cell, _), (meta, *counts) in sets.items():
            self.finish(flow, meta, by_set[cell, meta.row_length], cell, *counts)
        if self.by:
            folders = {cell: folder_of_cell(cell) for cell, _ in sets}
            said = {"by": self.by, "cells": folders}
            flow.run.leave(
                f"{folder_of_sets(self.called)}/{CELLS}", json.dumps(said, indent=1, ensure_ascii=False) + "\n"
            )
        metas = {key: meta for key, (meta, _, _) in sets.items()}
        packing = {"tokens": tokens, "windows": windows, "sources": counts_of(given), **self.account(by_set, metas)}
        flow.report("packing", packing)
        return docs

    @classmethod
    def figures(cls, report: Report) -> StageFigures | None:
        if "packing" not in report:
            return None
        return StageFigures("Rows and shards", packing_figures(report))

    @classmethod
    def token_counts(cls, report: Report) -> TokenCounts | None:
        """Those packed, copies counted."""
        if "packing" not in report:
            return None
        sources = report["packing"].get("sources") or {}
        return TokenCounts({str(name): int(counts["tokens"]) for name, counts in sources.items()})

    def readme_path(self, metrics: Report) -> str | None:
        return f"{metrics['packing']['folder']}/README.md" if "packing" in metrics else None

    def readme(self, metrics: Report, shared: Report, record: Report) -> str:
        return card_of_shards(metrics["packing"], shared, record)

    def counted(self, docs: pa.Table) -> pa.Table:
        """Documents and tokens of each source, copies counted; how many of them have a place; and a sum that is of what
        is packed, in any order."""
        copies, tokens = copies_of(docs), docs["tokens"].to_numpy().astype(np.int64)
        content = mixed_all(
            docs["uid"].to_numpy() ^ mixed_all(tokens.astype(np.uint64) << np.uint64(16) | copies.astype(np.uint64))
        ) >> np.uint64(24)
        rows = {
            "cell": self.cell_of(docs),
            "source": docs["source"].cast(pa.string()),
            "tokens": tokens * copies,
            "documents": copies,
            "ordered": copies if "bucket" in docs.column_names else np.zeros(len(docs), np.int64),
            "content": content.astype(np.int64),
            "key": np.zeros(len(docs), np.uint64),
        }
        return self.summed([pa.table(rows)])

    def summed(self, tables: list[pa.Table]) -> pa.Table:
        names = ["tokens", "documents", "ordered", "content"]
        rows = pa.concat_tables([table.select(["cell", "source", *names, "key"]) for table in tables])
        rows = rows.group_by(["cell", "source"]).aggregate([*((name, "sum") for name in names), ("key", "min")])
        return rows.rename_columns({**{f"{name}_sum": name for name in names}, "key_min": "key"})

    def meta(self, tokenizer: dict[str, Any], length: int, content: Any) -> ShardMeta:
        settings = self.model_dump(mode="json", exclude={"name", "row_length", "license", "by"})
        return ShardMeta(
            tokenizer=tokenizer["name"],
            tokenizer_hash=tokenizer["hash"],
            vocab_size=tokenizer["vocab_size"],
            row_length=length,
            pad_id=tokenizer["pad_id"],
            bos_id=tokenizer["bos_id"],
            eos_id=tokenizer["eos_id"],
            packer=self.packer,
            seed=self.seed,
            fingerprint=xxhash.xxh3_128_hexdigest(
                json.dumps([settings, length, tokenizer["hash"], content], sort_keys=True).encode()
            ),
        )

    def spread(self, docs: pa.Table) -> pa.Table:
        """A row for each copy of each document, with its place in training."""
        copies, uid = copies_of(docs), docs["uid"].to_numpy()
        document = np.repeat(np.arange(len(docs)), copies)
        copy = np.arange(len(document)) - np.repeat(np.cumsum(copies) - copies, copies)
        ordered = "places" in docs.column_names
        taken = docs.select(
            [name for name in ("uid", "source", "token_ids", "bucket", "difficulty") if name in docs.column_names]
        ).take(pa.array(document))
        rows = {
            "cell": self.cell_of(docs).take(pa.array(document)),
            "place": pc.list_flatten(docs["places"])
            if ordered
            else pa.array(copy_keys(uid[document], copy, self.seed)),
            "segment": pc.list_flatten(docs["segments"]) if ordered else pa.array(np.zeros(len(document), np.uint16)),
            "uid": taken["uid"],
            "copy": pa.array(copy.astype(np.uint16)),
            "source": taken["source"].cast(pa.string()),
            "ids": taken["token_ids"],
            "bucket": taken["bucket"] if ordered else pa.array(np.full(len(document), UNKNOWN_BUCKET, np.int16)),
            "difficulty": taken["difficulty"] if ordered else pa.nulls(len(document), pa.float32()),
        }
        return pa.table(rows)

    def packed(self, rows: pa.Table, beside: pa.Table) -> list[Published]:
        """One window, cell by cell, packed into rows of each length."""
        facts_of_sets = [json.loads(text) for text in beside["facts"].to_pylist()]
        published = []
        for cell in dict.fromkeys(facts["cell"] for facts in facts_of_sets):
            own = [facts for facts in facts_of_sets if facts["cell"] == cell]
            rows_of_cell = rows if cell is None else rows.filter(pc.equal(rows["cell"], cell))
            published += self.packed_cell(rows_of_cell, own) if len(rows_of_cell) else []
        return published

    def packed_cell(self, rows: pa.Table, facts_of_sets: list[dict[str, Any]]) -> list[Published]:
        place, uid, copy = (rows[name].to_numpy() for name in ("place", "uid", "copy"))
        rows = rows.take(pa.array(np.lexsort((copy, uid, place)))).combine_chunks()
        segment = rows["segment"].to_numpy()
        bounds = np.append(np.flatnonzero(begins_run(segment)), len(rows))
        documents = documents_of(rows, dtype_of(facts_of_sets[0]["meta"]["vocab_size"]), facts_of_sets[0]["sources"])
        lengths = np.diff(documents.offsets)
        published = []
        for facts in facts_of_sets:
            meta = ShardMeta.from_facts(facts["meta"], "beside")
            packed = self.laid(lengths, meta.row_length, bounds)
            packed = shuffled(
                packed,
                segment,
                mixed_all(rows["place"].to_numpy() ^ mixed_all(np.array([self.seed], np.uint64) + SHUFFLE)),
            )
            table = shard_table(meta, facts["sources"], documents, packed)
            of_row = segment[packed.document[np.flatnonzero(begins_run(packed.row))]]
            begins = np.flatnonzero(begins_run(of_row))
            published.append(
                Published(
                    self.folder(meta.row_length, facts["cell"]),
                    table,
                    {
                        **shard_facts(table),
                        **({} if facts["cell"] is None else {"cell": facts["cell"]}),
                        "row_length": meta.row_length,
                        "segments": [[int(of_row[row]), int(row)] for row in begins],
                        "cut": int((lengths > meta.row_length).sum())
                        if self.packer != "concatenate"
                        else cut_pieces(packed),
                        "fewest_rows": fewest_rows(lengths, meta.row_length)
                        if self.packer != "concatenate"
                        else -(-int(lengths.sum()) // meta.row_length),
                        "document_lengths": np.bincount(np.minimum(np.frexp(lengths)[1], 31), minlength=32).tolist(),
                    },
                )
            )
        return published

    def laid(self, lengths: Array, row_length: int, bounds: Array) -> Packed:
        if self.packer == "best_fit":
            return best_fit(lengths, row_length, bounds)
        pieces, row = [], 0
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):  # segments never share a row
            part = (concatenate if self.packer == "concatenate" else one_each)(lengths[first:last], row_length)
            pieces.append(part._replace(row=part.row + row, document=part.document + first))
            row += part.rows
        return Packed(
            row=np.concatenate([part.row for part in pieces]),
            offset=np.concatenate([part.offset for part in pieces]),
            document=np.concatenate([part.document for part in pieces]),
            start=np.concatenate([part.start for part in pieces]),
            length=np.concatenate([part.length for part in pieces]),
            rows=row,
        )

    def finish(
        self, flow: Flow, meta: ShardMeta, shards: list[dict[str, Any]], cell: str | None, tokens: int, documents: int
    ) -> None:
        """The index, and the tokenizer beside it. No token and no document may be lost or come twice."""
        first_rows = np.append(0, np.cumsum([shard["rows"] for shard in shards]))
        segments = [
            (number, int(first_rows[i]) + row) for i, shard in enumerate(shards) for number, row in shard["segments"]
        ]
        begins = [row for i, (number, row) in enumerate(segments) if i == 0 or number != segments[i - 1][0]]
        listed = [{**shard, "path": shard["path"].rsplit("/", 1)[1]} for shard in shards]
        index = index_of(meta, listed, begins)
        if (index["tokens"], index["documents"]) != (tokens, documents):
            raise CannotRun(
                f"{tokens:,} tokens of {documents:,} documents were handed over, and {index['tokens']:,} of "
                f"{index['documents']:,} are in rows of "
                f"{meta.row_length:,}: a fault of packing"
            )
        folder = self.folder(meta.row_length, cell)
        flow.run.leave(f"{folder}/tokenizer/tokenizer.json", flow.run.shared("tokenizer_json"))
        flow.run.leave(f"{folder}/tokenizer/tokenizer_config.json", said_of(flow.run.shared("tokenizer")))
        flow.run.leave(f"{folder}/index.json", json.dumps(index, indent=1) + "\n")

    def account(
        self, by_set: dict[tuple[str | None, int], list[dict[str, Any]]], metas: dict[tuple[str | None, int], ShardMeta]
    ) -> dict[str, Any]:
        """What the report says of each set."""
        sets, top = [], folder_of_sets(self.called)
        for (cell, length), own_shards in by_set.items():
            counted = ("rows", "tokens", "padding", "documents", "pieces", "cut", "fewest_rows", "bytes")
            sets.append(
                {
                    "row_length": length,
                    **({} if cell is None else {"cell": cell}),
                    "path": f"{self.folder(length, cell).removeprefix(f'{top}/')}/*.arrow",
                    "packer": self.packer,
                    "seed": self.seed,
                    "fingerprint": metas[cell, length].fingerprint,
                    "shards": len(own_shards),
                    "fill": round(
                        sum(shard["tokens"] for shard in own_shards)
                        / (sum(shard["rows"] for shard in own_shards) * length),
                        6,
                    ),
                    **{name: sum(shard[name] for shard in own_shards) for name in counted},
                }
            )
        lengths = np.sum(
            [s["document_lengths"] for (_, n), own in by_set.items() if n == self.lengths[0] for s in own], axis=0
        ).tolist()
        return {
            "folder": top,
            "sets": sets,
            "document_lengths": lengths,
            "license": self.license,
        }


def counts_of(given: pa.Table) -> dict[str, dict[str, int]]:
    """Documents and tokens of each source, over all cells."""
    rows = given.group_by("source").aggregate([("documents", "sum"), ("tokens", "sum")]).sort_by("source").to_pylist()
    return {row["source"]: {"documents": row["documents_sum"], "tokens": row["tokens_sum"]} for row in rows}


def said_of(tokenizer: dict[str, Any]) -> str:
    """Which of its tokens begins and ends a text and pads, as transformers and our own `tokenize` read it: a
    tokenizer.json does not say."""
    specials = {
        name: tokenizer[name] for name in ("bos_token", "eos_token", "pad_token") if tokenizer.get(name) is not None
    }
    return json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **specials}, indent=1, ensure_ascii=False) + "\n"


def documents_of(rows: pa.Table, dtype: np.dtype[Any], sources: list[str]) -> Documents:
    ids = rows["ids"].combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    offsets = np.frombuffer(ids.buffers()[1], np.int64)[ids.offset : ids.offset + len(ids) + 1]
    data = np.frombuffer(ids.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Documents(
        tokens=data.view(dtype),
        offsets=(offsets - offsets[0]) // dtype.itemsize,
        uid=rows["uid"].to_numpy(),
        source=pc.index_in(rows["source"], value_set=pa.array(sources, pa.string())).to_numpy(),
        bucket=rows["bucket"].to_numpy(),
        difficulty=pc.fill_null(rows["difficulty"], float("nan")).to_numpy(),
    )


def shuffled(packed: Packed, segment: Array, keys: Array) -> Packed:
    """Rows of a segment in the order of a key of the piece that begins each: where order means nothing, it is by
    chance."""
    first = np.flatnonzero(begins_run(packed.row))
    document = packed.document[first]
    order = np.lexsort(
        (mixed_all(np.bitwise_xor(keys[document], packed.start[first].astype(np.uint64))), segment[document])
    )
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    row = number[packed.row]
    order_of_pieces = np.argsort(row, kind="stable")
    return Packed(
        row[order_of_pieces],
        packed.offset[order_of_pieces],
        packed.document[order_of_pieces],
        packed.start[order_of_pieces],
        packed.length[order_of_pieces],
        packed.rows,
    )


def cut_pieces(packed: Packed) -> int:
    """How many documents are in more than one piece."""
    _, pieces = np.unique(packed.document, return_counts=True)
    return int((pieces > 1).sum())
