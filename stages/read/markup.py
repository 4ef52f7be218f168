"""Texts that are markup: pages that a reader of texts was given. Nobody wants them as they are, and `extract` can make
text of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.read.payload import LOOKS_LIKE_HTML

BEGINS_WITH_A_TAG = r"^\x{feff}?\s*<"  # 9 ms on 160 MB of texts; the few that do are looked at one by one
MARKUP = "markup"  # under which such texts are counted
FIRST = 8192  # characters of a text that may be comments before its first tag


def rows_of_markup(texts: pa.Array) -> list[int]:
    """The rows whose text begins as a page or a piece of one does; rows without text are none."""
    tagged = pc.fill_null(pc.match_substring_regex(texts, BEGINS_WITH_A_TAG), False).to_numpy(zero_copy_only=False)
    return [
        row for row in np.flatnonzero(tagged).tolist() if LOOKS_LIKE_HTML.match(texts[row].as_py()[:FIRST].encode())
    ]
