"""One compressed file that cannot be cut is one part, however large: it is read as a stream, in batches of the
documents that rows name, and gives what many parts give."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import zstandard

from gristmill.pipeline.shuffle import shuffle
from gristmill.pipeline.shuffle.shuffle import Shuffle
from tests.pipeline.engine.here import work_here
from tests.pipeline.runs import WORDS, go, save, written

RECIPE = """
name: r
parts: {{max_bytes: {bytes}, batch_bytes: 20000}}
sources: {{docs: {{jsonl: {{path: docs.jsonl.zst}}}}}}
stages: [minhash_dedup: {{threshold: 0.7}}, write]
"""


def text_of(folder: Path, frame: int) -> tuple[int, bytes]:
    """Documents of which a third are others with a word changed, packed in frames of so many documents."""
    chance = random.Random(3)
    texts: list[str] = []
    for number in range(900):
        if number % 3 == 2:
            words = chance.choice(texts).split()
            words[chance.randrange(len(words))] = "changed"
            texts.append(" ".join(words))
        else:
            texts.append(" ".join(chance.choice(WORDS) + str(chance.randrange(50)) for _ in range(60)))
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in texts]
    pack = zstandard.ZstdCompressor().compress
    packed = b"".join(pack(b"".join(lines[at : at + frame])) for at in range(0, len(lines), frame))
    (folder / "docs.jsonl.zst").write_bytes(packed)
    return len(packed), b"".join(lines)


def done(folder: Path, max_bytes: int) -> tuple[list[tuple[int, str]], int]:
    go(save(folder / "r.yaml", RECIPE.format(bytes=max_bytes)), folder / "out")
    parts = json.loads((folder / "out/partitions/docs/manifest.json").read_text())["parts"]
    return written(folder / "out"), len(parts)


def test_a_large_part_in_batches_is_the_file_in_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_here(monkeypatch)
    for name in ("split", "whole", "small"):
        (tmp_path / name).mkdir()
    size, _ = text_of(tmp_path / "split", 30)
    split, parts = done(tmp_path / "split", size // 10)
    assert parts > 5 and 600 <= len(split) < 900
    text_of(tmp_path / "whole", 900)
    whole, parts = done(tmp_path / "whole", size // 10)
    assert parts == 1 and whole == split
    monkeypatch.setattr(shuffle, "MOST_HELD", 10_000)
    monkeypatch.setattr("gristmill.stages.documents.BATCH_ROWS", 50)
    monkeypatch.setattr("gristmill.pipeline.store.partitions.BATCH_ROWS", 50)
    calls: list[int] = []
    files: list[int] = []
    given, made = shuffle.with_documents, Shuffle.results
    monkeypatch.setattr(shuffle, "with_documents", lambda *some: (calls.append(len(some[2])), given(*some))[1])

    def counted(flow: Shuffle, tasks: list) -> list:  # type: ignore[type-arg]
        results = made(flow, tasks)
        files.extend(len(result.files) for result in results)
        return results

    monkeypatch.setattr(Shuffle, "results", counted)
    text_of(tmp_path / "small", 900)
    small, parts = done(tmp_path / "small", size // 10)
    assert parts == 1 and small == split
    assert len(calls) > 20 and max(files) > 5
