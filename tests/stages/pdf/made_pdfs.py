"""PDF files of a few lines, written by hand: text where a test wants it, pictures, and files that mean harm."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

Text = tuple[float, float, float, str]  # left, baseline, size, what it says

FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
PICTURE = (
    b"<< /Type /XObject /Subtype /Image /Width 8 /Height 8 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 64 >>\n"
    b"stream\n" + bytes(range(0, 256, 4)) + b"\nendstream"
)
WORDS = [
    "the",
    "mill",
    "grinds",
    "corn",
    "that",
    "farmers",
    "bring",
    "from",
    "fields",
    "beyond",
    "river",
    "and",
    "hill",
    "while",
    "its",
    "wheel",
    "turns",
    "slowly",
    "under",
    "water",
    "which",
    "falls",
    "from",
    "a",
    "wooden",
    "channel",
    "above",
    "and",
    "people",
    "wait",
    "with",
    "sacks",
    "until",
    "flour",
    "is",
    "ready",
    "to",
    "be",
    "carried",
    "home",
]


def objects_to_pdf(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """A file of numbered objects, the first of which is its catalogue."""
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    return data + head + table + b"trailer << /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF" % (
        len(objects) + 1, trailer, len(data),
    )  # fmt: skip


def stream(content: bytes, extra: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n" % (len(content), extra) + content + b"\nendstream"


def drawn(texts: Sequence[Text]) -> bytes:
    parts = []
    for left, base, size, text in texts:
        escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)").encode("cp1252")
        parts.append(b"BT /F1 %g Tf 1 0 0 1 %g %g Tm (%s) Tj ET" % (size, left, base, escaped))
    return b"\n".join(parts)


def pdf(
    pages: Sequence[Sequence[Text] | bytes],
    info: bytes = b"",
    font: bytes = FONT,
    rotate: int = 0,
    trailer: bytes = b"",
) -> bytes:
    """Pages of A4, each texts or a content stream of its own; /Im1 is a small grey picture."""
    first = 5
    kids = b" ".join(b"%d 0 R" % (first + 2 * i) for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(pages), kids),
        font,
        PICTURE,
    ]
    for i, page in enumerate(pages):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Rotate %d /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> /XObject << /Im1 4 0 R >> >> >>" % (rotate, first + 2 * i + 1)
        )
        objects.append(stream(page if isinstance(page, bytes) else drawn(page)))
    if info:
        objects.append(b"<< " + info + b" >>")
        trailer += b" /Info %d 0 R" % len(objects)
    return objects_to_pdf(objects, trailer)


def column(
    words: Sequence[str], left: float, top: float, width: int = 42, size: float = 10
) -> tuple[list[Text], float]:
    """Words in lines of so many letters, and where the next line would stand."""
    texts: list[Text] = []
    line = ""
    for word in [*words, ""]:
        if word and len(line) + len(word) < width:
            line = f"{line} {word}".strip()
            continue
        texts.append((left, top, size, line))
        line, top = word, top - 1.2 * size
    return texts, top


CLUSTER = re.compile(r"\w[^\w\s]*")  # a letter and its signs


def clustered(lines: Sequence[str], draws_spaces: bool) -> bytes:
    """Words as browsers print those of India: of each cluster an object for each of its two signs, in marked content
    that says its text. Spaces are gaps, or objects; then every third cluster has its second sign behind the next."""
    parts = []
    for number, line in enumerate(lines):
        left, base = 60.0, 700.0 - 20 * number
        for word in line.split(" "):
            for place, cluster in enumerate(CLUSTER.findall(word)):
                text = cluster.encode("utf-16-be").hex().upper().encode()
                second = left + 9.4 + 20 * (draws_spaces and place % 3 == 2)
                signs = b"".join(
                    b"BT /F1 10 Tf 1 0 0 1 %g %g Tm (W) Tj ET " % (x, base) for x in (left, second)
                )  # "W" is 9.4 wide
                parts.append(b"/Span <</ActualText <FEFF%s>>> BDC %s EMC" % (text, signs))
                left += 18.8
            if draws_spaces:
                parts.append(b"BT /F1 10 Tf 1 0 0 1 %g %g Tm ( ) Tj ET" % (left, base))
            left += 2.8 if draws_spaces else 6
    return b"\n".join(parts)


def prose(count: int, start: int = 0) -> list[str]:
    return [WORDS[(start + i * i) % len(WORDS)] for i in range(count)]


SCAN = b"q 595 0 0 842 0 0 cm /Im1 Do Q"
GARBLED = "qzxwr jklmn bcdfg hjklp tvw " * 20  # what a font with a wrong table of its letters gives


def hostile() -> dict[str, tuple[bytes, str]]:
    """Files that mean harm, and the reason that each is told by ("" where its text may come through all the same)."""
    endless = b"<< /Type /Pages /Count 1000000000 /Kids [%s] >>"
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> /XObject << /X 6 0 R >> >> >>"
    bomb = zlib.compress(zlib.compress(b"0 " * (60 << 20), 1), 1)
    forms = [stream(b"/X Do " * 40, b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >>" % (7 + i)) for i in range(8)]  # fmt: skip
    many = b"BT /F1 9 Tf " + b"(mill) Tj 1 0 0 1 3 3 Tm " * 60_000 + b"ET"
    locked = pdf(
        [[(72, 700, 10, "a secret")]],
        trailer=b"/ID [<00><00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32 + b"> >>",
    )  # fmt: skip
    whole = pdf([[(72, 700, 10, "a few words")]])
    return {
        "no file at all": (b"%PDF-1.7\n" + bytes(range(256)) * 40, "pdf_damaged"),
        "only a header": (b"%PDF-1.4", "pdf_damaged"),
        "a wrong table": (whole.replace(b"xref", b"xxxx").replace(b"obj", b"obx"), "pdf_damaged"),
        "locked": (locked, "pdf_encrypted"),
        "a page tree in a circle": (objects_to_pdf([catalog, endless % b"2 0 R"]), "pdf_damaged"),
        "a billion pages that are not there": (objects_to_pdf([catalog, endless % b"9 0 R"]), "pdf_damaged"),
        "a bomb in two layers": (
            objects_to_pdf([catalog, b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", page, stream(bomb, b"/Filter [/FlateDecode /FlateDecode]"), FONT]),
            "pdf_too_large",
        ),
        "an endless stream of idle operators": (
            objects_to_pdf([catalog, b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", page, stream(zlib.compress(b"q Q " * (4 << 20), 1), b"/Filter /FlateDecode"), FONT]),
            "pdf_too_slow",
        ),
        "forms that hold forms": (
            objects_to_pdf([catalog, b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", page, stream(b"/X Do " * 40), FONT, *forms, stream(b"BT /F1 9 Tf (a) Tj ET", b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /Font << /F1 5 0 R >> >>")]),
            "pdf_too_slow",
        ),
        "too many letters": (objects_to_pdf([catalog, b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>", page, stream(many), FONT]), ""),
        "numbers beyond all": (pdf([b"BT /F1 1e38 Tf 1e38 0 0 -1e38 1e38 1e38 Tm (mill) Tj ET"]), ""),
        "a size that is none": (whole.replace(b"[0 0 595 842]", b"[0 0 -1e9 NaN]"), ""),
        "a script": (
            whole.replace(b"/Pages 2 0 R", b"/Pages 2 0 R /OpenAction << /S /JavaScript /JS (app.launchURL\\('http://127.0.0.1'\\)) >>"),
            "",
        ),
    }  # fmt: skip
