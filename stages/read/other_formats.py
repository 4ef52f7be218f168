"""What a file holds that is not what its reader reads, by its first bytes: a table, an archive, something packed in
another way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gristmill.stages.read.members import PROBE, Codec, Damaged, Window

UNPACK = "unpack it first, or pack it as gzip or zstd"
PDF = (rb"%PDF-\d", "PDF", "read it with `pdf`")
OTHERS = (
    (rb"WARC/[01]\.", "WARC", "read it with `warc`"),
    (rb"filedesc:", "ARC", "read it with `warc`"),
    (rb"PAR1[^ -~]", "Parquet", "read it with `parquet`"),
    (rb"ARROW1\0", "Arrow", "read it with `arrow`"),
    (rb"BZh[1-9]1AY&SY", "bzip2", UNPACK),
    (rb"\xfd7zXZ\0", "xz", UNPACK),
    (rb"\x04\x22M\x18", "lz4", UNPACK),
    (rb"PK\x03\x04", "a zip archive", UNPACK),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (rb"\x1f\x8b\x08|\x28\xb5\x2f\xfd", "something packed twice", UNPACK),
    PDF,
)
# What text may well begin with, but a row of JSON lines never does.
NO_ROWS = (
    (rb"\s*\[\s*\{", "a JSON array", "write one object a line (jq -c '.[]')"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16", "write it as UTF-8"),
    (rb"(?i:\s*<(?:!doctype\s+)?html\b)", "HTML", "read it with `html`"),
)


def other_format(
    window: Window, codec: Codec | None, wanted: str, others: Sequence[tuple[bytes, str, str]] = OTHERS
) -> str | None:
    """What to say of a file that begins, unpacked, as one of another format does; `wanted` is what its reader reads."""
    try:
        head = window.exact(0, PROBE) if codec is None else codec.open(window, 0).probe()
    except Damaged:
        head = window.exact(0, PROBE)
        if codec and head.startswith(codec.magic):
            return None
    return next(
        (
            f"it holds {name} and no {wanted}; {what_to_do}"
            for first, name, what_to_do in others
            if re.match(first, head)
        ),
        None,
    )
