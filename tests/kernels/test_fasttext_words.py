"""What fastText would take for its own is gone, and every word is where it was."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import example, given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.fasttext_words import only_words, only_words_plain

PIECES = st.sampled_from(
    ["</s>", "__label__", "__label__good", "x</s>", "</s", "<", "wörd", "水は", "a", "\0", "\n", "\r\n", " ", "\t"]
)
ODD = st.text(alphabet="a\x1c\x1d\x1e\x1f\x85\u2028\u2029\u2027\u00a0\v\f\r\n é")
TEXTS = st.lists(PIECES).map("".join) | st.lists(PIECES).map(" ".join) | ODD | st.text()


@given(st.lists(TEXTS, max_size=6), st.integers(0, 2))
@example(["a\u2028b\x85c\x1dd", "\u2028"], 0)
def test_words_are_those_of_the_plain_twin(texts, start):
    column = text_column(pa.array(texts, pa.string()).slice(start))
    data, offsets = only_words(column)
    found = [data[a:b].tobytes() for a, b in pairwise(offsets)]
    assert [[word for word in one.decode().split(" ") if word] for one in found] == [
        [word for word in only_words_plain(text).split(" ") if word] for text in texts[start:]
    ]
    assert [len(one) for one in found] == [len(text.encode()) for text in texts[start:]]
    assert not any(byte in data.tobytes() for byte in b"\n\r\t\v\f\0")
