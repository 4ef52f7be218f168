"""The public summary as a Word document (Office Open XML): a zip file of five short XML files, always the same bytes
for the same summary. The format needs no more, so no package is needed to write it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence

from gristmill.pipeline.formatting import one_line
from gristmill.pipeline.summary.page import MOST, shown
from gristmill.pipeline.summary.points import DRAFT, LAW, NOT_VERIFIED, PublicSummary
from gristmill.stages.figures import Column

DATE = (1980, 1, 1, 0, 0, 0)  # of every file: a zip file has no earlier one
MAIN = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
KIND = "application/vnd.openxmlformats-officedocument.wordprocessingml"
NO_XML = re.compile(
    "[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]"
)  # characters that XML cannot hold
DECLARED = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'

TYPES = (
    f'{DECLARED}<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/word/document.xml" ContentType="{KIND}.document.main+xml"/>'
    f'<Override PartName="/word/styles.xml" ContentType="{KIND}.styles+xml"/></Types>'
)
TOP = (
    f'{DECLARED}<Relationships xmlns="{RELATIONS}"><Relationship Id="rId1" Type="{OFFICE}/officeDocument"'
    ' Target="word/document.xml"/></Relationships>'
)
BELOW = (
    f'{DECLARED}<Relationships xmlns="{RELATIONS}"><Relationship Id="rId1" Type="{OFFICE}/styles" Target="styles.xml"/>'
    "</Relationships>"
)
STYLES = (
    f'{DECLARED}<w:styles xmlns:w="{MAIN}"><w:docDefaults><w:rPrDefault><w:rPr><w:rFonts w:ascii="Calibri"'
    ' w:hAnsi="Calibri"/><w:sz w:val="20"/></w:rPr></w:rPrDefault><w:pPrDefault><w:pPr><w:spacing w:after="80"/>'
    "</w:pPr></w:pPrDefault></w:docDefaults>"
    '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/></w:style>'
    + "".join(
        f'<w:style w:type="paragraph" w:styleId="{name}"><w:name w:val="{called}"/><w:basedOn w:val="Normal"/>'
        f'<w:next w:val="Normal"/><w:pPr><w:keepNext/><w:spacing w:before="240" w:after="80"/>{level}</w:pPr>'
        f'<w:rPr><w:b/><w:sz w:val="{size}"/></w:rPr></w:style>'
        for name, called, size, level in (
            ("Title", "Title", 36, ""),
            ("Heading1", "heading 1", 28, '<w:outlineLvl w:val="0"/>'),
            ("Heading2", "heading 2", 22, '<w:outlineLvl w:val="1"/>'),
        )
    )
    + '<w:style w:type="table" w:styleId="TableGrid"><w:name w:val="Table Grid"/><w:tblPr><w:tblBorders>'
    + "".join(
        f'<w:{edge} w:val="single" w:sz="4" w:space="0" w:color="999999"/>'
        for edge in ("top", "left", "bottom", "right", "insideH", "insideV")
    )
    + "</w:tblBorders></w:tblPr></w:style></w:styles>"
)


def word_of(summary: PublicSummary) -> bytes:
    """The bytes of the .docx file."""
    body = "".join(blocks(summary))
    page = '<w:sectPr><w:pgSz w:w="11906" w:h="16838"/><w:pgMar w:top="1134" w:right="1134" w:bottom="1134"'
    page += ' w:left="1134" w:header="567" w:footer="567" w:gutter="0"/></w:sectPr>'
    document = f'{DECLARED}<w:document xmlns:w="{MAIN}"><w:body>{body}{page}</w:body></w:document>'
    files = {
        "[Content_Types].xml": TYPES,
        "_rels/.rels": TOP,
        "word/document.xml": document,
        "word/_rels/document.xml.rels": BELOW,
        "word/styles.xml": STYLES,
    }
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), text.encode("utf-8", "replace"), zipfile.ZIP_DEFLATED)
    return written.getvalue()


def blocks(summary: PublicSummary) -> Iterator[str]:
    yield paragraph(f"Public summary of training content: {summary.name}", "Title")
    yield paragraph(f"{LAW['act']}: {LAW['template']}; {LAW['applies']}.")
    yield paragraph(f"{DRAFT} What the run does not know is left empty and says “{NOT_VERIFIED}”.")
    yield grid([[name, shown(value)] for name, value in summary.run.items()])
    for point in summary.points:
        yield paragraph(f"{point.title} ({point.status})", "Heading1")
        if point.facts:
            yield grid([[name, NOT_VERIFIED if value is None else shown(value)] for name, value in point.facts])
        for note in point.notes:
            yield paragraph(note)
        for table in point.tables:
            if table.rows:
                first = table.first(MOST, "the JSON file")
                yield paragraph(first.title, "Heading2")
                yield grid(map(first.texts, first.rows), first.columns)


def paragraph(text: str, style: str = "", right: bool = False, bold: bool = False) -> str:
    looks = (f'<w:pStyle w:val="{style}"/>' if style else "") + ('<w:jc w:val="right"/>' if right else "")
    strong = "<w:rPr><w:b/></w:rPr>" if bold else ""
    return f'<w:p><w:pPr>{looks}</w:pPr><w:r>{strong}<w:t xml:space="preserve">{escaped(text)}</w:t></w:r></w:p>'


def grid(rows: Iterable[list[str]], columns: Sequence[Column] = (Column("", "text"), Column("", "text"))) -> str:
    """A table, with an empty paragraph behind it: Word joins tables that touch."""
    heads = [column.name for column in columns]
    lines = [line(heads, columns, bold=True)] if any(heads) else []
    lines += [line(row, columns) for row in rows]
    look = '<w:tblPr><w:tblStyle w:val="TableGrid"/><w:tblW w:w="0" w:type="auto"/></w:tblPr><w:tblGrid/>'
    return f"<w:tbl>{look}{''.join(lines)}</w:tbl>{paragraph('')}"


def line(row: Iterable[str], columns: Sequence[Column], bold: bool = False) -> str:
    pairs = zip(row, columns, strict=True)
    cells = (paragraph(text, right=column.kind != "text", bold=bold) for text, column in pairs)
    return "<w:tr>" + "".join(f"<w:tc><w:tcPr/>{cell}</w:tc>" for cell in cells) + "</w:tr>"


def escaped(text: str) -> str:
    """Text inside an element."""
    held = NO_XML.sub("", one_line(text))
    return held.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
