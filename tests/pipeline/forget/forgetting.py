"""A small run with duplicates, near duplicates, rejects, an index for later runs, a judge's training set and shards;
and what of its documents is still found in a folder."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from gristmill.pipeline.forget.request import read_request
from gristmill.pipeline.forget.takedown import forget
from gristmill.shards.documents import documents_of
from gristmill.shards.reader import open_shards
from gristmill.stages.documents import uid_of
from tests.pipeline.runs import go, save

ROW_LENGTH = 64
RECIPE = f"""\
name: r
sources:
  a: {{jsonl: {{path: in/a}}}}
  b: {{jsonl: {{path: in/b}}}}
stages:
  - gopher_quality: {{min_words: 12, min_stop_words: null, min_alphabetic_word_share: null}}
  - exact_dedup: {{save_index: index/exact}}
  - minhash_dedup: {{threshold: 0.7}}
  - write
  - tokenize: {{vocab_size: 400}}
  - pack: {{row_length: {ROW_LENGTH}, window_tokens: 2048}}
"""
FILES, EACH = 2, 24
PASSAGE = 32  # bytes


def words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=rng.randint(3, 9))) for _ in range(count))


def make_inputs(folder: Path, each: int) -> None:
    """Of every 24 documents of a file the first is short, and drops out; number 3 has an exact copy in the next file,
    number 4 a near one, and number 5 an address in its text."""
    rng = random.Random(5)
    for source in "ab":
        before: list[str] = []
        for number in range(FILES):
            texts = [f"{words(rng, rng.randint(40, 80) if i % EACH else 5)}." for i in range(each)]
            texts[5] += f" Write to someone.{source}{number}@mail.example for more."
            if before:
                texts += before[3::EACH] + [f"{text} and one word more" for text in before[4::EACH]]
            before = texts
            path = folder / source / f"{number}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [
                {"text": text, "url": f"https://{source}{i % 4}.example/{number}/{i}"} for i, text in enumerate(texts)
            ]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_run(folder: Path, each: int = EACH) -> Path:
    """The folder of a finished run, `out`, beside its recipe and inputs, with a table that a judge was taught with."""
    make_inputs(folder / "in", each)
    go(save(folder / "r.yaml", RECIPE), folder / "out")
    rows = documents(folder / "out")[::7]
    taught = folder / "out/judge-texts"
    taught.mkdir()
    pq.write_table(
        pa.table({"text": [row["text"][:200] for row in rows], "label": ["good"] * len(rows)}), taught / "a.parquet"
    )
    (taught / "b.jsonl").write_text("".join(json.dumps({"text": row["text"], "label": 1}) + "\n" for row in rows))
    return folder / "out"  # fmt: skip


def documents(out: Path, folder: str = "write", signals: Sequence[str] = ()) -> list[dict[str, Any]]:
    paths, columns = sorted((out / folder).rglob("*.parquet")), ["uid", "url", "text", *signals]
    rows = pa.concat_tables([pq.read_table(path, columns=columns) for path in paths]).to_pylist()
    return sorted(rows, key=lambda row: row["uid"])


def contents(out: Path, skipped: Iterable[str] = ()) -> dict[str, bytes]:
    """All that can be read in a folder, by file: columns unpacked, tokens decoded."""
    found = {}
    files = sorted(out.rglob("*"))
    tokenizer = next((Tokenizer.from_file(str(path)) for path in files if path.name == "tokenizer.json"), None)
    for path in files:
        name = path.relative_to(out).as_posix()
        if not path.is_file() or any(name.startswith(prefix) for prefix in skipped):
            continue
        found[name] = content_of(path, tokenizer)
    return found


def content_of(path: Path, tokenizer: Tokenizer | None) -> bytes:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        ids = [
            name
            for name in ("input_ids", "tokens")
            if name in table.column_names and pa.types.is_list(table.schema.field(name).type)
        ]
        return decoded(tokenizer, [row for name in ids for row in table[name].to_pylist()]) if ids else said(table)
    if path.suffix == ".arrow":
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
        if "input_ids" not in table.column_names:
            return said(table)
        shards = open_shards(path.parent)
        number = [entry.path for entry in shards.index.shards].index(path.name)
        documents = [document.tokens.tolist() for document in documents_of(shards.shard(number).batches)]
        return decoded(tokenizer, [*documents, *table["input_ids"].to_pylist()])
    if path.suffix in (".bin", ".mds") and tokenizer is not None:
        data = path.read_bytes()
        halves = [np.frombuffer(data[skip:][: (len(data) - skip) // 2 * 2], np.uint16) for skip in (0, 1)]
        known = [half[half < tokenizer.get_vocab_size()] for half in halves]
        # Some at a time, for a long list takes the package long; they overlap by more than a stretch.
        return (
            decoded(tokenizer, [ids[i : i + 1100].tolist() for ids in known for i in range(0, len(ids), 1000)]) + data
        )
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        data += data.decode(errors="replace").encode().decode("unicode_escape", errors="replace").encode()
    return data


def decoded(tokenizer: Tokenizer | None, ids: list[list[int]]) -> bytes:
    assert tokenizer is not None
    return "\0".join(tokenizer.decode_batch(ids)).encode()


def said(table: pa.Table) -> bytes:
    cells = []
    for column in table.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_string(column.type):
            cells += [cell if isinstance(cell, bytes) else cell.encode() for cell in column.to_pylist() if cell]
    return b"\0".join(cells)


def windows(texts: Iterable[str]) -> set[bytes]:
    """All stretches of 32 bytes."""
    return {data[i : i + PASSAGE] for data in (text.encode() for text in texts) for i in range(len(data) - PASSAGE + 1)}


def places(found: dict[str, bytes], passages: set[bytes]) -> dict[str, int]:
    """How often some passages stand in each file, of those in which any does."""
    counts = {
        name: sum(data[i : i + PASSAGE] in passages for i in range(len(data) - PASSAGE + 1))
        for name, data in found.items()
    }
    return {name: count for name, count in counts.items() if count}


def tokens_of(out: Path) -> dict[int, list[int]]:
    """Of each document in the shards its tokens."""
    shards = open_shards(out / f"shards/{ROW_LENGTH}")
    return {document.uid: np.asarray(document.tokens).tolist() for document in shards.documents()}


def ask(out: Path, *lines: str, **how: bool) -> dict[str, Any]:
    return forget(str(out), read_request(save(out.parent / "ids.txt", "\n".join(lines))), **how)


def inputs_without(inputs: Path, to: Path, uids: set[int]) -> int:
    """Copy JSON lines with blanks in place of some documents, so that all others keep their places; says how many."""
    blanked = 0
    for path in sorted(inputs.rglob("*.jsonl")):
        lines, place = [], 0
        for line in path.read_bytes().splitlines(keepends=True):
            goes = uid_of(path.parent.name, path.name, place) in uids
            lines.append(b" " * (len(line) - 1) + b"\n" if goes else line)
            place += len(line)
            blanked += goes
        (to / path.parent.name).mkdir(parents=True, exist_ok=True)
        (to / path.parent.name / path.name).write_bytes(b"".join(lines))
    return blanked


def results(folder: Path) -> dict[str, bytes]:
    """Outputs, rejects of all stages but readers, and saved indexes, byte for byte; rejects and documents between stages
    by part, for their names have a hash of the inputs."""
    found = {}
    for path in sorted([*(folder / "out").rglob("*"), *(folder / "index").rglob("*")]):
        name = path.relative_to(folder).as_posix()
        if name.startswith(("out/write/", "out/shards/", "index/")) or "/rejects/" in name:
            if path.is_file() and path.name != "README.md" and not name.startswith(("out/stages/a/", "out/stages/b/")):
                found[re.sub(r"(/rejects/[^.]*)[.]\w+", r"\1", name)] = path.read_bytes()
        elif name.startswith("out/partitions/") and name.endswith(".documents.parquet"):
            found[f"{path.parent.name}/{path.name.split('.')[0]}"] = path.read_bytes()
    return found
