"""Documents become rows and shards: nothing lost, nothing twice, and nothing hangs on parts, batches or the order of
rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill.kernels.common.settings import SettingsError
from gristmill.stages.blend.order import Order
from gristmill.stages.stage import CannotRun
from gristmill.stages.tokens.folders import owner_of_set
from gristmill.stages.tokens.pack import Pack
from tests.stages.scattered import Scattered

TOKENIZER = {"name": "bytes", "hash": "0" * 64, "vocab_size": 300, "bos_id": None, "eos_id": 256, "pad_id": 256}
SCHEMA = pa.schema(
    [
        ("uid", pa.uint64()), ("source", pa.string()), ("text", pa.string()), ("token_ids", pa.large_binary()), ("tokens", pa.int32()),
        ("copies", pa.uint16()), ("hard", pa.float64()),
    ]
)  # fmt: skip


def made(count: int, seed: int = 0, longest: int = 90, copies: int = 3) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    rows = []
    for uid in (chance.getrandbits(63) for _ in range(count)):
        ids = np.array([chance.randrange(256) for _ in range(chance.randint(0, longest))] + [256], np.uint16)
        rows.append(
            {
                "uid": uid, "source": chance.choice(["web", "code", "books"]), "text": "", "token_ids": ids.tobytes(), "tokens": len(ids),
                "copies": chance.randint(1, copies), "hard": chance.choice([None, 0.5, chance.random()]),
            }
        )  # fmt: skip
    return rows


def packed(rows: list[dict[str, Any]], pack: Pack, order: Order | None = None, seed: int = 0) -> Scattered:
    flow = Scattered(seed)
    docs: Any = flow.parts(pa.Table.from_pylist(rows, schema=SCHEMA))
    if order is not None:
        docs = order.run(docs, flow)
    flow.run.share("tokenizer", TOKENIZER)
    flow.run.share("tokenizer_json", "{}")
    pack.run(docs, flow)
    return flow


def documents(flow: Scattered, folder: str) -> Counter[tuple[int, bytes]]:
    """The documents that rows hold, put together again."""
    pieces: dict[tuple[int, int], list[bytes]] = {}
    for path, table in sorted(flow.published.items()):
        if not path.startswith(f"{folder}/shard-"):
            continue
        for row in table.to_pylist():
            ids, at = np.array(row["input_ids"], np.uint16), 0
            for uid, length, chunk in zip(row["doc_uids"], row["seq_lens"], row["chunk"], strict=True):
                pieces.setdefault((uid, chunk), []).append(ids[at : at + length].tobytes())
                at += length
            assert (ids[at:] == TOKENIZER["pad_id"]).all()
    found: Counter[tuple[int, bytes]] = Counter()
    for (uid, chunk), first in pieces.items():
        if chunk == 0:
            for copy in range(len(first)):
                parts, number = [], 0
                while (uid, number) in pieces and copy < len(pieces[uid, number]):
                    parts.append(pieces[uid, number][copy])
                    number += 1
                found[uid, b"".join(parts)] += 1
    return found


@pytest.mark.parametrize("packer", ["best_fit", "concatenate", "one_each"])
@pytest.mark.parametrize("schedule", [None, "random", "ascending", "anneal"])
def test_every_token_of_every_copy_is_in_one_row(packer, schedule):
    rows = made(300)
    order = Order(by="hard", schedule=schedule, resolution=8) if schedule else None
    flow = packed(rows, Pack(row_length=[32, 64], packer=packer, window_tokens=2048), order)
    wanted = Counter({(row["uid"], row["token_ids"]): row["copies"] for row in rows})
    assert flow.metrics["packing"]["windows"] > 4
    for length in (32, 64):
        if packer != "concatenate":  # whose pieces are not of one length: chunks of two copies cannot be told apart
            assert documents(flow, f"shards/{length}") == wanted
        index = json.loads(flow.left[f"shards/{length}/index.json"])
        assert index["tokens"] == sum(row["tokens"] * row["copies"] for row in rows)
        assert index["documents"] == sum(row["copies"] for row in rows)


def test_shards_do_not_hang_on_parts_batches_or_the_order_of_rows():
    rows = made(200)
    order, pack = (
        Order(by="hard", schedule={"interleaved": {"passes": 3}}, within=["source"]),
        Pack(row_length=64, window_tokens=4096),
    )
    first = packed(rows, pack, order)
    assert len(first.published) > 2
    for seed in range(1, 6):
        again = packed(rows, pack, order, seed)
        assert again.left == first.left
        assert {path: table.to_pylist() for path, table in again.published.items()} == {
            p: t.to_pylist() for p, t in first.published.items()
        }


def test_a_document_that_fits_is_never_cut_and_long_ones_are_counted():
    rows = made(200, longest=200)
    flow = packed(rows, Pack(row_length=64))
    cut = {(row["uid"]) for row in rows if row["tokens"] > 64}
    pieces = [
        (uid, chunk)
        for table in flow.published.values()
        for row in table.to_pylist()
        for uid, chunk in zip(row["doc_uids"], row["chunk"], strict=True)
    ]
    assert {uid for uid, chunk in pieces if chunk} == cut and len(cut) > 20
    told = flow.metrics["packing"]["sets"][0]
    assert told["cut"] == sum(row["copies"] for row in rows if row["uid"] in cut)
    assert told["fill"] == pytest.approx(1 - told["padding"] / (told["rows"] * 64), abs=1e-6)
    assert told["rows"] >= told["fewest_rows"]


def test_rows_never_cross_a_segment_and_segments_keep_their_order():
    rows = [row | {"hard": row["hard"] or 0.1} for row in made(400)]
    flow = packed(
        rows, Pack(row_length=64, window_tokens=4096), Order(by="hard", schedule={"stages": {"stages": 5}}, buckets=5)
    )
    hard = {row["uid"]: row["hard"] for row in rows}
    index = json.loads(flow.left["shards/64/index.json"])
    table = pa.concat_tables([table for _, table in sorted(flow.published.items())])
    assert len(index["segments"]) == 5 and index["rows"] == len(table)
    bounds = [*index["segments"], len(table)]
    ranges = []
    for a, b in pairwise(bounds):
        inside = [hard[uid] for uids in table["doc_uids"].slice(a, b - a).to_pylist() for uid in uids]
        ranges.append((min(inside), max(inside)))
    assert all(a[1] <= b[0] for a, b in pairwise(ranges))
    stage = np.searchsorted(index["segments"], np.arange(len(table)), side="right") - 1
    assert table["bucket"].to_pylist() == stage.tolist()


def test_without_an_order_rows_are_shuffled():
    rows = made(2000, copies=1)
    flow = packed(rows, Pack(row_length=64))
    table = next(iter(flow.published.values()))
    first = np.array([uids[0] for uids in table["doc_uids"].to_pylist()], np.float64)
    assert abs(np.corrcoef(np.arange(len(first)), first)[0, 1]) < 0.1
    many = np.array([len(uids) for uids in table["doc_uids"].to_pylist()], np.float64)
    assert abs(np.corrcoef(np.arange(len(many)), many)[0, 1]) < 0.1


def test_another_seed_is_another_order():
    rows = made(1500, copies=1)
    places = []
    for pack, order in [
        (Pack(row_length=64, seed=0), None),
        (Pack(row_length=64, seed=1), None),
        (Pack(row_length=64), Order(seed=3)),
        (Pack(row_length=64), Order(seed=4)),
    ]:
        table = next(iter(packed(rows, pack, order).published.values()))
        places.append({uid: at for at, uids in enumerate(table["doc_uids"].to_pylist()) for uid in uids})
    for a, b in [(0, 1), (2, 3)]:
        both = np.array([(places[a][uid], places[b][uid]) for uid in places[a]], np.float64)
        assert abs(np.corrcoef(both.T)[0, 1]) < 0.1


def test_a_seed_has_64_bits():
    for stage in (Pack, Order):
        with pytest.raises(SettingsError, match="seed"):
            stage(seed=2**64)
    rows = made(50)
    assert packed(rows, Pack(row_length=64, seed=2**64 - 1), Order(seed=2**64 - 1)).published


@pytest.mark.parametrize("lost", ["tokens", "documents"])
def test_what_was_handed_over_and_is_in_no_row_ends_the_run(lost, monkeypatch):
    publish = Scattered.publish

    def loses(flow, function, rows, *, broadcast=None):
        first, *others = publish(flow, function, rows, broadcast=broadcast)
        return [first | {lost: first[lost] - 1}, *others]

    monkeypatch.setattr(Scattered, "publish", loses)
    with pytest.raises(CannotRun, match="a fault of packing"):
        packed(made(50), Pack(row_length=64))


def test_other_documents_are_another_fingerprint():
    prints = {
        json.loads(packed(made(50, seed), Pack(row_length=64)).left["shards/64/index.json"])["meta"]["fingerprint"]
        for seed in (0, 1, 2)
    }
    assert len(prints) == 3


def test_places_of_some_documents_alone_are_refused():
    flow = Scattered(0)
    rows = made(40)
    ordered = Order(by="hard", schedule="ascending").run(
        flow.parts(pa.Table.from_pylist(rows[:20], schema=SCHEMA)), flow
    )
    late = flow.parts(pa.Table.from_pylist(rows[20:], schema=SCHEMA))
    joined = type(late)([table for _, table in [*ordered.tables, *late.tables]])
    flow.run.share("tokenizer", TOKENIZER)
    flow.run.share("tokenizer_json", "{}")
    with pytest.raises(CannotRun, match="let it join before `order`"):
        Pack(row_length=64).run(joined, flow)


def test_what_is_missing_is_said():
    flow = Scattered(0)
    with pytest.raises(CannotRun, match="put `tokenize` before it"):
        Pack().run(flow.parts(pa.Table.from_pylist(made(3), schema=SCHEMA)), flow)
    with pytest.raises(ValueError, match="lengths from 16"):
        Pack(row_length=[2048, 2048])
    with pytest.raises(ValueError, match="window_tokens 4,096 is less than a row of 8,192"):
        Pack(row_length=[512, 8192], window_tokens=4096)


def test_cells_become_sets_of_their_own_and_hold_all_that_is_packed():
    rows = [row | {"source": row["source"] + ("/x" if k % 3 == 0 else "")} for k, row in enumerate(made(200))]
    pack = Pack(row_length=[32, 64], window_tokens=2048, by=["source"])
    flow = packed(rows, pack)
    cells = json.loads(flow.left["shards/cells.json"])
    assert cells["by"] == ["source"] and {*cells["cells"]} == {row["source"] for row in rows}
    assert len({*cells["cells"].values()}) == 6
    for cell, folder in cells["cells"].items():
        of_cell = [row for row in rows if row["source"] == cell]
        for length in (32, 64):
            path = f"shards/{folder}/{length}"
            assert documents(flow, path) == Counter({(row["uid"], row["token_ids"]): row["copies"] for row in of_cell})
            index = json.loads(flow.left[f"{path}/index.json"])
            assert index["tokens"] == sum(row["tokens"] * row["copies"] for row in of_cell)
            assert owner_of_set(f"{path}/index.json") == "pack"
    packing = flow.metrics["packing"]
    assert len(packing["sets"]) == 12 and {of["cell"] for of in packing["sets"]} == {*cells["cells"]}
    assert sum(of["tokens"] for of in packing["sets"] if of["row_length"] == 64) == packing["tokens"]
    fingerprints = [of["fingerprint"] for of in packing["sets"]]
    assert len({*fingerprints}) == 12
    again = packed(rows, pack, seed=5)
    assert [of["fingerprint"] for of in again.metrics["packing"]["sets"]] == fingerprints
    assert {*again.published} == {*flow.published}
    assert owner_of_set("shards/cells.json") == "pack" and owner_of_set("shards/mine/a-b/64/index.json") is None
