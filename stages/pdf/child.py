"""The process that opens PDF files: a script that loads PDFium once and forks for each file, so that a hostile file
costs its fork and nothing else.

It speaks numbers over its pipes and nothing that can be run. A request is `REQUEST`, page numbers, the file; a reply is
`REPLY` and what the fork wrote. Limits are set in the fork before PDFium sees a byte: address space, output, processor
time (a timer that counts it; RLIMIT_CPU, of whole seconds, behind it) and time by the clock.

It imports nothing of Gristmill: it starts as a file, in 0.1 s, isolated from the environment. Its argument is the
folder that holds pypdfium2, which may be one that PYTHONPATH names.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

READ, RENDER = 0, 1
# kind; seconds of processor and clock; bytes of memory; most pages; longest side in pixels; page numbers; bytes of file
REQUEST = struct.Struct("<IddQIIIQ")
REPLY = struct.Struct("<iQdQ")  # wait status; peak memory in bytes; seconds of processor; bytes that follow
OPENED, ENCRYPTED, DAMAGED, NO_MEMORY = range(4)
HEAD = struct.Struct("<III")  # how it opened; pages it has; pages that follow
# width, height; characters; sampled, of these unmapped; objects; image share, rotation; whether spaces are the file's
PAGE = struct.Struct("<ffIIIIffI")
PICTURE = struct.Struct("<IQ")  # page number; bytes of its PNG
FACTS = ("Title", "Author", "Subject", "Keywords", "Creator", "Producer", "CreationDate")
FEW = 400  # characters: a page with fewer is looked at for pictures
MOST_OBJECTS = 5_000  # of a page, that are looked at
MOST_CHARACTERS = 200_000  # of a page
CLUSTERED = range(0x900, 0x1000)  # letters of scripts of India, Thai, Lao and Tibetan, which join to clusters
MOST_CLUSTERED = 5  # a page is read by its objects where one letter in so many is such
LETTERS_A_SPACE = 100  # at most, where a page's spaces are taken from its objects alone
BLANK = 0.01  # points: an object of text that is no wider shows nothing
SAMPLES = 64  # characters of a page of which it is asked whether their code has a meaning
MOST_OUTPUT = 1 << 30
PASSWORD_ERROR = 4  # FPDF_ERR_PASSWORD; FPDF_ERR_SECURITY is 5
PIXELS = 64 << 20


def main() -> None:
    """Serve until the pipe closes."""
    sys.path.append(sys.argv[1])
    import pypdfium2.raw as pdfium

    die_with_parent()
    pdfium.FPDF_InitLibrary()
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    silence()
    while header := requests.read(REQUEST.size):
        kind, processor, clock, memory, most, side, count, size = REQUEST.unpack(header)
        numbers = array("I", requests.read(4 * count)).tolist()
        data = requests.read(size)
        output = os.memfd_create("pages")
        fork = os.fork()
        if not fork:
            code = 1
            try:
                limit(processor, clock, memory)
                with os.fdopen(output, "wb", buffering=1 << 20) as file:
                    if kind == READ:
                        read(pdfium, data, most, file)
                    else:
                        render(pdfium, data, numbers, side, file)
                code = 0
            except MemoryError:
                code = NO_MEMORY
            finally:
                os._exit(code)
        _, status, usage = os.wait4(fork, 0)
        length = os.fstat(output).st_size
        replies.write(REPLY.pack(status, usage.ru_maxrss << 10, usage.ru_utime + usage.ru_stime, length))
        os.lseek(output, 0, os.SEEK_SET)
        with os.fdopen(output, "rb") as file:
            while part := file.read(1 << 20):
                replies.write(part)
        replies.flush()


def die_with_parent() -> None:
    """A worker that is killed leaves no process behind."""
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def silence() -> None:
    """Nothing that a file makes PDFium say reaches a pipe or a terminal."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)


def limit(processor: float, clock: float, memory: int) -> None:
    die_with_parent()
    for name in ("SIGPROF", "SIGALRM", "SIGXCPU"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_OUTPUT, MOST_OUTPUT))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    seconds = int(processor) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    signal.setitimer(signal.ITIMER_PROF, processor)
    signal.setitimer(signal.ITIMER_REAL, clock)


def opened(pdfium: Any, data: bytes, file: BinaryIO) -> Any:
    """The document, or None, with the reason written."""
    document = pdfium.FPDF_LoadMemDocument64(data, len(data), None)
    if document:
        return document
    locked = pdfium.FPDF_GetLastError() in (PASSWORD_ERROR, PASSWORD_ERROR + 1)
    file.write(HEAD.pack(ENCRYPTED if locked else DAMAGED, 0, 0))
    return None


def read(pdfium: Any, data: bytes, most: int, file: BinaryIO) -> None:
    """Write what a file says of itself, and the characters of its first pages."""
    document = opened(pdfium, data, file)
    if document is None:
        return
    pages = max(0, pdfium.FPDF_GetPageCount(document))
    count = min(pages, most)
    file.write(HEAD.pack(OPENED, pages, count))
    for name in FACTS:
        text = fact(pdfium, document, name)
        file.write(struct.pack("<I", len(text)) + text)
    for number in range(count):
        page = pdfium.FPDF_LoadPage(document, number)
        if page:
            read_page(pdfium, page, file)
            pdfium.FPDF_ClosePage(page)
        else:
            file.write(PAGE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))


def fact(pdfium: Any, document: Any, name: str) -> bytes:
    size = pdfium.FPDF_GetMetaText(document, name.encode(), None, 0)
    if not 2 < size < 1 << 16:
        return b""
    buffer = ctypes.create_string_buffer(size)
    pdfium.FPDF_GetMetaText(document, name.encode(), buffer, size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace").encode("utf-8", "replace")


def read_page(pdfium: Any, page: Any, file: BinaryIO) -> None:
    """Of each character its code, the box of its advance and its font's height, where it stands on its line, and its
    angle (asked for where a word begins)."""
    text = pdfium.FPDFText_LoadPage(page)
    count = min(max(0, pdfium.FPDFText_CountChars(text)), MOST_CHARACTERS) if text else 0
    unicode_of: Callable[[Any, int], int] = pdfium.FPDFText_GetUnicode
    codes = array("I", [unicode_of(text, i) for i in range(count)])
    boxes = (pdfium.FS_RECTF * count)()
    places = (ctypes.c_double * (2 * count))()
    angles = array("f", bytes(4 * count))
    box_of, place_of, angle_of = by_address(pdfium)
    handle, box, place = ctypes.cast(text, ctypes.c_void_p).value, ctypes.addressof(boxes), ctypes.addressof(places)
    angle, inside = 0.0, False
    for i in range(count):
        if codes[i] <= 32:
            inside = False
            continue
        box_of(handle, i, box + 16 * i)
        place_of(handle, i, place + 16 * i, place + 16 * i + 8)
        if not inside:
            angle, inside = angle_of(handle, i), True
        angles[i] = angle
    step = max(1, count // SAMPLES)
    sampled = [i for i in range(0, count, step) if codes[i] > 32]
    unmapped = sum(pdfium.FPDFText_HasUnicodeMapError(text, i) == 1 for i in sampled)
    objects, share = look(pdfium, page) if count < FEW else (0, 0.0)
    turned = float(max(0, pdfium.FPDFPage_GetRotation(page)))
    width, height = pdfium.FPDF_GetPageWidthF(page), pdfium.FPDF_GetPageHeightF(page)
    columns: list[Any] = [codes, array("f", bytes(boxes)), array("f", places), angles]
    own_spaces = False
    if MOST_CLUSTERED * sum(code in CLUSTERED for code in codes) > count:
        columns, own_spaces = by_objects(pdfium, page, text, columns)
    file.write(PAGE.pack(width, height, len(columns[0]), len(sampled), unmapped, objects, share, turned, own_spaces))
    for column in columns:
        file.write(column.tobytes())
    if text:
        pdfium.FPDFText_ClosePage(text)


class Drawn:
    """The objects of a page that draw text, by their number in the file's order."""

    def __init__(self, pdfium: Any, page: Any) -> None:
        self.number: dict[int, int] = {}  # by address
        self.span: list[int] = []  # the marked content with a text of its own that an object is in; 0: none
        self.spaces = [0]  # objects before this one that show nothing
        self.sides: dict[int, tuple[float, float]] = {}  # left and right of a span
        has_text: dict[int, bool] = {}
        bounds, size = [ctypes.c_float() for _ in range(4)], ctypes.c_ulong()
        for number in range(max(0, pdfium.FPDFPage_CountObjects(page))):
            item = pdfium.FPDFPage_GetObject(page, number)
            shows, span = True, 0
            if pdfium.FPDFPageObj_GetType(item) == pdfium.FPDF_PAGEOBJ_TEXT:
                marks = pdfium.FPDFPageObj_CountMarks(item)
                mark: Any = pdfium.FPDFPageObj_GetMark(item, marks - 1) if marks > 0 else None
                address = ctypes.cast(mark, ctypes.c_void_p).value or 0
                if address and address not in has_text:
                    has_text[address] = bool(
                        pdfium.FPDFPageObjMark_GetParamStringValue(mark, b"ActualText", None, 0, ctypes.byref(size))
                    )
                span = address if address and has_text[address] else 0
                if pdfium.FPDFPageObj_GetBounds(item, *map(ctypes.byref, bounds)):
                    left, _, right, _ = (value.value for value in bounds)
                    shows = right - left > BLANK or span > 0
                    if span:
                        before = self.sides.get(span, (left, right))
                        self.sides[span] = min(left, before[0]), max(right, before[1])
                self.number[ctypes.cast(item, ctypes.c_void_p).value or 0] = number
            self.span.append(span)
            self.spaces.append(self.spaces[-1] + (not shows))


def by_objects(pdfium: Any, page: Any, text: Any, columns: list[Any]) -> tuple[list[Any], bool]:
    """Characters with the spaces that the file draws, if it draws as many as a text needs, and whether it does.

    PDFium leaves out objects that are nothing but a space, makes spaces of its own where it sees a gap, and gives the
    letters of a cluster that has a text of its own (/ActualText) the width of its first sign, so that the rest of it
    looks like a gap; and the cluster comes again where another sign of it stands behind the next letter.
    """
    drawn = Drawn(pdfium, page)
    codes, boxes, places, angles = columns
    kept: list[Any] = [array("I"), array("f"), array("f"), array("f")]
    given: dict[int, int] = {}  # the object with which a span's text came
    made = [pdfium.FPDFText_IsGenerated(text, i) == 1 for i in range(len(codes))]
    spaces = drawn.spaces[-1] + sum(code == 32 and not by_pdfium for code, by_pdfium in zip(codes, made, strict=True))
    own_spaces = LETTERS_A_SPACE * spaces > len(codes)
    before = -1
    for i, code in enumerate(codes):
        if made[i] and code == 32 and own_spaces:
            continue
        item: Any = None if made[i] else pdfium.FPDFText_GetTextObject(text, i)
        number = drawn.number.get(ctypes.cast(item, ctypes.c_void_p).value or 0, -1)
        box = boxes[4 * i : 4 * i + 4]
        if number >= 0:
            span = drawn.span[number]
            if span and given.setdefault(span, number) != number:
                continue
            if span:
                box[0], box[2] = drawn.sides[span]
            if own_spaces and 0 <= before < number and drawn.spaces[number] > drawn.spaces[before]:
                for column, width in zip(kept, (1, 4, 2, 1), strict=True):
                    column.extend([32 if column.typecode == "I" else 0] * width)
            before = number
        kept[0].append(code)
        kept[1].extend(box)
        kept[2].extend(places[2 * i : 2 * i + 2])
        kept[3].append(angles[i])
    return kept, own_spaces


def by_address(pdfium: Any) -> list[Callable[..., Any]]:
    """Functions of a character that take handles and places to write to as numbers: half the time of a call."""
    address = ctypes.c_void_p
    functions = (pdfium.FPDFText_GetLooseCharBox, pdfium.FPDFText_GetCharOrigin, pdfium.FPDFText_GetCharAngle)
    for function, places in zip(functions, (1, 2, 0), strict=True):
        function.argtypes = [address, ctypes.c_int, *[address] * places]
    return list(functions)


def look(pdfium: Any, page: Any) -> tuple[int, float]:
    """How many objects a page has, and how much of it pictures cover."""
    count = max(0, pdfium.FPDFPage_CountObjects(page))
    area = pdfium.FPDF_GetPageWidthF(page) * pdfium.FPDF_GetPageHeightF(page)
    covered, bounds = 0.0, [ctypes.c_float() for _ in range(4)]
    for i in range(min(count, MOST_OBJECTS)):
        item = pdfium.FPDFPage_GetObject(page, i)
        if pdfium.FPDFPageObj_GetType(item) not in (pdfium.FPDF_PAGEOBJ_IMAGE, pdfium.FPDF_PAGEOBJ_FORM):
            continue
        if pdfium.FPDFPageObj_GetBounds(item, *map(ctypes.byref, bounds)):
            left, bottom, right, top = (value.value for value in bounds)
            covered += max(0.0, right - left) * max(0.0, top - bottom)
    return count, covered / area if area > 0 else 0.0


def render(pdfium: Any, data: bytes, numbers: Sequence[int], side: int, file: BinaryIO) -> None:
    """Write a grey PNG of each page that is asked for, its longest side of so many pixels."""
    document = opened(pdfium, data, file)
    if document is None:
        return
    file.write(HEAD.pack(OPENED, max(0, pdfium.FPDF_GetPageCount(document)), len(numbers)))
    for number in numbers:
        page = pdfium.FPDF_LoadPage(document, number)
        picture = drawn(pdfium, page, side) if page else b""
        file.write(PICTURE.pack(number, len(picture)) + picture)
        if page:
            pdfium.FPDF_ClosePage(page)


def drawn(pdfium: Any, page: Any, side: int) -> bytes:
    width, height = pdfium.FPDF_GetPageWidthF(page), pdfium.FPDF_GetPageHeightF(page)
    if not (width > 0 and height > 0):
        return b""
    scale = side / max(width, height)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    if columns * rows > PIXELS:
        return b""
    bitmap = pdfium.FPDFBitmap_CreateEx(columns, rows, pdfium.FPDFBitmap_Gray, None, 0)
    if not bitmap:
        raise MemoryError
    pdfium.FPDFBitmap_FillRect(bitmap, 0, 0, columns, rows, 0xFFFFFFFF)
    pdfium.FPDF_RenderPageBitmap(bitmap, page, 0, 0, columns, rows, 0, pdfium.FPDF_ANNOT)
    stride = pdfium.FPDFBitmap_GetStride(bitmap)
    pixels = ctypes.string_at(pdfium.FPDFBitmap_GetBuffer(bitmap), stride * rows)
    pdfium.FPDFBitmap_Destroy(bitmap)
    return png(columns, rows, b"".join(b"\0" + pixels[y * stride : y * stride + columns] for y in range(rows)))


def png(columns: int, rows: int, lines: bytes) -> bytes:
    """A grey picture of 8 bits; `lines` has a byte of filter (0: none) before each row."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines, 6)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


if __name__ == "__main__":
    main()
