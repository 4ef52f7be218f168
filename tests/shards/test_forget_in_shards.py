"""Documents taken out of token shards: what is left reads as before, row by row, and a call that is broken off is
finished by the next."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gristmill.kernels.common.files import whole_file
from gristmill.kernels.rows.pack import best_fit
from gristmill.shards import forget as forgetting
from gristmill.shards.forget import WAITING_INDEX, forget_in_set, held_in_set
from gristmill.shards.format import Documents, ShardMeta, shard_table
from gristmill.shards.index import NAME
from gristmill.shards.reader import open_shards
from gristmill.shards.verify import checksum_of, verify
from gristmill.shards.writer import index_of, shard_facts, write_shard

META = ShardMeta("t", "", 1000, 32, 7, None, 1, "best_fit", 0, "f")


def make_set(folder: Path, shards: int = 3, each: int = 40) -> dict[int, list[int]]:
    """A set of shards with documents of 1 to 80 tokens, some of them cut; the tokens of each by uid."""
    rng = np.random.default_rng(3)
    entries, tokens_of = [], {}
    folder.mkdir(parents=True)
    for number in range(shards):
        lengths = rng.integers(1, 80, each)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tokens = rng.integers(8, 1000, int(offsets[-1])).astype(np.uint16)
        uid = (np.arange(each) + 1 + number * each).astype(np.uint64)
        documents = Documents(
            tokens, offsets, uid, np.arange(each) % 2, np.zeros(each, np.int16), np.full(each, 0.5, np.float32)
        )
        table = shard_table(META, ["a", "b"], documents, best_fit(lengths, META.row_length, np.array([0, each])))
        path = folder / f"shard-{number:05d}.arrow"
        with whole_file(path) as file:
            write_shard(file, table)
        facts = {"path": path.name, "bytes": path.stat().st_size, "checksum": checksum_of(path)}
        entries.append({**shard_facts(table), **facts})
        tokens_of |= {int(u): tokens[a:b].tolist() for u, a, b in zip(uid, offsets[:-1], offsets[1:], strict=True)}
    rows = entries[0]["rows"] - 6
    (folder / NAME).write_text(json.dumps(index_of(META, entries, [0, rows - 2, rows + 3])))
    return tokens_of


def read(folder: Path) -> dict[int, list[int]]:
    return {document.uid: document.tokens.tolist() for document in open_shards(folder).documents()}


def test_what_is_left_is_as_it_was(tmp_path: Path) -> None:
    tokens = make_set(tmp_path / "set")
    assert read(tmp_path / "set") == tokens and verify(tmp_path / "set") == []
    untouched = (tmp_path / "set/shard-00002.arrow").read_bytes()
    gone = np.array([1, 2, 3, 20, 41, 60], np.uint64)
    held = held_in_set(tmp_path / "set", gone)
    assert held.counts["documents"] == len(gone) and held.counts["tokens"] == sum(len(tokens[int(u)]) for u in gone)
    before = open_shards(tmp_path / "set").index
    assert forget_in_set(tmp_path / "set", gone) == ["shard-00000.arrow", "shard-00001.arrow"]
    assert read(tmp_path / "set") == {uid: ids for uid, ids in tokens.items() if uid not in gone.tolist()}
    assert verify(tmp_path / "set") == []
    assert (tmp_path / "set/shard-00002.arrow").read_bytes() == untouched
    after = open_shards(tmp_path / "set").index
    assert after.total("documents") == before.total("documents") - len(gone)
    assert after.total("tokens") == before.total("tokens") - held.counts["tokens"]
    assert len(after.segments) == 3 and after.segments[0] == 0 and after.segments < before.segments
    assert forget_in_set(tmp_path / "set", gone) == [] and not list((tmp_path / "set").glob(".*"))


def test_a_set_may_lose_all_its_documents(tmp_path: Path) -> None:
    tokens = make_set(tmp_path / "set", shards=1)
    forget_in_set(tmp_path / "set", np.array(sorted(tokens), np.uint64))
    assert read(tmp_path / "set") == {} and verify(tmp_path / "set") == []
    assert open_shards(tmp_path / "set").index.total("rows") == 0


@pytest.mark.parametrize("moment", ["before the index", "between the names"])
def test_a_call_that_was_broken_off_is_finished(tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_set(tmp_path / "set")
    gone = np.array([5, 45, 90], np.uint64)
    shutil.copytree(tmp_path / "set", tmp_path / "whole")
    forget_in_set(tmp_path / "whole", gone)
    if moment == "before the index":

        def broken(path: Path, content: bytes) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(forgetting, "write_whole", broken)
    else:
        real, calls = Path.replace, []

        def replaced(path: Path, target: Path) -> Path:
            calls.append(path)
            if path.name.endswith(".arrow.forget") and sum(p.name.endswith(".arrow.forget") for p in calls) == 2:
                raise KeyboardInterrupt
            return real(path, target)

        monkeypatch.setattr(Path, "replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        forget_in_set(tmp_path / "set", gone)
    monkeypatch.undo()
    assert (tmp_path / "set" / WAITING_INDEX).exists() == (moment == "between the names")
    forget_in_set(tmp_path / "set", gone)
    names = sorted(path.name for path in (tmp_path / "set").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert all((tmp_path / "set" / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)
