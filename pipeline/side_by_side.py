"""What was extracted from a few pages, beside all that they show: read again from the inputs, for the report and `inspect`.

Only pages that came through extraction are shown, so that nothing is parsed here that broke a worker before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.inputs import InputFile, open_input
from pipeline.parts import Documents, Part, read_part
from pipeline.plan import Leg
from pipeline.store import Store
from stages.extract.engine import compare
from stages.stage import Origin, Reader

PAGES = 3
CHARACTERS = 3000
LARGEST_PAGE = 2 << 20  # bytes of markup; the report is for eyes


def pages_of(leg: Leg, documents: Documents, files: Mapping[str, InputFile], store: Store) -> list[dict[str, Any]]:
    """A few pages of the first part of a leg that reads: url, uid, what was extracted, and all that is visible."""
    part = next((p for p in documents.parts if p["rows"] and p["leg"] == leg.name), None)
    if leg.source is None or part is None:
        return []
    first = first_rows(store, part)
    span = part["inputs"][0]
    file = files.get(span["path"])
    if first is None or file is None:
        return []
    extracted = {row["uid"]: row for row in first.to_pylist()}
    origin = Origin(leg.source.name, span["path"], file.size, span["start"], span["end"])
    with open_input(file.address) as stream:
        reading = next(cast(Reader, leg.source.reader.stage).read(stream, origin), None)
    if reading is None or "html" not in reading.documents.schema.names:
        return []
    pages = reading.documents
    rows = [i for i, uid in enumerate(pages.column("uid").to_pylist()) if uid in extracted]
    shown = []
    for row in sorted(rows, key=lambda i: int(pages.column("uid")[i].as_py())):
        html = pages.column("html")[row].as_py()
        if html is None or len(html) > LARGEST_PAGE:
            continue
        known = extracted[pages.column("uid")[row].as_py()]
        _, visible = compare(html, known["url"], pages.column("charset")[row].as_py())
        shown.append(
            {
                "uid": f"{known['uid']:016x}",
                "url": known["url"],
                "extracted": (known["text"] or "")[:CHARACTERS],
                "visible": visible[:CHARACTERS],
                "extracted_characters": len(known["text"] or ""),
                "visible_characters": len(visible),
            }
        )
        if len(shown) == PAGES:
            break
    return shown


def first_rows(store: Store, part: Part) -> pa.RecordBatch | None:
    """Documents of a part; where a leg only writes for others, as they were written."""
    columns = ["uid", "url", "text"]
    if part["documents"] is not None:
        return next(iter(read_part(store, part, columns)), None)
    for path in part.get("sinks", {}).values():
        with store.open(path) as file:
            written = pq.ParquetFile(file)
            if set(columns) <= set(written.schema_arrow.names):
                return next(written.iter_batches(columns=columns), None)
    return None
