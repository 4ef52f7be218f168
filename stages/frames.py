"""Tables of other libraries as Arrow tables and back: pandas, polars, Hugging Face datasets, lists of dictionaries.

None of these libraries is imported unless a table of it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

Back = Callable[[pa.Table], Any]
ROW = "__row__"
TAKEN = "an Arrow table or batch, a pandas or polars frame, a Hugging Face dataset, or a list of dictionaries"


def as_arrow(data: Any, numbered: bool = False, views: bool = False) -> tuple[pa.Table, Back]:
    """The data as an Arrow table, and what makes the caller's kind of a table again. `numbered`: the rows of a pandas
    frame have a column `ROW`, by which they get their labels back. `views`: texts of a polars frame are string views,
    which are not copied."""
    if isinstance(data, pa.Table):
        return data, lambda table: table
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]), lambda table: table
    library, name = type(data).__module__.partition(".")[0], type(data).__name__
    if library == "pandas" and name == "DataFrame":
        return _of_pandas(data, numbered)
    if library == "polars" and name in ("DataFrame", "LazyFrame"):
        return _of_polars(data, views)
    if library == "datasets" and name == "Dataset":
        return _of_datasets(data)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes) and all(isinstance(row, dict) for row in data):
        return _of_dictionaries(data), lambda table: table.to_pylist()
    several = " of one split: dataset['train']" if library == "datasets" else ""
    raise TypeError(f"{TAKEN} was expected{several}, not {type(data).__name__}")


def _of_dictionaries(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Columns are those of all rows; a row is null where it has none."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: as_column([row.get(name) for row in rows]) for name in names})


def as_column(values: Sequence[Any], from_pandas: bool = False) -> pa.Array:
    """As Arrow infers it; whole numbers past int64, as half of all uids are, are uint64."""
    try:
        return pa.array(values, from_pandas=from_pandas)
    except OverflowError:
        return pa.array(values, pa.uint64(), from_pandas=from_pandas)


def names_in(columns: Iterable[str]) -> str:
    """As a message lists a table's columns."""
    return ", ".join(name for name in columns if name != ROW)


def _of_pandas(frame: Any, numbered: bool) -> tuple[pa.Table, Back]:
    """Levels of the index that have names are columns too, unless rows get their labels back."""
    if not numbered:
        named = [name for name in frame.index.names if name is not None and name not in frame.columns]
        frame = frame.reset_index(level=named) if named else frame
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    if not numbered or ROW in table.column_names:
        return table, lambda kept: kept.to_pandas()
    return table.append_column(ROW, pa.array(range(len(table)), pa.int64())), lambda kept: _labelled(kept, frame.index)


def _labelled(kept: pa.Table, index: Any) -> Any:
    if ROW not in kept.column_names or kept[ROW].null_count:
        return kept.to_pandas()
    frame = kept.drop_columns([ROW]).to_pandas()
    frame.index = index.take(kept[ROW].to_numpy())
    return frame


def _of_polars(data: Any, views: bool) -> tuple[pa.Table, Back]:
    import polars

    frame = data.collect() if isinstance(data, polars.LazyFrame) else data
    level = polars.CompatLevel.newest() if views else polars.CompatLevel.oldest()
    return frame.to_arrow(compat_level=level), lambda table: polars.from_arrow(table)


def _of_datasets(data: Any) -> tuple[pa.Table, Back]:
    from datasets import Dataset

    return data.with_format("arrow")[:], lambda table: Dataset(table.replace_schema_metadata())
