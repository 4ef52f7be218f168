"""Runs of words without symbols of code are found as a plain reading finds them, whatever the bytes."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from gristmill.kernels.base.columns import text_column
from gristmill.kernels.language.no_language import RUN, shares_of_prose

SYMBOLS, BRACKETS, INNER = "{}[]<>=;_\\|&$*+~^#@`%", "()", '/:".,'
CODE = "def f(a):\n    return {k: v[0] for k, v in a.items() if k != 'x' and v[1] >= self._limit}\n"
PROSE = "It was a bright cold day in April, and the clocks (all of them) were striking 13:00."


def plain(text: str) -> float:
    words = [(match.group(), match.start()) for match in re.finditer(r"[^\x00-\x20\x7f]+", text)]
    in_runs = run = of_run = 0
    for word, _ in words:
        clean = True
        for place, character in enumerate(word):
            if character not in SYMBOLS + BRACKETS + INNER:
                continue
            before, after = word[place - 1 : place], word[place + 1 : place + 2]
            digits = bool(before) and bool(after) and before in "0123456789" and after in "0123456789"
            inside = bool(before) and bool(after) and not digits
            clean &= character not in SYMBOLS and not (inside and before not in BRACKETS and after not in BRACKETS)
        letters = sum((c.isascii() and c.isalpha()) or ord(c) >= 0x80 for c in word)
        run += word.count("天")
        if clean and letters:
            run, of_run = run + 1, of_run + letters
        elif not clean:
            in_runs += of_run if run >= RUN else 0
            run = of_run = 0
    in_runs += of_run if run >= RUN else 0
    letters = sum((c.isascii() and c.isalpha()) or ord(c) >= 0x80 for c in text)
    return in_runs / max(letters, 1)


@given(st.lists(st.text("ab1  \n{;.:/,()é\u0085\ufffd\ue000ж天\x00-", max_size=40), max_size=5))
def test_the_kernel_counts_as_a_plain_reading(texts):
    column = text_column(pa.array(texts, pa.string()))
    found = shares_of_prose(column.data, column.offsets, np.ones(len(texts), np.bool_))
    assert found.tolist() == np.array([plain(text) for text in texts], np.float32).tolist()


@given(st.binary(max_size=40))
def test_any_bytes_are_read_within_their_bounds(data):
    found = shares_of_prose(np.frombuffer(data, np.uint8), np.array([0, len(data)]), np.ones(1, np.bool_))
    assert len(found) == 1 and 0 <= found[0] <= 1


def test_prose_is_in_runs_of_words_and_code_is_not():
    column = text_column(pa.array([CODE, PROSE, CODE]))
    prose = shares_of_prose(column.data, column.offsets, np.array([True, True, False]))
    assert prose[0] < 0.3 < 0.9 < prose[1]
    assert prose[2] == 0  # it was not wanted
