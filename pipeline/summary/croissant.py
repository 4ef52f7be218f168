"""Metadata of what a run wrote in Croissant 1.0 (mlcommons.org/croissant), which dataset search engines and
`mlcroissant` read. It lies at the top of the run's folder: paths in it are relative."""

from __future__ import annotations

import pyarrow as pa

from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.summary.content import Content
from gristmill.pipeline.summary.points import PublicSummary

NAMES = (
    "citeAs", "column", "conformsTo", "data", "dataType", "equivalentProperty", "examples", "extract", "field",
    "fileObject", "fileProperty", "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5",
    "parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
)  # fmt: skip
CONTEXT: dict[str, object] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{name: f"cr:{name}" for name in NAMES},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}


def croissant_of(
    summary: PublicSummary, content: Content, schema: pa.Schema, license: str | None, version: str
) -> dict[str, object]:
    """`schema` is that of the files; `license` that of the data set, where somebody stated it."""
    name = one_line(summary.name)
    whole = content.whole
    what = f"{whole.documents:,} documents, {whole.text_bytes:,} bytes of text, written by Gristmill {version}."
    fields = [field_of(column.name, kind) for column in schema if (kind := kind_of(column.type)) is not None]
    facts = {point.title: point.status for point in summary.points}
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": what,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "license": one_line(license or "unknown"),
        "url": "report.html",
        "version": "1.0.0",
        "datePublished": str(summary.run["finished"])[:10],
        "citeAs": f"{name}, {str(summary.run['finished'])[:10]}",
        "creator": {"@type": "sc:Organization", "name": "not stated"},
        "keywords": ["pretraining", "text", "gristmill"],
        "rai:dataCollection": "; ".join(f"{title}: {status}" for title, status in facts.items()),
        "distribution": [
            {
                "@type": "cr:FileSet",
                "@id": "parquet-files",
                "name": "parquet-files",
                "description": f"{len(content.files):,} Parquet files",
                "encodingFormat": "application/x-parquet",
                "includes": f"{content.sink}/*.parquet",
            }
        ],
        "recordSet": [{"@type": "cr:RecordSet", "@id": "documents", "name": "documents", "field": fields}],
    }


def field_of(column: str, kind: str) -> dict[str, object]:
    source = {"fileSet": {"@id": "parquet-files"}, "extract": {"column": column}}
    path = f"documents/{column}"
    return {"@type": "cr:Field", "@id": path, "name": path, "dataType": kind, "source": source}


def kind_of(column: pa.DataType) -> str | None:
    """None: of lists and the like there is nothing to say in Croissant's words."""
    if pa.types.is_string(column) or pa.types.is_large_string(column) or pa.types.is_dictionary(column):
        return "sc:Text"
    if pa.types.is_boolean(column):
        return "sc:Boolean"
    return "sc:Integer" if pa.types.is_integer(column) else "sc:Float" if pa.types.is_floating(column) else None
