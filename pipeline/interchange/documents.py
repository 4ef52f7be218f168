"""Documents of a run, or any folder of Parquet files with a text, in the formats of other tools (docs/export.md).

A row is a document, read batch by batch. Files are named by their order, so the same documents give the same bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.kernels.common.files import whole_folder
from gristmill.pipeline.interchange.signatures import write_datasketch, write_datatrove_minhash
from gristmill.pipeline.store.storage import Store
from gristmill.shards.export.export import Exported, Options, Progress
from gristmill.shards.export.rows import ExportError

AT_ONCE = 1000  # rows of a batch
TAR_BYTES = 1 << 28
BASE = ("text", "id", "url", "date", "source", "uid", "meta")  # columns of `write` that are no signals


class Document(NamedTuple):
    key: str  # the uid, 16 hexadecimal digits; without one, file and row
    row: dict[str, Any]

    @property
    def signals(self) -> dict[str, Any]:
        return {name: value for name, value in self.row.items() if name not in BASE and value is not None}

    @property
    def facts(self) -> dict[str, Any]:
        """All but the text and the signals; `meta` as what it holds."""
        facts = {name: self.row[name] for name in ("url", "date", "source", "id") if self.row.get(name) is not None}
        meta = self.row.get("meta")
        return facts | ({"meta": plain_meta(meta)} if meta else {})


class Format(NamedTuple):
    write: Callable[[list[Path], Path, Options, Callable[[int], None]], int]
    options: frozenset[str]
    opens_with: str


def files_in(folder: str) -> list[Path]:
    """The Parquet files of a run's sink, or of a folder that is one."""
    top = Path(folder)
    if "://" in folder:
        raise ExportError(f"{folder}: documents are read from a local folder; copy them here first")
    if (top / "run.json").is_file():
        stages = (Store(folder).read_json("run.json") or {}).get("stages", [])
        sinks = [top / stage["name"] for stage in stages if stage["kind"] == "sink"]
        there = [sink for sink in sinks if any(sink.glob("*.parquet"))]
        if len(there) != 1:
            named = ", ".join(map(str, there)) or "none; end the recipe in `write`"
            raise ExportError(f"{folder}: name the folder of one sink ({named})")
        top = there[0]
    files = sorted(top.glob("*.parquet"))
    if not files:
        raise ExportError(f"{folder}: no Parquet files are in it; name a run, or a folder that `write` made")
    for path in files:
        try:
            check_text(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise ExportError(f"{path}: no whole Parquet file ({str(error).strip()})") from error
    return files


def check_text(path: Path) -> None:
    schema = pq.read_schema(path)
    if "text" not in schema.names:
        raise ExportError(f"{path}: it has no column `text`")
    kind = values_of(schema.field("text").type)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise ExportError(f"{path}: the column `text` is {kind}; strings were expected")


def check_uid(path: Path) -> None:
    """Keys are made of it, if it is there."""
    schema = pq.read_schema(path)
    kind = values_of(schema.field("uid").type) if "uid" in schema.names else pa.uint64()
    if not pa.types.is_integer(kind) and not (pa.types.is_decimal(kind) and kind.scale == 0):  # as Spark has uint64
        raise ExportError(
            f"{path}: the column `uid` is {kind}; whole numbers were expected. "
            "Rename it, to `id` say; documents without a uid are numbered"
        )


def values_of(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def export_documents(
    folder: str, to: str, destination: Path, options: Options, progress: Progress = lambda done, rows: None
) -> Exported:
    if destination.is_file() or (destination.is_dir() and any(destination.iterdir())):
        raise ExportError(f"{destination}: not empty; name a new or empty folder")
    kind, files = FORMATS[to], files_in(folder)
    rows = sum(pq.read_metadata(path).num_rows for path in files)
    with whole_folder(destination) as draft:
        items = kind.write(files, draft, options, lambda done: progress(done, rows))
        size = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
    return Exported(destination, items, size, kind.opens_with.format(str(destination)))


def documents(path: Path, number: int) -> Iterator[Document]:
    check_uid(path)
    row_number = 0
    with pq.ParquetFile(path) as file:
        for batch in _batches(file, path):
            for row in without_arrays(batch).to_pylist():
                uid = row.get("uid")
                key = f"{number:06}-{row_number:08}" if uid is None else f"{int(uid) % 2**64:016x}"
                yield Document(key, row)
                row_number += 1


def _batches(file: pq.ParquetFile, path: Path) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(AT_ONCE)
    except (OSError, pa.ArrowInvalid) as error:
        raise ExportError(f"{path}: damaged ({str(error).strip()}); nothing was written") from error


def without_arrays(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without vectors and packed numbers, such as the ids of tokens. `meta` stays if it has names for what it holds."""
    return batch.select([field.name for field in batch.schema if not is_array(field)])


def is_array(field: pa.Field[Any]) -> bool:
    kind = field.type
    if field.name == "meta" and (pa.types.is_struct(kind) or pa.types.is_map(kind)):
        return False
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def plain_meta(meta: Any) -> Any:
    """What a text holds as JSON; one that is no JSON as it is. A map comes from Arrow as pairs."""
    if not isinstance(meta, str):
        return dict(meta) if isinstance(meta, list) else meta
    try:
        return json.loads(meta)
    except (ValueError, RecursionError):
        return meta


def write_dolma(files: list[Path], folder: Path, options: Options, progress: Callable[[int], None]) -> int:
    """`documents/` and, line by line beside them, signals in `attributes/gristmill/`. A label is the name of an
    attribute with the score 1, as Dolma's taggers write one."""
    done = 0
    for number, path in enumerate(files):
        with (
            lines_to(folder / "documents" / f"{number:05}.jsonl.gz") as texts,
            lines_to(folder / "attributes" / "gristmill" / f"{number:05}.jsonl.gz") as attributes,
        ):
            for document in documents(path, number):
                text, facts = document.row["text"] or "", document.facts
                source = facts.pop("source", "gristmill")
                line = {"id": document.key, "text": text, "source": source}
                line |= {"created": facts.pop("date")} if "date" in facts else {}
                texts.write(as_line(line | {"metadata": facts}))
                scores = (scored(name, value) for name, value in document.signals.items())
                spans = {
                    f"gristmill__gristmill__{name}": [[0, len(text), score]]
                    for name, score in scores
                    if score is not None
                }
                attributes.write(as_line({"id": document.key, "source": source, "attributes": spans}))
                done += 1
        progress(done)
    return done


def scored(name: str, value: Any) -> tuple[str, float | None]:
    if isinstance(value, str):
        return f"{name}__{value}", 1.0
    number = float(value) if isinstance(value, int | float) else math.nan
    return name, number if math.isfinite(number) else None


def write_webdataset(files: list[Path], folder: Path, options: Options, progress: Callable[[int], None]) -> int:
    """Tar files of samples: `KEY.txt`, and `KEY.json` with everything else. A file ends at `shard_bytes`."""
    most, done, tars = options.shard_bytes or TAR_BYTES, 0, 0
    samples = (document for number, path in enumerate(files) for document in documents(path, number))
    document = next(samples, None)
    while document is not None:
        with tarfile.open(folder / f"documents-{tars:06}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            while document is not None and tar.offset <= most:
                facts = as_line(document.facts | document.signals).encode()
                for suffix, content in (("json", facts), ("txt", (document.row["text"] or "").encode())):
                    member = tarfile.TarInfo(f"{document.key}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                document = next(samples, None)
                done += 1
        tars += 1
        progress(done)
    return done


def lines_to(path: Path) -> IO[str]:
    """A gzip file without a time in it, so that equal lines give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = gzip.GzipFile(filename="", fileobj=path.open("wb"), mode="wb", compresslevel=6, mtime=0)
    return io.TextIOWrapper(packed, encoding="utf-8")


def as_line(facts: dict[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False, default=str) + "\n"


FORMATS = {
    "dolma": Format(write_dolma, frozenset(), "dolma mix, with documents {0}/documents/*"),
    "webdataset": Format(
        write_webdataset,
        frozenset({"shard_bytes"}),
        "webdataset.WebDataset(sorted(glob('{0}/*.tar')), shardshuffle=False)",
    ),
    "datasketch": Format(write_datasketch, frozenset(), "LeanMinHash.deserialize, row by row of {0}/*.parquet"),
    "datatrove-minhash": Format(write_datatrove_minhash, frozenset(), "MinhashDedupBuckets(input_folder={0!r}, ...)"),
}
